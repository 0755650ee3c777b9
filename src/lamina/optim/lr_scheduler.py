"""Learning-rate schedulers with torch's names: stateful objects whose `step` sets the rates of an optimizer.

    optimizer = optim.SGD(0.1, momentum=0.9)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=30)
    for epoch in range(100):
        ...                       # step(inputs, targets) for each batch
        scheduler.step()

They are for rates that depend on epochs, or on a metric (`ReduceLROnPlateau`). A rate that depends on the training
step's number needs no stepping: `optim.schedule` has functions that an optimizer or a group accepts as its `lr`. An
optimizer with parameters has a rate per group, and lists give each group its own value, as in torch. The rate is an
input of the compiled step, so nothing is recompiled. CyclicLR and OneCycleLR also move the momentum, which is then an
input like the rate.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, Literal

from lamina._lazy import listing
from lamina.ops.arguments import Checked, checked
from lamina.optim.groups import INITIAL_RATES, ParameterGroup
from lamina.optim.optimizer import Optimizer

__all__ = [
    "SWALR",
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
__dir__ = listing(__all__)

Optimizers = Optimizer | Sequence[Optimizer]
Factor = Callable[[int], float]
#: An object with a rate: an optimizer's group, or an optimizer without parameters.
RateHolder = Optimizer | ParameterGroup


class _SchedulerBase(Checked):
    """Common base of all schedulers: the groups, their rates, the state."""

    def __init__(self, optimizer: Optimizers) -> None:
        self.optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        self.groups: list[RateHolder] = [
            group for each in self.optimizers for group in (each.param_groups if each.is_bound else [each])
        ]
        for group in self.groups:
            if not isinstance(group.lr, Real):
                raise TypeError(
                    f"{self._name}: lr of {group} is a schedule already; give it a number to start from"
                )
        self.last_epoch = -1

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def rates(self) -> list[float]:
        """The groups' rates now."""
        return [float(group.lr(0) if callable(group.lr) else group.lr) for group in self.groups]

    def get_last_lr(self) -> list[float]:
        """The rates set last, one per group."""
        return self.rates

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self.groups, rates, strict=True):
            group.lr = float(rate)

    def _per_group(self, name: str, value: Any) -> list[Any]:
        """One value per group, from a single one or a list. Raises ValueError for a list of another length."""
        values = list(value) if isinstance(value, list | tuple) else [value] * len(self.groups)
        if len(values) != len(self.groups):
            raise ValueError(
                f"{self._name}: {name} must be one value or {len(self.groups)}, one each, got {len(values)}"
            )
        return values

    def state_dict(self) -> dict[str, Any]:
        """The step-dependent attributes, and the rates, as plain values."""
        plain = {k: v for k, v in vars(self).items() if isinstance(v, bool | int | float | str)}
        return {**plain, "rates": self.rates}

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`; sets the groups' rates. Raises KeyError for a state of another class."""
        different = sorted(self.state_dict().keys() ^ state.keys())
        if different:
            raise KeyError(f"{self._name}.load_state_dict: {', '.join(different)} in one state only")
        self._set(state["rates"])
        vars(self).update({k: v for k, v in state.items() if k not in ("rates", "momenta", "schedulers")})


class LRScheduler(_SchedulerBase):
    """Base of the schedulers that depend on the number of their steps.

    A subclass defines `get_lr`, the rates at step `last_epoch` (0 at construction), one per group, from `base_lrs`,
    those before any scheduler, or from `rates`, those before this step, so that several can be combined.

    last_epoch: the step after which to resume, as in torch, with the optimizer's rates at that point; -1 starts anew.
    Raises ValueError when resuming with unknown rates before any scheduler (from an earlier one of the same
    optimizer, or `group["initial_lr"] = rate`).
    """

    #: Whether a step's rates are computed from the previous ones, so that a scheduler that resumes leaves them.
    by_rates_before: ClassVar[bool] = True

    def __init__(self, optimizer: Optimizers, last_epoch: int = -1) -> None:
        super().__init__(optimizer)
        if last_epoch < -1:
            raise ValueError(f"{self._name}: last_epoch must be at least -1, got {last_epoch}")
        if last_epoch == -1:
            pairs = zip(self.groups, self.rates, strict=True)
            self.base_lrs = [INITIAL_RATES.setdefault(group, rate) for group, rate in pairs]
            self.step()
            return
        unknown = next((group for group in self.groups if group not in INITIAL_RATES), None)
        if unknown is not None:
            raise ValueError(
                f"{self._name}: last_epoch={last_epoch} goes on where a scheduler ended, and nothing tells the rates "
                f"before it of {unknown}: make the scheduler from these without last_epoch and take load_state_dict, "
                'or set group["initial_lr"] of optimizer.param_groups'
            )
        self.base_lrs = [INITIAL_RATES[group] for group in self.groups]
        self.last_epoch = last_epoch + 1
        if not self.by_rates_before:
            self._move()

    def get_lr(self) -> list[float]:
        """The rates at step `last_epoch`."""
        raise NotImplementedError(f"{self._name} defines no get_lr")

    def step(self) -> None:
        """Advance to the next step and set its rates."""
        self.last_epoch += 1
        self._move()

    def begin(self) -> None:
        """Start at step 0 from the rates before any scheduler."""
        self._set(self.base_lrs)
        self.last_epoch = 0
        self._move()

    def _move(self) -> None:
        """Set the values of step `last_epoch`."""
        self._set(self.get_lr())


class _Scaled(LRScheduler):
    """A scheduler that multiplies each rate by the same factor at each step."""

    def get_lr(self) -> list[float]:
        """The previous rates, times this step's factor."""
        factor = self.factor(self.last_epoch)
        return [rate * factor for rate in self.rates]

    def factor(self, epoch: int) -> float:
        """The ratio of a step's rate to the previous one; at step 0 to the base rate."""
        raise NotImplementedError


class StepLR(_Scaled):
    """Multiplies by gamma every step_size steps."""

    def __init__(
        self, optimizer: Optimizers, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = _positive("StepLR", "step_size", step_size), gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch: int) -> float:
        """gamma at each multiple of step_size."""
        return self.gamma if epoch and epoch % self.step_size == 0 else 1.0


class MultiStepLR(_Scaled):
    """Multiplies by gamma at each of the milestones; duplicates count twice."""

    def __init__(
        self, optimizer: Optimizers, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch: int) -> float:
        """gamma at milestones."""
        return float(self.gamma ** self.milestones[epoch])


class ExponentialLR(_Scaled):
    """Multiplies by gamma at each step."""

    def __init__(self, optimizer: Optimizers, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch: int) -> float:
        """gamma, except at step 0."""
        return self.gamma if epoch else 1.0


class MultiplicativeLR(LRScheduler):
    """Multiplies by lr_lambda(step) at each step except the first; a list has one function per group."""

    def __init__(self, optimizer: Optimizers, lr_lambda: Factor | list[Factor], last_epoch: int = -1) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The previous rates, times the functions' values."""
        return self._multiplied() if self.last_epoch else self.rates

    def begin(self) -> None:
        """Start at step 0 from the current rates."""
        self.last_epoch = 0
        self._set(self._multiplied())

    def _multiplied(self) -> list[float]:
        functions = self._per_group("lr_lambda", self.lr_lambda)
        return [rate * f(self.last_epoch) for rate, f in zip(self.rates, functions, strict=True)]


class LambdaLR(LRScheduler):
    """The base rate times lr_lambda(step); a list has one function per group."""

    by_rates_before = False

    def __init__(self, optimizer: Optimizers, lr_lambda: Factor | list[Factor], last_epoch: int = -1) -> None:
        self.lr_lambda = lr_lambda
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The base rates times the functions' values."""
        functions = self._per_group("lr_lambda", self.lr_lambda)
        return [base * f(self.last_epoch) for base, f in zip(self.base_lrs, functions, strict=True)]


class ConstantLR(_Scaled):
    """The base rate times factor for the first total_iters steps."""

    def __init__(
        self, optimizer: Optimizers, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 < factor <= 1:
            raise ValueError(f"ConstantLR: factor must be in (0, 1], got {factor}")
        self.first, self.total_iters = factor, _positive("ConstantLR", "total_iters", total_iters)
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch: int) -> float:
        """Down at step 0, back up at total_iters."""
        down = self.first if epoch == 0 else 1.0
        return down / self.first if epoch == self.total_iters else down


class LinearLR(_Scaled):
    """A warm-up: the base rate times a factor, linear from start_factor to end_factor over total_iters steps."""

    def __init__(
        self,
        optimizer: Optimizers,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ValueError(
                f"LinearLR: start_factor={start_factor} must be in (0, 1] and end_factor={end_factor} in [0, 1]"
            )
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = _positive("LinearLR", "total_iters", total_iters)
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch: int) -> float:
        """The ratio of the line's value to the previous one."""
        if epoch == 0:
            return self.start_factor
        return self._line(epoch) / self._line(epoch - 1) if epoch <= self.total_iters else 1.0

    def _line(self, epoch: int) -> float:
        return self.start_factor + (self.end_factor - self.start_factor) * epoch / self.total_iters


class PolynomialLR(_Scaled):
    """The base rate times (1 - step / total_iters)^power, 0 from total_iters on."""

    def __init__(
        self, optimizer: Optimizers, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = _positive("PolynomialLR", "total_iters", total_iters), power
        super().__init__(optimizer, last_epoch)

    def factor(self, epoch: int) -> float:
        """The ratio of the polynomial's value to the previous one."""
        if epoch == 0 or epoch > self.total_iters:
            return 1.0
        left = self.total_iters - epoch
        return float((left / (left + 1)) ** self.power)


class CosineAnnealingLR(LRScheduler):
    """From the base rate along a cosine to eta_min at step T_max, and up again (Loshchilov & Hutter 2017)."""

    def __init__(self, optimizer: Optimizers, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.T_max, self.eta_min = _positive("CosineAnnealingLR", "T_max", T_max), eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """The rate above eta_min is scaled by the ratio of the cosine's height to the previous one."""
        epoch, turn = self.last_epoch, math.pi / self.T_max
        if epoch == 0:
            return self.rates
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # from the minimum, whose height is 0
            rise = (1 - math.cos(turn)) / 2
            return [
                rate + (base - self.eta_min) * rise
                for base, rate in zip(self.base_lrs, self.rates, strict=True)
            ]
        ratio = (1 + math.cos(turn * epoch)) / (1 + math.cos(turn * (epoch - 1)))
        return [self.eta_min + (rate - self.eta_min) * ratio for rate in self.rates]


class SWALR(LRScheduler):
    """From the rate to swa_lr over anneal_epochs steps, along half a cosine or a line, then constant: for weight
    averaging (`lamina.train.AveragedModel`), as torch.optim.swa_utils.SWALR.

    swa_lr: one for all groups, or a list. Raises ValueError for a list of another length, and for anneal_epochs < 0.
    """

    def __init__(
        self,
        optimizer: Optimizers,
        swa_lr: float | Sequence[float],
        anneal_epochs: int = 10,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        last_epoch: int = -1,
    ) -> None:
        if anneal_epochs < 0:
            raise ValueError(f"SWALR: anneal_epochs must be at least 0, got {anneal_epochs}")
        self.swa_lr, self.anneal_epochs, self.anneal_strategy = swa_lr, anneal_epochs, anneal_strategy
        super().__init__(optimizer, last_epoch)

    def _share(self, step: int) -> float:
        """The share of swa_lr in the rate."""
        place = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * place)) / 2 if self.anneal_strategy == "cos" else place

    def get_lr(self) -> list[float]:
        """The initial rate, which may have been changed since, and swa_lr, by their shares."""
        step = self.last_epoch if self.anneal_epochs else max(1, self.last_epoch)
        before, now = self._share(step - 1), self._share(step)
        aims = self.swa_lr if isinstance(self.swa_lr, Sequence) else [self.swa_lr] * len(self.rates)
        if len(aims) != len(self.rates):
            raise ValueError(f"SWALR: {len(aims)} numbers in swa_lr for {len(self.rates)} groups")
        found = []
        for rate, aim in zip(self.rates, aims, strict=True):
            first = aim if before == 1 else (rate - before * aim) / (1 - before)
            found.append(aim * now + first * (1 - now))
        return found


class CosineAnnealingWarmRestarts(LRScheduler):
    """From the base rate along half a cosine to eta_min, repeatedly; each cycle is T_mult times as long as the last.

    The first takes T_0 steps. `step` also accepts an epoch to jump to, possibly fractional.
    """

    by_rates_before = False

    def __init__(
        self, optimizer: Optimizers, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        self.T_0 = _positive("CosineAnnealingWarmRestarts", "T_0", T_0)
        self.T_mult = _positive("CosineAnnealingWarmRestarts", "T_mult", T_mult)
        self.eta_min, self.epoch = eta_min, float(last_epoch + 1)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """By the position within the current cosine."""
        place, length = self.epoch, self.T_0
        if self.T_mult == 1:
            place %= length
        while place >= length:
            place, length = place - length, length * self.T_mult
        height = (1 + math.cos(math.pi * place / length)) / 2
        return [self.eta_min + (base - self.eta_min) * height for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Advance to the next step, or jump to an epoch. Raises ValueError for a negative one."""
        if epoch is not None and not 0 <= epoch < math.inf:
            raise ValueError(f"CosineAnnealingWarmRestarts.step: epoch must be at least 0, got {epoch}")
        self.epoch = float(self.last_epoch + 1 if epoch is None else epoch)
        self.last_epoch = math.floor(self.epoch)
        self._set(self.get_lr())

    def begin(self) -> None:
        """Start at step 0."""
        self.step(0)


_MODES: dict[str, Callable[[float, float], float]] = {
    "triangular": lambda gamma, cycle: 1.0,
    "triangular2": lambda gamma, cycle: 1 / 2.0 ** (cycle - 1),
    "exp_range": lambda gamma, step: gamma**step,
}


class _Cycle(LRScheduler):
    """A scheduler that moves the momentum inversely to the rate: beta 1 of optimizers that have betas."""

    by_rates_before = False

    def __init__(
        self,
        optimizer: Optimizers,
        cycle_momentum: bool,
        base_momentum: float | list[float],
        max_momentum: float | list[float],
        last_epoch: int,
    ) -> None:
        self.cycle_momentum = cycle_momentum
        self.base_momentum, self.max_momentum = base_momentum, max_momentum
        super().__init__(optimizer, last_epoch)
        if cycle_momentum:  # both ends once: compilers then see from the start that it moves
            self._set_momenta([lowest for lowest, _ in self._limits()])
            self._move()

    def get_momentum(self) -> list[float]:
        """The momenta at step `last_epoch`, one per group."""
        raise NotImplementedError

    @property
    def momenta(self) -> list[float]:
        """The groups' momenta now."""
        return [_momentum(self._name, group) for group in self.groups]

    def _limits(self) -> Iterator[tuple[float, float]]:
        """The smallest and the largest momentum of each group."""
        lowest = self._per_group("base_momentum", self.base_momentum)
        return zip(lowest, self._per_group("max_momentum", self.max_momentum), strict=True)

    def _move(self) -> None:
        super()._move()
        if self.cycle_momentum:
            self._set_momenta(self.get_momentum())

    def _set_momenta(self, momenta: Sequence[float]) -> None:
        for group, momentum in zip(self.groups, momenta, strict=True):
            _set_momentum(self._name, group, float(momentum))

    def state_dict(self) -> dict[str, Any]:
        """The step-dependent attributes, rates and momenta, as plain values."""
        return {**super().state_dict(), **({"momenta": self.momenta} if self.cycle_momentum else {})}

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`; sets rates and momenta. Raises KeyError for a state of another class."""
        super().load_state_dict(state)
        if self.cycle_momentum:
            self._set_momenta(state["momenta"])


class CyclicLR(_Cycle):
    """Linearly from base_lr to max_lr in step_size_up steps, back in step_size_down, and again (Smith 2017).

    cycle_momentum: the momentum meanwhile falls from max_momentum to base_momentum and rises again; for optimizers
    with betas, beta 1. Raises ValueError for an optimizer that has neither.
    mode: "triangular"; "triangular2", whose height halves with each cycle; "exp_range", whose height is gamma^step.
    Or scale_fn, a function of the cycle's number from 1 on (scale_mode "cycle") or of the step's ("iterations").
    """

    def __init__(
        self,
        optimizer: Optimizers,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if scale_fn is None and mode not in _MODES:
            raise ValueError(f"CyclicLR: mode must be one of {', '.join(_MODES)}, got {mode!r}")
        if scale_mode not in ("cycle", "iterations"):
            raise ValueError(f"CyclicLR: scale_mode must be 'cycle' or 'iterations', got {scale_mode!r}")
        self.up = _positive("CyclicLR", "step_size_up", step_size_up)
        self.down = (
            self.up if step_size_down is None else _positive("CyclicLR", "step_size_down", step_size_down)
        )
        self.mode, self.gamma, self.scale_fn = mode, gamma, scale_fn
        by_step = scale_mode == "iterations" if scale_fn is not None else mode == "exp_range"
        self.scale_mode = "iterations" if by_step else "cycle"
        self.lowest, self.max_lrs = base_lr, max_lr
        super().__init__(optimizer, cycle_momentum, base_momentum, max_momentum, last_epoch)

    def get_lr(self) -> list[float]:
        """By the position within the current triangle."""
        height = self._height()
        lowest, highest = (
            self._per_group(n, v) for n, v in (("base_lr", self.lowest), ("max_lr", self.max_lrs))
        )
        return [a + (b - a) * height for a, b in zip(lowest, highest, strict=True)]

    def get_momentum(self) -> list[float]:
        """As far below max_momentum as the rate is above base_lr."""
        height = self._height()
        return [b - (b - a) * height for a, b in self._limits()]

    def _height(self) -> float:
        """The position between the lowest rate, 0, and the highest, 1."""
        length = self.up + self.down
        cycle, place = divmod(self.last_epoch, length)
        height = place / self.up if place <= self.up else (length - place) / self.down
        number = self.last_epoch if self.scale_mode == "iterations" else cycle + 1
        return height * (self.scale_fn(number) if self.scale_fn else _MODES[self.mode](self.gamma, number))


class OneCycleLR(_Cycle):
    """Up from max_lr / div_factor to max_lr, then down to the first rate / final_div_factor (Smith & Topin 2018).

    total_steps, or epochs and steps_per_epoch: the number of steps; a further one raises ValueError. pct_start: the
    fraction of them with a rising rate. anneal_strategy: "cos" or "linear", which keeps the last rate in the step
    behind it. three_phase: down to the first rate in as many steps, then to the last one. cycle_momentum: the
    momentum falls from max_momentum to base_momentum while the rate rises, then rises again; for optimizers with
    betas, beta 1. Raises ValueError for an optimizer that has neither.
    """

    def __init__(
        self,
        optimizer: Optimizers,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None and (epochs is None or steps_per_epoch is None):
            raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"OneCycleLR: anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}"
            )
        if not 0 <= pct_start <= 1:
            raise ValueError(f"OneCycleLR: pct_start must be in [0, 1], got {pct_start}")
        steps = total_steps if total_steps is not None else (epochs or 0) * (steps_per_epoch or 0)
        self.total_steps = _positive("OneCycleLR", "total_steps", steps)
        self.anneal_strategy, self.pct_start, self.three_phase = anneal_strategy, pct_start, three_phase
        self.max_lrs, self.div_factor, self.final_div_factor = max_lr, div_factor, final_div_factor
        super().__init__(optimizer, cycle_momentum, base_momentum, max_momentum, last_epoch)

    def get_lr(self) -> list[float]:
        """By the position within the current phase."""
        if self.last_epoch > self.total_steps:
            raise ValueError(f"OneCycleLR: step {self.last_epoch} is behind total_steps={self.total_steps}")
        first, last = 1 / self.div_factor, 1 / self.div_factor / self.final_div_factor
        height = self._between([first, 1.0, *([first] if self.three_phase else []), last])
        return [top * height for top in self._per_group("max_lr", self.max_lrs)]

    def get_momentum(self) -> list[float]:
        """Falls while the rate rises, rises while it falls, and is constant in a third phase."""
        return [self._between([b, a, b, *([b] if self.three_phase else [])]) for a, b in self._limits()]

    def _between(self, corners: Sequence[float]) -> float:
        """The current value of a quantity that interpolates between the phases' corners."""
        top = self.pct_start * self.total_steps - 1
        ends = [0.0, top, *([2 * top] if self.three_phase else []), self.total_steps - 1.0]
        index = min(sum(self.last_epoch > end for end in ends[1:]), len(ends) - 2)
        part = (self.last_epoch - ends[index]) / (ends[index + 1] - ends[index])
        # A loop that steps after each batch ends one step behind the last rate: a line would go on below 0 there.
        part = (1 - math.cos(math.pi * part)) / 2 if self.anneal_strategy == "cos" else min(part, 1.0)
        return corners[index] + (corners[index + 1] - corners[index]) * part


class SequentialLR(_SchedulerBase):
    """Several schedulers in sequence: each starts at its milestone, a number of steps, from the initial rates."""

    def __init__(
        self,
        optimizer: Optimizers,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        super().__init__(optimizer)
        _check_schedulers(self, schedulers)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                f"SequentialLR: needs a milestone for each of {len(schedulers)} schedulers but the first, got "
                f"{len(milestones)}"
            )
        if last_epoch != -1:
            raise ValueError(
                f"SequentialLR: last_epoch={last_epoch} tells nothing of the schedulers' steps, which begin anew: "
                "make it as it was and take load_state_dict"
            )
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        self.last_epoch = 0
        for scheduler in self.schedulers:
            scheduler.last_epoch = -1
        first = self.schedulers[bisect_right(self.milestones, 0)]
        self._set(first.base_lrs)
        first.step()

    def step(self) -> None:
        """Step the active scheduler."""
        self.last_epoch += 1
        index = bisect_right(self.milestones, self.last_epoch)
        if index and self.milestones[index - 1] == self.last_epoch:
            self.schedulers[index].begin()
        else:
            self.schedulers[index].step()

    def state_dict(self) -> dict[str, Any]:
        """Its own step number and the schedulers' states."""
        return {**super().state_dict(), "schedulers": [s.state_dict() for s in self.schedulers]}

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`."""
        _load_all(self, self.schedulers, state)


class ChainedScheduler(_SchedulerBase):
    """Several schedulers combined: all are stepped, in order."""

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizers | None = None) -> None:
        own = [] if not schedulers else schedulers[0].optimizers
        super().__init__(own if optimizer is None else optimizer)
        _check_schedulers(self, schedulers)
        self.schedulers, self.last_epoch = list(schedulers), 0

    def step(self) -> None:
        """Step all schedulers."""
        self.last_epoch += 1
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Its own step number and the schedulers' states."""
        return {**super().state_dict(), "schedulers": [s.state_dict() for s in self.schedulers]}

    @checked
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a `state_dict`."""
        _load_all(self, self.schedulers, state)


class ReduceLROnPlateau(_SchedulerBase):
    """Multiplies by factor when `step(metrics)` has not improved for more than `patience` steps.

    mode: whether lower ("min") or higher ("max") is better. threshold: the required improvement, relative to the best
    ("rel") or absolute ("abs"). cooldown: steps after a reduction that are ignored. min_lr: the lowest rate, or one
    per group. eps: smaller reductions are skipped.
    """

    def __init__(
        self,
        optimizer: Optimizers,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(optimizer)
        if not 0 <= factor < 1:
            raise ValueError(f"ReduceLROnPlateau: factor must be in [0, 1), got {factor}")
        if mode not in ("min", "max"):
            raise ValueError(f"ReduceLROnPlateau: mode must be 'min' or 'max', got {mode!r}")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"ReduceLROnPlateau: threshold_mode must be 'rel' or 'abs', got {threshold_mode!r}"
            )
        self.mode, self.factor, self.patience, self.cooldown = mode, factor, patience, cooldown
        self.threshold, self.threshold_mode, self.eps = threshold, threshold_mode, eps
        self.min_lrs = self._per_group("min_lr", min_lr)
        self.best = math.inf if mode == "min" else -math.inf
        self.last_epoch = self.num_bad_epochs = self.cooldown_counter = 0

    def step(self, metrics: Any) -> None:
        """Take a metric: a number, or a one-element tensor."""
        current = float(metrics)
        self.last_epoch += 1
        if self._is_better(current):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _reduce(self) -> None:
        lower = [max(rate * self.factor, least) for rate, least in zip(self.rates, self.min_lrs, strict=True)]
        pairs = zip(self.rates, lower, strict=True)
        self._set([new if old - new > self.eps else old for old, new in pairs])

    def _is_better(self, current: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.threshold_mode == "rel":
            return sign * current > sign * self.best * (1 + sign * self.threshold)
        return sign * current > sign * self.best + self.threshold


def _check_schedulers(own: _SchedulerBase, schedulers: Sequence[Any]) -> None:
    """Raise unless there is a scheduler, and all are for the same optimizers."""
    if not schedulers:
        raise ValueError(f"{own._name}: needs at least one scheduler")
    for i, scheduler in enumerate(schedulers):
        if [id(g) for g in scheduler.groups] != [id(g) for g in own.groups]:
            raise ValueError(f"{own._name}: scheduler {i} is for another optimizer")


def _load_all(own: _SchedulerBase, schedulers: Sequence[LRScheduler], state: Mapping[str, Any]) -> None:
    """Load the schedulers' states, then its own, whose rates are the latest."""
    states = state.get("schedulers", ())
    if len(states) != len(schedulers):
        raise KeyError(f"{own._name}.load_state_dict: {len(states)} schedulers for {len(schedulers)}")
    for scheduler, each in zip(schedulers, states, strict=True):
        scheduler.load_state_dict(each)
    _SchedulerBase.load_state_dict(own, state)


def _momentum(name: str, group: RateHolder) -> float:
    """Beta 1, or the momentum. Raises ValueError for an optimizer with neither."""
    rule: Any = group.rule if isinstance(group, ParameterGroup) else group
    if not hasattr(rule, "betas") and not hasattr(rule, "momentum"):
        raise ValueError(
            f"{name}: {type(rule).__name__} has neither momentum nor betas: give cycle_momentum=False"
        )
    return float(rule.betas[0] if hasattr(rule, "betas") else rule.momentum)


def _set_momentum(name: str, group: RateHolder, value: float) -> None:
    _momentum(name, group)
    rule: Any = group.rule if isinstance(group, ParameterGroup) else group
    if hasattr(rule, "betas"):
        rule.betas = (value, *rule.betas[1:])
    else:
        rule.momentum = value


def _positive(name: str, argument: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name}: {argument} must be at least 1, got {value}")
    return int(value)
