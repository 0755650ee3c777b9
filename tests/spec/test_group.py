"""Groups of ranks as values."""

import pytest

from lamina.spec import Group


def test_a_group_is_a_value() -> None:
    assert Group(0, 2) == Group((0, 2)) != Group(2, 0)
    assert {Group(1): "x"}[Group([1])] == "x"
    assert Group(3, 4, 5).size == 3


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (Group(0), "ranks 0"),
        (Group(0, 1), "ranks 0,1"),
        (Group(range(4, 8)), "ranks 4-7"),
        (Group(2, 0, 1), "ranks 2,0,1"),
    ],
)
def test_its_text(group: Group, text: str) -> None:
    assert str(group) == text


@pytest.mark.parametrize("ranks", [(), (-1,), (0, 0), ("a",), (1.0,)])
def test_what_is_no_group(ranks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="Group: "):
        Group(*ranks)
