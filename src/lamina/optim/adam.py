"""Adam and its variants: AdamW, NAdam, RAdam and Adamax."""

from __future__ import annotations

from lamina.ops.primitives.update import AdamUpdate, AmsgradUpdate
from lamina.ops.primitives.update_rules import AdamaxUpdate, NadamUpdate, RadamUpdate
from lamina.optim.optimizer import UpdateOptimizer, check_at_least_zero, check_betas
from lamina.optim.schedule import Schedule


class Adam(UpdateOptimizer):
    """Adam (Kingma & Ba 2015), as torch.optim.Adam.

    lr: a rate or a schedule. weight_decay: added to the gradient; with decoupled_weight_decay the parameters are
    shrunk instead. amsgrad: divides by the largest second moment so far (Reddi et al. 2018), which is also kept.
    maximize: ascends. Raises ValueError for a negative argument or a beta outside [0, 1).
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        super().__init__(lr)
        beta1, beta2 = check_betas(self, betas)
        check_at_least_zero(self, eps=eps, weight_decay=weight_decay)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.amsgrad, self.maximize, self.decoupled_weight_decay = amsgrad, maximize, decoupled_weight_decay
        kind = AmsgradUpdate if amsgrad else AdamUpdate
        self.op = kind(
            beta1, beta2, float(eps), float(weight_decay), bool(decoupled_weight_decay), bool(maximize)
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(lr={self.lr}, betas={self.betas}, weight_decay={self.weight_decay})"


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019); torch.optim.AdamW."""

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            lr, betas, eps, weight_decay, amsgrad, maximize=maximize, decoupled_weight_decay=True
        )


class NAdam(UpdateOptimizer):
    """Adam with Nesterov momentum (Dozat 2016), as torch.optim.NAdam.

    lr: a rate or a schedule. momentum_decay: how fast the momentum approaches betas[0]. weight_decay: added to the
    gradient; with decoupled_weight_decay the parameters are shrunk instead. maximize: ascends. Raises ValueError for
    a negative argument or a beta outside [0, 1).
    """

    op: NadamUpdate

    def __init__(
        self,
        lr: float | Schedule = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        beta1, beta2 = check_betas(self, betas)
        check_at_least_zero(self, eps=eps, weight_decay=weight_decay, momentum_decay=momentum_decay)
        self.betas, self.eps, self.weight_decay, self.momentum_decay = (
            betas,
            eps,
            weight_decay,
            momentum_decay,
        )
        self.decoupled_weight_decay, self.maximize = decoupled_weight_decay, maximize
        self.op = NadamUpdate(
            beta1, beta2, float(eps), float(weight_decay), float(momentum_decay),
            bool(decoupled_weight_decay), bool(maximize),
        )  # fmt: skip

    def first(self, part: str) -> float:
        """The product of momenta is initialized to 1."""
        return float(part == "mu_product")

    def __repr__(self) -> str:
        return f"NAdam(lr={self.lr}, betas={self.betas}, weight_decay={self.weight_decay})"


class RAdam(UpdateOptimizer):
    """Adam whose adaptive rate waits until its variance is tractable (Liu et al. 2020), as torch.optim.RAdam.

    lr: a rate or a schedule. weight_decay: added to the gradient; with decoupled_weight_decay the parameters are
    shrunk instead. maximize: ascends. Raises ValueError for a negative argument or a beta outside [0, 1).
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled_weight_decay: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        beta1, beta2 = check_betas(self, betas)
        check_at_least_zero(self, eps=eps, weight_decay=weight_decay)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.decoupled_weight_decay, self.maximize = decoupled_weight_decay, maximize
        self.op = RadamUpdate(
            beta1, beta2, float(eps), float(weight_decay), bool(decoupled_weight_decay), bool(maximize)
        )

    def __repr__(self) -> str:
        return f"RAdam(lr={self.lr}, betas={self.betas}, weight_decay={self.weight_decay})"


class Adamax(UpdateOptimizer):
    """Adam with the infinity norm of gradients (Kingma & Ba 2015, section 7.1), as torch.optim.Adamax.

    lr: a rate or a schedule. maximize: ascends. Raises ValueError for a negative argument or a beta outside [0, 1).
    """

    def __init__(
        self,
        lr: float | Schedule = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        beta1, beta2 = check_betas(self, betas)
        check_at_least_zero(self, eps=eps, weight_decay=weight_decay)
        self.betas, self.eps, self.weight_decay, self.maximize = betas, eps, weight_decay, maximize
        self.op = AdamaxUpdate(beta1, beta2, float(eps), float(weight_decay), bool(maximize))

    def __repr__(self) -> str:
        return f"Adamax(lr={self.lr}, betas={self.betas}, weight_decay={self.weight_decay})"
