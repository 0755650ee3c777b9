"""The contest: candidates are run on random data, checked, timed; the best one wins.

A candidate that gives other numbers than the reference, leaves part of the output unwritten, or writes outside of it
or beyond its workspace is out, however fast it is.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, Protocol, TypeVar

import numpy as np

from lamina.backends import Call, Run
from lamina.backends.cuda.program import Program, Step, blocks_for, c_type, sequence
from lamina.c.errors import CudnnError
from lamina.runtime import Buffer, Device, DeviceError, Event, OutOfMemoryError, copy, memset
from lamina.spec import Spec

#: Bytes before and behind each output, and behind the workspace, that must stay as they are.
GUARD = 4096
_POISON = 0xFF  # NaN in every float type
#: Problems with less arithmetic than this are checked against own kernels, others against the first candidate.
_SMALL = 2e10
#: Candidates that are timed again, more carefully.
_FINALISTS = 5


class Entry(Protocol):
    """A candidate as the contest sees it."""

    @property
    def steps(self) -> Sequence[Step]:
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


E = TypeVar("E", bound=Entry)


@dataclass
class _Timed(Generic[E]):
    """A candidate that passed, and its time in milliseconds."""

    entry: E
    run: Run
    milliseconds: float


class Contest:
    """Buffers for one problem, and what is done with each candidate.

    Args:
        device: the GPU.
        inputs, outputs: specs as the plans have them.
        tolerance: the largest relative error (in the 2-norm) of a right result.
    """

    def __init__(
        self, device: Device, inputs: Sequence[Spec], outputs: Sequence[Spec], tolerance: float
    ) -> None:
        self.device, self.tolerance = device, tolerance
        self.specs = tuple(outputs)
        self.stream = device.default_stream
        self.inputs = [self._random(spec, seed) for seed, spec in enumerate(inputs, 1)]
        self.outputs = [device.allocate(spec.nbytes + 2 * GUARD) for spec in outputs]
        self.expected: list[Buffer] = []
        self.found = device.allocate(4 * 8)
        self.workspace = device.allocate(0)

    # -- the contest ----------------------------------------------------------------------------------------

    def best(
        self, entries: Sequence[E], *, plain: Sequence[Step], flops: float, refusals: list[str]
    ) -> tuple[E, float] | None:
        """The fastest right candidate and its milliseconds; why others are out is appended to `refusals`."""
        self.workspace = self.device.allocate(max((e.workspace for e in entries), default=0) + GUARD)
        small = bool(plain) and flops < _SMALL
        self.expected = self._reference(plain) if small else []
        passed, reasons = self._round(entries)
        if plain and not small and len(reasons) > len(passed):
            # Most disagree with the first one, which may be the wrong one: own kernels decide, slow as they are.
            self.expected = self._reference(plain)
            passed, reasons = self._round(entries)
        refusals += reasons
        return self._finals(passed)

    def _round(self, entries: Sequence[E]) -> tuple[list[_Timed[E]], list[str]]:
        """Every candidate once: those that passed, and why the others are out."""
        passed: list[_Timed[E]] = []
        reasons = []
        for entry in entries:
            try:
                reason = self._try(entry, passed)
            except (CudnnError, DeviceError, OutOfMemoryError, MemoryError) as error:
                reason = str(error)
            if reason:
                reasons.append(f"{entry.label}: {reason}")
        return passed, reasons

    def _try(self, entry: E, passed: list[_Timed[E]]) -> str:
        """Run, check and time one candidate; "" or why it is out."""
        run = self._bind(entry)
        self._poison(entry.workspace)
        run()
        reason = self._verdict(entry.workspace)
        if reason:
            return reason
        milliseconds = self._time(run, 1)
        best = min((p.milliseconds for p in passed), default=milliseconds)
        if milliseconds < 3 * best:
            milliseconds = min(milliseconds, self._time(run, self._repeats(milliseconds)))
        passed.append(_Timed(entry, run, milliseconds))
        return ""

    def _finals(self, passed: list[_Timed[E]]) -> tuple[E, float] | None:
        """The best few, timed several times more."""
        finalists = sorted(passed, key=lambda p: p.milliseconds)[:_FINALISTS]
        for one in finalists:
            repeats = self._repeats(one.milliseconds)
            one.milliseconds = median(self._time(one.run, repeats) for _ in range(5))
        winner = min(finalists, key=lambda p: p.milliseconds, default=None)
        return None if winner is None else (winner.entry, winner.milliseconds)

    # -- running --------------------------------------------------------------------------------------------

    def _bind(self, entry: Entry) -> Run:
        return sequence([step.bind(self.device, self._call()) for step in entry.steps])

    def _call(self) -> Call:
        return Call(
            tuple(b.pointer for b in self.inputs),
            tuple(b.pointer + GUARD for b in self.outputs),
            self.workspace.pointer,
            self.stream.handle,
        )

    def _reference(self, steps: Sequence[Step]) -> list[Buffer]:
        """The outputs of own kernels."""
        run = sequence([step.bind(self.device, self._call()) for step in steps])
        self._poison(0)
        run()
        return self._copies()

    def _copies(self) -> list[Buffer]:
        copies = []
        for buffer, spec in zip(self.outputs, self.specs, strict=True):
            held = self.device.allocate(spec.nbytes)
            copy(held, buffer.view(GUARD, spec.nbytes), stream=self.stream)
            copies.append(held)
        self.stream.synchronize()
        return copies

    def _repeats(self, milliseconds: float) -> int:
        """Runs per measurement: about a millisecond's worth, at most 20."""
        return max(1, min(20, int(1.0 / max(milliseconds, 1e-3))))

    def _time(self, run: Run, repeats: int) -> float:
        """Milliseconds per run."""
        start, end = Event(timing=True), Event(timing=True)
        self.stream.record(start)
        for _ in range(repeats):
            run()
        self.stream.record(end)
        return start.elapsed(end) / repeats

    # -- checking -------------------------------------------------------------------------------------------

    def _poison(self, workspace: int) -> None:
        for buffer in self.outputs:
            memset(buffer, _POISON, self.stream)
        memset(self.workspace.view(workspace, GUARD), _POISON, self.stream)

    def _verdict(self, workspace: int) -> str:
        """Whether the last run was right: "" or what is wrong. The first right one becomes the reference."""
        first = not self.expected
        if first:
            self.expected = self._copies()
        reason = self._compare() or self._trespass(workspace)
        if first and reason:
            self.expected = []  # it is no reference for others
        return reason

    def _compare(self) -> str:
        for buffer, expected, spec in zip(self.outputs, self.expected, self.specs, strict=True):
            count = spec.nbytes // spec.dtype.itemsize
            program = _check("compare", spec)
            apart, size, bad, _ = self._ask(program, buffer.pointer + GUARD, expected.pointer, count)
            if bad:
                return f"wrong: {int(bad)} of {count} results are not finite or were not written"
            error = (apart / size) ** 0.5 if size > 0 else apart**0.5
            if not error <= self.tolerance:
                return f"wrong: relative error {error:.2e}, allowed {self.tolerance:.0e}"
        return ""

    def _trespass(self, workspace: int) -> str:
        """Whether something was written where nothing belongs."""
        for buffer, spec in zip(self.outputs, self.specs, strict=True):
            if self._changed(buffer.pointer):
                return "wrong: writes before the output"
            if self._changed(buffer.pointer + GUARD + spec.nbytes):
                return "wrong: writes behind the output"
        return (
            "wrong: writes behind its workspace" if self._changed(self.workspace.pointer + workspace) else ""
        )

    def _ask(
        self, program: Program, a: int, b: int, count: int
    ) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        memset(self.found, 0, self.stream)
        kernel = program.load(self.device)
        arguments = (ctypes.c_void_p(a), ctypes.c_void_p(b), ctypes.c_void_p(self.found.pointer))
        grid = blocks_for(count, 256)
        kernel.launch(grid, 256, *arguments, ctypes.c_longlong(count), stream=self.stream)
        return self._answer()

    def _changed(self, place: int) -> bool:
        memset(self.found, 0, self.stream)
        kernel = _check("count_changed", None).load(self.device)
        arguments = (ctypes.c_void_p(place), ctypes.c_longlong(GUARD), ctypes.c_int(_POISON))
        kernel.launch(4, 256, *arguments, ctypes.c_void_p(self.found.pointer), stream=self.stream)
        return bool(self._answer()[0])

    def _answer(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        found = np.empty(4, np.float64)
        self.stream.synchronize()
        copy(found, self.found)
        return found

    def _random(self, spec: Spec, seed: int) -> Buffer:
        """A buffer of random elements, gaps included."""
        buffer = self.device.allocate(spec.nbytes)
        count = spec.nbytes // spec.dtype.itemsize
        if count:
            kernel = _check("fill_random", spec).load(self.device)
            arguments = (ctypes.c_void_p(buffer.pointer), ctypes.c_longlong(count), ctypes.c_ulonglong(seed))
            kernel.launch(blocks_for(count, 256), 256, *arguments, stream=self.stream)
        return buffer


def _check(name: str, spec: Spec | None) -> Program:
    kind = "u8" if spec is None else c_type(spec.dtype)
    return Program(name, "check.cu", f"typedef {kind} T;\n")
