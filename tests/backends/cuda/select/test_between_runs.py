"""What is open of a GPU's plans, without a GPU: which problems, which candidates, what the store gets."""

import shutil
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks import plan_problems
from lamina import backends, nn
from lamina.backends import NoKernel, OpenChoice
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.launch.program import Fill, Program, target
from lamina.backends.cuda.select import formulations, known
from lamina.backends.cuda.select.formulations import Formulation, Problem, candidate
from lamina.cudnn import Choice, PlanDatabase, PlanStore, autotune
from lamina.cudnn.contest import Check, Contest, finished
from lamina.graph import Executable, compile
from lamina.graph.run.tuning import TunedProgram
from lamina.nn import init
from lamina.ops.primitives import Add, Conv, Fused, Relu, Window
from lamina.runtime import CompileError, Device
from lamina.spec import Policy, Spec, bfloat16, channels_last, float32
from tests.helpers import emulator
from tests.helpers.planned import H200

WINDOW = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
X, W, Y = (
    Spec(s, bfloat16, channels_last(s)) for s in ((32, 64, 28, 28), (128, 64, 3, 3), (32, 128, 28, 28))
)
AUTO, CONV = Policy(), Conv(WINDOW)


@pytest.fixture(autouse=True)
def without_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known but what a test says."""
    for name in ("database_of", "database_of_kin"):
        monkeypatch.setattr(known, name, lambda device: None)


def open_of(op: Any = CONV, specs: tuple[Spec, ...] = (X, W), policy: Policy = AUTO) -> Any:
    return backends.get(H200).plan(op, specs, policy).open


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates are made for a GPU that is not there: nothing is loaded."""
    for kind in (Program, Check):
        monkeypatch.setattr(kind, "load", lambda program, device: None)
    monkeypatch.setattr(Device, "current", lambda device: nullcontext())
    monkeypatch.setattr(autotune, "budget", lambda device, limit: 1 << 30 if limit is None else limit)


@pytest.mark.feature("F081")
def test_what_was_not_measured_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_of(), OpenChoice)
    fixed = [
        Policy(deterministic=True),
        Policy(once=True),
        Policy(check_finite=True),
        *(Policy(algorithm=name) for name in ("heuristic", "fallback")),
    ]
    assert [open_of(policy=policy) for policy in fixed] == [None] * len(fixed)
    place = conv_problem(Conv, Operands(WINDOW, X, W, Y), H200).place
    for sizes, measured in ((place.sizes, True), ((16, *place.sizes[1:]), False)):
        plans = {place.nature: {sizes: Choice("direct", milliseconds=1.0, heuristic=2.0)}}
        monkeypatch.setattr(known, "database_of", lambda device, p=plans: PlanDatabase("x", "9", {}, p))
        problem = conv_problem(Conv, Operands(WINDOW, X, W, Y), H200)
        plan = formulations.choose(problem, H200, AUTO)
        assert plan.label.endswith("direct")  # of the same sizes, or of near ones
        assert (plan.open is None) == measured


@pytest.mark.usefixtures("built")
@pytest.mark.feature("F081", "B009")
def test_candidates_are_few_and_the_one_in_use_is_first() -> None:
    with plan_problems.drafted():
        problem = conv_problem(Conv, Operands(WINDOW, X, W, Y), H200)
        chosen = next(formulations.candidates(problem, formulations.target_of(H200), AUTO, ("a",), []))
        found = formulations._few(problem, chosen, H200, AUTO)
        choices = [one.choice for one in found]
        assert choices[0] == chosen.choice
        assert 3 < len(choices) == len(set(choices)) <= formulations._MOST_FEW
        assert len({one.formulation.name for one in found}) > 1
        assert all(one.workspace <= 1 << 30 for one in found)
        small = formulations._few(problem, chosen, H200, Policy(workspace_limit=0))
        assert [one.workspace for one in small[1:]] == [0] * (len(small) - 1)


@pytest.mark.usefixtures("built")
@pytest.mark.feature("B013")
def test_steps_behind_a_convolution_compete_with_a_kernel_of_their_own() -> None:
    bias = Spec((1, 128, 1, 1), bfloat16)
    with plan_problems.drafted():
        choice = open_of(Fused((Conv(WINDOW), Add(), Relu())), (X, W, bias))
        names = {one.formulation.name for one in choice.candidates()}
    assert "split" in names
    assert len(names) > 1


@pytest.mark.usefixtures("built")
def test_a_candidate_that_cannot_be_made_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Own kernels that do not compile, and parts that have no plan."""

    def broken(*arguments: Any) -> Any:
        raise CompileError("direct", "sm_90", "no", "")

    def missing() -> Formulation:
        raise NoKernel("no product")

    problem = conv_problem(Conv, Operands(WINDOW, X, W, Y), H200)
    direct = Formulation("direct", steps=problem.plain)
    problem = replace(problem, formulations=(direct, replace(direct, name="same")), apart=missing, flops=0.0)
    chosen = candidate(direct, None, {})
    assert len(formulations._few(problem, chosen, H200, AUTO)) == 2
    monkeypatch.setattr(Program, "load", broken)
    assert formulations._few(problem, chosen, H200, AUTO) == [chosen]


# ------------------------------------------------------------------------------------------------------- contests


def fills(store: PlanStore, monkeypatch: pytest.MonkeyPatch) -> tuple[Problem, Device]:
    """Zeros by three formulations, on a CPU that stands for a GPU."""
    for kind in (Program, Check):
        monkeypatch.setattr(kind, "load", lambda program, device: emulator.Kernel(program))
    monkeypatch.setattr(formulations, "plan_store", lambda device: store)
    x = Spec((1000,), float32).fixed
    steps = (Fill(target(), 0, x.nbytes),)
    ways = [Formulation(name, steps=steps, scratch=size) for name, size in (("a", 0), ("b", 0), ("c", 4096))]
    return Problem("fill", "fill", (x,), (x,), tuple(ways), 0.0, kind="fill"), Device("cpu")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.feature("B009", "B010", "F081")
@pytest.mark.parametrize(("taken", "winner"), [((3.0, 1.0), "b"), ((1.0, 0.99), "a"), ((1.0, 3.0), "a")])
def test_the_store_gets_the_winner(
    taken: tuple[float, float], winner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the plan in use won: then it is known, and is not open the next time."""
    store = PlanStore("here", "1", tmp_path)
    problem, device = fills(store, monkeypatch)
    times = dict(zip("ab", taken, strict=True))
    monkeypatch.setattr(Contest, "_time", lambda self, one, runs=0: times[one.entry.label])
    entries = [candidate(way, None, {}) for way in problem.formulations[:2]]
    parts = formulations._learn(problem, device, AUTO, entries, 1 << 20)
    assert next(parts) == "place"
    kinds = []
    while True:
        try:
            kinds.append(next(parts))
        except StopIteration as end:
            found = end.value
            break
    assert set(kinds) == {"place", "run", "time"}
    place = problem.place
    kept = PlanStore("here", "1", tmp_path).placed(place.nature)
    assert kept[place.sizes] == Choice(winner, milliseconds=times[winner], heuristic=times["a"])
    if winner == "a":
        assert found is None
    else:
        plan, saving = found
        assert plan.label.endswith(winner)
        assert plan.record == kept[place.sizes]
        assert (plan.seconds, saving) == (times["b"] / 1e3, pytest.approx((times["a"] - times["b"]) / 1e3))
        assert (plan.inputs, plan.outputs) == (problem.inputs, problem.outputs)


@pytest.mark.feature("F081", "B009")
def test_a_problem_has_one_name_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sizes, policies and models of GPU have others."""
    small = Spec((16, 64, 28, 28), bfloat16, channels_last((16, 64, 28, 28)))
    names = [open_of().name, open_of(policy=Policy(tf32=True)).name, open_of(specs=(small, W)).name]
    assert len(set(names)) == 3
    assert all(names)
    assert open_of().name == names[0]
    monkeypatch.setattr(Device, "name", "another GPU")
    problem = conv_problem(Conv, Operands(WINDOW, X, W, Y), H200)
    other = formulations._open(problem, candidate(problem.formulations[-1], None, {}), H200, AUTO)
    assert other is not None
    assert other.name not in names


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.feature("B009", "B010", "F081")
def test_a_winner_of_another_process_comes_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made by its record, runs once, is checked and stored, whatever it takes here."""
    store = PlanStore("here", "1", tmp_path)
    problem, device = fills(store, monkeypatch)
    monkeypatch.setattr(formulations, "target_of", lambda device: None)
    monkeypatch.setattr(formulations, "is_measured", lambda place, device: bool(store.placed(place.nature)))
    monkeypatch.setattr(Device, "current", lambda device: nullcontext())
    times = {"a": 1.0, "b": 3.0}
    monkeypatch.setattr(Contest, "_time", lambda self, one, runs=0: times[one.entry.label])
    chosen = candidate(problem.formulations[0], None, {})
    learnt = Choice("b", milliseconds=1.0, heuristic=4.0)
    held = formulations._adopting(problem, chosen, device, AUTO, learnt)
    made = held.candidates()
    assert [one.label for one in made] == ["a", "b"]
    found = finished(held.contest(made, 1 << 20))
    assert found is not None
    plan, saving = found
    assert (plan.record, saving) == (learnt, pytest.approx(3e-3))
    assert plan.label.endswith("b")
    assert PlanStore("here", "1", tmp_path).placed(problem.place.nature) == {problem.place.sizes: learnt}
    gone = formulations._adopting(problem, chosen, device, AUTO, Choice("gone"))
    assert finished(gone.contest(gone.candidates(), 1 << 20)) is None


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.feature("B011")
def test_a_contest_stays_within_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little there are fewer copies of the operands, then candidates are out, then there is no contest."""
    problem, device = fills(PlanStore("here", "1", tmp_path), monkeypatch)
    entries = [candidate(way, None, {}) for way in problem.formulations]
    size = sum(s.nbytes for s in (*problem.inputs, *problem.outputs))
    for room, copies, workspace in ((100 * size, 4, 4096), (2 * size, 1, 0)):
        made = Contest(
            device,
            [formulations.autotune._memory(s) for s in problem.inputs],
            [formulations.autotune._memory(s) for s in problem.outputs],
            0.0,
            room=room,
        )
        refusals: list[str] = []
        finished(made.place())
        trials = [formulations.autotune.Trial(device, one) for one in entries]
        kept = made._give_room(trials, refusals)
        assert (len(made.copies), max(one.workspace for one in kept)) == (copies, workspace)
    with pytest.raises(MemoryError, match="the operands of a contest take 8000 bytes, 100 are free"):
        finished(formulations._learn(problem, device, AUTO, entries, 100))
    one = [replace(entries[0])]
    assert finished(formulations._learn(problem, device, AUTO, one, 0)) is None


# ------------------------------------------------------------------------------------------------------- networks


@pytest.mark.feature("F081")
def test_what_is_open_of_a_training_step_of_resnet18() -> None:
    """Every convolution with its two gradients and the products, equal ones once, the most expensive first."""
    kept: list[Executable] = []

    def planned_for(device: Device, graph: Any, options: dict[str, Any]) -> Executable:
        kept.append(compile(graph, device, **{k: v for k, v in options.items() if k != "backend"}))
        return compile(graph, "cpu", **{**options, "backend": "null"})

    with (
        plan_problems.drafted(),
        init.skipped(),
        mock.patch.object(plan_problems, "planned_for", planned_for),
    ):
        plan_problems.train(nn.models.resnet18(), Spec((128, 3, 224, 224), float32), H200)
    steps = kept[0].program.steps
    assert {step.plan.open.done for step in steps if step.plan.open is not None} == {False}
    count = Counter(step.label for step in steps if step.plan.open is not None)
    kinds = ("conv", "conv_filter_grad", "conv_data_grad")
    assert [count[kind] for kind in kinds] == [20, 20, 16]
    apart = [step for step in steps if step.plan.label == "kernel conv_data_grad+add+relu_grad split"]
    assert len(apart) == 3  # the strided ones, whose steps run behind them
    choices = TunedProgram(kept[0]).choices
    assert 30 < len(choices) < sum(count.values())
