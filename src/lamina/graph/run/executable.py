"""Running a compiled graph: addresses are fixed once, then a call is a list of bound kernels.

On a GPU the first call runs the kernels one by one (libraries load lazily), the second records them as one CUDA
graph, and every later call launches that graph.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from lamina import backends
from lamina.backends import Call, Run
from lamina.graph.ir.graph import Graph
from lamina.graph.passes.manager import optimize
from lamina.graph.planning.cost import least_seconds, limits
from lamina.graph.planning.layout import Program, Slot, Step, plan_graph
from lamina.graph.planning.rematerialize import as_bytes, plan_within
from lamina.graph.planning.streams import Footprint, lanes, waits
from lamina.runtime import (
    Buffer,
    CapturedGraph,
    Device,
    Event,
    Stream,
    copy,
    device,
    memset,
    pinned,
)
from lamina.spec import ShapeError, pack
from lamina.tensors import Tensor, as_tensor, relayout

_where = device  # the argument of `compile` has the same name
#: What a kernel takes at least on a GPU, whatever it does.
LAUNCH_SECONDS = 3e-6
#: Bytes from which on a CPU an output is lent rather than copied.
_LENT = 1 << 20


def compile(
    graph: Graph,
    device: Device | str = "auto",
    *,
    donate: Mapping[int, int] | None = None,
    resident: Collection[int] = (),
    backend: str | None = None,
    optimize: bool = True,
    poison: bool = False,
    memory_limit: int | str | None = None,
) -> Executable:
    """Choose kernels and layouts, place memory, and return the graph as something that runs.

    donate: input index -> output index. The input is state (parameters, momentum) that the run updates in
        place: the output takes over its memory and is not returned.
    resident: indices of inputs that stay in place from call to call without being changed (weights).
    backend: "cpu", "cuda", "reference" or "null"; default: the device's own.
    optimize: run the graph passes first.
    poison: fill memory with NaNs as soon as it is dead, to prove that nothing reads it (slow; for tests).
    memory_limit: bytes, or such as "8 GiB", that the arena of temporaries and workspaces may take: where it would be
        larger, intermediate values are computed again right before they are read instead of being kept.
    Raises NoKernel when the backend cannot compute a node, ShapeError when a donated pair does not match,
    MemoryLimitError when no plan is found that needs so little memory.
    """
    where = _where(device)
    donated = dict(donate or {})
    _check_donations(graph, donated, resident)
    limit = None if memory_limit is None else as_bytes(memory_limit)
    return Executable(
        graph, where, donated, resident, backend, improve=optimize, poison=poison, memory_limit=limit
    )


class Executable:
    """A graph with its kernels chosen and its memory placed.

    Call `load` with the resident inputs first, if there are any; then call it with the other inputs. Outputs are
    new tensors, without the donated ones; on a CPU the large ones lie where they were computed, and the next call
    takes that memory again only when nothing of the last result is alive. Not for use by several threads at once.
    """

    def __init__(
        self,
        graph: Graph,
        where: Device,
        donate: Mapping[int, int],
        resident: Collection[int],
        backend: str | None,
        *,
        improve: bool,
        poison: bool,
        memory_limit: int | None = None,
    ) -> None:
        self.device = where
        self.backend = backends.get(where, backend)
        self.refusals: list[str] = []  # fusions that the backend has no plan for
        stays = {graph.inputs[i] for i in resident if i not in donate}
        self.graph = optimize(graph, self.backend, self.refusals, stays) if improve else graph
        self.program: Program
        self.recomputed = 0  # nodes that run once more to save memory
        kept = len(self.graph.nodes)
        if memory_limit is None:
            self.program = plan_graph(self.graph, self.backend, donate, resident)
        else:
            self.graph, self.program = plan_within(self.graph, self.backend, donate, resident, memory_limit)
            self.recomputed = len(self.graph.nodes) - kept
        self.donate = dict(donate)
        self.resident = sorted({*resident, *donate})
        self._free = [i for i in range(len(self.graph.inputs)) if i not in self.resident]
        self._results = [s for o, s in enumerate(self.program.outputs) if o not in self.donate.values()]
        self._poison = poison
        self._state: dict[int, Tensor] = {}
        self._versions: dict[int, int] = {}  # of the inputs that stay and are not updated, when last read
        self._memory: dict[Slot, Buffer] = {}
        self._lent: dict[Slot, weakref.ref[_Loan] | None] = {}  # outputs that are lent, and the last loan
        self._staging: dict[int, _Staging] = {}
        self._runs: list[Run] = []
        self._captured: CapturedGraph | None = None
        self._replay: Run | None = None  # launches it
        self._calls = 0
        if self.backend.name != "null":
            self._place()

    # ---- state
    def load(self, tensors: Mapping[int, Tensor]) -> None:
        """Make tensors the resident state: input index -> tensor. Their values move, in place, into the memory
        and the layout that the plans want; from then on each run reads them there (and updates donated ones).

        Raises KeyError for a missing or unknown index, ShapeError for a tensor that does not fit.
        """
        if sorted(tensors) != self.resident:
            raise KeyError(f"load: the resident inputs are {self.resident}, got {sorted(tensors)}")
        for i, x in tensors.items():
            wanted = self.graph.inputs[i].spec
            if x.spec.open != wanted:
                raise ShapeError(f"load: input {i} is {wanted}, got {x.spec}")
        stays = bool(self._runs)
        for i, x in tensors.items():
            slot = self.program.inputs[i]
            if x.device != self.device or not x.spec.same_memory(slot.spec) or _shares(x, self._state, i):
                x.move_into(self.device.allocate(slot.spec.nbytes), slot.spec)
            stays &= self._memory.get(slot) is x.buffer
            self._memory[slot] = x.buffer
        self._state = dict(tensors)
        self._versions = {i: x.version for i, x in tensors.items() if i not in self.donate}
        if not stays:
            self._bind()
        self._run_prologue()

    # ---- running
    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Run on the inputs that are not resident, in order. Returns the outputs that are not donated."""
        self._check_ready()
        self._take_back()
        self._write_inputs(inputs)
        self._launch()
        return self._read_outputs()

    def bound_steps(self) -> list[tuple[Step, Run]]:
        """Every step that runs something, in order, bound to its addresses: for measurements.

        Raises RuntimeError for the null backend, or before `load`.
        """
        self._check_ready()
        return [(step, self._bound(step)) for step in self.program.steps if not step.plan.view]

    def _check_ready(self) -> None:
        if self.backend.name == "null":
            raise RuntimeError("the null backend plans graphs but cannot run them; compile for another one")
        if len(self._state) != len(self.resident):
            raise RuntimeError(
                f"call load() first: inputs {self.resident} are resident and have no values yet"
            )
        self._check_state()

    @property
    def is_captured(self) -> bool:
        """Whether calls launch one CUDA graph."""
        return self._captured is not None

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena that holds every temporary and workspace."""
        return self.program.placement.nbytes

    @property
    def unplanned_bytes(self) -> int:
        """What the temporaries would take if each had memory of its own."""
        return self.program.placement.unplanned

    # ---- memory and addresses
    def _place(self) -> None:
        """Allocate everything but the resident inputs, and bind if there are none of those."""
        self._arena = self.device.allocate(self.program.placement.nbytes)
        for slot, offset in zip(self.program.temporaries, self.program.placement.offsets, strict=True):
            self._memory[slot] = self._arena.view(offset, slot.spec.nbytes)
        for slot in self._lendable():
            self._memory[slot], self._lent[slot] = self.device.allocate(slot.spec.nbytes), None
        for slot in self.program.inputs:
            if slot.kind == "input":
                self._memory[slot] = self.device.allocate(slot.spec.nbytes)
        for value, slot in self.program.constants.items():
            assert value.constant is not None
            self._memory[slot] = self.device.allocate(slot.spec.nbytes)
            copy(self._memory[slot], pack(value.constant.numpy(), slot.spec.physical))
        for step in self.program.prologue:
            for slot in (*step.outputs, *([step.workspace] if step.workspace else [])):
                if slot.base is slot:
                    self._memory[slot] = self.device.allocate(slot.spec.nbytes)
        if not self.resident:
            self._bind()
            self._run_prologue()

    def _bind(self) -> None:
        """Fix the addresses of every step. A graph captured with other addresses is dropped."""
        if self._captured is not None:
            self._captured.close()
        self._captured, self._replay, self._calls = None, None, 0
        self._runs = []
        for index, step in enumerate(self.program.steps):
            if not step.plan.view:
                self._runs.append(self._bound(step))
            if self._poison:
                self._runs += self._poisoning(index)
        self._prologue = [self._bound(step) for step in self.program.prologue if not step.plan.view]

    def _bound(self, step: Step, stream: Stream | None = None) -> Run:
        """The step at its addresses, on the default stream or another one."""
        return step.plan.bind(
            Call(
                tuple(self._pointer(s) for s in step.inputs),
                tuple(self._pointer(s) for s in step.outputs),
                self._pointer(step.workspace) if step.workspace else 0,
                (stream or self.device.default_stream).handle,
            )
        )

    def _pointer(self, slot: Slot) -> int:
        return self._memory[slot.base].pointer

    def _poisoning(self, index: int) -> list[Run]:
        """Fill what dies with step `index` with 0xff: NaN in every float type."""
        dead = [s for s in self.program.temporaries if s.last == index]
        stream = self.device.default_stream
        return [lambda b=self._memory[s]: memset(b, 255, stream) for s in dead]  # type: ignore[misc]

    def _run_prologue(self) -> None:
        for run in self._prologue:
            run()

    def _check_state(self) -> None:
        """State that was moved since `load` (by another executable, or by the user) is bound anew; what was made
        of inputs that stay is made again where they were overwritten."""
        moved = any(x.buffer is not self._memory[self.program.inputs[i]] for i, x in self._state.items())
        if moved or any(self._state[i].version != v for i, v in self._versions.items()):
            self.load(self._state)

    # ---- one call
    def _write_inputs(self, inputs: Sequence[Any]) -> None:
        if len(inputs) != len(self._free):
            raise TypeError(f"{self.graph.name} takes {len(self._free)} inputs, got {len(inputs)}")
        for i, x in zip(self._free, inputs, strict=True):
            slot, name = self.program.inputs[i], self.graph.inputs[i].name
            if isinstance(x, np.ndarray):
                self._write_array(i, slot, _row_major(name, slot, x))
            else:
                self._write_tensor(name, slot, as_tensor(x))

    def _write_array(self, i: int, slot: Slot, array: np.ndarray[Any, Any]) -> None:
        stream = self.device.default_stream
        if self.device.kind == "cuda":
            if i not in self._staging:
                self._staging[i] = _Staging(self.device, slot.spec.nbytes)
            self._staging[i].write(self._memory[slot], array, stream)
        else:
            copy(self._memory[slot], array, slot.spec.nbytes, stream=stream)

    def _write_tensor(self, name: str, slot: Slot, x: Tensor) -> None:
        """Copy x into its place, where its elements lie row-major."""
        spec = slot.spec
        if x.shape != spec.shape or x.dtype != spec.dtype:
            raise ShapeError(f"input {name} is {spec}, got {x.spec}")
        if x.device != self.device:
            copy(self._memory[slot], x.contiguous().buffer, spec.nbytes, stream=self.device.default_stream)
        elif x.spec.same_memory(spec):
            self._copy(self._memory[slot], x.buffer, spec.nbytes)
        else:
            relayout(x, spec, self._memory[slot])

    def _copy(self, to: Buffer, source: Buffer, nbytes: int) -> None:
        """Queue a copy within the device: `runtime.copy` without asking what its operands are."""
        if nbytes:
            platform = self.device.platform
            platform.copy(to.pointer, source.pointer, nbytes, platform.default_stream)
            source.used_on(platform.default_stream)

    def _launch(self) -> None:
        if self._replay is not None:
            self._replay()
        elif self.device.kind == "cuda" and self._calls == 1:
            self._capture()
        else:
            for run in self._runs:
                run()
        self._calls += 1

    def _capture(self) -> None:
        """Record all steps as one CUDA graph: those off the longest chain in a lane of their own beside it."""
        steps = [s for s in self.program.steps if not s.plan.view]
        lane = [0] * len(steps) if self._poison else self._lanes(steps)
        main = self.device.default_stream
        with main.capture() as captured:
            if any(lane):
                self._run_lanes(steps, lane, main, self.device.stream())
            else:
                for run in self._runs:
                    run()
        self._captured, self._replay = captured, captured.bind()
        self._replay()

    def _lanes(self, steps: Sequence[Step]) -> list[int]:
        known = limits(self.device)
        if known is None:
            return [0] * len(steps)
        return lanes(steps, [least_seconds(s, known) + LAUNCH_SECONDS for s in steps])

    def _run_lanes(self, steps: Sequence[Step], lane: Sequence[int], main: Stream, beside: Stream) -> None:
        """Run each step in its lane, behind what it waits for."""
        waiting = waits([self._footprint(s) for s in steps], lane)
        streams, passed = (main, beside), dict[int, Event]()
        beside.wait(main)
        for i, step in enumerate(steps):
            before = waiting[i]
            if before is not None:
                streams[lane[i]].wait(passed[before])
            self._bound(step, streams[lane[i]])()
            if i in waiting:
                passed[i] = streams[lane[i]].record()
        main.wait(beside)

    def _footprint(self, step: Step) -> Footprint:
        def ranges(slots: Sequence[Slot]) -> tuple[tuple[int, int], ...]:
            return tuple((p := self._pointer(s), p + s.base.spec.nbytes) for s in slots if s.spec.nbytes)

        scratch = [step.workspace] if step.workspace else []
        return Footprint(ranges(step.inputs), ranges([*step.outputs, *scratch]))

    def _read_outputs(self) -> tuple[Tensor, ...]:
        """The outputs that are not donated: lent, or copied, since the arena is written again by the next call."""
        return tuple(
            Tensor(self._lend(s) if s in self._lent else self._copied(s), s.spec) for s in self._results
        )

    def _copied(self, slot: Slot) -> Buffer:
        buffer = self.device.allocate(slot.spec.nbytes)
        self._copy(buffer, self._memory[slot.base], slot.spec.nbytes)
        return buffer

    # ---- loans
    def _lendable(self) -> list[Slot]:
        """Large outputs on a CPU, where copies take time, whose memory is no other value's."""
        if self.device.kind != "cpu":
            return []
        used = [s for step in self.program.steps for s in step.outputs]
        owners = Counter(s.base for s in {*used, *self._results})
        own = set(self.program.temporaries) & {s for s, count in owners.items() if count == 1}
        return [
            s for s in self._results if s in own and s.spec.nbytes >= _LENT and self._results.count(s) == 1
        ]

    def _lend(self, slot: Slot) -> Buffer:
        """The output where it was written, which stays so while anything of the result is alive."""
        held = self._memory[slot]
        loan = _Loan(held)
        self._lent[slot] = weakref.ref(loan)
        return Buffer.borrow(held.pointer, held.nbytes, self.device, loan)

    def _take_back(self) -> None:
        """What is still in use stays with its user: that output gets other memory, and is copied from then on."""
        used = [slot for slot, loan in self._lent.items() if loan is not None and loan() is not None]
        fresh = {
            slot: self.device.allocate(slot.spec.nbytes) for slot in used
        }  # all, or where one fails none
        if fresh:
            self._memory |= fresh
            self._lent = {slot: loan for slot, loan in self._lent.items() if slot not in fresh}
            self._bind()


class _Loan:
    """Owns the memory of an output that is lent; whatever is made of the result keeps it alive."""

    def __init__(self, held: Buffer) -> None:
        self.held = held


class _Staging:
    """Where a host array waits for its turn: it travels to the device while the step before still runs.

    Two pinned buffers in turn, so that the next array can be written while the last one is under way; a buffer on
    the device, filled on a stream of its own, from which the input's place is filled in no time.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        self._turns = [(pinned(nbytes), Event()) for _ in range(2)]
        self._arrived = device.allocate(nbytes)
        self._way = device.stream()
        self._free = Event()  # the step has taken the last array over

    def write(self, target: Buffer, array: np.ndarray[Any, Any], stream: Stream) -> None:
        """Queue the copy of array to target; array may change when this returns."""
        buffer, sent = self._turns[0]
        self._turns.reverse()
        if sent.recorded:
            sent.synchronize()
        copy(buffer, array, array.nbytes)
        self._way.wait(self._free)
        copy(self._arrived, buffer, array.nbytes, stream=self._way)
        stream.wait(self._way.record(sent))
        copy(target, self._arrived, array.nbytes, stream=stream)
        stream.record(self._free)


def _row_major(name: str, slot: Slot, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A host array of the slot's shape and dtype, row-major."""
    if x.shape != slot.spec.shape or x.dtype != slot.spec.dtype.numpy:
        raise ShapeError(f"input {name} is {slot.spec}, got an array {x.dtype}{list(x.shape)}")
    return np.ascontiguousarray(x)


def _shares(x: Tensor, state: Mapping[int, Tensor], index: int) -> bool:
    """Whether another input of the same state lies in the same memory as x."""
    return any(y is not x and y.buffer is x.buffer for i, y in state.items() if i != index)


def _check_donations(graph: Graph, donate: Mapping[int, int], resident: Collection[int]) -> None:
    for i in (*donate, *resident):
        if not 0 <= i < len(graph.inputs):
            raise ValueError(f"compile: input {i} is not one of the graph's {len(graph.inputs)} inputs")
    if len(set(donate.values())) != len(donate):
        raise ValueError(f"compile: an output is donated to two inputs: {dict(donate)}")
    for i, o in donate.items():
        if not 0 <= o < len(graph.outputs):
            raise ValueError(f"compile: output {o} is not one of the graph's {len(graph.outputs)} outputs")
        if graph.inputs[i].spec != graph.outputs[o].spec:
            raise ShapeError(
                f"compile: input {i} {graph.inputs[i].spec} cannot be updated by output {o} "
                f"{graph.outputs[o].spec}"
            )
