"""Losses on probabilities, distances and margins, with torch's names and arguments. All but one are composed.

`reduction` is "mean", "sum" or "none"; labels and signs may be of any numeric dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lamina.ops.arguments import checked, within
from lamina.ops.core import INTEGERS, Arg, Array, Op, Sample, call, floating, operand, together
from lamina.ops.primitives.activation import logsigmoid, pairwise_distance
from lamina.ops.primitives.check_index import CheckIndex
from lamina.ops.primitives.loss import Reduction, reduced, spread
from lamina.ops.primitives.marker import stop_gradient
from lamina.ops.primitives.pointwise import maximum, minimum, softplus, where
from lamina.ops.primitives.scan import cumsum
from lamina.spec import DTypeError, Shape, ShapeError, Spec, broadcast_shapes, int64

_SHAPES: tuple[Shape, ...] = ((3, 5), (2, 3, 4), (), (0, 3), (17,))


class _Probabilities(Op):
    """Operands of one shape and dtype; the first are probabilities, the second the targets."""

    elementwise = True

    def infer(self, *inputs: Spec) -> tuple[Spec]:
        self.check_float(*inputs)
        if any(x.shape != inputs[0].shape for x in inputs):
            raise ShapeError(f"{self.name}: {inputs[0]} and {inputs[1]} must have one shape")
        return (inputs[0].open,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            both = (Arg(shape, low=0.1, high=0.9), Arg(shape, low=0.0, high=1.0))
            yield Sample.of(cls(), *(*both, Arg(shape))[: cls.arity])


@dataclass(frozen=True)
class BinaryCrossEntropy(_Probabilities):
    """(p, t) -> -(t * log(p) + (1 - t) * log(1 - p)), with logarithms clamped at -100."""

    arity = 2
    inplace = {0: 0}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (g,), (p, t) = grads, inputs
        return call(BinaryCrossEntropyGrad(), p, t, g), g * (_log(1 - p) - _log(p))

    def reference(self, p: Array, t: Array) -> tuple[Array]:
        yes, no = np.maximum(np.log(p), -100), np.maximum(np.log1p(-p), -100)
        return (-(t * yes + (1 - t) * no),)


@dataclass(frozen=True)
class BinaryCrossEntropyGrad(_Probabilities):
    """(p, t, g) -> g * (p - t) / (p * (1 - p)), with the denominator clamped at 1e-12."""

    arity = 3
    inplace = {0: 2}

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (u,), (p, t, g) = grads, inputs
        spread_out = maximum(p * (1 - p), 1e-12)
        bend = (spread_out - (p - t) * (1 - 2 * p)) / (spread_out * spread_out)
        return u * g * bend, -(u * g / spread_out), call(self, p, t, u)

    def reference(self, p: Array, t: Array, g: Array) -> tuple[Array]:
        return (g * (p - t) / np.maximum(p * (1 - p), 1e-12),)


def _log(x: Any) -> Any:
    """The logarithm, clamped at -100; NaN is kept."""
    return maximum(x.log(), -100.0)


@checked
def binary_cross_entropy(
    input: Any, target: Any, weight: Any = None, *, reduction: Reduction = "mean"
) -> Any:
    """-(t log(p) + (1 - t) log(1 - p)) for probabilities p in [0, 1]; logarithms are clamped at -100, as in torch.

    weight: a factor per element, broadcasts to input. Raises ShapeError unless the shapes are equal. For logits
    `binary_cross_entropy_with_logits` is exact for every input.
    """
    what = "binary_cross_entropy"
    p, t = together(what, floating(input, what), operand(target, what, "target"))
    losses = call(BinaryCrossEntropy(), p, t)
    return reduced(losses if weight is None else losses * operand(weight, what, "weight"), reduction)


@checked
def kl_div(
    input: Any,
    target: Any,
    *,
    reduction: Literal["mean", "sum", "none", "batchmean"] = "mean",
    log_target: bool = False,
) -> Any:
    """target * (log(target) - input) for log-probabilities `input`; 0 where target is 0 (Kullback & Leibler 1951).

    log_target: target is also in logarithms. reduction: "batchmean", the sum divided by the size of axis 0, is the
    divergence; "mean" is over all elements.
    """
    x, t = together("kl_div", floating(input, "kl_div"), operand(target, "kl_div", "target"))
    losses = t.exp() * (t - x) if log_target else t * where(t == 0, 1.0, t).log() - t * x
    if reduction == "batchmean":
        count = losses.shape[0] if losses.ndim else 1
        return losses.sum() * (1.0 / count if count else math.nan)
    return reduced(losses, reduction)


@checked
def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-8,
    reduction: Reduction = "mean",
) -> Any:
    """For Poisson-distributed counts: exp(x) - t * x, or x - t * log(x + eps) without log_input.

    full: adds Stirling's approximation t log(t) - t + log(2 pi t) / 2 of log(t!) where t > 1.
    """
    what = "poisson_nll_loss"
    x, t = floating(input, what), operand(target, what, "target")
    losses = x.exp() - t * x if log_input else x - t * (x + eps).log()
    if full:
        safe = where(t > 1, t, 1.0)
        losses = losses + where(t > 1, t * safe.log() - t + 0.5 * (2 * math.pi * safe).log(), 0.0)
    return reduced(losses, reduction)


@checked
def gaussian_nll_loss(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: Reduction = "mean",
) -> Any:
    """For a normal distribution with mean input and variance var: (log(var) + (input - target)^2 / var) / 2.

    var: a number, input's shape, or that without its last axis or with size 1 there; clamped at eps without affecting
    the gradient. full: + log(2 pi) / 2. (Nix & Weigend 1994.) Raises ValueError unless eps > 0, ShapeError.
    """
    what = "gaussian_nll_loss"
    within(what, "eps", eps, 0, open=True)
    x, t, v = floating(input, what), operand(target, what, "target"), floating(var, what)
    if v.ndim and v.shape == x.shape[:-1] and v.shape != x.shape:
        v = v.unsqueeze(-1)
    if broadcast_shapes(v.shape, x.shape, what) != x.shape:
        raise ShapeError(f"{what}: var {v.spec} must broadcast to input {x.spec}")
    v = where(v < eps, eps + (v - stop_gradient(v)), v)  # clamped, but the gradient passes: it may grow again
    apart = x - t
    losses = 0.5 * (v.log() + apart * apart / v)
    return reduced(losses + 0.5 * math.log(2 * math.pi) if full else losses, reduction)


@checked
def cosine_embedding_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, *, reduction: Reduction = "mean"
) -> Any:
    """1 - cos where target is 1, max(0, cos - margin) where it is -1, with cos the cosine similarity of two vectors.

    input1, input2: [N, D] with target [N], or [D] with target []. Raises ShapeError.
    """
    what = "cosine_embedding_loss"
    a, b, t = floating(input1, what), floating(input2, what), operand(target, what, "target")
    if not (a.ndim in (1, 2) and a.ndim == b.ndim and t.ndim == a.ndim - 1):
        raise ShapeError(
            f"{what}: inputs [N, D] and target [N], or [D] and [], got {a.spec}, {b.spec} and {t.spec}"
        )
    sizes = ((a * a).sum(-1) + 1e-12) * ((b * b).sum(-1) + 1e-12)
    cosine = (a * b).sum(-1) / sizes.sqrt()
    return reduced(where(t == 1, 1 - cosine, 0.0) + where(t == -1, _hinge(cosine - margin), 0.0), reduction)


@checked
def margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: float = 0.0, *, reduction: Reduction = "mean"
) -> Any:
    """max(0, margin - target * (input1 - input2)): for target 1 the first should be larger, for -1 the second."""
    what = "margin_ranking_loss"
    a, b, t = floating(input1, what), floating(input2, what), operand(target, what, "target")
    if not a.ndim == b.ndim == t.ndim:
        raise ShapeError(f"{what}: inputs and target must have one rank, got {a.spec}, {b.spec} and {t.spec}")
    return reduced(_hinge(margin - t * (a - b)), reduction)


@checked
def hinge_embedding_loss(
    input: Any, target: Any, margin: float = 1.0, *, reduction: Reduction = "mean"
) -> Any:
    """input where target is 1, max(0, margin - input) where it is -1 (Hadsell et al. 2006)."""
    what = "hinge_embedding_loss"
    x, t = floating(input, what), operand(target, what, "target")
    return reduced(where(t != 1, _hinge(margin - x), 0.0) + where(t != -1, x, 0.0), reduction)


@checked
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    *,
    reduction: Reduction = "mean",
) -> Any:
    """max(0, |anchor - positive| - |anchor - negative| + margin) with the p-norm (Schroff et al. 2015).

    anchor, positive, negative: [N, D] or [D]. swap: compare the negative with the closer of anchor and positive
    (Balntas et al. 2016).
    """
    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=lambda a, b: pairwise_distance(a, b, p, eps),
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: Reduction = "mean",
) -> Any:
    """`triplet_margin_loss` with any distance of two tensors, by default `pairwise_distance`."""
    what = "triplet_margin_loss"
    a, near, far = floating(anchor, what), floating(positive, what), floating(negative, what)
    if not a.ndim == near.ndim == far.ndim:
        raise ShapeError(f"{what}: inputs must have one rank, got {a.spec}, {near.spec} and {far.spec}")
    distance = distance_function or pairwise_distance
    apart = distance(a, far)
    if swap:
        apart = minimum(apart, distance(near, far))
    return reduced(_hinge(distance(a, near) - apart + margin), reduction)


@checked
def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    *,
    reduction: Reduction = "mean",
) -> Any:
    """The mean over classes i other than the label y of max(0, margin - x[y] + x[i])^p (Crammer & Singer 2001).

    input: [N, C] or [C]; target: integer labels [N] or []. p: 1 or 2. weight: [C], a factor per label.
    """
    what = "multi_margin_loss"
    x, labels, single = _batched(what, input, target, 1)
    if p not in (1, 2):
        raise ValueError(f"{what}: p must be 1 or 2, got {p}")
    classes = x.shape[1]
    chosen = spread(call(CheckIndex(what, classes), labels), classes, x.dtype, 1)
    hinge = _hinge(margin - where(chosen != 0, x, 0.0).sum(1, keepdim=True) + x)
    losses = where(chosen != 0, 0.0, hinge if p == 1 else hinge * hinge)
    if weight is not None:
        shares = operand(weight, what, "weight")
        if shares.shape != (classes,):
            raise ShapeError(f"{what}: weight must be [C] for input {x.spec}, got {shares.spec}")
        losses = losses * (chosen * shares.cast(x.dtype)).sum(1, keepdim=True)
    found = losses.sum(1) * (1 / max(classes, 1))
    return reduced(found.squeeze(0) if single else found, reduction)


@checked
def multilabel_margin_loss(input: Any, target: Any, *, reduction: Reduction = "mean") -> Any:
    """The sum over labels y and other classes i of max(0, 1 - x[y] + x[i]), divided by the number of classes.

    input: [N, C] or [C]; target: integers of the same shape, the labels first, then -1.
    """
    what = "multilabel_margin_loss"
    x, labels, single = _batched(what, input, target, 0)
    if labels.shape != x.shape:
        raise ShapeError(f"{what}: target {labels.spec} must have the shape of input {x.spec}")
    classes = x.shape[1]
    ended = cumsum((labels < 0).cast(int64), 1)  # positive from the first -1 on
    labels = where(ended > 0, -1, labels.cast(int64))
    chosen = spread(call(CheckIndex(what, classes, -1), labels), classes, x.dtype, 2)  # [N, label, class]
    other = chosen.sum(1, keepdim=True) == 0
    wanted = where(chosen != 0, x.unsqueeze(1), 0.0).sum(2, keepdim=True)
    hinge = _hinge(1 - wanted + x.unsqueeze(1))
    counted = where(other, hinge, 0.0) * chosen.sum(2, keepdim=True)
    losses = counted.sum((1, 2)) * (1 / max(classes, 1))
    return reduced(losses.squeeze(0) if single else losses, reduction)


def _batched(what: str, input: Any, target: Any, fewer: int) -> tuple[Any, Any, bool]:
    """Input [N, C], labels with `fewer` axes less, and whether the input was unbatched. Raises ShapeError."""
    x, labels = floating(input, what), operand(target, what, "target")
    if labels.dtype not in INTEGERS:
        raise DTypeError(f"{what}: labels must be integers, got {labels.spec}")
    if x.ndim < 2 and labels.spec.numel == 1:  # scalars count as vectors of one element
        x, labels = x.reshape((x.spec.numel,)), labels.reshape(() if fewer else (1,))
    if x.ndim not in (1, 2) or labels.ndim != x.ndim - fewer or (fewer and labels.shape != x.shape[:-1]):
        raise ShapeError(f"{what}: input [N, C] or [C] and labels do not fit, got {x.spec} and {labels.spec}")
    single = x.ndim == 1
    return (x.unsqueeze(0), labels.unsqueeze(0), True) if single else (x, labels, False)


@checked
def multilabel_soft_margin_loss(
    input: Any, target: Any, weight: Any = None, *, reduction: Reduction = "mean"
) -> Any:
    """`binary_cross_entropy_with_logits` averaged over the classes, the last axis. weight: a factor per class."""
    what = "multilabel_soft_margin_loss"
    x, t = floating(input, what), operand(target, what, "target")
    if x.shape != t.shape or x.ndim == 0:
        raise ShapeError(f"{what}: input {x.spec} and target {t.spec} must have one shape, (…, C)")
    losses = -(t * logsigmoid(x) + (1 - t) * logsigmoid(-x))
    if weight is not None:
        losses = losses * operand(weight, what, "weight")
    return reduced(losses.mean(-1), reduction)


@checked
def soft_margin_loss(input: Any, target: Any, *, reduction: Reduction = "mean") -> Any:
    """log(1 + exp(-target * input)) for targets 1 and -1, without overflow."""
    what = "soft_margin_loss"
    x, t = floating(input, what), operand(target, what, "target")
    if x.shape != t.shape:
        raise ShapeError(f"{what}: input {x.spec} and target {t.spec} must have one shape")
    return reduced(softplus(-(t * x)), reduction)


def _hinge(x: Any) -> Any:
    """max(x, 0), with gradient 1 at 0, as torch's clamp_min; NaN is kept."""
    return where(x < 0, 0.0, x)
