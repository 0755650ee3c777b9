"""What a contest is expected to win, before it is held: by how far a plan is from what the machine could do.

A plan that runs near the machine's limit has nothing to win, whatever competes. Of one that does not, a part of
the time is won on average that grows with the square of what is beyond the limit, by a factor of the op's. The
factors are fitted to the contests of the package's database (`python -m benchmarks.tuning_replay fit`); the limit
is that of the machine at hand, so that they serve on another one, too.
"""

from __future__ import annotations

from collections.abc import Mapping

#: By op: the part of the time that is won of a plan far from the limit. "": of other ops.
FACTORS: Mapping[str, float] = {
    "": 0.37,
    "matmul": 0.65,
    "conv": 0.33,
    "conv_filter_grad": 0.33,
    "conv_data_grad": 0.19,
}


def expected_saving(op: str, seconds: float, least: float, factors: Mapping[str, float] = FACTORS) -> float:
    """The seconds that are won of a plan on average.

    seconds: what it takes. least: what the machine needs for its work.
    """
    factor = factors.get(op, factors[""])
    return factor * headroom(seconds, least) * seconds


def headroom(seconds: float, least: float) -> float:
    """The square of the part of a plan's time that is beyond what the machine needs; 0 for a plan within that."""
    return max(0.0, 1.0 - least / seconds) ** 2 if seconds > 0 else 0.0
