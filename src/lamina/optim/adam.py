"""Adam and AdamW."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.optim.optimizer import Optimizer
from lamina.optim.schedule import Schedule
from lamina.tensors import Tensor, tensor, zeros


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015), as torch.optim.Adam; weight_decay is added to the gradient.

    lr: a rate or a schedule. Raises ValueError for a negative argument or a beta outside [0, 1).
    """

    parts = ("exp_avg", "exp_avg_sq", "step")
    decoupled = False

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(lr)
        name = type(self).__name__
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"{name}: betas must be in [0, 1), got {betas}")
        if min(eps, weight_decay) < 0:
            raise ValueError(f"{name}: eps={eps} and weight_decay={weight_decay} must be at least 0")
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """First and second moment: zeros like the parameter; and the number of steps, int64."""
        moments = (zeros(param.shape, param.dtype, param.device) for _ in range(2))
        return (*moments, tensor(np.zeros((), np.int64), device=param.device))

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """One step: the new parameter, the new moments, the number of steps."""
        first, second, step = state
        new, *after = ops.adam_update(
            param,
            grad,
            first,
            second,
            step,
            rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            eps=self.eps,
            weight_decay=self.weight_decay,
            decoupled=self.decoupled,
        )
        return new, tuple(after)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lr={self.lr}, betas={self.betas}, weight_decay={self.weight_decay})"


class AdamW(Adam):
    """Adam whose weight decay acts on the parameters alone (Loshchilov & Hutter 2019); torch.optim.AdamW."""

    decoupled = True

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(lr, betas, eps, weight_decay)
