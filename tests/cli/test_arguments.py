"""Numbers on the command line: each range says its bound."""

import argparse
from collections.abc import Callable

import pytest

from lamina.cli.arguments import above_zero, natural, positive


@pytest.mark.parametrize(
    ("kind", "good", "bad", "bound"),
    [
        (positive, ["1", "70"], ["0", "-1"], "at least 1"),
        (natural, ["0", "7"], ["-1"], "at least 0"),
        (above_zero, ["1e-9", "4.3"], ["0", "-1", "nan", "inf"], "greater than 0"),
    ],
)
def test_ranges(kind: Callable[[str], float], good: list[str], bad: list[str], bound: str) -> None:
    assert [kind(text) for text in good] == [float(text) for text in good]
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError, match=f"must be {bound}, got {text}"):
            kind(text)
    with pytest.raises(ValueError, match="x"):
        kind("x")
