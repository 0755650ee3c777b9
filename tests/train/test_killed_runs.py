"""Runs that are killed at random times go on to the bit: every loss, the data's order, random states, the end."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT

pytestmark = pytest.mark.feature("B029")


def killed(folder: Path, kills: int, backend: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.killed_runs", str(folder), str(kills), "1", backend],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("backend", "kills"),
    [("cpu", 4), pytest.param("cpu", 100, marks=pytest.mark.slow)],
)
def test_a_killed_run_goes_on_to_the_bit(tmp_path: Path, backend: str, kills: int) -> None:
    found = killed(tmp_path, kills, backend)
    assert found["kills"] == kills
    assert found["wrong"] == []
    assert found["same_end"]
    assert found["starts"] > min(kills, 30) / 3  # not always from the same checkpoint
    if kills >= 100:
        assert found["within_writing"] > 0  # a part of a checkpoint lay beside it
