"""What cuDNN's heuristics named is remembered: nobody asks them twice, in whatever process."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.select import formulations
from lamina.backends.cuda.select.formulations import Problem, choose
from lamina.cudnn import store
from lamina.cudnn.engine import OperationGraph
from lamina.ops.primitives import Conv, Window
from lamina.spec import Policy, Spec, bfloat16, channels_last
from tests.helpers.cudnn.installed import needs_cudnn_919
from tests.helpers.planned import H200

pytestmark = [needs_cudnn_919, pytest.mark.feature("B051")]
HEURISTIC = Policy(algorithm="heuristic")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str | int]]:
    """The heuristics that are asked, of a GPU that counts as there, with a cache of its own."""
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    monkeypatch.setattr(formulations, "_is_there", lambda device: True)
    modes: list[str | int] = []
    heuristic = OperationGraph.heuristic

    def noted(self: OperationGraph, mode: str | int, **more: Any) -> Any:
        modes.append(mode)
        return heuristic(self, mode, **more)

    monkeypatch.setattr(OperationGraph, "heuristic", noted)
    store.drawn_store.cache_clear()
    yield modes
    store.drawn_store.cache_clear()


def problem(channels: int = 64) -> Problem:
    win = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
    shapes = ((8, channels, 28, 28), (64, channels, 3, 3), (8, 64, 28, 28))
    return conv_problem(Conv, Operands(win, *(Spec(s, bfloat16, channels_last(s)) for s in shapes)), H200)


def test_the_second_process_asks_nobody(asked: list[str | int]) -> None:
    first = choose(problem(), H200, HEURISTIC)
    assert asked == ["a"]
    store.drawn_store.cache_clear()  # as in another process
    assert choose(problem(), H200, HEURISTIC).label == first.label
    assert asked == ["a"]


@pytest.mark.parametrize(
    ("channels", "policy"),
    [(32, HEURISTIC), (64, replace(HEURISTIC, tf32=True)), (64, replace(HEURISTIC, workspace_limit=1 << 20))],
)
def test_another_question_is_asked(channels: int, policy: Policy, asked: list[str | int]) -> None:
    choose(problem(), H200, HEURISTIC)
    choose(problem(channels), H200, policy)
    assert asked == ["a", "a"]


def test_an_engine_that_is_known_to_be_wrong_by_now_is_not_made_again(
    asked: list[str | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(problem(), H200, HEURISTIC)
    monkeypatch.setattr(formulations, "known_wrong", lambda operations, engine: "its results are wrong")
    choose(problem(), H200, HEURISTIC)
    assert asked == ["a", "a"]


def test_another_formulation_is_another_question(asked: list[str | int]) -> None:
    choose(problem(), H200, HEURISTIC)
    more = problem()
    choose(replace(more, formulations=(*more.formulations, more.formulations[0])), H200, HEURISTIC)
    assert asked == ["a", "a"]


def test_own_kernels_that_come_first_need_no_heuristics(asked: list[str | int], tmp_path: Path) -> None:
    own = [f for f in problem().formulations if f.graph is None]
    choose(replace(problem(), formulations=tuple(own)), H200, HEURISTIC)
    assert asked == []
    assert not (tmp_path / "drawn").exists()


def test_what_is_only_planned_for_is_not_remembered(
    asked: list[str | int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))
    choose(problem(), H200, HEURISTIC)
    assert not (tmp_path / "drawn").exists()
