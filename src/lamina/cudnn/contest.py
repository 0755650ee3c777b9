"""The contest: candidates run on scratch copies of the operands, are checked and timed; the fastest correct one wins.

A candidate is rejected, however fast it is, if its results differ from the reference, leave part of an output
unwritten, or if it writes outside of the output or its workspace. The first candidate, the heuristic's, wins unless
another one is clearly faster, measured alternately with it; where none seems to be, nothing is measured again.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Generic, Protocol, TypeVar

import numpy as np

from lamina.c.errors import CudnnError
from lamina.runtime import (
    Buffer,
    Device,
    DeviceError,
    Event,
    Kernel,
    OutOfMemoryError,
    compile_cubin,
    compile_kernel,
    copy,
    early_starts,
    memset,
)

#: Guard bytes before and after each output, and after the workspace, that must stay unchanged.
GUARD = 4096
_POISON = 0xFF  # NaN in every float type
#: Candidates that are timed again, alternately, and how often; then the best one against the first, more often,
#: unless all of the first rounds agree.
_FINALISTS, _ROUNDS, _DUEL, _AGREEING = 4, 5, 15, 5
#: Multiples of the best time within which a candidate is timed again, and enters the final.
_NEAR, _CLOSE = 1.5, 1.1
#: The relative margin over the first candidate's time, and the least margin in milliseconds, by which another one
#: must be faster.
_PART, _LEAST = 0.02, 1e-3
#: If the finals are decided by this multiple of the margin, nothing is measured again.
_CLEAR = 5.0
#: Operands are copied, so that runs cycle through the copies, until they fill this many bytes and twice a GPU's L2
#: cache, but at most this often.
_FILL, _MOST_COPIES = 128 << 20, 4
#: Freed memory that the process may keep afterwards; more is returned, since other processes may tune on the same
#: GPU.
_KEPT = 1 << 30
#: Approximate milliseconds of one measurement, and the most runs in it.
_SPAN, _MOST_RUNS = 0.5, 40
#: Runs shorter than this (milliseconds) are queued behind a pause; otherwise the host's launch time would be
#: measured.
_SHORT = 0.2
#: A candidate whose first run exceeds this multiple of the best time, and this many milliseconds, is not run again.
_HOPELESS, _LONG = 20.0, 20.0
#: Blocks per multiprocessor beyond which check kernels loop.
_WAVES = 16

Run = Callable[[], None]


# ----------------------------------------------------------------------------------------------- check kernels

_FILE = Path(__file__).with_name("check.cu")
_SMALL_FLOAT = (
    "typedef unsigned {type} T;\n#define EXPONENT {e}\n#define MANTISSA {m}\n#define INFINITIES {i}\n"
)
_INTEGER = (
    "typedef {type} T;\n#define NUMBER\n#define WHOLE\n#define MODULUS {modulus}\n#define LEAST ({least})\n"
)
_KINDS = {
    "float64": "typedef double T;\n#define NUMBER\n",
    "float32": "typedef float T;\n#define NUMBER\n",
    "float16": _SMALL_FLOAT.format(type="short", e=5, m=10, i=1),
    "bfloat16": _SMALL_FLOAT.format(type="short", e=8, m=7, i=1),
    "float8_e4m3fn": _SMALL_FLOAT.format(type="char", e=4, m=3, i=0),
    "float8_e5m2": _SMALL_FLOAT.format(type="char", e=5, m=2, i=1),
    "int64": _INTEGER.format(type="long long", modulus=5, least=-2),
    "int32": _INTEGER.format(type="int", modulus=5, least=-2),
    "int16": _INTEGER.format(type="short", modulus=5, least=-2),
    "int8": _INTEGER.format(type="signed char", modulus=5, least=-2),
    "uint8": _INTEGER.format(type="unsigned char", modulus=5, least=0),
    "bool": _INTEGER.format(type="unsigned char", modulus=2, least=0),
}
ITEM_SIZES = {
    **{"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1},
    **{"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1},
}


@dataclass(frozen=True)
class Check:
    """One of check.cu's kernels for one element type."""

    name: str
    data_type: str = "uint8"

    @property
    def source(self) -> str:
        """The source that is passed to the compiler."""
        return _KINDS[self.data_type] + _FILE.read_text()

    def cubin(self, arch: str) -> bytes:
        """Machine code for an architecture; needs no GPU."""
        return compile_cubin(self.source, arch=arch, name=self.name)

    def load(self, device: Device) -> Kernel:
        """The kernel, loaded on a device."""
        return _loaded(self, device)


@lru_cache(maxsize=256)
def _loaded(check: Check, device: Device) -> Kernel:
    return compile_kernel(check.source, check.name, device=device)


def checks_of(data_types: Collection[str]) -> list[Check]:
    """The check kernels for contests on operands of these types."""
    typed = [Check(name, data_type) for name in ("compare", "fill_random") for data_type in data_types]
    return [Check("count_changed"), Check("occupy"), *typed]


# ---------------------------------------------------------------------------------------------------- operands


@dataclass(frozen=True)
class OperandMemory:
    """A contest's view of a tensor.

    nbytes: from its first element to its last. data_type: a name of `ITEM_SIZES`. gaps: elements in between that
    do not belong to it. updated: the operation reads it before it writes it (beta is not 0).
    """

    nbytes: int
    data_type: str
    gaps: int = 0
    updated: bool = False

    @property
    def count(self) -> int:
        """Elements, gaps included."""
        return self.nbytes // ITEM_SIZES[self.data_type]


class Entry(Protocol):
    """A contest's view of a candidate."""

    @property
    def label(self) -> str:
        """Its name."""
        ...

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        ...

    def bind(self, inputs: Sequence[int], outputs: Sequence[int], workspace: int, stream: int) -> Run:
        """A function that queues it on these addresses and this stream."""
        ...


E = TypeVar("E", bound=Entry)
R = TypeVar("R")


@dataclass
class _Passed(Generic[E]):
    """A candidate that passed, bound to each copy of the operands, and its time in milliseconds."""

    entry: E
    runs: list[Run]
    milliseconds: float = 0.0
    queueing: float = 0.0  # host seconds of one run


def _beats(one: _Passed[E], holder: _Passed[E], times: float = 1.0) -> bool:
    """Whether it is faster than the present holder by this multiple of the margin."""
    won = holder.milliseconds - one.milliseconds
    return one is not holder and won >= times * _counts(holder.milliseconds)


def _counts(milliseconds: float) -> float:
    """The milliseconds by which another candidate must be faster than one of this time."""
    return max(_PART * milliseconds, _LEAST)


def _agree(times: Sequence[list[float]]) -> bool:
    """Whether all rounds of holder and challenger agree: faster by the margin, or not."""
    said = {held - other >= _counts(held) for held, other in zip(*times, strict=True)}
    return len(said) == 1 and len(times[0]) >= _AGREEING


def finished(slices: Generator[str, None, R]) -> R:
    """Run a generator to its end and give its return value."""
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: R = end.value
            return found


class Contest:
    """Buffers for one problem, and the procedure for each candidate.

    Beside copies of the operands (a GPU's cache full, or one copy of larger ones) it takes as much workspace as the
    largest candidate asks for. Where memory is short there are fewer copies, and candidates that do not fit are
    rejected.

    Args:
        device: the GPU.
        inputs, outputs: descriptions of the operands.
        tolerance: the largest relative error (in the 2-norm) of a correct result.
        values: input's index -> address of its values (copied); the others are random.
        room: the most bytes that it may take; None: all that is free.

    Raises:
        MemoryError: one copy of the operands does not fit into `room`. OutOfMemoryError: or on the device.
    """

    def __init__(
        self,
        device: Device,
        inputs: Sequence[OperandMemory],
        outputs: Sequence[OperandMemory],
        tolerance: float,
        values: Mapping[int, int] | None = None,
        room: int | None = None,
    ) -> None:
        self.device, self.tolerance = device, tolerance
        self.results = tuple(outputs)
        self.stream = device.default_stream
        self.found = device.allocate(4 * 8)
        self.workspace = self._nothing = device.allocate(0)
        self.expected: list[Buffer] = []
        size = sum(m.nbytes for m in (*inputs, *outputs))
        self._room = (1 << 62 if room is None else room) - sum(m.nbytes for m in outputs)
        if self._room < size:
            raise MemoryError(f"the operands of a contest take {size} bytes, {room} are free for it")
        self._right = [device.allocate(m.nbytes) for m in outputs]  # the expected results
        self.copies = [self._operands(inputs, values or {}, 0)]
        self.inputs, self.outputs = self.copies[0]
        fill = min(max(_FILL, 2 * device.machine.l2_bytes), self._room)
        self._wanted = min(_MOST_COPIES, -(-fill // max(size, 1)), self._room // max(size, 1))
        self._size, self._given = size, (inputs, values or {})
        self._room -= size  # left for further copies, and for candidates' workspaces
        self._start, self._end = Event(timing=True), Event(timing=True)

    def place(self) -> Generator[str, None, None]:
        """Copy the operands until they fill the cache, as far as memory allows; in parts, as `slices`."""
        for number in range(len(self.copies), self._wanted):
            yield "place"
            try:
                self.copies.append(self._operands(*self._given, number))
            except OutOfMemoryError:
                return
            self._room -= self._size

    def _operands(
        self, inputs: Sequence[OperandMemory], values: Mapping[int, int], number: int
    ) -> tuple[list[Buffer], list[Buffer]]:
        held = []
        for index, memory in enumerate(inputs):
            buffer = self.device.allocate(memory.nbytes)
            if index in values:
                copy(buffer, Buffer.borrow(values[index], memory.nbytes, self.device), stream=self.stream)
            else:
                self._draw(buffer, memory, 1 + index + 1000 * number)
            held.append(buffer)
        made = [self.device.allocate(m.nbytes + 2 * GUARD) for m in self.results]
        for buffer, memory in zip(made, self.results, strict=True):
            if memory.updated:
                self._draw(buffer.view(GUARD, memory.nbytes), memory, 999)
        return held, made

    # -- the contest ----------------------------------------------------------------------------------------

    def best(
        self,
        entries: Sequence[E],
        *,
        plain: Entry | None = None,
        slow: bool = False,
        refusals: list[str],
        times: list[tuple[E, float]] | None = None,
    ) -> tuple[E, float] | None:
        """The fastest correct candidate and its milliseconds; call it once, since memory is freed afterwards.

        The arguments are those of `slices`.
        """
        return finished(self.slices(entries, plain=plain, slow=slow, refusals=refusals, times=times))

    def slices(
        self,
        entries: Sequence[E],
        *,
        plain: Entry | None = None,
        slow: bool = False,
        refusals: list[str],
        times: list[tuple[E, float]] | None = None,
    ) -> Generator[str, None, tuple[E, float] | None]:
        """The contest in small parts, one at each `next`, which gives the kind of the next one: "place" (memory for
        operands), "run" (a candidate's first run and check) or "time" (one measurement). It returns the fastest
        correct candidate and its milliseconds. Call it once: the memory is freed at the end, or when the generator is
        closed.

        Args:
            entries: the candidates; the first one wins unless another is faster by 2 % and by a microsecond.
            plain: computes the reference. Without it, the first candidate's results are the reference.
            slow: `plain` takes so long that it only runs when most candidates disagree with the first one.
            refusals: a list to which the reasons for rejections are appended.
            times: a list to which every correct candidate is appended with its milliseconds.
        """
        given_up = False
        try:
            yield from self.place()
            fitting = self._give_room(entries, refusals)
            self.expected = self._reference(plain, refusals) if plain and not slow else []
            passed, reasons = yield from self._round(fitting)
            if plain and slow and len(reasons) > len(passed):
                self.expected = self._reference(plain, refusals)
                passed, reasons = yield from self._round(fitting)
            refusals += reasons
            best = (yield from self._finals(passed, entries[0])) if passed else None
            if times is not None:
                times += [(one.entry, one.milliseconds) for one in passed]
            return best
        except GeneratorExit:  # perhaps inside garbage collection, which may take no lock
            given_up = True
            raise
        finally:
            self._close()
            if not given_up and self.device.statistics().cached > _KEPT:
                self.device.empty_cache()

    def _give_room(self, entries: Sequence[E], refusals: list[str]) -> list[E]:
        """Allocate the largest workspace for which there is memory; the entries for which it suffices."""
        sizes = sorted({e.workspace for e in entries if e.workspace <= self._room}, reverse=True)
        while sizes:
            try:
                self.workspace = self.device.allocate(sizes[0] + GUARD)
                break
            except OutOfMemoryError:
                if len(self.copies) > 1:
                    del self.copies[1:]
                elif sizes.pop(0) == 0:
                    raise
        most = sizes[0] if sizes else 0
        out = [e for e in entries if e.workspace > most]
        refusals += [f"{e.label}: out of memory: its workspace takes {e.workspace} bytes" for e in out]
        return [e for e in entries if e.workspace <= most]

    def _close(self) -> None:
        """Free all memory; without a lock, since garbage collection may call it anywhere."""
        self.copies, self.inputs, self.outputs, self.expected, self._right = [], [], [], [], []
        self.found = self.workspace = self._nothing

    def _round(self, entries: Sequence[E]) -> Generator[str, None, tuple[list[_Passed[E]], list[str]]]:
        """Every candidate once: those that passed, and the reasons for rejecting the others."""
        passed: list[_Passed[E]] = []
        reasons = []
        for entry in entries:
            yield "run"
            try:
                reason = yield from self._try(entry, passed)
            except (CudnnError, DeviceError, OutOfMemoryError, MemoryError) as error:
                reason = str(error)
            if reason:
                reasons.append(f"{entry.label}: {reason}")
        return passed, reasons

    def _try(self, entry: E, passed: list[_Passed[E]]) -> Generator[str, None, str]:
        """Run, check and time one candidate; "" or the reason for its rejection."""
        one = _Passed(entry, [self._bind(entry, copied) for copied in self.copies])
        self._poison(entry.workspace)
        one.milliseconds = self._first(one)
        reason = self._verdict(entry.workspace)
        if reason:
            return reason
        best = min((p.milliseconds for p in passed), default=float("inf"))
        if one.milliseconds > max(_HOPELESS * best, _LONG):
            passed.append(one)
            return ""
        yield "time"
        one.milliseconds = self._time(one, len(one.runs))
        queued = 2e3 * one.queueing > one.milliseconds  # the measurement may be the host's launch time
        if queued or one.milliseconds < _NEAR * best:
            one.milliseconds = min(one.milliseconds, self._time(one))
        passed.append(one)
        return ""

    def _finals(self, passed: list[_Passed[E]], first: E) -> Generator[str, None, tuple[E, float]]:
        """Time the best few and the first alternately; then the best one against the first, if it is close."""
        ranked = sorted(passed, key=lambda p: p.milliseconds)
        held = next((p for p in passed if p.entry is first), None)
        if held is not None and not _beats(ranked[0], held, 0.5):
            return held.entry, held.milliseconds
        near = [p for p in ranked[:_FINALISTS] if p.milliseconds <= _CLOSE * ranked[0].milliseconds]
        finalists = near + [p for p in ranked[len(near) :] if p.entry is first]
        yield from self._in_turns(finalists, _ROUNDS)
        winner = min(finalists, key=lambda p: p.milliseconds)
        holder = next((p for p in finalists if p.entry is first), winner)
        if winner is not holder and not _beats(winner, holder, _CLEAR):
            yield from self._in_turns([holder, winner], _DUEL, _agree)
        best = winner if _beats(winner, holder) else holder
        return best.entry, best.milliseconds

    def _in_turns(
        self,
        finalists: Sequence[_Passed[E]],
        rounds: int,
        enough: Callable[[Sequence[list[float]]], bool] = lambda times: False,
    ) -> Generator[str, None, None]:
        """Set each one's milliseconds to the median of `rounds` alternating measurements; of fewer, once `enough`
        accepts the measurements so far (a list for each finalist)."""
        times: list[list[float]] = [[] for _ in finalists]
        for _ in range(rounds):
            for one, found in zip(finalists, times, strict=True):
                yield "time"
                found.append(self._time(one))
            if enough(times):
                break
        for one, found in zip(finalists, times, strict=True):
            one.milliseconds = median(found)

    # -- running --------------------------------------------------------------------------------------------

    def _bind(self, entry: Entry, copied: tuple[list[Buffer], list[Buffer]]) -> Run:
        inputs, outputs = copied
        return entry.bind(
            [b.pointer for b in inputs],
            [b.pointer + GUARD for b in outputs],
            self.workspace.pointer,
            self.stream.handle,
        )

    def _reference(self, plain: Entry, refusals: list[str]) -> list[Buffer]:
        """The reference outputs; none where the workspace does not fit."""
        if plain.workspace + GUARD > self.workspace.nbytes:
            try:
                self.workspace = self.device.allocate(plain.workspace + GUARD)
            except OutOfMemoryError as error:
                refusals.append(f"{plain.label}: {error}")
                return []
        run = self._bind(plain, self.copies[0])
        self._poison(plain.workspace)
        run()
        return self._kept()

    def _kept(self) -> list[Buffer]:
        """Copies of the present outputs."""
        for held, buffer, memory in zip(self._right, self.outputs, self.results, strict=True):
            copy(held, buffer.view(GUARD, memory.nbytes), stream=self.stream)
        self.stream.synchronize()
        return self._right

    def _first(self, one: _Passed[E]) -> float:
        """Milliseconds of the first run, which loads the kernel."""
        self.stream.record(self._start)
        one.runs[0]()
        self.stream.record(self._end)
        return self._start.elapsed(self._end)

    def _time(self, one: _Passed[E], runs: int = 0) -> float:
        """Milliseconds per run over `runs` runs (0: as many as take half a millisecond), cycling through the
        copies."""
        count = runs or max(1, min(_MOST_RUNS, int(_SPAN / max(one.milliseconds, 1e-3))))
        if self.device.kind == "cuda" and 0 < one.milliseconds < _SHORT:
            cycles = int(1.5 * count * one.queueing * self.device.machine.clock)
            kernel = Check("occupy").load(self.device)
            kernel.launch(1, 1, ctypes.c_longlong(cycles), stream=self.stream)
        self.stream.record(self._start)
        began = time.perf_counter()
        # Otherwise launches by libraries would wait longer for preceding work than those of own kernels.
        with early_starts():
            for number in range(count):
                one.runs[number % len(one.runs)]()
        one.queueing = (time.perf_counter() - began) / count
        self.stream.record(self._end)
        return self._start.elapsed(self._end) / count

    # -- checking -------------------------------------------------------------------------------------------

    def _poison(self, workspace: int) -> None:
        for buffer, memory in zip(self.outputs, self.results, strict=True):
            memset(buffer, _POISON, self.stream)
            if memory.updated:
                self._draw(buffer.view(GUARD, memory.nbytes), memory, 999)
        memset(self.workspace.view(workspace, GUARD), _POISON, self.stream)

    def _verdict(self, workspace: int) -> str:
        """The check of the last run: "" or what is wrong. The first correct result becomes the reference."""
        first = not self.expected
        if first:
            self.expected = self._kept()
        reason = self._compare() or self._trespass(workspace)
        if first and reason:
            self.expected = []  # it must not serve as reference for others
        return reason

    def _compare(self) -> str:
        for buffer, expected, memory in zip(self.outputs, self.expected, self.results, strict=True):
            if not memory.count:
                continue
            apart, size, bad, odd = self._ask(memory, buffer.pointer + GUARD, expected.pointer)
            if bad != memory.gaps or odd:
                wrong = max(int(bad) - memory.gaps, int(odd))
                return f"wrong: {wrong} of {memory.count} results are not finite or were not written"
            error = (apart / size) ** 0.5 if size > 0 else apart**0.5
            if not error <= self.tolerance:
                return f"wrong: relative error {error:.2e}, allowed {self.tolerance:.0e}"
        return ""

    def _trespass(self, workspace: int) -> str:
        """Whether something was written out of bounds."""
        for buffer, memory in zip(self.outputs, self.results, strict=True):
            if self._changed(buffer.pointer):
                return "wrong: writes before the output"
            if self._changed(buffer.pointer + GUARD + memory.nbytes):
                return "wrong: writes past the end of the output"
        behind = self._changed(self.workspace.pointer + workspace)
        return "wrong: writes past the end of its workspace" if behind else ""

    def _ask(self, memory: OperandMemory, a: int, b: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        memset(self.found, 0, self.stream)
        kernel = Check("compare", memory.data_type).load(self.device)
        arguments = (ctypes.c_void_p(a), ctypes.c_void_p(b), ctypes.c_void_p(self.found.pointer))
        blocks = self._blocks(memory.count)
        kernel.launch(blocks, 256, *arguments, ctypes.c_longlong(memory.count), stream=self.stream)
        return self._answer()

    def _changed(self, place: int) -> bool:
        memset(self.found, 0, self.stream)
        kernel = Check("count_changed").load(self.device)
        arguments = (ctypes.c_void_p(place), ctypes.c_longlong(GUARD), ctypes.c_int(_POISON))
        kernel.launch(4, 256, *arguments, ctypes.c_void_p(self.found.pointer), stream=self.stream)
        return bool(self._answer()[0])

    def _answer(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        found = np.empty(4, np.float64)
        self.stream.synchronize()
        copy(found, self.found)
        return found

    def _draw(self, buffer: Buffer, memory: OperandMemory, seed: int) -> None:
        """Fill a buffer with random elements, gaps included."""
        if memory.count:
            kernel = Check("fill_random", memory.data_type).load(self.device)
            arguments = (ctypes.c_void_p(buffer.pointer), ctypes.c_longlong(memory.count))
            kernel.launch(
                self._blocks(memory.count), 256, *arguments, ctypes.c_ulonglong(seed), stream=self.stream
            )

    def _blocks(self, count: int) -> int:
        """Blocks of 256 threads for `count` elements; threads loop over the rest."""
        return max(1, min(-(-count // 256), _WAVES * self.device.machine.multiprocessors))
