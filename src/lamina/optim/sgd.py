"""Stochastic gradient descent."""

from __future__ import annotations

from lamina.ops.primitives.update import DampenedSgdUpdate, SgdUpdate
from lamina.optim.optimizer import UpdateOptimizer, check_at_least_zero
from lamina.optim.schedule import Schedule


class SGD(UpdateOptimizer):
    """w ← w - lr · v with v ← momentum · v + (1 - dampening) · (gradient + weight_decay · w).

    Same arithmetic as torch.optim.SGD (v is the gradient after the first step, whatever the dampening); nesterov
    looks ahead along v (Sutskever et al. 2013). lr: a rate or a schedule. maximize: ascends. Raises ValueError for
    negative arguments, or nesterov without momentum or with dampening.
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        check_at_least_zero(self, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum == 0 or dampening != 0):
            raise ValueError("SGD: nesterov needs momentum > 0 and dampening = 0")
        self.momentum, self.dampening = momentum, dampening
        self.weight_decay, self.nesterov, self.maximize = weight_decay, nesterov, maximize
        decay, up = float(weight_decay), bool(maximize)
        if momentum and dampening:
            self.op = DampenedSgdUpdate(float(momentum), float(dampening), decay, up)
        else:
            self.op = SgdUpdate(float(momentum), float(dampening), decay, bool(nesterov), up)

    def __repr__(self) -> str:
        return f"SGD(lr={self.lr}, momentum={self.momentum}, weight_decay={self.weight_decay})"
