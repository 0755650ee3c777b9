"""lamina simulate: a table of predictions from a step, links by name, by numbers and from files."""

import json
from pathlib import Path

import pytest

from lamina.cli import main
from lamina.cli.status import ExitStatus
from lamina.simulate import Gradient, Workload

WORK = Workload(0.5, 32, (Gradient(0.3, 10**8), Gradient(0.48, 10**8)))


@pytest.fixture
def step(tmp_path: Path) -> str:
    file = tmp_path / "step.json"
    file.write_text(json.dumps(WORK.record))
    return str(file)


@pytest.mark.feature("B037")
def test_a_table(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    command = ["simulate", step, "--gpus", "1", "2", "16", "--inside", "0,1", "--between", "5,0.5"]
    assert main([*command, "--bucket-mib", "96", "--json", str(out)]) == ExitStatus.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["GPUs", "step"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "16"]
    assert lines[1].split()[1] == "500.000"
    assert lines[2].split()[1:5] == ["580.000", "500.000", "0.000", "80.000"]
    found = json.loads(out.read_text())
    assert found["predictions"][1]["exposed_ms"] == pytest.approx(80)
    assert main(["simulate", str(out), "--gpus", "2", "--step-ms", "1000"]) == ExitStatus.DONE
    assert "1000." in capsys.readouterr().out


def test_links_of_files_and_wrong_ones(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = tmp_path / "links.json"
    links.write_text(json.dumps({"link": {"latency": 0, "bandwidth": 1e9}}))
    assert main(["simulate", step, "--gpus", "2", "--inside", str(links)]) == ExitStatus.DONE
    assert "580.000" in capsys.readouterr().out
    fitted = {"link": {"latency": 0, "bandwidth": 1e9}, "points": [[2, 1, 0.08], [2, 1e12, 0.08]]}
    links.write_text(json.dumps(fitted))
    assert main(["simulate", step, "--gpus", "2", "--inside", str(links)]) == ExitStatus.DONE
    assert " 560.000 " in capsys.readouterr().out  # two messages of 80 ms as measured, whatever was fitted
    few = tmp_path / "few.json"
    few.write_text(json.dumps({"points": [[2, 1, 0.08]]}))
    for wrong in ("none", "1", "1,0", str(tmp_path / "no.json"), step, str(few)):
        with pytest.raises(SystemExit) as ended:
            main(["simulate", step, "--inside", wrong])
        assert ended.value.code == ExitStatus.USAGE
        assert "is no link" in capsys.readouterr().err
    assert main(["simulate", step, "--gpus", "12"]) == ExitStatus.FAILED
    assert "12 GPUs do not fill nodes of 8" in capsys.readouterr().err
    profile = tmp_path / "profile.json"
    profile.write_text('{"kernels": []}')
    assert main(["simulate", str(profile)]) == ExitStatus.FAILED
    assert "--batch-size: a profile does not say how many samples" in capsys.readouterr().err
    profile.write_text("no JSON")
    assert main(["simulate", str(profile), "--batch-size", "1"]) == ExitStatus.FAILED
    assert "profile.json is no step of lamina plan --train --time --json (" in capsys.readouterr().err
