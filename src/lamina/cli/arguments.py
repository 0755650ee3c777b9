"""Types of arguments that several commands take."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any


class Gone(argparse.Action):
    """A renamed option: using it is an error that tells the new name (`const`)."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: str) -> None:
        super().__init__(option_strings, dest, nargs="?", const=const, help=argparse.SUPPRESS)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: Any = None,
    ) -> None:
        """Exits the program."""
        parser.error(f"{option_string} is {self.const} now")


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def above_zero(text: str) -> float:
    """A finite number greater than 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be greater than 0, got {text}")
    return number


def natural(text: str) -> int:
    """A whole number of at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {number}")
    return number
