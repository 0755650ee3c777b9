"""The negative log-likelihood of labels, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import INTEGERS, Arg, Array, BatchAxes, Op, Sample, call
from lamina.ops.primitives.check_index import check_index
from lamina.ops.primitives.gather import GatherGrad, gather
from lamina.ops.primitives.pointwise import where
from lamina.spec import DTypeError, Shape, ShapeError, Spec, int64

_CASES: tuple[tuple[int | None, Shape], ...] = (
    (None, (5, 10)),
    (2, (6, 4)),
    (0, (2, 3, 4, 5)),
    (None, (0, 3)),
    (-100, (3, 130)),
    (1, (2, 5, 3)),
)


class _AtLabels(Op):
    ignore_index: int | None
    what: str

    def check(self, x: Spec, labels: Spec, weight: Spec | None) -> None:
        """Raise unless x is [N, C, *spatial] of floats, labels integers [N, *spatial] and weight [C]."""
        self.check_float(x)
        if labels.dtype not in INTEGERS:
            raise DTypeError(f"{self.name}: labels must be integers, got {labels}; cast with ops.cast")
        if x.ndim < 2 or labels.shape != (x.shape[0], *x.shape[2:]) or x.shape[1] == 0:
            raise ShapeError(
                f"{self.name}: values [N, C, *spatial] and labels [N, *spatial] do not fit, got {x} and {labels}"
            )
        if weight is not None and (weight.shape, weight.dtype) != ((x.shape[1],), x.dtype.compute):
            raise ShapeError(f"{self.name}: weight must be {x.dtype.compute}[{x.shape[1]}], got {weight}")

    def label(self, labels: Array, classes: int) -> tuple[Array, Array]:
        """The labels, 0 where ignored, and whether they count. Raises IndexError for invalid classes."""
        check_index(self.what, labels, classes, self.ignore_index)
        counts = np.ones(labels.shape, bool) if self.ignore_index is None else labels != self.ignore_index
        return np.where(counts, labels, 0).astype(np.int64), counts


@dataclass(frozen=True)
class NllLoss(_AtLabels):
    """(x [N, C, *spatial], labels [N, *spatial], weight [C] or none) -> losses, and with weights also shares.

    Both are [N, *spatial]: loss = -weight[label] * x[label], in x's dtype, and share = weight[label], in its compute
    dtype, which the weights have. Both are 0 where the label is ignore_index, and the loss where the weight is 0. Any
    other label outside 0 … C - 1 is an IndexError on a CPU, NaN on a GPU. what: the function named in the error.
    """

    ignore_index: int | None = None
    what: str = "nll_loss"
    arity = None

    def infer(self, x: Spec, labels: Spec, weight: Spec | None = None) -> tuple[Spec, ...]:
        self.check(x, labels, weight)
        losses = self.result(labels.shape, x.dtype)
        return (losses,) if weight is None else (losses, self.result(labels.shape, x.dtype.compute))

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        x, labels, *weight = axes
        alike = x and x.axis == 0 and labels == x and not any(weight)
        return (x,) * (1 + len(weight)) if alike else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        x, labels, *weight = inputs
        g, shares = grads[0], grads[1] if weight else None
        dx = (
            None
            if g is None
            else call(NllLossGrad(x.shape[1], self.ignore_index, self.what), labels, g, *weight)
        )
        return [dx, None, *[_by_weight(x, labels, g, shares, self.ignore_index) for _ in weight]]

    def reference(self, x: Array, labels: Array, *weight: Array) -> tuple[Array, ...]:
        places, counts = self.label(labels, x.shape[1])
        picked = np.take_along_axis(x, np.expand_dims(places, 1), 1)[:, 0]
        if not weight:
            return (np.where(counts, -picked, 0),)
        shares = np.where(counts, weight[0][places], 0)
        return np.where(shares != 0, -picked * shares, 0), shares

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for ignore, shape in _CASES:
            labels = Arg(
                (shape[0], *shape[2:]), int64, low=0, high=shape[1], integers=True, differentiable=False
            )
            yield Sample.of(cls(ignore), shape, labels)
            weight = Arg((shape[1],), low=0.5, high=2.0)
            yield Sample.of(cls(ignore), shape, labels, weight, dtypes=cls.dtypes[:2])


@dataclass(frozen=True)
class NllLossGrad(_AtLabels):
    """(labels [N, *spatial], g like them, weight [classes] or none) -> [N, classes, *spatial], in g's dtype.

    -g * weight[label] at each label, 0 elsewhere and where the label is ignore_index. Invalid labels: as in NllLoss.
    """

    classes: int
    ignore_index: int | None = None
    what: str = "nll_loss"
    dtypes = INTEGERS
    arity = None

    def infer(self, labels: Spec, g: Spec, weight: Spec | None = None) -> tuple[Spec]:
        self.check_float(labels)
        if g.shape != labels.shape or not g.dtype.is_float:
            raise ShapeError(f"{self.name}: gradient {g} must be floats of the shape of the labels {labels}")
        x = self.result((labels.shape[0], self.classes, *labels.shape[1:]), g.dtype)
        if weight is not None and (weight.shape, weight.dtype) != ((self.classes,), g.dtype.compute):
            raise ShapeError(f"{self.name}: weight must be {g.dtype.compute}[{self.classes}], got {weight}")
        return (x,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (u,), (labels, g, *weight) = grads, inputs
        back = call(NllLoss(self.ignore_index, self.what), u, labels, *weight)
        return [None, back, *[_by_weight(u, labels, g, None, self.ignore_index) for _ in weight]]

    def reference(self, labels: Array, g: Array, *weight: Array) -> tuple[Array]:
        places, counts = self.label(labels, self.classes)
        slope = np.where(counts, -g, 0)
        if weight:
            slope = np.where(counts & (weight[0][places] != 0), slope * weight[0][places], 0)
        found = np.zeros((g.shape[0], self.classes, *g.shape[1:]), slope.dtype)
        np.put_along_axis(found, np.expand_dims(places, 1), np.expand_dims(slope, 1), 1)
        return (found,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for ignore, shape in _CASES:
            at = (shape[0], *shape[2:])
            labels = Arg(at, int64, low=0, high=shape[1], integers=True, differentiable=False)
            op, g = cls(shape[1], ignore), Arg(at)
            yield Sample.of(op, labels, g, dtypes=NllLoss.dtypes)
            yield Sample.of(op, labels, g, Arg((shape[1],), low=0.5, high=2.0), dtypes=NllLoss.dtypes[:2])


def _by_weight(x: Any, labels: Any, g: Any, shares: Any, ignored: int | None) -> Any:
    """The gradient in the weights [C]: contributions of each label's loss and share, summed by class."""
    wide, classes = x.dtype.compute, x.shape[1]
    labels = labels.cast(int64)
    counts = (labels >= 0) & (labels < classes)
    counts = counts if ignored is None else counts & (labels != ignored)
    places = where(counts, labels, 0)
    each = None if g is None else -(gather(x, 1, places.unsqueeze(1)).squeeze(1).cast(wide) * g.cast(wide))
    if shares is not None:
        each = shares if each is None else each + shares
    if each is None:
        return None
    flat = (places.spec.numel,)
    return call(GatherGrad(0, classes), where(counts, each, 0.0).reshape(flat), places.reshape(flat))
