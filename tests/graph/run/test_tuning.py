"""Tuning between runs: a tenth of the time by a clock that tests wind, swaps at boundaries, the same numbers."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, nn, ops, optim
from lamina.backends import OpenChoice, TuningSlices
from lamina.graph import Executable
from lamina.graph.planning.program import PlannedGraph
from lamina.graph.run import tuning
from lamina.graph.run.context import ExecutionContext
from lamina.graph.run.timeline import Timeline
from lamina.graph.run.tuning import APART, FIRST, SHARE, Budget, PartKind, Tuner
from lamina.runtime import CaptureInvalidated
from lamina.train import Step
from tests.helpers.tunable import Clock, Tunable
from tests.helpers.tunable import counted as counted
from tests.helpers.tunable import inline as inline

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((8, 1, 8, 8)).astype(np.float32)
LABELS = RNG.integers(0, 4, 8)
RUN = 0.01


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Tunable], Tunable]]:
    """Lets a backend be every device's."""

    def using(backend: Tunable) -> Tunable:
        monkeypatch.setattr(backends, "get", lambda device, name=None: backend)
        return backend

    yield using
    gc.collect()


def network(dropout: float = 0.3) -> nn.Sequential:
    nn.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout), nn.Linear(144, 4)
    )


def step_of(backend: Tunable, begin: float = 0.0, **options: Any) -> Step:
    step = lm.train_step(
        network(), ops.cross_entropy, optim.SGD(0.05, 0.9), device="cpu", **{"tuning": True, **options}
    )
    if not step.tuning.ended:
        step._tuner = Tuner(clock=backend.clock, threads=2, begin=begin)
    return step


def train(step: Step, backend: Tunable, steps: int) -> list[float]:
    """The losses; each step takes a hundredth of a second."""
    losses = []
    for _ in range(steps):
        losses.append(step(IMAGES, LABELS).item())
        backend.clock.advance(RUN)
    return losses


# ------------------------------------------------------------------------------------------------------- the budget


def test_a_tenth_of_the_time_is_spent() -> None:
    budget, spent = Budget(), 0.0
    for _ in range(1000):
        budget.passed(1.0)
        now = 0.0
        while budget.allows(PartKind("time"), now):
            budget.spent(PartKind("time"), 0.03)
            now += 0.03
        spent += now
        assert now <= 1.0
    assert 0.9 * SHARE * 1000 < spent <= SHARE * 1000 + 0.03


def test_what_takes_longer_than_a_run_is_rare() -> None:
    budget, done = Budget(), []
    for number in range(1000):
        budget.passed(0.01)
        if budget.allows(PartKind("run")):
            budget.spent(PartKind("run"), 0.03)
            done.append(number)
    assert FIRST + 4 < len(done) <= FIRST + 1000 / APART
    assert min(b - a for a, b in zip(done, done[FIRST:], strict=False)) >= APART
    short = sum(budget.allows(PartKind("time")) for _ in range(3))  # other kinds have their own figures
    assert short in (0, 3)


def test_parts_of_more_memory_are_expected_to_take_longer() -> None:
    """As long as those of the nearest size, at most four times as long where that is smaller."""
    budget = Budget()
    for seconds in (0.003, 0.018, 0.001):  # the longest is left out
        budget.spent(PartKind("run", 20), seconds)
    budget.spent(PartKind("run", 26), 0.1)
    sizes = {19: 0.002, 20: 0.002, 21: 0.004, 22: 0.008, 25: 0.1, 27: 0.2, 40: 0.4}
    assert {n: budget.expected(PartKind("run", n)) for n in sizes} == pytest.approx(sizes)
    assert budget.expected(PartKind("time", 20)) == 0


def test_debts_are_paid_before_anything_else() -> None:
    budget = Budget()
    budget.passed(1.0)
    budget.spent(PartKind("run"), 1.0)
    waits = 0
    while not budget.allows(PartKind("time")):
        budget.passed(1.0)
        waits += 1
    assert waits == pytest.approx(1.0 / SHARE, abs=1)


def test_a_pause_saves_nothing_up() -> None:
    """The program waits for data, or for its user: neither a run's time nor what may be spent knows of it."""
    budget = Budget()
    for _ in range(10):
        budget.passed(0.01)
    earned = budget.credit
    budget.passed(3600.0)
    assert budget.run == pytest.approx(0.01)
    assert budget.credit - earned == pytest.approx(SHARE * tuning.PAUSE)


def test_long_runs_are_no_pauses() -> None:
    budget = Budget()
    for _ in range(3):
        budget.passed(2.0)
    assert budget.run == pytest.approx(2.0)
    assert budget.credit == pytest.approx(SHARE * (tuning.PAUSE + 4))  # nothing was known of the first one


def test_a_pause_before_the_first_run_that_counts_saves_nothing_up() -> None:
    """A few steps, then the user looks at the losses: what follows is not interrupted by all that was saved up."""
    budget = Budget(begin=2.0)
    budget.passed(3600.0)
    assert budget.credit == pytest.approx(SHARE * (tuning.PAUSE - 2.0))
    assert not budget.allows(PartKind("time"))


def test_a_wait_belongs_to_all_runs_that_were_queued() -> None:
    budget = Budget()
    for _ in range(20):
        budget.passed(0.001)
    budget.waited(0.18)
    assert budget.run == pytest.approx(0.01)
    assert budget.credit == pytest.approx(SHARE * 0.2)
    budget.passed(0.01)
    budget.waited(0.0)
    assert budget.run == pytest.approx(0.01)


def test_nothing_is_saved_beyond_a_second() -> None:
    budget = Budget()
    for _ in range(100):
        budget.passed(1.0)
    assert budget.credit == tuning.SAVED_UP


def test_nothing_begins_before_runs_took_a_while() -> None:
    budget, runs = Budget(begin=2.0), 0
    while not budget.allows(PartKind("time")):
        budget.passed(0.01)
        runs += 1
    assert runs == pytest.approx(200, abs=1)


# ------------------------------------------------------------------------------------------------------- training


@pytest.mark.usefixtures("inline")
def test_what_runs_for_a_short_time_is_not_disturbed(use: Callable[[Tunable], Tunable]) -> None:
    backend = use(Tunable(Clock()))
    step = step_of(backend, begin=tuning.BEGIN)
    train(step, backend, round(tuning.BEGIN / RUN))
    assert (backend.rooms, step.tuning.done, step.tuning.seconds) == ([], 0, 0.0)
    train(step, backend, 200)
    assert step.tuning.done > 5


@pytest.mark.usefixtures("inline")
@pytest.mark.feature("F081", "B009")
def test_losses_with_swaps_are_those_without(use: Callable[[Tunable], Tunable]) -> None:
    """Winners compute the same: bit by bit the same losses, weights, momentum, statistics, dropout."""
    found = []
    for tunes in (False, True):
        backend = use(Tunable(Clock()))
        step = step_of(backend, tuning=tunes)
        losses = train(step, backend, 300)
        state = {n: x.numpy().copy() for n, x in step.state.named().items()}
        found.append((losses, state, step, backend))
    (plain, before, _, first), (tuned, after, step, backend) = found
    assert plain == tuned
    assert before.keys() == after.keys()
    for name, held in before.items():
        np.testing.assert_array_equal(held, after[name], err_msg=name)
    assert first.ran["winner"] == 0
    assert step.tuning.open == 0
    assert step.tuning.won == step.tuning.done == len(backend.held) > 5
    assert step.tuning.swaps >= 1
    last = dict(backend.ran)
    train(step, backend, 1)
    assert backend.ran["first"] == last["first"]  # winners alone run now
    assert backend.ran["winner"] > last["winner"]
    assert all(room > 0 for room in backend.rooms)


@pytest.mark.usefixtures("inline")
@pytest.mark.feature("F081")
@pytest.mark.parametrize(("expected", "share"), [(1e-3, tuning.EAGER), (5e-6, SHARE), (1e-6, tuning.CALM)])
def test_tuning_takes_a_tenth_of_the_time(
    use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch, expected: float, share: float
) -> None:
    """A fifth, while what is tried is expected to pay for itself in seconds; less, where it takes minutes."""
    monkeypatch.setattr(tuning, "AS_LONG", 1e9)
    backend = use(Tunable(Clock(), parts=40, expected=expected))
    step = step_of(backend)
    train(step, backend, 400)
    assert step.tuning.open > 0
    assert 0.7 * share < step.tuning.seconds / backend.clock.now <= share
    assert step.tuning.seconds <= share * 400 * RUN


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(("expected", "held"), [(1e-3, True), (2e-7, False), (1e-9, False)])
def test_what_does_not_pay_is_not_tried(
    use: Callable[[Tunable], Tunable], expected: float, held: bool
) -> None:
    """What is expected to save a fifty-thousandth of a run pays in minutes: nobody knows yet that it runs so long.
    What saves less is not open at all."""
    backend = use(Tunable(Clock(), expected=expected))
    step = step_of(backend)
    train(step, backend, 300)
    assert bool(backend.held) == held
    assert bool(step.tuning.open) == (expected == 2e-7)


@pytest.mark.usefixtures("inline")
def test_a_program_that_has_run_for_long_tries_what_pays_late(
    use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = use(Tunable(Clock(), expected=2e-6))
    step = step_of(backend)
    train(step, backend, 100)
    assert (step.tuning.done, step.tuning.open) == (0, 20)
    backend.clock.advance(3600)  # a pause of the program's is no run
    train(step, backend, 10)
    assert step.tuning.done == 0
    step._tuner.budget.passed_seconds = 1e3
    train(step, backend, 100)
    assert step.tuning.done > 0


@pytest.mark.usefixtures("inline")
@pytest.mark.feature("F081")
def test_one_run_is_timed_kernel_by_kernel(
    use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What wins most for its contest's time comes first: with it the number of steps that take a plan counts."""
    backend, timed = use(Tunable(Clock())), list[int]()
    rank = tuning.TunedProgram.rank

    def ranked(program: tuning.TunedProgram, run: float) -> None:
        assert program.timeline is not None
        timed.append(len(program.timeline.spans))
        rank(program, run)
        worth = [pair[0] for pair in program.ranked]
        assert worth == sorted(worth, reverse=True)

    monkeypatch.setattr(tuning.TunedProgram, "rank", ranked)
    step = step_of(backend)
    losses = train(step, backend, 60)
    kernels = [s for s in step.executable.program.steps if not s.plan.view]
    assert timed == [1 + len(kernels)]
    plain = step_of(use(Tunable(Clock())), tuning=False)
    assert train(plain, backend, 60) == losses


@pytest.mark.usefixtures("inline")
def test_a_timeline_of_the_programs_own_goes_first(use: Callable[[Tunable], Tunable]) -> None:
    """It gets every run's kernels; plans that nobody timed are ranked by least times."""
    backend, timeline = use(Tunable(Clock())), Timeline()
    step = step_of(backend)
    with timeline.record():
        train(step, backend, 60)
    assert timeline.recorded >= 59
    assert step.tuning.done > 0


@pytest.mark.slow
@pytest.mark.usefixtures("inline")
def test_winners_are_put_in_when_waiting_costs_more_than_the_change(
    use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change takes a third of a second: it is made when runs have lost as much, or when all is known."""
    change = Executable.change_plans
    backend = use(Tunable(Clock(), parts=10))

    def changed(executable: Executable, better: Any) -> bool:
        backend.clock.advance(0.3)
        return change(executable, better)

    monkeypatch.setattr(Executable, "change_plans", changed)
    step, before = step_of(backend), list[float]()
    missed = tuning.TunedProgram.is_worth

    def noted(program: tuning.TunedProgram, seconds: float) -> bool:
        found = missed(program, seconds)
        if found and program.is_open:
            before.append(program.missed - seconds)
        return found

    monkeypatch.setattr(tuning.TunedProgram, "is_worth", noted)
    train(step, backend, 3000)
    assert step.tuning.open == 0
    assert 1 < step.tuning.swaps < step.tuning.won
    assert before
    assert min(before) >= 0


def test_the_worth_of_a_contest_is_by_what_a_plan_takes() -> None:
    """A plan that runs four times is worth four of one; nothing is expected at the machine's limit."""

    def nothing(made: Any, room: int) -> TuningSlices:
        yield from ()
        return None

    def open_choice() -> OpenChoice:
        return OpenChoice(lambda: None, nothing)

    often = tuning.ChoiceUse(count=4, least=4e-4, seconds=8e-4)
    once = tuning.ChoiceUse(count=1, least=1e-4, seconds=2e-4)
    limit = tuning.ChoiceUse(count=4, least=4e-4, seconds=4e-4)
    unknown = tuning.ChoiceUse(count=1, least=1e-4)
    run = 0.01
    assert often.worth(open_choice(), run) == pytest.approx(4 * once.worth(open_choice(), run))
    assert limit.worth(open_choice(), run) == 0
    assert unknown.worth(open_choice(), run) == once.worth(open_choice(), run)


@pytest.mark.usefixtures("inline")
def test_plans_change_where_a_step_begins(
    use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = use(Tunable(Clock()))
    step, inside, changes = step_of(backend), [], []
    change, before = Executable.change_plans, Tuner.before

    def changed(executable: Executable, better: Any) -> bool:
        changes.append(list(inside))
        return change(executable, better)

    def begun(tuner: Tuner, executable: Executable) -> Any:
        inside.append("boundary")
        within = before(tuner, executable)
        inside.pop()
        return within

    monkeypatch.setattr(Executable, "change_plans", changed)
    monkeypatch.setattr(Tuner, "before", begun)
    train(step, backend, 300)
    assert changes == [["boundary"]] * step.tuning.swaps
    assert changes


@pytest.mark.usefixtures("inline")
def test_what_does_not_win_stays(use: Callable[[Tunable], Tunable]) -> None:
    backend = use(Tunable(Clock(), wins=lambda op: op.name == "conv_filter_grad"))
    step = step_of(backend)
    train(step, backend, 300)
    assert (step.tuning.won, step.tuning.swaps, step.tuning.open) == (1, 1, 0)
    assert str(step.tuning).startswith("0 open, ")
    labels = [s.plan.open is None for s in step.executable.program.steps if s.label == "conv_filter_grad"]
    assert labels == [True]


@pytest.mark.usefixtures("inline")
def test_other_batches_share_what_is_learnt(use: Callable[[Tunable], Tunable]) -> None:
    """A program for another batch size tunes its own plans on the same state; both go on with winners."""
    found = []
    for tunes in (False, True):
        backend, losses = use(Tunable(Clock())), []
        step = step_of(backend, tuning=tunes)
        for number in range(400):
            size = 8 if number % 3 else 5
            losses.append(step(IMAGES[:size], LABELS[:size]).item())
            backend.clock.advance(RUN)
        found.append(losses)
    assert found[0] == found[1]
    assert step.tuning.open == 0
    assert step.tuning.swaps >= 2
    assert len(step._programs) == 2


# ------------------------------------------------------------------------------------------------- switched off


@pytest.mark.usefixtures("inline")
@pytest.mark.feature("F093")
def test_deterministic_steps_are_not_tuned(use: Callable[[Tunable], Tunable]) -> None:
    """The switch, thrown in the middle of tuning too, ends every contest and every change."""
    backend = use(Tunable(Clock()))
    step = step_of(backend)
    train(step, backend, 40)
    held = len(backend.held)
    assert held
    with lm.policy(deterministic=True):
        train(step, backend, 100)
    assert len(backend.held) == held
    for policy in ("heuristic", "fallback"):
        with lm.policy(algorithm=policy):
            train(step, backend, 20)
    assert len(backend.held) == held


def test_switches(use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch) -> None:
    backend = use(Tunable(Clock()))
    assert step_of(backend, tuning=False).tuning.ended == "switched off"
    assert not step_of(backend).tuning.ended
    monkeypatch.setenv("LAMINA_TUNING", "0")
    step = step_of(backend)
    assert step.tuning.ended == "LAMINA_TUNING=0"
    train(step, backend, 50)
    assert (backend.rooms, backend.ran["winner"]) == ([], 0)


def test_a_cpus_plans_are_not_open() -> None:
    step = lm.train_step(network(), ops.cross_entropy, optim.SGD(0.05), device="cpu", tuning=True)
    for _ in range(6):
        step(IMAGES, LABELS)
    assert step.tuning == tuning.TuningState()
    assert step._tuner._workers._running == 0


# ------------------------------------------------------------------------------------------------------- errors


class Fails(Tunable):
    """Raises where it is told to."""

    def __init__(self, where: str, error: Exception) -> None:
        super().__init__(Clock())
        self.where, self.error = where, error

    def made(self, op: Any) -> Any:
        if self.where == "candidates":
            raise self.error
        return super().made(op)

    def contest(self, op: Any, winner: Any, room: int) -> Any:
        whole = super().contest(op, winner, room)
        yield next(whole)
        if self.where == "contest":
            raise self.error
        return (yield from whole)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("where", ["candidates", "contest"])
def test_an_error_ends_tuning_with_one_warning(use: Callable[[Tunable], Tunable], where: str) -> None:
    plain = train(step_of(backend := use(Tunable(Clock())), tuning=False), backend, 30)
    backend = use(Fails(where, ValueError("broken")))
    step = step_of(backend)
    with pytest.warns(RuntimeWarning, match="tuning between runs has ended: ValueError: broken") as told:
        assert train(step, backend, 30) == plain
    assert len(told) == 1
    assert (step.tuning.ended, step.tuning.open) == ("ValueError: broken", 0)
    assert all(s.plan.open.done for s in step.executable.program.steps if s.plan.open is not None)


@pytest.mark.usefixtures("inline")
def test_a_contest_without_memory_is_passed_over(use: Callable[[Tunable], Tunable]) -> None:
    backend = use(Fails("contest", MemoryError("little")))
    step = step_of(backend)
    train(step, backend, 100)
    assert (step.tuning.open, step.tuning.won, step.tuning.swaps, step.tuning.ended) == (0, 0, 0, "")
    assert step.tuning.done > 5


@pytest.mark.usefixtures("inline")
def test_a_winner_that_takes_too_much_memory_is_not_put_in(use: Callable[[Tunable], Tunable]) -> None:
    """Contests get what the step's limit leaves; what does not fit in it stays out, and training goes on."""
    limit = 1 << 20
    plain = train(step_of(backend := use(Tunable(Clock())), tuning=False, memory_limit=limit), backend, 100)
    backend = use(Tunable(Clock(), workspace=2 << 20))
    step = step_of(backend, memory_limit=limit)
    assert train(step, backend, 100) == plain
    assert step.tuning.won > 5
    assert (step.tuning.swaps, backend.ran["winner"]) == (0, 0)
    assert {room + step.executable.peak_bytes for room in backend.rooms} == {limit}


@pytest.mark.usefixtures("inline")
def test_a_winner_that_cannot_be_recorded_is_not_put_in(
    use: Callable[[Tunable], Tunable], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train(step_of(backend := use(Tunable(Clock())), tuning=False), backend, 100)
    backend = use(Tunable(Clock()))
    step, asked = step_of(backend), list[PlannedGraph]()

    def refused(self: ExecutionContext) -> None:
        asked.append(self.program)
        raise CaptureInvalidated("broken off")

    monkeypatch.setattr(ExecutionContext, "record", refused)
    assert train(step, backend, 100) == plain
    assert asked
    assert step.executable.program not in asked
    assert (step.tuning.swaps, step.tuning.ended, backend.ran["winner"]) == (0, "", 0)


# ------------------------------------------------------------------------------------------------------- threads


def waited(step: Step, backend: Tunable) -> None:
    """Train until everything is known."""
    for _ in range(100_000):
        train(step, backend, 1)
        if step.tuning.done and not step.tuning.open:
            return
    raise AssertionError(step.tuning)


def test_threads_make_candidates_and_end(use: Callable[[Tunable], Tunable]) -> None:
    backend = use(Tunable(Clock()))
    names, interval = set[str](), sys.getswitchinterval()
    made = backend.made
    backend.made = lambda op: (names.add(threading.current_thread().name), made(op))[1]  # type: ignore[method-assign]
    step = step_of(backend)
    waited(step, backend)
    assert names
    assert all(name.startswith("lamina tuning") for name in names)
    for thread in threading.enumerate():
        if thread.name.startswith("lamina tuning"):
            thread.join(30)
            assert not thread.is_alive()
    assert step._tuner._workers._running == 0
    assert sys.getswitchinterval() == interval


ENDS = """
import threading
from lamina.graph.run.tuning import TuningThreads
begun, workers = threading.Event(), TuningThreads(1)
def task():
    begun.set()
    while threading.main_thread().is_alive():
        pass
    print("done")
for _ in range(3):
    workers.submit(task)
assert begun.wait(30)
"""


def test_the_process_waits_for_what_threads_are_at_alone() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=True
    )
    assert (ended.stdout, ended.stderr) == ("done\n", "")


def test_tasks_that_nobody_began_are_dropped() -> None:
    begun, go, done = threading.Event(), threading.Event(), list[int]()

    def task(number: int) -> None:
        begun.set()
        go.wait(30)
        done.append(number)

    workers = tuning.TuningThreads(1)
    first, *_ = [workers.submit(lambda n=n: task(n)) for n in range(3)]  # type: ignore[misc]
    assert begun.wait(30)
    workers.drop()
    go.set()
    first.result(30)
    again = workers.submit(lambda: task(7))
    again.result(30)
    assert done == [0, 7]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_as_many_threads_as_may_be_do_tasks(most: int) -> None:
    """All of them at once, and no more; what comes later waits."""
    begun, go = threading.Semaphore(0), threading.Event()

    def task(number: int) -> tuple[int, threading.Thread]:
        begun.release()
        go.wait(30)
        return number, threading.current_thread()

    workers = tuning.TuningThreads(most)
    submitted = [workers.submit(lambda n=n: task(n)) for n in range(2 * most + 1)]  # type: ignore[misc]
    assert all(begun.acquire(timeout=30) for _ in range(most))
    assert workers._running == most
    assert not begun.acquire(timeout=0.05)
    go.set()
    done = [made.result(30) for made in submitted]
    assert [number for number, _ in done] == list(range(2 * most + 1))
    threads = {thread for _, thread in done}
    assert len(threads) == most
    for thread in threads:
        thread.join(30)
    assert workers._running == 0


def test_a_task_that_fails_hands_its_error_on_and_the_next_is_done() -> None:
    workers = tuning.TuningThreads(1)
    failed, done = workers.submit(lambda: 1 // 0), workers.submit(lambda: 7)
    assert isinstance(failed.exception(30), ZeroDivisionError)
    assert done.result(30) == 7


def test_a_step_that_is_dropped_leaves_its_choices_to_others(use: Callable[[Tunable], Tunable]) -> None:
    backend = use(Tunable(Clock()))
    step = step_of(backend)
    train(step, backend, 8)
    gone = weakref.ref(step._tuner)
    del step
    gc.collect()
    assert gone() is None
    other = step_of(backend)
    waited(other, backend)
    assert other.tuning.won == other.tuning.done


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_tune() -> None:
    tuner = Tuner()
    tuner.renew()
    assert tuner.state.ended == "a forked process"
