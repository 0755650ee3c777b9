"""Programs that are kept on disk: what is read is what was planned, and only the very same question is answered."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import lamina as lm
from lamina import distributed, nn, ops, optim
from lamina.backends import Backend, Plan
from lamina.backends.cuda import cuda_backend
from lamina.backends.cuda.attention.attention import HostNumber
from lamina.backends.cuda.launch.program import DeviceTable, Launch, Launches, Program, kernel_plan
from lamina.backends.cuda.norm.norm import _number
from lamina.backends.cuda.select import known as select
from lamina.backends.cuda.select.formulations import Execute
from lamina.cudnn import Choice, ExecutionPlan, PlanDatabase
from lamina.graph import Executable, Graph, compile, trace
from lamina.graph.planning.layout import Plans, plan_graph
from lamina.graph.run import executable, remembered, two_pass
from lamina.graph.run.remembered import Answer, answered, question, recall, remember, written
from lamina.graph.run.two_pass import TwoPassProgram
from lamina.runtime import Device, DiskCache
from lamina.spec import Group, Spec, float32
from lamina.spec.policies import policy
from tests.helpers import ROOT
from tests.helpers.cuda_plans import plan_text
from tests.helpers.planned import H200
from tests.helpers.program_plans import programs, steps_of

pytestmark = pytest.mark.feature("B051")

X = Spec((8, 32, 16, 16), float32)
PLANNED = {name: make for name, make in programs() if name.startswith("h200")}
#: Of each kind of step one: convolutions, attention, recurrent layers, group norms, clipping, scaling of losses.
SOME = [
    "h200 mobile silu", "h200 unet", "h200 lstm", "h200 encoder", "h200 encoder, inference",
    "h200 mobile silu, adamw, clipped", "h200 encoder, float16",
]  # fmt: skip


def forward(x: Any) -> Any:
    """A convolution and what goes into it."""
    w = np.linspace(-1, 1, 16 * 32 * 9, dtype=np.float32).reshape(16, 32, 3, 3)
    return ops.relu(ops.conv2d(x, w, padding=1)) * 2.0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Backend:
    """The backend of a GPU that is not there, whose programs are kept in a folder of their own however quick."""
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    monkeypatch.setattr(remembered, "LONG", 0.0)
    monkeypatch.setattr(
        cuda_backend.CudaBackend, "remembered_by", lambda self: {"machine": self.device.machine.name}
    )
    return cuda_backend.backend(H200)


def answer(graph: Graph, backend: Backend) -> Answer:
    return Answer(graph, plan_graph(graph, Plans(backend), {}, ()), [], len(graph.nodes))


def asked(graph: Graph, backend: Backend, **more: Any) -> str:
    found = question(graph, backend, **more)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "name", [*SOME, *(pytest.param(n, marks=pytest.mark.slow) for n in PLANNED if n not in SOME)]
)
def test_what_is_read_is_what_was_planned(name: str, cuda: Backend) -> None:
    """Graph, steps, every kernel with its text, sizes and arguments, memory, and which plans are open."""
    made = PLANNED[name]()
    given = Answer(made.graph, made.program, made.passes, 7)
    assert remember("key", given, cuda)
    found = recall("key", cuda)
    assert found is not None
    assert str(found.graph) == str(made.graph)
    assert steps_of(cast(Executable, SimpleNamespace(program=found.program, device=H200))) == steps_of(made)
    pairs = list(zip(made.program.steps, found.program.steps, strict=True))
    for old, new in [*pairs, *zip(made.program.prologue, found.program.prologue, strict=True)]:
        assert plan_text(new.plan, H200.machine) == plan_text(old.plan, H200.machine)
        assert new.plan.varies == old.plan.varies
        assert new.plan.arithmetic == old.plan.arithmetic
    assert [s.plan.open is None for _, s in pairs] == [s.plan.open is None for s, _ in pairs]
    assert found.program.placement == made.program.placement
    assert [(s.spec, s.kind, s.name) for s in found.program.inputs] == [
        (s.spec, s.kind, s.name) for s in made.program.inputs
    ]
    assert [s.node.origin for _, s in pairs if s.node] == [s.node.origin for s, _ in pairs if s.node]
    assert list(map(str, found.passes)) == list(map(str, made.passes))
    assert found.kept == 7
    nodes = set(found.graph.nodes)
    assert all(step.node in nodes for _, step in pairs if step.node)


@pytest.mark.parametrize("inference", [False, True])
def test_a_second_process_does_not_plan(
    inference: bool, cuda: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    del inference
    graph = trace(forward, X)
    first = compile(graph, H200)
    monkeypatch.setattr(executable, "plan_graph", None)
    monkeypatch.setattr(executable, "optimize", None)
    second = compile(graph, H200)
    assert steps_of(second) == steps_of(first)
    assert second.refusals == first.refusals
    with pytest.raises(TypeError, match="not callable"):
        compile(trace(forward, replace(X, shape=(9, 32, 16, 16))), H200)


def test_a_program_of_two_passes_is_kept(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(x: Any, g: Any) -> Any:
        y = ops.relu(x)
        return y, g * y

    graph = trace(both, X, X)
    first = TwoPassProgram(graph, H200, 1, late=[1])
    monkeypatch.setattr(two_pass, "optimize", None)
    second = TwoPassProgram(graph, H200, 1, late=[1])
    assert second.kernels == first.kernels == (1, 1)
    with pytest.raises(TypeError, match="not callable"):
        TwoPassProgram(graph, H200, 2, late=[])


def other_op(x: Any) -> Any:
    w = np.linspace(-1, 1, 16 * 32 * 9, dtype=np.float32).reshape(16, 32, 3, 3)
    return ops.relu(ops.conv2d(x, w, padding=2)) * 2.0


def other_constant(x: Any) -> Any:
    w = np.linspace(-1, 1.5, 16 * 32 * 9, dtype=np.float32).reshape(16, 32, 3, 3)
    return ops.relu(ops.conv2d(x, w, padding=1)) * 2.0


def other_operand(x: Any) -> Any:
    w = np.linspace(-1, 1, 16 * 32 * 9, dtype=np.float32).reshape(16, 32, 3, 3)
    y = ops.relu(ops.conv2d(x, w, padding=1))
    return y * y


def other_policy(x: Any) -> Any:
    with policy(tf32=True):
        return forward(x)


def test_other_questions_have_other_answers(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = trace(forward, X)
    others = [
        asked(graph, cuda),
        *(asked(trace(f, X), cuda) for f in (other_op, other_constant, other_operand, other_policy)),
        asked(trace(forward, replace(X, shape=(4, 32, 16, 16))), cuda),
        asked(trace(forward, X, names=["image"]), cuda),
        asked(graph, cuda, donate=[[0, 0]]),
        asked(graph, cuda, limit=1 << 20),
    ]
    monkeypatch.setattr(remembered, "_sources", lambda: "others")
    others.append(asked(graph, cuda))
    assert len(set(others)) == len(others)


def test_a_question_is_the_same_in_every_process(cuda: Backend) -> None:
    """Whatever names hash to there."""
    text = (
        "from tests.graph.run.test_remembered import *\n"
        "cuda_backend.CudaBackend.remembered_by = lambda self: {'machine': self.device.machine.name}\n"
        "print(question(trace(forward, X), cuda_backend.backend(H200)))"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", text], capture_output=True, text=True, check=True, cwd=ROOT,
            env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    ]  # fmt: skip
    assert found == [asked(trace(forward, X), cuda)] * 2


def test_what_depends_on_the_process_is_not_asked(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    with policy(once=True):
        assert question(trace(forward, X), cuda) is None
    assert question(trace(forward, X), lm.backends.get(Device("cpu"))) is None
    assert question(trace(lambda x: distributed.all_reduce(x, group=Group((0, 1))), X), cuda) is None
    monkeypatch.setattr(remembered, "_MOST_BYTES", 1000)
    assert question(trace(forward, X), cuda) is None


def test_a_gpu_that_is_only_planned_for_keeps_nothing() -> None:
    assert cuda_backend.backend(H200).remembered_by() is None


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-9], lambda b: b[:200] + b"\0" * 9 + b[209:], lambda b: b"", bytes.upper]
)
def test_a_damaged_file_is_planned_anew(
    damage: Callable[[bytes], bytes], cuda: Backend, tmp_path: Path
) -> None:
    graph = trace(forward, X)
    key = asked(graph, cuda)
    made = answer(graph, cuda)
    for whole in (False, True):  # the checksum is wrong, or what it is the checksum of
        remember(key, made, cuda)
        path = tmp_path / "programs" / key
        if whole:
            DiskCache(path.parent).put(key, damage(written(made, cuda)))
        else:
            path.write_bytes(damage(path.read_bytes()))
        assert recall(key, cuda) is None
        assert answered(key, cuda, lambda: made) is made
        assert recall(key, cuda) is not None


class Evil:
    """Runs a command when it is read."""

    def __reduce__(self) -> Any:
        return subprocess.check_output, (["false"],)


def test_names_of_other_packages_are_not_read(cuda: Backend) -> None:
    DiskCache(remembered._disk().folder).put("evil", pickle.dumps(Evil()))
    with pytest.raises(pickle.UnpicklingError, match=r"subprocess\.check_output is not for programs"):
        remembered._AnswerReader(pickle.dumps(Evil()), cuda).load()
    assert recall("evil", cuda) is None


def with_step(made: Answer, make: Any) -> Answer:
    step = made.program.steps[0]
    step.plan = replace(step.plan, make=make)
    return made


@pytest.mark.parametrize(
    "make",
    [lambda call: None, partial(print, threading.Lock()), SimpleNamespace(), Device("cpu").allocate(4)],
    ids=["function", "lock", "object", "memory"],
)
def test_what_has_no_form_as_data_is_not_kept(make: Any, cuda: Backend) -> None:
    made = with_step(answer(trace(forward, X), cuda), make)
    assert not remember("key", made, cuda)
    assert recall("key", cuda) is None
    assert answered("key", cuda, lambda: made) is made


def test_much_that_is_made_of_weights_once_is_shared_by_plans_and_not_kept(
    cuda: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def normed(x: Any, w: Any) -> Any:
        return ops.conv2d(x, w * 2.0, padding=1)

    graph = trace(normed, X, Spec((16, 32, 3, 3), float32))
    monkeypatch.setattr(remembered, "_MOST_BYTES", 1 << 14)
    assert compile(graph, H200, resident=[1]).program.prologue
    assert not remembered._disk().folder.exists()
    monkeypatch.setattr(remembered, "_MOST_BYTES", 1 << 16)
    first = compile(graph, H200, resident=[1])
    monkeypatch.setattr(executable, "plan_graph", None)
    assert steps_of(compile(graph, H200, resident=[1])) == steps_of(first)


def test_what_was_planned_in_no_time_is_not_kept(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "LONG", 1e9)
    made = answer(trace(forward, X), cuda)
    assert answered("key", cuda, lambda: made) is made
    assert recall("key", cuda) is None


def test_a_plan_of_several_steps_stays_one(cuda: Backend) -> None:
    """And is one choice: what is learnt of it changes all of them."""

    def twice(x: Any) -> Any:
        w = np.ones((32, 32, 3, 3), np.float32)
        return ops.conv2d(ops.tanh(ops.conv2d(x, w, padding=1)), w, padding=1)

    made = answer(trace(twice, X), cuda)
    remember("key", made, cuda)
    found = recall("key", cuda)
    assert found is not None
    for one in (made, found):
        plans = [s.plan for s in one.program.steps if s.plan.open is not None]
        assert len(plans) == 2
        assert plans[0] is plans[1]
    choice, before = found.program.steps[0].plan.open, made.program.steps[0].plan.open
    assert choice is not None
    assert before is not None
    assert choice.expected(3e-3, 1e-3) == before.expected(3e-3, 1e-3)
    assert not choice.done


def test_what_may_be_learnt_is_planned_when_it_is_asked_for(
    cuda: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = answer(trace(forward, X), cuda)
    remember("key", made, cuda)
    found = recall("key", cuda)
    assert found is not None
    (choice,) = [s.plan.open for s in found.program.steps if s.plan.open is not None]
    won = made.program.steps[0].plan

    def contest(entries: Any, room: int) -> Any:
        yield f"{entries} {room}"
        return won, 1.5

    original = remembered.plan_of

    def planned(*question: Any) -> Plan:
        plan = original(*question)
        assert plan.open is not None
        plan.open.candidates, plan.open.contest = (lambda: "entries"), contest
        return plan

    monkeypatch.setattr(remembered, "plan_of", planned)
    parts = choice.contest(choice.candidates(), 99)
    assert next(parts) == "entries 99"
    with pytest.raises(StopIteration) as ended:
        next(parts)
    assert ended.value.value == (won, 1.5)
    planned_anew = original(
        cuda, made.program.steps[0].node.op, won.inputs, made.program.steps[0].node.policy
    )
    assert choice.name == planned_anew.open.name != ""
    assert choice.adopting(Choice("direct")) is not None
    monkeypatch.setattr(remembered, "plan_of", lambda *question: replace(won, open=None))
    assert choice.candidates() is None
    assert choice.adopting(Choice("direct")) is None
    assert list(choice.contest(None, 99)) == []


def test_what_was_measured_since_is_taken(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whatever process: the same problem's plan is that winner, or is open no more where it has won itself."""
    made = answer(trace(forward, X), cuda)
    remember("key", made, cuda)
    (index,) = [i for i, s in enumerate(made.program.steps) if s.plan.open is not None]
    plan = made.program.steps[index].plan
    assert plan.open is not None
    assert isinstance(plan.open.known, partial)
    place, own = plan.open.known.args[:2]
    other = replace(own, engine=own.engine + 1)
    for told, expected in (({}, "open"), ({place.sizes: own}, plan.label), ({place.sizes: other}, "other")):
        known = PlanDatabase("x", "9.19", {}, {place.nature: told})
        monkeypatch.setattr(select, "database_of", lambda device, known=known: known)
        monkeypatch.setattr(remembered, "plan_of", lambda *question: replace(plan, open=None, label="other"))
        found = recall("key", cuda)
        assert found is not None
        now = found.program.steps[index].plan
        assert (now.open is not None) == (expected == "open")
        if expected != "open":
            assert now.label == expected


def test_places_of_numbers_and_tables_are_this_process_own() -> None:
    for place in (_number(0.25)[1], HostNumber.of(0.25)):
        again = pickle.loads(pickle.dumps(place))
        address = again.address(())
        assert address % 16 == 0
        assert np.ctypeslib.as_array((np.ctypeslib.ctypes.c_float * 1).from_address(address))[0] == 0.25
    table = DeviceTable(np.arange(3))
    table._copies[Device("cpu")] = Device("cpu").allocate(24)
    again = pickle.loads(pickle.dumps(table))
    assert again._copies == {}
    np.testing.assert_array_equal(again.values, table.values)


def test_steps_for_addresses_that_are_not_aligned_are_kept() -> None:
    steps = (Launch(Program("a"), (1,), (32,), ()),)
    plan = kernel_plan(H200, [X], [X], [], label="x", plain=lambda: steps)
    again = pickle.loads(pickle.dumps(plan.make))
    assert isinstance(again, Launches)
    assert again.plain is not None
    assert again.plain() == steps


def test_a_plan_of_cudnn_that_takes_more_workspace_is_not_taken() -> None:
    launches = answer(trace(forward, X), cuda_backend.backend(H200)).program.steps[0].plan.make
    assert isinstance(launches, Launches)
    (made,) = [step.plan for step in launches.steps if isinstance(step, Execute)]
    read, (text, where, workspace) = cuda_backend._as_text(made)
    again = read(text, where, workspace)
    assert isinstance(again, ExecutionPlan)
    assert again.workspace == made.workspace
    with pytest.raises(ValueError, match=r"took -1 bytes of workspace, and takes \d+ now"):
        read(text, where, -1)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["mobile silu", "unet", "encoder"])
def test_a_remembered_step_trains_as_a_planned_one(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ten losses, equal in every bit."""
    from tests.helpers.program_plans import NETWORKS

    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    monkeypatch.setenv("LAMINA_TUNING", "0")
    monkeypatch.setattr(remembered, "LONG", 0.0)
    make, given = NETWORKS[name]
    rng = np.random.default_rng(0)
    words = given.dtype.kind == "i"
    x = rng.integers(0, 100, given.shape) if words else rng.standard_normal(given.shape).astype(np.float32)
    y = rng.integers(0, 10, given.shape[0])

    def losses() -> list[float]:
        nn.manual_seed(1)
        with policy(deterministic=True):
            step = lm.train_step(
                make(), ops.cross_entropy, optim.SGD(0.05, momentum=0.9), device="cuda", precision="bf16"
            )
            return [float(step(x, y)) for _ in range(10)]

    first = losses()
    read = list[str]()
    original = remembered.recall
    monkeypatch.setattr(remembered, "recall", lambda key, backend: read.append(key) or original(key, backend))
    monkeypatch.setattr(executable, "plan_graph", None)
    assert losses() == first
    assert read
