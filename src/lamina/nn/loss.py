"""Loss layers ("criteria"): each calls the function of the same name in ops. Arguments as in torch.nn."""

from __future__ import annotations

import math
from typing import Any

from lamina import ops
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.ops.arguments import DTypeLike
from lamina.ops.primitives.loss import Reduction
from lamina.runtime import Device
from lamina.tensors import Tensor


class _Loss(Module):
    """reduction: "mean", "sum" or "none"."""

    reduction: Reduction
    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        self.reduction = reduction

    def _weigh(self, **weights: Any) -> None:
        """Register weights that move with the module; None if there are none."""
        for name, value in weights.items():
            if value is None:
                setattr(self, name, None)
            else:
                self.register_buffer(name, value)

    def extra_repr(self) -> str:
        """The argument unless it is the default."""
        return "" if self.reduction == "mean" else f"reduction={self.reduction!r}"


class LinearCrossEntropyLoss(_Loss):
    """A linear layer and the cross entropy of its outputs: `linear` holds weight and bias.

    in_features: of the input (N, in_features) or (in_features,). num_classes: C. out_features: the axes after the
    classes, so that logits are (N, C, *out_features). The other arguments are CrossEntropyLoss'.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        reduction: Reduction = "mean",
        weight: Any = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(reduction=reduction)
        self._weigh(weight=weight)
        self.num_classes, self.out_features = num_classes, tuple(out_features)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing
        self.linear = Linear(in_features, num_classes * math.prod(self.out_features), bias)
        self.to(device, dtype)

    def forward(self, input: T, target: T) -> T:
        """The loss for labels (N, *out_features) or probabilities (N, C, *out_features), a scalar if reduced."""
        made: T = self.linear(input)
        logits: T = ops.reshape(made, (*made.shape[:-1], self.num_classes, *self.out_features))
        return ops.cross_entropy(
            logits,
            target,
            self.weight,
            ignore_index=-100 if self.ignore_index is None else self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class CrossEntropyLoss(_Loss):
    """Softmax and log-likelihood in one: logits (N, C, …), integer labels (N, …) or probabilities (N, C, …).

    weight: (C,), a factor per class. ignore_index: the label to ignore. label_smoothing: the share of a label that is
    spread over all classes (Szegedy et al. 2016).
    """

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int | None = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction=reduction)
        self._weigh(weight=weight)
        self.ignore_index, self.label_smoothing = ignore_index, label_smoothing

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(_Loss):
    """-input[n, target[n]] for log-probabilities (N, C, …) and integer labels (N, …); weight (C,), one per class."""

    def __init__(
        self, weight: Any = None, *, ignore_index: int | None = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self._weigh(weight=weight)
        self.ignore_index = ignore_index

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.nll_loss(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction
        )


class MSELoss(_Loss):
    """(input - target)²."""

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """|input - target|."""

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """Quadratic within beta of the target, linear outside (Girshick 2015)."""

    def __init__(self, *, reduction: Reduction = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.beta = beta

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(_Loss):
    """d² / 2 within delta of the target, delta · (d - delta / 2) outside (Huber 1964)."""

    def __init__(self, *, reduction: Reduction = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        self.delta = delta

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy of sigmoid(input) and target in [0, 1], without overflow.

    weight: a factor per element; pos_weight: of the positive part; both broadcast to the input.
    """

    def __init__(self, weight: Any = None, *, reduction: Reduction = "mean", pos_weight: Any = None) -> None:
        super().__init__(reduction=reduction)
        self._weigh(weight=weight, pos_weight=pos_weight)

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class CTCLoss(_Loss):
    """Connectionist temporal classification (Graves et al. 2006) of log-probabilities (T, N, C) or (T, C).

    blank: the blank class. reduction: "mean" divides each loss by its number of labels first. zero_infinity:
    sequences too short for their labels count 0.
    """

    def __init__(self, blank: int = 0, reduction: Reduction = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: T, targets: Any, input_lengths: Any, target_lengths: Any) -> T:
        """The loss of targets (N, S), or (sum of target_lengths); lengths are (N,). Raises as `ops.ctc_loss`."""
        loss: T = ops.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )
        return loss
