"""Few large groups one after the other: the kernels around them, and what they are planned for."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from lamina.backends import Call, Plan
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.merged import Merged
from lamina.backends.cuda.conv.slices import Slices, slices, slices_formulation, that_pay
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, sides
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.launch.program import Place, SubPlan
from lamina.backends.reference import run_reference
from lamina.ops.primitives import Add, Conv, ConvDataGrad, ConvFilterGrad, Relu, Window
from lamina.spec import DType, Policy, Shape, Spec, bfloat16, float16, float32, float64, pack, unpack
from tests.backends.cuda.select.test_formulations import DIRECTIONS, draw, op_of, operands, square
from tests.helpers import emulator
from tests.helpers.eager import mismatch
from tests.helpers.planned import H200

CASES: dict[str, tuple[Shape, Shape, Window]] = {
    "two groups": ((2, 64, 5, 6), (32, 32, 3, 3), square(3, 1, 1, 2)),
    "three groups": ((1, 120, 7, 5), (48, 40, 3, 2), Window((2, 1), ((1, 0), (0, 1)), (1, 1), 3)),
    "one axis": ((2, 64, 9), (16, 32, 3), Window((1,), ((1, 1),), (1,), 2)),
    "three axes": ((1, 64, 3, 2, 3), (16, 32, 1, 2, 2), Window((1,) * 3, ((0, 0),) * 3, (1,) * 3, 2)),
}


@pytest.mark.feature("B012")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES)
def test_groups_one_after_the_other_are_the_same(case: str, direction: Direction, dtype: DType) -> None:
    """The copies on the emulator; each group's convolution in NumPy, on what lies where its plan reads."""
    o = operands(*CASES[case], dtype)
    form = slices(direction, o)
    assert form is not None
    part, (result, given) = form.operands, sides(direction, o)
    inner = Plan(
        sides(direction, part)[1], (sides(direction, part)[0],), lambda call: lambda: None, workspace=512
    )
    asked: list[Operands] = []

    def plan(wanted: Operands) -> Plan:
        asked.append(wanted)
        return inner

    formulation = slices_formulation(form, plan)
    assert asked == [part]
    arrays = [draw(spec, i) for i, spec in enumerate(given)]
    held = [emulator.Memory(spec.nbytes) for spec in given]
    for memory, array, spec in zip(held, arrays, given, strict=True):
        memory.bytes[:] = pack(array, spec.physical).view(np.uint8).reshape(-1)
    out, room = emulator.Memory(result.nbytes), emulator.Memory(formulation.scratch)
    call = Call(tuple(m.pointer for m in held), (out.pointer,), room.pointer)

    def at(place: Place, spec: Spec) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        memory = {"workspace": room, "output": out}.get(place.kind) or held[place.index]
        return memory.bytes[place.offset : place.offset + spec.nbytes]

    groups = 0
    for step in formulation.steps:
        if not isinstance(step, SubPlan):
            emulator.run_steps([step], call)
            continue
        operands_ = [
            unpack(at(place, spec).view(dtype.numpy), spec.physical, spec.shape)
            for place, spec in zip(step.inputs, inner.inputs, strict=True)
        ]
        (found,) = run_reference(op_of(direction, part), operands_, float64)
        packed = pack(found.astype(dtype.numpy), inner.outputs[0].physical)
        at(step.outputs[0], inner.outputs[0])[:] = packed.view(np.uint8).reshape(-1)
        assert step.offset + inner.workspace == formulation.scratch
        groups += 1
    assert groups == o.window.groups
    for memory in (*held, out, room):
        memory.check(case)
    found = unpack(out.bytes.view(dtype.numpy), result.physical, result.shape)
    wrong = mismatch(found, run_reference(op_of(direction, o), arrays, float64)[0], dtype)
    assert not wrong, wrong


def grouped(channels: int, size: int, groups: int = 2, batch: int = 64) -> Operands:
    whole = channels * groups
    return operands((batch, whole, size, size), (2 * whole, channels, 3, 3), square(3, 1, 1, groups))


@pytest.mark.parametrize(
    ("o", "direction", "first"),
    [
        (grouped(32, 56), Conv, ["dense", "slices", "plain"]),
        (grouped(64, 56), Conv, ["slices", "dense", "plain"]),
        (grouped(64, 28, groups=4), Conv, ["slices", "plain"]),
        (grouped(128, 14), ConvFilterGrad, ["slices", "plain"]),
        (grouped(256, 14), Conv, ["plain"]),
        (grouped(64, 28, batch=1), Conv, ["plain"]),
    ],
)
def test_where_they_come_first(o: Operands, direction: Direction, first: list[str]) -> None:
    problem = conv_problem(direction, o, H200)
    names = [one.name for one in problem.formulations]
    assert names[: len(first)] == first
    assert problem.kind.endswith(" few groups") == (first[0] != "plain")
    assert len(names) == len({*names})


def test_all_of_it_competes() -> None:
    """Where formulations are timed also what is not expected to be faster."""
    problem = conv_problem(Conv, grouped(256, 14), H200, policy=Policy(algorithm="fastest"))
    assert [one.name for one in problem.formulations][:2] == ["slices", "plain"]


def test_steps_follow_one_convolution_only() -> None:
    epilogue = Epilogue((Add(), Relu()), (Spec((1, 256, 1, 1), bfloat16),), 2)
    problem = conv_problem(Conv, grouped(64, 56), H200, epilogue)
    assert [one.name for one in problem.formulations][:2] == ["dense", "plain"]


@pytest.mark.parametrize(
    ("direction", "groups", "channels", "apart", "merged"),
    [
        # engines for groups, one convolution a group, one whose filter has zeros; each with a quarter more than it
        (Conv, 2, 32, (10 - 1.25 * 4) / (3 * 1.25 - 1), (10 - 1.25 * 2 / 0.5) / (3 * 1.25 - 1)),
        (ConvDataGrad, 2, 40, (8 - 1.25 * 3.2) / (3 * 1.25 - 1), (8 - 1.25 * 2 / 0.6) / (3 * 1.25 - 1)),
        (Conv, 2, 64, (5 - 1.25 * 2) / (3 * 1.25 - 1), (5 - 1.25 * 2 / 0.6) / (3 * 1.25 - 1)),
        (Conv, 4, 64, (5 - 1.25 * 2) / (5 * 1.25 - 1), None),
        (Conv, 2, 128, (2.5 - 1.25 / 0.6) / (3 * 1.25 - 1), None),
        (ConvFilterGrad, 2, 32, (430 / 32 - 1.25 * 4) / (3 * 1.25 - 1), (430 / 32 - 5) / (3 * 1.25 - 1)),
        (ConvFilterGrad, 3, 32, (430 / 32 - 1.25 * 4) / (4 * 1.25 - 1), (430 / 32 - 6.25) / (3 * 1.25 - 1)),
        (Conv, 2, 256, None, None),
    ],
)
def test_other_forms_pay_up_to_a_time_of_a_launch(
    direction: Direction, groups: int, channels: int, apart: float | None, merged: float | None
) -> None:
    """On a machine that does all arithmetic in a second and has its operands at once. apart, merged: the seconds."""
    o = grouped(channels, 14, groups, batch=1)
    form = slices(direction, o)
    assert form is not None
    for kind, limit in ((Slices, apart), (Merged, merged)):
        for launch, pays in ((0.98, True), (1.02, False)) if limit else ((0.0, False),):
            machine = SimpleNamespace(
                rate=lambda name: o.flops, bandwidth=np.inf, launch_seconds=launch * (limit or 0)
            )
            for steps in (False, True):
                found = that_pay(form, machine, Policy(check_finite=False), steps=steps)  # type: ignore[arg-type]
                assert any(isinstance(one, kind) for one in found) == (
                    pays and not (steps and kind is Slices)
                )
                assert len(found) == len({type(one) for one in found})


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_copies_of_all_channels_take_their_time(direction: Direction) -> None:
    """x and y are read and written once; the convolutions take 4 seconds, engines for groups `least` of them."""
    o = grouped(32, 14)
    form = slices(direction, o)
    assert form is not None
    least = 430 / 32 if direction is ConvFilterGrad else 10
    for copies, pays in ((least / 1.25 - 4.05, True), (least / 1.25 - 3.95, False)):
        bandwidth = 2 * (o.x.nbytes + o.y.nbytes) / copies
        machine = SimpleNamespace(rate=lambda name: o.flops, bandwidth=bandwidth, launch_seconds=0.0)
        found = that_pay(form, machine, Policy(), steps=False)  # type: ignore[arg-type]
        assert any(isinstance(one, Slices) for one in found) == pays
        assert isinstance(found[0], Merged)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nothing_spreads_where_its_origin_is_sought(direction: Direction) -> None:
    """Zeros times NaN are NaN in other groups; groups by themselves do not meet."""
    form = slices(direction, grouped(32, 56))
    assert form is not None
    found = that_pay(form, H200.machine, Policy(check_finite=True), steps=False)
    assert all(isinstance(one, Slices) for one in found) == (direction is not ConvFilterGrad)


@pytest.mark.parametrize(
    ("x", "w", "groups", "dtype", "reason"),
    [
        ((64, 64, 56, 56), (64, 64, 3, 3), 1, bfloat16, "one group"),
        ((64, 512, 56, 56), (512, 32, 3, 3), 16, bfloat16, "many groups"),
        ((64, 32, 56, 56), (64, 16, 3, 3), 2, bfloat16, "small groups"),
        ((64, 72, 56, 56), (72, 36, 3, 3), 2, bfloat16, "groups that begin between accesses"),
        ((64, 128, 56, 56), (128, 64, 3, 3), 2, float32, "no half type"),
    ],
)
def test_what_stays_in_groups(x: Shape, w: Shape, groups: int, dtype: DType, reason: str) -> None:
    for direction in DIRECTIONS:
        assert slices(direction, operands(x, w, square(3, 1, 1, groups), dtype)) is None, reason
