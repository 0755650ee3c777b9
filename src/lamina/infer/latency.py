"""Latency statistics: collected while an `Inferer` works, reported as percentiles."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lamina.runtime import renew_after_fork

#: The number of latest answers over which percentiles are computed.
_KEPT = 1 << 16


@dataclass(frozen=True)
class Latency:
    """The activity of an `Inferer` since it was made, or since `reset_statistics`.

    answered, failed, cancelled: requests by outcome. waiting: pending requests.
    runs: of programs. fill: requests that a run answered, on average.
    p50_ms, p95_ms, p99_ms, mean_ms: milliseconds from the request to its answer (0 before the first), of the latest
    65,536. per_second: answers, from the first request to the last answer.
    """

    answered: int
    failed: int
    cancelled: int
    waiting: int
    runs: int
    fill: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    per_second: float

    @property
    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def __str__(self) -> str:
        others = f", {self.failed} failed, {self.cancelled} cancelled, {self.waiting} waiting"
        return (
            f"{self.answered} answers, {self.per_second:.0f}/s, {self.fill:.1f} a run; ms: p50 {self.p50_ms:.2f}, "
            f"p95 {self.p95_ms:.2f}, p99 {self.p99_ms:.2f}{others}"
        )


class Stopwatch:
    """Counts requests and records their latencies. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Reset."""
        with self._lock:
            self._seconds: deque[float] = deque(maxlen=_KEPT)
            self._answered = self._failed = self._cancelled = self._runs = 0
            self._first: float | None = None
            self._last = 0.0

    def ran(self, begun: list[float], failed: int = 0, cancelled: int = 0, runs: int = 1) -> None:
        """Count runs: when each of the answered requests had been made, and how many others there were."""
        now = time.perf_counter()
        with self._lock:
            self._runs += runs
            self._failed += failed
            self._cancelled += cancelled
            self._answered += len(begun)
            for start in begun:
                self._seconds.append(now - start)
            if begun:
                self._first = min(begun) if self._first is None else min(self._first, *begun)
                self._last = now

    def latency(self, waiting: int) -> Latency:
        """The statistics; waiting: unanswered requests so far."""
        with self._lock:
            seconds = np.array(self._seconds) if self._seconds else np.zeros(1)
            span = self._last - (self._first or 0.0)
            counts = self._answered, self._failed, self._cancelled
            runs = self._runs
        p50, p95, p99 = np.percentile(seconds, (50, 95, 99)) * 1e3
        return Latency(
            *counts,
            waiting=waiting,
            runs=runs,
            fill=counts[0] / runs if runs else 0.0,
            mean_ms=float(seconds.mean()) * 1e3,
            p50_ms=float(p50),
            p95_ms=float(p95),
            p99_ms=float(p99),
            per_second=counts[0] / span if counts[0] and span > 0 else 0.0,
        )
