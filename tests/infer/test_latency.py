"""Percentiles are NumPy's over what was counted."""

import time

import numpy as np
import pytest

from lamina.infer.latency import Stopwatch


@pytest.mark.feature("B035")
def test_percentiles_of_what_was_counted() -> None:
    watch, now = Stopwatch(), time.perf_counter()
    for seconds in range(1, 101):
        watch.ran([now - seconds])
    watch.ran([now - 1, now - 2], failed=3, cancelled=4)
    found = watch.latency(5)
    assert (found.answered, found.failed, found.cancelled, found.waiting, found.runs) == (102, 3, 4, 5, 101)
    assert found.fill == pytest.approx(102 / 101)
    seconds = [*range(1, 101), 1, 2]
    for name, q in (("p50_ms", 50), ("p95_ms", 95), ("p99_ms", 99)):
        assert found.record[name] == pytest.approx(1e3 * np.percentile(seconds, q), rel=1e-3)
    assert found.per_second == pytest.approx(1.02, rel=1e-2)
    assert "102 answers, 1/s, 1.0 a run; ms: p50" in str(found)


def test_nothing_was_counted() -> None:
    watch = Stopwatch()
    watch.ran([time.perf_counter()])
    watch.reset()
    found = watch.latency(0)
    assert (found.answered, found.per_second, found.p99_ms, found.fill) == (0, 0, 0, 0)
