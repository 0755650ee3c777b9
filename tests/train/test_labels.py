"""Integers of the outputs' shape without its second axis are labels; nothing else is."""

import pytest

from lamina.train.labels import are_labels


@pytest.mark.parametrize(
    ("outputs", "targets", "kind", "expected"),
    [
        ((4, 10), (4,), "i", True),
        ((4, 10), (4,), "u", True),
        ((2, 3, 5, 6), (2, 5, 6), "i", True),
        ((4, 10), (4,), "f", False),
        ((4, 10), (4,), "b", False),
        ((4, 10), (4, 1), "i", False),
        ((4, 10), (4, 10), "i", False),
        ((2, 3, 5, 6), (2,), "i", False),
        ((4,), (4,), "i", False),
        ((4, 1), (4,), "i", False),
        ((4, 1, 5, 6), (4, 5, 6), "i", False),
        ((), (), "i", False),
    ],
)
def test_what_are_labels(
    outputs: tuple[int, ...], targets: tuple[int, ...], kind: str, expected: bool
) -> None:
    assert are_labels(outputs, targets, kind) is expected
