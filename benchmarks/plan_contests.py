"""The fastest plan for each problem of a list, measured on this machine's GPU, in calls of limited time.

    python -m benchmarks.plan_contests OUT --seconds 400
    python -m benchmarks.plan_contests OUT2 --seconds 400 --after OUT/contests.jsonl     continues

Candidates of the next problems are built by processes on most cores, while a few run the contests, one at a time
on the device. A process that dies or takes too long is replaced, and the problem is recorded as failed.
OUT/contests.jsonl gets a line for each finished request of the list: the request, and for each of its contests
the key in the plan store, every correct candidate with its milliseconds, the winner and the heuristic's choice.
OUT/about.json describes the machine. Requests contained in `--after` or OUT are skipped. `plan_problems` makes
the list.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.common import processor, versions
from benchmarks.plan_problems import LIST, Request, read
from benchmarks.tuning import without_database
from lamina import backends
from lamina.backends.cuda.rnn import rnn
from lamina.backends.cuda.select import autotune, formulations
from lamina.backends.cuda.select.formulations import ContestOutcome
from lamina.c import cudnn as c
from lamina.cudnn import Choice, PlanStore
from lamina.cudnn import autotune as cudnn_autotune
from lamina.runtime import Device, usable_cores

#: Time limits of a request in seconds: for building its candidates, for its contests.
LIMITS = {"build": 150.0, "contest": 90.0}
#: Number of problems per builder that builders may be ahead: the folder of compiled plans is limited.
AHEAD = 6
#: Threads of a builder that make plans.
_THREADS = 2
#: Processes that run contests: one makes its plans while another's run.
_HOLDERS = 4
#: Lines of refusals kept of a contest.
_REASONS = 6


# ---------------------------------------------------------------------------------------------- in each process


@contextmanager
def alone(turn: Path) -> Iterator[None]:
    """Within the block no other process that names the same file uses the device; a dying process releases it."""
    with turn.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Store(PlanStore):
    """A plan store with the choices of this measurement only."""

    def __init__(self, folder: Path, known: Iterable[tuple[str, Choice]] = ()) -> None:
        super().__init__("contests", "1", folder)
        for key, choice in known:
            self.put(key, choice)


def built(request: Request, device: Device) -> dict[str, Any]:
    """Build everything that the contests of a request will run; compiled plans stay on disk."""

    def first(entries: Sequence[Any], *_: Any, **given: Any) -> tuple[Any, float] | None:
        return (entries[0], 0.0) if entries else None

    with mock.patch.object(autotune, "best", first), without_database():
        backends.get(device).plan(request.op, request.specs, request.policy)
    return {}


def contested(request: Request, device: Device) -> dict[str, Any]:
    """Run the contests of a request; the results as JSON."""
    found: list[ContestOutcome] = []
    began = time.perf_counter()
    with (
        formulations.watched(found.append),
        without_database(),
    ):  # which knows problems whose contests are short
        plan = backends.get(device).plan(request.op, request.specs, request.policy)
    seconds = round(time.perf_counter() - began, 3)
    return {"plan": plan.label, "seconds": seconds, "contests": [outcome_record(o) for o in found]}


WORK: dict[str, Callable[[Request, Device], dict[str, Any]]] = {"build": built, "contest": contested}


def outcome_record(found: ContestOutcome) -> dict[str, Any]:
    """As JSON; candidates sorted by time, each once."""
    times: dict[tuple[Any, ...], float] = {}
    for choice, milliseconds in found.times:
        name = choice_record(choice)
        held = (name[0], name[1], json.dumps(name[2]))
        times[held] = min(milliseconds, times.get(held, milliseconds))
    ranked = sorted(times.items(), key=lambda pair: pair[1])
    return {
        "key": found.key,
        "problem": found.problem.key,
        "flops": found.problem.flops,
        "first": choice_record(found.first),
        "best": [*choice_record(found.best), round(found.best.milliseconds, 6)],
        "times": [[way, engine, json.loads(knobs), round(t, 6)] for (way, engine, knobs), t in ranked],
        "refusals": len(found.refusals),
        "reasons": [reason[:200] for reason in found.refusals[:_REASONS]],
    }


def choice_record(choice: Choice) -> list[Any]:
    """Formulation, engine, knobs."""
    return [choice.formulation, choice.engine, [list(pair) for pair in choice.knobs]]


def choices(lines: Iterable[dict[str, Any]]) -> list[tuple[str, Choice]]:
    """The winners of earlier contests by key."""
    found = []
    for line in lines:
        for one in line.get("contests", ()):
            way, engine, knobs, milliseconds = one["best"]
            heuristic = next((row[3] for row in one["times"] if row[:3] == one["first"]), 0.0)
            pairs = tuple((k, v) for k, v in knobs)
            found.append((one["key"], Choice(way, engine, pairs, milliseconds, heuristic)))
    return found


def serve(
    role: str, connection: Connection, place: str, turn: Path, known: Sequence[tuple[str, Choice]]
) -> None:
    """The main function of a process: answers each request until None comes. turn: the file of `alone`."""
    contest = formulations._contest

    def held(*arguments: Any) -> Any:
        with alone(turn):
            return contest(*arguments)

    device = Device(place)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = Store(folder, known)
        for module in (formulations, rnn):
            stack.enter_context(mock.patch.object(module, "plan_store", return_value=store))
        if role == "build":
            os.nice(10)
            stack.enter_context(mock.patch.object(cudnn_autotune, "threads", return_value=_THREADS))
        stack.enter_context(mock.patch.object(formulations, "_contest", held))
        stack.enter_context(
            mock.patch.object(formulations, "outclassed", return_value=False)
        )  # all are asked again
        while (request := connection.recv()) is not None:
            try:
                answer = WORK[role](request, device)
            except Exception as error:
                answer = {"error": f"{role}: {type(error).__name__}: {' '.join(str(error).split())[:400]}"}
            device.synchronize()  # raises if a kernel broke the context: nothing more can run in this process
            connection.send(answer)


# --------------------------------------------------------------------------------------------------- processes


class Worker:
    """A process that handles one request at a time, and is replaced when it dies.

    serve: its main function. busy: the number of its current request.
    """

    def __init__(
        self,
        role: str,
        place: str,
        turn: Path,
        known: Sequence[tuple[str, Choice]] = (),
        serve: Callable[..., None] = serve,
    ) -> None:
        self.role, self.arguments, self.serve = role, (place, turn, known), serve
        self.busy: int | None = None
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(
            target=self.serve, args=(self.role, other, *self.arguments), daemon=True
        )
        self.process.start()
        other.close()
        self.deadline = float("inf")

    def give(self, number: int, request: Request) -> None:
        """Start a request."""
        self.busy, self.deadline = number, time.monotonic() + LIMITS[self.role]
        try:
            self.connection.send(request)
        except OSError:
            self.deadline = 0.0  # it died in between: the answer reports it

    def answer(self) -> dict[str, Any]:
        """Its answer, or the reason why there is none."""
        late = time.monotonic() > self.deadline
        self.busy = None
        try:
            if self.connection.poll():
                self.deadline = float("inf")
                return dict(self.connection.recv())
        except (EOFError, OSError):
            late = False
        self.close()
        code = self.process.exitcode
        self._start()
        return {"error": f"{self.role}: " + ("took too long" if late else f"the process died ({code})")}

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()
        self.connection.close()


@dataclass
class Campaign:
    """Requests in progress from the builders to the contests, in the order of the list."""

    requests: Sequence[Request]
    builders: list[Worker]
    holders: list[Worker]
    told: Callable[[int, dict[str, Any]], None]
    begun: int = 0  # by builders
    done: int = 0

    def __post_init__(self) -> None:
        self.ready: set[int] = set()

    def run(self, deadline: float) -> None:
        """Run until everything is done, or the deadline (time.monotonic) has passed."""
        while self.done < len(self.requests) and time.monotonic() < deadline:
            self._hand_out()
            workers = [w for w in (*self.builders, *self.holders) if w.busy is not None]
            soonest = min([deadline, *(w.deadline for w in workers)])
            given = {w.connection: w for w in workers}
            spoken = wait(list(given), max(0.0, soonest - time.monotonic()))
            late = [w for w in workers if time.monotonic() > w.deadline]
            for worker in {id(w): w for w in [*(given[s] for s in spoken), *late]}.values():  # type: ignore[index]
                self._take(worker)

    def _hand_out(self) -> None:
        most = self.done + AHEAD * len(self.builders)
        for worker in self.builders:
            if worker.busy is None and self.begun < min(len(self.requests), most):
                worker.give(self.begun, self.requests[self.begun])
                self.begun += 1
        for worker in self.holders:
            if worker.busy is None and self.ready:
                number = min(self.ready)
                self.ready.remove(number)
                worker.give(number, self.requests[number])

    def _take(self, worker: Worker) -> None:
        number = worker.busy
        assert number is not None
        answer = worker.answer()
        if worker.role == "build" and not answer:
            self.ready.add(number)
            return
        self.done += 1
        self.told(number, {"request": self.requests[number].record, **answer})


# --------------------------------------------------------------------------------------------------- results


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The complete lines of a file of results; none if there is no file."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # the last one, of an interrupted call
    return found


def about(device: Device) -> dict[str, Any]:
    """A description of the machine."""
    loaded = ".".join(map(str, c.library.version))
    packages = ["cuda-core", "nvidia-cudnn-cu13", "nvidia-cublas", "nvidia-cuda-nvrtc"]
    return {
        "device": device.name,
        "machine": device.machine.name,
        "driver": driver(),
        "cudnn": loaded,
        "host": processor(),
        "versions": versions(packages),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def driver() -> str:
    """The version of NVIDIA's kernel module, "" if unknown."""
    file = Path("/proc/driver/nvidia/version")
    return file.read_text().splitlines()[0].strip() if file.exists() else ""


def sampled(requests: Sequence[Request], seed: int = 0) -> list[Request]:
    """Requests of all ops in turn, each op's in random order: wherever the list is cut off, it is a fair sample."""
    by_op: dict[str, list[Request]] = {}
    for request in random.Random(seed).sample(requests, len(requests)):
        by_op.setdefault(request.op.name, []).append(request)
    return [one for turn in zip_longest(*by_op.values()) for one in turn if one is not None]


def measure(options: argparse.Namespace) -> int:
    """Process the list; returns how many requests are left."""
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "contests.jsonl"
    earlier = [line for file in (*options.after, results) for line in lines_of(file)]
    known = {json.dumps(line["request"], sort_keys=True) for line in earlier}
    requests = [r for r in read(options.list) if r.name not in known]
    requests = sampled(requests) if options.sampled else requests
    device = Device(options.device)
    (options.out / "about.json").write_text(json.dumps(about(device), indent=1) + "\n")
    began, failed = time.monotonic(), 0
    kept, turn = choices(earlier), options.out / "turn"
    builders = [Worker("build", options.device, turn) for _ in range(options.workers)]
    holders = [Worker("contest", options.device, turn, kept) for _ in range(_HOLDERS)]
    with results.open("a") as file:

        def told(number: int, line: dict[str, Any]) -> None:
            nonlocal failed
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
            failed += "error" in line
            if campaign.done % 20 == 0 or "error" in line:
                took = time.monotonic() - began
                print(
                    f"{campaign.done}/{len(requests)} done, {failed} failed, {took:.0f} s "
                    f"{line.get('error', line.get('plan', ''))[:160]}",
                    flush=True,
                )

        campaign = Campaign(requests, builders, holders, told)
        try:
            campaign.run(end)
        finally:
            for worker in (*campaign.builders, *campaign.holders):
                worker.close()
    left = len(requests) - campaign.done
    print(f"{campaign.done} done ({failed} failed), {len(known)} before, {left} left", flush=True)
    return left


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0, also if requests are left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("--seconds", type=float, default=400.0, help="ends after this time (default: 400)")
    parser.add_argument("--after", type=Path, nargs="*", default=(), help="results of earlier calls")
    parser.add_argument("--list", type=Path, default=LIST, help="the requests (default: the committed list)")
    parser.add_argument("--sampled", action="store_true", help="problems of all ops in turn, drawn at random")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--workers", type=int, default=max(1, usable_cores() - _HOLDERS), help="builders")
    measure(parser.parse_args(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
