"""Build the package's plan database from the results of `plan_contests`, and judge the nearest problem's plans.

    python -m benchmarks.plan_database CONTESTS.jsonl … --about about.json     adds them to the package's database
    python -m benchmarks.plan_database CONTESTS.jsonl … --judge [FILE]         leaves each problem out in turn

Judging: a problem's plan is taken from its nearest neighbor as "auto" would, the problem itself left out, and its
time is compared with the best one's (regret). If the neighbor's choice is no correct candidate of the problem, or
won by too little, the heuristic's first plan counts. If that is a Lamina kernel by the current rules, it counts as
the heuristic's, regardless of the measured one. It needs cuDNN 9.19 and a libcuda, with or without devices.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.plan_contests import lines_of
from benchmarks.plan_problems import Request, choices_noted, drafted
from lamina import backends
from lamina.backends import NoKernel
from lamina.backends.cuda.select import formulations
from lamina.backends.cuda.select.known import ProblemPlace, distance, gains
from lamina.cudnn import Choice, PlanDatabase, StoredChoice, database, read_database
from lamina.runtime import Device, Machine
from lamina.spec import Spec

#: The formulation used only by "fastest": it rounds twice.
LEFT_OUT = "halved"
#: Distance bounds to compare.
BOUNDS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Measured:
    """A measured problem.

    given: the first operand. first: the heuristic's choice. times: milliseconds of the correct candidates, by choices
    without times.
    """

    place: ProblemPlace
    op: str
    given: Spec
    best: Choice
    first: Choice
    times: Mapping[Choice, float]

    @property
    def known(self) -> bool:
        """Whether the heuristic's plan was correct, so that there is a time to compare with."""
        return self.first in self.times


def measured(lines: Iterable[Mapping[str, Any]]) -> list[Measured]:
    """The problems of results that have a place in the database; of repeated measurements the last one counts.

    A problem with a newer formulation that did not compete then is left out: it may be the best.
    """
    lines = list(lines)
    problems = problems_of([Request.of(line["request"]) for line in lines])
    found: dict[ProblemPlace, Measured] = {}
    for line in lines:
        for one in line.get("contests", ()):
            problem = problems.get(one["problem"])
            if problem is None or not problem.kind or is_outdated(problem, one["key"]):
                continue
            times = {
                choice(*row[:3]): float(row[3]) for row in (*one["times"], one["best"]) if row[0] != LEFT_OUT
            }
            if not times:
                continue
            best = choice(*one["best"][:3])
            best = best if best in times else min(times, key=lambda x: times[x])
            first = first_of(problem, choice(*one["first"]), times)
            won = Choice(best.formulation, best.engine, best.knobs, times[best], times.get(first, 0.0))
            op = one["problem"].split("(")[0].split()[0]
            found[problem.place] = Measured(problem.place, op, problem.inputs[0], won, first, times)
    return list(found.values())


def is_outdated(problem: formulations.Problem, key: str) -> bool:
    """Whether a formulation of the problem was not among the competitors, which are at the end of the key."""
    competed = key.rpartition("ways=")[2].split(",")
    return any(one.name not in competed for one in problem.formulations)


def first_of(problem: formulations.Problem, measured: Choice, times: Collection[Choice]) -> Choice:
    """The heuristic's choice: its first formulation if that is a Lamina kernel, else the one when it was measured."""
    one = problem.formulations[0]
    own = Choice(one.name)
    return own if one.graph is None and own in times else measured


def choice(formulation: str, engine: int, knobs: Iterable[Sequence[int]]) -> Choice:
    """From JSON."""
    return Choice(formulation, engine, tuple((k, v) for k, v in knobs))


def problems_of(requests: Iterable[Request], device: Device | None = None) -> dict[str, formulations.Problem]:
    """Every problem that arises in requests, by its key.

    device: by default an absent H200; on a present one nothing is timed.
    """
    device = device or Device("cuda", machine=Machine.named("h200"))
    algorithm = "fastest" if device.planned else "auto"
    problems: dict[str, formulations.Problem] = {}
    with drafted():
        for request in requests:
            policy = replace(request.policy, algorithm=algorithm)
            with choices_noted() as found, suppress(NoKernel):
                backends.get(device).plan(request.op, request.specs, policy)
            problems |= {problem.key: problem for problem in found}
    return problems


# --------------------------------------------------------------------------------------------------- the database


def add(found: Sequence[Measured], about: Mapping[str, Any], folder: Path) -> Path:
    """Add to the folder's database of the GPU and cuDNN that `about` names; returns its file."""
    entries = [StoredChoice("", one.best, one.place.nature, one.place.sizes) for one in found]
    facts = {key: about[key] for key in ("device", "driver", "cudnn", "host", "versions", "date")}
    made = PlanDatabase.of(
        about["device"], about["cudnn"], entries, {about["date"]: facts}, engines_of(found)
    )
    path = folder / database.file_name(made.device, made.cudnn)
    if path.exists():
        made = read_database(path).merged(made)
    folder.mkdir(exist_ok=True)
    made.save(path)
    return path


def engines_of(found: Iterable[Measured]) -> dict[str, tuple[int, int]]:
    """For each of cuDNN's engines the problems that it competed in, and those where it came close to the best."""
    counts: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for one in found:
        least: dict[str, float] = {}
        for choice, milliseconds in one.times.items():
            if choice.engine >= 0:
                name = database.engine_of(
                    one.op, one.given.dtype.name, str(one.given.tag), choice.formulation, choice.engine
                )
                least[name] = min(milliseconds, least.get(name, math.inf))
        limit = database.NEAR * min(one.times.values())
        for name, milliseconds in least.items():
            competed, near = counts[name]
            counts[name] = competed + 1, near + (milliseconds <= limit)
    return dict(counts)


# --------------------------------------------------------------------------------------------------- the nearest rule


def regret(one: Measured, others: Sequence[Measured], bound: float) -> tuple[float, bool]:
    """Time of the nearest neighbor's plan over the best time, and whether the neighbor's choice was used."""
    apart, number = min(
        ((distance(one.place.sizes, other.place.sizes), number) for number, other in enumerate(others)),
        default=(math.inf, 0),
    )
    if apart <= bound and gains(best := others[number].best):
        plan = Choice(best.formulation, best.engine, best.knobs)
        if plan in one.times:
            return one.times[plan] / one.best.milliseconds, True
    return one.times[one.first] / one.best.milliseconds, False


def judge(found: Sequence[Measured], bound: float) -> dict[str, Any]:
    """Regrets of all problems, each left out in turn; the heuristic's beside them."""
    natures: dict[str, list[Measured]] = defaultdict(list)
    for one in found:
        natures[one.place.nature].append(one)
    compared = [one for one in found if one.known and one.best.milliseconds > 0]
    judged = [
        (one, *regret(one, [x for x in natures[one.place.nature] if x is not one], bound)) for one in compared
    ]
    by_op: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one, ratio, _ in judged:
        by_op[one.op].append((ratio, one.times[one.first] / one.best.milliseconds))
    return {
        "bound": bound,
        "problems": len(judged),
        "by_a_neighbour": sum(taken for *_, taken in judged),
        **_figures([(ratio, one.times[one.first] / one.best.milliseconds) for one, ratio, _ in judged]),
        "time": sum(r * one.best.milliseconds for one, r, _ in judged)
        / max(sum(one.best.milliseconds for one in compared), 1e-12),
        "time_heuristic": sum(one.times[one.first] for one in compared)
        / max(sum(one.best.milliseconds for one in compared), 1e-12),
        "ops": {op: {"problems": len(pairs), **_figures(pairs)} for op, pairs in sorted(by_op.items())},
    }


def _figures(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """For pairs (regret, the heuristic's regret): geometric means, and the 90th percentile."""
    if not pairs:
        return {}
    nearest, heuristic = (sorted(values) for values in zip(*pairs, strict=True))
    return {
        "regret": statistics.geometric_mean(nearest),
        "regret_heuristic": statistics.geometric_mean(heuristic),
        "p90": nearest[int(0.9 * (len(nearest) - 1))],
        "p90_heuristic": heuristic[int(0.9 * (len(heuristic) - 1))],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("contests", type=Path, nargs="+")
    parser.add_argument("--about", type=Path, help="what it was measured on: add it to the database")
    parser.add_argument("--folder", type=Path, default=database.FOLDER)
    parser.add_argument("--judge", type=Path, nargs="?", const=Path("/dev/stdout"), help="figures as JSON")
    options = parser.parse_args(arguments)
    found = measured(line for file in options.contests for line in lines_of(file))
    if options.judge:
        figures = [judge(found, bound) for bound in BOUNDS]
        options.judge.write_text(json.dumps(figures, indent=1) + "\n")
    if options.about:
        print(add(found, json.loads(options.about.read_text()), options.folder))


if __name__ == "__main__":
    main()
