"""What is said of a saved plan; a damaged one, and one that lies, is refused."""

from pathlib import Path

import numpy as np
import pytest

from lamina import nn
from lamina.cli import main
from lamina.cli.plan_table import is_plan
from lamina.cli.status import ExitStatus
from lamina.infer import Inferer
from lamina.replay.file import Parts, write


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    x = np.ones((2, 3), np.float32)
    with Inferer(nn.PReLU(), device="cpu", max_batch=8) as inferer:  # gathered whatever products round like
        inferer(x)
        inferer({"x": x})
        inferer.save(tmp_path / "linear.plan")
    return tmp_path / "linear.plan"


def test_a_plan_tells_its_machine_and_its_programs(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(plan)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if "f32[8,3]" in line]
    assert [row[:2] for row in rows] == [["inputs:", "f32[8,3]"], ["inputs['x']:", "f32[8,3]"]]
    assert all(row[2:7] == ["1", "to", "8", "samples", "f32[8,3]"] for row in rows)
    assert lines[-4].startswith("network: PReLU, saved by Lamina ")
    assert lines[-3].startswith("machine: device cpu, ")
    assert lines[-2].startswith(f"{plan}: saved plan, 2 programs, ")
    assert lines[-2].endswith("it can be planned anew elsewhere")
    assert lines[-1] == "all checksums hold"


def test_without_its_graphs_it_is_for_its_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Inferer(nn.Linear(3, 4), device="cpu") as inferer:
        inferer(np.ones((2, 3), np.float32))
        inferer.save(tmp_path / "p", portable=False)
    assert main(["info", str(tmp_path / "p")]) == 0
    found = capsys.readouterr().out
    assert "this size" in found
    assert "saved plan, 1 program, " in found
    assert "it is for such a machine alone" in found


def test_other_files_are_none(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"LAMINA")
    assert is_plan(plan)
    assert not any(is_plan(path) for path in (tmp_path, tmp_path / "absent", tmp_path / "short"))


def test_a_damaged_plan_is_refused(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bytearray(plan.read_bytes())
    content[-1] ^= 1
    plan.write_bytes(content)
    assert main(["info", str(plan)]) == ExitStatus.FAILED
    assert f"{plan}: its bytes were changed" in capsys.readouterr().err


def test_a_header_that_lies_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "p", {"programs": [{"plays": 3, "gathered": None}]}, Parts())
    assert main(["info", str(tmp_path / "p")]) == ExitStatus.FAILED
    assert "not a sound plan: TypeError" in capsys.readouterr().err
