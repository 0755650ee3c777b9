"""Losses. Cross-entropy on logits is a card of its own; the others are composed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import INTEGERS, Arg, Array, BatchAxes, Op, Sample, call, operand
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.softmax import log_softmax
from lamina.spec import DType, DTypeError, Shape, ShapeError, Spec, as_dtype, float32, int64

REDUCTIONS = ("mean", "sum", "none")


class _CrossEntropy(Op):
    label_smoothing: float
    ignore_index: int | None

    def check(self, x: Spec, labels: Spec) -> None:
        """Raise unless x is [N, C, *spatial] of floats and labels are integers [N, *spatial]."""
        self.check_float(x)
        if labels.dtype not in INTEGERS:
            raise DTypeError(f"{self.name}: labels must be integers, got {labels}; cast with ops.cast")
        if x.ndim < 2 or labels.shape != (x.shape[0], *x.shape[2:]):
            raise ShapeError(
                f"{self.name}: logits [N, C, *spatial] and labels [N, *spatial] do not fit, "
                f"got {x} and {labels}"
            )
        if x.shape[1] == 0:
            raise ShapeError(f"{self.name}: logits {x} have no classes")
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"{self.name}: label_smoothing must be in [0, 1], got {self.label_smoothing}")

    def targets(self, x: Array, labels: Array) -> Array:
        """The wanted probabilities, as x's shape: 0 for ignored places, NaN for labels that name no class."""
        classes = np.arange(x.shape[1]).reshape((1, -1) + (1,) * (x.ndim - 2))
        label = np.expand_dims(labels.astype(np.int64), 1)
        wanted = np.where(classes == label, 1 - self.label_smoothing, 0.0) + self.label_smoothing / x.shape[1]
        wanted = np.where((label < 0) | (label >= x.shape[1]), np.nan, wanted)
        if self.ignore_index is not None:
            wanted = np.where(label == self.ignore_index, 0.0, wanted)
        return wanted.astype(x.dtype)

    def ignored(self, labels: Array) -> Array:
        """Where the label is ignore_index."""
        return np.zeros(labels.shape, bool) if self.ignore_index is None else labels == self.ignore_index


@dataclass(frozen=True)
class CrossEntropy(_CrossEntropy):
    """(logits [N, C, *spatial], integer labels [N, *spatial]) -> losses [N, *spatial].

    loss = (1 - label_smoothing) * (lse - x[label]) + label_smoothing * (lse - mean over classes of x), with
    lse = log(sum over classes of exp(x)). Losses are float32 (float64 for float64 logits). Where the label is
    ignore_index the loss is 0; a label outside 0 … C - 1 gives NaN.
    """

    label_smoothing: float = 0.0
    ignore_index: int | None = None
    arity = 2

    def infer(self, x: Spec, labels: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check(x, labels)
        return (self.result(labels.shape, x.dtype.compute),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        x, labels = axes
        return (x,) if x and x.axis == 0 and labels == x else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        x, labels = inputs
        return call(CrossEntropyGrad(self.label_smoothing, self.ignore_index), x, labels, grads[0]), None

    def reference(self, x: Array, labels: Array) -> tuple[Array]:  # type: ignore[override]
        log_p = _log_softmax(x)
        wanted = self.targets(x, labels)
        return (-np.sum(np.where(wanted == 0, 0, wanted * log_p), 1),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for smoothing, ignore, shape in _CASES:
            yield Sample.of(cls(smoothing, ignore), shape, _labels(shape))


@dataclass(frozen=True)
class CrossEntropyGrad(_CrossEntropy):
    """(logits, labels, g [N, *spatial]) -> g * (softmax(logits) - wanted probabilities), like the logits.

    g has the losses' dtype. The gradient is 0 where the label is ignore_index, NaN where it names no class.
    """

    label_smoothing: float = 0.0
    ignore_index: int | None = None
    arity = 3
    inplace = {0: 0}

    def infer(self, x: Spec, labels: Spec, g: Spec) -> tuple[Spec]:  # type: ignore[override]
        self.check(x, labels)
        if g.shape != labels.shape:
            raise ShapeError(f"{self.name}: gradient {g} must have the shape of the labels {labels}")
        if g.dtype != x.dtype.compute:
            raise DTypeError(
                f"{self.name}: gradient {g} must be {x.dtype.compute}, as the losses of logits {x}"
            )
        return (x.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (t,), (x, labels, g) = grads, inputs
        wide = x.dtype.compute
        t, p = t.cast(wide), log_softmax(x.cast(wide), 1).exp()
        valid = self._valid(labels, wide)
        weighted = t * p
        total = weighted.sum((1,), keepdims=True)
        dx = valid * g.unsqueeze(1) * (weighted - p * total)
        wanted = one_hot(labels, x.shape[1], wide, axis=1) * (1 - self.label_smoothing)
        wanted = wanted + self.label_smoothing / x.shape[1]
        dg = (valid * t * (p - wanted)).sum((1,))
        return dx.cast(x.dtype), None, dg

    def _valid(self, labels: Any, dtype: DType) -> Any:
        """1 where the label counts, shaped [N, 1, *spatial]."""
        if self.ignore_index is None:
            return (labels == labels).cast(dtype).unsqueeze(1)
        return (labels != self.ignore_index).cast(dtype).unsqueeze(1)

    def reference(self, x: Array, labels: Array, g: Array) -> tuple[Array]:  # type: ignore[override]
        p = np.exp(_log_softmax(x))
        dx = np.expand_dims(g, 1) * (p - self.targets(x, labels))
        return (np.where(np.expand_dims(self.ignored(labels), 1), 0, dx),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for smoothing, ignore, shape in _CASES:
            places = (shape[0], *shape[2:])
            for wide, dtypes in ((float32, cls.dtypes[1:]), (None, cls.dtypes[:1])):
                op = cls(smoothing, ignore)
                yield Sample.of(op, shape, _labels(shape), Arg(places, wide), dtypes=dtypes)


_CASES: tuple[tuple[float, int | None, Shape], ...] = (
    (0.0, None, (5, 10)),
    (0.1, None, (3, 7)),
    (0.0, 2, (6, 4)),
    (0.2, 0, (2, 3, 4, 5)),
    (0.0, None, (1, 1)),
    (0.0, None, (0, 3)),
    (0.0, -100, (3, 130)),
    (0.3, None, (2, 5, 3)),
)


def _labels(shape: Shape) -> Arg:
    return Arg((shape[0], *shape[2:]), int64, low=0, high=shape[1], integers=True, differentiable=False)


def _log_softmax(x: Array) -> Array:
    apart = x - np.max(x, 1, keepdims=True)
    return np.asarray(apart - np.log(np.sum(np.exp(apart), 1, keepdims=True)))


def one_hot(labels: Any, classes: int, dtype: DType | str = float32, axis: int = -1) -> Any:
    """1 at each label and 0 elsewhere, along a new axis of `classes` entries; all 0 for other labels."""
    labels = operand(labels)
    place = axis % (labels.ndim + 1)
    spread = labels.unsqueeze(place)
    names = np.arange(classes, dtype=labels.dtype.numpy).reshape((-1,) + (1,) * (labels.ndim - place))
    return (spread == names).cast(as_dtype(dtype))


def cross_entropy(
    input: Any,
    target: Any,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Any:
    """Softmax and negative log-likelihood in one, as torch.nn.functional.cross_entropy.

    input: logits [N, C, *spatial]. target: integer labels [N, *spatial], or float probabilities like input.
    reduction: "mean" (over the labels that are not ignored), "sum" or "none". The result is float32 (float64
    for float64 logits). Unlike torch, nothing is ignored unless ignore_index is given.
    """
    _check_reduction("cross_entropy", reduction)
    x, labels = operand(input), operand(target)
    if labels.dtype.is_float:
        return _soft_cross_entropy(x, labels, reduction, label_smoothing)
    losses = call(CrossEntropy(float(label_smoothing), ignore_index), x, labels)
    return _reduce_labelled(losses, labels, reduction, ignore_index)


def _soft_cross_entropy(x: Any, target: Any, reduction: str, label_smoothing: float) -> Any:
    if x.shape != target.shape:
        raise ShapeError(
            f"cross_entropy: logits {x.spec} and probabilities {target.spec} must have one shape"
        )
    wide = x.dtype.compute
    wanted = target.cast(wide)
    if label_smoothing:
        wanted = wanted * (1 - label_smoothing) + label_smoothing / x.shape[1]
    losses = -(wanted * log_softmax(x.cast(wide), 1)).sum(1)
    return _reduce(losses, reduction)


def nll_loss(input: Any, target: Any, reduction: str = "mean", ignore_index: int | None = None) -> Any:
    """-input[n, target[n]] for log-probabilities [N, C, *spatial], as torch.nn.functional.nll_loss.

    The result has the input's dtype; a label that names no class counts as 0.
    """
    _check_reduction("nll_loss", reduction)
    x, labels = operand(input), operand(target)
    if labels.dtype not in INTEGERS:
        raise DTypeError(f"nll_loss: labels must be integers, got {labels.spec}")
    if x.ndim < 2 or labels.shape != (x.shape[0], *x.shape[2:]):
        raise ShapeError(
            f"nll_loss: input [N, C, *spatial] and labels [N, *spatial], got {x.spec} and {labels.spec}"
        )
    losses = -(one_hot(labels, x.shape[1], x.dtype, axis=1) * x).sum(1)
    if ignore_index is not None:
        losses = losses * (labels != ignore_index).cast(x.dtype)
    return _reduce_labelled(losses, labels, reduction, ignore_index)


def mse_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """(input - target)^2, averaged, summed or as it is."""
    apart = _apart("mse_loss", input, target, reduction)
    return _reduce(apart * apart, reduction)


def l1_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """|input - target|, averaged, summed or as it is."""
    return _reduce(_apart("l1_loss", input, target, reduction).abs(), reduction)


def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """d^2 / (2 beta) where d = |input - target| < beta, else d - beta / 2."""
    if not beta > 0:
        raise ValueError(f"smooth_l1_loss: beta must be > 0, got {beta}; use l1_loss for 0")
    size = _apart("smooth_l1_loss", input, target, reduction).abs()
    return _reduce(where(size < beta, size * size * (0.5 / beta), size - 0.5 * beta), reduction)


def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    """d^2 / 2 where d = |input - target| < delta, else delta * (d - delta / 2)."""
    return smooth_l1_loss(input, target, reduction, delta) * delta


def binary_cross_entropy_with_logits(input: Any, target: Any, reduction: str = "mean") -> Any:
    """-(t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))), without overflow."""
    _check_reduction("binary_cross_entropy_with_logits", reduction)
    x, t = operand(input), operand(target)
    if x.shape != t.shape:
        raise ShapeError(f"binary_cross_entropy_with_logits: {x.spec} and {t.spec} must have one shape")
    return _reduce(x.softplus() - x * t, reduction)


def _apart(what: str, input: Any, target: Any, reduction: str) -> Any:
    _check_reduction(what, reduction)
    x, t = operand(input), operand(target)
    if x.shape != t.shape:
        raise ShapeError(f"{what}: input {x.spec} and target {t.spec} must have one shape")
    return x - t


def _check_reduction(what: str, reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise ValueError(f"{what}: reduction must be one of {', '.join(REDUCTIONS)}, got {reduction!r}")


def _reduce(losses: Any, reduction: str) -> Any:
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def _reduce_labelled(losses: Any, labels: Any, reduction: str, ignore_index: int | None) -> Any:
    """The mean counts the labels that are not ignored."""
    if reduction != "mean" or ignore_index is None:
        return _reduce(losses, reduction)
    counted = (labels != ignore_index).cast(losses.dtype).sum()
    return losses.sum() / counted
