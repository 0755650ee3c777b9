"""Optimizers for large batches, with layer-wise adaptive rates: LAMB and LARS."""

from __future__ import annotations

from lamina.ops.primitives.update_rules import LambUpdate, LarsUpdate
from lamina.optim.optimizer import UpdateOptimizer, check_at_least_zero, check_betas
from lamina.optim.schedule import Schedule


class LAMB(UpdateOptimizer):
    """Adam's direction u, scaled to the parameter's norm: w ← w - lr · |w| / |u| · u (You et al. 2020, algorithm 2).

    lr: a rate or a schedule. weight_decay: decoupled, a part of u. Norms are per tensor; the factor is 1 where one is
    0. maximize: ascends. Raises ValueError for a negative argument or a beta outside [0, 1).
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        beta1, beta2 = check_betas(self, betas)
        check_at_least_zero(self, eps=eps, weight_decay=weight_decay)
        self.betas, self.eps, self.weight_decay, self.maximize = betas, eps, weight_decay, maximize
        self.op = LambUpdate(beta1, beta2, float(eps), float(weight_decay), bool(maximize))

    def __repr__(self) -> str:
        return f"LAMB(lr={self.lr}, betas={self.betas}, weight_decay={self.weight_decay})"


class LARS(UpdateOptimizer):
    """Momentum with a rate per layer, trust_coefficient · |w| / (|g| + weight_decay · |w| + eps) of lr.

    As You, Gitman & Ginsburg (2017), algorithm 1. lr: a rate or a schedule. Norms are per tensor; where |w| or the
    divisor is 0 the factor is 1. maximize: ascends. Raises ValueError for a negative argument.
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        eps: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        check_at_least_zero(
            self, momentum=momentum, weight_decay=weight_decay, trust_coefficient=trust_coefficient, eps=eps
        )
        self.momentum, self.weight_decay, self.eps = momentum, weight_decay, eps
        self.trust_coefficient, self.maximize = trust_coefficient, maximize
        self.op = LarsUpdate(
            float(momentum), float(weight_decay), float(trust_coefficient), float(eps), bool(maximize)
        )

    def __repr__(self) -> str:
        return f"LARS(lr={self.lr}, momentum={self.momentum}, weight_decay={self.weight_decay})"
