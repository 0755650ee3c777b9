"""A training step on one GPU as seen by data parallel training: the time at which each gradient is ready, and its
size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lamina.graph import Executable, Profile
from lamina.graph.planning.cost import least_seconds
from lamina.graph.planning.program import PlannedStep
from lamina.graph.planning.updates import gradient_sources
from lamina.ops.arguments import checked, whole, within
from lamina.runtime import Machine


@dataclass(frozen=True)
class Gradient:
    """A gradient to be summed over the ranks: seconds from the step's beginning until it is ready, and bytes."""

    ready: float
    nbytes: int


@dataclass(frozen=True)
class Workload:
    """A step on one GPU.

    seconds: of the whole step. update: the part of the optimizer, which waits for the sums. samples: per step.
    gradients: in the order in which they are finished.
    Raises ValueError for impossible values.
    """

    seconds: float
    samples: int
    gradients: tuple[Gradient, ...]
    update: float = 0.0

    def __post_init__(self) -> None:
        within("Workload", "seconds", self.seconds, 0, open=True)
        within("Workload", "update", self.update, 0, self.seconds)
        whole("Workload", "samples", self.samples)
        if any(g.ready > self.seconds - self.update + 1e-9 or g.nbytes < 0 for g in self.gradients):
            raise ValueError("Workload: a gradient is finished when the backward pass ends, at the latest")
        object.__setattr__(self, "gradients", tuple(sorted(self.gradients, key=lambda g: g.ready)))

    @property
    def nbytes(self) -> int:
        """Of all gradients."""
        return sum(g.nbytes for g in self.gradients)

    def buckets(self, most: float) -> list[Gradient]:
        """Gradients joined in order, as long as they have at most `most` bytes together."""
        found: list[Gradient] = []
        for g in self.gradients:
            if found and found[-1].nbytes + g.nbytes <= most:
                found[-1] = Gradient(g.ready, found[-1].nbytes + g.nbytes)
            else:
                found.append(g)
        return found

    def in_time(self, seconds: float) -> Workload:
        """The same step scaled to another time, each part in proportion."""
        scale = seconds / self.seconds
        gradients = tuple(Gradient(g.ready * scale, g.nbytes) for g in self.gradients)
        return Workload(seconds, self.samples, gradients, self.update * scale)

    @property
    def record(self) -> dict[str, Any]:
        """As JSON."""
        pairs = [[g.ready, g.nbytes] for g in self.gradients]
        return {"seconds": self.seconds, "samples": self.samples, "update": self.update, "gradients": pairs}

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> Workload:
        """From `record`. Raises ValueError for anything else."""
        try:
            gradients = tuple(Gradient(float(ready), int(nbytes)) for ready, nbytes in record["gradients"])
            return Workload(
                float(record["seconds"]), int(record["samples"]), gradients, float(record["update"])
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"Workload: is not written as one ({error!r})") from None

    @staticmethod
    def of_profile(record: Mapping[str, Any], samples: int) -> Workload:
        """From a timed profile of a training step, such as `lamina plan NETWORK --train --time --json FILE` writes.

        Raises ValueError for one that was not timed, or has no updates.
        """
        try:
            times = [k["milliseconds"] for k in record["kernels"]]
            sources = [(int(step), int(nbytes)) for step, nbytes in record["gradients"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"Workload: is no profile ({error!r})") from None
        if None in times:
            raise ValueError("Workload: the profile was not timed; lamina plan --time times it")
        updates = [bool(k.get("update")) for k in record["kernels"]]
        return _workload([t / 1e3 for t in times], updates, sources, samples)


@checked
def workload_of(
    executable: Executable, samples: int, times: Profile | Machine, seconds: float | None = None
) -> Workload:
    """The workload of a compiled program.

    times: a timed profile of it, or a machine: then kernels take their lower bound there (`least_seconds`), which
        gives each one's share of the step; pass seconds, too.
    seconds: of the whole step; the parts are scaled to it.
    Raises ValueError for a program that updates nothing, or was not timed.
    """
    steps = [s for s in executable.program.steps if not s.plan.view]
    if isinstance(times, Profile):
        known = [row.milliseconds for row in times.rows]
        if None in known:
            raise ValueError("workload_of: the profile was not timed; profile(executable) times it")
        took = [t / 1e3 for t in known if t is not None]
    else:
        took = [least_seconds(step, times) for step in steps]
    found = _workload(took, [_updates(s) for s in steps], gradient_sources(steps), samples)
    return found if seconds is None else found.in_time(seconds)


def _updates(step: PlannedStep) -> bool:
    return step.node is not None and step.node.op.effect == "update"


def _workload(
    times: Sequence[float], updates: Sequence[bool], sources: Sequence[tuple[int, int]], samples: int
) -> Workload:
    """From kernels that run one after the other; updates, at any position, count as the step's end."""
    if not sources:
        raise ValueError("Workload: the program updates nothing: is it a training step?")
    ends, now = [], 0.0
    for time, is_update in zip(times, updates, strict=True):
        now += 0.0 if is_update else time
        ends.append(now)
    update = sum(t for t, is_update in zip(times, updates, strict=True) if is_update)
    return Workload(now + update, samples, tuple(Gradient(ends[step], n) for step, n in sources), update)
