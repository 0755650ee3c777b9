"""Which steps of a program may run concurrently, and what they have to wait for.

The critical path (forward, then the gradients of the data) stays on stream 0. Steps whose results it does not read
(parameter gradients, updates, counts) may run on stream 1 at the same time. Collectives and the steps that consume
their results run on streams 2 and 3, so that no kernel waits for a message that it does not need. Memory is planned
for one order of steps, so a step waits for every earlier step of another stream that touches the same bytes, be it
the producer of its operand or a step that used the memory before. Operands of updates and collectives therefore keep
their memory to the end, unless memory is scarce: no gradient waits for a message just because it reuses its memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lamina.graph.planning.cost import work
from lamina.graph.planning.program import PlannedStep
from lamina.ops.core import Effect
from lamina.ops.primitives.collective import StartAllReduce, StartReduceScatter

#: The streams, by what runs on them.
CHAIN, BESIDE, MESSAGES, BEHIND_MESSAGES = range(4)
#: First byte and one past the last.
Range = tuple[int, int]


@dataclass(frozen=True)
class Footprint:
    """The memory that a step reads and writes, and whether its order among steps of its kind matters."""

    reads: tuple[Range, ...]
    writes: tuple[Range, ...]
    ordered: bool = False  # a collective: all ranks must keep the same order

    def clashes(self, other: Footprint) -> bool:
        """Whether the order of the two matters: one writes memory that the other reads or writes."""
        return (
            (self.ordered and other.ordered)
            or _overlap(self.writes, other.reads)
            or _overlap(self.writes, other.writes)
            or _overlap(self.reads, other.writes)
        )


def _overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)


def assign_streams(steps: Sequence[PlannedStep], seconds: Sequence[float]) -> list[int]:
    """The stream of each step: CHAIN for the critical path, BESIDE for what may run concurrently with it, MESSAGES
    for collectives that may, BEHIND_MESSAGES for the steps that consume their results.

    seconds: about how long each step takes.
    """
    sources = _dependencies(steps)
    chain = _chain(steps, sources, seconds)
    found: list[int] = []
    for i, step in enumerate(steps):
        if i in chain:
            found.append(CHAIN)
        elif _has("collective", step):
            found.append(MESSAGES)
        else:
            found.append(BEHIND_MESSAGES if any(found[j] >= MESSAGES for j in sources[i]) else BESIDE)
    return found


def _chain(
    steps: Sequence[PlannedStep], sources: Sequence[Sequence[int]], seconds: Sequence[float]
) -> set[int]:
    """The critical path: the step that ends last when all start as early as possible, and all that it depends on."""
    ends: list[float] = []
    for i, time in enumerate(seconds):
        ends.append(time + max((ends[j] for j in sources[i]), default=0.0))
    behind = behind_the_chain(steps, sources)
    counted = [i for i in range(len(steps)) if i not in behind]
    if not counted:
        return set(range(len(steps)))
    found, front = set[int](), [max(counted, key=lambda i: ends[i])]
    while front:
        i = front.pop()
        if i not in found:
            found.add(i)
            front += sources[i]
    return found


def behind_the_chain(
    steps: Sequence[PlannedStep], sources: Sequence[Sequence[int]] | None = None
) -> set[int]:
    """Updates and collectives in flight, the steps that consume their results (gathering sharded parameters, the norm
    of all gradients), and light steps that only these need: other messages, casts, no matrix products.

    sources: the steps that each step depends on, where known.
    """
    first = {i for i, s in enumerate(steps) if _has("update", s) or _travels(s)}
    return _with_others(steps, _dependencies(steps) if sources is None else sources, first)


def _with_others(
    steps: Sequence[PlannedStep], sources: Sequence[Sequence[int]], some: Collection[int]
) -> set[int]:
    """Some steps, all that depend on them, and light steps all of whose readers are among them."""
    found = set(some)
    readers: list[list[int]] = [[] for _ in steps]
    for i, read in enumerate(sources):
        if found.intersection(read):
            found.add(i)
        for j in read:
            readers[j].append(i)
    for i in reversed(range(len(steps))):
        if readers[i] and found.issuperset(readers[i]) and not work(steps[i])[0]:
            found.add(i)
    return found


def _travels(step: PlannedStep) -> bool:
    return step.node is not None and isinstance(step.node.op, StartAllReduce | StartReduceScatter)


def _has(effect: Effect, step: PlannedStep) -> bool:
    """Whether a step's op has an effect: "update" carries state to the next step, and nothing waits for it."""
    return step.node is not None and step.node.op.effect == effect


def _dependencies(steps: Sequence[PlannedStep]) -> list[list[int]]:
    """For each step, the steps that wrote its operands (memory shared by views or in place counts as one)."""
    writer: dict[object, int] = {}
    found = []
    for i, step in enumerate(steps):
        found.append(sorted({writer[s.base] for s in step.inputs if s.base in writer}))
        writer.update((s.base, i) for s in step.outputs)
    return found


def waits(footprints: Sequence[Footprint], stream: Sequence[int]) -> list[list[int]]:
    """For each step, the last earlier step of each other stream that it conflicts with; all before that one are
    done."""
    found: list[list[int]] = []
    steps: dict[int, list[int]] = {k: [] for k in stream}  # per stream, so far
    # (stream, other) -> the last step of the other that it has waited for
    seen: dict[tuple[int, int], int] = {}
    for i, own in enumerate(footprints):
        found.append([])
        for other, earlier in steps.items():
            unseen = earlier[bisect_right(earlier, seen.get((stream[i], other), -1)) :]
            clashing = (j for j in reversed(unseen) if own.clashes(footprints[j]))
            last = None if other == stream[i] else next(clashing, None)
            if last is not None:
                seen[stream[i], other] = last
                found[-1].append(last)
        steps[stream[i]].append(i)
    return found
