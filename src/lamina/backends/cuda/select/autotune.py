"""The contest of `lamina.cudnn` in terms of the backend: specs for operands, steps for candidates."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from lamina.backends import Call, Run
from lamina.backends.cuda.launch.program import Bindable, sequence
from lamina.cudnn.contest import Contest, OperandMemory, finished
from lamina.runtime import Device
from lamina.spec import Spec


class Contestant(Protocol):
    """A candidate: its steps, its scratch memory in bytes, its name."""

    @property
    def steps(self) -> Sequence[Bindable]:
        """What runs."""
        ...

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        ...

    @property
    def label(self) -> str:
        """Its name."""
        ...


E = TypeVar("E", bound=Contestant)


@dataclass(frozen=True)
class Trial(Generic[E]):
    """A candidate as the contest runs it."""

    device: Device
    entry: E

    @property
    def label(self) -> str:
        """Its name."""
        return self.entry.label

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        return self.entry.workspace

    def bind(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int, stream: int) -> Run:
        """Fix the addresses."""
        call = Call(tuple(inputs), tuple(outputs), workspace, stream)
        return sequence([step.bind(self.device, call) for step in self.entry.steps])


@dataclass(frozen=True)
class Plain:
    """Own kernels that compute the reference."""

    steps: tuple[Bindable, ...]
    workspace: int = 0
    label: str = "plain"


def contest(
    device: Device,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    tolerance: float,
    room: int | None = None,
) -> Contest:
    """The contest for operands of such specs, on random data. Raises MemoryError where `room` is too small."""
    return Contest(device, [_memory(s) for s in inputs], [_memory(s) for s in outputs], tolerance, room=room)


def _memory(spec: Spec) -> OperandMemory:
    return OperandMemory(spec.nbytes, spec.dtype.name)


def best(
    entries: Sequence[E],
    device: Device,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    tolerance: float,
    *,
    plain: tuple[Bindable, ...] = (),
    slow: bool = False,
    refusals: list[str],
    times: list[tuple[E, float]] | None = None,
) -> tuple[E, float] | None:
    """The fastest correct candidate and its milliseconds; the arguments are those of `slices`."""
    return finished(
        slices(
            entries,
            device,
            inputs,
            outputs,
            tolerance,
            plain=plain,
            slow=slow,
            refusals=refusals,
            times=times,
        )
    )


def slices(
    entries: Sequence[E],
    device: Device,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    tolerance: float,
    *,
    plain: tuple[Bindable, ...] = (),
    slow: bool = False,
    refusals: list[str],
    times: list[tuple[E, float]] | None = None,
    room: int | None = None,
) -> Generator[str, None, tuple[E, float] | None]:
    """The contest in small parts (`Contest.slices`); it returns the fastest correct candidate and its milliseconds:
    the first one unless another is clearly faster.

    plain: own kernels that compute the reference; slow: they only run when most candidates disagree with the first.
        times: receives every correct candidate with its milliseconds. room: the most bytes that it may take.
    Raises MemoryError, OutOfMemoryError.
    """
    if not entries:
        return None
    right = Trial(device, Plain(plain)) if plain else None
    trials = [Trial(device, entry) for entry in entries]
    yield "place"
    run = contest(device, inputs, outputs, tolerance, room)
    timed: list[tuple[Trial[E], float]] = []
    found = yield from run.slices(trials, plain=right, slow=slow, refusals=refusals, times=timed)
    if times is not None:
        times += [(trial.entry, milliseconds) for trial, milliseconds in timed]
    return None if found is None else (found[0].entry, found[1])
