"""Validation of labels and indices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import INTEGERS, Arg, Array, BatchAxes, Op, Sample, call
from lamina.spec import Shape, Spec, current_policy


@dataclass(frozen=True)
class CheckIndex(Op):
    """An index tensor, unchanged, after a check of its values: each in 0 … size - 1, or equal to `ignore`.

    what: the function named in the error. On a CPU an invalid value raises IndexError. On a GPU, where kernels cannot
    raise, the op is free and checks nothing, unless the policy sets `check_indices`: then a kernel prints the value
    and its position and aborts the program, like a device-side assertion.
    """

    what: str
    size: int
    ignore: int | None = None
    differentiable = False
    dtypes = INTEGERS
    inplace = {0: 0}

    def infer(self, index: Spec) -> tuple[Spec]:
        self.check_float(index)
        return (index.open,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return axes

    def reference(self, index: Array) -> tuple[Array]:
        check_index(self.what, index, self.size, self.ignore)
        return (index,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[Shape, int, int | None]] = [
            ((3, 5), 4, None),
            ((7,), 3, 0),
            ((), 2, None),
            ((0, 3), 1, 5),
        ]
        for shape, size, ignore in cases:
            yield Sample.of(cls("sample", size, ignore), Arg(shape, low=0, high=size, integers=True))


def check_index(what: str, index: Array, size: int, ignore: int | None = None, least: int = 0) -> None:
    """Raise IndexError for an index neither in least … size - 1 nor `ignore`: its value, position and the range."""
    bad = (index < least) | (index >= size)
    if ignore is not None:
        bad &= index != ignore
    if not bad.any():
        return
    place = tuple(int(i) for i in np.argwhere(bad)[0])
    allowed = f"{least} … {size - 1}" if size else "nothing, as there are 0 to choose from"
    also = "" if ignore is None else f" (and is not ignore_index, {ignore})"
    raise IndexError(
        f"{what}: index {int(index[place])} at position {place if len(place) != 1 else place[0]} is outside "
        f"{allowed}{also}; {int(bad.sum())} of {bad.size} are"
    )


def watched(what: str, index: Any, size: int, ignore: int | None = None) -> Any:
    """index, with a `CheckIndex` if the policy in force asks for it.

    For ops that check their indices themselves on a CPU and cannot on a GPU.
    """
    return call(CheckIndex(what, size, ignore), index) if current_policy().check_indices else index
