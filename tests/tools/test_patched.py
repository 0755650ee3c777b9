"""Faults of functions, of defaults and of names are put where they are, in forks of one process."""

import shutil
from pathlib import Path

import pytest

from tools import mutate, patched

MODULE = """from dataclasses import dataclass
from functools import lru_cache

LEAST = 3

def wide(n, least=4, *, by=5):
    return n > least + by

@lru_cache
def kept(n):
    return [x + 6 for x in range(n)]

def made(n):
    def inner(m):
        return m + n + 7
    return inner

HELD = made(1)

class Room:
    doors = 8
    def all(self):
        return self.doors

@dataclass(frozen=True)
class Hall:
    length: int = 9
    width: int = 10

def down(n):
    while n > 11:
        n -= 12
    return n

def unseen(n):
    return n + 13
"""
TESTS = """import subprocess
import sys
from lamina.room import door
from lamina.room.door import *

def test_broken():
    assert 1 > 2

def test_wide():
    assert wide(10) and not wide(9)
    assert wide(9, 3) and wide(5, by=0)

def test_least():
    assert door.LEAST == 3

def test_kept():
    assert kept(2) == [6, 7]

def test_held():
    assert HELD(0) == 8

def test_doors():
    assert Room().all() == 8

def test_hall():
    assert Hall() == Hall(9, 10)

def test_down():
    assert (down(11), down(12), down(13)) == (11, 0, 1)

def test_program():
    code = "from lamina.room.door import unseen; assert unseen(0) == 13"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


def test_faults_are_found_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not end is found, what fails anyway finds nothing, and the files are afterwards as they were."""
    house = tmp_path / "house"
    file = Path("src/lamina/room/door.py")
    for folder in ("src/lamina/room", "tests/room"):
        (house / folder).mkdir(parents=True)
    for package in ("src/lamina", "src/lamina/room"):
        (house / package / "__init__.py").touch()
    (house / file).write_text(MODULE)
    (house / "tests/room/test_door.py").write_text(TESTS)
    (house / "pyproject.toml").touch()
    monkeypatch.setattr(patched, "copy_to", lambda copy: Path(shutil.copytree(house, copy)))
    faults = [fault for fault in mutate.faults_of(file, MODULE) if fault.new not in ("0", "True")]
    ways: dict[str, list[str]] = {fault.key: [] for fault in faults}
    found = patched.attempts(tmp_path, house, faults, ways, 0.3, "not gpu")
    by_line: dict[int, set[str]] = {}
    for fault in faults:
        by_line.setdefault(fault.line, set()).add(found.get(fault.key, "").partition("::")[2])
    lines = MODULE.splitlines()
    assert {lines[line - 1].strip(): tests for line, tests in by_line.items()} == {
        "LEAST = 3": {"test_least"},
        "def wide(n, least=4, *, by=5):": {"test_wide"},
        "return n > least + by": {"test_wide"},
        "return [x + 6 for x in range(n)]": {"test_kept"},
        "return m + n + 7": {"test_held"},
        "HELD = made(1)": {""},  # the test's file has taken it from the module
        "doors = 8": {"test_doors"},
        "length: int = 9": {"test_hall"},
        "width: int = 10": {"test_hall"},
        "while n > 11:": {"test_down"},
        "n -= 12": {"test_down"},
        "return n + 13": {"test_program"},
    }
    assert (tmp_path / "forked-0" / file).read_text() == MODULE
