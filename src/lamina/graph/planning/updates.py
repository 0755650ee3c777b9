"""Where the gradients of a training step come from: which step computes the operands of the updates."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.graph.planning.program import PlannedStep


def gradient_sources(steps: Sequence[PlannedStep]) -> list[tuple[int, int]]:
    """The operands that "update" steps read from other steps: the number of the producing step, and bytes.

    In the order in which they are produced. An update's results that another update reads are not included.
    """
    writer: dict[object, int] = {}
    found: set[tuple[int, object, int]] = set()
    for i, step in enumerate(steps):
        if step.node is not None and step.node.op.effect == "update":
            made = ((writer[s.base], s.base, s.spec.nbytes) for s in step.inputs if s.base in writer)
            found |= set(made)
        else:
            writer.update((s.base, i) for s in step.outputs)
    return [(i, nbytes) for i, _, nbytes in sorted(found, key=lambda x: x[0])]
