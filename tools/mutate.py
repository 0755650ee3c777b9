"""Put faults into the source, one line at a time, and see whether the tests of the same chapter find them.

    python -m tools.mutate --count 60 --seed 1                 random faults, one report line each
    python -m tools.mutate --only src/lamina/optim --count 20  in some files
    python -m tools.mutate --list --count 10                   shows faults without running anything
    python -m tools.mutate --jobs 15 --without build/results/test.xml   many at a time, on a machine with cores for it
    python -m tools.mutate --seconds 600 --timeout 120         a figure within ten minutes, of as many as fit
    python -m tools.mutate --reach map.json --timeout 150      200 faults within the hour

A fault is a changed comparison, operator, condition or number. It is put into a copy of the tree;
the tree itself is not touched. The tests run in this order: those named after the module, those in its folder that
name it, the rest of its chapter (its first folder; for backends the second), and those one level above; the first
failure ends the run. A fault that passes all of them is a survivor: either nothing tests the line, or the fault
makes no difference. Chapters of ops, layers and conversion also have the judges of `tests/judges`. Slow tests
count, too, and comparisons with PyTorch if it is installed (`--marks` selects others).

Generated code is left out, and so is code that makes no difference by construction: annotations, texts, decorators of
classes, sizes of caches, stack levels of warnings, `strict=True` of `zip` (an assertion), branches for type checkers,
and inputs of the tests (`samples`, `examples`, `variants` and `domains` of an op, and names that are used only
there).

A fault whose tests take longer than `--timeout`, or than the rest of `--seconds`, is undecided: survivors take
the longest, so the share of found faults among those tried is a lower bound. If all tests that reach it have
passed by then (`--reach`), it counts as a survivor. The figure comes with its 95 % interval (Wilson's). The exit
status is 1 if fewer than `--least` percent are found. `--forks` first tries all faults in forks of processes that
have imported the tests of a chapter, for a tenth of `--timeout` each, and the remaining ones as without it.

With `--reach` each fault first runs only those tests of its chapter that execute its expression, those named after
the module first, then the fastest; and last, for a minute, those of other chapters that do. They are determined by
one run of the tests in a copy where each such expression is a probe; the result is stored in the named file and
reused the next time. Test files that are new or have changed by then are run again, alone; a changed helper
is not noticed. Processes started by a test count as the test. Not detected: results that another test of the file
has computed before, or that an import by another file has (functions' caches are emptied between files), and
processes that run another copy of the package. So all tests named after the module follow, and after those of a line
that runs at import the whole chapter, first the files of the whole package (tables of defaults), then the fastest;
faults that none of these finds are survivors.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import importlib
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src/lamina")
#: Generated, or only a list of names.
GENERATED = {PACKAGE / "c/cudnn.py", PACKAGE / "c/dnnl.py", PACKAGE / "c/errors.py"}
#: Files that tests read besides the source.
COPIED = (
    ".ci", "benchmarks", "codegen", "docs", "examples", "src", "tests", "tools", "CHANGELOG.md", "CONTRIBUTING.md",
    "CITATION.cff", "DESIGN.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "pyproject.toml",
)  # fmt: skip
#: Values, dtypes, layouts and gradients of all ops on all backends.
EVERY_OP = Path("tests/ops/test_ops.py")
#: Defaults of the package, and numbers of its modules and classes, which are executed at import.
TABLES = ("tests/test_constants.py", "tests/test_signatures.py")
#: Test suites of other libraries: in these chapters each judge is a test, too.
JUDGES, JUDGED = Path("tests/judges"), ("ops", "nn", "convert")
#: The default selection: the tests that each change must pass, with PyTorch's if it is installed.
MARKS = "not gpu" + ("" if importlib.util.find_spec("torch") else " and not torch")
#: Inputs of tests, not tested code.
EXAMPLES = ("samples", "examples", "variants", "domains")
#: Stands for a test's name. On a busy machine it may not be the fault's doing, so it counts for neither side.
TIMEOUT = "TIMEOUT"
#: Number of test files that are imported first, before all others of a chapter.
FEW = 8
#: Seconds for tests of other chapters that reach a fault: faults not found by then are survivors.
ELSEWHERE = 60.0
#: Not tried, as the time was over.
LEFT_OUT = "LEFT OUT"
#: Stands for a test's name: an expression that runs when its module is imported.
IMPORT = ""
#: The module called by probes. It is beside the package, where other processes find it too.
PROBE = "lamina_probe"
#: The variable that tells all processes which test is running, including pytest processes started by a test.
RUNNING = "LAMINA_MUTATE_TEST"
#: The module's text.
PROBE_TEXT = f"""
import os

seen = set()


def hit(number):
    if number not in seen:
        seen.add(number)
        record = os.open(os.path.dirname(__file__) + "/reached", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(record, f"{{number}} {{os.environ.get('{RUNNING}', '')}}\\n".encode())
        os.close(record)
"""
COMPARISONS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}  # fmt: skip
OPERATORS = {
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*"), ast.Div: ("/", "*"),
    ast.Mod: ("%", "*"), ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """Characters `start` to `end` of a line, to be replaced by `new`; `nth`: among the file's lines with that
    text."""

    file: Path
    line: int
    start: int
    end: int
    new: str
    text: str = ""
    nth: int = 0

    def apply(self, text: str) -> str:
        """The file's text with the fault in it."""
        lines = text.splitlines(keepends=True)
        raw = lines[self.line - 1].encode()  # columns of the syntax tree count bytes
        lines[self.line - 1] = (raw[: self.start] + self.new.encode() + raw[self.end :]).decode()
        return "".join(lines)

    @property
    def key(self) -> str:
        """Its identifier, which stays the same when other lines of the file change."""
        return f"{self.file}:{self.nth}:{self.start}:{self.new}:{self.text}"

    def show(self, text: str) -> str:
        """The place, and the line before and after."""
        old, new = (t.splitlines()[self.line - 1].strip() for t in (text, self.apply(text)))
        return f"{self.file}:{self.line}\n    - {old}\n    + {new}"


# ------------------------------------------------------------------------------------------------------- faults


def faults_of(file: Path, text: str) -> list[Fault]:
    """All possible faults of a file, in the order of its lines."""
    tree = ast.parse(text)
    parts = [*_examples(tree), *(part for node in ast.walk(tree) for part in _unrun(node))]
    skipped = {inner for part in parts for inner in ast.walk(part)}
    skipped |= {n for n in ast.walk(tree) if isinstance(n, ast.If) and n.test in skipped}  # its negation
    lines, seen = [], Counter[str]()
    for line in text.splitlines():
        lines.append((line.strip(), seen[line.strip()]))
        seen[line.strip()] += 1
    found = [
        Fault(file, *place, new, *lines[place[0] - 1])
        for node in ast.walk(tree)
        if node not in skipped
        for place, new in _changes(node, text)
    ]
    return sorted(found, key=lambda f: (f.line, f.start, f.new))


def _unrun(node: ast.AST) -> Iterator[ast.AST]:
    """Parts that do not affect the results of a program: annotations, texts, options of a dataclass, cache sizes."""
    if isinstance(node, ast.ClassDef):
        yield from node.decorator_list
    if isinstance(node, ast.Call) and _name(node.func) in ("lru_cache", "cache"):
        yield from (*node.args, *(k.value for k in node.keywords if k.arg == "maxsize"))
    if isinstance(node, ast.Call):
        unseen = (
            "stacklevel",
            *(("strict",) if _name(node.func) == "zip" and _is_true(node, "strict") else ()),
        )
        yield from (k.value for k in node.keywords if k.arg in unseen)
    if isinstance(node, ast.If) and any(_name(n) == "TYPE_CHECKING" for n in ast.walk(node.test)):
        yield node.test
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
        yield node.returns
    if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
        yield node.annotation
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ):
        yield node


def _name(node: ast.AST) -> str:
    """The last part of a dotted name, "" for anything else."""
    return str(getattr(node, "attr", "") or getattr(node, "id", ""))


def _is_true(call: ast.Call, option: str) -> bool:
    values = [k.value for k in call.keywords if k.arg == option]
    return any(isinstance(value, ast.Constant) and value.value is True for value in values)


def _examples(tree: ast.Module) -> list[ast.AST]:
    """The test inputs of ops, and private names of the module that serve only these."""
    found: list[ast.AST] = [
        method
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if any(name in EXAMPLES for name in _defined(method))
    ]
    private = {name: node for node in tree.body for name in _defined(node) if name.startswith("_")}
    grown = bool(found)
    while grown:
        inside = {n for part in found for n in ast.walk(part)}
        uses: dict[str, list[bool]] = {}
        for n in ast.walk(tree):
            if isinstance(n, ast.Name | ast.Attribute) and isinstance(n.ctx, ast.Load):
                uses.setdefault(_name(n), []).append(n in inside)
        more = [node for name, node in private.items() if node not in inside and all(uses.get(name, [False]))]
        found += more
        grown = bool(more)
    return found


def _defined(node: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]


Place = tuple[int, int, int]  # line, first column, one past the last column


def _changes(node: ast.AST, text: str) -> Iterator[tuple[Place, str]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _operator(node.left, node.comparators[0], COMPARISONS.get(type(node.ops[0])), text)
    elif isinstance(node, ast.BinOp):
        yield from _operator(node.left, node.right, OPERATORS.get(type(node.op)), text)
    elif isinstance(node, ast.BoolOp):
        names = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        yield from _operator(node.values[0], node.values[1], names, text)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield (node.lineno, node.col_offset, node.col_offset + len("not")), ""
    elif isinstance(node, ast.If | ast.IfExp | ast.While) and _one_line(node.test):
        line, start, end = _place(node.test)
        yield (line, start, end), f"(not ({_lines(text)[line - 1][start:end].decode()}))"
    elif isinstance(node, ast.Constant):
        yield from _constant(node)


def _constant(node: ast.Constant) -> Iterator[tuple[Place, str]]:
    if isinstance(node.value, bool):
        yield _place(node), str(not node.value)
    elif isinstance(node.value, int | float) and _one_line(node):
        yield _place(node), repr(node.value + 1)


def _operator(
    left: ast.expr, right: ast.expr, names: tuple[str, str] | None, text: str
) -> Iterator[tuple[Place, str]]:
    """The operator between two operands on one line; parentheses may be there, too."""
    if names is None or left.end_lineno != right.lineno or left.end_col_offset is None:
        return
    between = _lines(text)[right.lineno - 1][left.end_col_offset : right.col_offset].decode()
    if match := re.search(r"\s+".join(map(re.escape, names[0].split())), between):
        first = left.end_col_offset + len(between[: match.start()].encode())
        yield (right.lineno, first, first + len(match[0].encode())), names[1]


@functools.lru_cache(maxsize=2)
def _lines(text: str) -> list[bytes]:
    """Columns of the syntax tree count bytes."""
    return [line.encode() for line in text.splitlines()]


def _one_line(node: ast.expr) -> bool:
    return node.lineno == node.end_lineno


def _place(node: ast.expr) -> Place:
    assert node.end_col_offset is not None
    return node.lineno, node.col_offset, node.end_col_offset


def sources(root: Path, only: Sequence[str]) -> Iterator[Path]:
    """The package's files, relative to the root."""
    for file in sorted((root / PACKAGE).rglob("*.py")):
        relative = file.relative_to(root)
        if relative not in GENERATED and (not only or any(str(relative).startswith(name) for name in only)):
            yield relative


def choose(root: Path, count: int, seed: int, only: Sequence[str] = ()) -> list[Fault]:
    """Random faults; at most one per line, with files weighted by their eligible lines.

    The seed gives every line a number by its text, and each of its faults one. Those with the smallest are taken, so
    that a change of the source preserves the sample, except for added and removed lines.
    """
    by_line: dict[tuple[str, str, int], list[Fault]] = {}
    for file in sources(root, only):
        for fault in faults_of(file, (root / file).read_text(encoding="utf-8")):
            by_line.setdefault((str(file), fault.text, fault.nth), []).append(fault)

    def drawn(*what: object) -> bytes:
        return hashlib.sha256(repr((seed, *what)).encode()).digest()

    places = sorted(by_line, key=lambda place: drawn(*place))[:count]
    return [min(by_line[place], key=lambda f: drawn(*place, f.start, f.new)) for place in places]


# ---------------------------------------------------------------------------------------------------------- runs


def tests_for(root: Path, file: Path) -> list[str]:
    """Test files of a module's chapter, those most likely to find a fault first."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    folder = Path("tests", *parts[:-1])
    chapter = Path("tests", *parts[: 2 if parts[0] == "backends" else 1]) if len(parts) > 1 else folder
    files = [*(root / chapter).rglob("test_*.py"), *(root / chapter.parent).glob("test_*.py")]
    if chapter == Path("tests"):
        files = [*(root / "tests").glob("test_*.py")]
    found = {f.relative_to(root) for f in files}
    if parts[0] == "backends" and (root / EVERY_OP).exists():
        found.add(EVERY_OP)
    if parts[0] in JUDGED:
        found |= {f.relative_to(root) for f in (root / JUDGES).glob("test_*.py")}
    dotted = ".".join(("lamina", *parts))

    def rank(test: Path) -> tuple[bool, bool, bool, str]:
        text = (root / test).read_text(encoding="utf-8")
        return not _named_after(file, test), dotted not in text, test.parent != folder, str(test)

    return [str(test) for test in sorted(found, key=rank)]


def _named_after(file: Path, test: Path) -> bool:
    name = test.stem.removeprefix("test_").removeprefix("gpu_")
    return name == file.stem.lstrip("_") and test.parent == "tests" / file.parent.relative_to(PACKAGE)


def found_by(
    root: Path,
    fault: Fault,
    timeout: float,
    broken: set[str] | None = None,
    reaching: Sequence[str] | None = None,
    marks: str = MARKS,
) -> str:
    """The test that finds a fault in a copy of the tree; TIMEOUT; "" if all pass.

    broken: tests that fail without any fault. They find nothing; newly discovered ones are added.
    reaching: tests that execute it, the fastest first.
    marks: the selection among them.
    """
    broken = set() if broken is None else broken
    chapter, end = tests_for(root, fault.file), time.monotonic() + timeout
    for tests in _stages(fault.file, chapter, reaching):
        left = max(end - time.monotonic(), 1.0)
        by = _found_among(root, fault, tests, left, broken, marks)
        if by == TIMEOUT and reaching is not None and "::" not in tests[0] and tests[0] not in TABLES:
            return ""  # all that reach it have passed; the following ones only may
        if by:
            return by
    others = [t for t in reaching or () if "::" in t and t.partition("::")[0] not in chapter]
    by = _found_among(root, fault, others, min(timeout, ELSEWHERE), broken, marks)
    return "" if by == TIMEOUT else by


def _stages(file: Path, chapter: list[str], reaching: Sequence[str] | None) -> Iterator[list[str]]:
    """The successive runs of a chapter: tests that reach the fault, then files.

    Few files at first: they find most faults, and importing the tests of a chapter takes longer than running many of
    them.
    """
    if reaching is None:
        yield from filter(None, (chapter[:FEW], chapter[FEW:]))
        return
    if IMPORT in reaching and (tables := [table for table in TABLES if table in chapter]):
        yield tables
    close = near(file, chapter, reaching)
    files = list(dict.fromkeys(test.partition("::")[0] for test in close))
    own = [test for test in files if _named_after(file, Path(test))]
    others = [test for test in files if test not in own]
    for some in filter(None, (own, others[:FEW], others[FEW:])):
        yield [test for test in close if test.partition("::")[0] in some]
    if (
        IMPORT in reaching
    ):  # files follow after the tests, the fastest first; defaults are in tables of the package
        late = {test: place for place, test in enumerate(reaching)}
        yield sorted(
            chapter,
            key=lambda test: (
                not _named_after(file, Path(test)),
                Path(test).parent != Path("tests"),
                late.get(test, -1),
            ),
        )
    else:
        yield [test for test in chapter if _named_after(file, Path(test))]


def near(file: Path, chapter: list[str], reaching: Sequence[str]) -> list[str]:
    """Tests of a chapter that reach a fault of a file, those named after it first."""
    tests = [test for test in reaching if "::" in test and test.partition("::")[0] in chapter]
    return sorted(tests, key=lambda test: not _named_after(file, Path(test.partition("::")[0])))


def _found_among(
    root: Path, fault: Fault, tests: Sequence[str], timeout: float, broken: set[str], marks: str
) -> str:
    target = root / fault.file
    text = target.read_text(encoding="utf-8")
    while tests:
        target.write_text(fault.apply(text), encoding="utf-8")
        by = _first_failure(root, tests, timeout, broken, marks)
        target.write_text(text, encoding="utf-8")
        if by in ("", TIMEOUT) or "::" not in by or not _first_failure(root, [by], timeout, (), marks):
            return by
        broken.add(by)
    return ""


def _first_failure(
    root: Path, tests: Sequence[str], timeout: float, broken: Iterable[str], marks: str = MARKS
) -> str:
    """The first test that fails, or the end of the output if none is named; TIMEOUT; "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "--tb=no", "-p", "no:cacheprovider", "-m", marks]
    left_out = [word for test in sorted(broken) for word in ("--deselect", test)]
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    if files != list(tests):  # too many for a command line
        (root / "order").write_text("\n".join(tests), encoding="utf-8")
        command += ["-p", "tools.mutate", "--order", str(root / "order")]
    try:
        done = subprocess.run(
            [*command, *left_out, *files],
            cwd=root,
            env=environment(root),
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return TIMEOUT
    if done.returncode in (0, 5):  # 5: none was selected
        return ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return failed[1] if failed else (done.stdout + done.stderr).strip()[-80:]


def environment(root: Path) -> dict[str, str]:
    """Processes started by tests write no bytecode either: it is valid for any text of the same size and second."""
    return {
        **os.environ,
        "PYTHONPATH": f"{root / 'src'}:{root}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


# --------------------------------------------------------------------------------------------------------- reach


def probed(text: str, numbered: Iterable[tuple[int, Fault]]) -> str:
    """A file's text in which the smallest expression around each fault reports, before its value, that it is
    reached."""
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.expr)]
    put: list[tuple[int, int, bytes]] = []
    for number, fault in numbered:
        first, last = _around(nodes, fault)
        put += (*first, f"(__import__('{PROBE}').hit({number}) or (".encode()), (*last, b"))")
    for line, column, new in sorted(put, reverse=True):
        lines[line - 1] = lines[line - 1][:column] + new + lines[line - 1][column:]
    return b"".join(lines).decode()


def _around(nodes: Iterable[ast.expr], fault: Fault) -> tuple[tuple[int, int], tuple[int, int]]:
    """Start and end of the smallest expression that contains a fault."""
    places = [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)) for node in nodes
    ]
    first, last = (fault.line, fault.start), (fault.line, fault.end)
    around = [place for place in places if place[0] <= first and last <= place[1]]
    return min(around, key=lambda place: ((-place[0][0], -place[0][1]), place[1]))


def at_import(text: str, fault: Fault) -> bool:
    """Whether a fault is outside of function bodies, so that importing the module executes it."""
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.Lambda)]
    bodies = [node.body if isinstance(node.body, list) else [node.body] for node in functions]
    place = fault.line, fault.start
    return not any(
        (body[0].lineno, body[0].col_offset)
        <= place
        < (body[-1].end_lineno or 0, body[-1].end_col_offset or 0)
        for body in bodies
    )


def reach(
    copy: Path,
    chosen: Sequence[Fault],
    tests: Sequence[str] = ("-n", "2", "--dist", "worksteal"),
    marks: str = MARKS,
) -> None:
    """Run tests in a copy with probes: `reached` and `report.xml` are written to its `src`."""
    numbered: dict[Path, list[tuple[int, Fault]]] = {}
    for number, fault in enumerate(chosen):
        numbered.setdefault(fault.file, []).append((number, fault))
    for file, faults in numbered.items():
        text = (copy / file).read_text(encoding="utf-8")
        (copy / file).write_text(probed(text, faults), encoding="utf-8")
    (copy / "src" / f"{PROBE}.py").write_text(PROBE_TEXT, encoding="utf-8")
    (copy / "src/reached").touch()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-p",
        "tools.mutate",
        "-m",
        marks,
    ]
    subprocess.run(
        [*command, f"--junit-xml={copy / 'src/report.xml'}", *tests],
        cwd=copy,
        env=environment(copy),
        check=False,
    )


def reaching(copy: Path, chosen: Sequence[Fault], root: Path) -> dict[str, dict[str, float]]:
    """The tests that reached each fault in `reach`, by its key, with their seconds.

    Failed tests are left out. IMPORT is among them if importing a module executes the fault; root: the tree
    without probes.
    """
    cases = ElementTree.parse(copy / "src/report.xml").iter("testcase")
    seconds = {_name_of(case): float(case.get("time", 0)) for case in cases if not _failed(case)}
    reached: dict[int, set[str]] = {number: set() for number in range(len(chosen))}
    for line in (copy / "src/reached").read_text(encoding="utf-8").splitlines():
        which, _, test = line.partition(" ")
        reached[int(which)].add(test)
    found = {}
    for number, fault in enumerate(chosen):
        tests = reached[number]
        early = IMPORT in tests or at_import((root / fault.file).read_text(encoding="utf-8"), fault)
        found[fault.key] = {IMPORT: 0.0} if early else {}
        found[fault.key] |= {t: seconds[t] for t in sorted(tests) if t in seconds}
    return found


def _quickest_first(seconds: dict[str, float]) -> list[str]:
    """Tests by their time, and by that of their files: the setup of a file should not be repeated."""
    files: dict[str, float] = {}
    for test, time_ in seconds.items():
        files[test.partition("::")[0]] = files.get(test.partition("::")[0], 0.0) + time_
    return sorted(seconds, key=lambda t: (files[t.partition("::")[0]], t.partition("::")[0], seconds[t], t))


def _seconds_of_files(copy: Path) -> dict[str, float]:
    """The time of each file's tests in `reach`."""
    found: dict[str, float] = {}
    for case in ElementTree.parse(copy / "src/report.xml").iter("testcase"):
        name = _name_of(case).partition("::")[0]
        found[name] = found.get(name, 0.0) + float(case.get("time", 0))
    return found


def reach_of(
    file: Path, folder: Path, chosen: Sequence[Fault], marks: str = MARKS, jobs: int = 2
) -> dict[str, list[str]]:
    """The tests that reach each fault, the fastest first, from a file; then, for code that runs at import, all files.

    Created if the file does not exist, in `jobs` processes; test files that are new or have changed since are
    run again.
    """
    now = {
        str(test.relative_to(ROOT)): hashlib.sha256(test.read_bytes()).hexdigest()
        for test in sorted((ROOT / "tests").rglob("test_*.py"))
    }
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"files": {}, "reached": {}}
    if missing := [fault.key for fault in chosen if known["files"] and fault.key not in known["reached"]]:
        raise SystemExit(f"{file} is of other faults: it lacks {missing[0]}")
    changed = [test for test, text in now.items() if known["files"].get(test) != text]
    if changed:
        copy = copy_to(folder / "probed")
        several = ("-n", str(jobs), "--dist", "worksteal")
        reach(copy, chosen, (*several, *(changed if known["files"] else ())), marks)
        for key, tests in reaching(copy, chosen, ROOT).items():
            before = known["reached"].get(key, {})
            known["reached"][key] = {
                t: n for t, n in before.items() if t.partition("::")[0] not in changed
            } | tests
        known["seconds"] = known.get("seconds", {}) | _seconds_of_files(copy)
        file.write_text(json.dumps({**known, "files": now}, indent=1) + "\n", encoding="utf-8")
    files = sorted(known["seconds"], key=lambda test: float(known["seconds"][test]))
    reached = {fault.key: known["reached"][fault.key] for fault in chosen}
    return {k: _quickest_first(tests) + files * (IMPORT in tests) for k, tests in reached.items()}


# ------------------------------------------------------------------------------------------------ a plugin of pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--order", type=Path, help="a file of names: only these tests, in this order")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    order: Path | None = config.getoption("--order")
    if order is None:
        return
    place = {name: i for i, name in enumerate(order.read_text(encoding="utf-8").split("\n"))}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in place])
    items[:] = sorted((i for i in items if i.nodeid in place), key=lambda item: place[item.nodeid])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Tell all processes which test is running."""
    os.environ[RUNNING] = item.nodeid
    try:
        return (yield)
    finally:
        del os.environ[RUNNING]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Reset the probes for each test, and for each file the caches filled by other files."""
    if probe := sys.modules.get(PROBE):
        probe.seen.clear()
        if item.config.stash.get(_file, None) != item.path:
            item.config.stash[_file] = item.path
            forget()


_file = pytest.StashKey[Path]()


def forget() -> None:
    """Empty the caches of the package's functions, except those of libraries and devices, which are shared."""
    for name, module in list(sys.modules.items()):
        if name.startswith("lamina.") and name.split(".")[1] not in ("c", "cudnn", "onednn", "runtime"):
            for value in vars(module).values():
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()


# ------------------------------------------------------------------------------------------------------- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--skip", type=int, default=0, help="faults at the start that are left out, to go on later"
    )
    parser.add_argument("--upto", type=int, help="what stands behind so many is left for later")
    parser.add_argument("--marks", default=MARKS, help="which tests count, as pytest's -m")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for the tests of one fault")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="for all; what does not fit is left out"
    )
    parser.add_argument("--least", type=float, default=92.0, help="percent that must be found")
    parser.add_argument("--only", action="append", default=[], help="the start of a path; may be given again")
    parser.add_argument("--list", action="store_true", help="show the faults, run nothing")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time, each in a copy of its own")
    parser.add_argument(
        "--without", type=Path, help="a JUnit report of a run without faults: what failed there finds nothing"
    )
    parser.add_argument(
        "--forks", action="store_true", help="with --reach: in forks of one process first (tools/patched.py)"
    )
    parser.add_argument(
        "--reach",
        type=Path,
        help="tests that execute each fault run first: a file of them, made where missing",
    )
    options = parser.parse_args(arguments)
    everything = choose(ROOT, options.count, options.seed, options.only)
    chosen = everything[options.skip : options.upto]
    if options.list:
        for fault in chosen:
            print(fault.show((ROOT / fault.file).read_text(encoding="utf-8")))
        return 0
    broken = failed_in(options.without) if options.without else set[str]()
    with tempfile.TemporaryDirectory(prefix="lamina-mutate-") as folder:
        place, marks = Path(folder), options.marks
        known = (
            reach_of(options.reach, place, everything, marks, max(2, options.jobs)) if options.reach else None
        )
        found = dict[str, str]()
        if options.forks and known is not None:
            attempts = importlib.import_module("tools.patched").attempts
            found = attempts(place, ROOT, chosen, known, options.timeout / 10, marks, options.jobs)
        rest = [fault for fault in chosen if fault.key not in found]
        results = [
            *found.values(),
            *run(place, rest, options.timeout, options.jobs, broken, options.seconds, known, marks),
        ]
    text, percent = figure(results)
    print(text)
    return 0 if percent >= options.least else 1


def figure(results: Sequence[str]) -> tuple[str, float]:
    """A summary of the results of `run`, and the percentage of the decided faults that was found."""
    tried = [by for by in results if by != LEFT_OUT]
    late = tried.count(TIMEOUT)
    found, decided = sum(map(bool, tried)) - late, len(tried) - late
    low, high = interval(found, decided)
    percent = 100 * found / max(1, decided)
    text = (
        f"{found} of {decided} faults were found: {percent:.1f} % (95 %: {100 * low:.0f} to {100 * high:.0f})"
    )
    if late:
        text += (
            f"; {late} were not decided in time: at least {100 * found / len(tried):.1f} % of {len(tried)}"
        )
    if len(tried) < len(results):
        text += f"; {len(results) - len(tried)} were left out"
    return text, percent


def interval(found: int, of: int) -> tuple[float, float]:
    """Wilson's interval of a share at 95 %."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, found / of
    middle, width = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(0.0, (middle - width) / (1 + z * z / of)), min(1.0, (middle + width) / (1 + z * z / of))


def failed_in(report: Path) -> set[str]:
    """The tests that failed in a JUnit report, as pytest names them."""
    return {_name_of(case) for case in ElementTree.parse(report).iter("testcase") if _failed(case)}


def _failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def _name_of(case: ElementTree.Element) -> str:
    return f"{_file_of(case.get('classname', ''))}::{case.get('name')}"


def _file_of(dotted: str) -> str:
    """tests.nn.test_conv.TestPadding -> tests/nn/test_conv.py::TestPadding."""
    words = dotted.split(".")
    module = next((i for i, word in enumerate(words) if word.startswith("test_")), len(words) - 1)
    return "::".join(["/".join(words[: module + 1]) + ".py", *words[module + 1 :]])


def run(
    folder: Path,
    chosen: Sequence[Fault],
    timeout: float,
    jobs: int = 1,
    broken: set[str] | None = None,
    seconds: float = math.inf,
    known: dict[str, list[str]] | None = None,
    marks: str = MARKS,
) -> list[str]:
    """Try all faults, `jobs` at a time, each in a copy of the tree; print each; returns the results of `found_by`.

    seconds: for all of them; faults that are undecided by then only for lack of time are LEFT_OUT.
    known: by the keys of faults, the tests that reach them.
    """
    end = time.monotonic() + seconds
    broken = set() if broken is None else broken
    copies: Queue[Path] = Queue()
    for job in range(min(jobs, len(chosen))):
        copies.put(copy_to(folder / str(job)))

    def attempt(numbered: tuple[int, Fault]) -> str:
        if time.monotonic() >= end:
            return LEFT_OUT
        (number, fault), copy, start = numbered, copies.get(), time.monotonic()
        limit = min(timeout, end - start)
        try:
            by = found_by(copy, fault, limit, broken, None if known is None else known[fault.key], marks)
        finally:
            copies.put(copy)
        if by == TIMEOUT and limit < timeout:
            return LEFT_OUT
        text = (ROOT / fault.file).read_text(encoding="utf-8")
        seconds = time.monotonic() - start
        print(f"{number}/{len(chosen)} {by or 'SURVIVED'} ({seconds:.0f} s) {fault.show(text)}", flush=True)
        return by

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        return list(pool.map(attempt, enumerate(chosen, 1)))


def copy_to(copy: Path) -> Path:
    """A copy of the tree, with the artifacts built for its tests."""
    copy.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, copy / name)
    if (ROOT / "build").exists():
        (copy / "build").symlink_to((ROOT / "build").resolve())
    return copy


if __name__ == "__main__":
    sys.exit(main())
