"""Learning-rate schedules: plain functions from the step number (0, 1, 2, …) to a rate.

The rate is an input of the compiled step, so a schedule never causes recompilation. Schedules can be pickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from lamina._lazy import listing
from lamina._renamed import renamed
from lamina.ops.arguments import within

__all__ = ["constant", "cosine", "exponential", "one_cycle", "step", "warm_up"]
__dir__ = listing(__all__)


Schedule = Callable[[int], float]


@renamed(rate="lr")
def constant(lr: float) -> Schedule:
    """A constant rate."""
    return partial(_constant, lr)


@renamed(rate="lr", every="step_size")
def step(lr: float, step_size: int, gamma: float = 0.1) -> Schedule:
    """lr · gamma^⌊step / step_size⌋: a staircase (torch's StepLR)."""
    _positive("step", "step_size", step_size)
    return partial(_step, lr, step_size, gamma)


@renamed(rate="lr")
def exponential(lr: float, gamma: float) -> Schedule:
    """lr · gamma^step (torch's ExponentialLR)."""
    return partial(_step, lr, 1, gamma)


@renamed(rate="lr", steps="total_steps", floor="min_lr")
def cosine(lr: float, total_steps: int, min_lr: float = 0.0) -> Schedule:
    """Half a cosine from `lr` at step 0 to `min_lr` from step `total_steps` on (Loshchilov & Hutter 2017)."""
    _positive("cosine", "total_steps", total_steps)
    return partial(_cosine, lr, total_steps, min_lr)


def warm_up(schedule: Schedule, steps: int) -> Schedule:
    """The schedule, preceded by `steps` steps of linear warm-up to its first rate (Goyal et al. 2017)."""
    return partial(_warm_up, schedule, steps)


@renamed(peak="max_lr", steps="total_steps", warm="pct_start", start="div_factor", end="final_div_factor")
def one_cycle(
    max_lr: float,
    total_steps: int,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Up and down along half cosines (Smith & Topin 2018; torch's OneCycleLR).

    max_lr: the highest rate, reached after the fraction `pct_start` of the steps.
    div_factor, final_div_factor: the first rate is max_lr / div_factor, the last one the first / final_div_factor.
    """
    _positive("one_cycle", "total_steps", total_steps)
    within("schedule.one_cycle", "div_factor", div_factor, 0, open=True)
    within("schedule.one_cycle", "final_div_factor", final_div_factor, 0, open=True)
    first = max_lr / div_factor
    top = pct_start * total_steps - 1  # the step with the highest rate
    return partial(_one_cycle, first, max_lr, first / final_div_factor, top, max(total_steps - 1, 1))


# ---- implementations, with the step as their last argument


def _constant(lr: float, step: int) -> float:
    return lr


def _step(lr: float, step_size: int, gamma: float, step: int) -> float:
    return float(lr * gamma ** (step // step_size))


def _cosine(lr: float, total_steps: int, min_lr: float, step: int) -> float:
    return min_lr + (lr - min_lr) * 0.5 * (1 + math.cos(math.pi * min(step / total_steps, 1.0)))


def _warm_up(schedule: Schedule, steps: int, step: int) -> float:
    return schedule(0) * (step + 1) / (steps + 1) if step < steps else schedule(step - steps)


def _one_cycle(first: float, peak: float, end: float, top: float, last: int, step: int) -> float:
    if step < top:
        return _blend(first, peak, step / top)
    return _blend(peak, end, min((step - top) / max(last - top, 1), 1.0))


def _blend(a: float, b: float, part: float) -> float:
    """Interpolate from a (part 0) to b (part 1) along half a cosine."""
    return b + (a - b) * 0.5 * (1 + math.cos(math.pi * part))


def _positive(name: str, argument: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"schedule.{name}: {argument} must be at least 1, got {value}")
