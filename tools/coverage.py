"""Write docs/coverage.md: where each function of cuDNN was executed, by which tests, and the status of the others.

    python -m pytest -p tests.helpers.recorder --record-calls calls.txt tests/c tests/cudnn
    python -m tools.coverage --record ci calls.txt --device "no GPU"
    python -m pytest -m gpu -p tests.helpers.recorder --record-calls calls.txt
    python -m tools.coverage --record gpu calls.txt --device "NVIDIA H200"
    python -m tools.coverage                           writes the page from both recordings

A recording is a small file under tests/cudnn/recordings; it is made on the machine that ran the tests. The exit
status is 1 if a function of the recorded version was executed nowhere and returned no status on the GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from lamina.c import cudnn
from lamina.c._library import Version, version_text

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "coverage.md"
RECORDINGS = {
    kind: ROOT / "tests" / "cudnn" / "recordings" / f"cudnn_calls_{kind}.json" for kind in ("ci", "gpu")
}
SUCCESS = ("CUDNN_STATUS_SUCCESS", "returned")
EXECUTED = "executed"
#: The test that runs each pattern of docs/graph-coverage.md, with the pattern's title in brackets.
PATTERN = re.compile(r"cudnn/test_gpu_graph_cases\.py::test_what_has_a_plan_runs\[(.*)\]")
#: States of a function, in the order of the page.
GPU, CI, NEWER, REFUSED, MISSING = "on the GPU", "in CI", "newer", "not runnable", "never called"
FIRST: Version = (9, 0, 0)

HEAD = """# Every function of cuDNN, called

Written by `python -m tools.coverage` from what test runs recorded (`tests/helpers/recorder.py`); a test holds it to
the recordings. *Executed* means that the function returned `CUDNN_STATUS_SUCCESS`, or its result where it returns no
status, at least once. For the operations of the graph API see [graph-coverage.md](graph-coverage.md), for the
features and their tests [ledger.md](ledger.md).

| run | device | cuDNN | date |
|---|---|---|---|
{runs}

{total} functions in the header of {header}:

{numbers}

| function | since | state | GPU tests | CI tests |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Recording:
    """The calls of a test run.

    `calls`: function -> status -> test files; `operations`: operation of the graph API -> test files that executed
    it; `patterns`: titles of tests/helpers/cudnn/graph_cases.py that were executed.
    """

    device: str
    cudnn: str
    date: str
    calls: Mapping[str, Mapping[str, Sequence[str]]]
    operations: Mapping[str, Sequence[str]]
    patterns: Sequence[str]

    @property
    def version(self) -> Version:
        """(9, 19, 0)."""
        major, minor, patch = map(int, self.cudnn.split("."))
        return major, minor, patch

    def files(self, function: str) -> list[str]:
        """The test files in which the function succeeded."""
        found = self.calls.get(function, {})
        return sorted({file for status in SUCCESS for file in found.get(status, ())})

    def refusals(self, function: str) -> dict[str, Sequence[str]]:
        """The other statuses that it returned, with test files."""
        return {s: files for s, files in self.calls.get(function, {}).items() if s not in SUCCESS}


def record(lines: Iterable[str], *, device: str, version: Version, date: str) -> Recording:
    """The recording from the output of tests/helpers/recorder.py."""
    calls: dict[str, dict[str, set[str]]] = {}
    operations: dict[str, set[str]] = {}
    patterns: set[str] = set()
    for line in lines:
        name, status, test = line.rstrip("\n").split("\t")
        if status == EXECUTED:
            operations.setdefault(name, set()).add(test.partition("::")[0])
            patterns.update(PATTERN.findall(test))
        else:
            calls.setdefault(name, {}).setdefault(status, set()).add(test)
    return Recording(
        device,
        version_text(version),
        date,
        {name: {s: sorted(calls[name][s]) for s in sorted(calls[name])} for name in sorted(calls)},
        {name: sorted(operations[name]) for name in sorted(operations)},
        sorted(patterns),
    )


def read(path: Path) -> Recording:
    """Read a recording."""
    return Recording(**json.loads(path.read_text(encoding="utf-8")))


def write(recording: Recording, path: Path) -> None:
    """Write a recording."""
    path.write_text(json.dumps(asdict(recording), indent=1) + "\n", encoding="utf-8")


def state(function: str, ci: Recording, gpu: Recording) -> str:
    """One of the states above: where the function was executed, or the reason why not."""
    if gpu.files(function):
        return GPU
    if ci.files(function):
        return CI
    if cudnn.SINCE.get(function, FIRST) > gpu.version:
        return NEWER
    return REFUSED if gpu.refusals(function) else MISSING


def missing(ci: Recording, gpu: Recording) -> list[str]:
    """The functions that are in none of the recordings."""
    return [name for name in cudnn.SIGNATURES if state(name, ci, gpu) == MISSING]


def cell(files: Sequence[str], most: int = 2) -> str:
    """Test files in a table cell, the first ones by name."""
    rest = len(files) - most
    return "<br>".join([f"`{file}`" for file in files[:most]] + ([f"and {rest} more"] if rest > 0 else []))


def _words(function: str, ci: Recording, gpu: Recording) -> str:
    """A function's state in the table."""
    since = version_text(cudnn.SINCE.get(function, FIRST))
    statuses = ", ".join(f"`{status}`" for status in gpu.refusals(function))
    return {
        GPU: f"executed on {gpu.device}",
        CI: "executed in CI" + (f"; on {gpu.device} {statuses}" if statuses else ""),
        NEWER: f"refused: needs cuDNN {since}",
        REFUSED: f"not runnable on {gpu.device}: {statuses}",
        MISSING: "never called",
    }[state(function, ci, gpu)]


def page(ci: Recording, gpu: Recording) -> str:
    """The page's text for two recordings."""
    states = {name: state(name, ci, gpu) for name in cudnn.SIGNATURES}
    count = {
        kind: sum(found == kind for found in states.values()) for kind in (GPU, CI, NEWER, REFUSED, MISSING)
    }
    both = sum(bool(ci.files(name)) for name, found in states.items() if found == GPU)
    numbers = [
        f"{count[GPU]} executed on {gpu.device}, {both} of them in CI as well",
        f"{count[CI]} executed in CI only",
        f"{count[REFUSED]} not runnable on {gpu.device}, with the status that it gave",
        f"{count[NEWER]} newer than {gpu.cudnn}: refused by name and version (`c/test_symbols.py`)",
        f"{count[MISSING]} never called",
    ]
    head = HEAD.format(
        runs="\n".join(
            f"| {where} | {r.device} | {r.cudnn} | {r.date} |" for where, r in (("GPU", gpu), ("CI", ci))
        ),
        total=len(states),
        header=version_text(cudnn.library.header),
        numbers="\n".join(f"- {line}" for line in numbers),
    )
    return head + "".join(_row(name, ci, gpu) for name in cudnn.SIGNATURES)


def _row(name: str, ci: Recording, gpu: Recording) -> str:
    since = version_text(cudnn.SINCE[name][:2]) if name in cudnn.SINCE else ""
    refused = {file for files in gpu.refusals(name).values() for file in files}
    tests = gpu.files(name) or sorted(refused)
    cells = (f"`{name}`", since, _words(name, ci, gpu), cell(tests), cell(ci.files(name)))
    return f"| {' | '.join(cells)} |\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.coverage", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--record", nargs=2, metavar=("{ci,gpu}", "FILE"), help="make a recording of these lines"
    )
    parser.add_argument("--device", default="", help="with --record: what ran the tests")
    options = parser.parse_args(arguments)
    if options.record:
        kind, lines = options.record
        if kind not in RECORDINGS or not options.device:
            parser.error("--record takes ci or gpu, a file, and --device")
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        with open(lines, encoding="utf-8") as file:
            made = record(file, device=options.device, version=cudnn.library.version, date=today)
        write(made, RECORDINGS[kind])
        print(RECORDINGS[kind])
        return 0
    ci, gpu = (read(RECORDINGS[kind]) for kind in ("ci", "gpu"))
    PAGE.write_text(page(ci, gpu), encoding="utf-8")
    never = missing(ci, gpu)
    for name in never:
        print(f"{name} was never called", file=sys.stderr)
    print(PAGE)
    return 1 if never else 0


if __name__ == "__main__":
    sys.exit(main())
