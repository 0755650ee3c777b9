"""Slots share the memory of others, at an offset; what a step is called."""

from lamina import ops
from lamina.backends import passing_plan
from lamina.graph import trace
from lamina.graph.planning.program import PlannedStep, Slot
from lamina.spec import Spec, float32

ROW = Spec((4,), float32).fixed


def test_a_slot_owns_its_memory_unless_it_shares_anothers() -> None:
    whole = Slot(ROW, "temporary")
    assert (whole.base, whole.offset) == (whole, 0)
    part = Slot(ROW, "temporary", shares=whole, begins=256)
    part_of_it = Slot(ROW, "temporary", shares=part, begins=512)
    assert (part_of_it.base, part_of_it.offset) == (whole, 768)
    other = Slot(ROW, "input")
    whole.shares = other  # as when an output takes over its input's memory
    assert (part_of_it.base, part_of_it.offset) == (other, 768)


def test_slots_of_equal_fields_are_two_places() -> None:
    assert Slot(ROW, "input") != Slot(ROW, "input")


def test_a_step_is_called_as_its_op() -> None:
    node = trace(ops.relu, ROW).nodes[0]
    plan, slots = passing_plan([ROW], "copy"), (Slot(ROW, "input"), Slot(ROW, "temporary"))
    assert PlannedStep(plan, slots[:1], slots[1:], node).label == "relu"
    assert PlannedStep(plan, slots[:1], slots[1:]).label == "reorder"
