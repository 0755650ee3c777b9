"""Runs that keep NumPy from warning of overflow and invalid values: those are regular results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from lamina.backends.protocol import Run


@dataclass(frozen=True, eq=False, slots=True)
class Quiet:
    """A run without NumPy's warnings. run: the same with them."""

    run: Run

    def __call__(self) -> None:
        """Run once."""
        with np.errstate(all="ignore"):
            self.run()


def together(runs: Sequence[Run]) -> list[Run]:
    """The same in order. Neighbours that are `Quiet` are so together: the switch takes as long as a small step."""
    return list(_joined(runs))


def _joined(runs: Sequence[Run]) -> Iterator[Run]:
    for is_quiet, group in groupby(runs, lambda run: isinstance(run, Quiet)):
        if is_quiet:
            yield Quiet(sequence([run.run for run in group if isinstance(run, Quiet)]))
        else:
            yield from group


def sequence(runs: Sequence[Run]) -> Run:
    """One function that runs them all."""
    if len(runs) == 1:
        return runs[0]

    def run() -> None:
        for step in runs:
            step()

    return run
