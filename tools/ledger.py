"""The ledger: which features of docs/features.md are proven, by which tests, on the CPU and on a GPU.

    python -m tools.ledger                                  rows and their tests
    pytest --junitxml=cpu.xml && python -m tools.ledger --results cpu.xml
    pytest -m gpu --junitxml=gpu.xml                        several result files may be given

Prints every row, those without a test as open, writes docs/ledger.md, and fails (exit status 1) on a marker that
names no row or on a row with a failed test. Tests are found by reading the source of tests/, nothing is imported.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"\| ([FB]\d{3}) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|")
RANK = ("failed", "not run", "skipped", "passed")  # the first of these among a row's tests is the row's state


@dataclass(frozen=True)
class Row:
    """One line of the ledger."""

    id: str
    level: str
    feature: str


@dataclass(frozen=True)
class Test:
    """A test function: its file's module path, its name (with its class), the rows it names, its markers."""

    module: str
    name: str
    rows: tuple[str, ...]
    gpu: bool

    @property
    def id(self) -> str:
        """As pytest writes it: tests/nn/test_conv.py::test_shapes."""
        return f"{self.module.replace('.', '/')}.py::{self.name.replace('.', '::')}"


class LedgerError(ValueError):
    """An invalid marker or table; the message names the file and the row."""


def read_rows(text: str) -> dict[str, Row]:
    """The rows of the table in docs/features.md, by id. Raises LedgerError on a repeated id."""
    rows: dict[str, Row] = {}
    for number, level, feature, _ in ROW.findall(text):
        if number in rows:
            raise LedgerError(f"row {number} stands twice in the ledger")
        rows[number] = Row(number, level.strip(), feature.strip())
    return rows


def read_tests(folder: Path) -> list[Test]:
    """Every test under a folder that carries a `feature` marker."""
    return [test for file in sorted(folder.rglob("test_*.py")) for test in _file_tests(file, folder.parent)]


def _file_tests(file: Path, root: Path) -> Iterator[Test]:
    module = ".".join(file.relative_to(root).with_suffix("").parts)
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    yield from _tests_in(tree.body, module, "", _assigned_marks(tree.body))


def _tests_in(body: Iterable[ast.stmt], module: str, prefix: str, outer: list[ast.expr]) -> Iterator[Test]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            marks = [*outer, *node.decorator_list, *_assigned_marks(node.body)]
            yield from _tests_in(node.body, module, f"{prefix}{node.name}.", marks)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            marks = [*outer, *node.decorator_list, *_parameter_marks(node)]
            rows = tuple(dict.fromkeys(row for mark in marks for row in _features(mark, module)))
            if rows:
                yield Test(module, prefix + node.name, rows, any(_mark_name(m) == "gpu" for m in marks))


def _assigned_marks(body: Iterable[ast.stmt]) -> list[ast.expr]:
    """The marks in `pytestmark = mark` or `pytestmark = [mark, …]`."""
    marks: list[ast.expr] = []
    for node in body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "pytestmark" for t in node.targets):
            marks += node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
    return marks


def _parameter_marks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Marks inside `pytest.param(…, marks=…)` of a function's decorators that name rows."""
    calls = (n for d in function.decorator_list for n in ast.walk(d) if isinstance(n, ast.Call))
    values = (k.value for call in calls for k in call.keywords if k.arg == "marks")
    marks = [m for v in values for m in (v.elts if isinstance(v, ast.List | ast.Tuple) else [v])]
    return [m for m in marks if _mark_name(m) == "feature"]


def _mark_name(mark: ast.expr) -> str:
    """ "feature" for pytest.mark.feature(…), "gpu" for pytest.mark.gpu, "" for anything else."""
    target = mark.func if isinstance(mark, ast.Call) else mark
    inner = target.value if isinstance(target, ast.Attribute) else None
    is_mark = isinstance(inner, ast.Attribute) and inner.attr == "mark"
    return target.attr if is_mark and isinstance(target, ast.Attribute) else ""


def _features(mark: ast.expr, module: str) -> list[str]:
    if _mark_name(mark) != "feature":
        return []
    arguments = mark.args if isinstance(mark, ast.Call) else []
    names = [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if not names or len(names) != len(arguments):
        raise LedgerError(f"{module}, line {mark.lineno}: feature() takes row ids as plain strings")
    return names


def check(rows: Mapping[str, Row], tests: Iterable[Test]) -> list[str]:
    """One message for each marker that names an unknown row."""
    return [f"{t.id}: no row {r} in the ledger" for t in tests for r in t.rows if r not in rows]


def read_results(file: Path) -> dict[str, str]:
    """The outcome of each test function in a JUnit file: the worst of its parametrized cases."""
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(file).iter("testcase"):
        name = f"{case.get('classname', '')}.{case.get('name', '').split('[')[0]}"
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        outcomes[name] = worst([outcome, outcomes.get(name, outcome)])
    return outcomes


def worst(outcomes: Iterable[str]) -> str:
    """The decisive outcome among several; "" if there is none."""
    return min(outcomes, key=RANK.index, default="")


def state(row: str, tests: Iterable[Test], results: Mapping[str, str], *, gpu: bool) -> str:
    """A row's state on one kind of device: "" untested, or the worst outcome of its tests there."""
    own = [t for t in tests if row in t.rows and t.gpu == gpu]
    return worst(results.get(f"{t.module}.{t.name}", "not run") for t in own)


def coverage(rows: Mapping[str, Row], tests: Sequence[Test]) -> str:
    """The text of docs/ledger.md: it depends only on the rows and the tests, not on a run."""
    proven = {r for t in tests for r in t.rows}
    lines = [
        "# The ledger and its tests",
        "",
        "Written by `python -m tools.ledger`; the rows are explained in [features.md](features.md).",
        "",
        f"{len(proven)} of {len(rows)} rows have a test. Open: {', '.join(_open(rows, tests)) or 'none'}.",
        "",
        "| id | level | feature | CPU tests | GPU tests |",
        "|---|---|---|---|---|",
    ]
    for row in rows.values():
        cells = [
            "<br>".join(_short(t) for t in tests if row.id in t.rows and t.gpu == g) for g in (False, True)
        ]
        if not any(cells):
            cells[0] = "open"
        lines.append(f"| {row.id} | {row.level} | {row.feature} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def _open(rows: Iterable[str], tests: Iterable[Test]) -> list[str]:
    """Rows without a test."""
    proven = {r for t in tests for r in t.rows}
    return [row for row in rows if row not in proven]


def _short(test: Test) -> str:
    return f"`{test.id.removeprefix('tests/')}`"


def report(rows: Mapping[str, Row], tests: Sequence[Test], results: Mapping[str, str]) -> str:
    """The printed report: a line per row with its state, its tests below it."""
    lines = []
    for row in rows.values():
        own = [t for t in tests if row.id in t.rows]
        cpu, gpu = (state(row.id, tests, results, gpu=g) for g in (False, True))
        cpu = cpu if own else "open"
        lines.append(f"{row.id}  CPU {cpu or '-':8}  GPU {gpu or '-':8}  {row.level}: {row.feature}")
        lines += [f"        {t.id}" for t in own]
    proven = {r for t in tests for r in t.rows}
    lines.append(f"{len(proven)} of {len(rows)} rows have a test")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.ledger", description=__doc__.split("\n")[0])
    parser.add_argument("--results", type=Path, action="append", default=[], help="a JUnit file of pytest")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository (default: this one)")
    parser.add_argument("--check", action="store_true", help="only check the markers, write nothing")
    options = parser.parse_args(arguments)
    rows = read_rows((options.root / "docs/features.md").read_text(encoding="utf-8"))
    tests = read_tests(options.root / "tests")
    wrong = check(rows, tests)
    if not options.check:
        results = _merge(read_results(file) for file in options.results)
        print(report(rows, tests, results))
        (options.root / "docs/ledger.md").write_text(coverage(rows, tests), encoding="utf-8")
        wrong += [f"row {r}: a test of it failed" for r in rows if _failed(r, tests, results)]
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


def _merge(results: Iterable[Mapping[str, str]]) -> dict[str, str]:
    merged: dict[str, str] = {}
    for result in results:
        for name, outcome in result.items():
            merged[name] = worst([outcome, merged.get(name, outcome)])
    return merged


def _failed(row: str, tests: Iterable[Test], results: Mapping[str, str]) -> bool:
    return "failed" in (state(row, tests, results, gpu=g) for g in (False, True))


if __name__ == "__main__":
    sys.exit(main())
