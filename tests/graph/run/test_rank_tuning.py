"""Tuning where ranks train together: each has a share of the contests, all change plans before the same step."""

import os
import pickle
import signal
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, distributed, nn, ops, optim
from lamina.backends import Plan
from lamina.distributed import DataParallel
from lamina.graph import Executable
from lamina.graph.run import tuning
from lamina.graph.run.context import ExecutionContext
from lamina.graph.run.rank_tuning import SETTLED, SHORTEST, RankReport, RankTuner, Schedule
from lamina.graph.run.tuning import SAVED_UP, SHARE, TunedProgram
from lamina.runtime import CaptureInvalidated
from lamina.train import Step
from tests.helpers import slow_from
from tests.helpers.ranks import RanksFailed, run_ranks
from tests.helpers.tunable import Clock, Inline, Tunable

BATCH, RUN = 12, 0.05
#: Of a program whose contests have parts about as long as a run.
LONG_STEPS = 300


# ------------------------------------------------------------------------------------- what all ranks compute alike


def reports(*given: dict[str, Any]) -> list[RankReport]:
    return [RankReport(**{"elapsed": 0.1, "calls": 10, "ready": True, **one}) for one in given]


def test_problems_are_dealt_out_the_best_first() -> None:
    schedule, worth = Schedule(0.0), {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0, "little": 1e-9}
    every = tuple(worth.items())
    schedule.take(reports({"offers": every}, {"offers": every[:-1]}, {"offers": (("a", 1.0), ("z", 9.0))}))
    found = {name: p.contestant for name, p in schedule.problems.items() if not p.done}
    assert found == {"z": 2, "a": 0, "b": 1, "c": 0, "d": 1}
    assert schedule.problems["a"].holders == [0, 1, 2]
    assert len(schedule.open) == 5


def test_a_winner_is_agreed_on_when_all_that_have_its_problem_can_run_it() -> None:
    schedule, offers = Schedule(0.0), (("a", 1.0), ("b", 1.0))
    schedule.take(reports({"offers": offers}, {"offers": offers}, {}))
    schedule.take(reports({"found": (("a", "fast"),)}, {"found": (("b", "quick"),)}, {}))
    schedule.take(reports({"made": (("a", True), ("b", False))}, {"made": (("b", True),)}, {}))
    a, b = schedule.problems["a"], schedule.problems["b"]
    assert (a.done, a.agreed, a.record) == (False, False, "fast")
    assert (b.done, b.agreed, b.record) == (True, False, None)
    schedule.take(reports({}, {"made": (("a", True),)}, {}))
    assert (a.done, a.agreed) == (True, True)
    assert schedule.open == []


def test_what_stays_is_done() -> None:
    schedule, offers = Schedule(0.0), (("a", 1.0),)
    schedule.take(reports({"offers": offers}, {"offers": offers}))
    schedule.take(reports({"found": (("a", None),)}, {}))
    assert schedule.problems["a"].done
    assert not schedule.problems["a"].agreed


def held_for(schedule: Schedule, told: list[RankReport], rounds: int, run: float) -> tuple[float, float]:
    """Seconds that are spent, and that runs take, where ranks use what is appointed."""
    spent = passed = 0.0
    for _ in range(rounds):
        now = schedule.appoint(told, soon=False)
        parts, runs = (now.seconds,) * now.count, schedule.length * run
        assert now.every * now.count < schedule.length
        assert now.count == 0 or now.seconds <= run
        spent, passed = spent + sum(parts), passed + runs
        schedule.take(
            [RankReport(elapsed=runs + sum(parts), spent=parts, busy=True, ready=True, need=told[0].need)]
        )
    return spent, passed


@pytest.mark.parametrize("need", [0.0, 0.002, 0.008])
def test_ranks_spend_a_tenth_of_the_time(need: float) -> None:
    schedule = Schedule(0.0)
    schedule.take([RankReport(elapsed=0.01, offers=(("a", 1 / 50),))])  # pays late
    told = [RankReport(busy=True, ready=True, need=need)]
    spent, passed = held_for(schedule, told, 100, 0.01)
    assert 0.8 * SHARE < spent / passed <= SHARE


def test_what_takes_longer_than_a_run_is_rare() -> None:
    schedule = Schedule(0.0)
    schedule.take([RankReport(elapsed=0.01, offers=(("a", 1 / 50),))])
    told = [RankReport(busy=True, ready=True, need=0.03)]
    long = runs = 0
    for _ in range(100):
        now = schedule.appoint(told, soon=False)
        assert now.seconds <= 0.01
        assert now.need == 0.03
        long += now.long
        runs += schedule.length
        schedule.take([RankReport(elapsed=0.01 * schedule.length, busy=True)])
    assert runs / tuning.APART - 1 <= long <= runs / tuning.APART + tuning.FIRST


def test_long_parts_come_first_and_short_ones_behind() -> None:
    """A contest whose next part takes longer than a run goes on with others before ranks meet again."""
    schedule = Schedule(0.0)
    schedule.take([RankReport(elapsed=0.01, offers=(("a", 1.0),))])
    for _ in range(6):
        schedule.appoint([RankReport(ready=True)], soon=False)
        schedule.take([RankReport(elapsed=0.01 * schedule.length)])
    now = schedule.appoint([RankReport(busy=True, ready=True, need=0.03)], soon=False)
    assert now.count > now.long >= 1
    before = {run: now.allowed(run) for run in range(1, schedule.length)}
    given = [seconds for seconds in before.values() if seconds is not None]
    assert given == [0.03] * now.long + [now.seconds] * (now.count - now.long)
    assert now.seconds == pytest.approx(0.005)
    assert before[now.every] == 0.03
    assert sum(given) <= SAVED_UP


def test_the_time_of_a_part_is_that_of_the_slowest_rank() -> None:
    schedule = Schedule(0.0)
    schedule.length = 10
    schedule.take([RankReport(elapsed=1.3, spent=(0.1, 0.2)), RankReport(elapsed=1.2, spent=(0.2, 0.0))])
    assert schedule.run == pytest.approx(0.09)
    assert schedule.credit == pytest.approx(SHARE * 0.9 - 0.4)


def test_ranks_meet_more_seldom_where_nothing_is_to_be_done() -> None:
    schedule = Schedule(0.0)
    schedule.take([RankReport(elapsed=0.1, offers=(("a", 1 / 500),))])
    lengths = []
    for _ in range(20):
        schedule.appoint([RankReport(ready=True)], soon=False)
        lengths.append(schedule.length)
        schedule.take([RankReport(elapsed=schedule.length * 0.1)])
    assert lengths == sorted(lengths)
    assert lengths[0] >= SHORTEST
    assert lengths[-1] >= sum(lengths[:-1])  # from then on after as many runs as there were


def test_first_runs_that_say_nothing_do_not_put_off_the_next_meeting() -> None:
    """A program's first runs are recorded, and not counted: next to no time passes by what is known then."""
    schedule, at = Schedule(2.0), []
    for _ in range(6):
        schedule.take([RankReport(elapsed=3e-6 if schedule.runs < 10 else 0.003 * schedule.length)])
        schedule.appoint([RankReport(ready=True, untimed=True)], soon=False)
        at.append(schedule.runs)
    assert at[:3] == [1, 10, 51]
    assert at[-1] * 0.003 < 30


def test_settled_ranks_meet_after_twice_as_many_runs() -> None:
    schedule, at = Schedule(0.0), []
    for _ in range(6):
        schedule.take([RankReport(elapsed=schedule.length * 0.1)])
        schedule.appoint([RankReport()], soon=False)
        at.append(schedule.runs)
    assert at == [1, *(1 + SETTLED * 2**i for i in range(1)), *(2 * (1 + SETTLED) * 2**i for i in range(4))]


def test_nothing_begins_before_runs_took_a_while() -> None:
    schedule, runs = Schedule(2.0), 0
    schedule.take([RankReport(elapsed=0.01, offers=(("a", 1.0),))])
    while not (now := schedule.appoint([RankReport(busy=True, ready=True)], soon=False)).count:
        runs += schedule.length
        schedule.take([RankReport(elapsed=0.01 * schedule.length, busy=True)])
    assert now.seconds == pytest.approx(0.005)
    assert runs >= 100  # a fifth of the time: it pays soon


# ------------------------------------------------------------------------------------------------------- worlds


def network(norm: Callable[[int], nn.Module] = nn.SyncBatchNorm) -> nn.Module:
    nn.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), norm(8), nn.ReLU(), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(8 * 36, 5),
    )  # fmt: skip


def use(backend: Tunable) -> Tunable:
    """Let it be every device's, in a process of a test's own."""
    backends.get = lambda device, name=None: backend  # type: ignore[assignment]
    return backend


def step_of(backend: Tunable, begin: float = 0.0, **options: Any) -> Step:
    given = {"device": "cpu", "parallel": "data", **options}
    net = network(given.pop("norm", nn.SyncBatchNorm))
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(0.05, 0.9), **given)
    if not step.tuning.ended:
        tuning.TuningThreads = Inline  # type: ignore[misc]
        ranks = step.options.parallel
        assert ranks is not None
        step._tuner = RankTuner(ranks, clock=backend.clock, threads=2, begin=begin)
    return step


def batch(number: int, size: int = BATCH) -> tuple[Any, Any]:
    """This rank's part of a batch."""
    rng, n, me = np.random.default_rng(number), distributed.world_size(), distributed.rank()
    x, y = rng.standard_normal((size, 3, 6, 6)).astype(np.float32), rng.integers(0, 5, size)
    part = slice(me * size // n, (me + 1) * size // n)
    return x[part], y[part]


def noted_changes(step: Step) -> list[tuple[int, int]]:
    """Gets the number of the step and of the plans at each change."""
    found: list[tuple[int, int]] = []
    change = Executable.change_plans

    def changed(executable: Executable, better: Mapping[Plan, Plan]) -> bool:
        if any(p.executable is executable for p in step._programs):
            found.append((step.number, len(better)))
        return change(executable, better)

    Executable.change_plans = changed  # type: ignore[method-assign]
    return found


def train(step: Step, backend: Tunable, steps: int, sizes: tuple[int, ...] = (BATCH,)) -> list[float]:
    losses = []
    for number in range(steps):
        losses.append(float(step(*batch(number, sizes[number % len(sizes)])).item()))
        backend.clock.advance(RUN)
    return losses


def tuned(options: dict[str, Any], steps: int = 180, sizes: tuple[int, ...] = (BATCH,)) -> dict[str, Any]:
    """What a rank did, with tuning and without."""
    plain = train(step_of(first := use(Tunable(Clock())), tuning=False, **options), first, steps, sizes)
    backend = use(Tunable(Clock()))
    step = step_of(backend, **options)
    changes = noted_changes(step)
    losses = train(step, backend, steps, sizes)
    before = dict(backend.ran)
    train(step, backend, 3 * len(sizes), sizes)
    tuner = step._tuner
    assert isinstance(tuner, RankTuner)
    return {
        "plain": plain, "losses": losses, "changes": changes, "held": backend.held, "adopted": backend.adopted,
        "state": vars(step.tuning), "meetings": tuner.meetings, "share": step.tuning.seconds / backend.clock.now,
        "first": backend.ran["first"] - before["first"],
    }  # fmt: skip


class Reading(Clock):
    """Time passes whenever it is read, as it does."""

    def __call__(self) -> float:
        self.now += 1e-7
        return self.now


def tuned_by_long_parts(part: float) -> dict[str, Any]:
    """What a rank did whose parts of contests take so many seconds, where a run takes RUN."""
    rank_by_times = TunedProgram.rank

    def rank(program: TunedProgram, run: float) -> None:
        """By what ops take at least: a loaded machine would put contests off that are long beside their plans."""
        program.timeline = None
        rank_by_times(program, run)

    TunedProgram.rank = rank  # type: ignore[method-assign]
    backend = use(Tunable(Reading(), parts=2, part=part))
    step = step_of(backend)
    changes = noted_changes(step)
    train(step, backend, LONG_STEPS)
    print(step.number, vars(step.tuning), changes)
    return {"changes": changes, "state": vars(step.tuning), "share": step.tuning.seconds / backend.clock.now}


@pytest.mark.feature("F081", "B009", "B032")
@pytest.mark.parametrize("part", [pytest.param(0.6 * RUN, marks=pytest.mark.slow), 1.2 * RUN])
def test_parts_about_as_long_as_a_run_are_held(part: float) -> None:
    """They fit into what was appointed for them to the microsecond: no more may have passed before they begin."""
    found = run_ranks(tuned_by_long_parts, 2, args=(part,))
    for one in found:
        assert one["state"]["done"] >= one["state"]["won"] >= 2
        assert one["share"] <= 1.2 * tuning.EAGER
        assert one["changes"] == found[0]["changes"] != []


@pytest.mark.feature("F081", "B009", "B032")
@pytest.mark.parametrize(
    ("launcher", "ranks"), slow_from(1, [("variables", 2), ("variables", 4), ("mpirun", 2)], several=True)
)
def test_all_ranks_change_plans_before_the_same_step(launcher: Any, ranks: int) -> None:
    """Bit by bit the same losses; each contest was held once; in the end winners alone run."""
    found = run_ranks(tuned, ranks, launcher=launcher, args=({},))
    for one in found:
        assert one["losses"] == one["plain"]
        assert one["changes"] == found[0]["changes"]
        assert one["changes"]
        assert (one["state"]["open"], one["state"]["ended"], one["first"]) == (0, "", 0)
        assert one["state"]["won"] == one["state"]["done"] > 5
        assert one["state"]["swaps"] == len(one["changes"])
        assert one["share"] <= tuning.EAGER
        assert len(one["held"]) + len(one["adopted"]) == one["state"]["done"]
        assert one["meetings"] < 30
    counts = [len(one["held"]) for one in found]
    assert sum(counts) == found[0]["state"]["done"]
    assert max(counts) - min(counts) <= 1


#: Options of a step, the sizes of batches in turns, and steps.
CASES: dict[str, tuple[dict[str, Any], int, tuple[int, ...]]] = {
    "shards": ({"shard_optimizer": True, "clip_norm": 0.3}, 180, (BATCH,)),
    "gathered gradients": ({"accumulate": 3, "clip_norm": 0.3, "norm": nn.BatchNorm2d}, 420, (BATCH,)),
    "two sizes": ({"memory_limit": 1 << 20}, 240, (BATCH, 8)),
}


@pytest.mark.feature("F081", "B009", "B033")
@pytest.mark.parametrize("case", slow_from(1, CASES))
def test_shards_gathered_gradients_and_other_batches(case: str) -> None:
    """Programs without collective operations (of gradients that are gathered) get the same plans, too."""
    first, second = run_ranks(tuned, 2, args=CASES[case])
    for one in (first, second):
        assert one["losses"] == one["plain"]
        assert (one["state"]["open"], one["state"]["ended"]) == (0, "")
        assert one["first"] == 0
        # In shards a rank may have other views of its piece than another one.
        assert [at for at, _ in one["changes"]] == [at for at, _ in first["changes"]]
        assert one["changes"]
    assert len(first["held"]) + len(second["held"]) == first["state"]["done"]


# ------------------------------------------------------------------------------------------------------ faults


def one_of_them(what: str, steps: int = 160) -> dict[str, Any]:
    """What a rank did where rank 1 does something else."""
    plain = train(step_of(first := use(Tunable(Clock())), tuning=False), first, steps)
    other = distributed.rank() == 1
    kinds = {"cannot adopt": {"adopts": lambda op: op.name != "conv_filter_grad"}}
    backend = use(Tunable(Clock(), **(kinds.get(what, {}) if other else {})))
    if what == "switched off" and other:
        os.environ["LAMINA_TUNING"] = "0"
    step = step_of(backend)
    if other and step.tuning.ended:
        step._tuner = RankTuner(step.options.parallel, clock=backend.clock)  # type: ignore[arg-type]
    if what == "fails" and other:

        def broken(op: Any, winner: Plan, room: int) -> Any:
            raise ValueError("broken")

        backend.contest = broken  # type: ignore[method-assign]
    records: list[int] = []
    if what == "cannot record" and other:

        def refused(context: ExecutionContext) -> None:
            records.append(step.number)
            raise CaptureInvalidated("broken off")

        ExecutionContext.record = refused  # type: ignore[method-assign]
    changes = noted_changes(step)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        losses = train(step, backend, steps)
    tuner = step._tuner
    assert isinstance(tuner, RankTuner)
    return {
        "plain": plain, "losses": losses, "changes": changes, "state": vars(step.tuning), "records": records,
        "warnings": [str(w.message) for w in told if "tuning" in str(w.message)], "ran": dict(backend.ran),
        "meetings": tuner.meetings, "adopted": backend.adopted,
        "refused": sorted(n.split()[0] for n, p in tuner.schedule.problems.items() if p.done and not p.agreed),
    }  # fmt: skip


def many(kinds: list[str]) -> list[dict[str, Any]]:
    found = []
    for what in kinds:
        get, change, record = backends.get, Executable.change_plans, ExecutionContext.record
        found.append(one_of_them(what))
        backends.get, Executable.change_plans = get, change  # type: ignore[method-assign]
        ExecutionContext.record = record  # type: ignore[method-assign]
        os.environ.pop("LAMINA_TUNING", None)
    return found


@pytest.mark.slow
@pytest.mark.feature("F081")
def test_what_one_rank_cannot_do_no_rank_does() -> None:
    kinds = ["cannot record", "cannot adopt", "fails", "switched off"]
    found = dict(zip(kinds, zip(*run_ranks(many, 2, args=(kinds,)), strict=True), strict=True))
    for pair in found.values():
        for one in pair:
            assert one["losses"] == one["plain"]
            assert one["changes"] == pair[0]["changes"]
    for one in found["cannot record"]:  # all go back, and on
        assert one["changes"]
        assert (one["state"]["swaps"], one["state"]["ended"], one["warnings"]) == (0, "", [])
        assert one["ran"]["winner"] == 0
        assert one["state"]["open"] == 0
    assert found["cannot record"][1]["records"]
    assert (
        "conv_filter_grad" not in found["cannot adopt"][1]["adopted"] or found["cannot adopt"][0]["refused"]
    )
    for one in found["cannot adopt"]:  # a problem of the other rank's, if rank 1 did not hold its contest
        assert (one["state"]["open"], one["state"]["ended"]) == (0, "")
        assert one["state"]["swaps"] > 0
        assert one["refused"] == found["cannot adopt"][0]["refused"]
    why = {"fails": "ValueError: broken", "switched off": "LAMINA_TUNING=0"}
    for kind, reason in why.items():
        for one in found[kind]:
            assert one["warnings"] == [
                f"tuning between runs has ended on all ranks that train together: rank 1: {reason}"
            ]
            assert one["state"]["ended"] == f"rank 1: {reason}"
            assert one["state"]["open"] == one["state"]["swaps"] == one["ran"]["winner"] == 0
    assert found["switched off"][0]["meetings"] == 1


def switched_off() -> tuple[str, int, list[str]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        backend = use(Tunable(Clock()))
        step = lm.train_step(
            network(), ops.cross_entropy, optim.SGD(0.05), device="cpu", parallel="data", tuning=False
        )
        train(step, backend, 30)
    assert isinstance(step._tuner, RankTuner)
    return step.tuning.ended, step._tuner.meetings, [str(w.message) for w in told]


def test_where_all_ranks_have_it_off_nobody_warns_and_they_meet_once() -> None:
    assert run_ranks(switched_off, 2) == [("switched off", 1, [])] * 2


def ends(how: str, at: int) -> str:
    """The error that a rank gets where rank 1 ends in the middle of tuning."""
    backend = use(Tunable(Clock()))
    step = step_of(backend)
    train(step, backend, at)
    if distributed.rank() == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return "ended"
    try:
        train(step, backend, 200)
    except ConnectionError as error:
        print(error, flush=True)
        return str(error)
    return "went on"


@pytest.mark.feature("B055")
@pytest.mark.parametrize("at", slow_from(1, [40, 9]))  # in a collective operation, or where ranks meet
@pytest.mark.parametrize("how", slow_from(1, ["killed", "ended"]))
def test_a_rank_that_ends_is_named_to_those_that_go_on(how: str, at: int) -> None:
    try:
        told, _ = run_ranks(ends, 2, args=(how, at))  # the error came where Python could take it
    except RanksFailed as failed:
        told = str(failed)
    assert "rank 1" in told
    assert "went on" not in told


# ------------------------------------------------------------------------------------------------------ alone


class Alone:
    """A group of ranks that is this process, and another that says what a test wants."""

    ranks, place = lm.distributed.Group(0, 1), 0

    def __init__(self, other: Callable[[RankReport], Any]) -> None:
        self.other, self.heard = other, list[Any]()

    def gather_objects(self, value: object) -> list[Any]:
        value = pickle.loads(pickle.dumps(value))
        self.heard.append(value)
        return [value, self.other(value) if isinstance(value, RankReport) else True]


def test_programs_are_found_by_their_collective_operations() -> None:
    step = lm.train_step(network(), ops.cross_entropy, optim.SGD(0.05), device="cpu")
    step(*batch(0))
    assert not TunedProgram(step.executable).together


def test_nothing_is_told_for_programs_without_collective_operations() -> None:
    ranks = Alone(lambda report: report)
    tuner = RankTuner(ranks)
    step = lm.train_step(network(), ops.cross_entropy, optim.SGD(0.05), device="cpu")
    step._tuner = tuner
    for number in range(20):
        step(*batch(number))
    assert (ranks.heard, tuner.meetings) == ([], 0)


def test_a_forked_child_does_not_tune() -> None:
    tuner = RankTuner(Alone(lambda report: report))
    tuner.renew()
    assert (tuner.state.ended, tuner._over) == ("a forked process", True)


def test_a_step_of_one_rank_tunes_alone() -> None:
    step = lm.train_step(network(), ops.cross_entropy, optim.SGD(0.05), device="cpu", parallel=DataParallel())
    assert not isinstance(step._tuner, RankTuner)
