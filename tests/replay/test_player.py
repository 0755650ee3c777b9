"""A program of a plan: its contexts, its inputs and outputs."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lamina.replay import player as player_module
from lamina.replay.addresses import ARENA, INPUTS, KEPT, virtual
from lamina.replay.errors import PlanFileError
from lamina.replay.host import HostSteps
from lamina.replay.player import Player, _GpuContext
from lamina.runtime import Device, LibraryState
from lamina.spec import ShapeError
from tests.helpers.many_threads import in_threads

CPU = Device("cpu")


def data(**more: Any) -> dict[str, Any]:
    """y = x + w, and y again with its axes exchanged."""
    spec = [[2, 3], "float32"]
    step = ["numpy", "add", {}, [spec, spec], [spec], [virtual(INPUTS), virtual(KEPT)], [virtual(ARENA)]]
    found = {
        "arena": 256, "counters": 0, "inputs": [["x", spec]], "steps": [step],
        "outputs": [[virtual(ARENA), spec], [virtual(ARENA), [[3, 2], "float32", [1, 3], []]]],
    }  # fmt: skip
    return found | more


def player(contexts: int = 2, **more: Any) -> Player:
    kept = CPU.allocate(24)
    kept.array((6,), np.float32)[:] = 10
    return Player(data(**more), kept, CPU, HostSteps(CPU), contexts)


def test_outputs_are_the_callers_own() -> None:
    found = player()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, turned = found(x)
    np.testing.assert_array_equal(y, x + 10)
    np.testing.assert_array_equal(turned, y.T)
    found(x * 2)
    np.testing.assert_array_equal(y, x + 10)
    np.testing.assert_array_equal(found(np.asfortranarray(x))[0], y)
    assert "steps" in repr(found)


def test_threads_have_contexts_of_their_own() -> None:
    found = player(contexts=3)

    def work(k: int) -> None:
        for i in range(200):
            x = np.full((2, 3), 100 * k + i, np.float32)
            np.testing.assert_array_equal(found(x)[0], x + 10)

    in_threads(work, 6)
    assert 1 <= found.contexts <= 3


def test_there_are_as_many_states_of_libraries_as_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first context takes that in which the steps were read: each holds handles with memory of their own."""
    made: list[LibraryState] = []

    def state() -> LibraryState:
        made.append(LibraryState())
        return made[-1]

    monkeypatch.setattr(player_module, "LibraryState", state)
    found = player(contexts=3)
    assert len(made) == found.contexts == 1
    first, second = (found._contexts.take() for _ in range(2))
    assert [first._libraries, second._libraries] == made


@pytest.mark.parametrize(
    "given", [(), (np.zeros((2, 3), np.float32),) * 2, (np.zeros((3, 2), np.float32),), (np.zeros((2, 3)),)]
)
def test_other_inputs_are_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(ShapeError, match="takes 1 inputs|input x is"):
        player()(*given)


@pytest.mark.parametrize(
    "more",
    [
        {"arena": -1},
        {"arena": 1.5},
        {"arena": 8},
        {"counters": "many"},
        {"inputs": [["x", [[2, 3], "float32", [1, 2], []]]]},
        {"outputs": [[virtual(ARENA, 250), [[2, 3], "float32"]]]},
        {"outputs": [[virtual(ARENA), [[2, 3], "float32", [1, 1], [[0, 2]]]]]},
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(PlanFileError):
        player(**more)


def test_a_gpus_steps_run_once_and_then_as_a_graph() -> None:
    """Libraries load at the first call, the second is recorded, all later ones replay it."""
    done: list[str] = []

    class Context(_GpuContext):
        def __init__(self) -> None:
            self._captured, self._rehearsed = None, False
            self._arriving = []
            self._runs = [lambda: done.append("one"), lambda: done.append("two")]
            self.stream: Any = SimpleNamespace(synchronize=lambda: None)

        def _queue(self, runs: Any, stream: Any) -> None:
            for run in runs:
                run()

        def _capture(self) -> None:
            done.append("capture")
            self._captured: Any = object()
            self._replay = lambda: done.append("replay")

    context = Context()
    for _ in range(4):
        context._run([])
    assert done == ["one", "two", "capture", "replay", "replay"]
