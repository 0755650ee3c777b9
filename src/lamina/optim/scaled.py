"""Learning rates scaled by a factor during a run, on top of the planned rate or schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lamina.optim.groups import FollowingRate
from lamina.optim.optimizer import Optimizer
from lamina.optim.schedule import Schedule


@dataclass(frozen=True)
class ScaledRate:
    """A rate or schedule times a factor; itself a schedule."""

    planned: float | Schedule
    factor: float

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        return self.factor * (self.planned(step) if callable(self.planned) else self.planned)


class HasRate(Protocol):
    """An optimizer, or the rule of a parameter group."""

    lr: float | Schedule


def scale_rate(optimizer: Optimizer, factor: float) -> None:
    """From the next step on rates are `factor` times the planned ones, replacing any earlier factor.

    Applies to the optimizer's rate, and to those of parameter groups with their own.
    """
    for rule in _rules(optimizer):
        _scale(rule, factor)


def multiply_rate(optimizer: Optimizer, factor: float) -> None:
    """From the next step on multiply these rates by a further `factor`."""
    for rule in _rules(optimizer):
        _scale(rule, factor * rate_factor(rule))


def rate_factor(rule: HasRate) -> float:
    """The current factor of the planned rate."""
    return rule.lr.factor if isinstance(rule.lr, ScaledRate) else 1.0


def _rules(optimizer: Optimizer) -> list[HasRate]:
    """The optimizer, and the rules of its groups, each once."""
    groups = optimizer.param_groups if optimizer.is_bound else ()
    return list({id(r): r for r in (optimizer, *(g.rule for g in groups))}.values())


def _scale(rule: HasRate, factor: float) -> None:
    """Set the rate to `factor` times the planned one, unless it follows the optimizer's."""
    lr = rule.lr.planned if isinstance(rule.lr, ScaledRate) else rule.lr
    if not isinstance(lr, FollowingRate):
        rule.lr = lr if factor == 1 else ScaledRate(lr, factor)


def planned_rate(rule: HasRate, step: int) -> float:
    """The rate of a step without a factor."""
    lr = rule.lr.planned if isinstance(rule.lr, ScaledRate) else rule.lr
    if isinstance(lr, FollowingRate):
        return planned_rate(lr.optimizer, step)
    return float(lr(step) if callable(lr) else lr)
