"""Products of normalized rows: the own kernel on a CPU, and where a norm and a product stay."""

import shutil

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cuda import backend
from lamina.backends.cuda.matmul.normed_matmul_fusion import NormedMatmul
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives import Add, Fused, Gelu, LayerNorm, Matmul, Relu, RmsNorm
from lamina.spec import DType, Policy, Spec, bfloat16, float16, float32, float64
from tests.helpers import slow_from
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
rng = np.random.default_rng(5)
NORMS = {"layer": LayerNorm(1, 1e-5), "rms": RmsNorm(1, 1e-6)}
CUDA = backend(H200)


def given(
    norm: Op, m: int, k: int, n: int, along: bool, dtype: DType, scales: DType = float32
) -> list[Array]:
    """x of another mean and size than 0 and 1, scale, bias for a layer norm, b."""
    x = rng.standard_normal((m, k)) * 3 + 0.5
    small = [rng.standard_normal(k).astype(np.float32) for _ in range(1 + isinstance(norm, LayerNorm))]
    b = rng.standard_normal((n, k) if along else (k, n)) / np.sqrt(k)
    return [x.astype(dtype.numpy), *small, b.astype(dtype.numpy)]


def check(op: Op, inputs: list[Array], dtype: DType, *, misaligned: bool = False) -> None:
    """The kernel's values beside float64's, the same whatever order the warps run in."""
    specs = [Spec(x.shape, dtype if x.dtype == dtype.numpy else float32) for x in inputs]
    plan = CUDA.plan(op, specs, Policy())
    assert plan.label.startswith("kernel normed_matmul")
    (found,) = run_plan(plan, inputs, misaligned=misaligned)
    with contrary():
        np.testing.assert_array_equal(run_plan(plan, inputs, misaligned=misaligned)[0], found)
    (wanted,) = run_reference(op, inputs, float64)
    assert not mismatch(found, wanted, dtype)


@emulated
@pytest.mark.parametrize("dtype", slow_from(1, [float16, bfloat16]), ids=str)
@pytest.mark.parametrize("along", [True, False])
@pytest.mark.parametrize(
    ("norm", "m", "k", "n"),
    [
        ("layer", 5, 8, 8), ("rms", 33, 136, 40), ("layer", 1, 768, 64), ("rms", 17, 1544, 72),
        ("layer", 70, 264, 520), ("rms", 64, 64, 2048), ("layer", 49, 128, 96),
    ],
)  # fmt: skip
def test_values(norm: str, m: int, k: int, n: int, along: bool, dtype: DType) -> None:
    """Tiles that are full and that are not, rows of one part and of several."""
    made = NORMS[norm]
    check(NormedMatmul(made, Matmul(False, along)), given(made, m, k, n, along, dtype), dtype)


@emulated
@pytest.mark.parametrize("steps", [(Add(),), (Add(), Gelu()), (Relu(),), (Add(), Add())], ids=str)
def test_steps_behind_the_product(steps: tuple[Op, ...]) -> None:
    """A bias, an activation, a residual."""
    norm = NORMS["layer"]
    inputs = given(norm, 20, 40, 48, True, bfloat16)
    shapes = [(48,), (20, 48)][: sum(isinstance(step, Add) for step in steps)]
    more = [rng.standard_normal(s).astype(bfloat16.numpy) for s in shapes]
    check(Fused((NormedMatmul(norm, Matmul(False, True)), *steps)), [*inputs, *more], bfloat16)


@emulated
@pytest.mark.parametrize("along", [True, False])
def test_addresses_may_be_any(along: bool) -> None:
    norm = NORMS["layer"]
    check(
        NormedMatmul(norm, Matmul(False, along)),
        given(norm, 19, 48, 40, along, float16),
        float16,
        misaligned=True,
    )


@emulated
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_rows_that_hardly_vary(dtype: DType) -> None:
    """A row of one number is its bias; NaN and infinities stay in their rows."""
    norm = NORMS["layer"]
    x, scale, bias, b = given(norm, 6, 16, 24, True, dtype)
    x[1], x[2, 3], x[3, 5] = 7.0, np.nan, np.inf
    op = NormedMatmul(norm, Matmul(False, True))
    plan = CUDA.plan(
        op, [Spec(a.shape, dtype if a is x or a is b else float32) for a in (x, scale, bias, b)], Policy()
    )
    (found,) = run_plan(plan, [x, scale, bias, b])
    assert np.isnan(found[2:4].astype(float)).all()
    assert np.isfinite(found[[0, 1, 4, 5]].astype(float)).all()
    exact = bias.astype(float) @ b.astype(float).T
    assert not mismatch(found[1], exact, dtype)


@emulated
@pytest.mark.parametrize(
    ("m", "k", "n", "dtype"),
    [(197, 384, 1152, bfloat16), (8, 100, 64, bfloat16), (8, 64, 64, float32), (16, 8192, 64, float16)],
)
def test_where_a_norm_and_a_product_stay(m: int, k: int, n: int, dtype: DType) -> None:
    """Many rows, rows of no whole accesses, other types, rows that shared memory does not hold: the plan is that of
    the parts, which a graph keeps.
    """
    op = NormedMatmul(NORMS["layer"], Matmul(False, True))
    specs = [Spec((m, k), dtype), Spec((k,), float32), Spec((k,), float32), Spec((n, k), dtype)]
    plan = CUDA.plan(op, specs, Policy())
    assert len(plan.parts) == 2
    with pytest.raises(NoKernel, match="a norm and a product are faster, or no kernel has both"):
        CUDA.plan(Fused((op, Relu())), specs, Policy())


@emulated
@pytest.mark.parametrize("norm", list(NORMS))
def test_the_parts_one_after_the_other(norm: str) -> None:
    """Rows of no whole accesses."""
    made = NORMS[norm]
    op, inputs = NormedMatmul(made, Matmul(False, True)), given(made, 5, 12, 7, True, float16)
    specs = [Spec(x.shape, float32 if x.ndim == 1 else float16) for x in inputs]
    plan = CUDA.plan(op, specs, Policy())
    assert len(plan.parts) == 2
    (found,) = run_plan(plan, inputs)
    assert not mismatch(found, run_reference(op, inputs, float64)[0], float16)
