"""How the operands of a product lie."""

import pytest

from lamina.backends import NoKernel
from lamina.backends.cuda import backend
from lamina.backends.cuda.launch.program import Fill, target
from lamina.backends.cuda.matmul.matmul import is_transposed
from lamina.ops.primitives import Fused, Matmul, Relu
from lamina.spec import Policy, Shape, Spec, float32
from tests.helpers.planned import H200


@pytest.mark.parametrize(
    ("shape", "tag", "transposed"),
    [
        ((4, 5), "ba", True),
        ((4, 5), "ab", False),
        ((4, 5), "", False),  # anywhere
        ((3, 4, 5), "acb", True),
        ((3, 4, 5), "abc", False),
        ((3, 4, 5), "bac", False),
        ((4, 1), "ba", False),  # a column lies as a row does
        ((0, 5), "ba", False),
    ],
)
def test_a_matrix_that_lies_by_columns_is_read_as_it_lies(shape: Shape, tag: str, transposed: bool) -> None:
    spec = Spec(shape, float32)
    assert is_transposed(spec.with_tag(tag) if tag else spec) is transposed


def test_a_product_over_no_elements_is_zeros_and_takes_no_steps() -> None:
    cuda, specs = backend(H200), [Spec((3, 0), float32), Spec((0, 4), float32)]
    (step,) = cuda.plan(Matmul(), specs, Policy()).make.steps  # type: ignore[attr-defined]
    assert step == Fill(target(), 0, 48)
    with pytest.raises(NoKernel, match="steps on a product over no elements are left to their own kernels"):
        cuda.plan(Fused((Matmul(), Relu())), specs, Policy())
