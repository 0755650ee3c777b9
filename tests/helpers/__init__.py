"""Shared by several test files: references, case lists, emulated GPUs, stubs of the driver, recorders."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: cuDNN's properties of an H200, read from one with cuDNN 9.19.
H200_PROPERTIES = ROOT / "tests" / "data" / "h200_deviceprop_cudnn919.json"


def slow_from(count: int, cases: Iterable[Any], *, several: bool = False) -> list[Any]:
    """Values for `parametrize`: the first `count` run always, the others are marked slow.

    several: each case is a tuple of the values of several parameters.
    """
    values = [case if several else (case,) for case in cases]
    return [pytest.param(*v, marks=[pytest.mark.slow] * (i >= count)) for i, v in enumerate(values)]


def slow_but_every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Values for `parametrize`: every step-th one runs always, the others are marked slow."""
    return [pytest.param(case, marks=[pytest.mark.slow] * (i % step > 0)) for i, case in enumerate(cases)]
