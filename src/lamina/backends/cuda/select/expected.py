"""The expected gain of a contest, before it is held, from a plan's distance to the machine's limit.

A plan that runs near the machine's limit has nothing to gain, whatever competes. For others, the average gain is a
fraction of the time that grows with the square of the excess over the limit, by a factor of the op's. The factors are
fitted to the contests of the package's database (`python -m benchmarks.tuning_replay fit`); the limit is that of the
machine at hand, so that they serve on other machines, too.
"""

from __future__ import annotations

from collections.abc import Mapping

#: By op: the fraction of the time that is gained on a plan far from the limit. "": other ops.
FACTORS: Mapping[str, float] = {
    "": 0.37,
    "matmul": 0.65,
    "conv": 0.33,
    "conv_filter_grad": 0.33,
    "conv_data_grad": 0.19,
}


def expected_saving(op: str, seconds: float, least: float, factors: Mapping[str, float] = FACTORS) -> float:
    """The seconds that are gained on a plan on average.

    seconds: its time. least: a lower bound for its work on the machine.
    """
    factor = factors.get(op, factors[""])
    return factor * headroom(seconds, least) * seconds


def headroom(seconds: float, least: float) -> float:
    """The square of the fraction of a plan's time beyond the lower bound; 0 for a plan within it."""
    return max(0.0, 1.0 - least / seconds) ** 2 if seconds > 0 else 0.0
