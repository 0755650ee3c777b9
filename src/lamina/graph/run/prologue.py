"""What a program computes once from unchanging values: weights in the layouts of its kernels, batch norms folded into
them.

Programs for other shapes of the same network compute mostly the same from the same weights. Results are identified by
their plans (which programs share) and their sources: a later program reads an existing result in place.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from weakref import WeakValueDictionary

from lamina.backends import Plan, Run
from lamina.graph.planning.memory import Lifetime, place
from lamina.graph.planning.program import PlannedGraph, Slot
from lamina.graph.run.context import ExecutionContext
from lamina.runtime import Buffer, Device

#: Constants of more bytes are not shared between programs.
_SMALL = 4096
#: Bytes of temporaries up to which steps stay bound.
_KEPT = 1 << 20


class Prologue:
    """A program's prologue, and the memory of its results, which are entered in `memory`, beside inputs and
    constants.

    Values that only the prologue itself reads have memory only while it runs.
    """

    _lending = threading.Lock()

    def __init__(self, program: PlannedGraph, memory: dict[Slot, Buffer], device: Device) -> None:
        self._program, self._memory, self._device = program, memory, device
        self._slots = lasting(program)
        self._made: dict[Slot, _Made] = {}
        self._bound: _BoundPart | None = None

    @property
    def borrowed(self) -> set[Slot]:
        """The results that another program computed."""
        return {slot for slot, made in self._made.items() if made.borrowed}

    def run(self, state: Mapping[Slot, Hashable] | None = None, beside: Iterable[Prologue] = ()) -> bool:
        """Compute everything from the current values of inputs and constants; whether any result has moved.

        state: names of the values that resident inputs hold. beside: prologues of other programs, whose results are
            reused where they equal what this one would compute.
        """
        if not self._slots:
            return False
        names = derivations(self._program, state or {})
        before = {slot: self._memory.get(slot) for slot in self._slots}
        with self._lending:
            old, self._made = self._made, {}  # nobody reuses results that are about to be overwritten
            made = _taken({slot: names[slot] for slot in self._slots}, beside)
        wanted = [slot for slot in self._slots if slot not in made]
        for slot in wanted:
            free = slot in old and not old[slot].shared
            buffer = old[slot].buffer if free else self._device.allocate(slot.spec.nbytes)
            made[slot] = _Made(names[slot], buffer)
        self._memory.update((slot, one.buffer) for slot, one in made.items())
        self._make(wanted)
        self._made = made
        return any(self._memory[slot] is not buffer for slot, buffer in before.items())

    def _make(self, wanted: Sequence[Slot]) -> None:
        """Run the steps that compute the wanted results.

        Where weights change between calls the same steps run again and again: on a CPU they stay bound to their
        addresses, unless their temporaries take much memory.
        """
        bound = self._bound
        if bound is None or not bound.serves(wanted, self._memory):
            context = ExecutionContext(
                part(self._program, wanted), (), self._memory, self._device, poison=False
            )
            runs = [context.bound(step) for step in context.program.steps if not step.plan.view]
            bound = _BoundPart(tuple(wanted), dict(self._memory), context, runs)
            stays = self._device.kind == "cpu" and context.program.placement.nbytes <= _KEPT
            self._bound = bound if stays else None
        for run in bound.runs:
            run()


class _BoundPart(NamedTuple):
    """Steps of a prologue at their addresses. memory: of all slots; context: holds their temporaries."""

    wanted: tuple[Slot, ...]
    memory: dict[Slot, Buffer]
    context: ExecutionContext
    runs: list[Run]

    def serves(self, wanted: Sequence[Slot], memory: Mapping[Slot, Buffer]) -> bool:
        """Whether it computes the wanted results at their current addresses."""
        same = len(wanted) == len(self.wanted) and all(
            a is b for a, b in zip(wanted, self.wanted, strict=True)
        )
        return same and all(memory.get(slot) is buffer for slot, buffer in self.memory.items())


@dataclass(frozen=True, eq=False)
class Derived:
    """An output of a plan on known inputs: a single object wherever these are the same."""

    plan: Plan
    output: int
    inputs: tuple[Hashable, ...]


@dataclass(eq=False)
class _Made:
    """Memory that a prologue wrote. shared: other programs read it too, so that it is not overwritten.

    borrowed: another program's prologue wrote it.
    """

    what: Hashable
    buffer: Buffer
    shared: bool = False
    borrowed: bool = False


def _taken(names: Mapping[Slot, Hashable], beside: Iterable[Prologue]) -> dict[Slot, _Made]:
    """The wanted results that other programs have computed, by name."""
    there = {made.what: made for other in beside for made in other._made.values()}
    found = {slot: there[name] for slot, name in names.items() if name in there}
    for made in found.values():
        made.shared = True
    return {slot: _Made(made.what, made.buffer, shared=True, borrowed=True) for slot, made in found.items()}


# ------------------------------------------------------------------------------------------------------ what is made


def lasting(program: PlannedGraph) -> list[Slot]:
    """The prologue's results that calls read."""
    made = {slot for step in program.prologue for slot in step.outputs if slot.base is slot}
    read = [slot.base for step in program.steps for slot in step.inputs]
    read += [slot.base for slot in program.outputs]
    return [slot for slot in dict.fromkeys(read) if slot in made]


def part(program: PlannedGraph, wanted: Collection[Slot]) -> PlannedGraph:
    """The steps of the prologue that compute some of its lasting results, as a program whose temporaries are the
    rest.

    Lasting results that are not wanted are in memory already.
    """
    needed = set(wanted)
    there = set(lasting(program)) - needed
    steps = []
    for step in reversed(program.prologue):
        if any(slot.base in needed for slot in step.outputs):
            needed.update({slot.base for slot in step.inputs} - there)
            steps.append(step)
    steps.reverse()
    lives: dict[Slot, tuple[int, int]] = {}
    for index, step in enumerate(steps):
        written = [*step.outputs, *([step.workspace] if step.workspace else [])]
        lives |= {slot: (index, index) for slot in written if slot.base is slot and slot not in wanted}
        for base in {slot.base for slot in step.inputs} & lives.keys():
            lives[base] = lives[base][0], index
    placement = place([Lifetime(slot.spec.nbytes, *life) for slot, life in lives.items()])
    return replace(
        program,
        inputs=[],
        outputs=[],
        prologue=[],
        steps=steps,
        temporaries=list(lives),
        placement=placement,
        halfway=0,
    )


_known: WeakValueDictionary[tuple[object, ...], Derived] = WeakValueDictionary()


def derivations(program: PlannedGraph, state: Mapping[Slot, Hashable]) -> dict[Slot, Hashable]:
    """The derivation of each slot of the prologue: equal where other programs compute the same.

    state: names of resident inputs; an input without a name is never shared.
    """
    names: dict[Slot, Hashable] = {slot: state.get(slot, slot) for slot in program.inputs}
    for value, slot in program.constants.items():
        array = value.constant.numpy() if value.constant is not None else None
        small = array is not None and array.nbytes <= _SMALL
        names[slot] = (slot.spec, array.tobytes()) if small and array is not None else slot
    for step in program.prologue:
        given = tuple([names[slot.base] for slot in step.inputs])
        for index, slot in enumerate(step.outputs):
            if slot.base is slot:
                key = step.plan, index, given
                names[slot] = _known.get(key) or _known.setdefault(key, Derived(*key))
    return names
