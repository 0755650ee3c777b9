"""C enums: members that are made by hand are those that `IntEnum` makes."""

import copy
import pickle
from enum import IntEnum

import pytest

from lamina.c._enum import CEnum

NUMBERS = {"RED": 0, "GREEN": 2, "CRIMSON": 0, "BELOW": -1}


class Colour(CEnum):
    """Of a header."""

    RED = 0
    GREEN = 2
    CRIMSON = 0
    BELOW = -1

    @property
    def doubled(self) -> int:
        """A property is no member."""
        return 2 * self


def test_members_are_those_of_an_int_enum() -> None:
    plain = IntEnum("Colour", NUMBERS)  # type: ignore[misc]
    assert list(Colour.__members__) == list(NUMBERS)
    assert [(m.name, m.value, repr(m), str(m)) for m in Colour] == [
        (m.name, m.value, repr(m), str(m)) for m in plain
    ]
    assert len(Colour) == 3
    assert Colour.__doc__ == "Of a header."


def test_names_values_and_aliases_lead_to_one_member() -> None:
    assert Colour.CRIMSON is Colour.RED is Colour["CRIMSON"] is Colour(0)
    assert Colour(-1) is Colour.BELOW
    assert Colour.GREEN == 2
    assert Colour.GREEN.doubled == 4
    assert isinstance(Colour.GREEN, Colour)
    assert Colour.label(2) == "GREEN"


def test_members_are_copied_and_pickled_as_themselves() -> None:
    assert pickle.loads(pickle.dumps(Colour.GREEN)) is Colour.GREEN
    assert copy.deepcopy(Colour.GREEN) is Colour.GREEN


def test_members_stay() -> None:
    with pytest.raises(AttributeError):
        Colour.RED = 3  # type: ignore[misc, assignment]
    with pytest.raises(TypeError):
        type("More", (Colour,), {})


def test_each_member_is_made_once_and_without_asking_what_its_name_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import enum

    asked: list[str] = []
    known = enum._is_sunder  # type: ignore[attr-defined]
    monkeypatch.setattr(enum, "_is_sunder", lambda name: asked.append(name) or known(name))
    made = type(CEnum)("Many", (CEnum,), {"__module__": __name__} | {f"m{i}": i for i in range(50)})
    assert len(made) == 50
    assert not [name for name in asked if name.startswith("m")]
