"""Random numbers that are equal on every device: Philox4x32-10, a function of (key, counter).

J. Salmon, M. Moraes, R. Dror, D. Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A generator's state
is a tensor of two int64, (seed, counter): ops take it and return the next one, without hidden state. Draw i of an op
comes from block counter + i // 4, word i % 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import numpy as np

from lamina._philox import words
from lamina.ops.arguments import DTypeLike, checked, within
from lamina.ops.core import Arg, Array, Op, Sample, bind, listing
from lamina.spec import (
    FLOATS,
    DType,
    DTypeError,
    Shape,
    ShapeError,
    Spec,
    as_dtype,
    as_shape,
    element_count,
    float32,
    float64,
    int64,
)

_part: ContextVar[tuple[int, int] | None] = ContextVar("lamina_part_of_batch", default=None)
#: A state is int64[2]: seed, counter.
STATE = Spec((2,), int64)


def uniform(
    shape: int | Sequence[int], seed: int, counter: int = 0, low: float = 0.0, high: float = 1.0
) -> Array:
    """A float32 array, uniform in [low, high): low + (high - low) * (word >> 8) / 2^24."""
    sizes = as_shape(shape)
    steps = words(seed, counter, element_count(sizes)) >> np.uint32(8)
    unit = steps.astype(np.float32) * np.float32(2**-24)
    return (np.float32(low) + np.float32(high - low) * unit).astype(np.float32).reshape(sizes)


def normal(
    shape: int | Sequence[int], seed: int, counter: int = 0, mean: float = 0.0, std: float = 1.0
) -> Array:
    """A float32 array, normally distributed, by the Box-Muller transform of pairs of words.

    Words (u, v) give the elements 2j and 2j + 1: sqrt(-2 log((u + 1) / 2^32)) times the cosine and the sine
    of 2 pi v / 2^32.
    """
    sizes = as_shape(shape)
    count = element_count(sizes)
    pairs = words(seed, counter, count + count % 2).reshape(-1, 2).astype(np.float64) / 2**32
    radius = np.sqrt(-2 * np.log(pairs[:, 0] + 2**-32))
    angle = 2 * np.pi * pairs[:, 1]
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).reshape(-1)[:count]
    return (mean + std * both).astype(np.float32).reshape(sizes)


def next_state(state: Array, count: int) -> Array:
    """The state after `count` draws: the counter advanced by ceil(count / 4), modulo 2^64."""
    seed, counter = (int(s) for s in state)
    moved = (counter + -(-count // 4)) % 2**64
    return np.array([seed, moved - 2**64 if moved >= 2**63 else moved], np.int64)


@contextmanager
def part_of_batch(rank: int, ranks: int) -> Iterator[None]:
    """Within it random ops draw this rank's part of the numbers that a single rank would draw for the whole batch.

    All ranks have equally large parts of axis 0; this one is part `rank` of `ranks`.
    """
    token = _part.set((rank, ranks))
    try:
        yield
    finally:
        _part.reset(token)


def drawn(
    state: Any, shape: Shape, draw: Callable[[Any, Shape], Sequence[Any]], outer: Shape = ()
) -> Sequence[Any]:
    """(values [*outer, *shape], …, next state) from `draw(state, shape)`, within `part_of_batch` this rank's.

    shape: the batch is its first axis; a scalar, [], is the same on all ranks. outer: axes before the batch. Draws
    come in blocks of four: parts of whole blocks start at a counter of their own, others are sliced from the whole.
    """
    part = _part.get()
    if part is None or not shape:
        return draw(state, (*outer, *shape))
    (rank, ranks), blocks, rest = part, *divmod(element_count(shape), 4)
    if rest == 0 and not outer:
        *values, _ = draw(state + np.array([0, rank * blocks]), shape)
        return (*values, state + np.array([0, ranks * blocks]))
    *values, after = draw(state, (*outer, ranks, *shape))
    own = (*(slice(None) for _ in outer), rank)
    return (*(x[own] for x in values), after)


def check_state(op: Op, state: Spec) -> None:
    """Raise ShapeError or DTypeError unless `state` is int64[2]."""
    if state.dtype != int64:
        raise DTypeError(f"{op.name}: state must be int64[2] (seed, counter), got {state}")
    if state.shape != (2,):
        raise ShapeError(f"{op.name}: state must be int64[2] (seed, counter), got {state}")


@dataclass(frozen=True)
class _Random(Op):
    """(state) -> (values, next state)."""

    shape: Shape
    dtype: DType = float32
    differentiable = False
    draws = True
    dtypes = (int64,)

    def infer(self, *inputs: Spec) -> tuple[Spec, Spec]:
        check_state(self, inputs[0])
        if not self.dtype.is_float:
            raise DTypeError(
                f"{self.name}: dtype must be a float, got {self.dtype} with state {listing(inputs)}"
            )
        return Spec(self.shape, self.dtype), STATE

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        """Each sample draws its own numbers."""
        return None if batched[0] else replace(self, shape=(size, *self.shape))


def _samples(op: type[_Random]) -> Iterator[Sample]:
    state = Arg((2,), int64, value=(12345, 7), differentiable=False)
    shapes: tuple[Shape, ...] = ((4, 5), (7,), (), (0, 3), (1, 33))
    for shape in shapes:
        for dtype in FLOATS:
            yield Sample(op(shape, dtype), (state,), (int64,))


@dataclass(frozen=True)
class RandomUniform(_Random):
    """Uniform values in [low, high), drawn by `uniform` (in half types rounding may give `high`)."""

    low: float = 0.0
    high: float = 1.0

    def reference(self, state: Array) -> tuple[Array, Array]:
        drawn = uniform(self.shape, int(state[0]), int(state[1]), self.low, self.high)
        return drawn.astype(_wide(self.dtype)), next_state(state, drawn.size)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples(cls)


@dataclass(frozen=True)
class RandomNormal(_Random):
    """Normally distributed values, drawn by `normal`."""

    mean: float = 0.0
    std: float = 1.0

    def reference(self, state: Array) -> tuple[Array, Array]:
        drawn = normal(self.shape, int(state[0]), int(state[1]), self.mean, self.std)
        return drawn.astype(_wide(self.dtype)), next_state(state, drawn.size)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield from _samples(cls)


def _wide(dtype: DType) -> Any:
    return float64.numpy if dtype == float64 else float32.numpy


@checked
def random_uniform(
    state: Any,
    shape: int | Sequence[SupportsIndex],
    low: float = 0.0,
    high: float = 1.0,
    dtype: DTypeLike = float32,
) -> tuple[Any, Any]:
    """(values uniform in [low, high), next state) from a state int64[2] (seed, counter)."""
    if not (low <= high and math.isfinite(high - low)):
        raise ValueError(f"random_uniform: low must be <= high, both finite, got {low} and {high}")
    sizes, kind = as_shape(shape, "random_uniform: shape"), as_dtype(dtype)
    values, moved = drawn(state, sizes, lambda s, n: bind(RandomUniform(n, kind, float(low), float(high)), s))
    return values, moved


@checked
def random_normal(
    state: Any,
    shape: int | Sequence[SupportsIndex],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: DTypeLike = float32,
) -> tuple[Any, Any]:
    """(normally distributed values, next state) from a state int64[2] (seed, counter)."""
    within("random_normal", "std", std, 0)
    if not math.isfinite(mean):
        raise ValueError(f"random_normal: mean must be finite, got {mean}")
    sizes, kind = as_shape(shape, "random_normal: shape"), as_dtype(dtype)
    values, moved = drawn(state, sizes, lambda s, n: bind(RandomNormal(n, kind, float(mean), float(std)), s))
    return values, moved
