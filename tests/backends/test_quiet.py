"""Runs without NumPy's warnings, alone and together."""

from __future__ import annotations

import numpy as np
import pytest

from lamina.backends.quiet import Quiet, together


def test_neighbours_are_quiet_together_and_the_order_stays() -> None:
    seen: list[tuple[str, str]] = []

    def named(name: str) -> None:
        seen.append((name, np.geterr()["over"]))

    with np.errstate(over="raise"):
        runs = [lambda n=n: named(n) for n in "abcde"]
        calls = together([Quiet(runs[0]), Quiet(runs[1]), runs[2], runs[3], Quiet(runs[4])])
        assert len(calls) == 4
        for call in calls:
            call()
    assert seen == [("a", "ignore"), ("b", "ignore"), ("c", "raise"), ("d", "raise"), ("e", "ignore")]
    assert together([]) == []


def test_numbers_that_overflow_are_results() -> None:
    big = np.array([3e38], np.float32)

    def run() -> None:
        big[...] = big * 2

    with pytest.warns(RuntimeWarning, match="overflow"):
        run()
    big[...] = 3e38
    Quiet(run)()
    assert np.isinf(big).all()
