"""Stochastic gradient descent."""

from __future__ import annotations

from lamina.ops.primitives.update import SgdUpdate
from lamina.optim.optimizer import UpdateOptimizer
from lamina.optim.schedule import Schedule


class SGD(UpdateOptimizer):
    """w ← w - lr · v with v ← momentum · v + (1 - dampening) · (gradient + weight_decay · w).

    The arithmetic of torch.optim.SGD; nesterov looks ahead along v (Sutskever et al. 2013). lr: a rate or a
    schedule. Raises ValueError for negative arguments, or nesterov without momentum or with dampening.
    """

    kind = SgdUpdate

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(lr)
        if min(momentum, weight_decay) < 0:
            raise ValueError(f"SGD: momentum={momentum} and weight_decay={weight_decay} must be at least 0")
        if nesterov and (momentum == 0 or dampening != 0):
            raise ValueError("SGD: nesterov needs momentum > 0 and dampening = 0")
        self.momentum, self.dampening = momentum, dampening
        self.weight_decay, self.nesterov = weight_decay, nesterov
        self.op = SgdUpdate(float(momentum), float(dampening), float(weight_decay), nesterov)

    def __repr__(self) -> str:
        return f"SGD(lr={self.lr}, momentum={self.momentum}, weight_decay={self.weight_decay})"
