"""RMSprop."""

from __future__ import annotations

from lamina.ops.primitives.update import RmspropUpdate
from lamina.optim.optimizer import UpdateOptimizer, check_at_least_zero
from lamina.optim.schedule import Schedule


class RMSprop(UpdateOptimizer):
    """w ← w - lr · g / (√v + eps) with v a running mean of g² (Tieleman & Hinton 2012), as torch.optim.RMSprop.

    lr: a rate or a schedule. alpha: the decay of v per step. momentum: that of the steps, 0 for none. centered: v
    minus the square of the running mean of g, an estimate of the gradient's variance (Graves 2013). maximize:
    ascends. Raises ValueError for a negative argument.
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        check_at_least_zero(self, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)
        self.alpha, self.eps, self.weight_decay = alpha, eps, weight_decay
        self.momentum, self.centered, self.maximize = momentum, centered, maximize
        self.op = RmspropUpdate(
            float(alpha), float(eps), float(weight_decay), float(momentum), bool(centered), bool(maximize)
        )

    def __repr__(self) -> str:
        return (
            f"RMSprop(lr={self.lr}, alpha={self.alpha}, momentum={self.momentum}, centered={self.centered})"
        )
