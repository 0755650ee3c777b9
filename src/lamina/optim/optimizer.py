"""What an optimizer is: state per parameter, and an update written with ops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np

from lamina.ops.core import bind
from lamina.ops.primitives.update import Update
from lamina.optim.schedule import Schedule
from lamina.tensors import Tensor, tensor, zeros


class Optimizer(ABC):
    """Declares the state that it keeps per parameter, and how a step changes both.

    It holds no state itself: whoever runs it (a compiled step, a loop on tensors) keeps the state. `update`
    takes tensors or traced values alike.

    `lr` may be set at any time, and takes effect at the next step. All other attributes are numbers of the compiled
    kernels: setting one again raises AttributeError. For other numbers make a new optimizer; a step for it takes the
    state over by `save_checkpoint` and `load_checkpoint`.
    """

    lr: float | Schedule

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
        self.lr = lr

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the rate, or an attribute for the first time. Raises AttributeError for one that is set already."""
        kind = type(self).__name__
        if name == "lr":
            if not callable(value) and not isinstance(value, Real):
                raise TypeError(f"{kind}: lr must be a number or a schedule, got {value!r}")
            if not callable(value) and not value >= 0:
                raise ValueError(f"{kind}: lr must be at least 0, got {value}")
        elif name in vars(self):
            raise AttributeError(
                f"{kind}.{name} is {vars(self)[name]!r} for good, since compiled steps hold it (only lr may be set "
                f"later): make a new {kind} and a step for it, and take the state over with save_checkpoint and "
                "load_checkpoint"
            )
        object.__setattr__(self, name, value)

    def rate(self, step: int) -> float:
        """The learning rate of step number `step` (0, 1, 2, …)."""
        return float(self.lr(step) if callable(self.lr) else self.lr)

    @abstractmethod
    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """The state before the first step, on the parameter's device; one tensor per name in `parts`."""

    @abstractmethod
    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """The parameter and its state after one step. rate: float32 scalar."""


class UpdateOptimizer(Optimizer):
    """An optimizer whose step is one op, which says what state is kept; backends run it over many tensors at once.

    op: the update that `__init__` makes of the optimizer's numbers.
    """

    kind: ClassVar[type[Update]]
    op: Update

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.parts = (*cls.kind.moments, "step") if cls.kind.counted else tuple(cls.kind.moments)

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """Moments: zeros like the parameter; then, where the steps are counted, their number, int64."""
        moments = [zeros(param.shape, dtype=param.dtype, device=param.device) for _ in self.kind.moments]
        counts = [tensor(np.zeros((), np.int64), device=param.device)] if self.kind.counted else []
        return (*moments, *counts)

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """One step: the new parameter and its new state."""
        new, *after = bind(self.op, param, grad, *state, rate)
        return new, tuple(after)
