"""Batches of sequences of different lengths: row permutations of a tensor, and functions built on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.arguments import checked
from lamina.ops.core import INTEGERS, NUMBERS, Arg, Array, Op, Sample, call, from_host, listing, operand
from lamina.ops.primitives.check_index import CheckIndex
from lamina.ops.primitives.pointwise import where
from lamina.spec import DTypeError, ShapeError, Spec, bool_, int64


@dataclass(frozen=True)
class TakeRows(Op):
    """(x [R, F], index int64 [K], inverse int64 [R]) -> y [K, F]: y[k] = x[index[k]], 0 where index[k] is -1.

    No row is taken twice: inverse[r] is the k with index[k] = r, or -1. So the gradient is the same op with index and
    inverse swapped, which accumulates nothing and is deterministic.
    """

    arity = 3
    dtypes = (*NUMBERS, bool_)

    def infer(self, x: Spec, index: Spec, inverse: Spec) -> tuple[Spec]:
        self.check_float(x)
        if (index.dtype, inverse.dtype) != (int64, int64):
            raise DTypeError(f"{self.name}: index and inverse must be int64, got {index} and {inverse}")
        if x.ndim != 2 or index.ndim != 1 or inverse.shape != x.shape[:1]:
            raise ShapeError(
                f"{self.name}: needs x [R, F], index [K] and inverse [R], got {listing((x, index, inverse))}"
            )
        return (self.result((index.shape[0], x.shape[1]), x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return call(self, grads[0], inputs[2], inputs[1]), None, None

    def reference(self, x: Array, index: Array, inverse: Array) -> tuple[Array]:
        if not x.size:
            return (np.zeros((len(index), x.shape[1]), x.dtype),)
        found = x[index]
        found[index < 0] = 0
        return (found,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases = [
            (5, 3, [4, -1, 0, 2]),
            (3, 1, [2, 1, 0]),
            (4, 8, [-1, 3]),
            (1, 5, [0, -1, -1]),
            (6, 33, [5, 0, 3]),
        ]
        for rows, width, index in [*cases, (0, 3, [-1, -1]), (2, 0, [1])]:
            inverse = [index.index(r) if r in index else -1 for r in range(rows)]
            yield Sample.of(cls(), (rows, width), _fixed(index), _fixed(inverse))


def _fixed(values: Sequence[int]) -> Arg:
    return Arg((len(values),), int64, value=tuple(values), differentiable=False)


def take_rows(x: Any, index: Any, inverse: Any) -> Any:
    """`TakeRows` for an x with any number of further axes: [R, *] -> [K, *]."""
    width = int(np.prod(x.shape[1:], dtype=np.int64))
    y = call(TakeRows(), x.reshape((x.shape[0], width)), index, inverse)
    return y.reshape((index.shape[0], *x.shape[1:]))


def inside(lengths: Any, steps: int) -> Any:
    """bool [T, N]: whether step t is in sequence n of `lengths` [N]."""
    return lengths.unsqueeze(0) > np.arange(steps)[:, None]


def checked_lengths(what: str, lengths: Any, x: Any) -> Any:
    """The lengths of the sequences x [T, N, *], possibly from the host, as int64 [N]; those outside 0 … T raise
    IndexError on a CPU."""
    found = operand(from_host(lengths), what, "lengths")
    if found.dtype not in INTEGERS:
        raise DTypeError(f"{what}: lengths must be integers, got {found.spec}; cast with ops.cast")
    if x.ndim < 2 or found.shape != x.shape[1:2]:
        raise ShapeError(
            f"{what}: lengths must be [N], one for each sequence of [T, N, *] {x.spec}, got {found.spec}"
        )
    return call(CheckIndex(f"{what}: lengths", x.shape[0] + 1), found.cast(int64))


@checked
def reverse_sequence(input: Any, lengths: Any) -> Any:
    """Each sequence of input [T, N, *] reversed within its length, 0 after its end; lengths: integers [N].

    A length outside 0 … T is an IndexError on a CPU. Raises ShapeError, DTypeError. Source: ONNX's ReverseSequence,
    which keeps the elements after the end.
    """
    x = operand(input, "reverse_sequence")
    return reversed_within(x, checked_lengths("reverse_sequence", lengths, x))


def reversed_within(x: Any, lengths: Any) -> Any:
    """`reverse_sequence` with lengths from `checked_lengths`. The permutation is its own inverse."""
    steps, batch = x.shape[:2]
    place = (lengths.unsqueeze(0) - 1 - np.arange(steps)[:, None]) * batch + np.arange(batch)
    index = where(inside(lengths, steps), place, -1).reshape((steps * batch,))
    return take_rows(x.reshape((steps * batch, *x.shape[2:])), index, index).reshape(x.shape)


def last_steps(x: Any, lengths: Any) -> Any:
    """[N, *]: the last step of each sequence of x [T, N, *]; 0 for an empty one."""
    steps, batch = x.shape[:2]
    index = where(lengths > 0, (lengths - 1) * batch + np.arange(batch), -1)
    here = lengths.unsqueeze(0) - 1 == np.arange(steps)[:, None]
    inverse = where(here, np.arange(batch), -1).reshape((steps * batch,))
    return take_rows(x.reshape((steps * batch, *x.shape[2:])), index, inverse)
