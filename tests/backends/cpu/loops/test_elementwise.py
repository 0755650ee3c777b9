"""Elementwise ops and chains of them: values of every op, dtype, shape and layout beside the reference."""

from collections.abc import Sequence

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.backends import NoKernel
from lamina.backends.cpu.loops import table
from lamina.backends.cpu.loops.elementwise import nest
from lamina.backends.cpu.loops.space import space
from lamina.ops.core import REGISTRY, Op
from lamina.ops.primitives import (
    Add,
    BinaryFunction,
    Cast,
    Erf,
    Exp,
    Fused,
    FusedElementwise,
    Identity,
    Mul,
    Reduce,
    Relu,
    Sigmoid,
    Slice,
    UnaryFunction,
    Where,
)
from lamina.runtime import Device
from lamina.spec import DType, Layout, Spec, as_dtype, bfloat16, float16, float32
from tests.helpers.eager import execute, mismatch
from tests.helpers.loops import check_samples, needs_llvm, plan, reference_of

pytestmark = needs_llvm
NAMES = sorted(n for n, op in REGISTRY.items() if op.elementwise or op is Fused)
#: Ops that NumPy alone computes: their meaning calls functions that have no instructions.
NUMPY_ALONE = ("cos", "polygamma", "pow", "sin", "tan")


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", NAMES)
def test_values(name: str) -> None:
    checked = check_samples(REGISTRY[name], dtypes=1, samples=2)
    assert bool(checked) != (name in NUMPY_ALONE)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=6)


CHAIN = Fused((Add(), Sigmoid(), Mul(), Relu()))


@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd16b", "aBcd8b"])
@pytest.mark.parametrize("shape", [(2, 32, 3, 5), (2, 20, 4, 3)], ids=str)
def test_layouts(tag: str, shape: tuple[int, ...]) -> None:
    """Operands in blocks, with and without padding, beside one per channel and one that is row-major."""
    rng = np.random.default_rng(0)
    shapes = [shape, (shape[1], 1, 1), shape]
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    specs = [Spec(s, float32).fixed for s in shapes]
    specs[0] = specs[0].with_tag(tag)
    found = plan(CHAIN, specs)
    (y,) = execute(Device("cpu"), found, arrays)
    assert mismatch(y, reference_of(CHAIN, arrays)[0], float32) == ""
    (again,) = execute(Device("cpu"), found, arrays, in_place=True)
    np.testing.assert_array_equal(y, again)


@pytest.mark.parametrize("strides", [(40, 1), (2, 60), (0, 1), (1, 0), (-1, 7)], ids=str)
def test_strides(strides: tuple[int, int]) -> None:
    """Transposed, with gaps, repeated, backwards: as the operand lies."""
    memory = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    first = 100
    x = np.lib.stride_tricks.as_strided(memory[first:], (30, 25), [4 * s for s in strides])
    b = np.linspace(-1, 1, 25, dtype=np.float32)
    found = plan(
        Fused((Add(), Relu())), [Spec((30, 25), float32, Layout(strides)), Spec((25,), float32).fixed]
    )
    y = np.zeros((30, 25), np.float32)
    if found.inputs[0].layout == Layout(strides):
        found.bind(backends.Call((x.ctypes.data, b.ctypes.data), (y.ctypes.data,)))()
        laid = np.lib.stride_tricks.as_strided(
            y, (30, 25), [4 * s for s in found.outputs[0].physical.strides]
        )
        np.testing.assert_array_equal(laid, np.maximum(x + b, 0))
    else:
        assert found.inputs[0].is_contiguous


@pytest.mark.parametrize(("wholes", "tag"), [(1, "acdb"), (3, "abcd")])
def test_parts_are_read_along_their_memory(wholes: int, tag: str) -> None:
    """Channels of an image that lies channels last, beside row-major images: the fewest copies and reads across."""
    rng = np.random.default_rng(0)
    steps = (Slice((0, 8, 0, 0), (2, 16, 4, 5), (1, 1, 1, 1)), *[Mul()] * wholes)
    op = FusedElementwise(steps, ((0,), *((~k, k + 1) for k in range(wholes))))
    arrays = [rng.standard_normal((2, c, 4, 5)).astype(np.float32) for c in (24, *[8] * wholes)]
    specs = [Spec(a.shape, float32).fixed for a in arrays]
    found = plan(op, [specs[0].with_tag("acdb"), *specs[1:]])
    assert found.inputs[0].tag == "acdb"
    assert {s.tag for s in (*found.inputs[1:], *found.outputs)} == {tag}
    (y,) = execute(Device("cpu"), found, arrays)
    assert mismatch(y, reference_of(op, arrays)[0], float32) == ""


@pytest.mark.parametrize("width", [1, 7, 15, 16, 17, 31, 33, 100])
def test_short_rows(width: int) -> None:
    """Nothing is written behind a row that is no multiple of a vector."""
    x = np.random.default_rng(0).standard_normal((20, width)).astype(np.float32)
    y = np.full((21, width + 3), 7, np.float32)
    made, gaps = Spec(x.shape, float32).fixed, Spec(x.shape, float32, Layout((width + 3, 1)))
    op = Fused((Exp(), Sigmoid()))
    kernel = nest(op, space(x.shape, made.physical, [made, gaps]), [made], gaps)
    kernel(backends.Call((x.ctypes.data,), (y.ctypes.data,)))()
    assert mismatch(y[:20, :width], reference_of(op, [x])[0], float32) == ""
    assert (y[20] == 7).all()
    assert (y[:, width:] == 7).all()


def test_a_graph_runs_its_chains_as_one_kernel() -> None:
    x = lm.tensor(np.linspace(-4, 4, 5000, dtype=np.float32).reshape(50, 100))

    def f(x: lm.Tensor) -> lm.Tensor:
        return ops.where(x > 0, x, x.exp() - 1.0) * ops.sigmoid(x) + 0.5

    np.testing.assert_allclose(lm.jit(f)(x).numpy(), f(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("half", [bfloat16, float16], ids=str)
def test_a_chain_rounds_in_between_where_it_is_cast(half: DType) -> None:
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    chain = Fused((Cast(half), Cast(float32), Exp()))
    (y,) = execute(Device("cpu"), plan(chain, [Spec((64,), float32).fixed]), [x])
    np.testing.assert_allclose(y, np.exp(x.astype(half.numpy).astype(np.float32)), rtol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays(value: float) -> None:
    chains: Sequence[tuple[Op, int]] = [(CHAIN, 3), (Fused((Exp(), Add())), 2), (Fused((Mul(), Relu())), 2)]
    for chain, arity in chains:
        arrays = [np.linspace(-1, 1, 64, dtype=np.float32) for _ in range(arity)]
        arrays[0][5] = value
        (y,) = execute(Device("cpu"), plan(chain, [Spec((64,), float32).fixed] * arity), arrays)
        assert mismatch(y, reference_of(chain, arrays)[0], float32) == ""


def test_a_choice_may_lie_over_its_operand() -> None:
    found = plan(Where(), [Spec((64,), s).fixed for s in (lm.bool_, float32, float32)])
    assert found.aliases == {0: 1}
    assert found.label == "loops where"


@pytest.mark.parametrize(
    ("strides", "copied"),
    [((40, 1), True), ((-25, 1), True), ((1, 30), False), ((50, 2), False), ((1, 0), False)],
)
def test_rows_of_neighbours_are_copied_at_once(strides: tuple[int, int], copied: bool) -> None:
    memory = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    x, y = Spec((30, 25), float32, Layout(strides)), Spec((30, 25), float32).fixed
    made = nest(Identity(), space(x.shape, y.physical, [x, y]), [x], y)
    assert ("memcpy" in made.text()) == copied
    found = np.zeros(x.shape, np.float32)
    made(backends.Call((memory[1000:].ctypes.data,), (found.ctypes.data,)))()
    laid = np.lib.stride_tricks.as_strided(memory[1000:], x.shape, [4 * s for s in strides])
    np.testing.assert_array_equal(found, laid)


def test_the_kernel_is_the_same_for_other_sizes() -> None:
    texts = {
        plan(CHAIN, [Spec(s, float32).fixed for s in (shape, shape[1:], shape)]).make.text()  # type: ignore[attr-defined]
        for shape in ((30, 25), (7, 2000))
    }
    assert len(texts) == 1


@pytest.mark.parametrize("name", ["erf", "erfc", "erfinv", "lgamma", "digamma"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_special_functions_of_all_sizes(name: str, dtype: str) -> None:
    """As NumPy computes them: around 0, poles and ends, of all sizes, of what is not finite."""
    rng = np.random.default_rng(0)
    ends = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        -3.0,
        0.5,
        np.inf,
        -np.inf,
        np.nan,
        1e-30,
        -1e-30,
        1e30,
        -1e30,
        1.5,
        26.5,
    ]
    parts = [rng.uniform(-1, 1, 2000), rng.uniform(-30, 30, 2000), np.exp(rng.uniform(-30, 30, 2000)), ends]
    x = np.concatenate(parts).astype(as_dtype(dtype).numpy)
    op = Erf() if name == "erf" else UnaryFunction(name)
    found = plan(op, [Spec(x.shape, as_dtype(dtype)).fixed])
    (y,) = execute(Device("cpu"), found, [x])
    with np.errstate(all="ignore"):
        wanted = op.reference(x.astype(np.float64))[0]
    tolerance = 1e-11 if dtype == "float64" else 4e-7 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(
        y.astype(np.float64), wanted.astype(y.dtype).astype(np.float64), rtol=tolerance, atol=1e-12
    )


@pytest.mark.parametrize("name", ["fmod", "remainder"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_remainders(name: str, dtype: str) -> None:
    """Exact in every bit, of all signs, zeros and what is not finite; quotients that are too large too."""
    rng, to = np.random.default_rng(0), as_dtype(dtype).numpy
    ends = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 3.0, 1e-7, 0.1], to)
    a = np.concatenate([rng.uniform(-90, 90, 4000).astype(to), np.repeat(ends, len(ends))])
    b = np.concatenate([rng.uniform(-3, 3, 2000), rng.integers(1, 9, 2000) * 0.1]).astype(to)
    b = np.concatenate([b, np.tile(ends, len(ends))])
    for more in (False, True):
        if more:  # a quotient of more digits than the type has
            a[7], b[7] = np.finfo(to).max, 0.37
        op = BinaryFunction(name)
        found = plan(op, [Spec(a.shape, as_dtype(dtype)).fixed] * 2)
        assert found.aliases == {}
        (y,) = execute(Device("cpu"), found, [a, b])
        with np.errstate(all="ignore"):
            wanted = op.reference(*(v.astype(np.float32) if dtype == "float16" else v for v in (a, b)))[
                0
            ].astype(to)
        np.testing.assert_array_equal(y, wanted)
        np.testing.assert_array_equal(
            np.signbit(y), np.signbit(wanted) & ~np.isnan(wanted) | np.isnan(y) & np.signbit(y)
        )


def test_what_is_in_doubt_is_computed_again_in_a_formula() -> None:
    def f(x: lm.Tensor, y: lm.Tensor) -> lm.Tensor:
        return ops.fmod(x * 2.0, y) + ops.abs(x)

    x, y = np.linspace(-50, 50, 20000, dtype=np.float32), np.linspace(0.3, 7, 20000, dtype=np.float32)
    fast = lm.jit(f)
    for large in (1.0, 1e30):
        x[3] = large
        np.testing.assert_array_equal(fast(x, y).numpy(), f(lm.tensor(x), lm.tensor(y)).numpy())
    assert fast.program(x, y).kernels == 1
    steps = FusedElementwise((BinaryFunction("fmod"), Reduce("sum", (0,))), ((0, 1), (~0,)))
    with pytest.raises(NoKernel, match="in doubt"):
        plan(steps, [Spec((64,), float32).fixed] * 2)
