"""Loss layers ("criteria"): each calls the function of the same name in ops."""

from __future__ import annotations

from lamina import ops
from lamina.nn.module import Module, T
from lamina.ops.primitives.loss import Reduction


class _Loss(Module):
    """reduction: "mean", "sum" or "none"."""

    reduction: Reduction

    def __init__(self, reduction: Reduction = "mean") -> None:
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f"{type(self).__name__}: reduction must be mean, sum or none, got {reduction!r}")
        self.reduction = reduction

    def extra_repr(self) -> str:
        """The argument where it is not the default."""
        return "" if self.reduction == "mean" else f"reduction={self.reduction!r}"


class CrossEntropyLoss(_Loss):
    """Softmax and log-likelihood in one: logits (N, C, …), labels (N, …) integers or shares (N, C, …)."""

    def __init__(
        self, reduction: Reduction = "mean", label_smoothing: float = 0.0, ignore_index: int | None = None
    ) -> None:
        super().__init__(reduction)
        self.label_smoothing, self.ignore_index = label_smoothing, ignore_index

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.cross_entropy(
            input,
            target,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(_Loss):
    """-input[n, target[n]] for log-probabilities (N, C, …) and integer labels (N, …)."""

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.nll_loss(input, target, ignore_index=None, reduction=self.reduction)


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

    def __init__(self, reduction: Reduction = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy of sigmoid(input) and target in [0, 1], without overflow."""

    def forward(self, input: T, target: T) -> T:
        """The loss: a scalar unless reduction is "none"."""
        return ops.binary_cross_entropy_with_logits(input, target, reduction=self.reduction)
