"""Norm and pool in one kernel, run on a CPU: the bits of the separate kernels, windows, edges, what is refused."""

import shutil
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest

from lamina.backends import Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.launch.program import Launches
from lamina.backends.cuda.norm import batch_norm_max_pool, batch_persistent
from lamina.backends.cuda.norm import norm as norms
from lamina.backends.cuda.norm.batch_norm_max_pool_fusion import NormPool, PoolNormGrad
from lamina.backends.cuda.select.formulations import Problem, candidate, make_plan
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives import BatchNorm, BatchNormGrad, MaxPool, MaxPoolGrad, Window
from lamina.runtime import Device
from lamina.spec import (
    DType,
    Layout,
    Policy,
    Shape,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    contiguous,
    float16,
    float32,
    float64,
)
from tests.helpers import slow_from
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)


def win(stride: Shape, *padding: Shape) -> Window:
    return Window(stride, tuple((lo, hi) for lo, hi in padding), (1,) * len(stride))


#: Kernel, window, x: ResNet's stem; odd sizes and uneven padding; no overlap; gaps; three windows along an axis.
CASES: dict[str, tuple[Shape, Window, Shape]] = {
    "stem": ((3, 3), win((2, 2), (1, 1), (1, 1)), (2, 64, 12, 10)),
    "odd": ((3, 3), win((2, 2), (0, 1), (1, 0)), (1, 24, 7, 9)),
    "apart": ((2, 2), win((2, 2), (0, 0), (0, 0)), (2, 8, 5, 6)),
    "gaps": ((1, 2), win((2, 2), (0, 0), (0, 1)), (1, 16, 6, 5)),
    "wide": ((2, 5), win((1, 2), (1, 0), (2, 2)), (1, 8, 19, 8)),
    "row": ((3, 3), win((3, 1), (1, 1), (1, 1)), (1, 16, 8, 3)),
}
DTYPES = (bfloat16, float32, float16, float64)


def eighths(rng: np.random.Generator, shape: Shape, dtype: DType, most: int = 16) -> Array:
    """Multiples of 1/8: their sums are exact in any order; some are equal."""
    return (rng.integers(-most, most + 1, shape) / 8).astype(dtype.numpy)


def plan(op: Op, arrays: Sequence[Array], last: bool = True) -> Plan:
    specs = [
        Spec(a.shape, as_dtype(a.dtype), channels_last(a.shape) if last else contiguous(a.shape))
        for a in arrays
    ]
    return CUDA.plan(op, specs, Policy())


def run(op: Op, arrays: Sequence[Array], misaligned: bool = False) -> tuple[Array, ...]:
    return run_plan(plan(op, arrays), arrays, misaligned=misaligned)


def same(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes(), f"output {i}: {np.argwhere(a != b)[:3]}"


@pytest.fixture
def in_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms alone run in passes, as the fused kernels do, so that their sums round alike."""
    monkeypatch.setattr(batch_persistent, "tiling", lambda *given: None)


def forward_operands(x: Shape, dtype: DType) -> list[Array]:
    rng, wide = np.random.default_rng(x[1]), dtype.compute
    small = [eighths(rng, x[1:2], wide) for _ in range(3)]
    return [eighths(rng, x, dtype), *small, rng.choice([0.5, 1.0, 2.0], x[1]).astype(wide.numpy)]


@pytest.mark.parametrize("case", slow_from(2, CASES))
@pytest.mark.parametrize("index", [True, False])
def test_forward_has_the_bits_of_both_kernels(case: str, index: bool) -> None:
    kernel, window, x = CASES[case]
    place = list(CASES).index(case)
    turn, dtype = (place + index) % 3, DTYPES[(place + 2 * index) % 4]
    norm = BatchNorm(1e-3, 0.1, turn > 0, hi=0.75 if turn == 2 else None)
    pool, arrays = MaxPool(kernel, window, index), forward_operands(x, dtype)
    found = run(NormPool(norm, pool), arrays, misaligned=turn == 1 and index)
    assert plan(NormPool(norm, pool), arrays).label.endswith("fused")
    y, *statistics = run(norm, arrays)
    pooled, *places = run(pool, [y])
    same(found, [pooled, *statistics, *places])


@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
@pytest.mark.parametrize("relu", [True, False])
def test_what_is_not_a_number_wins(dtype: DType, relu: bool) -> None:
    """An image with NaN makes its channel NaN; infinite scales leave infinities, and relu zeros everywhere."""
    kernel, window, x = CASES["stem"]
    arrays = forward_operands(x, dtype)
    arrays[0][0, 3, 4, 4] = np.nan
    arrays[1][5], arrays[1][6], arrays[2][7] = np.inf, -np.inf, -1e4
    norm, pool = BatchNorm(1e-3, 0.1, relu), MaxPool(kernel, window, True)
    y, *statistics = run(norm, arrays)
    pooled, places = run(pool, [y])
    assert np.isnan(pooled[:, 3].astype(np.float32)).all()
    if relu:
        assert not pooled[:, 7].any()
    found = run(NormPool(norm, pool), arrays)
    for a, b in zip(found, (pooled, *statistics, places), strict=True):
        np.testing.assert_array_equal(a.astype(np.float64), b.astype(np.float64))


@pytest.mark.parametrize(("across", "down"), slow_from(1, [(1, 8), (2, 1), (3, 2)], several=True))
def test_tiles_of_any_size(across: int, down: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_norm_max_pool, "_ACROSS", across)
    monkeypatch.setattr(batch_norm_max_pool, "_DOWN", (down,))
    monkeypatch.setattr(batch_norm_max_pool, "_ENOUGH", 0)
    for case in ("odd", "wide"):
        kernel, window, x = CASES[case]
        norm, pool, arrays = (
            BatchNorm(1e-3, 0.1, case != "odd"),
            MaxPool(kernel, window, True),
            forward_operands(x, bfloat16),
        )
        y, *statistics = run(norm, arrays)
        pooled, index = run(pool, [y])
        same(run(NormPool(norm, pool), arrays), [pooled, *statistics, index])


def backward_operands(
    kernel: Shape, window: Window, x: Shape, dtype: DType, norm: BatchNormGrad
) -> list[Array]:
    """g, index (of maxima, so of elements that are there), x, scale, mean, r and with relu the bias."""
    rng, wide = np.random.default_rng(x[1]), dtype.compute
    image = eighths(rng, x, dtype)
    pooled, index = run_reference(MaxPool(kernel, window, True), [image])
    small = [
        eighths(rng, x[1:2], wide),
        eighths(rng, x[1:2], wide),
        rng.choice([0.5, 1, 2], x[1]).astype(wide.numpy),
    ]
    after = [eighths(rng, x[1:2], wide)] if norm.relu else []
    return [eighths(rng, pooled.shape, dtype, 3), index, image, *small, *after]


@pytest.mark.usefixtures("in_passes")
@pytest.mark.parametrize("case", slow_from(2, CASES))
@pytest.mark.parametrize("relu", [False, True])
def test_backward_has_the_bits_of_both_kernels(case: str, relu: bool) -> None:
    """Sums of eighths are exact, so that the order in which the sums are taken does not matter."""
    kernel, window, x = CASES[case]
    place = list(CASES).index(case)
    turn, dtype = (place + relu) % 3, DTYPES[(place + 2 * relu) % 4]
    norm = BatchNormGrad(relu, moving=turn != 1, hi=0.75 if relu and turn == 2 else None)
    pool = MaxPoolGrad(kernel, window, x[2:])
    arrays = backward_operands(kernel, window, x, dtype, norm)
    op = PoolNormGrad(pool, norm)
    assert plan(op, arrays).label.endswith("fused")
    found = run(op, arrays, misaligned=turn == 2)
    (g,) = run(pool, arrays[:2])
    same(found, run(norm, [g, *arrays[2:]]))


@pytest.mark.usefixtures("in_passes")
def test_the_pools_gradient_is_rounded_before_it_is_used() -> None:
    """Several windows give numbers of eight digits to one position: their sum has more."""
    kernel, window, x = CASES["stem"]
    rng = np.random.default_rng(0)
    arrays = backward_operands(kernel, window, x, bfloat16, BatchNormGrad())
    arrays[0] = (1 + rng.integers(0, 8, arrays[0].shape) / 128).astype(bfloat16.numpy)
    arrays[1][:] = rng.integers(0, 9, arrays[1].shape)
    op = PoolNormGrad(MaxPoolGrad(kernel, window, x[2:]), BatchNormGrad())
    found = run(op, arrays)
    (g,) = run(op.pool, arrays[:2])
    assert (g != run_reference(op.pool, arrays[:2], float64)[0]).any()
    same(found, run(op.norm, [g, *arrays[2:]]))


def test_many_blocks_and_idle_threads() -> None:
    """More groups than a block takes, channels that leave lanes without work; the same bits twice."""
    kernel, window, _ = CASES["stem"]
    x, norm = (3, 40, 33, 31), BatchNormGrad()
    arrays = backward_operands(kernel, window, x, bfloat16, norm)
    op = PoolNormGrad(MaxPoolGrad(kernel, window, x[2:]), norm)
    made = plan(op, arrays)
    assert isinstance(made.make, Launches)
    assert made.make.steps[0].grid[1] > 2  # type: ignore[attr-defined]
    found = run(op, arrays)
    (g,) = run(op.pool, arrays[:2])
    same(found, run(norm, [g, *arrays[2:]]))
    same(found, run(op, arrays))


REFUSED = {
    "row-major": (CASES["stem"], False, False),
    "few channels": (((3, 3), win((2, 2), (1, 1), (1, 1)), (2, 12, 6, 6)), True, False),
    "dilated": (((2, 2), Window((2, 2), ((0, 0), (0, 0)), (2, 1)), (2, 8, 6, 6)), True, False),
    "stride of 1": (((3, 3), win((1, 1), (1, 1), (1, 1)), (2, 8, 6, 6)), True, False),
    "large window": (((5, 4), win((2, 2), (1, 1), (1, 1)), (2, 8, 8, 7)), True, False),
    "one axis": (((3,), win((2,), (1, 1)), (2, 8, 9)), True, False),
    "residual": (CASES["stem"], True, True),
}


@pytest.mark.parametrize("case", slow_from(2, REFUSED))
def test_what_is_not_fused(case: str) -> None:
    """The plan names its parts, and runs one after the other."""
    (kernel, window, x), last, residual = REFUSED[case]
    rng = np.random.default_rng(1)
    relu = residual
    arrays = [*forward_operands(x, bfloat16), *([eighths(rng, x, bfloat16)] if residual else [])]
    op: Op = NormPool(BatchNorm(1e-3, 0.1, relu, residual), MaxPool(kernel, window, True))
    made = plan(op, arrays, last)
    assert made.label == "kernel norm_pool unfused"
    assert [part.label.split()[1].partition("+")[0] for part in made.parts] == ["batch_norm", "max_pool"]
    y, *statistics = run_plan(plan(op.norm, arrays, last), arrays)  # type: ignore[attr-defined]
    pooled, index = run(op.pool, [y])  # type: ignore[attr-defined]
    same(run_plan(made, arrays), [pooled, *statistics, index])
    norm = BatchNormGrad(relu, residual)
    arrays = backward_operands(kernel, window, x, bfloat16, BatchNormGrad())
    arrays += [eighths(rng, x, bfloat16)] if residual else []
    op = PoolNormGrad(MaxPoolGrad(kernel, window, x[2:]), norm)
    made = plan(op, arrays, last)
    assert made.label == "kernel pool_norm_grad unfused"
    (g,) = run_plan(plan(op.pool, arrays[:2], last), arrays[:2])
    rest = [g, *arrays[2:]]
    same(run_plan(made, arrays), run_plan(plan(norm, rest, last), rest))


@pytest.mark.usefixtures("in_passes")
@pytest.mark.parametrize("places", slow_from(2, product([contiguous, channels_last, None], repeat=2)))
def test_operands_that_lie_otherwise(places: tuple[Callable[[Shape], Layout] | None, ...]) -> None:
    """The gradient and the index in one layout, x in another: the plan says how it wants them."""
    kernel, window, x = CASES["odd"]
    norm = BatchNormGrad()
    arrays = backward_operands(kernel, window, x, float32, norm)
    op = PoolNormGrad(MaxPoolGrad(kernel, window, x[2:]), norm)
    arranges = [places[0], places[0], places[1], *[contiguous] * 3]
    specs = [
        Spec(a.shape, as_dtype(a.dtype), arrange and arrange(a.shape))
        for a, arrange in zip(arrays, arranges, strict=True)
    ]
    (g,) = run(op.pool, arrays[:2])
    same(run_plan(CUDA.plan(op, specs, Policy()), arrays), run(norm, [g, *arrays[2:]]))


@pytest.mark.parametrize("winner", ["fused", "unfused"])
def test_fastest_takes_the_winner(winner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both compete; the parts of the unfused form are what `fastest` takes for each."""

    def choose(problem: Problem, device: Device, policy: Policy) -> Plan:
        formulations = {formulation.name: formulation for formulation in problem.formulations}
        assert policy.algorithm == "fastest" or "unfused" not in formulations
        return make_plan(
            problem,
            candidate(formulations[winner if "unfused" in formulations else "kernel"], None, {}),
            device,
        )

    monkeypatch.setattr(norms, "choose", choose)
    monkeypatch.setattr(batch_norm_max_pool, "choose", choose)
    kernel, window, x = CASES["odd"]
    forward, back = BatchNorm(1e-3, 0.1, True), BatchNormGrad()
    arrays = forward_operands(x, bfloat16)
    both = NormPool(forward, MaxPool(kernel, window, True))
    gradients = PoolNormGrad(MaxPoolGrad(kernel, window, x[2:]), back)
    for op, given in ((both, arrays), (gradients, backward_operands(kernel, window, x, bfloat16, back))):
        specs = [Spec(a.shape, as_dtype(a.dtype), channels_last(a.shape)) for a in given]
        made = CUDA.plan(op, specs, Policy(algorithm="fastest"))
        assert made.label == f"kernel {op.name} {winner}"
        assert len(made.parts) == (2 if winner == "unfused" else 0)
        wanted = run(op, given)
        same(run_plan(made, given), wanted)
        with contrary():
            same(run_plan(made, given), wanted)
        assert isinstance(made.make, Launches)
        assert (made.make.plain is not None) == (winner == "fused")
