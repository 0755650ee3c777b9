"""Losses. Cross-entropy on logits is a separate op; the others are composed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lamina.ops.arguments import DTypeLike, checked, within
from lamina.ops.core import INTEGERS, Arg, Array, BatchAxes, Op, Sample, bind, call, floating, operand
from lamina.ops.primitives.check_index import CheckIndex, check_index, watched
from lamina.ops.primitives.gather import host_values
from lamina.ops.primitives.nll_loss import NllLoss
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.softmax import log_softmax
from lamina.spec import (
    DType,
    DTypeError,
    Shape,
    ShapeError,
    Spec,
    as_dtype,
    float32,
    int64,
    normalize_axis,
)


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
                f"got {x} and {labels}{_without_axis(x, labels)}"
            )
        if x.shape[1] == 0:
            raise ShapeError(f"{self.name}: logits {x} have no classes")
        if not 0 <= self.label_smoothing <= 1:
            raise ValueError(f"{self.name}: label_smoothing must be in [0, 1], got {self.label_smoothing}")

    def targets(self, x: Array, labels: Array) -> Array:
        """The target probabilities, in x's shape: 0 at ignored positions. Raises IndexError for invalid labels."""
        count, ignored = x.shape[1], self.ignore_index
        check_index(self.name, labels, count, ignored)
        label = labels.astype(np.int64)[:, None]
        wanted = (np.arange(count).reshape((-1,) + (1,) * (x.ndim - 2)) == label).astype(x.dtype)
        if self.label_smoothing:
            wanted = np.where(wanted, 1 - self.label_smoothing, 0.0) + self.label_smoothing / count
        if ignored is not None and (self.label_smoothing or 0 <= ignored < count):
            wanted = np.where(label == ignored, 0.0, wanted)
        return np.asarray(wanted, x.dtype)


@dataclass(frozen=True)
class CrossEntropy(_CrossEntropy):
    """(logits [N, C, *spatial], integer labels [N, *spatial]) -> losses [N, *spatial].

    loss = (1 - label_smoothing) * (lse - x[label]) + label_smoothing * (lse - mean over classes of x), with lse =
    log(sum over classes of exp(x)). Losses are float32 (float64 for float64 logits). The loss is 0 where the label is
    ignore_index. Any other label outside 0 … C - 1 is an IndexError on a CPU, NaN on a GPU.
    """

    label_smoothing: float = 0.0
    ignore_index: int | None = None
    arity = 2
    widens = (0,)

    def infer(self, x: Spec, labels: Spec) -> tuple[Spec]:
        self.check(x, labels)
        return (self.result(labels.shape, x.dtype.compute),)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        x, labels = axes
        return (x,) if x and x.axis == 0 and labels == x else None

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        x, labels = inputs
        return call(CrossEntropyGrad(self.label_smoothing, self.ignore_index), x, labels, grads[0]), None

    def reference(self, x: Array, labels: Array) -> tuple[Array]:
        log_p = _log_softmax(x)
        wanted = self.targets(x, labels)
        return (-np.where(wanted == 0, 0, wanted * log_p).sum(1),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for smoothing, ignore, shape in _CASES:
            yield Sample.of(cls(smoothing, ignore), shape, _labels(shape))


@dataclass(frozen=True)
class CrossEntropyGrad(_CrossEntropy):
    """(logits, labels, g [N, *spatial] or []) -> g * (softmax(logits) - target probabilities), like the logits.

    g has the losses' dtype. The gradient is 0 where the label is ignore_index. Invalid labels: as in CrossEntropy.
    """

    label_smoothing: float = 0.0
    ignore_index: int | None = None
    arity = 3
    inplace = {0: 0}
    broadcasts = (2,)
    rounds_last = True

    def infer(self, x: Spec, labels: Spec, g: Spec) -> tuple[Spec]:
        self.check(x, labels)
        if g.shape not in (labels.shape, ()):
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
        total = weighted.sum((1,), keepdim=True)
        dx = valid * g.expand(labels.shape).unsqueeze(1) * (weighted - p * total)
        wanted = spread(labels, x.shape[1], wide, 1) * (1 - self.label_smoothing)
        wanted = wanted + self.label_smoothing / x.shape[1]
        dg = (valid * t * (p - wanted)).sum((1,))
        return dx.cast(x.dtype), None, dg if g.ndim else dg.sum()

    def _valid(self, labels: Any, dtype: DType) -> Any:
        """1 where the label counts, shaped [N, 1, *spatial]."""
        if self.ignore_index is None:
            return (labels == labels).cast(dtype).unsqueeze(1)
        return (labels != self.ignore_index).cast(dtype).unsqueeze(1)

    def reference(self, x: Array, labels: Array, g: Array) -> tuple[Array]:
        p = np.exp(_log_softmax(x))
        dx = (g[:, None] if g.ndim else g) * (p - self.targets(x, labels))
        return (dx if self.ignore_index is None else np.where(labels[:, None] == self.ignore_index, 0, dx),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for smoothing, ignore, shape in _CASES:
            places = (shape[0], *shape[2:])
            for wide, dtypes in ((float32, cls.dtypes[1:]), (None, cls.dtypes[:1])):
                op = cls(smoothing, ignore)
                yield Sample.of(op, shape, _labels(shape), Arg(places, wide), dtypes=dtypes)
        yield Sample.of(cls(0.1, 1), (3, 4, 2), _labels((3, 4, 2)), Arg((), float32), dtypes=cls.dtypes[1:])
        yield Sample.of(cls(), (6, 40), _labels((6, 40)), (), dtypes=cls.dtypes[:1])


@dataclass(frozen=True)
class LabelledMean(Op):
    """(losses, integer labels of their shape) -> (mean [], share []) over the labels that are not ignore_index.

    mean = sum of all losses / count and share = 1 / count, with count the number of these labels. The losses of
    ignored labels are assumed to be 0, as computed by `CrossEntropy`. NaN and infinity if no label counts, as in
    torch. mean has the losses' dtype, share their compute dtype: the gradient of each loss is share.
    """

    ignore_index: int
    arity = 2

    def infer(self, losses: Spec, labels: Spec) -> tuple[Spec, Spec]:
        self.check_float(losses)
        if labels.dtype not in INTEGERS:
            raise DTypeError(f"{self.name}: labels must be integers, got {labels}; cast with ops.cast")
        if losses.shape != labels.shape:
            raise ShapeError(f"{self.name}: losses {losses} and labels {labels} must have one shape")
        return self.result((), losses.dtype), self.result((), losses.dtype.compute)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        g, losses, share = grads[0], inputs[0], outputs[1]
        if g is None:
            return None, None
        return (g.cast(share.dtype) * share).cast(losses.dtype).expand(losses.shape), None

    def reference(self, losses: Array, labels: Array) -> tuple[Array, ...]:
        count = np.float64(np.count_nonzero(labels != self.ignore_index))
        return np.sum(losses) / count, np.asarray(1 / count)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        cases: list[tuple[int, Shape]] = [
            (2, (9,)),
            (-100, (4, 3)),
            (-1, (1,)),
            (1, (40, 300)),
            (0, (2, 3, 5, 7)),
        ]
        for ignore, shape in cases:
            labels = Arg(shape, int64, low=0, high=4, integers=True, differentiable=False)
            yield Sample.of(cls(ignore), shape, labels)


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
    apart = x - x.max(1, keepdims=True)
    return np.asarray(apart - np.log(np.exp(apart).sum(1, keepdims=True)))


Reduction = Literal["mean", "sum", "none"]


@checked
def one_hot(tensor: Any, num_classes: int = -1, *, dtype: DTypeLike = int64, dim: int = -1) -> Any:
    """1 at each label and 0 elsewhere, along a new axis (the last) of num_classes entries, as torch's one_hot.

    num_classes: -1 means one more than the largest label, which is unknown while a graph is recorded (a TypeError).
    dtype, dim: beyond torch. A label outside 0 … num_classes - 1 is an IndexError on a CPU, all 0 on a GPU (see
    `CheckIndex`).
    """
    labels = operand(tensor, "one_hot", "tensor")
    if labels.dtype not in INTEGERS:
        raise DTypeError(f"one_hot: labels must be integers, got {labels.spec}; cast with ops.cast")
    if num_classes == -1:
        held = host_values("one_hot", labels, "tensor")
        if not held.size:
            raise ValueError(f"one_hot: {labels.spec} has no labels to count classes by; give num_classes")
        num_classes = int(held.max()) + 1
    within("one_hot", "num_classes", num_classes, 1)
    labels = call(CheckIndex("one_hot", int(num_classes)), labels)
    return spread(labels, int(num_classes), as_dtype(dtype), normalize_axis(dim, labels.ndim + 1, "one_hot"))


def spread(labels: Any, classes: int, dtype: DType, place: int) -> Any:
    """one_hot along a new axis at position `place`; all 0 for labels that are not classes."""
    wide = labels.cast(int64) if classes > np.iinfo(labels.dtype.numpy).max else labels
    names = np.arange(classes, dtype=wide.dtype.numpy).reshape((-1,) + (1,) * (labels.ndim - place))
    return (wide.unsqueeze(place) == names).cast(dtype)


@checked
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int | None = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """Softmax and negative log-likelihood in one, as torch.nn.functional.cross_entropy.

    input: logits [N, C, *spatial], or [C] for one. target: integer labels [N, *spatial] (or []), or float
    probabilities like input. weight: [C], a factor per class. ignore_index: the label of ignored positions; None:
    there is none, which saves counting. reduction: "mean" (by the weights of the labels that count), "sum" or "none".
    The result is float32 (float64 for float64 logits).
    A label outside 0 … C - 1 is an IndexError on a CPU and NaN on a GPU (see `CheckIndex`).
    """
    within("cross_entropy", "label_smoothing", label_smoothing, 0, 1)
    x, labels = operand(input, "cross_entropy"), operand(target, "cross_entropy", "target")
    if labels.dtype.is_float:
        return _soft_cross_entropy(x, labels, weight, reduction, label_smoothing)
    single = x.ndim == 1 and labels.ndim == 0
    x, labels = (x.unsqueeze(0), labels.unsqueeze(0)) if single else (x, labels)
    ignored = _possible(labels.dtype, ignore_index)
    if x.ndim > 1 and labels.dtype in INTEGERS:
        labels = watched("cross_entropy", labels, x.shape[1], ignored)
    by_class = _class_weights("cross_entropy", x, weight)
    if by_class is None:
        losses = call(CrossEntropy(float(label_smoothing), ignored), x, labels)
        return _reduce_labelled(losses, labels, reduction, ignored, None, single)
    if label_smoothing:
        losses, shares = _smoothed(x, labels, by_class, ignored, label_smoothing)
    else:
        shares = bind(NllLoss(ignored, "cross_entropy"), x, labels, by_class)[1]
        losses = call(CrossEntropy(0.0, ignored), x, labels) * shares
    return _reduce_labelled(losses, labels, reduction, ignored, shares, single)


def _possible(dtype: DType, ignore_index: int | None) -> int | None:
    """ignore_index, None if the labels' dtype cannot represent it."""
    if ignore_index is None or dtype not in INTEGERS:
        return ignore_index
    limits = np.iinfo(dtype.numpy)
    return int(ignore_index) if limits.min <= ignore_index <= limits.max else None


def _class_weights(what: str, x: Any, weight: Any) -> Any:
    """The weights [C] in the losses' dtype, None without weights. Raises ShapeError."""
    if weight is None:
        return None
    shares = floating(operand(weight, what, "weight"), what)
    if x.ndim < 2 or shares.shape != (x.shape[1],):
        raise ShapeError(
            f"{what}: weight must be [C], one for each class of input {x.spec}, got {shares.spec}"
        )
    return shares.cast(x.dtype.compute)


def _smoothed(x: Any, labels: Any, by_class: Any, ignored: int | None, smoothing: float) -> tuple[Any, Any]:
    """The label-smoothed losses [N, *S] with weighted classes, from one log softmax, 0 where the label is ignored;
    and the weights of the labels."""
    CrossEntropy(float(smoothing), ignored).check(x.spec, labels.spec)
    log_p = log_softmax(x.cast(x.dtype.compute), 1)
    of_label, shares = bind(NllLoss(ignored, "cross_entropy"), log_p, labels, by_class)
    weights = by_class.reshape((1, -1, *(1,) * (x.ndim - 2)))
    of_all = (log_p * weights).sum(1) * (smoothing / x.shape[1])
    losses = of_label * (1 - smoothing) - of_all
    return losses if ignored is None else where(labels != ignored, losses, 0.0), shares


def _without_axis(x: Spec, labels: Spec) -> str:
    """What to do about labels [N, 1, *spatial]."""
    fits = labels.ndim == x.ndim and labels.shape == (x.shape[0], 1, *x.shape[2:])
    return "; labels have no axis of classes: target.squeeze(1)" if fits else ""


def _mistaken(x: Spec, target: Spec) -> str:
    """What to do about a float target that is no probabilities: the logits in its place, or labels as floats."""
    if not x.dtype.is_float:
        return "; the logits come first, then the target"
    if x.ndim > 1 and target.shape == (x.shape[0], *x.shape[2:]):
        return "; labels are integers: target.long()"
    return ""


def _soft_cross_entropy(x: Any, target: Any, weight: Any, reduction: str, label_smoothing: float) -> Any:
    if x.shape != target.shape or x.ndim == 0:
        raise ShapeError(
            f"cross_entropy: logits {x.spec} and probabilities {target.spec} must have one shape, [N, C, *spatial]"
            + _mistaken(x.spec, target.spec)
        )
    single = x.ndim == 1
    x, target = (x.unsqueeze(0), target.unsqueeze(0)) if single else (x, target)
    wide = x.dtype.compute
    wanted = target.cast(wide)
    if label_smoothing:
        wanted = wanted * (1 - label_smoothing) + label_smoothing / x.shape[1]
    shares = _class_weights("cross_entropy", x, weight)
    if shares is not None:
        wanted = wanted * shares.reshape((1, -1, *(1,) * (x.ndim - 2)))
    losses = -(wanted * log_softmax(x.cast(wide), 1)).sum(1)
    return reduced(losses.squeeze(0) if single else losses, reduction)


@checked
def nll_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    *,
    ignore_index: int | None = -100,
    reduction: Reduction = "mean",
) -> Any:
    """-weight[target[n]] * input[n, target[n]] for log-probabilities, as torch.nn.functional.nll_loss.

    input: [N, C, *spatial], or [C] for one. target: integer labels [N, *spatial], or []. weight, ignore_index and
    reduction: as in `cross_entropy`. The result has the input's dtype.
    A label outside 0 … C - 1 is an IndexError on a CPU and NaN on a GPU (see `CheckIndex`).
    """
    x, labels = operand(input, "nll_loss"), operand(target, "nll_loss", "target")
    if labels.dtype not in INTEGERS:
        raise DTypeError(f"nll_loss: labels must be integers, got {labels.spec}")
    single = x.ndim == 1 and labels.ndim == 0
    x, labels = (x.unsqueeze(0), labels.unsqueeze(0)) if single else (x, labels)
    if x.ndim < 2 or labels.shape != (x.shape[0], *x.shape[2:]):
        raise ShapeError(
            f"nll_loss: input [N, C, *spatial] and labels [N, *spatial], got {x.spec} and {labels.spec}"
        )
    ignored = _possible(labels.dtype, ignore_index)
    labels = watched("nll_loss", labels, x.shape[1], ignored)
    by_class = _class_weights("nll_loss", x, weight)
    losses, *shares = bind(
        NllLoss(ignored), floating(x, "nll_loss"), labels, *([] if by_class is None else [by_class])
    )
    return _reduce_labelled(losses, labels, reduction, ignored, shares[0] if shares else None, single)


@checked
def mse_loss(input: Any, target: Any, *, reduction: Reduction = "mean", weight: Any = None) -> Any:
    """(input - target)^2, as mean, sum or unreduced. weight: a factor per element."""
    apart = _apart("mse_loss", input, target)
    return _reduce_weighted("mse_loss", apart * apart, weight, reduction)


@checked
def l1_loss(input: Any, target: Any, *, reduction: Reduction = "mean", weight: Any = None) -> Any:
    """|input - target|, as mean, sum or unreduced. weight: a factor per element."""
    return _reduce_weighted("l1_loss", _apart("l1_loss", input, target).abs(), weight, reduction)


@checked
def smooth_l1_loss(input: Any, target: Any, *, reduction: Reduction = "mean", beta: float = 1.0) -> Any:
    """d^2 / (2 beta) where d = |input - target| < beta, else d - beta / 2; `l1_loss` for beta = 0."""
    within("smooth_l1_loss", "beta", beta, 0)
    size = _apart("smooth_l1_loss", input, target).abs()
    if beta == 0:
        return reduced(size, reduction)
    bent = size.clamp(max=beta)  # instead of `where`, whose unselected branch may be infinite
    return reduced(bent * bent * (0.5 / beta) + (size - bent), reduction)


@checked
def huber_loss(
    input: Any, target: Any, reduction: Reduction = "mean", delta: float = 1.0, weight: Any = None
) -> Any:
    """d^2 / 2 where d = |input - target| < delta, else delta * (d - delta / 2).

    weight: a factor per element, of the shape of input; the mean is over the number of elements, as torch's, unlike
    those of `mse_loss` and `l1_loss`, which are over the sum of the weights.
    """
    within("huber_loss", "delta", delta, 0, open=True)
    losses = smooth_l1_loss(input, target, reduction="none", beta=delta) * delta
    return reduced(_weighted("huber_loss", losses, weight), reduction)


@checked
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, *, reduction: Reduction = "mean", pos_weight: Any = None
) -> Any:
    """-(t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))), without overflow.

    weight: a factor per element; pos_weight: a factor of t. Both broadcast to input.
    """
    what = "binary_cross_entropy_with_logits"
    x, t = operand(input, what), operand(target, what, "target")
    if x.shape != t.shape:
        raise ShapeError(f"{what}: input {x.spec} and target {t.spec} must have one shape")
    if pos_weight is None:
        losses = x.softplus() - x * t
    else:  # (1 - t) x + (1 + (p - 1) t) log(1 + exp(-x))
        losses = x * (1 - t) + (t * (operand(pos_weight, what, "pos_weight") - 1) + 1) * (-x).softplus()
    return reduced(losses if weight is None else losses * operand(weight, what, "weight"), reduction)


@checked
def sigmoid_focal_loss(
    inputs: Any, targets: Any, alpha: float = 0.25, gamma: float = 2.0, reduction: Reduction = "none"
) -> Any:
    """`binary_cross_entropy_with_logits` times (1 - p)^gamma, p the correct class' probability (Lin et al. 2017).

    This reduces the weight of well-classified elements. alpha: the weight of targets of 1, that of 0 is 1 - alpha;
    both 1 if it is negative. As torchvision.ops.sigmoid_focal_loss. Raises ShapeError.
    """
    x, t = operand(inputs, "sigmoid_focal_loss"), operand(targets, "sigmoid_focal_loss", "targets")
    losses = binary_cross_entropy_with_logits(x, t, reduction="none")
    p = x.sigmoid()
    wrong = p * (1 - t) + (1 - p) * t
    losses = losses * (wrong * wrong if gamma == 2 else wrong**gamma)
    return reduced(losses if alpha < 0 else losses * (t * (2 * alpha - 1) + (1 - alpha)), reduction)


def _apart(what: str, input: Any, target: Any) -> Any:
    x, t = operand(input, what), operand(target, what, "target")
    if x.shape != t.shape:
        raise ShapeError(
            f"{what}: input {x.spec} and target {t.spec} must have one shape; expand one to broadcast"
        )
    return x - t


def reduced(losses: Any, reduction: str) -> Any:
    """The mean, the sum, or the unreduced losses."""
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def _reduce_weighted(what: str, losses: Any, weight: Any, reduction: str) -> Any:
    """The weighted mean over elements. Raises ShapeError."""
    weighted = _weighted(what, losses, weight)
    if weight is None or reduction != "mean":
        return reduced(weighted, reduction)
    return weighted.sum() / operand(weight, what, "weight").sum()


def _weighted(what: str, losses: Any, weight: Any) -> Any:
    """Each element's loss times its weight. Raises ShapeError."""
    if weight is None:
        return losses
    shares = operand(weight, what, "weight")
    if shares.shape != losses.shape:
        raise ShapeError(f"{what}: weight {shares.spec} must have the shape of input, {losses.spec}")
    return losses * shares


def _reduce_labelled(
    losses: Any, labels: Any, reduction: str, ignored: int | None, shares: Any, single: bool
) -> Any:
    """The mean over labels that are not ignored, each weighted by its class.

    shares: the weights of the labels, shaped like the losses, 0 where the label is ignored; None without weights.
    """
    if reduction == "none" and single:
        return losses.squeeze(0)
    if reduction == "mean" and shares is not None:
        return losses.sum() / shares.sum()
    if reduction != "mean" or ignored is None:
        return reduced(losses, reduction)
    return call(LabelledMean(ignored), losses, labels)
