"""Try faults of functions in forks of one process that has imported the tests: a pytest plugin for `tools.mutate`.

    python -m tools.mutate --forks --reach map.json --count 200
    python -m pytest -p tools.patched --faults faults.json --results results.jsonl tests/nn

Most of a fault's time goes into importing tests and libraries. Here both are imported once. For each fault a fork
gives the changed functions their new code and runs the fault's tests, in the given order, up to the
first that fails; that test must pass without the fault. The file is changed as well, for processes that tests start.
Defaults, and the values of module and class names, are changed in place; results that importing a module
computes from them are not, so faults that are not found here are tried in a process of their own.

`faults.json` is a list; each has `file`, its new content (`text`), names of `tests` (a file: all of it)
and the `seconds` of processor time for all of them. Each line of results has the fault's index in the list and

    by       the test that fails, or does not end; "" if all have passed or their time was over
    ran      number of finished tests
    seconds  of processor time
    whole    whether the fault is confined to functions: else effects of the module's import are unchanged
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import inspect
import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from types import CodeType, FunctionType
from typing import Any

import pytest

from tools.mutate import TABLES, Fault, copy_to, environment, forget, near, tests_for

#: Seconds of wall-clock time for a test per second of processor time, and additional ones.
PATIENCE = 8.0
#: Number of a chapter's files run for all of its faults, besides the tests that reach them.
FEW = 2
#: Exit status of a fork.
_PASSED, _FAILED, _LATE, _UNTRIED = 0, 1, 3, 4


def attempts(
    folder: Path,
    root: Path,
    chosen: Sequence[Fault],
    reaching: dict[str, list[str]],
    seconds: float,
    marks: str,
    jobs: int = 1,
) -> dict[str, str]:
    """The tests that find faults, by the faults' keys; faults that forks do not find are left out.

    folder: for the copies of the tree, one for each job. reaching: tests that reach each fault.
    seconds: of processor time, for each.
    """
    groups: dict[tuple[str, ...], list[tuple[Fault, list[str]]]] = {}
    for fault in chosen:
        chapter = tests_for(root, fault.file)
        tests = [*near(fault.file, chapter, reaching[fault.key]), *chapter[:FEW]]
        tests = [*(table for table in TABLES if table in chapter), *tests]
        groups.setdefault(fault.file.parts[2:-1][:2], []).append((fault, tests))
    most = math.ceil(len(chosen) / jobs)  # so that the largest chapter delays no other job
    parts = [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]
    copies: Queue[Path] = Queue()
    for job in range(min(jobs, len(parts))):
        copies.put(copy_to(folder / f"forked-{job}"))

    def attempt_all(part: Sequence[tuple[Fault, list[str]]]) -> dict[str, str]:
        copy = copies.get()
        try:
            return _attempt_in(copy, root, part, seconds, marks)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(jobs) as pool:
        found: dict[str, str] = {}
        for some in pool.map(attempt_all, parts):
            found |= some
    return found


def _attempt_in(
    copy: Path, root: Path, part: Sequence[tuple[Fault, list[str]]], seconds: float, marks: str
) -> dict[str, str]:
    """The faults found by forks of one process, for faults that share their tests' files."""
    faults = [
        {
            "file": str(fault.file),
            "text": fault.apply((root / fault.file).read_text(encoding="utf-8")),
            "tests": tests,
            "seconds": seconds,
        }
        for fault, tests in part
    ]
    (copy / "faults.json").write_text(json.dumps(faults), encoding="utf-8")
    results = copy / "results.jsonl"
    results.unlink(missing_ok=True)
    _in_forks(copy, dict.fromkeys(test.partition("::")[0] for _, tests in part for test in tests), marks)
    found: dict[str, str] = {}
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        said = json.loads(line)
        fault = part[said["place"]][0]
        print(f"{said['by'] or 'not found in a fork'} ({said['seconds']} s) {fault.key}", flush=True)
        found |= {fault.key: said["by"]} if said["by"] else {}
    return found


def _in_forks(copy: Path, files: Iterable[str], marks: str) -> None:
    """pytest over files of the copy, with this plugin."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-p",
        "tools.patched",
    ]
    command += ["-m", marks, "--faults", "faults.json", "--results", "results.jsonl", *files]
    with (copy / "forks.log").open("a", encoding="utf-8") as log:
        subprocess.run(command, cwd=copy, env=environment(copy), stdout=log, stderr=log, check=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", type=Path, help="a JSON file: a list of faults")
    parser.addoption("--results", type=Path, help="what came of each, a line of JSON")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    faults: Path | None = session.config.getoption("--faults")
    if faults is None:
        return None
    items: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        for name in (item.nodeid, item.nodeid.partition("::")[0]):
            items.setdefault(name, []).append(item)
    functions = _functions()
    broken: set[str] = set()
    with session.config.getoption("--results").open("a", encoding="utf-8") as results:
        for place, fault in enumerate(json.loads(faults.read_text(encoding="utf-8"))):
            chosen = list(dict.fromkeys(item for name in fault["tests"] for item in items.get(name, ())))
            found = attempt(session, fault, chosen, functions, broken)
            results.write(json.dumps({"place": place, **found}) + "\n")
            results.flush()
    return True


def attempt(
    session: pytest.Session,
    fault: dict[str, Any],
    items: Sequence[pytest.Item],
    functions: dict[str, list[FunctionType]],
    broken: set[str],
) -> dict[str, Any]:
    """The result of one fault; tests that fail without it are added to `broken`."""
    file, limit = Path(fault["file"]), float(fault["seconds"])
    before = file.read_text(encoding="utf-8")
    changes, whole = changed(before, fault["text"], str(file))

    def change() -> None:
        put(file, changes, functions)
        if not whole:
            rebind(file, before, fault["text"], functions)

    while True:
        chosen = [item for item in items if item.nodeid not in broken]
        file.write_text(fault["text"], encoding="utf-8")
        try:
            by, ran, seconds = _in_fork(session, chosen, limit, change)
        finally:
            file.write_text(before, encoding="utf-8")
        if by:
            failing = [item for item in chosen if item.nodeid == by]
            if _in_fork(session, failing, limit, None)[0]:
                broken.add(by)
                continue
        return {"by": by, "ran": ran, "seconds": round(seconds, 1), "whole": whole, "of": len(chosen)}


def changed(before: str, after: str, file: str) -> tuple[list[tuple[CodeType, CodeType]], bool]:
    """Code of functions before and after; whether only functions differ."""
    found: list[tuple[CodeType, CodeType]] = []
    whole = True

    def look(old: CodeType, new: CodeType) -> None:
        nonlocal whole
        if old == new:
            return
        inner = [(a, b) for a, b in zip(_codes(old), _codes(new), strict=True) if a != b]
        if old.co_flags & inspect.CO_OPTIMIZED:  # of a function, not of a module or a class
            found.append((old, new))
        elif not inner:
            whole = False
        for a, b in inner:
            look(a, b)

    look(compile(before, file, "exec", dont_inherit=True), compile(after, file, "exec", dont_inherit=True))
    return found, whole


def _codes(code: CodeType) -> list[CodeType]:
    return [value for value in code.co_consts if isinstance(value, CodeType)]


def _functions() -> dict[str, list[FunctionType]]:
    """All existing functions, by the file that defines them."""
    gc.unfreeze()
    found: dict[str, list[FunctionType]] = {}
    for value in gc.get_objects():
        if type(value) is FunctionType:
            found.setdefault(value.__code__.co_filename, []).append(value)
    gc.freeze()
    return found


def _in_fork(
    session: pytest.Session,
    items: Sequence[pytest.Item],
    limit: float,
    change: Callable[[], None] | None,
) -> tuple[str, int, float]:
    """The first item that fails or does not end, or ""; the number of finished ones; seconds of processor time."""
    if not items:
        return "", 0, 0.0
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _run(session, items, limit, change, write)
    os.close(write)
    end, seconds = time.monotonic() + PATIENCE * (limit + 10), 0.0
    status: int | None = None
    while status is None:
        done, code, usage = os.wait4(pid, os.WNOHANG)
        if done:
            status, seconds = os.waitstatus_to_exitcode(code), usage.ru_utime + usage.ru_stime
        elif time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        else:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode().splitlines()
    ran = said.count("+")
    if status == _UNTRIED:
        raise RuntimeError(f"a fault could not be put in place: {said}")
    if status in (_PASSED, _LATE):
        return "", ran, seconds
    return items[min(ran, len(items) - 1)].nodeid, ran, seconds


def _run(
    session: pytest.Session,
    items: Sequence[pytest.Item],
    limit: float,
    change: Callable[[], None] | None,
    write: int,
) -> None:
    """Runs in the fork: never returns."""
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        most = int(2 * limit) + 1  # a single test that takes longer than the limit of all does not end
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
        if change:
            change()
        forget()
        session.testsfailed = 0
        for item, following in zip(items, [*items[1:], None], strict=True):
            if time.process_time() > limit:
                os._exit(_LATE)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.testsfailed:
                os._exit(_FAILED)
            os.write(write, b"+\n")
        os._exit(_PASSED)
    except BaseException as error:
        os.write(write, repr(error).encode())
        os._exit(_UNTRIED)


def put(
    file: Path, changes: Sequence[tuple[CodeType, CodeType]], functions: dict[str, list[FunctionType]]
) -> None:
    """Give the functions of a file their new code."""
    name = ".".join(file.with_suffix("").parts[1:]).removesuffix(".__init__")
    present = functions.get(str(file.resolve()), [])
    if name not in sys.modules:
        importlib.import_module(name)  # from the file, which has the fault
        return
    for old, new in changes:
        for function in present:
            if function.__code__ == old:
                function.__code__ = new.replace(co_filename=old.co_filename)


def rebind(file: Path, before: str, after: str, functions: dict[str, list[FunctionType]]) -> None:
    """Give defaults of functions, names of a module and those of its classes the values of the new text.

    Results computed from them at import, and copies in other modules, are unchanged.
    """
    name = ".".join(file.with_suffix("").parts[1:]).removesuffix(".__init__")
    module = sys.modules.get(name)
    if module is None:
        return
    for (owner, old), (_, new) in zip(
        _statements(ast.parse(before)), _statements(ast.parse(after)), strict=True
    ):
        if isinstance(old, FUNCTION) and isinstance(new, FUNCTION):
            line = min(old.lineno, *(d.lineno for d in old.decorator_list), old.lineno)
            for function in functions.get(str(file.resolve()), []):
                if (function.__code__.co_name, function.__code__.co_firstlineno) == (old.name, line):
                    _rebind_defaults(function, old.args, new.args)
        elif ast.dump(old) != ast.dump(new) and isinstance(new, ast.Assign | ast.AnnAssign) and new.value:
            (target, *_) = new.targets if isinstance(new, ast.Assign) else [new.target]
            if isinstance(target, ast.Name):
                place = functools.reduce(getattr, owner, module)
                value = _value(new.value, vars(module))
                _rebind_name(place, target.id, value)


FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def _statements(
    body: ast.Module | ast.ClassDef, owner: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ast.stmt]]:
    """Statements of a module and of its classes, with the names of these."""
    for node in body.body:
        yield owner, node
        if isinstance(node, ast.ClassDef):
            yield from _statements(node, (*owner, node.name))


def _value(expression: ast.expr, names: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(expression), "<fault>", "eval"), names)


def _rebind_defaults(function: FunctionType, old: ast.arguments, new: ast.arguments) -> None:
    defaults = list(function.__defaults__ or ())
    for place, (a, b) in enumerate(zip(old.defaults, new.defaults, strict=True)):
        if ast.dump(a) != ast.dump(b):
            defaults[place] = _value(b, function.__globals__)
    if defaults:
        function.__defaults__ = tuple(defaults)
    for argument, x, y in zip(old.kwonlyargs, old.kw_defaults, new.kw_defaults, strict=True):
        if x and y and ast.dump(x) != ast.dump(y):
            function.__kwdefaults__ = {
                **(function.__kwdefaults__ or {}),
                argument.arg: _value(y, function.__globals__),
            }


def _rebind_name(place: Any, name: str, value: Any) -> None:
    """In a dataclass and its subclasses it is a default of the constructor as well."""
    before = vars(place).get(name)
    setattr(place, name, value)
    if not isinstance(place, type):
        return
    for made in (place, *place.__subclasses__()):
        init = vars(made).get("__init__")
        if name not in getattr(made, "__dataclass_fields__", ()) or not isinstance(init, FunctionType):
            continue
        code, given = init.__code__, list(init.__defaults__ or ())
        names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
        if name in names and given[names.index(name)] == before:
            given[names.index(name)] = value
            init.__defaults__ = tuple(given)
        if name in (init.__kwdefaults__ or {}):
            init.__kwdefaults__ = {**(init.__kwdefaults__ or {}), name: value}
