"""The interface of a library to the harness: a workload ready to run, and synchronization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Prepared:
    """run: queue one iteration; its result holds the arrays that JAX must wait for. wait: until the queue is done.

    warm_up: number of runs until all later ones are alike (compilation, capture).
    peak: the most bytes in use on the device since `reset_peak`; None if they are not counted.
    after: facts to record, requested after all measurements.
    settle: run it for at most this many seconds, until it gets no faster by itself; facts to record.
    """

    run: Callable[[], Any]
    wait: Callable[[], Any]
    warm_up: int = 3
    peak: Callable[[], int | None] = lambda: None
    reset_peak: Callable[[], Any] = lambda: None
    after: Callable[[], dict[str, Any]] = dict
    settle: Callable[[float], dict[str, Any]] = lambda seconds: {}
