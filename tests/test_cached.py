"""A property that is kept is computed once, and is Python's own in all else."""

from __future__ import annotations

from lamina._cached import cached_property


class Box:
    """Counts how often its value was computed."""

    def __init__(self) -> None:
        self.asked = 0

    @cached_property
    def value(self) -> int:
        """The count."""
        self.asked += 1
        return self.asked


def test_a_value_is_computed_once_for_each_object() -> None:
    box = Box()
    assert [box.value, box.value, Box().value, box.asked] == [1, 1, 1, 1]


def test_a_value_may_be_given_and_forgotten() -> None:
    box = Box()
    box.value = 7
    assert (box.value, box.asked) == (7, 0)
    del box.value
    assert box.value == 1


def test_the_class_shows_the_property_itself() -> None:
    found = vars(Box)["value"]
    assert isinstance(found, cached_property)
    assert Box.value is found
    assert found.__doc__ == "The count."
