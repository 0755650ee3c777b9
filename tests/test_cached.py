"""A property that is kept is computed once, and is Python's own in all else."""

from __future__ import annotations

import threading

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


def test_threads_that_ask_at_once_get_the_same_object() -> None:
    together = threading.Barrier(2)

    class Slow:
        @cached_property
        def value(self) -> list[int]:
            """Made by both threads."""
            together.wait(10)
            return []

    slow, found = Slow(), list[list[int]]()
    threads = [threading.Thread(target=lambda: found.append(slow.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert found[0] is found[1] is slow.value
