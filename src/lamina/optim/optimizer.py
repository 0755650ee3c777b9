"""What an optimizer is: state per parameter, and an update written with ops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from numbers import Real
from typing import Any, ClassVar, Self

from lamina.optim.schedule import Schedule
from lamina.tensors import Tensor


class Optimizer(ABC):
    """Declares the state that it keeps per parameter, and how a step changes both.

    It holds no state itself: whoever runs it (a compiled step, a loop on tensors) keeps the state. `update`
    takes tensors or traced values alike.
    """

    #: Names of the state tensors of each parameter.
    parts: ClassVar[tuple[str, ...]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Other libraries' optimizers take the parameters first: say where they go here."""
        if "params" in kwargs or isinstance(next(iter(args), None), Iterator | list | tuple | dict):
            raise TypeError(
                f"{cls.__name__}: an optimizer takes no parameters here, they belong to the step: "
                f"train_step(net, loss_fn, {cls.__name__}(lr=...))"
            )
        return super().__new__(cls)

    def __init__(self, lr: float | Schedule) -> None:
        if not callable(lr) and not isinstance(lr, Real):
            raise TypeError(f"{type(self).__name__}: lr must be a number or a schedule, got {lr!r}")
        if not callable(lr) and not lr >= 0:
            raise ValueError(f"{type(self).__name__}: lr must be at least 0, got {lr}")
        self.lr = lr

    def rate(self, step: int) -> float:
        """The learning rate of step number `step` (0, 1, 2, …)."""
        return float(self.lr(step) if callable(self.lr) else self.lr)

    @abstractmethod
    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """The state before the first step, on the parameter's device; one tensor per name in `parts`."""

    @abstractmethod
    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """The parameter and its state after one step. rate: float32 scalar."""
