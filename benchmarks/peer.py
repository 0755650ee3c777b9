"""What a library gives the harness: a workload that is ready to run, and how to wait for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Prepared:
    """run: queue one iteration; its result holds what JAX has to wait for. wait: until what is queued is done.

    warm_up: how many runs it takes until every run is like the one before (compilation, capture).
    peak: the most bytes that were in use on the device since `reset_peak`; None where nobody counts them.
    after: facts to record, asked for when all is measured.
    settle: runs it for so many seconds at most, until it gets no faster by itself; facts to record.
    """

    run: Callable[[], Any]
    wait: Callable[[], Any]
    warm_up: int = 3
    peak: Callable[[], int | None] = lambda: None
    reset_peak: Callable[[], Any] = lambda: None
    after: Callable[[], dict[str, Any]] = dict
    settle: Callable[[float], dict[str, Any]] = lambda seconds: {}
