"""The slowest tests of a run: `python -m tools.slowest build/results/test.xml [--note TEXT]`.

Reads pytest's report (--junitxml) and writes benchmarks/results/slowest_tests-<date>.json, from which
`python -m tools.figures` fills the table in docs/testing.md. Cases of one test count together.
"""

from __future__ import annotations

import argparse
import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import processor, write

#: Rows of the table.
COUNT = 20


def slowest(report: Path, count: int = COUNT) -> dict[str, Any]:
    """The slowest tests, the number and seconds of all tests, and the duration of the run."""
    root = ElementTree.parse(report).getroot()
    found: dict[str, list[float]] = defaultdict(list)
    for case in root.iter("testcase"):
        name = case.get("name", "").partition("[")[0]
        file = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        found[f"{file}.py::{name}"].append(float(case.get("time", 0)))
    ranked = sorted(found.items(), key=lambda item: -sum(item[1]))[:count]
    times = [time for test in found.values() for time in test]
    return {
        "tests": len(times),
        "seconds": round(sum(times), 1),
        "run_seconds": round(sum(float(suite.get("time", 0)) for suite in root.iter("testsuite")), 1),
        "rows": [
            {"test": name, "cases": len(t), "seconds": round(sum(t), 1), "longest": round(max(t), 1)}
            for name, t in ranked
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.slowest", description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--note", default="", help="what is to be known of the run")
    given = parser.parse_args(arguments)
    record = {"processor": processor(), "note": given.note, **slowest(given.report)}
    print(write("slowest_tests", record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
