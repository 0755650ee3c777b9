"""Executables as data: what has no form of its own is planned anew, and must fit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, onednn, ops
from lamina.backends import Call, Plan
from lamina.graph import compile, trace
from lamina.graph.run import recorded
from lamina.graph.run.recorded import Recording, _laid_as, _plan
from lamina.replay.addresses import ARENA, COUNTERS, virtual
from lamina.replay.errors import OtherMachineError
from lamina.replay.file import Parts
from lamina.replay.host import HostSteps
from lamina.replay.player import Player
from lamina.replay.specs import encode_spec
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float32, float64

CPU = Device("cpu")


def played(data: dict[str, Any], parts: Parts) -> Player:
    kept = CPU.allocate(max(parts.nbytes, 1))
    content = b"".join(parts.pieces)
    kept.array((len(content),), np.uint8)[:] = np.frombuffer(content, np.uint8)
    return Player(data, kept, CPU, HostSteps(CPU), 1)


def functions() -> dict[str, Any]:
    w = lm.tensor(np.random.default_rng(1).standard_normal((6, 6)).astype(np.float32))
    return {
        "product": lambda x: ops.relu(x @ w),
        "views": lambda x: (ops.reshape(x, (3, 12)), x.T),
        "numpy": lambda x: ops.cumsum(x, 1),
        "several": lambda x: (ops.softmax(x, 1), ops.argmax(x, 1), x + w),
        "constant": lambda x: (x * 2.0, w + 1.0),
    }


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", functions())
def test_data_computes_what_the_executable_does(name: str, backend: str) -> None:
    run = compile(trace(functions()[name], Spec((6, 6), float32)), "cpu", backend=backend)
    parts = Parts()
    player = played(Recording(run, parts).data, parts)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((6, 6)).astype(np.float32)
        for found, wanted in zip(player(x), run(x), strict=True):
            np.testing.assert_array_equal(found, wanted.numpy())


def test_steps_without_a_form_are_planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    run = compile(trace(lambda x: ops.tanh(x) @ x, Spec((6, 6), float32)), "cpu")
    monkeypatch.setattr(Plan, "recorded", lambda plan, call, tape: None)
    parts = Parts()
    data = Recording(run, parts).data
    assert {step[0] for step in data["steps"]} == {"anew"}
    x = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)
    np.testing.assert_array_equal(played(data, parts)(x)[0], run(x)[0].numpy())


@pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")
def test_a_layout_that_a_reader_wanted_is_planned_again() -> None:
    """A step without a form that writes its result as the next one takes it, not as it would by itself."""
    spec = Spec((4, 6, 32, 48), float32)
    run = compile(trace(lambda x: x[:, :, 2:].transpose(1, 2).flatten(2), spec), "cpu")
    (part,) = (s for s in run.program.steps if not s.plan.view)
    assert part.plan.outputs[0].tag == "acbd"
    parts = Parts()
    data = Recording(run, parts).data
    x = np.random.default_rng(0).standard_normal(spec.shape).astype(np.float32)
    np.testing.assert_array_equal(played(data, parts)(x)[0], run(x)[0].numpy())
    plan = backends.get(CPU).plan(part.node.op, [spec.fixed], Policy())
    (wanted,) = part.plan.outputs
    assert _laid_as(plan, [wanted]).outputs == (wanted,)
    for other in (wanted.open.fixed, wanted.with_tag("aBcd8b"), replace(wanted, dtype=float64)):
        assert _laid_as(plan, [other]) is plan


def test_what_updates_state_or_cannot_run_is_refused() -> None:
    graph = trace(lambda x, s: (x, s + x), Spec((2,), float32), Spec((2,), float32))
    with pytest.raises(ValueError, match="updates state"):
        Recording(compile(graph, "cpu", donate={1: 1}), Parts())
    with pytest.raises(RuntimeError, match="null backend"):
        Recording(compile(trace(ops.relu, Spec((2,), float32)), "cpu", backend="null"), Parts())
    with pytest.raises(RuntimeError, match="load"):
        Recording(compile(graph, "cpu", resident=[1]), Parts())


def test_counters_lie_apart_in_lines_of_their_own() -> None:
    """A plan has as many zeros as its steps ask for, none where no step does."""
    made = Recording(compile(trace(ops.relu, Spec((2,), float32)), "cpu"), Parts())
    assert made.data["counters"] == 0
    places = [made.counters(count) for count in (1, 32, 33, 0, 5)]
    assert places == [virtual(COUNTERS, 4 * begin) for begin in (0, 32, 64, 128, 128)]


def test_counters_that_steps_ask_for_are_in_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(plan: Plan, call: Call, tape: Recording) -> list[Any]:
        return [["zeros", tape.counters(40)]]

    monkeypatch.setattr(Plan, "recorded", zeros)
    data = Recording(
        compile(trace(lambda x: ops.cumsum(x @ x, 1), Spec((6, 6), float32)), "cpu"), Parts()
    ).data
    places = [virtual(COUNTERS, 256 * i) for i in range(2)]
    assert (data["steps"], data["counters"]) == ([["zeros", place] for place in places], 2 * 256)


def test_what_is_recorded_names_its_memory_and_its_tensors() -> None:
    """Bytes of the arena, inputs by name, where outputs lie; what no call writes is kept once."""
    w = lm.tensor(np.arange(36, dtype=np.float32).reshape(6, 6))
    run = compile(trace(lambda x: (x @ w) @ w, Spec((6, 6), float32)), "cpu", optimize=False)
    parts = Parts()
    made = Recording(run, parts)
    assert made.data["arena"] == run.program.placement.nbytes
    (slot,) = run.program.inputs
    assert made.data["inputs"] == [[slot.name, encode_spec(slot.spec)]]
    (result,) = run.program.outputs
    place = run.program.placement.offsets[run.program.temporaries.index(result.base)] + result.offset
    assert made.data["outputs"] == [[virtual(ARENA, place), encode_spec(result.spec)]]
    kept = b"".join(bytes(piece) for piece in parts.pieces)
    assert kept.count(w.numpy().tobytes()) == 1
    at, nbytes = made.store(np.arange(3, dtype=np.int32))
    content = b"".join(bytes(piece) for piece in parts.pieces)
    assert content[at : at + nbytes] == np.arange(3, dtype=np.int32).tobytes()


@pytest.mark.parametrize(
    "function", [lambda x: ops.exp(x)[16:], lambda x: ops.exp(x)[1:] @ x], ids=["a result", "an operand"]
)
def test_what_lies_within_other_values_is_read_where_it_begins(function: Any) -> None:
    run = compile(trace(function, Spec((64, 64), float32)), "cpu")
    assert any(slot.offset for step in run.program.steps for slot in step.outputs)
    parts, x = Parts(), np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    (found,) = played(Recording(run, parts).data, parts)(x)
    np.testing.assert_array_equal(found, run(x)[0].numpy())


ROWS, COLUMNS = Spec((4, 6), float32).fixed, Spec((4, 6), float32).with_tag("ba")


def test_a_reorder_is_planned_anew_from_one_layout_to_the_other() -> None:
    plan = _plan(backends.get(CPU), ["reorder"], [ROWS], [COLUMNS])
    assert (plan.inputs, plan.outputs) == ((ROWS,), (COLUMNS,))


@pytest.mark.parametrize(
    ("inputs", "outputs", "workspace"),
    [
        ([ROWS], [COLUMNS], 0),
        ([COLUMNS], [ROWS], 0),
        ([ROWS], [ROWS, ROWS], 0),
        ([ROWS], [ROWS], -1),
        ([ROWS], [], 0),
    ],
)
def test_a_plan_that_is_another_one_now_is_named(
    inputs: list[Spec], outputs: list[Spec], workspace: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other layouts, more or fewer results, or more scratch memory than there is room for."""
    monkeypatch.setattr(
        recorded, "_plan", lambda *_: Plan((ROWS,), (ROWS,), lambda call: lambda: None, label="mine")
    )
    what = ["op", "tanh", {}, {}]
    first, second = ([encode_spec(s) for s in side] for side in (inputs, outputs))
    with pytest.raises(OtherMachineError, match=r"mine does not fit where the plan has op \['tanh'\]"):
        recorded.anew(CPU, "cpu", what, first, second, workspace, [[], [], 0])
