"""Optimizers with a rate per element from past gradients: Adagrad and Adadelta, written with elementwise ops."""

from __future__ import annotations

from typing import Any

from lamina import ops
from lamina.optim.optimizer import Optimizer
from lamina.optim.schedule import Schedule
from lamina.tensors import Tensor, full, zeros


class Adagrad(Optimizer):
    """w ← w - lr · g / (√s + eps) with s ← s + g² (Duchi, Hazan & Singer 2011), as torch.optim.Adagrad.

    lr: a rate or a schedule. Raises ValueError for a negative argument.
    """

    parts = ("sum",)

    def __init__(
        self,
        lr: float | Schedule = 1e-2,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(lr)
        if min(weight_decay, initial_accumulator_value, eps) < 0:
            raise ValueError("Adagrad: weight_decay, initial_accumulator_value and eps must be at least 0")
        self.weight_decay, self.eps = weight_decay, eps
        self.initial_accumulator_value = initial_accumulator_value

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """The sum of squared gradients."""
        return (full(param.shape, self.initial_accumulator_value, param.dtype, param.device),)

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """One step: the new parameter and the new sum."""
        g = decayed(param, grad, self.weight_decay)
        total = state[0] + g * g
        return param - ops.cast(rate, param.dtype) * g / (ops.sqrt(total) + self.eps), (total,)

    def __repr__(self) -> str:
        return f"Adagrad(lr={self.lr}, weight_decay={self.weight_decay})"


class Adadelta(Optimizer):
    """w ← w - lr · d with d = g · √(u + eps) / √(v + eps): v and u are running means of g² and d² (Zeiler 2012).

    The arithmetic of torch.optim.Adadelta. lr: a rate or a schedule. Raises ValueError for an argument out of
    range.
    """

    parts = ("square_avg", "acc_delta")

    def __init__(
        self, lr: float | Schedule = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0
    ) -> None:
        super().__init__(lr)
        if not 0 <= rho <= 1:
            raise ValueError(f"Adadelta: rho must be in [0, 1], got {rho}")
        if min(eps, weight_decay) < 0:
            raise ValueError(f"Adadelta: eps={eps} and weight_decay={weight_decay} must be at least 0")
        self.rho, self.eps, self.weight_decay = rho, eps, weight_decay

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """The running means: zeros like the parameter."""
        return tuple(zeros(param.shape, dtype=param.dtype, device=param.device) for _ in self.parts)

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """One step: the new parameter and the new running means."""
        g = decayed(param, grad, self.weight_decay)
        squares = self.rho * state[0] + (1 - self.rho) * (g * g)
        delta = g * ops.sqrt(state[1] + self.eps) / ops.sqrt(squares + self.eps)
        deltas = self.rho * state[1] + (1 - self.rho) * (delta * delta)
        return param - ops.cast(rate, param.dtype) * delta, (squares, deltas)

    def __repr__(self) -> str:
        return f"Adadelta(lr={self.lr}, rho={self.rho}, weight_decay={self.weight_decay})"


class Regularized(Optimizer):
    """Another optimizer whose gradients get the derivative of l1 · Σ|w| + l2/2 · Σw² added first."""

    def __init__(self, optimizer: Optimizer, l1: float = 0.0, l2: float = 0.0) -> None:
        super().__init__(optimizer.lr)
        if min(l1, l2) < 0:
            raise ValueError(f"Regularized: l1={l1} and l2={l2} must be at least 0")
        self.optimizer, self.l1, self.l2 = optimizer, l1, l2

    @property
    def parts(self) -> tuple[str, ...]:  # type: ignore[override]
        """The other optimizer's."""
        return self.optimizer.parts

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """The other optimizer's state."""
        return self.optimizer.init(param)

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """One step of the other optimizer."""
        g = decayed(param, grad, self.l2)
        return self.optimizer.update(param, g + self.l1 * ops.sign(param) if self.l1 else g, state, rate)

    def __repr__(self) -> str:
        return f"Regularized({self.optimizer}, l1={self.l1}, l2={self.l2})"


def decayed(param: Any, grad: Any, weight_decay: float) -> Any:
    """The gradient in the parameter's dtype, with weight_decay · w added."""
    g = ops.cast(grad, param.dtype) if grad.dtype != param.dtype else grad
    return g + weight_decay * param if weight_decay else g
