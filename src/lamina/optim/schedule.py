"""Learning-rate schedules: plain functions from the step's number (0, 1, 2, …) to a rate.

The rate is an input of the compiled step, so a schedule never makes it compile again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from lamina._renamed import renamed

Schedule = Callable[[int], float]


@renamed(rate="lr")
def constant(lr: float) -> Schedule:
    """The same rate for ever."""
    return lambda step: lr


@renamed(rate="lr", every="step_size")
def step(lr: float, step_size: int, gamma: float = 0.1) -> Schedule:
    """lr · gamma^⌊step / step_size⌋: a staircase (torch's StepLR)."""
    _positive("step", "step_size", step_size)
    return lambda step: lr * gamma ** (step // step_size)


@renamed(rate="lr")
def exponential(lr: float, gamma: float) -> Schedule:
    """lr · gamma^step (torch's ExponentialLR)."""
    return lambda step: lr * gamma**step


@renamed(rate="lr", steps="total_steps", floor="min_lr")
def cosine(lr: float, total_steps: int, min_lr: float = 0.0) -> Schedule:
    """Half a cosine from `lr` at step 0 to `min_lr` at step `total_steps` and after (Loshchilov & Hutter 2017)."""
    _positive("cosine", "total_steps", total_steps)
    return lambda step: min_lr + (lr - min_lr) * 0.5 * (1 + math.cos(math.pi * min(step / total_steps, 1.0)))


def warm_up(schedule: Schedule, steps: int) -> Schedule:
    """The schedule, preceded by `steps` steps that climb in a line to its first rate (Goyal et al. 2017)."""
    return lambda step: schedule(0) * (step + 1) / (steps + 1) if step < steps else schedule(step - steps)


@renamed(peak="max_lr", steps="total_steps", warm="pct_start", start="div_factor", end="final_div_factor")
def one_cycle(
    max_lr: float,
    total_steps: int,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> Schedule:
    """Up and down again along half cosines (Smith & Topin 2018; torch's OneCycleLR).

    max_lr: the highest rate, reached after the fraction `pct_start` of the steps.
    div_factor, final_div_factor: the first rate is max_lr / div_factor, the last one the first / final_div_factor.
    """
    _positive("one_cycle", "total_steps", total_steps)
    first = max_lr / div_factor
    top = pct_start * total_steps - 1  # the step with the highest rate
    last = max(total_steps - 1, 1)

    def rate(step: int) -> float:
        if step < top:
            return _blend(first, max_lr, step / top)
        return _blend(max_lr, first / final_div_factor, min((step - top) / max(last - top, 1), 1.0))

    return rate


def _blend(a: float, b: float, part: float) -> float:
    """From a (part 0) to b (part 1) along half a cosine."""
    return b + (a - b) * 0.5 * (1 + math.cos(math.pi * part))


def _positive(name: str, argument: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"schedule.{name}: {argument} must be at least 1, got {value}")
