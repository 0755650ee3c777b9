"""What several test files share: references, case lists, emulated GPUs, stubs of the driver, recorders."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What cuDNN says about an H200, read on one with cuDNN 9.19.
H200_PROPERTIES = ROOT / "tests" / "data" / "h200_deviceprop_cudnn919.json"


def slow_from(count: int, cases: Iterable[Any], *, several: bool = False) -> list[Any]:
    """Values for `parametrize`: the first ones for every run, those from `count` on marked slow.

    several: each case is a tuple of the values of several parameters.
    """
    values = [case if several else (case,) for case in cases]
    return [pytest.param(*v, marks=[pytest.mark.slow] * (i >= count)) for i, v in enumerate(values)]


def slow_but_every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Values for `parametrize`, of which every run takes each step-th and the slow one the others."""
    return [pytest.param(case, marks=[pytest.mark.slow] * (i % step > 0)) for i, case in enumerate(cases)]
