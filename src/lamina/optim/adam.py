"""Adam and AdamW."""

from __future__ import annotations

from lamina.ops.primitives.update import AdamUpdate
from lamina.optim.optimizer import UpdateOptimizer
from lamina.optim.schedule import Schedule


class Adam(UpdateOptimizer):
    """Adam (Kingma & Ba 2015), as torch.optim.Adam; weight_decay is added to the gradient.

    lr: a rate or a schedule. Raises ValueError for a negative argument or a beta outside [0, 1).
    """

    kind = AdamUpdate
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
        beta1, beta2 = map(float, betas)
        self.op = AdamUpdate(beta1, beta2, float(eps), float(weight_decay), self.decoupled)

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
