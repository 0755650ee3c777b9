"""Which ops many tensors are given to at once, and what the kernels give: emulated."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cuda import backend
from lamina.backends.cuda.optimizer.foreach import foreach
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives import Add, Cast, Div, Foreach, FusedElementwise, Matmul, Mul, Reduce, Where
from lamina.spec import (
    Policy,
    Shape,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    float16,
    float32,
    float64,
    int64,
)
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

RNG = np.random.default_rng(4)
SHAPES: list[Shape] = [(3, 5), (17,), (2, 3, 4, 4), (4000,), (1,)]
LONG: list[Shape] = [(20000,), (3,), (700,), (1,)]
SQUARES = FusedElementwise((Cast(float32), Mul(), Reduce("sum", (0,))), ((0,), (~0, ~0), (~1,)))
UNSCALED = FusedElementwise((Cast(float32), Div()), ((0,), (~0, 1)))
TRUE = np.array(True)


def drawn(shape: Shape, dtype: Any = float32) -> Array:
    return np.asarray(RNG.standard_normal(shape)).astype(dtype.numpy)


def number(value: float, dtype: Any = float32) -> Array:
    return np.asarray(value, dtype.numpy)


CASES: list[tuple[Op, list[tuple[Array, ...]]]] = [
    (Where(), [(TRUE, drawn(s), drawn(s)) for s in SHAPES]),
    (Where(), [(~TRUE, drawn(s, float64), drawn(s, float64)) for s in SHAPES]),
    (Div(), [(drawn(s), number(3.0)) for s in SHAPES]),
    (Add(), [(drawn(s, bfloat16), drawn(s, bfloat16)) for s in SHAPES]),
    (Add(), [(number(i, int64), number(1, int64)) for i in range(5)]),
    (Cast(bfloat16), [(drawn(s),) for s in SHAPES]),
    (UNSCALED, [(drawn(s, float16), number(7.0)) for s in SHAPES]),
    (SQUARES, [(drawn(s, bfloat16),) for s in LONG]),
    *((Reduce(kind, (0,)), [(drawn(s),) for s in LONG]) for kind in ("sum", "max", "norm2", "amax")),
    (Reduce("sum", (0, 1)), [(drawn((30, 50)),), (drawn((3, 7)),)]),
]


@pytest.mark.parametrize("misaligned", [False, True])
@pytest.mark.parametrize(("op", "parts"), CASES, ids=[str(op) for op, _ in CASES])
def test_every_part_is_what_the_op_gives_alone(
    op: Op, parts: Sequence[tuple[Array, ...]], misaligned: bool
) -> None:
    arrays = [a for part in parts for a in part]
    many = Foreach(op, len(parts))
    plan = backend(H200).plan(many, [Spec(a.shape, as_dtype(a.dtype)) for a in arrays], Policy())
    launches = 2 if isinstance(op, Reduce) or op is SQUARES else 1
    assert len(plan.make.steps) == launches  # type: ignore[attr-defined]
    for found, wanted in zip(
        run_plan(plan, arrays, misaligned=misaligned), run_reference(many, arrays, float64), strict=True
    ):
        assert not (problem := mismatch(found, wanted, as_dtype(found.dtype))), problem


def test_state_stays_where_it_is() -> None:
    """A choice between new and old state may be made in the old one's memory."""
    parts = [
        s for n in (5, 9) for s in (Spec((), as_dtype("bool")), Spec((n,), float32), Spec((n,), float32))
    ]
    assert foreach(Foreach(Where(), 2), tuple(parts), H200, Policy()).aliases == {0: 2, 1: 5}


@pytest.mark.parametrize(
    ("op", "parts", "reason"),
    [
        (Matmul(), [[(1, 1)] * 2] * 2, "no kernel for many of matmul"),
        (Mul(), [[(3, 4), (4,)], [(3, 4), (4,)]], "operands of one element where others have one"),
        (Mul(), [[(3, 4), ()], [(3, 4), (3, 4)]], "operands of one element where others have one"),
        (Reduce("sum", (0,)), [[(3, 4)], [(5, 6)]], "make one number of each tensor"),
        (Reduce("mean", (0,)), [[(3,)], [(5,)]], "make one number of each tensor"),
        (Add(), [[(0,), (0,)], [(3,), (3,)]], "need elements"),
    ],
)
def test_what_one_kernel_does_not_do_is_refused(op: Op, parts: list[list[Shape]], reason: str) -> None:
    specs = tuple(Spec(shape, float32) for part in parts for shape in part)
    with pytest.raises(NoKernel, match=reason):
        foreach(Foreach(op, len(parts)), specs, H200, Policy())


def test_tensors_that_lie_otherwise_are_read_in_their_order() -> None:
    """Channels last is one order; two operands that lie otherwise are brought to one."""
    shape = (2, 3, 4, 5)
    last = Spec(shape, float32, channels_last(shape))
    plan = foreach(Foreach(Add(), 2), (last,) * 4, H200, Policy())
    assert {s.tag for s in (*plan.inputs, *plan.outputs)} == {last.tag}


def test_fused_steps_are_rounded_as_in_their_own_kernel() -> None:
    """Of one tensor and of many: no product joins the sum behind it."""
    op = FusedElementwise((Mul(), Add()), ((0, 0), (~0, 0)))
    x = Spec((40,), float32)
    alone, many = (backend(H200).plan(o, (x,) * n, Policy()) for o, n in ((op, 1), (Foreach(op, 2), 2)))
    assert all(p.stepwise for plan in (alone, many) for p in plan.make.programs)  # type: ignore[attr-defined]
