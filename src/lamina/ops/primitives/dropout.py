"""Dropout with a counter-based generator: the same mask on every backend, state as a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from math import floor
from typing import Any, TypeVar, cast

import numpy as np

from lamina._philox import words
from lamina.ops.arguments import checked, within
from lamina.ops.core import Arg, Array, Op, Sample, bind, call, operand
from lamina.ops.in_place import with_inplace
from lamina.ops.primitives.generator import drawn as drawn_by
from lamina.ops.primitives.generator import drawn_for
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.random import STATE, check_state, drawn, next_state
from lamina.ops.primitives.shape import expand
from lamina.spec import (
    FLOATS,
    DType,
    DTypeError,
    Shape,
    ShapeError,
    Spec,
    bool_,
    element_count,
    float64,
    int64,
)

F = TypeVar("F", bound=Callable[..., Any])


def threshold(p: float) -> int:
    """floor(p * 2^32): an element is kept if its random word is at least this."""
    return floor(p * 2**32)


def scale(p: float) -> float:
    """1 / (1 - p), the scale of kept values; 0 if nothing is kept."""
    return 0.0 if p == 1 else 1 / (1 - p)


@dataclass(frozen=True)
class Dropout(Op):
    """(x, state int64[2] = (seed, counter)) -> (y, mask bool, next state).

    Element i of x, counted row-major over the logical shape (N, C, ...) whatever the layout, is kept iff

        philox4x32_10(key=(seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF),
                      counter=(c & 0xFFFFFFFF, c >> 32, 0, 0))[i % 4] >= floor(p * 2^32)

    with c = counter + i // 4 in unsigned 64-bit arithmetic. Kept values are multiplied by 1 / (1 - p),
    others are 0, and the next state is (seed, counter + ceil(n / 4)) for n elements. p in [0, 1].
    """

    p: float
    arity = 2
    draws = True

    def infer(self, x: Spec, state: Spec) -> tuple[Spec, Spec, Spec]:
        self.check_float(x)
        check_state(self, state)
        if not 0 <= self.p <= 1:
            raise ValueError(f"{self.name}: p must be in [0, 1], got {self.p}")
        return x.open, Spec(x.shape, bool_), STATE

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        """Each sample draws its own random numbers."""
        return None if batched[1] else self

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return None if grads[0] is None else call(DropoutGrad(self.p), grads[0], outputs[1]), None

    def reference(self, x: Array, state: Array) -> tuple[Array, Array, Array]:
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
class DropoutMask(Op):
    """(state int64[2]) -> (mask, next state): ones with probability 1 - p, else zeros, in a float dtype.

    The ones are where `Dropout` from the same state keeps an element of a tensor of this shape.
    """

    shape: Shape
    dtype: DType
    p: float
    arity = 1
    differentiable = False
    draws = True
    dtypes = (int64,)

    def infer(self, state: Spec) -> tuple[Spec, Spec]:
        check_state(self, state)
        if not self.dtype.is_float:
            raise DTypeError(f"{self.name}: dtype must be a float, got {self.dtype}")
        if not 0 <= self.p <= 1:
            raise ValueError(f"{self.name}: p must be in [0, 1], got {self.p}")
        return Spec(self.shape, self.dtype), STATE

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        """Each sample draws its own random numbers."""
        return None if batched[0] else replace(self, shape=(size, *self.shape))

    def reference(self, state: Array) -> tuple[Array, Array]:
        count = element_count(self.shape)
        drawn = words(int(state[0]), int(state[1]), count).astype(np.uint64)
        mask = (drawn >= threshold(self.p)).reshape(self.shape)
        return mask.astype(np.float64 if self.dtype == float64 else np.float32), next_state(state, count)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        state = Arg((2,), int64, value=(2**40 + 3, 2**32 - 1), differentiable=False)
        cases: list[tuple[float, Shape]] = [
            (0.5, (3, 5)), (0.1, (2, 3, 4, 8)), (0.0, (4,)), (1.0, (2, 5)), (0.3, (0, 3)), (0.25, ()),
        ]  # fmt: skip
        for dtype in FLOATS:
            for p, shape in cases:
                yield Sample.of(cls(shape, dtype, p), state, dtypes=(int64,))


@dataclass(frozen=True)
class DropoutGrad(Op):
    """(g, mask bool) -> g / (1 - p) where mask, else 0."""

    p: float
    arity = 2
    elementwise = True
    inplace = {0: 0}

    def infer(self, g: Spec, mask: Spec) -> tuple[Spec]:
        self.check_float(g)
        if mask.dtype != bool_:
            raise DTypeError(f"{self.name}: mask must be bool, got {mask}")
        if mask.shape != g.shape:
            raise ShapeError(f"{self.name}: mask {mask} must have the shape of the gradient {g}")
        return (g.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return call(self, grads[0], inputs[1]), None

    def reference(self, g: Array, mask: Array) -> tuple[Array]:
        return (np.where(mask, g * scale(self.p), 0),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        shapes: tuple[Shape, ...] = ((3, 5), (2, 3, 5, 7), (0, 3), (), (33,))
        for p, shape in zip((0.5, 0.1, 0.0, 1.0, 0.75), shapes, strict=True):
            mask = Arg(shape, bool_, low=0, high=2, integers=True, differentiable=False)
            yield Sample.of(cls(p), shape, mask)


def dropout_mask(shape: Shape, p: float, like: Any, generator: Any = None) -> Any:
    """A dropout mask from a generator (None: the default one): zeros and ones in `like`'s dtype, on its device."""

    def draw(state: Any, sizes: Shape) -> Sequence[Any]:
        return bind(DropoutMask(sizes, like.dtype, float(p)), state)

    return drawn_by(lambda held: drawn(held, shape, draw), generator, like)


def _from_default(function: F) -> F:
    """Wrap the function to use the default generator's state and return only y if no state is given."""
    usual: bool = signature(function).parameters["training"].default

    @with_inplace
    @wraps(function)
    def run(
        input: Any, p: float = 0.5, training: bool = usual, inplace: bool = False, *, state: Any = None
    ) -> Any:
        if state is not None:
            return function(input, p, training, state=state)
        if not training or p == 0:
            return function(input, p, False, state=np.zeros(2, np.int64))[0]
        x = operand(input, function.__name__)
        return drawn_by(lambda held: function(x, p, training, state=held), None, x)

    return cast(F, run)


@checked
@_from_default
def dropout(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, state: Any = None
) -> Any:
    """Each element dropped with probability p, the others scaled by 1 / (1 - p); input itself unless training.

    state: by default the result is y, as torch's, with the default generator. Given a state, int64[2] of (seed,
    counter), it is (y, mask, next state): pass the next state to the next call. The mask is the same on every backend
    (see Dropout). inplace, here and in related functions: write y over input, too. Raises
    ValueError for p outside [0, 1].
    """
    within("dropout", "p", p, 0, 1)
    x, state = operand(input, "dropout"), operand(state, "dropout", "state")
    if not training:
        return x, operand(np.ones(x.shape, np.bool_)), state
    op = Dropout(float(p))
    y, mask, moved = drawn(state, x.shape, lambda s, shape: bind(op, _alike(x, shape), s))
    return y, mask, moved


def _alike(x: Any, shape: Shape) -> Any:
    """x, expanded to a shape with one copy per rank if that differs from its own."""
    return x if x.shape == shape else expand(x, shape)


@checked
@_from_default
def dropout1d(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, state: Any = None
) -> Any:
    """`dropout` of whole channels, with a mask [N, C, 1], of input [N, C, L] or [C, L]."""
    return _channels_dropped("dropout1d", input, (3,), (2,), p, training, state)


@checked
@_from_default
def dropout2d(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, state: Any = None
) -> Any:
    """`dropout` of whole channels, with a mask [N, C, 1, 1], of input [N, C, H, W] (Tompson et al. 2015).

    As in torch, an input of three axes is taken as [N, C, L]. Raises ShapeError for another rank.
    """
    return _channels_dropped("dropout2d", input, (4, 3), (), p, training, state)


@checked
@_from_default
def dropout3d(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, *, state: Any = None
) -> Any:
    """`dropout` of whole channels, with a mask [N, C, 1, 1, 1], of input [N, C, D, H, W] or [C, D, H, W]."""
    return _channels_dropped("dropout3d", input, (5,), (4,), p, training, state)


def _channels_dropped(
    what: str, input: Any, ranks: Shape, unbatched: Shape, p: float, training: bool, state: Any
) -> tuple[Any, Any, Any]:
    """One draw per channel; inputs whose rank is in `unbatched` have no batch axis."""
    x = operand(input, what)
    if x.ndim not in (*ranks, *unbatched):
        wanted = " or ".join(map(str, (*ranks, *unbatched)))
        raise ShapeError(f"{what}: input must be of rank {wanted}, got {x.spec}")
    if not x.dtype.is_float:
        raise DTypeError(f"{what}: input must be of a float dtype, got {x.spec}; cast it with ops.cast")
    axes = 1 if x.ndim in unbatched else 2
    each = np.ones((*x.shape[:axes], *(1,) * (x.ndim - axes)), x.dtype.numpy)
    kept, mask, moved = dropout(each, p, training, state=drawn_for(state, x))
    return (x * kept if training else x), mask, moved


#: SELU's limit towards -inf: -scale * alpha (Klambauer et al. 2017).
_SATURATION = -1.7580993408473766


@checked
@_from_default
def alpha_dropout(
    input: Any, p: float = 0.5, training: bool = False, inplace: bool = False, *, state: Any = None
) -> Any:
    """Dropout for SELU networks, which keeps mean 0 and variance 1 (Klambauer et al. 2017).

    Dropped elements become SELU's limit towards -inf; then everything is shifted and scaled. state, result and mask
    as in `dropout`, but as in torch nothing is dropped unless training is True. Raises ValueError for p outside [0,
    1].
    """
    x = operand(input, "alpha_dropout")
    _, mask, moved = dropout(x, p, training, state=state)
    return (_saturated(x, mask, p) if training else x), mask, moved


@checked
@_from_default
def feature_alpha_dropout(
    input: Any, p: float = 0.5, training: bool = False, inplace: bool = False, *, state: Any = None
) -> Any:
    """`alpha_dropout` of whole channels, with a mask [N, C, 1, …], of input [N, C, *S]."""
    x = operand(input, "feature_alpha_dropout")
    if x.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout: input must be [N, C, *S], got {x.spec}")
    each = np.ones((*x.shape[:2], *(1,) * (x.ndim - 2)), x.dtype.numpy)
    _, mask, moved = dropout(each, p, training, state=drawn_for(state, x))
    return (_saturated(x, mask, p) if training else x), mask, moved


def _saturated(x: Any, mask: Any, p: float) -> Any:
    """x where the mask is true and SELU's lowest value elsewhere, rescaled to mean 0 and variance 1."""
    if p == 1:
        return x * 0.0
    factor = ((1 - p) * (1 + p * _SATURATION**2)) ** -0.5
    shift = -factor * _SATURATION * p
    return where(mask, x * factor + shift, factor * _SATURATION + shift)
