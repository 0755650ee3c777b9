"""The contest between candidates: on a GPU, and with kernels run on the CPU where there is none."""

import shutil
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lamina.backends import Call
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.elementwise.unfused_epilogue import unfused_formulation
from lamina.backends.cuda.launch.program import Bindable, Fill, Launch, Place, Program, target
from lamina.backends.cuda.select import formulations
from lamina.backends.cuda.select.autotune import best, contest
from lamina.backends.cuda.select.formulations import Candidate, Formulation, candidate, make_plan
from lamina.backends.reference import run_reference
from lamina.cudnn import Choice, PlanStore
from lamina.cudnn.contest import Check
from lamina.ops.primitives import Add, Conv, Fused, Relu, Window
from lamina.runtime import CompileError, Device, from_host, to_host
from lamina.spec import Policy, Spec, bfloat16, channels_last, float32, float64, pack, unpack
from tests.helpers import emulator
from tests.helpers.eager import mismatch
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    if request.param == "cuda":
        return Device("cuda:0")
    for kind in (Program, Check):
        monkeypatch.setattr(kind, "load", lambda program, device: emulator.Kernel(program))
    return Device("cpu")


def window(stride: int = 1, pad: int = 1) -> Window:
    return Window((stride, stride), ((pad, pad), (pad, pad)), (1, 1))


@dataclass(frozen=True)
class Double:
    """A candidate made of own steps."""

    label: str
    steps: tuple[Bindable, ...]
    workspace: int = 0


@pytest.mark.feature("B009")
def test_wrong_candidates_are_out(device: Device) -> None:
    """Wrong numbers, a missing part, writes before or behind the output or behind the workspace: all found out."""
    x, w = Spec((2, 8, 9, 9), float32).fixed, Spec((4, 8, 3, 3), float32).fixed
    y = Spec((2, 4, 9, 9), float32).fixed
    problem = conv_problem(Conv, Operands(window(), x, w, y), H200)
    right = problem.plain
    entries = [
        Double("right", right),
        Double("wrong numbers", (Fill(target(), 0, y.nbytes),)),
        Double("half of it", (*right, Fill(target(), 0xFF, y.nbytes // 2))),
        Double("nothing", ()),
        Double("writes before", (*right, Fill(target(0, -64), 1, 64))),
        Double("writes behind", (*right, Fill(target(0, y.nbytes), 1, 64))),
        Double("leaves its workspace", (*right, Fill(Place("workspace", 0, 512), 1, 64)), workspace=512),
    ]
    refusals: list[str] = []
    found = best(entries, device, [x, w], [y], 5e-5, plain=right, refusals=refusals)
    assert found is not None
    assert found[0].label == "right"
    assert found[1] > 0
    reasons = dict(r.split(": ", 1) for r in refusals)
    assert set(reasons) == {e.label for e in entries} - {"right"}
    assert "relative error" in reasons["wrong numbers"]
    assert "not finite or were not written" in reasons["half of it"]
    assert "not finite or were not written" in reasons["nothing"]
    assert reasons["writes before"] == "wrong: writes before the output"
    assert reasons["writes behind"] == "wrong: writes past the end of the output"
    assert reasons["leaves its workspace"] == "wrong: writes past the end of its workspace"


@pytest.mark.feature("B009")
def test_a_wrong_first_candidate_does_not_become_the_reference(device: Device) -> None:
    """A large problem is checked against the first candidate; when most disagree, own kernels decide."""
    x, w, y = (Spec(s, float32).fixed for s in ((2, 8, 9, 9), (4, 8, 3, 3), (2, 4, 9, 9)))
    problem = conv_problem(Conv, Operands(window(), x, w, y), H200)
    entries = [
        Double("wrong first", (Fill(target(), 0, y.nbytes),)),
        Double("right", problem.plain),
        Double("also right", problem.plain),
    ]
    refusals: list[str] = []
    found = best(entries, device, [x, w], [y], 5e-5, plain=problem.plain, slow=True, refusals=refusals)
    assert found is not None
    assert found[0].label in ("right", "also right")
    assert [r.split(":")[0] for r in refusals] == ["wrong first"]


@pytest.mark.feature("B009")
def test_random_operands_fill_their_buffers(device: Device) -> None:
    spec = Spec((1000, 33), float32).fixed
    operands = contest(device, [spec], [], 1.0)
    values = to_host(operands.inputs[0]).view(np.float32)
    assert values.size == spec.numel
    assert -1 <= values.min() < -0.99
    assert 0.99 < values.max() < 1
    assert abs(values.mean()) < 0.02


@pytest.mark.feature("B011")
def test_a_candidate_that_cannot_run_is_out(device: Device) -> None:
    @dataclass(frozen=True)
    class Broken:
        def bind(self, device: Device, call: Call) -> object:
            raise MemoryError("no room for this one")

    x, w, y = (Spec(s, float32).fixed for s in ((2, 8, 9, 9), (4, 8, 3, 3), (2, 4, 9, 9)))
    problem = conv_problem(Conv, Operands(window(), x, w, y), H200)
    entries = [Double("broken", (Broken(),)), Double("right", problem.plain)]  # type: ignore[arg-type]
    refusals: list[str] = []
    found = best(entries, device, [x, w], [y], 5e-5, plain=problem.plain, refusals=refusals)
    assert found is not None
    assert found[0].label == "right"
    assert refusals == ["broken: no room for this one"]
    assert best(entries[:1], device, [x, w], [y], 5e-5, refusals=[]) is None


@pytest.mark.feature("B013")
def test_an_epilogue_in_a_kernel_of_its_own(device: Device) -> None:
    """What a fused plan has to beat: the head's plan, then its steps in place."""
    shapes = ((2, 8, 6, 5), (12, 8, 3, 3), (1, 12, 1, 1), (2, 12, 6, 5))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(bfloat16.numpy) for s in shapes]
    x, w, bias, y = (Spec(s, bfloat16, channels_last(s)) for s in shapes)
    steps = (Add(), Add(), Relu())
    problem = conv_problem(Conv, Operands(window(), x, w, y), H200)
    head = make_plan(problem, candidate(Formulation("direct", steps=problem.plain), None, {}), device)
    formulation = unfused_formulation(head, steps, y, [bias, y], 2)
    fused = conv_problem(Conv, Operands(window(), x, w, y), H200, Epilogue(steps, (bias, y), 2))
    plan = make_plan(fused, Candidate(formulation, None, formulation.steps, formulation.scratch), device)
    assert [s.open for s in plan.inputs] == [s.open for s in (x, w, bias, y)]
    held = [
        from_host(pack(a, s.physical).view(np.uint8), device)
        for a, s in zip(arrays, plan.inputs, strict=True)
    ]
    out = device.allocate(y.nbytes)
    stream = device.default_stream
    plan.bind(Call(tuple(b.pointer for b in held), (out.pointer,), 0, stream.handle))()
    stream.synchronize()
    found = unpack(to_host(out).view(bfloat16.numpy), y.physical, y.shape)
    (wanted,) = run_reference(Fused((Conv(window()), *steps)), arrays, float64)
    assert not mismatch(found, wanted, bfloat16)


@pytest.mark.feature("B009", "F106")
def test_kernels_are_loaded_in_threads_before_the_contest(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is timed for sure, and what checks it, at the same time; not spare formulations or the plain one."""
    win = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
    x, w, y = (Spec(s, bfloat16, channels_last(s)) for s in ((2, 8, 6, 6), (16, 8, 3, 3), (2, 16, 6, 6)))
    problem = conv_problem(Conv, Operands(win, x, w, y), H200)
    kinds = {
        formulation.name: {
            s.program for s in (*formulation.before, *formulation.steps) if hasattr(s, "program")
        }
        for formulation in problem.formulations
    }
    timed = kinds["turned"]
    assert timed
    loaded: list[Program] = []
    together = threading.Barrier(1 + len(timed), timeout=30)

    def load(program: Program, device: Device) -> None:
        together.wait()
        loaded.append(program)
        raise CompileError(program.name, "sm_90", "no", "")  # the contest says so where it matters

    monkeypatch.setattr(Program, "load", load)
    with formulations._loading(problem, Device("cpu")):
        pass
    assert set(loaded) == timed | {step.program for step in problem.plain if isinstance(step, Launch)}
    assert not set(loaded) & (kinds["relaid"] | kinds["wide"])
    loaded.clear()
    together = threading.Barrier(len(timed), timeout=30)
    with formulations._loading(replace(problem, flops=1e12), Device("cpu")):
        pass
    assert set(loaded) == timed


@pytest.mark.feature("B009", "B010")
def test_what_a_contest_found_is_told(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every right candidate with its time, the winner under its key, and why others are out; once for a problem."""
    x, w, y = (Spec(s, float32).fixed for s in ((2, 8, 9, 9), (4, 8, 3, 3), (2, 4, 9, 9)))
    problem = conv_problem(Conv, Operands(window(), x, w, y), H200)
    ways = (
        Formulation("first", steps=problem.plain),
        Formulation("wrong", steps=(Fill(target(), 0, y.nbytes),)),
        Formulation("large", steps=problem.plain, scratch=1 << 20),
    )
    problem = replace(problem, formulations=ways, plain=())
    store = PlanStore("none", "1", tmp_path)
    monkeypatch.setattr(formulations, "plan_store", lambda _: store)
    found: list[formulations.ContestOutcome] = []
    policy, handle = Policy(algorithm="fastest", workspace_limit=1000), SimpleNamespace(device=device)
    with formulations.watched(found.append):
        for _ in range(2):
            chosen = formulations._fastest(problem, device, handle, policy, [])  # type: ignore[arg-type]
            assert chosen is not None
    (told,) = found
    assert told.problem is problem
    assert (told.first, told.best.formulation) == (Choice("first"), "first")
    assert store.get(told.key) == told.best
    assert [(choice, taken > 0) for choice, taken in told.times] == [(Choice("first"), True)]
    assert [reason.split(":")[0] for reason in told.refusals] == ["large", "wrong"]
    store.clear()
    formulations._fastest(problem, device, handle, policy, [])  # type: ignore[arg-type]
    assert len(found) == 1  # nobody listens any more


@pytest.mark.feature("F115", "B017")
def test_choices_are_apart_by_device_arithmetic_and_workspace(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kinds of GPU have a store each; in one, what was chosen under TF32 or a limit is found under it alone."""
    x, w, y = (Spec(s, float32).fixed for s in ((2, 8, 9, 9), (4, 8, 3, 3), (2, 4, 9, 9)))
    problem = conv_problem(Conv, Operands(window(), x, w, y), H200)
    problem = replace(problem, formulations=(Formulation("first", steps=problem.plain),), plain=())
    stores = {name: PlanStore(name, "1", tmp_path) for name in ("H100", "H200")}
    handle = SimpleNamespace(device=device)

    def contests(name: str, policy: Policy) -> int:
        monkeypatch.setattr(formulations, "plan_store", lambda _: stores[name])
        found: list[formulations.ContestOutcome] = []
        with formulations.watched(found.append):
            chosen = formulations._fastest(problem, device, handle, policy, [])  # type: ignore[arg-type]
        assert chosen is not None
        return len(found)

    policies = [
        Policy(algorithm="fastest", tf32=tf32, workspace_limit=n) for tf32 in (False, True) for n in (0, 1000)
    ]
    asked = [(name, policy) for name in stores for policy in policies]
    assert [contests(*one) for one in asked] == [1] * len(asked)  # each is a question of its own
    assert [contests(*one) for one in asked] == [0] * len(asked)  # each is answered by what was kept
    assert [len(store.keys()) for store in stores.values()] == [len(policies)] * 2
    assert stores["H100"].path != stores["H200"].path
