"""Faults are put where they mean something, one at a time, and tests of the chapter are chosen first."""

import ast
import shutil
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tools import mutate

SOURCE = '''"""A module with 1 docstring."""
def f(a: "list[3]" = None, *, é=1) -> int:
    """More than 2 < 3."""
    if not a and é <= 2: return -1
    while a is not None:
        a = f"{é + 1}" if é in (4,) else a * 2
    return a // 3
'''


def test_each_fault_changes_one_line_and_still_parses() -> None:
    faults = mutate.faults_of(Path("m.py"), SOURCE)
    changed = {fault.apply(SOURCE).splitlines()[fault.line - 1].strip() for fault in faults}
    for fault in faults:
        text = fault.apply(SOURCE)
        ast.parse(text)
        assert [
            i
            for i, (a, b) in enumerate(zip(text.splitlines(), SOURCE.splitlines(), strict=True), 1)
            if a != b
        ] == [fault.line]
    assert changed >= {
        'def f(a: "list[3]" = None, *, é=2) -> int:',
        "if not a or é <= 2: return -1",
        "if not a and é < 2: return -1",
        "if  a and é <= 2: return -1",
        "while a is None:",
        'a = f"{é + 1}" if é not in (4,) else a * 2',
        'a = f"{é + 1}" if é in (4,) else a // 2',
        "return a * 3",
    }
    assert {fault.line for fault in faults} == {2, 4, 5, 6, 7}  # nothing in texts


UNDRAWN = """
from functools import lru_cache

_SIZES = (3, 4)
_SHARED = (5, 6)

def _cases(n=7):
    return _more(8)

def _more(n):
    return n + 9

@lru_cache(maxsize=10)
def f(a, b):
    if TYPE_CHECKING == 11:
        warn("", stacklevel=12)
    return zip(a, b, strict=True), zip(a, b, strict=False), _SHARED

class Op:
    domains: tuple = ((14, 15), None)

    def examples(self):
        return Op(16)

    def samples(self):
        return _cases(13), _SIZES, _SHARED
"""


def test_what_makes_no_difference_by_construction_is_not_drawn() -> None:
    """Private names are left out with the examples only where nothing else reads them."""
    faults = mutate.faults_of(Path("m.py"), UNDRAWN)
    lines = UNDRAWN.splitlines()
    assert {(lines[f.line - 1][f.start : f.end], f.new) for f in faults} == {
        ("5", "6"), ("6", "7"), ("False", "True"),
    }  # fmt: skip


def test_a_seed_says_which_faults() -> None:
    chosen = mutate.choose(mutate.ROOT, 5, 3, ["src/lamina/optim"])
    assert chosen == mutate.choose(mutate.ROOT, 5, 3, ["src/lamina/optim"])
    assert chosen != mutate.choose(mutate.ROOT, 5, 4, ["src/lamina/optim"])
    assert len({(fault.file, fault.line) for fault in chosen}) == 5
    assert not mutate.GENERATED & set(mutate.sources(mutate.ROOT, []))


def test_other_lines_leave_a_sample_as_it_is(tmp_path: Path) -> None:
    """A line is drawn by its text: a source that changes elsewhere gives the same faults, by the same names."""
    file = tmp_path / mutate.PACKAGE / "m.py"
    file.parent.mkdir(parents=True)
    text = "".join(f"a{n} = b < {n}\nif x: c = 3\n" for n in range(20))
    file.write_text(text)
    before = mutate.choose(tmp_path, 15, 3)
    assert len({fault.key for fault in before}) == len({fault.line for fault in before}) == 15
    file.write_text("import os\n\n" + text)
    after = mutate.choose(tmp_path, 15, 3)
    assert [fault.key for fault in after] == [fault.key for fault in before]
    assert [fault.line for fault in after] == [fault.line + 2 for fault in before]
    file.write_text(text.replace(before[0].text, "pass"))
    fewer = [fault.key for fault in mutate.choose(tmp_path, 15, 3)]
    assert before[0].key not in fewer
    assert set(fewer) >= {f.key for f in before if f.text != before[0].text}


@pytest.mark.parametrize(
    ("module", "first"),
    [("nn/init.py", "tests/nn/test_init.py"), ("backends/cpu/norm.py", "tests/backends/cpu/test_norm.py")],
)
def test_tests_of_the_module_come_first(module: str, first: str) -> None:
    tests = mutate.tests_for(mutate.ROOT, mutate.PACKAGE / module)
    assert tests[0] == first
    above = (Path(first).parent, Path(first).parent.parent)
    others = {Path(test).parent for test in tests if not Path(test).is_relative_to(above[0])}
    assert others == {above[1], Path("tests/ops") if module.startswith("backends") else mutate.JUDGES}


def test_a_fault_is_found_or_survives(tmp_path: Path) -> None:
    (tmp_path / "src/lamina/room").mkdir(parents=True)
    (tmp_path / "tests/room").mkdir(parents=True)
    file = tmp_path / "src/lamina/room/door.py"
    file.write_text("def wide(n):\n    return n > 3\n\n\ndef unseen(n):\n    return n - 1\n")
    for package in ("src/lamina", "src/lamina/room", "tests", "tests/room"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "tests/room/test_door.py").write_text(
        "from lamina.room.door import wide\n\n\ndef test_it():\n    assert wide(4) and not wide(3)\n"
    )
    before = file.read_text()
    by_line = {f.line: f for f in mutate.faults_of(file.relative_to(tmp_path), before)}
    assert mutate.found_by(tmp_path, by_line[2], 60) == "tests/room/test_door.py::test_it"
    assert mutate.found_by(tmp_path, by_line[6], 60) == ""
    assert file.read_text() == before


def test_a_test_that_fails_anyway_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "src/lamina/room").mkdir(parents=True)
    (tmp_path / "tests/room").mkdir(parents=True)
    file = tmp_path / "src/lamina/room/door.py"
    file.write_text("def wide(n):\n    return n > 3\n")
    (tmp_path / "tests/room/test_door.py").write_text("def test_broken():\n    assert 1 > 2\n")
    (fault, *_) = mutate.faults_of(file.relative_to(tmp_path), file.read_text())
    broken: set[str] = set()
    assert mutate.found_by(tmp_path, fault, 60, broken) == ""
    assert broken == {"tests/room/test_door.py::test_broken"}


def test_what_fails_without_a_fault_finds_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.nn.test_conv" name="test_it[1-2]"><failure/></testcase>'
        '<testcase classname="tests.nn.test_conv.TestWide" name="test_far"><error/></testcase>'
        '<testcase classname="tests.nn.test_conv" name="test_good"/></testsuite></testsuites>'
    )
    assert mutate.failed_in(report) == {
        "tests/nn/test_conv.py::test_it[1-2]",
        "tests/nn/test_conv.py::TestWide::test_far",
    }


def test_many_at_a_time_give_what_one_gives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each in a copy of its own; the results are in the order of the faults."""
    faults = mutate.choose(mutate.ROOT, 4, 1, ["src/lamina/optim"])
    copies = set()

    def found_by(
        copy: Path, fault: mutate.Fault, timeout: float, broken: set[str], reaching: list[str], marks: str
    ) -> str:
        copies.add(copy)
        return f"{fault.line} {sorted(broken)} {timeout} {reaching} {marks}"

    monkeypatch.setattr(mutate, "found_by", found_by)
    monkeypatch.setattr(mutate, "copy_to", lambda copy: copy)
    known = {fault.key: [f"t::{fault.line}"] for fault in faults}
    found = mutate.run(tmp_path, faults, 5.0, 3, {"a::b"}, known=known, marks="m")
    assert found == [f"{fault.line} ['a::b'] 5.0 ['t::{fault.line}'] m" for fault in faults]
    assert copies <= {tmp_path / str(n) for n in range(3)}


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It counts for neither side; neither does a fault that was cut by the end of all."""
    faults = mutate.choose(mutate.ROOT, 4, 1, ["src/lamina/optim"])
    answers = iter(["a::b", "", mutate.TIMEOUT])
    clock = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 98.0, 98.0, 101.0])
    monkeypatch.setattr(mutate, "found_by", lambda *given: next(answers))
    monkeypatch.setattr(mutate, "copy_to", lambda copy: copy)
    monkeypatch.setattr(mutate.time, "monotonic", lambda: next(clock))
    found = mutate.run(tmp_path, faults, 5.0, seconds=100.0)
    assert found == ["a::b", "", mutate.LEFT_OUT, mutate.LEFT_OUT]


def test_the_figure_and_its_interval() -> None:
    text, percent = mutate.figure(["a", "b", "c", "", mutate.TIMEOUT, mutate.LEFT_OUT, mutate.LEFT_OUT])
    assert percent == 75.0
    assert text == (
        "3 of 4 faults were found: 75.0 % (95 %: 30 to 95); 1 were not decided in time: at least 60.0 % of 5; "
        "2 were left out"
    )
    assert mutate.interval(0, 0) == (0.0, 1.0)
    low, high = mutate.interval(90, 100)  # Brown, Cai, DasGupta (2001): 0.826 to 0.945
    assert (round(low, 3), round(high, 3)) == (0.826, 0.945)


# --------------------------------------------------------------------------------------------------------- reach


def test_probes_change_no_value_and_tell_each_expression_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = SOURCE.replace("while", "if")
    faults, hits, probe = mutate.faults_of(Path("m.py"), text), set[int](), ModuleType(mutate.PROBE)
    monkeypatch.setattr(probe, "hit", hits.add, raising=False)
    monkeypatch.setitem(sys.modules, mutate.PROBE, probe)
    module: dict[str, Any] = {}
    exec(mutate.probed(text, enumerate(faults)), module)
    assert {faults[number].line for number in hits} == {2}  # the default, when the function is made
    for given, value, lines in (((None, 1), -1, {4}), ((7, 3), 4, {4, 5, 6, 7}), ((0, 1), -1, {4})):
        hits.clear()
        assert module["f"](given[0], é=given[1]) == value
        assert {faults[number].line for number in hits} == lines


def test_what_importing_executes_is_told_from_what_calls_do() -> None:
    text = "WIDE = 3\nclass A:\n    near = 4\n    def f(self, n=5):\n        return n + 6\n\ng = lambda n=7: n + 8\n"
    early = {fault.line: mutate.at_import(text, fault) for fault in mutate.faults_of(Path("m.py"), text)}
    assert early == {1: True, 3: True, 4: True, 5: False, 7: False}  # of line 7 the last counts


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A tree with a room, whose door two files test, and a hall that tests it, too."""
    (tmp_path / "src/lamina/room").mkdir(parents=True)
    for package in ("src/lamina", "src/lamina/room"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "src/lamina/room/door.py").write_text(
        "LEAST = 3\n\n\ndef wide(n):\n    return n > LEAST\n\n\ndef high(n):\n    return n > 2\n"
    )
    for folder in ("room", "hall"):
        (tmp_path / "tests" / folder).mkdir(parents=True)
    (tmp_path / "tests/room/test_door.py").write_text(
        "from lamina.room.door import high, wide\n\n\ndef test_wide():\n    assert wide(4) and not wide(3)\n\n\n"
        "def test_fails():\n    assert not high(4)\n"
    )
    (tmp_path / "tests/room/test_window.py").write_text(
        "import subprocess\nimport sys\n\nfrom lamina.room.door import high\n\n\n"
        "def test_program():\n"
        "    subprocess.run([sys.executable, '-c', 'from lamina.room.door import wide; wide(4)'], check=True)\n\n\n"
        "def test_pytest():\n"
        "    command = [sys.executable, '-m', 'pytest', 'tests/room/test_door.py::test_wide']\n"
        "    subprocess.run(command, check=True)\n\n\n"
        "def test_high():\n    assert high(3) and not high(2)\n"
    )
    (tmp_path / "tests/hall/test_far.py").write_text(
        "from lamina.room.door import wide\n\n\ndef test_far():\n    assert wide(5)\n"
    )
    return tmp_path


def _faults(house: Path) -> dict[int, mutate.Fault]:
    file = Path("src/lamina/room/door.py")
    return {fault.line: fault for fault in mutate.faults_of(file, (house / file).read_text())}


def test_one_run_tells_which_tests_reach_which_faults(house: Path) -> None:
    """Also in a program that a test starts, pytest among them; a test that fails is left out."""
    faults = _faults(house)
    copy = shutil.copytree(house, house / "copy")
    mutate.reach(copy, list(faults.values()), ())
    found = mutate.reaching(copy, list(faults.values()), house)
    programs = {f"tests/room/test_window.py::test_{name}" for name in ("program", "pytest")}
    assert set(found[faults[1].key]) == {mutate.IMPORT, *programs}
    assert set(found[faults[5].key]) == {
        "tests/hall/test_far.py::test_far",
        "tests/room/test_door.py::test_wide",
        *programs,
    }
    assert max(found[faults[5].key].items(), key=lambda item: item[1])[0] in programs
    assert list(found[faults[9].key]) == ["tests/room/test_window.py::test_high"]


def test_what_a_function_has_cached_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what is one for all: an engine, a device."""
    calls: list[str] = []
    for name in ("lamina.ops.invented", "lamina.runtime.invented"):
        module = ModuleType(name)
        monkeypatch.setattr(module, "cached", lru_cache(lambda name=name: calls.append(name)), raising=False)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(mutate.sys, "modules", {n: m for n, m in sys.modules.items() if "invented" in n})
    for _ in range(2):
        for module in mutate.sys.modules.values():
            module.cached()
        mutate.forget()
    assert calls == ["lamina.ops.invented", "lamina.runtime.invented", "lamina.ops.invented"]


def test_the_quickest_tests_come_first_and_files_stay_together() -> None:
    seconds = {"b.py::slow": 3.0, "b.py::quick": 1.0, "a.py::late": 9.0, "a.py::early": 0.5}
    assert mutate._quickest_first(seconds) == ["b.py::quick", "b.py::slow", "a.py::early", "a.py::late"]


@pytest.mark.slow
def test_a_fault_runs_the_tests_of_its_chapter_that_reach_it(house: Path) -> None:
    """In their order; what is named after the module finds what was not seen to be reached; then other chapters."""
    faults, broken = _faults(house), {"tests/room/test_door.py::test_fails"}
    far, wide = "tests/hall/test_far.py::test_far", "tests/room/test_door.py::test_wide"
    program, high = "tests/room/test_window.py::test_program", "tests/room/test_window.py::test_high"
    wider = next(
        f
        for f in mutate.faults_of(faults[5].file, (house / faults[5].file).read_text())
        if (f.line, f.new) == (5, ">=")
    )
    assert mutate.found_by(house, wider, 60, broken, [far, program, wide]) == wide
    assert mutate.found_by(house, wider, 60, broken, [far, program]) == wide
    (house / "tests/room/test_door.py").write_text("from lamina.room.door import high\n")
    assert mutate.found_by(house, wider, 60, broken, [far, program]) == ""  # far asks for five
    narrow = next(f for f in mutate.faults_of(wider.file, (house / wider.file).read_text()) if f.line == 1)
    (house / "tests/hall/test_far.py").write_text(
        "from lamina.room.door import wide\n\n\ndef test_far():\n    assert wide(4)\n"
    )
    assert mutate.found_by(house, narrow, 60, broken, [program]) == ""
    assert mutate.found_by(house, narrow, 60, broken, [program, far]) == far  # another chapter's
    assert mutate.found_by(house, faults[9], 60, broken, [high]) == high
    assert mutate.found_by(house, faults[9], 60, broken, []) == ""  # test_window is of the chapter only
    assert mutate.found_by(house, faults[9], 60, broken, [mutate.IMPORT]) == high


def test_tests_are_run_in_the_order_of_a_list(tmp_path: Path) -> None:
    """Others of their file are not."""
    (tmp_path / "test_it.py").write_text("".join(f"def test_{x}():\n    assert 1 > 2\n\n\n" for x in "abc"))
    for names in (["test_c", "test_b"], ["test_b", "test_c"]):
        assert mutate._first_failure(tmp_path, [f"test_it.py::{n}" for n in names], 60, []) == (
            f"test_it.py::{names[0]}"
        )
    assert mutate._first_failure(tmp_path, ["test_it.py::test_gone"], 60, []) == ""


def test_the_reach_is_kept_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, house: Path) -> None:
    """Only test files that are new or have changed are run again."""
    faults = list(_faults(house).values())
    ran: list[tuple[str, ...]] = []
    times = {"tests/room/test_door.py::slow": 2.0, "tests/hall/test_far.py::quick": 1.0, mutate.IMPORT: 0.0}
    monkeypatch.setattr(mutate, "ROOT", house)
    monkeypatch.setattr(mutate, "copy_to", lambda copy: copy)
    monkeypatch.setattr(mutate, "reach", lambda copy, chosen, tests, marks: ran.append(tuple(tests[4:])))
    monkeypatch.setattr(mutate, "reaching", lambda *given: {f.key: dict(times) for f in faults[:2]})
    files = {"tests/room/test_window.py": 3.0, "tests/room/test_door.py": 2.0, "tests/room/test_bell.py": 1.0}
    monkeypatch.setattr(mutate, "_seconds_of_files", lambda copy: files)
    file = house / "map.json"
    known = mutate.reach_of(file, tmp_path, faults[:2])
    assert known == mutate.reach_of(file, tmp_path, faults[:2])
    order = [mutate.IMPORT, "tests/hall/test_far.py::quick", "tests/room/test_door.py::slow"]
    by_time = ["tests/room/test_bell.py", "tests/room/test_door.py", "tests/room/test_window.py"]
    assert known == {f.key: order + by_time for f in faults[:2]}
    stages = list(
        mutate._stages(faults[0].file, ["tests/room/test_new.py", *reversed(by_time)], known[faults[0].key])
    )
    bell, door, window = by_time
    assert stages == [["tests/room/test_door.py::slow"], [door, "tests/room/test_new.py", bell, window]]
    assert ran == [()]  # once, all
    near = [f"tests/room/test_{n}.py::{t}" for n in range(10) for t in "ab"]
    own = "tests/room/test_door.py::late"
    stages = list(
        mutate._stages(
            faults[0].file, [f"tests/room/test_{n}.py" for n in (*range(10), "door")], [*near, own]
        )
    )
    assert stages == [[own], near[:16], near[16:], [door]]  # files stay together, few are read at first
    known_defaults = [*by_time, "tests/test_defaults.py"]
    (last,) = mutate._stages(
        faults[0].file, known_defaults, [mutate.IMPORT, *by_time, "tests/test_defaults.py"]
    )
    assert last == [door, "tests/test_defaults.py", bell, window]
    chapter = [f"tests/room/test_{n}.py" for n in range(10)]
    assert list(mutate._stages(faults[0].file, chapter, None)) == [chapter[:8], chapter[8:]]
    assert list(mutate._stages(faults[0].file, chapter[:8], None)) == [chapter[:8]]
    (house / "tests/room/test_door.py").write_text("")
    del times["tests/room/test_door.py::slow"], times[mutate.IMPORT]
    assert mutate.reach_of(file, tmp_path, faults[:1]) == {faults[0].key: order[:2] + by_time}
    assert ran == [(), ("tests/room/test_door.py",)]
    with pytest.raises(SystemExit, match=f"it lacks {faults[2].file}:0:"):
        mutate.reach_of(file, tmp_path, faults)
