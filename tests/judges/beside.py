"""Many judgements beside each other, for as long as there is time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import TimeoutError, get_context
from typing import Any


def judged(
    judge: Callable[[str], Any], names: Sequence[str], seconds: float, jobs: int
) -> Iterator[tuple[str, Any]]:
    """(name, what `judge` gives for it) as they come, from that many processes; what is not decided gives None."""
    end, left = time.monotonic() + seconds, set(names)
    with get_context("spawn").Pool(jobs) as pool:
        results = pool.imap_unordered(_Named(judge), names)
        try:
            while left:
                name, outcome = results.next(max(0.0, end - time.monotonic()))
                left.discard(name)
                yield name, outcome
        except TimeoutError:
            yield from ((name, None) for name in sorted(left))
        pool.terminate()
        pool.join()


class _Named:
    """A judge that says what it judged; a class, so that it can be sent to a process."""

    def __init__(self, judge: Callable[[str], Any]) -> None:
        self.judge = judge

    def __call__(self, name: str) -> tuple[str, Any]:
        return name, self.judge(name)
