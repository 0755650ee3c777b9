"""Run everything that needs a GPU, in stages with time limits of their own.

    python -m tools.gpu_check OUT                                    all tests marked `gpu`, in two halves
    python -m tools.gpu_check OUT --stage '240 tests 1/2 -n 4' --stage '120 benchmarks.serving --device cuda'

A stage is a number of seconds and a command: `tests PART/PARTS` with arguments for pytest, or a module with
arguments. A part always contains the same tests, independent of added or removed ones: it is selected by test names.
The output of a stage is written to OUT as it comes (`1-tests.log`), with a line of JSON when a test begins and one
when it ends (`1-tests.jsonl`), so that nothing is lost with a process. A test that takes more than `--each` seconds
ends its process, as a GPU fault may; the stage then continues after it. `summary.json` is rewritten after every
stage: status, seconds, counts, names of tests that failed or did not end, last lines. A stage that takes too
long is interrupted, and killed ten seconds later; the next one runs in any case. The exit status is 1 if a stage
failed or did not end.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ("600 tests 1/2", "600 tests 2/2")
#: Seconds that an interrupted stage has to exit, and that a test has; lines of output in the summary.
_GRACE, _EACH, _LINES = 10.0, 180.0, 12
#: Characters of a test's failure text that a record keeps.
_TEXT = 3000


@dataclass
class Stage:
    """One stage and its result; status: pytest's or the module's, None before its end.

    unfinished: tests that began and did not end. runs: the number of processes it took, one after the other.
    """

    command: str
    limit: float
    status: int | None = None
    timed_out: bool = False
    seconds: float = 0.0
    runs: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Stage:
        """SECONDS COMMAND. Raises ValueError."""
        limit, _, command = text.partition(" ")
        if not command or not 0 < float(limit) < float("inf"):
            raise ValueError(f"a stage is 'SECONDS tests PART/PARTS …' or 'SECONDS MODULE …', got {text!r}")
        return cls(command, float(limit))

    def arguments(self, record: Path, each: float) -> list[str]:
        """The interpreter's arguments."""
        module, *rest = shlex.split(self.command)
        if module != "tests":
            return ["-m", module, *rest]
        part, *rest = rest or ["1/1"]
        kept = [f"--record={record}", f"--each={each:g}", f"--begun={len(lines(record))}"]
        return ["-m", "pytest", "-m", "gpu", "-p", "tools.gpu_check", "--part", part, *kept, *rest]

    def run(self, folder: Path, number: int, each: float = _EACH) -> None:
        """Run it within its time limit, in a new process after each one that a test ended; outputs go into the
        folder."""
        name = f"{number}-{shlex.split(self.command)[0]}"
        log, record = folder / f"{name}.log", folder / f"{name}.jsonl"
        start = time.monotonic()
        log.unlink(missing_ok=True)
        record.unlink(missing_ok=True)
        while True:
            before = len(results(record).unfinished)
            self.runs += 1
            self._process(self.arguments(record, each), log, self.limit - (time.monotonic() - start))
            if self.timed_out or len(results(record).unfinished) == before:
                break
        self.seconds = round(time.monotonic() - start, 1)
        self.last = log.read_text(errors="replace").splitlines()[-_LINES:]
        if record.exists():
            found = results(record)
            self.counts, self.failed, self.unfinished = found.counts, found.failed, found.unfinished

    def _process(self, arguments: Sequence[str], log: Path, limit: float) -> None:
        """One process of the stage; keeps the worst status."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
            try:
                status = process.wait(max(0.0, limit))
            except subprocess.TimeoutExpired:
                self.timed_out = True
                status = _ended(process)
            except BaseException:
                _ended(process)
                raise
        self.status = self.status or status


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Interrupt a stage and its child processes; kill those that remain."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


@dataclass
class Results:
    """Results from the tests' lines; unfinished: began and did not end."""

    counts: dict[str, int]
    failed: list[str]
    unfinished: list[str]


def lines(record: Path) -> list[dict[str, str]]:
    """A record's lines {"test": name, "outcome": "begun", "passed", "failed" or "skipped", "text": why it failed}."""
    if not record.exists():
        return []
    whole = record.read_text(errors="replace").rpartition("\n")[0]  # without an incomplete line
    return [json.loads(line) for line in whole.splitlines()]


def results(record: Path) -> Results:
    """The numbers of passed, failed and skipped tests, and the names of those that failed or did not end."""
    outcomes = {line["test"]: line["outcome"] for line in lines(record)}
    counts = {kind: list(outcomes.values()).count(kind) for kind in ("passed", "failed", "skipped")}
    failed, unfinished = (
        [name for name, outcome in outcomes.items() if outcome == kind] for kind in ("failed", "begun")
    )
    return Results(counts, failed, unfinished)


def belongs(name: str, part: int, parts: int) -> bool:
    """Whether a test belongs to a part, counted from 1."""
    return zlib.crc32(name.encode()) % parts == part - 1


# ------------------------------------------------------------------------------------------------ a plugin of pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="PART/PARTS of the tests, by their names")
    parser.addoption("--record", type=Path, help="file that each test's beginning and end are appended to")
    parser.addoption("--begun", type=int, default=0, help="lines of the record whose tests are not run again")
    parser.addoption(
        "--each", type=float, default=0.0, help="seconds that a test may take, else the process ends"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = map(int, config.getoption("--part").split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"--part: from 1/{parts} to {parts}/{parts}, got {part}/{parts}")
    record = config.getoption("--record")
    begun = {line["test"] for line in lines(record)[: config.getoption("--begun")]} if record else set()
    chosen = [item for item in items if belongs(item.nodeid, part, parts) and item.nodeid not in begun]
    others = set(items).difference(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in others])
    items[:] = chosen


_reports = pytest.StashKey[list[pytest.TestReport]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Report that a test begins and how it ended; end the process if it takes too long."""
    record: Path | None = item.config.getoption("--record")
    if record is None:
        return (yield)
    item.stash[_reports] = []
    with record.open("a") as out:
        _say(out, item, "begun")
        if each := item.config.getoption("--each"):
            faulthandler.dump_traceback_later(each, exit=True, file=2)
        try:
            result = yield
        finally:
            faulthandler.cancel_dump_traceback_later()
        reports = item.stash[_reports]
        bad = [report for report in reports if report.failed]
        outcome = "failed" if bad else "skipped" if any(r.skipped for r in reports) else "passed"
        _say(out, item, outcome, "\n".join(report.longreprtext for report in bad)[-_TEXT:])
        return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if _reports in item.stash:
        item.stash[_reports].append(report)
    return report


def _say(out: IO[str], item: pytest.Item, outcome: str, text: str = "") -> None:
    """A line, written in one piece: several processes append to one file."""
    line = {"test": item.nodeid, "outcome": outcome, **({"text": text} if text else {})}
    out.write(json.dumps(line) + "\n")
    out.flush()


# -------------------------------------------------------------------------------------------------------- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    about = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu_check",
        description=about[0],
        epilog=about[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, help="folder for outputs, records and summary.json")
    parser.add_argument("--stage", action="append", type=Stage.parse, metavar="'SECONDS COMMAND'")
    parser.add_argument(
        "--each", type=float, default=_EACH, help="seconds that a test may take (%(default)g)"
    )
    given = parser.parse_args(arguments)
    stages: list[Stage] = given.stage or [Stage.parse(text) for text in STAGES]
    folder = given.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for number, stage in enumerate(stages, 1):
        print(f"{number}/{len(stages)} {stage.command} (at most {stage.limit:g} s)", flush=True)
        stage.run(folder, number, given.each)
        write(folder / "summary.json", stages)
        print(f"    {said(stage)}", flush=True)
    return int(any(stage.status != 0 for stage in stages))


def said(stage: Stage) -> str:
    """A one-line summary of a finished stage."""
    ended = "took too long" if stage.timed_out else f"status {stage.status}"
    counts = {**stage.counts, **({"not ended": len(stage.unfinished)} if stage.unfinished else {})}
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    return ", ".join(filter(None, [ended, f"{stage.seconds:g} s", counted]))


def write(file: Path, stages: Sequence[Stage]) -> None:
    """The summary, including stages that have not run."""
    record: list[dict[str, Any]] = [asdict(stage) for stage in stages]
    file.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
