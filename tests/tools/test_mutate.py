"""Faults are put where they mean something, one at a time, and tests of the chapter are chosen first."""

import ast
from pathlib import Path

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


def test_a_seed_says_which_faults() -> None:
    chosen = mutate.choose(mutate.ROOT, 5, 3, ["src/lamina/optim"])
    assert chosen == mutate.choose(mutate.ROOT, 5, 3, ["src/lamina/optim"])
    assert chosen != mutate.choose(mutate.ROOT, 5, 4, ["src/lamina/optim"])
    assert len({(fault.file, fault.line) for fault in chosen}) == 5
    assert not mutate.GENERATED & set(mutate.sources(mutate.ROOT, []))


@pytest.mark.parametrize(
    ("module", "first"),
    [("nn/init.py", "tests/nn/test_init.py"), ("backends/cpu/norm.py", "tests/backends/cpu/test_norm.py")],
)
def test_tests_of_the_module_come_first(module: str, first: str) -> None:
    tests = mutate.tests_for(mutate.ROOT, mutate.PACKAGE / module)
    assert tests[0] == first
    above = (Path(first).parent, Path(first).parent.parent)
    others = {Path(test).parent for test in tests if not Path(test).is_relative_to(above[0])}
    assert others == ({above[1], Path("tests/ops")} if module.startswith("backends") else {above[1]})


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

    def found_by(copy: Path, fault: mutate.Fault, timeout: float, broken: set[str]) -> str:
        copies.add(copy)
        return f"{fault.line} {sorted(broken)} {timeout}"

    monkeypatch.setattr(mutate, "found_by", found_by)
    monkeypatch.setattr(mutate, "_copy_to", lambda copy: copy)
    found = mutate.run(tmp_path, faults, 5.0, 3, {"a::b"})
    assert found == [f"{fault.line} ['a::b'] 5.0" for fault in faults]
    assert copies <= {tmp_path / str(n) for n in range(3)}


def test_what_does_not_fit_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It counts for neither side; neither does a fault that was cut by the end of all."""
    faults = mutate.choose(mutate.ROOT, 4, 1, ["src/lamina/optim"])
    answers = iter(["a::b", "", mutate.TIMEOUT])
    clock = iter([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 98.0, 98.0, 101.0])
    monkeypatch.setattr(mutate, "found_by", lambda *given: next(answers))
    monkeypatch.setattr(mutate, "_copy_to", lambda copy: copy)
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
