"""Check everything that needs a GPU, in stages with time limits of their own.

    python -m tools.gpu_check OUT                                    all tests marked `gpu`, in two halves
    python -m tools.gpu_check OUT --stage '240 tests 1/2 -n 4' --stage '120 benchmarks.serving --device cuda'

A stage is a number of seconds and what runs: `tests PART/PARTS` with arguments for pytest, or a module with
arguments. A part of the tests is always the same, whatever others there are: it goes by the names of tests. What a
stage prints lies in OUT as it comes (`1-tests.log`), tests' results as JUnit XML beside it, and `summary.json` is
written anew behind every stage: status, seconds, counts and names of failed tests, last lines. A stage that takes too
long is interrupted, so that pytest writes what it has, and killed ten seconds later; the next one runs in any case.
Ends with status 1 where a stage failed or did not end.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
STAGES = ("600 tests 1/2", "600 tests 2/2")
#: Seconds that an interrupted stage has to write its results, and lines of its output in the summary.
_GRACE, _LINES = 10.0, 12


@dataclass
class Stage:
    """One stage and what became of it; status: pytest's or the module's, None before its end."""

    command: str
    limit: float
    status: int | None = None
    timed_out: bool = False
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Stage:
        """SECONDS COMMAND. Raises ValueError."""
        limit, _, command = text.partition(" ")
        if not command or not 0 < float(limit) < float("inf"):
            raise ValueError(f"a stage is 'SECONDS tests PART/PARTS …' or 'SECONDS MODULE …', got {text!r}")
        return cls(command, float(limit))

    def arguments(self, report: Path) -> list[str]:
        """What the interpreter is told."""
        module, *rest = shlex.split(self.command)
        if module != "tests":
            return ["-m", module, *rest]
        part, *rest = rest or ["1/1"]
        chosen = ["-p", "tools.gpu_check", "--part", part, f"--junitxml={report}"]
        return ["-m", "pytest", "-m", "gpu", *chosen, *rest]

    def run(self, folder: Path, number: int) -> None:
        """Run it, as long as it may; its output and report go into the folder."""
        name = f"{number}-{shlex.split(self.command)[0]}"
        log, report = folder / f"{name}.log", folder / f"{name}.xml"
        start = time.monotonic()
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *self.arguments(report)],
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
            try:
                self.status = process.wait(self.limit)
            except subprocess.TimeoutExpired:
                self.timed_out = True
                self.status = _ended(process)
            except BaseException:
                _ended(process)
                raise
        self.seconds = round(time.monotonic() - start, 1)
        self.last = log.read_text(errors="replace").splitlines()[-_LINES:]
        if report.exists():
            self.counts, self.failed = results(report)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Interrupt a stage and all that it started; kill what is left of it."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def results(report: Path) -> tuple[dict[str, int], list[str]]:
    """How many tests passed, failed and were skipped, and the names of those that failed."""
    counts, failed = {"passed": 0, "failed": 0, "skipped": 0}, []
    for case in ElementTree.parse(report).iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        kind = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
        counts[kind] += 1
        if bad:
            failed.append(f"{case.get('classname', '')}::{case.get('name', '')}".strip(":"))
    return counts, failed


def belongs(name: str, part: int, parts: int) -> bool:
    """Whether a test is in a part, counted from 1."""
    return zlib.crc32(name.encode()) % parts == part - 1


# ------------------------------------------------------------------------------------------------ a plugin of pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", help="PART/PARTS of the tests, by their names")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, parts = map(int, config.getoption("--part").split("/"))
    if not 1 <= part <= parts:
        raise pytest.UsageError(f"--part: from 1/{parts} to {parts}/{parts}, got {part}/{parts}")
    others = [item for item in items if not belongs(item.nodeid, part, parts)]
    items[:] = [item for item in items if belongs(item.nodeid, part, parts)]
    config.hook.pytest_deselected(items=others)


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
    parser.add_argument("out", type=Path, help="folder for outputs, reports and summary.json")
    parser.add_argument("--stage", action="append", type=Stage.parse, metavar="'SECONDS COMMAND'")
    given = parser.parse_args(arguments)
    stages: list[Stage] = given.stage or [Stage.parse(text) for text in STAGES]
    folder = given.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for number, stage in enumerate(stages, 1):
        print(f"{number}/{len(stages)} {stage.command} (at most {stage.limit:g} s)", flush=True)
        stage.run(folder, number)
        write(folder / "summary.json", stages)
        print(f"    {said(stage)}", flush=True)
    return int(any(stage.status != 0 for stage in stages))


def said(stage: Stage) -> str:
    """A stage's end in a line."""
    ended = "took too long" if stage.timed_out else f"status {stage.status}"
    counted = ", ".join(f"{count} {kind}" for kind, count in stage.counts.items())
    return ", ".join(filter(None, [ended, f"{stage.seconds:g} s", counted]))


def write(file: Path, stages: Sequence[Stage]) -> None:
    """The summary, also of stages that have not run."""
    record: list[dict[str, Any]] = [asdict(stage) for stage in stages]
    file.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
