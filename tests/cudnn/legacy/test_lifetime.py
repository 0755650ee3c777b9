"""Every class that needs no GPU, made and closed thousands of times: nothing is left behind, nothing aborts."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT
from tests.helpers.cudnn.installed import needs_cudnn
from tests.helpers.legacy import lifetime

pytestmark = needs_cudnn
COUNT = 5000


def started(*arguments: str) -> subprocess.Popen[str]:
    """`lifetime` with these arguments, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.helpers.legacy.lifetime", *arguments]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process: subprocess.Popen[str], seconds: float) -> dict[str, list[float]]:
    """What it measured; it must have ended well, without a word on stderr."""
    out, error = process.communicate(timeout=seconds)
    assert (process.returncode, error) == (0, "")
    found: dict[str, list[float]] = json.loads(out.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.feature("F029")
def test_thousands_of_objects_of_each_class_leave_nothing() -> None:
    found = finished(started(str(COUNT), "cpu"), 300)
    assert set(found) == {*lifetime.LEGACY, *lifetime.graph_makers()}
    assert {made for made, *_ in found.values()} == {COUNT}
    grown = {name: growth for name, (_, growth, *_) in found.items()}
    assert max(grown.values()) < 1 << 20, grown


@pytest.mark.feature("F029")
def test_no_class_is_left_out() -> None:
    assert lifetime.missing() == set()
