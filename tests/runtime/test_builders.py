"""Processes that compile for this one: what they answer, how they end, and what is done where there are none."""

import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.runtime import CompileError, builders
from lamina.runtime.ahead import Ahead
from lamina.runtime.builders import Builders
from lamina.runtime.kernel import compile_cubin
from lamina.runtime.ranks import Launcher, world

KERNEL = 'extern "C" __global__ void k(float *x) { x[threadIdx.x] *= NUMBER; }'


@pytest.fixture
def two() -> Iterator[Builders]:
    found = Builders(2)
    yield found
    found.end()


def gone(number: int) -> bool:
    """Whether a process has ended, and been waited for."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_function_is_called_in_another_process(two: Builders) -> None:
    first = two.ask(os.getpid)
    assert first not in (None, os.getpid())
    assert two.ask(os.getpid) == first  # the one that is there
    assert two.ask(operator.add, (1, 2), (3,)) == (1, 2, 3)
    two.end()
    assert gone(first)
    assert two.ask(os.getpid) not in (None, first)


def test_what_is_raised_there_is_raised_here(two: Builders) -> None:
    with pytest.raises(ValueError, match="invalid literal for int"):
        two.ask(int, "seven")
    with pytest.raises(CompileError, match="kernel 'k' does not compile for sm_90:\nno") as error:
        two.ask(fails, "compile")
    assert (error.value.log, error.value.source) == ("no", "text")
    with pytest.raises(RuntimeError, match="Odd: held"):
        two.ask(fails, "odd")
    assert two.ask(int, "7") == 7
    assert len(two._all) == 1


class Odd(Exception):
    """Cannot travel."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.held = threading.Lock()


def fails(how: str) -> None:
    raise CompileError("k", "sm_90", "no", "text") if how == "compile" else Odd("held")


def test_as_many_as_are_asked_at_once_and_no_more(two: Builders) -> None:
    found: list[int] = []

    def ask() -> None:
        found.append(two.ask(slow))

    threads = [threading.Thread(target=ask) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 5
    assert len(set(found)) == 2


def test_ranks_of_a_machine_share_its_cores(two: Builders) -> None:
    for processes, most in ((2, 1), (8, 1), (1, 2)):
        two.shared_by(processes)
        assert two._share == most
    none = Builders(0)
    none.shared_by(2)
    assert none._share == 0
    builders.builders._share = -1
    world.open_world(Launcher("torchrun", 0, 1, 0, 1), "tcp", 5.0)
    assert builders.builders._share == builders.builders.most
    builders.builders._share = -1
    world.close_world()
    assert builders.builders._share == builders.builders.most


def slow() -> int:
    time.sleep(0.2)
    return os.getpid()


def test_one_that_has_rested_for_long_ends_and_another_is_started() -> None:
    restless = Builders(1, idle=0.1)
    first = restless.ask(os.getpid)
    (builder,) = restless._all
    builder.process.wait(30)
    assert restless.ask(os.getpid) not in (None, first)
    restless.end()


def test_one_that_is_killed_loses_nothing(two: Builders) -> None:
    first = two.ask(os.getpid)
    os.kill(first, signal.SIGKILL)
    assert two.ask(os.getpid) not in (None, first)
    assert two.ask(dies) is None  # whoever asks does it
    assert two.ask(os.getpid) is None  # and is not kept waiting by others that die
    assert not two._all


def dies() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_where_there_are_none_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Builders(0).ask(os.getpid) is None
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    none = Builders(2)
    assert none.ask(os.getpid) is None
    assert not none._possible
    for said, most in (("3", 3), ("0", 0), ("many", min(16, builders.usable_cores()))):
        monkeypatch.setenv("LAMINA_BUILDERS", said)
        assert builders._wanted() == most


def test_a_forked_child_has_its_own(two: Builders) -> None:
    two.ask(os.getpid)
    held = set(two._all)
    two.renew()
    assert not two._all
    for builder in held:
        builder.end()


@pytest.mark.feature("B051")
def test_many_kernels_are_compiled_apart_and_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    apart: list[Any] = []
    ask = builders.builders.ask

    def noted(function: Callable[..., Any], *request: Any) -> Any:
        found = ask(function, *request)
        apart.append(found)
        return found

    monkeypatch.setattr(builders.builders, "ask", noted)
    ahead, found = Ahead("compiling"), dict[int, bytes]()
    names = range(6)
    for number in names:
        ahead.begin(lambda number=number: found.update({number: cubin(number)}))  # type: ignore[misc]
    assert ahead._threads is not None
    ahead._threads.shutdown()
    assert set(found) == set(names)
    assert 1 <= len(apart) < len(names)  # the last ones have few beside them
    assert set(apart) <= set(found.values())
    monkeypatch.setattr(ahead.__class__, "is_busy", False)
    monkeypatch.setattr("lamina.runtime.kernel._cubins", {})
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path / "other"))
    assert {number: cubin(number) for number in names} == found


def cubin(number: int) -> bytes:
    return compile_cubin(KERNEL, arch="sm_90", defines={"NUMBER": number + 0.5}, name="builders")
