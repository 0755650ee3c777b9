"""Rematerialization under a memory limit: values that the backward pass reads are recomputed instead of being kept.

At the step of peak memory, values that are only kept for later are dropped, and recomputed by copies of their nodes
right before the first later reader (Chen et al. 2016, "Training deep nets with sublinear memory cost"; here the
segments come from a greedy choice of the most bytes per second of work). The graph is replanned until its arena fits.
Copies have the op, input values and policy of the original node, and random state is a value that they read, so that
their results are bit-equal to the dropped ones wherever kernels are deterministic.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import fsum

from lamina.backends import Backend
from lamina.graph.ir.graph import Graph, Node, Value
from lamina.graph.planning.cost import least_seconds
from lamina.graph.planning.layout import Plans, plan_graph
from lamina.graph.planning.memory import aligned
from lamina.graph.planning.program import PlannedGraph, PlannedStep, Slot
from lamina.graph.planning.schedule import schedule
from lamina.ops.primitives import Foreach
from lamina.runtime import Machine

#: What one round takes off the peak; candidates are ranked anew after each round. The rounds are the same for every
#: limit, so that the least memory that one search reached can be requested.
_SHARE = 0.05
#: Rounds without a smaller arena after which the search ends.
_PATIENCE = 24
#: The most copies, per node of the graph.
_GROWTH = 8
#: Relative costs on a CPU: choices must not depend on a measurement.
_USUAL = Machine(
    "usual",
    "",
    1,
    flops={"bfloat16": 2e12, "float16": 2e12, "int8": 2e12, "float32": 1e12, "float64": 5e11},
    bandwidth=5e10,
)
#: The queue rank of a block that cannot be recomputed below the peak.
_NEVER = (True, -0.0)

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "": 1,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


class MemoryLimitError(ValueError):
    """No plan was found within the memory limit. least: bytes of the smallest arena that was reached."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least


def as_bytes(size: int | str, what: str = "memory_limit") -> int:
    """Bytes from a number, or from text with a unit: "8 GiB", "512MiB", "2 GB", "1000". Raises ValueError."""
    if isinstance(size, str):
        found = _SIZE.fullmatch(size)
        if found is None or found[2].lower() not in _UNITS:
            raise ValueError(f"{what}: {size!r} is no size; write bytes, or such as '8 GiB' or '500 MB'")
        size = int(float(found[1]) * _UNITS[found[2].lower()])
    if size <= 0:
        raise ValueError(f"{what} must be a positive number of bytes, got {size}")
    return size


def plan_within(
    graph: Graph, backend: Backend, donate: Mapping[int, int], resident: Collection[int], limit: int
) -> tuple[Graph, PlannedGraph]:
    """The graph, with nodes recomputed where needed, and its program with an arena of at most `limit` bytes.

    A graph that fits is planned as it is. Raises MemoryLimitError when no choice that was tried fits.
    """
    plans = Plans(backend)
    machine = backend.device.machine if backend.device.kind == "cuda" else _USUAL
    program = plan_graph(graph, plans, donate, resident, scarce=True)
    first = least = program.placement.nbytes
    most, waited = _GROWTH * len(graph.nodes), 0
    while program.placement.nbytes > limit:
        shrunk = _Round(graph, program, donate, machine).shrunk()
        if shrunk is None or len(shrunk.nodes) > most or waited > _PATIENCE:
            raise MemoryLimitError(
                f"memory_limit: {graph.name} cannot be planned in {_mib(limit)}: it takes {_mib(first)} when all "
                f"is kept, and at least {_mib(least)} with recomputation; raise the limit to that, take a smaller "
                f"batch or a half type, or set policy(workspace_limit=...)",
                least,
            )
        graph = shrunk
        program = plan_graph(graph, plans, donate, resident, scarce=True)
        waited = 0 if program.placement.nbytes < least else waited + 1
        least = min(least, program.placement.nbytes)
    return graph, program


def _mib(nbytes: int) -> str:
    return f"{nbytes} bytes ({nbytes / 2**20:.1f} MiB)"


class _Round:
    """One round of the search: the step of peak memory, and the values that can be dropped across it.

    at: the index of that step. carried: values that are live there only because a later step reads them, and that an
        earlier node can recompute.
    """

    def __init__(
        self, graph: Graph, program: PlannedGraph, donate: Mapping[int, int], machine: Machine
    ) -> None:
        self.graph, self.program = graph, program
        self.order = schedule(graph, donate)
        self.step_of = {s.node: i for i, s in enumerate(program.steps) if s.node is not None}
        self.seconds = {
            n: least_seconds(program.steps[i], machine) + machine.launch_seconds
            for n, i in self.step_of.items()
        }
        self.live = _live_bytes(program)
        self.at = max(range(len(self.live)), key=self.live.__getitem__)
        self.peak = self.live[self.at]
        self.goal = round((1 - _SHARE) * self.peak)
        self.next_read = self._next_reads()
        self.carried = {v for v in self.next_read if self._position(v) < self.at}
        self.begun = Counter[int]()  # bytes of the blocks that are first written in each step
        for slot in program.temporaries:
            self.begun[slot.first] += aligned(slot.spec.nbytes)

    def shrunk(self) -> Graph | None:
        """The graph with the best candidates recomputed after the peak; None when nothing can be dropped there."""
        dropped = self._choose(self._blocks())
        return self._rebuilt(dropped) if dropped else None

    def _next_reads(self) -> dict[Value, int]:
        """Temporaries that steps after the peak read, with the first of these steps."""
        found: dict[Value, int] = {}
        for node, i in self.step_of.items():
            if i > self.at:
                for v in node.inputs:
                    if v.node in self.step_of:
                        found.setdefault(v, i)
        return found

    def _position(self, value: Value) -> int:
        """The step that computes a value; -1 for inputs and constants."""
        return self.step_of.get(value.node, -1) if value.node is not None else -1

    def _blocks(self) -> dict[Slot, set[Value]]:
        """Blocks that are live but unused at the peak, with the values that later steps read from them."""
        held = _values_of(self.program)
        fixed = set(self.graph.outputs)
        step = self.program.steps[self.at]
        busy = {s.base for s in (*step.inputs, *step.outputs)}
        found: dict[Slot, set[Value]] = {}
        for slot in self.program.temporaries:
            values = held.get(slot, set())
            late = values & self.carried
            waits = slot.first < self.at < slot.last and slot not in busy and slot.spec.nbytes > 0
            if waits and late and not values & fixed and all(_repeatable(v) for v in late):
                found[slot] = late
        return found

    def _choose(self, blocks: dict[Slot, set[Value]]) -> set[Value]:
        """The values of the blocks with the most bytes per second of work, until enough is freed.

        Recomputation takes memory, too: blocks for which it would exceed the goal come last, and those for which it
        would reach the peak are kept.
        """
        dropped: set[Value] = set()
        need = self.peak - self.goal
        # Dropping more values lengthens the recomputation of others: an earlier rating is an upper bound of the
        # present one, so that only the head of the queue has to be rated anew.
        queue = [self._candidate(i, slot, blocks[slot], dropped) for i, slot in enumerate(blocks)]
        heapify(queue)
        while need > 0 and queue:
            _, i, slot = heappop(queue)
            now = self._candidate(i, slot, blocks[slot], dropped)
            if now[0] == _NEVER:
                continue
            if queue and now[:2] > queue[0][:2]:
                heappush(queue, now)
                continue
            dropped |= blocks[slot]
            need -= aligned(slot.spec.nbytes)
        return dropped

    def _candidate(
        self, index: int, slot: Slot, values: set[Value], dropped: set[Value]
    ) -> tuple[tuple[bool, float], int, Slot]:
        """An entry of the queue of blocks, best first; ties go to the earlier one."""
        fits, rate = self._worth(slot, values, dropped)
        return (not fits, -rate), index, slot

    def _worth(self, slot: Slot, values: set[Value], dropped: set[Value]) -> tuple[bool, float]:
        """Whether a block can be recomputed below the goal, and its bytes per second of work; (False, 0) if never."""
        nodes = self._path(values, dropped)
        if nodes is None:
            return False, 0.0
        needed = self._memory(slot, values, nodes)
        if needed >= self.peak:
            return False, 0.0
        return needed <= self.goal, aligned(slot.spec.nbytes) / fsum(self.seconds[n] for n in nodes)

    def _path(self, values: set[Value], dropped: set[Value]) -> set[Node] | None:
        """The nodes that recompute values from what is kept; None where one of them must not run twice."""
        found: set[Node] = set()
        front = list(values)
        while front:
            value = front.pop()
            if value.node is None or value.node in found:
                continue
            if not _repeatable(value):
                return None
            found.add(value.node)
            front += [u for u in value.node.inputs if not self._is_kept(u, dropped | values)]
        return found

    def _memory(self, slot: Slot, values: set[Value], nodes: set[Node]) -> int:
        """An estimate of the live bytes while nodes run again, before the first later reader of values."""
        start = min(self.next_read[v] for v in values)
        most = 0
        for node in nodes:
            step = self.program.steps[self.step_of[node]]
            held = [*node.outputs, *(u for u in node.inputs if u.node in nodes)]
            scratch = step.workspace.spec.nbytes if step.workspace else 0
            most = max(most, sum(aligned(v.spec.nbytes) for v in held) + scratch)
        return self.live[start] - self.begun[start] - aligned(slot.spec.nbytes) + most

    def _is_kept(self, value: Value, dropped: set[Value]) -> bool:
        """Whether a value is still available after the peak."""
        return self._position(value) < 0 or (value in self.carried and value not in dropped)

    def _rebuilt(self, dropped: set[Value]) -> Graph:
        """The graph in step order, where readers after the peak read new copies of dropped values."""
        serial = itertools.count()
        new: dict[Value, Value] = {}
        again: dict[Value, Value] = {}

        def copy(value: Value) -> Value:
            """Copy the value's node after what it needs; iterative, so that long chains need no deep recursion."""
            front = [value]
            while front:
                node = front[-1].node
                if node is None or front[-1] in again:
                    front.pop()
                    continue
                gone = {u for u in node.inputs if not self._is_kept(u, dropped)}
                missing = [u for u in node.inputs if u in gone and u not in again]
                if missing:
                    front += reversed(missing)
                    continue
                inputs = [again[u] if u in gone else new.get(u, u) for u in node.inputs]
                made = Node(node.op, inputs, node.policy, next(serial), origin=node.origin)
                again.update(zip(node.outputs, made.outputs, strict=True))
            return again[value]

        for node in self.order:
            late = self.step_of.get(node, -1) > self.at
            inputs = [copy(v) if late and v in dropped else new.get(v, v) for v in node.inputs]
            made = Node(node.op, inputs, node.policy, next(serial), origin=node.origin)
            new.update(zip(node.outputs, made.outputs, strict=True))
        return Graph(self.graph.inputs, [new.get(v, v) for v in self.graph.outputs], self.graph.name)


def _repeatable(value: Value) -> bool:
    """Whether a value's node may run twice: not updates, nor launches that compute many other values, too."""
    op = value.node.op if value.node is not None else None
    return op is not None and op.effect == "pure" and not isinstance(op, Foreach)


def _live_bytes(program: PlannedGraph) -> list[int]:
    """Live bytes of the arena's blocks in each step."""
    changes = [0] * (len(program.steps) + 2)
    for slot in program.temporaries:
        changes[slot.first] += aligned(slot.spec.nbytes)
        changes[slot.last + 1] -= aligned(slot.spec.nbytes)
    return list(itertools.accumulate(changes))[: len(program.steps)]


def _values_of(program: PlannedGraph) -> dict[Slot, set[Value]]:
    """The values that each block holds at some time, in any layout."""
    value_of: dict[Slot, Value] = {}
    found: dict[Slot, set[Value]] = {}
    for slot, value in _written(program.steps, value_of):
        value_of[slot] = value
        found.setdefault(slot.base, set()).add(value)
    return found


def _written(steps: Sequence[PlannedStep], value_of: Mapping[Slot, Value]) -> Iterator[tuple[Slot, Value]]:
    """The slots that each step writes, with their values: a reorder writes the value that it reads."""
    for step in steps:
        if step.node is not None:
            yield from zip(step.outputs, step.node.outputs, strict=True)
        elif step.inputs[0] in value_of:
            yield step.outputs[0], value_of[step.inputs[0]]
