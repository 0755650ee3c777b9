"""Learning-rate schedules: plain functions from the step's number (0, 1, 2, …) to a rate.

The rate is an input of the compiled step, so a schedule never makes it compile again.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(rate: float) -> Schedule:
    """The same rate for ever."""
    return lambda step: rate


def step(rate: float, every: int, gamma: float = 0.1) -> Schedule:
    """rate · gamma^⌊step / every⌋: a staircase (torch's StepLR)."""
    _positive("step", "every", every)
    return lambda step: rate * gamma ** (step // every)


def exponential(rate: float, gamma: float) -> Schedule:
    """rate · gamma^step."""
    return lambda step: rate * gamma**step


def cosine(rate: float, steps: int, floor: float = 0.0) -> Schedule:
    """Half a cosine from `rate` at step 0 to `floor` at step `steps` and after (Loshchilov & Hutter 2017)."""
    _positive("cosine", "steps", steps)
    return lambda step: floor + (rate - floor) * 0.5 * (1 + math.cos(math.pi * min(step / steps, 1.0)))


def warm_up(schedule: Schedule, steps: int) -> Schedule:
    """The schedule, preceded by `steps` steps that climb in a line to its first rate (Goyal et al. 2017)."""
    return lambda step: schedule(0) * (step + 1) / (steps + 1) if step < steps else schedule(step - steps)


def one_cycle(
    peak: float, steps: int, warm: float = 0.3, start: float = 1 / 25, end: float = 1e-4 / 25
) -> Schedule:
    """Up and down again along half cosines (Smith & Topin 2018; torch's OneCycleLR).

    peak: the highest rate, reached after the fraction `warm` of the steps.
    start, end: the first and the last rate, as fractions of the peak.
    """
    _positive("one_cycle", "steps", steps)
    top = warm * steps - 1  # the step with the highest rate
    last = max(steps - 1, 1)

    def rate(step: int) -> float:
        if step < top:
            return _blend(peak * start, peak, step / top)
        return _blend(peak, peak * end, min((step - top) / max(last - top, 1), 1.0))

    return rate


def _blend(a: float, b: float, part: float) -> float:
    """From a (part 0) to b (part 1) along half a cosine."""
    return b + (a - b) * 0.5 * (1 + math.cos(math.pi * part))


def _positive(name: str, argument: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"schedule.{name}: {argument} must be at least 1, got {value}")
