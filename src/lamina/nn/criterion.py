"""Losses on probabilities, distances and margins as layers: each calls a function of ops, with torch's arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from lamina import ops
from lamina.nn.loss import _Loss
from lamina.nn.module import T
from lamina.ops.primitives.loss import Reduction


class BCELoss(_Loss):
    """Binary cross-entropy of probabilities and targets in [0, 1]; BCEWithLogitsLoss is exact for all inputs."""

    def __init__(self, weight: Any = None, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self._weigh(weight=weight)

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class KLDivLoss(_Loss):
    """target · (log(target) - input) for log-probabilities `input`; reduction also "batchmean", the divergence."""

    def __init__(
        self,
        *,
        reduction: Literal["mean", "sum", "none", "batchmean"] = "mean",
        log_target: bool = False,
    ) -> None:
        super().__init__(reduction="mean" if reduction == "batchmean" else reduction)
        self.divergence, self.log_target = reduction == "batchmean", log_target

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        reduction = "batchmean" if self.divergence else self.reduction
        return ops.kl_div(input, target, reduction=reduction, log_target=self.log_target)


class PoissonNLLLoss(_Loss):
    """exp(input) - target · input: counts from Poisson's distribution; see `ops.poisson_nll_loss`."""

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        *,
        eps: float = 1e-8,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.log_input, self.full, self.eps = log_input, full, eps

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.poisson_nll_loss(
            input, target, self.log_input, self.full, eps=self.eps, reduction=self.reduction
        )


class GaussianNLLLoss(_Loss):
    """(log(var) + (input - target)² / var) / 2, var at least eps (Nix & Weigend 1994)."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.full, self.eps = full, eps

    def forward(self, input: T, target: T, var: T | float) -> T:
        """var: like the input, or with its last axis 1 or left out, or a number."""
        return ops.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class _MarginLoss(_Loss):
    """A loss with a margin."""

    start: float = 0.0

    def __init__(self, margin: float | None = None, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = self.start if margin is None else margin


class CosineEmbeddingLoss(_MarginLoss):
    """1 - cos where target is 1, max(0, cos - margin) where it is -1. margin: 0 by default."""

    def forward(self, input1: T, input2: T, target: T) -> T:
        """input1, input2 [N, D] and target [N], or [D] and []."""
        return ops.cosine_embedding_loss(input1, input2, target, self.margin, reduction=self.reduction)


class MarginRankingLoss(_MarginLoss):
    """max(0, margin - target · (input1 - input2)). margin: 0 by default."""

    def forward(self, input1: T, input2: T, target: T) -> T:
        """Inputs and target (1 or -1) of one rank."""
        return ops.margin_ranking_loss(input1, input2, target, self.margin, reduction=self.reduction)


class HingeEmbeddingLoss(_MarginLoss):
    """input where target is 1, max(0, margin - input) where it is -1. margin: 1 by default."""

    start = 1.0

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.hinge_embedding_loss(input, target, self.margin, reduction=self.reduction)


class TripletMarginLoss(_Loss):
    """max(0, |anchor - positive| - |anchor - negative| + margin) with the p-norm (Schroff et al. 2015)."""

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        *,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if margin <= 0:
            raise ValueError(f"TripletMarginLoss: margin must be above 0, got {margin}")
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: T, positive: T, negative: T) -> T:
        """Each [N, D] or [D]."""
        return ops.triplet_margin_loss(
            anchor, positive, negative, self.margin, self.p, self.eps, self.swap, reduction=self.reduction
        )


class TripletMarginWithDistanceLoss(_Loss):
    """TripletMarginLoss with any function of two tensors, by default pairwise_distance."""

    def __init__(
        self,
        *,
        distance_function: Callable[[Any, Any], Any] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        if margin <= 0:
            raise ValueError(f"TripletMarginWithDistanceLoss: margin must be above 0, got {margin}")
        self.distance_function, self.margin, self.swap = distance_function, margin, swap

    def forward(self, anchor: T, positive: T, negative: T) -> T:
        """anchor, positive and negative, of shapes that the distance accepts."""
        return ops.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )


class MultiMarginLoss(_Loss):
    """The mean over other classes of max(0, margin - input[label] + input)^p (Crammer & Singer 2001); p is 1 or 2."""

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: Any = None, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        if p not in (1, 2):
            raise ValueError(f"MultiMarginLoss: p must be 1 or 2, got {p}")
        self.p, self.margin = p, margin
        self._weigh(weight=weight)

    def forward(self, input: T, target: T) -> T:
        """input [N, C] or [C], integer labels [N] or []."""
        return ops.multi_margin_loss(
            input, target, self.p, self.margin, self.weight, reduction=self.reduction
        )


class MultiLabelMarginLoss(_Loss):
    """The sum over labels y and other classes of max(0, 1 - input[y] + input), divided by the number of classes."""

    def forward(self, input: T, target: T) -> T:
        """input [N, C] or [C]; target of the same shape: the labels, then -1."""
        return ops.multilabel_margin_loss(input, target, reduction=self.reduction)


class MultiLabelSoftMarginLoss(_Loss):
    """Binary cross-entropy of logits averaged over the classes, the last axis. weight: a factor per class."""

    def __init__(self, weight: Any = None, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self._weigh(weight=weight)

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.multilabel_soft_margin_loss(input, target, self.weight, reduction=self.reduction)


class SoftMarginLoss(_Loss):
    """log(1 + exp(-target · input)) for targets 1 and -1."""

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.soft_margin_loss(input, target, reduction=self.reduction)
