"""The result of planning: steps with their plans, and the memory slots that they read and write."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lamina.backends import Plan
from lamina.graph.ir.graph import Node, Value
from lamina.graph.planning.memory import Placement
from lamina.spec import Spec

Kind = Literal["input", "resident", "constant", "temporary"]


@dataclass(eq=False)
class Slot:
    """A value in a layout. `base` is the slot whose memory it shares (itself unless shared).

    begins: its byte offset within the slot whose memory it shares.
    spec.layout is None while the layout of a resident input is still open.
    first, last: the steps between which the slot's memory is in use (meaningful on bases).
    """

    spec: Spec
    kind: Kind
    name: str = ""
    shares: Slot | None = None
    begins: int = 0
    first: int = -1
    last: int = -1

    @property
    def base(self) -> Slot:
        """The slot that owns the memory."""
        slot = self
        while slot.shares is not None:
            slot = slot.shares
        return slot

    @property
    def offset(self) -> int:
        """Its byte offset within the memory of its base."""
        slot, offset = self, 0
        while slot.shares is not None:
            offset, slot = offset + slot.begins, slot.shares
        return offset


@dataclass(eq=False)
class PlannedStep:
    """One plan with the slots it reads and writes. `node` is None for reorders."""

    plan: Plan
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]
    node: Node | None = None
    workspace: Slot | None = None

    @property
    def label(self) -> str:
        """The op's name, or "reorder"."""
        return self.node.op.name if self.node else "reorder"

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold it."""
        return self.node is None or self.node.op.capturable


@dataclass
class PlannedGraph:
    """What the executor needs: slots for inputs, outputs and constants; steps; placement.

    prologue: steps that run once, whenever resident inputs are loaded: they depend on nothing that changes.
    halfway: how many steps compute the outputs that were requested as `early`. name: the graph's.
    """

    inputs: list[Slot]
    outputs: list[Slot]
    constants: dict[Value, Slot]
    prologue: list[PlannedStep] = field(default_factory=list)
    steps: list[PlannedStep] = field(default_factory=list)
    temporaries: list[Slot] = field(default_factory=list)
    placement: Placement = field(default_factory=lambda: Placement((), 0, 0, 0))
    halfway: int = 0
    name: str = "graph"
