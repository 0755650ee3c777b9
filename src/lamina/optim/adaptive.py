"""Adaptive rates per element: Adagrad and Adadelta; and a wrapper that adds regularization to any optimizer."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from lamina import ops
from lamina.ops.primitives.update_rules import AdadeltaUpdate, AdagradUpdate
from lamina.optim.optimizer import Optimizer, UpdateOptimizer, check_at_least_zero
from lamina.optim.schedule import Schedule
from lamina.tensors import Tensor


class Adagrad(UpdateOptimizer):
    """w ← w - lr · g / (√s + eps) with s ← s + g² (Duchi, Hazan & Singer 2011), as torch.optim.Adagrad.

    lr: a rate or a schedule. lr_decay: the rate is lr / (1 + steps · lr_decay). maximize: ascends. Raises ValueError
    for a negative argument.
    """

    def __init__(
        self,
        lr: float | Schedule = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        check_at_least_zero(self, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)
        check_at_least_zero(self, initial_accumulator_value=initial_accumulator_value)
        self.lr_decay, self.weight_decay, self.eps, self.maximize = lr_decay, weight_decay, eps, maximize
        self.initial_accumulator_value = initial_accumulator_value
        self.op = AdagradUpdate(float(lr_decay), float(weight_decay), float(eps), bool(maximize))

    def first(self, part: str) -> float:
        """The sum of squares is initialized to the given value."""
        return self.initial_accumulator_value

    def __repr__(self) -> str:
        return f"Adagrad(lr={self.lr}, weight_decay={self.weight_decay})"


class Adadelta(UpdateOptimizer):
    """w ← w - lr · d with d = g · √(u + eps) / √(v + eps); v and u are running means of g² and d² (Zeiler 2012).

    Same arithmetic as torch.optim.Adadelta. lr: a rate or a schedule. maximize: ascends. Raises ValueError for an
    argument out of range.
    """

    def __init__(
        self,
        lr: float | Schedule = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        if not 0 <= rho <= 1:
            raise ValueError(f"Adadelta: rho must be in [0, 1], got {rho}")
        check_at_least_zero(self, eps=eps, weight_decay=weight_decay)
        self.rho, self.eps, self.weight_decay, self.maximize = rho, eps, weight_decay, maximize
        self.op = AdadeltaUpdate(float(rho), float(eps), float(weight_decay), bool(maximize))

    def __repr__(self) -> str:
        return f"Adadelta(lr={self.lr}, rho={self.rho}, weight_decay={self.weight_decay})"


class Regularized(Optimizer):
    """Wraps another optimizer and adds the derivative of l1 · Σ|w| + l2/2 · Σw² to its gradients."""

    def __init__(self, optimizer: Optimizer, l1: float = 0.0, l2: float = 0.0) -> None:
        super().__init__(optimizer.lr)
        if min(l1, l2) < 0:
            raise ValueError(f"Regularized: l1={l1} and l2={l2} must be at least 0")
        self.optimizer, self.l1, self.l2 = optimizer, l1, l2

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of the wrapped optimizer."""
        return self.optimizer.parts

    @property
    def elementwise(self) -> tuple[bool, ...] | None:
        """As in the wrapped optimizer."""
        return self.optimizer.elementwise

    @property
    def compiled(self) -> Hashable:
        """Its own numbers, and the wrapped optimizer's compilation key."""
        return super().compiled, self.optimizer.compiled

    @property
    def moving(self) -> tuple[float, ...]:
        """Those of the wrapped optimizer."""
        return self.optimizer.moving

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """The wrapped optimizer's state."""
        return self.optimizer.init(param)

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """One step of the wrapped optimizer."""
        g = decayed(param, grad, self.l2)
        return self.optimizer.update(param, g + self.l1 * ops.sign(param) if self.l1 else g, state, rate)

    def __repr__(self) -> str:
        return f"Regularized({self.optimizer}, l1={self.l1}, l2={self.l2})"


def decayed(param: Any, grad: Any, weight_decay: float) -> Any:
    """The gradient in the parameter's dtype, plus weight_decay · w."""
    g = ops.cast(grad, param.dtype) if grad.dtype != param.dtype else grad
    return g + weight_decay * param if weight_decay else g
