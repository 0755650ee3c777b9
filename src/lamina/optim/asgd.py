"""Averaged stochastic gradient descent."""

from __future__ import annotations

from lamina.ops.primitives.update_rules import AsgdUpdate
from lamina.optim.optimizer import UpdateOptimizer, check_at_least_zero
from lamina.optim.schedule import Schedule


class ASGD(UpdateOptimizer):
    """Gradient descent that averages the parameters (Polyak & Juditsky 1992), as torch.optim.ASGD.

    The average is the state "ax".

    lr: a rate or a schedule. lambd, alpha: the rate decays as lr / (1 + lambd · lr · step)^alpha. t0: the step at
    which averaging starts. maximize: ascends. Raises ValueError for a negative lr or weight_decay.
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        check_at_least_zero(self, weight_decay=weight_decay)
        self.lambd, self.alpha, self.t0, self.weight_decay = lambd, alpha, t0, weight_decay
        self.maximize = maximize
        self.op = AsgdUpdate(float(lambd), float(alpha), float(t0), float(weight_decay), bool(maximize))

    def first(self, part: str) -> float:
        """The average is initialized to 0, its rate to lr, the share of the newest parameters to 1."""
        return {"eta": self.rate(0), "mu": 1.0}.get(part, 0.0)

    def __repr__(self) -> str:
        return f"ASGD(lr={self.lr}, lambd={self.lambd}, alpha={self.alpha}, t0={self.t0})"
