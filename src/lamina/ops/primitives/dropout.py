"""Dropout with a counter-based generator: the same mask on every backend, state as a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np

from lamina._philox import words
from lamina.ops.arguments import checked, within
from lamina.ops.core import Arg, Array, Op, Sample, bind, call, operand
from lamina.ops.primitives.random import STATE, check_state, next_state
from lamina.spec import DTypeError, Shape, ShapeError, Spec, bool_, int64


def threshold(p: float) -> int:
    """floor(p * 2^32): an element is kept when its random word is at least this."""
    return floor(p * 2**32)


def scale(p: float) -> float:
    """1 / (1 - p), by which kept values grow; 0 when nothing is kept."""
    return 0.0 if p == 1 else 1 / (1 - p)


@dataclass(frozen=True)
class Dropout(Op):
    """(x, state int64[2] = (seed, counter)) -> (y, mask bool, next state).

    Element i of x, counted row-major over the logical shape (N, C, ...) whatever the layout, is kept iff

        philox4x32_10(key=(seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF),
                      counter=(c & 0xFFFFFFFF, c >> 32, 0, 0))[i % 4] >= floor(p * 2^32)

    with c = counter + i // 4 in 64-bit arithmetic without sign. Kept values are multiplied by 1 / (1 - p),
    others are 0, and the next state is (seed, counter + ceil(n / 4)) for n elements. p in [0, 1].
    """

    p: float
    arity = 2

    def infer(self, x: Spec, state: Spec) -> tuple[Spec, Spec, Spec]:  # type: ignore[override]
        self.check_float(x)
        check_state(self, state)
        if not 0 <= self.p <= 1:
            raise ValueError(f"{self.name}: p must be in [0, 1], got {self.p}")
        return x.open, Spec(x.shape, bool_), STATE

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return None if grads[0] is None else call(DropoutGrad(self.p), grads[0], outputs[1]), None

    def reference(self, x: Array, state: Array) -> tuple[Array, Array, Array]:  # type: ignore[override]
        drawn = words(int(state[0]), int(state[1]), x.size)
        mask = (drawn.astype(np.uint64) >= threshold(self.p)).reshape(x.shape)
        return np.where(mask, x * scale(self.p), 0), mask, next_state(state, x.size)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[float, Shape, tuple[int, int]]] = [
            (0.5, (3, 5), (1, 0)), (0.1, (2, 3, 5, 7), (2**40 + 3, 11)), (0.9, (33,), (-5, 2**32 - 2)),
            (0.0, (4, 4), (7, 7)), (1.0, (2, 5), (0, 0)), (0.3, (0, 3), (1, 1)), (0.25, (), (9, 2**33)),
        ]  # fmt: skip
        for p, shape, state in cases:
            yield Sample.of(cls(p), shape, Arg((2,), int64, value=state, differentiable=False))


@dataclass(frozen=True)
class DropoutGrad(Op):
    """(g, mask bool) -> g / (1 - p) where mask, else 0."""

    p: float
    arity = 2
    elementwise = True
    inplace = {0: 0}

    def infer(self, g: Spec, mask: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check_float(g)
        if mask.dtype != bool_:
            raise DTypeError(f"{self.name}: mask must be bool, got {mask}")
        if mask.shape != g.shape:
            raise ShapeError(f"{self.name}: mask {mask} must have the shape of the gradient {g}")
        return (g.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return call(self, grads[0], inputs[1]), None

    def reference(self, g: Array, mask: Array) -> tuple[Array]:  # type: ignore[override]
        return (np.where(mask, g * scale(self.p), 0),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        shapes: tuple[Shape, ...] = ((3, 5), (2, 3, 5, 7), (0, 3), (), (33,))
        for p, shape in zip((0.5, 0.1, 0.0, 1.0, 0.75), shapes, strict=True):
            mask = Arg(shape, bool_, low=0, high=2, integers=True, differentiable=False)
            yield Sample.of(cls(p), shape, mask)


@checked
def dropout(input: Any, p: float = 0.5, training: bool = True, *, state: Any) -> tuple[Any, Any, Any]:
    """(y, mask, next state): each element dropped with probability p, the others grown by 1 / (1 - p).

    state: int64[2], (seed, counter), which torch keeps out of sight; hand the next state to the next call. The mask
    is the same on every backend (see Dropout). Without training y is input. Raises ValueError for p outside [0, 1].
    """
    within("dropout", "p", p, 0, 1)
    x, state = operand(input, "dropout"), operand(state, "dropout", "state")
    if not training:
        return x, operand(np.ones(x.shape, np.bool_)), state
    y, mask, moved = bind(Dropout(float(p)), x, state)
    return y, mask, moved
