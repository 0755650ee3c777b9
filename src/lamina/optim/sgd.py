"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.optim.optimizer import Optimizer
from lamina.optim.schedule import Schedule
from lamina.tensors import Tensor, zeros


class SGD(Optimizer):
    """w ← w - lr · v with v ← momentum · v + (1 - dampening) · (gradient + weight_decay · w).

    The arithmetic of torch.optim.SGD; nesterov looks ahead along v (Sutskever et al. 2013). lr: a rate or a
    schedule. Raises ValueError for negative arguments, or nesterov without momentum or with dampening.
    """

    parts = ("momentum",)

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

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """The velocity v: zeros like the parameter."""
        return (zeros(param.shape, param.dtype, param.device),)

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """One step: the new parameter and the new velocity."""
        new, velocity = ops.sgd_update(
            param,
            grad,
            state[0],
            rate,
            momentum=self.momentum,
            dampening=self.dampening,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )
        return new, (velocity,)

    def __repr__(self) -> str:
        return f"SGD(lr={self.lr}, momentum={self.momentum}, weight_decay={self.weight_decay})"
