"""The cases that sanitizers are run on can be made without a GPU; they run on one, and emulated between fences."""

import shutil
import signal
import subprocess
import sys

import pytest

from lamina.backends.cuda.launch.program import Launch, Together
from tests.helpers.own_kernels import KINDS, run, run_emulated


@pytest.mark.parametrize("kind", KINDS)
def test_cases_are_of_own_kernels(kind: str) -> None:
    cases = list(KINDS[kind]())
    assert len({case.name for case in cases}) == len(cases) >= 6
    for case in cases:
        assert any(isinstance(step, Launch | Together) for step in case.steps), case.name


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("kind", ["reorders", "pools"])
def test_nothing_outside_of_the_operands_is_touched(kind: str) -> None:
    assert [case.name for case in KINDS[kind]() if run_emulated(case)] == []


@pytest.mark.parametrize(("behind", "place"), [(True, -1), (False, 48)])
def test_what_touches_a_fence_ends(behind: bool, place: int) -> None:
    program = f"""
import ctypes
from tests.helpers.emulator import Fenced
memory = Fenced(48, behind={behind})
memory.bytes[:] = 7
assert ctypes.c_uint8.from_address(memory.pointer + 47).value == 7
ctypes.c_uint8.from_address(memory.pointer + {place}).value
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGSEGV, ended.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_they_run(kind: str) -> None:
    assert [case.name for case in KINDS[kind]() if run(case)] == []
