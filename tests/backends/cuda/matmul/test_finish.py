"""What own kernels do with a sum, as text."""

from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.matmul.finish import finish_text
from lamina.ops.primitives import Add, Relu
from lamina.spec import Spec, bfloat16

C = Spec((4, 8), bfloat16).fixed


def test_a_sum_is_written_as_the_type_of_the_result() -> None:
    text = finish_text(C, NONE, (), ("8", "1"), ())
    assert "#define EXTRAS \n#define GIVEN \n" in text
    assert "finish(A a0, Index m, Index n, T *c EXTRAS)" in text
    assert text.endswith("    c[m * 8 + n * 1] = narrow<T>(a0);\n}\n")


def test_steps_read_their_operands_where_they_lie() -> None:
    """A bias of the columns, and what the function is given beside."""
    bias = Spec((8,), bfloat16)
    text = finish_text(
        C, Epilogue((Add(), Relu()), (bias,), 2), (bias,), ("C_M", "C_N"), [("X0_M", "X0_N")], ", int more"
    )
    assert "#define EXTRAS , const bf16 *x0\n#define GIVEN , x0\n" in text
    assert "T *c EXTRAS, int more)" in text
    assert "const f32 a1 = widen(x0[m * X0_M + n * X0_N]);\n" in text
    assert "narrow<T>(a0)" not in text
    assert "c[m * C_M + n * C_N] = narrow<T>(" in text
