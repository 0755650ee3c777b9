"""Simulation of tuning between steps: recorded plan times, a simulated clock, the real policy.

    python -m benchmarks.tuning_replay collect     plans networks for an H200 (no GPU is needed), stores open choices
    python -m benchmarks.tuning_replay fit         the gain relative to a plan's time: factors of `expected_saving`
    python -m benchmarks.tuning_replay play [--out FOLDER] [--networks NAME …] [--seconds 60] [--ranks 2]

The package's plan database records for a choice the milliseconds of the heuristic's plan, and
those of the best. Unmeasured choices take the two figures, relative to the machine's least time,
of a measured problem of the same kind and about the same least time. The `Tuner`, its `Budget` and the
`Contest` are the package's; the costs of their parts and of a change of plans, and the losers' times, are assumed
(the constants below). With the policy and constants at that time ResNet-18 came to 35 choices in 27 s, 2.1 s spent, 3
changes, where an H200 took 31 s, 2.85 s and 3 for 39 choices (benchmarks/results/tuning_resnet18-2026-11-23.json).
Each network is played with the factors that `fit` derives from the other networks' problems only.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean, median
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import plan_problems
from benchmarks.common import write
from benchmarks.plan_problems import NETWORKS, drafted
from benchmarks.tuning import without_database
from lamina.backends import OpenChoice, Plan, TuningSlices
from lamina.backends.cuda.select import formulations
from lamina.backends.cuda.select.expected import FACTORS, expected_saving, headroom
from lamina.backends.cuda.select.target import target_of
from lamina.cudnn import database, read_database
from lamina.cudnn.contest import Contest
from lamina.graph import Executable, Graph, compile
from lamina.graph.planning.cost import least_seconds
from lamina.graph.planning.program import PlannedStep, Slot
from lamina.graph.run import tuning
from lamina.graph.run.rank_tuning import RankTuner
from lamina.graph.run.timeline import StepTime, next_call
from lamina.graph.run.tuning import Tuner
from lamina.nn import init, models
from lamina.runtime import Device, Machine
from lamina.spec import Group, Policy, Spec, float32, uint8

#: The open choices in the networks' training steps.
FILE = Path(__file__).with_name("tuning_choices.json.gz")
BATCH = 128
#: Seconds on the host and the device for the parts of a contest: each copy of the operands; a candidate's first run,
#: with the checks of its writes; each measurement beside its runs (ResNet-18's, on an H200).
PLACED, FIRST, TIMED = 4e-4, 9e-4, 2e-4
#: Fraction and additional seconds of first runs in which the library loads something new.
LOADS, LOADED = 0.05, 15e-3
#: Seconds that pass at each reading of the clock.
READ = 1e-7
#: Copies of the operands.
COPIES = 4
#: Seconds of a thread for making a choice's candidates, and for binding and recording a kernel again.
MADE, BOUND = 1.0, 3e-4
THREADS = 4
#: Fraction of the limit reached by kernels without open choices; scatter of measurements.
REACHED, NOISE = 0.7, 0.005
#: Losers take between the best time and this multiple of it.
SLOWEST = 3.0
#: cuBLASLt algorithms that compete if a product may use it; without a GPU none is enumerated.
_PRODUCTS = 6
#: A kind with this few problems has half the weight, the other half is that of all kinds.
_FEW = 10
#: Seconds at which the curve is reported.
MARKS = (0, 5, 10, 20, 30, 60)


# ------------------------------------------------------------------------------------------------------ open choices


@dataclass(frozen=True)
class Recorded:
    """A choice of a network.

    problem: a number, the same for equal problems. kind: the op. count: how many steps of the program use the plan.
    least: the seconds that the machine needs. held, best: seconds of the heuristic's plan and of the fastest; 0 if
    unmeasured. candidates: how many compete.
    """

    problem: int
    kind: str
    count: int
    least: float
    held: float
    best: float
    candidates: int


@dataclass(frozen=True)
class Network:
    """A training step: its open choices, and the number and least seconds of its other steps."""

    name: str
    rest: int
    rest_least: float
    choices: tuple[Recorded, ...]

    @property
    def record(self) -> list[Any]:
        """As JSON."""
        rows = [[c.problem, c.kind, c.count, c.least, c.held, c.best, c.candidates] for c in self.choices]
        return [self.name, self.rest, self.rest_least, rows]

    @staticmethod
    def of(record: Sequence[Any]) -> Network:
        """From `record`."""
        name, rest, least, rows = record
        return Network(name, rest, least, tuple(Recorded(*row) for row in rows))


def collect(names: Iterable[str] = NETWORKS, told: Callable[[str], None] = print) -> list[Network]:
    """The open choices in the training steps of networks, with the times in the database."""
    device = Device("cuda", machine=Machine.named("h200"))
    (file,) = database.FOLDER.glob("NVIDIA-H200-9.19.json.gz")
    known, numbers = read_database(file), dict[tuple[str, tuple[int, ...]], int]()
    found = []
    for name in names:
        kept: list[Executable] = []

        def planned(
            at: Device, graph: Graph, options: dict[str, Any], kept: list[Executable] = kept
        ) -> Executable:
            given = {k: v for k, v in options.items() if k != "backend"}
            kept.append(compile(graph, at, **given))
            return compile(graph, "cpu", **{**options, "backend": "null"})

        builder = models.builders()[name]
        image = Spec((BATCH, builder.channels, builder.size, builder.size), float32)
        with (
            without_database(),
            drafted(),
            init.skipped(),
            mock.patch.object(plan_problems, "planned_for", planned),
        ):
            try:
                plan_problems.train(builder(builder.channels, builder.classes), image, device)
            except (ValueError, TypeError) as error:
                told(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]:.200}")
                continue
            found.append(_opened(name, kept[0], known, numbers))
        measured = sum(c.held > 0 for c in found[-1].choices)
        told(f"{name}: {len(found[-1].choices)} choices, {measured} of them measured")
    return found


def _opened(
    name: str,
    executable: Executable,
    known: database.PlanDatabase,
    numbers: dict[tuple[str, tuple[int, ...]], int],
) -> Network:
    machine = executable.device.machine
    rest, least, rows = 0, 0.0, dict[OpenChoice, Recorded]()
    for step in executable.program.steps:
        choice = step.plan.open
        if choice is None:
            rest += not step.plan.view
            least += 0.0 if step.plan.view else least_seconds(step, machine)
        elif choice in rows:
            rows[choice] = replace(rows[choice], count=rows[choice].count + 1)
        else:
            problem, chosen = choice.candidates.args[:2]  # type: ignore[attr-defined]
            place = problem.place
            held = known.placed(place.nature).get(place.sizes)
            times = (0.0, 0.0) if held is None else (held.heuristic / 1e3, held.milliseconds / 1e3)
            rows[choice] = Recorded(
                numbers.setdefault((place.nature, place.sizes), len(numbers)),
                problem.op,
                1,
                least_seconds(step, machine),
                *(times if times[0] else (0.0, 0.0)),
                _count(problem, chosen, executable.device),
            )
    return Network(name, rest, least, tuple(rows.values()))


def _count(problem: formulations.Problem, chosen: formulations.Candidate, device: Device) -> int:
    """The number of competing candidates."""
    names = {way.name for way in problem.formulations}
    products = _PRODUCTS * (problem.op == "matmul" or "product" in names)
    drawn = formulations.drawn(problem, target_of(device), Policy(), 1 << 32)
    return min(formulations._MOST_FEW, products + len({one.choice for one in drawn} | {chosen.choice}))


def keep(networks: Sequence[Network], file: Path = FILE) -> None:
    """Store them."""
    text = json.dumps([one.record for one in networks], separators=(",", ":"))
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def read(file: Path = FILE) -> list[Network]:
    """Read the file of `keep`."""
    return [Network.of(record) for record in json.loads(gzip.decompress(file.read_bytes()))]


# ------------------------------------------------------------------------------------------------- expectations


def distinct(networks: Iterable[Network]) -> dict[int, Recorded]:
    """The measured problems, by number."""
    return {c.problem: c for network in networks for c in network.choices if c.held}


def completed(network: Network, others: Mapping[int, Recorded]) -> Network:
    """The network with times for the unmeasured choices: those of a measured problem of the kind (of any, if the
    kind has none), drawn from the five of nearest least time and scaled to the choice's own.
    """

    def timed(choice: Recorded) -> Recorded:
        if choice.held:
            return choice
        alike = [o for o in others.values() if o.kind == choice.kind] or list(others.values())
        alike.sort(key=lambda o: abs(math.log(o.least / choice.least)))
        like = random.Random(choice.problem).choice(alike[:5])
        scale = choice.least / like.least
        return replace(choice, held=like.held * scale, best=like.best * scale)

    return replace(network, choices=tuple(timed(c) for c in network.choices))


def fit(problems: Iterable[Recorded]) -> dict[str, float]:
    """The factors of `expected_saving`: the expected total gain of a kind's problems is the measured one.

    Kinds with few problems are shrunk towards the mean of all.
    """
    sums: dict[str, tuple[float, float, int]] = defaultdict(lambda: (0.0, 0.0, 0))
    for p in problems:
        for kind in (p.kind, ""):
            won, room, count = sums[kind]
            sums[kind] = won + (1 - p.best / p.held), room + headroom(p.held, p.least), count + 1
    usual = sums[""][0] / sums[""][1]
    return {
        kind: (won + _FEW * usual * room / count) / (room + _FEW * room / count)
        for kind, (won, room, count) in sums.items()
        if room
    }


# ------------------------------------------------------------------------------------------------------- the replay


@dataclass
class Clock:
    """Seconds that pass under the control of the replay."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += READ
        return self.now


@dataclass(frozen=True)
class Trial:
    """A candidate in a contest, and its seconds."""

    label: str
    seconds: float
    workspace: int = 0


class RecordedContest(Contest):
    """A contest without running candidates: their times are known, and pass by the clock, with noise."""

    def __init__(self, clock: Clock, draw: random.Random) -> None:
        self.clock, self.draw = clock, draw
        self.copies: list[Any] = [None]
        self.device: Any = SimpleNamespace(statistics=lambda: SimpleNamespace(cached=0))
        self.expected = []

    def place(self) -> Generator[str, None, None]:
        for _ in range(1, COPIES):
            yield "place"
            self.clock.now += PLACED
            self.copies.append(None)

    def _bind(self, entry: Any, copied: Any) -> Any:
        return entry

    def _give_room(self, entries: Sequence[Any], refusals: list[str]) -> list[Any]:
        return list(entries)

    def _poison(self, workspace: int) -> None:
        pass

    def _close(self) -> None:
        pass

    def _first(self, one: Any) -> float:
        self.clock.now += FIRST + one.entry.seconds + LOADED * (self.draw.random() < LOADS)
        return 1e3 * float(one.entry.seconds)

    def _verdict(self, workspace: int) -> str:
        return ""

    def _time(self, one: Any, runs: int = 0) -> float:
        milliseconds = 1e3 * one.entry.seconds
        count = runs or max(1, min(40, int(0.5 / milliseconds)))
        self.clock.now += TIMED + count * one.entry.seconds
        return float(milliseconds * self.draw.gauss(1.0, NOISE))


class RecordedThreads(tuning.TuningThreads):
    """Threads that take a given time for each task by the clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(THREADS)
        self.clock, self._free = clock, [0.0] * THREADS

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        number = min(range(THREADS), key=lambda i: self._free[i])
        self._free[number] = done = max(self._free[number], self.clock.now) + MADE
        return _Timed(task(), done, self.clock)


class _Timed(Future[Any]):
    """A result that is available from a certain time on."""

    def __init__(self, found: Any, at: float, clock: Clock) -> None:
        super().__init__()
        self.at, self.clock = at, clock
        self.set_result(found)

    def done(self) -> bool:
        return self.clock.now >= self.at


@dataclass(eq=False)
class RecordedProgram:
    """The interface of a training step for a `Tuner`, whose steps take the recorded times of their plans."""

    network: Network
    factors: Mapping[str, float]
    clock: Clock
    device: Any
    ranks: int = 1
    program: Any = field(init=False)
    memory_limit: None = None
    peak_bytes: int = 0
    is_stamped: bool = False

    def __post_init__(self) -> None:
        draw = random.Random(self.network.name)
        steps = []
        for choice in self.network.choices:
            plan = _plan(choice, self.factors, self.clock, draw)
            steps += [_step(plan, choice.least, self.device.machine)] * choice.count
        rest = max(1, self.network.rest)
        each = self.network.rest_least / rest
        still = Plan((), (), _make, seconds=each / REACHED + self.device.machine.launch_seconds)
        steps += [_step(still, each, self.device.machine, collective=self.ranks > 1)] * rest
        self.program = SimpleNamespace(steps=steps, name=self.network.name)

    @property
    def seconds(self) -> float:
        """Of a run with the current plans."""
        return sum(step.plan.seconds for step in self.program.steps)

    def change_plans(self, better: Mapping[Plan, Plan]) -> bool:
        """As `Executable.change_plans`."""
        steps = [replace(s, plan=better.get(s.plan, s.plan)) for s in self.program.steps]
        self.program = SimpleNamespace(steps=steps, name=self.program.name)
        self.clock.now += BOUND * len(steps)
        self.is_stamped = False
        return True

    def __call__(self) -> None:
        timeline = next_call()
        if timeline is not None:
            self.clock.now += 0.0 if self.is_stamped else 2 * BOUND * len(self.program.steps)
            self.is_stamped = True
            times = [StepTime(0, 0, round(1e9 * step.plan.seconds)) for step in self.program.steps]
            timeline.add_call("step", self.program.steps, times, 0, 1)
        self.clock.now += self.seconds


def _make(call: Any) -> Any:
    raise NotImplementedError("nothing runs in a replay")


def _step(plan: Plan, least: float, machine: Machine, *, collective: bool = False) -> PlannedStep:
    """A step that moves as many bytes as take the machine `least` seconds."""
    spec = Spec((max(1, round(least * machine.bandwidth)),), uint8)
    op = SimpleNamespace(effect="collective", name="all_reduce", flops=lambda: 0)
    node: Any = SimpleNamespace(op=op, inputs=(), origin="") if collective else None
    return PlannedStep(plan, (Slot(spec, "input"),), (), node)


def _plan(choice: Recorded, factors: Mapping[str, float], clock: Clock, draw: random.Random) -> Plan:
    """The heuristic's plan, with an open choice."""
    losers = max(0, choice.candidates - 1 - (choice.best < choice.held))
    times = [choice.best * SLOWEST ** draw.uniform(0.02, 1.0) for _ in range(losers)]
    times += [choice.best] * (choice.best < choice.held)
    draw.shuffle(times)
    trials = [Trial("held", choice.held), *(Trial(str(i), t) for i, t in enumerate(times))]

    def contest(made: Any, room: int) -> TuningSlices:
        yield "place"
        clock.now += PLACED
        found = yield from RecordedContest(clock, draw).slices(trials, refusals=[])
        assert found is not None
        won, milliseconds = found
        if won is trials[0]:
            return None
        return replace(winner, seconds=won.seconds), choice.held - milliseconds / 1e3

    def adopted(made: Any, room: int) -> TuningSlices:
        pair = [trials[0], min(trials, key=lambda trial: trial.seconds)]
        yield "place"
        clock.now += PLACED
        yield from RecordedContest(clock, draw).slices(pair, refusals=[])
        return replace(winner, seconds=pair[1].seconds), choice.held - pair[1].seconds

    winner = Plan((), (), _make, record="faster")
    expected = partial(expected_saving, choice.kind, factors=factors)
    open_choice = OpenChoice(
        lambda: None,
        contest,
        expected,
        name=str(choice.problem),
        adopting=lambda record: OpenChoice(lambda: None, adopted),
    )
    return Plan((), (), _make, seconds=choice.held, open=open_choice)


@dataclass(frozen=True)
class Played:
    """A replay. steps: when each ended, how long it took, and how long the step alone would have taken, in seconds.

    tuned: seconds of the fully tuned step. spent: seconds of tuning.
    """

    network: str
    steps: tuple[tuple[float, float, float], ...]
    tuned: float
    spent: float
    settled: float
    state: str

    @property
    def figures(self) -> dict[str, Any]:
        """Its figures, with regret and remaining possible gain per step in milliseconds at MARKS.

        throughput: steps relative to those of the tuned step. lost_while_tuning: the fraction of the time, until
        nothing was open, that was spent outside of steps.
        """
        ends = [end for end, _, _ in self.steps]
        at = {
            mark: self.steps[min(np.searchsorted(ends, mark), len(ends) - 1)][2]
            for mark in MARKS
            if mark <= ends[-1] + 1
        }
        took = [seconds for _, seconds, _ in self.steps]
        busy = [(a, b) for end, a, b in self.steps if end <= self.settled]
        return {
            "regret": {mark: round(step / self.tuned, 4) for mark, step in at.items()},
            "left_ms": {mark: round(1e3 * (step - self.tuned), 4) for mark, step in at.items()},
            "throughput": len(took) * self.tuned / ends[-1],
            "p99_over_p50": float(np.percentile(took, 99)) / median(took),
            "lost_while_tuning": sum(a - b for a, b in busy) / max(sum(a for a, _ in busy), 1e-9),
            "spent_s": self.spent,
            "settled_s": self.settled,
            "state": self.state,
        }


@dataclass
class SimulatedRank:
    """One of several ranks that train together, each in a thread with its own clock: all wait for the last one."""

    place: int
    clock: Clock
    world: list[SimulatedRank]
    meeting: threading.Barrier
    value: Any = None

    @property
    def ranks(self) -> Group:
        """All of them."""
        return Group(tuple(range(len(self.world))))

    def wait(self) -> None:
        """As in a collective operation."""
        self.meeting.wait()
        last = max(rank.clock.now for rank in self.world)
        self.meeting.wait()
        self.clock.now = last

    def gather_objects(self, value: object) -> list[Any]:
        """Each rank's value."""
        self.value = value
        self.wait()
        found = [rank.value for rank in self.world]
        self.meeting.wait()
        return found


def play(
    network: Network,
    factors: Mapping[str, float] = FACTORS,
    seconds: float = 60.0,
    machine: str = "h200",
    ranks: int = 1,
) -> Played:
    """Train a network, all of whose choices have times, for this many seconds by the clock; the first rank's view.

    factors: the expected gain of contests (`fit`). ranks: how many train together.
    """
    world: list[SimulatedRank] = []
    meeting = threading.Barrier(ranks, timeout=60.0)
    world += [SimulatedRank(place, Clock(), world, meeting) for place in range(ranks)]
    with ThreadPoolExecutor(ranks) as threads:
        runs = [threads.submit(_trained, network, factors, seconds, machine, rank) for rank in world]
        first, *_ = [run.result() for run in runs]
        return first


def _trained(
    network: Network, factors: Mapping[str, float], seconds: float, machine: str, rank: SimulatedRank
) -> Played:
    """The part of `play` for one rank."""
    clock, ranks = rank.clock, len(rank.world)
    device: Any = SimpleNamespace(
        machine=Machine.named(machine),
        default_stream=SimpleNamespace(synchronize=lambda: None),
        memory_info=lambda: SimpleNamespace(free=1 << 36),
    )
    program: Any = RecordedProgram(network, factors, clock, device, ranks)
    steps, settled = [], seconds
    tuner = Tuner(clock=clock) if ranks == 1 else RankTuner(rank, clock=clock)
    tuner._workers = RecordedThreads(clock)
    while clock.now < seconds:
        began = clock.now
        with tuner.before(program):
            program()
        rank.wait()
        steps.append((clock.now, clock.now - began, program.seconds))
        if tuner.state.done and not tuner.state.open:
            settled = min(settled, clock.now)
    tuned = (
        program.seconds - sum(s.plan.seconds for s in program.program.steps) + _tuned(network, device.machine)
    )
    return Played(network.name, tuple(steps), tuned, tuner.state.seconds, settled, str(tuner.state))


def _tuned(network: Network, machine: Machine) -> float:
    rest = network.rest_least / REACHED + machine.launch_seconds * max(1, network.rest)
    return rest + sum(min(c.best, c.held) * c.count for c in network.choices)


def judge(
    networks: Sequence[Network], names: Collection[str] = NETWORKS, seconds: float = 60.0, ranks: int = 1
) -> dict[str, Any]:
    """The networks of these names, each with factors from the others' problems."""
    measured = distinct(networks)
    found = {}
    for network in (one for one in networks if one.name in names):
        own = {c.problem for c in network.choices}
        others = {n: p for n, p in measured.items() if n not in own}
        factors = fit(others.values())
        found[network.name] = play(completed(network, others), factors, seconds, ranks=ranks).figures
    return {"networks": found, "all": summary(list(found.values()))}


def summary(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Over networks: geometric means and the worst."""
    marks = figures[0]["regret"]
    return {
        "regret": {mark: round(geometric_mean(f["regret"][mark] for f in figures), 4) for mark in marks},
        "worst_regret": {mark: max(f["regret"][mark] for f in figures) for mark in marks},
        "throughput": mean(f["throughput"] for f in figures),
        "least_throughput": min(f["throughput"] for f in figures),
        "p99_over_p50": max(f["p99_over_p50"] for f in figures),
        "lost_while_tuning": mean(f["lost_while_tuning"] for f in figures),
        "spent_s": mean(f["spent_s"] for f in figures),
        "settled_s": mean(f["settled_s"] for f in figures),
    }


# ------------------------------------------------------------------------------------------------------ the command


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("collect", "fit", "play"))
    parser.add_argument("--networks", nargs="*", default=NETWORKS, help="of collect and play")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ranks", type=int, default=1, help="of play: so many that train together")
    parser.add_argument("--out", type=Path, help="folder of play's result file")
    options = parser.parse_args(arguments)
    if options.what == "collect":
        keep(collect(options.networks))
    elif options.what == "fit":
        print({kind: round(f, 2) for kind, f in fit(distinct(read()).values()).items()})
    else:
        record = judge(read(), options.networks, options.seconds, options.ranks)
        if options.out is not None:
            write("tuning_replay", record, options.out)
        print(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
