"""Elementwise ops that read each other's results, with a reduction behind them, as generated kernels: emulated."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.backends import NoKernel
from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.graph import compile, trace
from lamina.ops.core import Array, Op
from lamina.ops.primitives import (
    Add,
    Cast,
    Concat,
    Expand,
    Fused,
    Gelu,
    Matmul,
    Mul,
    Neg,
    Reduce,
    Relu,
    Reshape,
    Silu,
    Slice,
    Tanh,
)
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.quantize import Dequantize, Quantize
from lamina.spec import (
    DType,
    Policy,
    Shape,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    float16,
    float32,
    float64,
    int8,
    int32,
    uint8,
)
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

CUDA = backend(H200)


def drawn(spec: Spec, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(spec.shape) if spec.dtype.is_float else rng.integers(0, 2, spec.shape)
    return np.asarray(values).astype(spec.dtype.numpy)


def check(op: FusedElementwise, specs: Sequence[Spec]) -> Any:
    """What the kernel gives, by the emulator, is what the reference gives."""
    arrays = [drawn(s, i) for i, s in enumerate(specs)]
    plan = CUDA.plan(op, specs, Policy())
    wanted = run_reference(op, arrays, float64)
    found = run_plan(plan, arrays)
    for a, b in zip(found, wanted, strict=True):
        assert not (problem := mismatch(a, b, as_dtype(a.dtype))), problem
    return plan


def expression(*steps: tuple[Op, tuple[int, ...]]) -> FusedElementwise:
    made, reads = zip(*steps, strict=True)
    return FusedElementwise(tuple(made), tuple(reads))


SQUARES = ((Mul(), (0, 0)), (Add(), (~0, 1)))


@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16])
@pytest.mark.parametrize("shape", [(3, 5), (4, 64), (2, 3, 8, 8), (1,), (0, 4)])
def test_values_of_every_float_type(dtype: Any, shape: Shape) -> None:
    check(expression(*SQUARES), [Spec(shape, dtype), Spec((shape[-1],), dtype)])


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2, 3), (1, 3)])
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "norm2"])
def test_what_is_reduced_is_computed_on_the_way(axes: tuple[int, ...], kind: str) -> None:
    shape = (3, 24, 4, 8)
    op = expression(*SQUARES, (Reduce(kind, axes), (~1,)))
    check(op, [Spec(shape, float32), Spec((24, 1, 1), float32)])
    last = channels_last(shape)
    check(op, [Spec(shape, bfloat16, last), Spec((24, 1, 1), bfloat16)])


@pytest.mark.parametrize("shape", [(2, 70000), (70000, 3), (1, 33000), (5, 1023)])
def test_long_reductions_are_split_among_blocks(shape: Shape) -> None:
    """Partial results are combined as they are, not computed anew."""
    for axes in ((0,), (1,), (0, 1)):
        check(expression(*SQUARES, (Reduce("sum", axes), (~1,))), [Spec(shape, float32), Spec((1,), float32)])


def test_halves_are_rounded_where_a_cast_says_so_and_before_they_are_reduced() -> None:
    x = np.full((1, 64), 1 + 2**-9, np.float32)  # which bfloat16 does not hold
    rounded = expression((Cast(bfloat16), (0,)), (Cast(float32), (~0,)))
    (found,) = run_plan(CUDA.plan(rounded, [Spec(x.shape, float32)], Policy()), [x])
    assert set(found.ravel().tolist()) == {1.0}
    half = np.full((1, 64), 1 + 2**-7, bfloat16.numpy)
    op = expression((Mul(), (0, 0)), (Reduce("sum", (1,)), (~0,)))
    (found,) = run_plan(CUDA.plan(op, [Spec(half.shape, bfloat16)], Policy()), [half])
    assert found.astype(np.float32).tolist() == [65.0]  # 64 times (1 + 2**-7) ** 2, each rounded to 1 + 2**-6


def test_slices_and_repeated_values_are_read_where_they_lie() -> None:
    left, right = Slice((0, 0), (6, 8), (1, 1)), Slice((0, 8), (6, 16), (1, 1))
    gated = expression((left, (0,)), (right, (0,)), (Mul(), (~0, ~1)))
    plan = check(gated, [Spec((6, 16), float32)])
    assert [s.shape for s in plan.inputs] == [(6, 16)]
    assert len(plan.make.steps) == 1
    every_other = Slice((1, 0), (6, 16), (2, 3))
    check(expression((every_other, (0,)), (Relu(), (~0,))), [Spec((6, 16), float32)])
    check(expression((Expand((4, 6)), (0,)), (Mul(), (~0, 1))), [Spec((6,), float32), Spec((4, 6), float32)])
    check(expression((Mul(), (0, 1)), (Expand((4, 6)), (~0,)), (Add(), (~1, 2))),
          [Spec((), float32), Spec((), float32), Spec((4, 6), float32)])  # fmt: skip


def test_the_result_may_lie_where_an_operand_did_that_is_read_in_the_same_order() -> None:
    x, row = Spec((4, 8), float32), Spec((8,), float32)
    assert CUDA.plan(expression(*SQUARES), [x, row], Policy()).aliases == {0: 0}
    turned = expression((Slice((0, 0), (4, 8), (1, 1)), (0,)), (Add(), (~0, 1)))
    assert CUDA.plan(turned, [x, row], Policy()).aliases == {0: 0}
    part = expression((Slice((0, 4), (4, 8), (1, 1)), (0,)), (Add(), (~0, 1)))
    assert CUDA.plan(part, [x, Spec((4, 4), float32)], Policy()).aliases == {0: 1}
    both = expression((Slice((0, 4), (4, 8), (1, 1)), (0,)), (Expand((4, 4)), (1,)), (Add(), (~0, ~1)))
    assert CUDA.plan(both, [x, Spec((4, 1), float32)], Policy()).aliases == {}


def test_which_ops_are_steps() -> None:
    """Whole numbers that would wrap around in memory are written there."""
    f, i, small = Spec((3,), float32), Spec((3,), int32), Spec((3,), uint8)
    assert CUDA.joins(Mul(), [f, f])
    assert CUDA.joins(Mul(), [i, i])
    assert CUDA.joins(Cast(uint8), [f])
    assert CUDA.joins(Reduce("sum", (0,)), [f])
    assert not CUDA.joins(Add(), [small, small])
    assert not CUDA.joins(Quantize(int8), [f, Spec((), float32)])


def test_which_chains_are_steps() -> None:
    """All of a chain must be, and its result; it may begin with what repeats a value."""
    f, small, scale = Spec((3,), float32), Spec((3,), uint8), Spec((), float32)
    assert CUDA.joins(Fused((Mul(), Relu())), [f, f])
    assert CUDA.joins(Fused((Expand((4, 3)), Relu())), [f])
    assert not CUDA.joins(Fused((Add(), Mul())), [small, small, small])
    assert not CUDA.joins(Fused((Dequantize(), Relu())), [Spec((3,), int8), scale])
    assert not CUDA.joins(Fused((Matmul(), Relu())), [Spec((3, 3), float32)] * 2)


def kernels(f: Callable[..., Any], *specs: Spec) -> list[str]:
    """What a function is for an H200."""
    steps = compile(trace(f, *specs), H200).program.steps
    return [step.plan.label for step in steps if not step.plan.view]


X = Spec((64, 1000), float32)


def test_a_tree_is_one_kernel_and_its_loss_too() -> None:
    assert len(kernels(ops.huber_loss, X, X)) == 1
    assert len(kernels(lambda x, y: ops.mean(ops.square(ops.tanh(x) - y) * ops.sigmoid(x)), X, X)) == 1
    assert len(kernels(lambda x: x * ops.sigmoid(1.702 * x) + ops.cos(x), X)) == 1


def test_casts_and_gates_are_how_operands_are_read() -> None:
    def gated(x: Any) -> Any:
        a, b = ops.chunk(x, 2, dim=-1)
        return ops.silu(a) * b

    assert len(kernels(gated, X)) == 1
    assert len(kernels(lambda x: (x.float() * 2 + 1).bfloat16(), Spec((64, 1000), bfloat16))) == 1


def test_what_others_read_stays_in_memory() -> None:
    def f(x: Any) -> Any:
        y = ops.exp(x)
        return y, ops.sum(y * 2.0)

    assert len(kernels(f, X)) == 2


def test_computed_values_keep_their_places() -> None:
    """They may be repeated, and one number may have other axes; what would move is refused."""
    check(
        expression((Mul(), (0, 0)), (Reshape((1, 1, 1)), (~0,)), (Add(), (~1, 1))),
        [Spec((1,), float32), Spec((2, 3, 4), float32)],
    )
    for move in (Reshape((12,)), Slice((1, 0), (3, 4), (1, 1))):
        op = expression((Mul(), (0, 0)), (move, (~0,)), (Add(), (~1, ~1)))
        with pytest.raises(
            NoKernel, match="cuda does not move computed values, .* within a fused elementwise op"
        ):
            CUDA.plan(op, [Spec((3, 4), float32)], Policy())


CUT = (Slice((0, 1), (3, 3), (1, 1)), (0,))
#: Half of a row with its sign changed in front of the other half, as rotary embeddings turn queries.
TURNED = (
    (Slice((0, 0, 0, 16), (2, 3, 4, 32), (1, 1, 1, 1)), (0,)),
    (Neg(), (~0,)),
    (Slice((0, 0, 0, 0), (2, 3, 4, 16), (1, 1, 1, 1)), (0,)),
    (Concat(3), (~1, ~2)),
)
NORMED = ((Concat(1), (0, 1, 2)), (Mul(), (~0, 3)), (Add(), (~1, 4)), (Relu(), (~2,)))


@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
@pytest.mark.parametrize(
    ("steps", "shapes", "wide"),
    [
        (((Concat(1), (0, 1)), (Add(), (~0, 2))), [(1, 1, 384), (1, 196, 384), (1, 197, 384)], True),
        (((Concat(1), (0, 1)), (Add(), (~0, 2))), [(5, 1, 24), (5, 7, 24), (1, 8, 24)], True),
        (((Concat(-1), (0, 1)), (Relu(), (~0,))), [(3, 4), (3, 5)], False),
        (((Concat(0), (0, 1)), (Relu(), (~0,)), (Add(), (~1, 2))), [(1, 1, 5), (2, 1, 5), (4, 3, 1, 5)], False),
        (((Concat(1), (0, 1)), (Expand((4, 3, 16)), (~0,)), (Add(), (~1, 2))), [(3, 8), (3, 8), (4, 3, 16)], True),
        (((Concat(0), (0, 1)), (Concat(0), (1, 0)), (Add(), (~0, ~1))), [(3, 2), (3, 2)], None),
        ((CUT, (Concat(1), (~0, 1, 0)), (Add(), (~1, 2))), [(3, 4), (3, 5), (3, 11)], False),
        (((Concat(1), (0, 1)), (Relu(), (~0,))), [(3, 0), (3, 16)], True),
        ((*TURNED, (Mul(), (~3, 1))), [(2, 3, 4, 32), (4, 32)], True),
        ((*TURNED, (Mul(), (~3, 1))), [(2, 3, 4, 32), (2, 3, 4, 32)], True),
        (((Relu(), (0,)), (Concat(-1), (~0, 1)), (Add(), (~1, 2))), [(3, 4), (3, 5), (3, 9)], False),
        (((Relu(), (0,)), (Tanh(), (1,)), (Concat(0), (~0, 1, ~1)), (Neg(), (~2,))), [(3, 5), (2, 5)], None),
        (((Tanh(), (0,)), (Concat(0), (~0, 1)), (Concat(0), (1, ~0)), (Add(), (~1, ~2))), [(37,), (37,)], None),
        (((Silu(), (0,)), (Gelu(), (1,)), (Concat(1), (~0, ~1)), (Mul(), (~2, 2))), [(3, 8), (3, 16), (3, 24)], True),
    ],
)  # fmt: skip
def test_what_is_joined_is_read_where_it_lies(
    steps: Any, shapes: list[Shape], wide: bool | None, dtype: DType
) -> None:
    """Parts along any axis, repeated, cut, empty, met twice."""
    plan = check(expression(*steps), [Spec(s, dtype) for s in shapes])
    (launch,) = plan.make.steps
    assert wide is None or ("load<" in launch.program.text) == wide


@pytest.mark.parametrize("channels", [(8, 16, 8), (8, 5, 3)])
def test_channels_that_are_joined_stay_last(channels: tuple[int, ...]) -> None:
    """In front of a norm that is a number for each channel."""
    images = [Spec((2, c, 3, 3), bfloat16, channels_last((2, c, 3, 3))) for c in channels]
    numbers = [Spec((1, sum(channels), 1, 1), bfloat16)] * 2
    plan = check(expression(*NORMED), [*images, *numbers])
    assert plan.outputs[0].layout == channels_last(plan.outputs[0].shape)
    assert [s.layout for s in plan.inputs[:3]] == [s.layout for s in images]


@pytest.mark.parametrize(
    ("steps", "shapes"),
    [
        (((Concat(0), (0, 1)), (Reduce("sum", (0,)), (~0,))), [(3, 4), (3, 4)]),
        (((Mul(), (0, 1)), (Concat(0), (~0, 1)), (Relu(), (~1,))), [(3, 4), (3, 4)]),
        (((Relu(), (0,)), (Tanh(), (~0,)), (Concat(0), (~1, 1)), (Relu(), (~2,))), [(3, 4), (3, 4)]),
        (((Relu(), (0,)), (Concat(0), (~0, 1)), (Add(), (~1, ~0))), [(1, 4), (1, 4)]),
        (((Concat(0), (0, 1)), (Slice((0, 0), (2, 4), (1, 1)), (~0,)), (Relu(), (~1,))), [(3, 4), (3, 4)]),
        (((Concat(0), tuple(range(9))), (Relu(), (~0,))), [(3, 4)] * 9),
    ],
    ids=["reduced", "of two tensors", "computed twice", "read elsewhere", "cut", "many"],
)
def test_what_is_not_read_as_one(steps: Any, shapes: list[Shape]) -> None:
    with pytest.raises(NoKernel):
        CUDA.plan(expression(*steps), [Spec(s, float32) for s in shapes], Policy())
