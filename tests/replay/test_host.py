"""Steps for a CPU: bound to memory, or refused."""

import re
from typing import Any

import numpy as np
import pytest

from lamina import onednn
from lamina.onednn.attributes import Binary, Eltwise, PostOp
from lamina.onednn.recipe import encode, encode_desc
from lamina.replay import host
from lamina.replay.addresses import ARENA, INPUTS, Regions, virtual
from lamina.replay.errors import OtherMachineError, PlanFileError
from lamina.replay.host import HostSteps
from lamina.runtime import Device
from lamina.spec import ShapeError

X = virtual(INPUTS)
Y = virtual(ARENA)


def memory(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Regions:
    return Regions([(0, -1), (y.ctypes.data, y.nbytes)] + [(0, -1)] * 6 + [(x.ctypes.data, x.nbytes)])


def tanh_step() -> list[Any]:
    desc = onednn.MemoryDesc((4, 8))
    made = onednn.eltwise_forward("tanh", desc, desc, prop="inference")
    operands = [[onednn.ARG.SRC, None, X], [onednn.ARG.DST, None, Y]]
    return ["onednn", encode(made), made.implementation, operands, 0, made.scratchpad.nbytes]


def spec(*shape: int) -> list[Any]:
    return [list(shape), "float32"]


NUMPY = ["numpy", "tanh", {}, [spec(4, 8)], [spec(4, 8)], [X], [Y]]
ANEW = ["anew", "cpu", ["op", "tanh", {}, {}], [spec(4, 8)], [spec(4, 8)], 0, [[X], [Y], 0]]
GUARD = ["guard", "no_nan", [[X, 32, "float32"]], [["fill"]], NUMPY]


@pytest.mark.parametrize("kind", ["onednn", "numpy", "anew", "guard"])
def test_a_step_computes(kind: str) -> None:
    step = {"onednn": tanh_step(), "numpy": NUMPY, "anew": ANEW, "guard": [*GUARD[:3], [tanh_step()], NUMPY]}[
        kind
    ]
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    y = np.zeros_like(x)
    run = HostSteps(Device("cpu")).step(step)(memory(x, y), 0)
    run()
    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-5, atol=1e-6)
    if kind == "guard":
        x[1, 1] = np.nan
        run()
        assert np.isnan(y[1, 1])
        np.testing.assert_allclose(y[0], np.tanh(x[0]), rtol=1e-5, atol=1e-6)


def test_equal_primitives_are_made_once() -> None:
    steps = HostSteps(Device("cpu"))
    for _ in range(3):
        steps.step(tanh_step())
    assert len(steps._made) == 1


def test_more_scratch_memory_than_was_recorded() -> None:
    """Primitives need more of it with more threads."""
    desc = onednn.MemoryDesc((64, 64))
    made = onednn.softmax_forward(desc, desc, 0, prop="inference")
    operands = [[onednn.ARG.SRC, None, X], [onednn.ARG.DST, None, Y]]
    steps = HostSteps(Device("cpu"))
    steps.step(["onednn", encode(made), made.implementation, operands, 0, made.scratchpad.nbytes])
    assert steps.scratch == 0
    steps.step(["onednn", encode(made), made.implementation, operands, 0, made.scratchpad.nbytes - 1])
    assert steps.scratch == made.scratchpad.nbytes


def changed(at: int, value: Any) -> list[Any]:
    step = tanh_step()
    step[at] = value
    return step


@pytest.mark.parametrize(
    ("step", "error"),
    [
        (["launch"], PlanFileError),
        ([], ValueError),
        (changed(2, "jit:other"), OtherMachineError),
        (changed(3, [[onednn.ARG.SRC, None, X]]), PlanFileError),
        (
            changed(3, [[onednn.ARG.SRC, None, X], [onednn.ARG.DST, None, Y], [onednn.ARG.BIAS, None, Y]]),
            PlanFileError,
        ),
        ([*NUMPY[:1], "no such op", *NUMPY[2:]], ValueError),
        ([*NUMPY[:4], [spec(4, 9)], *NUMPY[5:]], PlanFileError),
        ([*ANEW[:2], ["op", "cumsum", {}, {}], *ANEW[3:]], ValueError),
        ([*ANEW[:4], [spec(4, 9)], *ANEW[5:]], OtherMachineError),
        (["guard", "always", [], [], NUMPY], KeyError),
    ],
    ids=str,
)
def test_what_is_no_step_is_refused(step: list[Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        HostSteps(Device("cpu")).step(step)


@pytest.mark.parametrize("step", [tanh_step(), NUMPY, ANEW], ids=["onednn", "numpy", "anew"])
def test_memory_that_is_too_small_is_refused(step: list[Any]) -> None:
    bind = HostSteps(Device("cpu")).step(step)
    with pytest.raises(PlanFileError, match="beyond"):
        bind(memory(np.zeros(32, np.float32), np.zeros(31, np.float32)), 0)
    with pytest.raises((PlanFileError, ShapeError)):
        bind(memory(np.zeros(0, np.float32), np.zeros(32, np.float32)), 0)


def joined() -> tuple[onednn.PrimitiveDesc, list[int]]:
    desc = onednn.MemoryDesc((4, 8))
    made = onednn.concat(0, [desc] * 3, onednn.MemoryDesc((12, 8)))
    return made, [onednn.ARG.MULTIPLE_SRC + i for i in range(3)] + [onednn.ARG.DST]


def product() -> tuple[onednn.PrimitiveDesc, list[int]]:
    """With a bias, scales, and operands of the first and the third post-op."""
    a, b, y, row = (onednn.MemoryDesc(s) for s in ((4, 8), (8, 4), (4, 4), (1, 4)))
    steps: list[PostOp] = [Binary("add", y), Eltwise("relu"), Binary("mul", row)]
    attributes = onednn.Attributes(steps, scales={onednn.ARG.SRC: 0})
    made = onednn.matmul(a, b, y, bias=row, attributes=attributes)
    extra = [onednn.post_op_argument(0), onednn.post_op_argument(2), onednn.scale_argument(onednn.ARG.SRC)]
    return made, [onednn.ARG.SRC, onednn.ARG.WEIGHTS, onednn.ARG.BIAS, onednn.ARG.DST, *extra]


@pytest.mark.parametrize("make", [joined, product])
def test_every_operand_of_a_primitive_is_needed(make: Any) -> None:
    """Sources that are many, operands of post-ops, scales: without one memory of nobody would be read."""
    made, arguments = make()
    layouts = {onednn.scale_argument(onednn.ARG.SRC): encode_desc(onednn.MemoryDesc((1,)))}

    def step(arguments: list[int]) -> None:
        operands = [[a, layouts.get(a), X] for a in arguments]
        recorded = ["onednn", encode(made), made.implementation, operands, Y, made.scratchpad.nbytes]
        HostSteps(Device("cpu")).step(recorded)

    step(arguments)
    for argument in arguments:
        with pytest.raises(PlanFileError, match=rf"lacks the arguments \[{int(argument)}\]"):
            step([a for a in arguments if a != argument])


def test_several_sources_are_joined_in_their_order() -> None:
    made, arguments = joined()
    x = np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32)
    y = np.zeros(x.nbytes + made.scratchpad.nbytes, np.uint8)  # scratch memory lies behind the result
    places = [virtual(INPUTS, offset) for offset in (256, 0, 128)]
    operands = [[a, None, place] for a, place in zip(arguments, [*places, Y], strict=True)]
    scratch = [virtual(ARENA, x.nbytes), made.scratchpad.nbytes]
    step = ["onednn", encode(made), made.implementation, operands, *scratch]
    HostSteps(Device("cpu")).step(step)(memory(x, y), 0)()
    found = y[: x.nbytes].view(np.float32).reshape(12, 8)
    np.testing.assert_array_equal(found, np.concatenate([x[8:], x[:4], x[4:8]]))


def test_all_operands_of_a_guard_and_all_steps_behind_it() -> None:
    """tanh(x)^2 in two steps while no part of x has a NaN, or else tanh(x) in one."""
    desc = onednn.MemoryDesc((4, 8))
    made = onednn.eltwise_forward("square", desc, desc, prop="inference")
    operands = [[onednn.ARG.SRC, None, Y], [onednn.ARG.DST, None, Y]]
    square = ["onednn", encode(made), made.implementation, operands, 0, made.scratchpad.nbytes]
    parts = [[virtual(INPUTS, offset), 16, "float32"] for offset in (0, 64)]
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    y = np.zeros_like(x)
    run = HostSteps(Device("cpu")).step(["guard", "no_nan", parts, [tanh_step(), square], NUMPY])(
        memory(x, y), 0
    )
    for place in (None, (0, 0), (3, 7)):
        given = x.copy()
        if place:
            x[place] = np.nan
        run()
        np.testing.assert_allclose(y, np.tanh(x) if place else np.tanh(x) ** 2, rtol=1e-5, atol=1e-6)
        x[:] = given


def test_onednn_is_named_by_its_version_and_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+ (sse41|avx\w*|default|all)", host.oneDNN())
    monkeypatch.setattr(onednn, "available", lambda: False)
    assert host.oneDNN() == ""
