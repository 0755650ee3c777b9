"""A program that runs in two passes on one arena: a forward pass, and later the backward pass on the values it left.

`Executable` runs a graph as a whole. Where another framework drives (its autograd requests gradients whenever it
likes), forward and backward pass are still one graph: planned, fused and placed together, so that the backward pass
reads values where the forward pass wrote them. The steps are split after the last one that the early outputs need.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from weakref import WeakKeyDictionary

from lamina import backends
from lamina.backends import Plan
from lamina.graph.ir.graph import Graph
from lamina.graph.passes.manager import optimize, refusals
from lamina.graph.passes.pattern import Report
from lamina.graph.planning.layout import Plans, plan_graph, with_plans
from lamina.graph.planning.memory import Lifetime, Placement, aligned, place
from lamina.graph.planning.program import PlannedGraph, PlannedStep, Slot
from lamina.graph.run.collector import collector_paused
from lamina.graph.run.context import ExecutionContext, place_constants
from lamina.graph.run.prologue import Prologue
from lamina.graph.run.remembered import Answer, answered, question
from lamina.runtime import Buffer, Device, Stream
from lamina.spec import Spec, uint8
from lamina.tensors import Tensor


class TwoPassProgram:
    """A graph, planned so that its first outputs are complete before the rest runs.

    graph: inputs are those of both passes; the first `early` outputs are the forward pass's.
    lent: indices of inputs that are read where their owner keeps them (parameters): row-major, and at the same
        address until the owner changes it (`TwoPassContext.lend`). All others have a place in each context.
    late: indices of inputs that are available only to the backward pass (incoming gradients). The forward pass does
        not read them: no early output may depend on one.
    updates: for lent inputs that the forward pass gives a new value: the early output with that. `in_place` says
        which of them it writes in place; the caller copies the others' outputs there.
    together: indices of outputs that lie in one block of each context, one after the other, so that one copy takes
        all of them (gradients of parameters). `offsets` says at which byte: of those that lie row-major, in memory
        that nothing else needs.

    Raises NoKernel where the backend cannot compute a node, ValueError for an early output that needs a late input.
    """

    memory_limit: int | None = None  # like an `Executable`'s

    def __init__(
        self,
        graph: Graph,
        device: Device,
        early: int,
        *,
        lent: Collection[int] = (),
        late: Collection[int] = (),
        updates: Mapping[int, int] | None = None,
        together: Collection[int] = (),
        backend: str | None = None,
    ) -> None:
        self.device = device
        self.backend = backends.get(device, backend)
        with collector_paused():
            graph = graph.unmarked()
            given = sorted((updates or {}).items())
            asked = question(graph, self.backend, early=early, updates=given, two_passes=True)
            answer = answered(asked, self.backend, partial(self._answer, graph, dict(given), early))
        self.graph, self.program, self.passes = answer.graph, answer.program, answer.passes
        self.refusals = refusals(self.passes)
        self.early, self.lent = early, sorted(lent)
        self.in_place = self._in_place(updates or {})
        self._check_late(late)
        self.offsets: dict[int, int] = {}
        self.block_bytes = 0
        self._lay_together(together)
        self._streams: WeakKeyDictionary[TwoPassContext, Stream] = WeakKeyDictionary()
        self.constants = place_constants(self.program, device)
        Prologue(self.program, self.constants, device).run()

    @property
    def halves(self) -> tuple[list[PlannedStep], list[PlannedStep]]:
        """The steps of each pass."""
        steps, halfway = self.program.steps, self.program.halfway
        return steps[:halfway], steps[halfway:]

    def read_late(self) -> list[int]:
        """The indices of the inputs that the backward pass reads."""
        places = {slot: i for i, slot in enumerate(self.program.inputs)}
        read = {slot.base for step in self.halves[1] for slot in step.inputs}
        shown = {slot.base for slot in self.program.outputs[self.early :]}
        return sorted(places[slot] for slot in read | shown if slot in places)

    @property
    def own_bytes(self) -> int:
        """Bytes of the device's memory that one context and the constants take."""
        given = sum(s.spec.nbytes for i, s in enumerate(self.program.inputs) if i not in self.lent)
        kept = sum(buffer.nbytes for buffer in self.constants.values())
        return int(self.program.placement.nbytes + self.block_bytes + given + kept)

    @property
    def kernels(self) -> tuple[int, int]:
        """How many kernels or library calls each pass is."""
        first, second = ([s for s in half if not s.plan.view] for half in self.halves)
        return len(first), len(second)

    # ---- tuning between calls
    def change_plans(self, better: Mapping[Plan, Plan]) -> bool:
        """Replace some plans in the contexts created from now on; existing ones keep theirs."""
        self.program = with_plans(self.program, better)
        return True

    def synchronize(self) -> None:
        """Wait for all that its contexts have queued."""
        for found in self._streams.keyrefs():
            context = found()
            if context is not None:
                context.stream.synchronize()

    def held(self, seconds: float) -> AbstractContextManager[None]:
        """Nothing: the driver of its passes queues other work, too, which cannot be held."""
        return nullcontext()

    def _answer(self, graph: Graph, updates: dict[int, int], early: int) -> Answer:
        """The graph improved and planned."""
        passes: list[Report] = []
        self.graph = optimize(graph, self.backend, set(), passes)
        return Answer(self.graph, self._planned(updates, early), passes, len(self.graph.nodes))

    def _planned(self, updates: dict[int, int], early: int) -> PlannedGraph:
        """The graph planned with updates in place, except for values that the backward pass reads: the update may
        have overwritten them by then."""
        self.program = plan_graph(self.graph, Plans(self.backend), updates, (), early)
        read = {slot.base for step in self.halves[1] for slot in step.inputs}
        kept = {i: o for i, o in updates.items() if self.program.inputs[i] not in read}
        return self.program if kept == updates else self._planned(kept, early)

    def _in_place(self, updates: Mapping[int, int]) -> list[int]:
        program = self.program
        return [i for i, o in updates.items() if program.outputs[o].base is program.inputs[i]]

    def _lay_together(self, together: Collection[int]) -> None:
        """Move outputs out of the arena, into the block."""
        program = self.program
        shown = Counter(slot.base for slot in program.outputs)
        for i in together:
            slot, base = program.outputs[i], program.outputs[i].base
            alone = base.kind == "temporary" and shown[base] == 1 and base.spec.nbytes == slot.spec.nbytes
            if alone and slot.spec.is_contiguous and slot.spec.nbytes:
                self.offsets[i] = self.block_bytes
                self.block_bytes += aligned(slot.spec.nbytes)
        taken = {program.outputs[i].base for i in self.offsets}
        program.temporaries = [slot for slot in program.temporaries if slot not in taken]
        program.placement = place([Lifetime(s.spec.nbytes, s.first, s.last) for s in program.temporaries])

    def _check_late(self, late: Collection[int]) -> None:
        slots = {self.program.inputs[i] for i in late}
        read = {slot.base for step in self.halves[0] for slot in step.inputs}
        read |= {slot.base for slot in self.program.outputs[: self.early]}
        for slot in slots & read:
            raise ValueError(
                f"{self.graph.name}: a result of the forward pass needs {slot.name or slot.spec}, which is there "
                "only for the backward pass"
            )

    def __repr__(self) -> str:
        first, second = self.kernels
        return f"TwoPassProgram({self.graph.name} on {self.device}: {first} + {second} kernels)"


class TwoPassContext:
    """The memory of one forward pass until its backward pass has run, and both passes' kernels bound to it.

    On a GPU each pass is launched as one CUDA graph from the third time on, on `stream`.

    places: where each input that is not lent is written before a pass. `result` says where an output is after it:
        valid until the next pass (the forward pass's), or the next call; to keep one, copy it.
    block: the bytes of the outputs that lie together.
    """

    def __init__(
        self, program: TwoPassProgram, lent: Mapping[int, Buffer], stream: Stream | None = None
    ) -> None:
        planned = self._program = program.program  # its plans may change for other contexts
        device = self._device = program.device
        self.stream = stream or device.default_stream
        program._streams[self] = self.stream
        self._memory: dict[Slot, Buffer] = dict(program.constants)
        arena = device.allocate(planned.placement.nbytes, stream=self.stream)
        for slot, offset in zip(planned.temporaries, planned.placement.offsets, strict=True):
            self._memory[slot] = arena.view(offset, slot.spec.nbytes)
        block = device.allocate(program.block_bytes, stream=self.stream)
        self.block = Tensor(block, Spec((program.block_bytes,), uint8))
        for i, offset in program.offsets.items():
            base = planned.outputs[i].base
            self._memory[base] = block.view(offset, base.spec.nbytes)
        self.places: dict[int, Tensor] = {}
        for i, slot in enumerate(planned.inputs):
            if i not in lent:
                self._memory[slot] = device.allocate(slot.spec.nbytes, stream=self.stream)
                self.places[i] = Tensor(self._memory[slot], slot.spec)
        first, second = planned.steps[: planned.halfway], planned.steps[planned.halfway :]
        self._forward, self._backward = self._half(planned, first), self._half(planned, second)
        self.lend(lent)

    def lend(self, lent: Mapping[int, Buffer]) -> None:
        """Set the addresses of lent inputs: both passes are bound anew."""
        for i, buffer in lent.items():
            self._memory[self._program.inputs[i]] = buffer
        self._forward.unbind()
        self._backward.unbind()

    def result(self, index: int) -> Tensor:
        """Where an output is after its pass. It must be read before the next pass runs."""
        slot = self._program.outputs[index]
        return Tensor(self._memory[slot.base].view(slot.offset, slot.spec.nbytes), slot.spec)

    def forward(self) -> None:
        """Run, or queue, the forward pass."""
        self._forward(())

    def backward(self) -> None:
        """Run, or queue, the backward pass on what the last forward pass left."""
        self._backward(())

    @property
    def is_captured(self) -> tuple[bool, bool]:
        """Whether each pass launches one CUDA graph."""
        return self._forward.is_captured, self._backward.is_captured

    def _half(self, program: PlannedGraph, steps: list[PlannedStep]) -> ExecutionContext:
        part = replace(program, steps=steps, inputs=[], temporaries=[], placement=_NOWHERE)
        return ExecutionContext(part, (), self._memory, self._device, poison=False, stream=self.stream)


_NOWHERE = Placement((), 0, 0, 0)
