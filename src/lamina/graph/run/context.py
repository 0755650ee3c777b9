"""One call's part of an executable: the memory that a call writes, and the kernels bound to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from time import monotonic_ns
from typing import Any

import numpy as np

from lamina.backends import Call, Run
from lamina.backends.quiet import together
from lamina.graph.planning.cost import least_seconds
from lamina.graph.planning.program import PlannedGraph, PlannedStep, Slot
from lamina.graph.planning.streams import Footprint, assign_streams, waits
from lamina.graph.run.captured import (
    LYING,
    PINNED,
    WRITTEN,
    CannotMove,
    Captured,
    GraphCopy,
    Ways,
    queue_copies,
)
from lamina.graph.run.collector import collector_paused
from lamina.graph.run.staging import Staged
from lamina.graph.run.timeline import StepTime, Timeline, next_call
from lamina.ops.finite import check_fused, check_given, check_results, is_finite
from lamina.ops.primitives.collective import Arrived, Collective, Exchange
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.runtime import (
    Buffer,
    CapturedGraph,
    Device,
    Event,
    LibraryState,
    OutOfMemoryError,
    Stream,
    copy,
    library_state,
    memset,
    pinned,
    retry_capture,
)
from lamina.runtime.memory import Shelf
from lamina.runtime.ranks import current_world
from lamina.runtime.ranks.progress import group_name, progress
from lamina.spec import Spec, current_policy, pack
from lamina.tensors import Tensor, relayout

#: On a CPU, inputs of at least this many bytes are read and outputs written in place: copying less costs no more than
#: binding the kernels that touch it. And how many sets of addresses the kernels stay bound to.
_IN_PLACE, _BOUND = 1 << 18, 16
#: The alignment of memory that a GPU's kernels read in place: for vectorized accesses, and as promised to libraries.
_GPU_ALIGNMENT = 256
#: Bytes whose copy takes a GPU as long as a kernel launch takes the host.
_MUCH = 4 << 20
#: For how many combinations of ways in which inputs arrive a graph is kept.
_MOST_WAYS = 4
#: An input of a call: a tensor, a row-major array where the device is the host, or one on its way to the device.
Given = Tensor | np.ndarray[Any, Any] | Staged


class ExecutionContext:
    """The arena, the places of inputs and outputs, and the kernels bound to them, for one call at a time.

    Several contexts of one executable share the weights, the constants, and what was made of them.

    program: what runs. results: the slots of the outputs that calls return.
    shared: the memory of state and of everything that calls do not write, by slot; the executable's.
    poison: fill memory with NaNs as soon as it is dead. stream: where it runs, by default the device's own.
    """

    def __init__(
        self,
        program: PlannedGraph,
        results: Sequence[Slot],
        shared: Mapping[Slot, Buffer],
        device: Device,
        poison: bool,
        stream: Stream | None = None,
    ) -> None:
        self.program, self.device = program, device
        self._together = _together(program)  # the collectives
        self._is_known = False  # to the watchdogs of other ranks
        self._platform, self._stream = device.platform, stream or device.default_stream
        self._here = device.default_stream.device  # the device as buffers name it
        self._shelves = [
            Shelf(self._platform.arena, self._here, s.spec.nbytes, self._stream) for s in results
        ]
        self._lying: dict[Slot, Spec] = {}  # specs of the latest inputs that could be read in place
        self._results, self._shared, self._poison = results, shared, poison
        self._own: dict[Slot, Buffer] = {}
        self._read, self._written = self._moving()  # inputs and outputs whose addresses change with each call
        self._elsewhere = (*self._read, *self._written)
        self._fresh = [
            (s, shelf) for s, shelf in zip(results, self._shelves, strict=True) if s in self._written
        ]
        self._runs: list[Run] = []  # every step at its addresses
        self._calls: list[Run] = []  # the same, with those together that NumPy computes
        # Whether a graph can hold every step; if not, those between the others are graphs of their own.
        self._is_whole = all(step.capturable for step in program.steps)
        # Whether kernels are launched one by one, not as a graph.
        self._in_turn = (
            not self._stream.queues or bool(self._read | self._written) or (poison and not self._is_whole)
        )
        # The same, by the addresses of moving inputs and outputs, with the library handles that they use.
        self._bound: dict[tuple[int, ...], tuple[list[Run], list[Run], LibraryState]] = {}
        # Whether the recorded graph copies a call's operands and results itself, so that a call is one launch.
        self._carries = self._is_whole and not (poison or self._in_turn or self._together)
        self._captured: dict[Ways | None, Captured] = {}  # by ways of arrival; None: copied outside of it
        self._stamped: _Stamped | None = None  # likewise, for timelines
        self._known_ways: list[Ways | None] = []  # the ways captured before the last unbind
        self._rehearsed = (
            False  # whether every kernel ran once: libraries load lazily, and must not do so during capture
        )
        self._allocate()

    def _allocate(self) -> None:
        self._place_temporaries()
        for slot in self.program.inputs:
            if slot.kind == "input":
                self._own[slot] = self.device.allocate(slot.spec.nbytes, stream=self._stream)
                if slot.spec.nbytes and not slot.spec.dtype.is_float and self.device.kind == "cpu":
                    # Kernels that are timed before a call must not meet labels out of range.
                    self._own[slot].array((slot.spec.nbytes,), np.uint8)[:] = 0

    def _place_temporaries(self) -> None:
        arena = self.device.allocate(self.program.placement.nbytes, stream=self._stream)
        for slot, offset in zip(self.program.temporaries, self.program.placement.offsets, strict=True):
            self._own[slot] = arena.view(offset, slot.spec.nbytes)

    def change(self, program: PlannedGraph) -> None:
        """Run another program from the next call on that differs only in plans and workspaces (`with_plans`), and
        whose kernels have all run before. Raises OutOfMemoryError, and then changes nothing."""
        before, rehearsed = self.program, self._rehearsed
        try:
            self._adopt(program)
        except OutOfMemoryError:
            self._adopt(before)  # whose memory has just been freed
            raise
        finally:
            self._rehearsed = rehearsed

    def record(self) -> None:
        """Capture the program now instead of at the next call. Raises CaptureInvalidated where that is not
        possible."""
        if self._rehearsed and not self._captured and not self._in_turn:
            try:
                for ways in self._known_ways or [None]:
                    self._capture(ways)
            except CannotMove:
                self._carries = False
                self._capture(None)

    def _adopt(self, program: PlannedGraph) -> None:
        """Place a program's temporaries, in the previous program's arena if they fit."""
        self.unbind()
        for slot in self.program.temporaries:
            self._own.pop(slot, None)
        if program.placement.nbytes > self.program.placement.nbytes:
            self.device.empty_cache()  # or the old arena would be kept cached beside a larger one
        self.program = program
        self._place_temporaries()

    @property
    def is_captured(self) -> bool:
        """Whether calls launch one CUDA graph."""
        return bool(self._captured)

    # ---- addresses
    def bound(self, step: PlannedStep, stream: Stream | None = None) -> Run:
        """The step at its addresses, on the default stream or another one. It belongs to the thread that binds it."""
        return step.plan.bind(
            Call(
                tuple([self._pointer(s) for s in step.inputs]),
                tuple([self._pointer(s) for s in step.outputs]),
                self._pointer(step.workspace) if step.workspace else 0,
                (stream or self._stream).handle,
            )
        )

    def synchronize(self) -> None:
        """Wait for all that it has queued."""
        self._stream.synchronize()

    def unbind(self) -> None:
        """Shared memory has moved: drop whatever holds its addresses; the next call rebuilds it."""
        for captured in self._captured.values():
            captured.close()
        if self._stamped is not None:
            self._stamped.close()
        self._known_ways = list(self._captured)
        self._captured, self._stamped, self._rehearsed = {}, None, False
        self._runs = []
        self._bound.clear()

    def _memory(self, slot: Slot) -> Buffer:
        whole = self._whole(slot.base)
        return whole if slot.base is slot else whole.view(slot.offset, slot.spec.nbytes)

    def _whole(self, base: Slot) -> Buffer:
        own = self._own.get(base)
        return self._shared[base] if own is None else own

    def _pointer(self, slot: Slot) -> int:
        return self._whole(slot.base).pointer + slot.offset

    def _bound_runs(self, stream: Stream) -> list[Run]:
        """The bound steps of a call, in order."""
        runs = []
        with collector_paused():
            for index, step in enumerate(self.program.steps):
                if not step.plan.view:
                    runs.append(self.bound(step, stream))
                if self._poison:
                    runs += self._poisoning(index, stream)
        return runs

    def _poisoning(self, index: int, stream: Stream) -> list[Run]:
        """Fill the slots that die with step `index` with 0xff: NaN in every float type."""
        dead = [s for s in self.program.temporaries if s.last == index]
        return [partial(memset, self._own[s], 255, stream) for s in dead]

    # ---- one call
    def __call__(self, inputs: Sequence[tuple[Slot, Given]]) -> tuple[Tensor, ...]:
        """Run on these inputs: the slot of each, and a tensor or array of its shape and dtype."""
        timeline, watched = next_call(), current_policy().check_finite
        if self._carries and self._rehearsed and timeline is None and not watched:
            found = self._carried(inputs)
            if found is not None:
                return found
        if not (self._read or self._written):
            return self._results_of(inputs, timeline, watched)
        home = {slot: self._own[slot] for slot in self._elsewhere}
        try:
            for slot, shelf in self._fresh:
                self._own[slot] = shelf.take()
            return self._results_of(inputs, timeline, watched)
        finally:
            self._own |= home

    def _results_of(
        self, inputs: Sequence[tuple[Slot, Given]], timeline: Timeline | None, watched: bool
    ) -> tuple[Tensor, ...]:
        for slot, x in inputs:
            there = self._readable(slot, x) if slot in self._read else None
            if there is None:
                self._write(slot, self._own[slot], x)
            else:
                self._own[slot] = there
                if self._stream.queues:
                    there.used_on(self._stream)
        self._launch(timeline, watched)
        return tuple(
            [
                Tensor(self._own[s] if s in self._written else self._copied(s, shelf), s.spec)
                for s, shelf in zip(self._results, self._shelves, strict=True)
            ]
        )

    # ---- a call that is one launch
    def _carried(self, inputs: Sequence[tuple[Slot, Given]]) -> tuple[Tensor, ...] | None:
        """Launch a graph that copies operands from where they are, and results to memory of their own; None where the
        driver does not support that."""
        ways, sources, here = [], list[Buffer | None](), self._here
        for slot, x in inputs:
            way, source = WRITTEN, None
            if isinstance(x, Tensor):
                buffer, spec = x.buffer, x.spec
                if (buffer.device is here or buffer.device == here) and (
                    spec is self._lying.get(slot) or self._lies(slot, spec)
                ):
                    way, source = LYING, buffer
                    buffer.used_on(self._stream)
            elif isinstance(x, Staged) and x.is_direct:
                way, source = PINNED, x.buffer
            ways.append(way)
            sources.append(source)
        try:
            return self._sent(inputs, tuple(ways), sources)
        except CannotMove:  # an operand's kind of memory does not support such copies
            try:
                return self._sent(inputs, (WRITTEN,) * len(ways), [None] * len(ways))
            except CannotMove:
                self._carries = False
                return None

    def _is_ready(self, slot: Slot, x: Tensor) -> bool:
        """Whether x is on this device, in the layout of the slot's place, and not empty."""
        here = x.buffer.device
        return (here is self._here or here == self.device) and (
            x.spec is self._lying.get(slot) or self._lies(slot, x.spec)
        )

    def _lies(self, slot: Slot, spec: Spec) -> bool:
        """Whether the elements of an input have the layout of its place, and there are any."""
        if spec.nbytes and spec.same_memory(slot.spec):
            self._lying[slot] = spec
            return True
        return False

    def _sent(
        self, inputs: Sequence[tuple[Slot, Given]], ways: Ways, sources: Sequence[Buffer | None]
    ) -> tuple[Tensor, ...]:
        """Launch the graph for these ways of arrival. Raises CannotMove before anything is written or launched."""
        captured = self._captured.get(ways) or self._captured_for(ways)
        places = self._destinations()
        captured.move(sources, places)
        if WRITTEN in ways:
            for (slot, x), way in zip(inputs, ways, strict=True):
                if way == WRITTEN:
                    self._write(slot, self._own[slot], x)
        captured.launch()
        if PINNED in ways:
            for (_, x), way in zip(inputs, ways, strict=True):
                if way == PINNED:
                    x.is_read_on(self._stream)  # type: ignore[union-attr]
        results = []
        for i, slot in enumerate(self._results):
            results.append(Tensor(places[i], slot.spec))
        return tuple(results)

    def _captured_for(self, ways: Ways) -> Captured:
        """The graph for these ways of arrival. Raises CannotMove where enough other ways have one."""
        if len(self._captured) >= _MOST_WAYS and any(ways):
            raise CannotMove
        self._capture(ways)
        return self._captured[ways]

    def _destinations(self) -> list[Buffer]:
        """Memory for the results of a call."""
        places = []
        for shelf in self._shelves:
            places.append(shelf.take())
        return places

    def _write(self, slot: Slot, place: Buffer, x: Given) -> None:
        """Copy x into its place, whose layout is row-major."""
        spec, stream = slot.spec, self._stream
        if isinstance(x, Tensor) and self._is_ready(slot, x):
            self._copy(place, x.buffer, spec.nbytes)
        elif isinstance(x, Staged):
            x.send(place, stream)
        elif isinstance(x, np.ndarray):
            if spec.nbytes:
                self._platform.copy(place.pointer, x.ctypes.data, spec.nbytes, stream)
        elif x.device is not self.device and x.device != self.device:
            copy(place, x.contiguous().buffer, spec.nbytes, stream=stream)
        elif x.spec.same_memory(spec):
            self._copy(place, x.buffer, spec.nbytes)
        else:
            relayout(x, spec, place)

    def _copy(self, to: Buffer, source: Buffer, nbytes: int) -> None:
        """Queue a copy within the device: `runtime.copy` without checks of its operands."""
        if nbytes:
            self._platform.copy(to.pointer, source.pointer, nbytes, self._stream)
            if self._stream.queues:
                source.used_on(self._stream)

    def _copied(self, slot: Slot, shelf: Shelf) -> Buffer:
        """The output in memory of its own, since the next call overwrites the arena."""
        buffer = self.device.allocate(slot.spec.nbytes) if self._stream.queues else shelf.take()
        self._copy(buffer, self._memory(slot), slot.spec.nbytes)
        return buffer

    # ---- kernels
    def _launch(self, timeline: Timeline | None, watched: bool) -> None:
        if self._together:
            self._tell_ranks()
        if watched:
            self._watch()
        elif timeline is not None and (self._rehearsed or not self._stream.queues):
            self._launch_timed(timeline)
        elif None in self._captured:
            self._captured[None].launch()
        elif self._in_turn:
            for run in self._runs_here()[1]:
                run()
            self._rehearsed = True
        elif self._rehearsed:
            self._capture(None)
            self._captured[None].launch()
        else:
            self._runs = self._bound_runs(self._stream)
            for run in self._runs:
                run()
            self._rehearsed = True

    def _tell_ranks(self) -> None:
        """Announce this rank's next collectives, so that mismatches between ranks are detected."""
        if not self._is_known:
            self._is_known = True
            progress.tell_next(len(self._together))
        if self._stream.queues:  # on the host communicators announce each one
            size = current_world().size
            for ranks, what in self._together:
                progress.comes_to(group_name(ranks, size), what)

    def _watch(self) -> None:
        """Run the steps one by one, and check the results of each. Raises NonFiniteError."""
        finite: dict[Slot, bool] = {}
        for step in self.program.steps:
            for slot in step.inputs:  # values that no step makes are checked before a step may overwrite them
                if slot not in finite:
                    check_given(slot.name or str(slot.spec), self._values(slot))
                    finite[slot] = is_finite(self._values(slot))
            sound = all(finite[slot] for slot in step.inputs)
            if step.plan.view:
                finite |= dict.fromkeys(step.outputs, sound)
                continue
            fused = step.node is not None and isinstance(step.node.op, Fused | FusedElementwise)
            read = [self._values(slot).copy() for slot in step.inputs] if fused and sound else []
            self.bound(step)()
            found = [self._values(slot) for slot in step.outputs]
            if sound and step.node is not None and not all(map(is_finite, found)):
                if isinstance(step.node.op, Fused | FusedElementwise):
                    check_fused(step.node.op, step.node.origin, read)
                check_results(step.node.op, step.node.origin, found)
            finite |= {slot: is_finite(y) for slot, y in zip(step.outputs, found, strict=True)}

    def _values(self, slot: Slot) -> np.ndarray[Any, Any]:
        """The current values of a slot, on the host."""
        self.synchronize()
        return Tensor(self._memory(slot), slot.spec).numpy()

    def _capture(self, ways: Ways | None) -> None:
        """Capture all steps as one CUDA graph: those off the critical path on streams of their own.

        Captured on separate streams: what other threads queue meanwhile is not part of it. ways: how inputs arrive
        that the graph copies; None: inputs and results are copied outside the graph. Raises CannotMove.
        """
        steps = self._kernels()
        before, behind = ([], []) if ways is None else (self._arrivals(ways), self._departures())
        if self._is_whole:
            self._captured[ways] = self._piece(steps, before, behind)
        else:
            pieces: list[Captured | Run] = []
            for capturable, several in groupby(steps, lambda step: step.capturable):
                piece = list(several)
                pieces += [self._piece(piece)] if capturable else map(self.bound, piece)
            self._captured[ways] = Captured.in_pieces(pieces)
        self._announce(steps)

    def _piece(
        self,
        steps: Sequence[PlannedStep],
        before: Sequence[GraphCopy | None] = (),
        behind: Sequence[GraphCopy | None] = (),
    ) -> Captured:
        """Successive steps as one CUDA graph, between copies. Raises CannotMove."""
        stream = [0] * len(steps) if self._poison else self._assign_streams(steps)
        graph, runs = retry_capture(lambda: self._recorded(steps, stream, before, behind))
        # The graph reads what the runs hold (tables of addresses).
        return Captured.of(graph, runs, before, behind)

    def _arrivals(self, ways: Ways) -> list[GraphCopy | None]:
        """The copies of operands to their places, from the kind of memory in which they arrive."""
        found: list[GraphCopy | None] = []
        for slot, way in zip(self._given_slots(), ways, strict=True):
            nbytes = slot.spec.nbytes
            if way == WRITTEN:
                found.append(None)
            else:
                source = self.device.allocate(nbytes) if way == LYING else pinned(nbytes)
                found.append(GraphCopy(self._own[slot], source, nbytes))
        return found

    def _departures(self) -> list[GraphCopy | None]:
        """The copies of results to their final memory."""
        pairs = zip(self._results, self._destinations(), strict=True)
        return [
            GraphCopy(place, self._memory(slot), slot.spec.nbytes) if slot.spec.nbytes else None
            for slot, place in pairs
        ]

    def _given_slots(self) -> list[Slot]:
        return [slot for slot in self.program.inputs if slot.kind == "input"]

    def _recorded(
        self,
        steps: Sequence[PlannedStep],
        stream: Sequence[int],
        before: Sequence[GraphCopy | None],
        behind: Sequence[GraphCopy | None],
    ) -> tuple[CapturedGraph, list[Run]]:
        """Steps as one CUDA graph, each on its stream, between copies; with the objects that they need."""
        with self._new_streams(stream) as streams:
            main = streams[0]
            if self._poison:
                runs = self._bound_runs(main)
            else:
                runs = [self.bound(s, streams[k]) for s, k in zip(steps, stream, strict=True)]
            with main.capture(home=self._stream) as captured:
                queue_copies(before, main)
                if any(stream):
                    self._run_on_streams(steps, runs, stream, streams)
                else:
                    for run in runs:
                        run()
                queue_copies(behind, main)
        return captured, runs

    def _kernels(self) -> list[PlannedStep]:
        """The steps that launch something."""
        return [s for s in self.program.steps if not s.plan.view]

    def _launch_timed(self, timeline: Timeline) -> None:
        """Run all steps, recording when each began and ended, and wait for them."""
        steps = self._kernels()
        self.synchronize()
        begin = monotonic_ns()
        if self._stream.queues:
            stamped = self._stamped or self._stamp(steps)
            begin = monotonic_ns()
            stamped.replay()
            self.synchronize()
            times = stamped.times(begin)
            if self._in_turn:  # the next call's operands may have other addresses
                stamped.close()
            else:
                self._stamped = stamped
        else:
            times = []
            for run in [self.bound(step) for step in steps] if self._poison else self._runs_here()[0]:
                start = monotonic_ns()
                run()
                times.append(StepTime(0, start, monotonic_ns() - start))
        timeline.add_call(self.program.name, steps, times, begin, monotonic_ns())

    def _stamp(self, steps: Sequence[PlannedStep]) -> _Stamped:
        """The program as one CUDA graph with an event before and after each kernel, on its streams; kernel by kernel
        where no graph can hold all."""
        marks = [(Event(timing=True), Event(timing=True)) for _ in steps]
        origin = Event(timing=True)
        if not self._is_whole:
            main = self._stream
            runs = [self.bound(s) for s in steps]
            timed = [
                partial(_between, main.record, run, *pair) for run, pair in zip(runs, marks, strict=True)
            ]
            return _Stamped(
                None, partial(_in_order, main, origin, timed), runs, [0] * len(steps), origin, marks
            )
        number = self._assign_streams(steps)
        with self._new_streams(number) as streams:
            main = streams[0]
            runs = [self.bound(s, streams[k]) for s, k in zip(steps, number, strict=True)]
            timed = [
                partial(_between, streams[k].stamp, run, *pair)
                for k, run, pair in zip(number, runs, marks, strict=True)
            ]
            with main.capture(home=self._stream) as graph:
                main.stamp(origin)
                self._run_on_streams(steps, timed, number, streams)
        self._announce(steps)
        return _Stamped(graph, graph.bind(), runs, number, origin, marks)

    def _announce(self, steps: Sequence[PlannedStep]) -> None:
        """Register the capture with its communicators, so that it is closed before they are."""
        if any(s.node is not None and s.node.op.effect == "collective" for s in steps):
            current_world().closes_first(self)

    @contextmanager
    def _new_streams(self, numbers: Sequence[int]) -> Iterator[list[Stream]]:
        """As many streams as steps are assigned to."""
        with ExitStack() as held:
            yield [held.enter_context(self.device.stream()) for _ in range(1 + max(numbers, default=0))]

    def _assign_streams(self, steps: Sequence[PlannedStep]) -> list[int]:
        machine = self.device.machine
        return assign_streams(steps, [least_seconds(s, machine) + machine.launch_seconds for s in steps])

    def _run_on_streams(
        self,
        steps: Sequence[PlannedStep],
        runs: Sequence[Run],
        stream: Sequence[int],
        streams: Sequence[Stream],
    ) -> None:
        """Run each step on its stream, after the steps that it waits for."""
        waiting = waits([self._footprint(s) for s in steps], stream)
        awaited, passed = set(chain.from_iterable(waiting)), dict[int, Event]()
        main, *others = streams
        for beside in others:
            beside.wait(main)
        for i, run in enumerate(runs):
            for before in waiting[i]:
                streams[stream[i]].wait(passed[before])
            run()
            if i in awaited:
                passed[i] = streams[stream[i]].record()
        for beside in others:
            main.wait(beside)

    def _footprint(self, step: PlannedStep) -> Footprint:
        def ranges(slots: Sequence[Slot]) -> tuple[tuple[int, int], ...]:
            return tuple((p := self._pointer(s.base), p + s.base.spec.nbytes) for s in slots if s.spec.nbytes)

        scratch = [step.workspace] if step.workspace else []
        ordered = step.node is not None and step.node.op.effect == "collective"
        return Footprint(ranges(step.inputs), ranges([*step.outputs, *scratch]), ordered)

    # ---- what lies elsewhere at each call
    def _moving(self) -> tuple[frozenset[Slot], frozenset[Slot]]:
        """Inputs and outputs that kernels read and write in place: large ones on a CPU, those of short programs on a
        GPU. Outputs that share memory with another value are excluded, as are inputs of a program that updates state,
        which may be passed as an input."""
        if self._poison or not self._results or (self._stream.queues and not self._is_short()):
            return frozenset(), frozenset()
        least = 1 if self._stream.queues else _IN_PLACE
        large = [s for s in self._results if s.spec.nbytes >= least and self._results.count(s) == 1]
        used = [s for step in self.program.steps for s in step.outputs]
        owners = Counter(s.base for s in {*used, *self._results})
        alone = set(self.program.temporaries) & {s for s, count in owners.items() if count == 1}
        inputs = self.program.inputs if len(self._results) == len(self.program.outputs) else []
        read = [s for s in inputs if s.kind == "input" and s.spec.nbytes >= least]
        return frozenset(read), frozenset(alone.intersection(large))

    def _is_short(self) -> bool:
        """Whether launching the kernels one by one on moving operands is cheaper than launching a graph that copies
        operands and results: for the host that means one kernel, for the device a few where they touch much memory.
        """
        given = [slot for slot in self.program.inputs if slot.kind == "input"]
        updates = len(self._results) != len(self.program.outputs)
        if updates or self._together:
            return False
        moved = [*given, *self._results]
        most = len(moved) + 1 if sum(slot.spec.nbytes for slot in moved) > _MUCH else 1
        return sum(step.plan.launches for step in self._kernels()) <= most

    def _readable(self, slot: Slot, x: Given) -> Buffer | None:
        """The memory from which kernels may read x in place; None where it has to be copied."""
        least = _GPU_ALIGNMENT if self._stream.queues else slot.spec.dtype.itemsize
        if isinstance(x, Tensor):
            there = x.buffer if self._is_ready(slot, x) else None
        elif isinstance(x, np.ndarray) and not self._stream.queues:
            there = Buffer.borrow(x.ctypes.data, x.nbytes, _HOST, x)
        else:
            there = None
        return there if there is not None and there.pointer % least == 0 else None

    def _runs_here(self) -> tuple[list[Run], list[Run]]:
        """Every step at the addresses of this call, and what is to be called for all of them."""
        if not (self._read or self._written or self._stream.queues):
            if not self._runs:
                self._runs = self._bound_runs(self._stream)
                self._calls = together(self._runs)
            return self._runs, self._calls
        state = library_state()
        places = (id(state) if self._stream.queues else 0, *[self._own[s].pointer for s in self._elsewhere])
        found = self._bound.get(places)
        if found is None:
            runs = self._rebound() if self._runs else self._bound_runs(self._stream)
            if not self._stream.queues:
                self._runs = runs
            found = runs, together(runs), state  # the state is kept alive, so that its id is not reused
            if len(self._bound) == _BOUND:
                del self._bound[next(iter(self._bound))]
            self._bound[places] = found
        return found[0], found[1]

    def _rebound(self) -> list[Run]:
        """The steps; those that touch moving inputs or outputs are bound anew."""
        moving = self._read | self._written
        return [
            self.bound(step) if any(s.base in moving for s in (*step.inputs, *step.outputs)) else run
            for step, run in zip(self._kernels(), self._runs, strict=True)
        ]


def _together(program: PlannedGraph) -> list[tuple[tuple[int, ...], str]]:
    """The collectives of a program, in order, the same on each rank of a group."""
    found = []
    for step in program.steps:
        op = None if step.node is None else step.node.op
        if isinstance(op, Collective) and op.group.size > 1 and not isinstance(op, Exchange | Arrived):
            found.append((op.group.ranks, f"{op}({', '.join(str(s.spec) for s in step.inputs)})"))
    return found


_HOST = Device("cpu")


@dataclass(frozen=True, eq=False)
class _Stamped:
    """A program whose kernels stand between events. graph: None where none can hold all of them. runs: objects that
    the graph reads (tables of addresses)."""

    graph: CapturedGraph | None
    replay: Run
    runs: Sequence[Run]
    stream: Sequence[int]
    origin: Event
    marks: Sequence[tuple[Event, Event]]

    def close(self) -> None:
        """Close the graph."""
        if self.graph is not None:
            self.graph.close()

    def times(self, begin: int) -> list[StepTime]:
        """The times of each kernel, given that the graph began at `begin`."""
        return [
            StepTime(k, begin + round(self.origin.elapsed(a) * 1e6), round(a.elapsed(b) * 1e6))
            for k, (a, b) in zip(self.stream, self.marks, strict=True)
        ]


def _between(mark: Callable[[Event], object], run: Run, before: Event, behind: Event) -> None:
    """A kernel between two events."""
    mark(before)
    run()
    mark(behind)


def _in_order(stream: Stream, origin: Event, runs: Sequence[Run]) -> None:
    stream.record(origin)
    for run in runs:
        run()


def place_constants(program: PlannedGraph, device: Device) -> dict[Slot, Buffer]:
    """Memory for the constants, filled with their values."""
    placed: dict[Slot, Buffer] = {}
    for value, slot in program.constants.items():
        assert value.constant is not None
        placed[slot] = device.allocate(slot.spec.nbytes)
        copy(placed[slot], pack(value.constant.numpy(), slot.spec.physical))
    return placed
