"""Sign-based optimizers: Rprop and Lion."""

from __future__ import annotations

from lamina.ops.primitives.update_rules import LionUpdate, RpropUpdate
from lamina.optim.optimizer import UpdateOptimizer, check_at_least_zero, check_betas
from lamina.optim.schedule import Schedule


class Rprop(UpdateOptimizer):
    """Step sizes that grow while the gradient's sign persists and shrink when it flips, as torch.optim.Rprop.

    For full batches (Riedmiller & Braun 1993). lr: the initial step size; for a schedule, its first rate. etas: the
    factors after a sign change and without one. step_sizes: the smallest and the largest step. maximize: ascends.
    Raises ValueError unless 0 < etas[0] < 1 < etas[1] and 0 <= step_sizes[0] <= step_sizes[1].
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        if len(etas) != 2 or not 0 < etas[0] < 1 < etas[1]:
            raise ValueError(f"Rprop: etas must be (below 1, above 1) and positive, got {etas}")
        if len(step_sizes) != 2 or not 0 <= step_sizes[0] <= step_sizes[1]:
            raise ValueError(f"Rprop: step_sizes must be (smallest, largest), got {step_sizes}")
        self.etas, self.step_sizes, self.maximize = etas, step_sizes, maximize
        (minus, plus), (smallest, largest) = map(float, etas), map(float, step_sizes)
        self.op = RpropUpdate(minus, plus, smallest, largest, bool(maximize))

    def first(self, part: str) -> float:
        """The step sizes are initialized to the rate."""
        return self.rate(0) if part == "step_size" else 0.0

    def __repr__(self) -> str:
        return f"Rprop(lr={self.lr}, etas={self.etas}, step_sizes={self.step_sizes})"


class Lion(UpdateOptimizer):
    """The sign of an interpolated momentum (Chen et al. 2023), with decoupled weight decay.

    lr: a rate or a schedule; typically a third to a tenth of AdamW's, with a correspondingly larger weight_decay.
    betas: of the interpolation and of the momentum. maximize: ascends. Raises ValueError for a negative argument or a
    beta outside [0, 1).
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        beta1, beta2 = check_betas(self, betas)
        check_at_least_zero(self, weight_decay=weight_decay)
        self.betas, self.weight_decay, self.maximize = betas, weight_decay, maximize
        self.op = LionUpdate(beta1, beta2, float(weight_decay), bool(maximize))

    def __repr__(self) -> str:
        return f"Lion(lr={self.lr}, betas={self.betas}, weight_decay={self.weight_decay})"
