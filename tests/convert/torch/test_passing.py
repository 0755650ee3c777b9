"""Numbers with which a condition passes."""

from __future__ import annotations

import ast
import inspect
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("torch")
from lamina.convert.torch.passing import passing_value, place_of

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def frame(limit: int, allowed: list[int]) -> FrameType:
    """A frame with these names."""
    found = inspect.currentframe()
    assert found is not None
    return found


def passing(condition: str, passes: bool, candidates: tuple[Any, ...] = (0, 1, -1)) -> Any:
    """The number for the call `number()` in a condition."""
    test = ast.parse(condition, mode="eval").body
    calls = [n for n in ast.walk(test) if isinstance(n, ast.Call) and ast.unparse(n) == "number()"]
    return passing_value(frame(3, [7, 9]), test, place_of(calls[0]), passes, candidates)


@pytest.mark.parametrize(
    ("condition", "passes", "wanted"),
    [
        ("number() > limit", False, 0),
        ("number() < limit", False, 3),
        ("number() == limit", True, 3),
        ("limit != number()", False, 3),
        ("1 < number() - 1 <= limit", True, 3),
        ("abs(number()) >= limit", True, 3),
        ("not number()", False, 1),
        ("number() in allowed", True, 7),
        ("number() == number()", False, None),
        ("unknown < number()", False, None),
        ("allowed[number()] > limit", False, None),
        ("(n := number()) > limit", False, None),
    ],
)
def test_the_first_number_with_which_a_condition_passes(condition: str, passes: bool, wanted: Any) -> None:
    assert passing(condition, passes) == wanted


def test_floats_are_floats() -> None:
    found = passing("number() > limit", True, (0.0, 1.0))
    assert (found, type(found)) == (4.0, float)
