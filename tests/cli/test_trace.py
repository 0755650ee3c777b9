"""lamina trace: timelines of ranks in one file."""

import json
from pathlib import Path

import pytest

from lamina.cli import main
from lamina.cli.status import ExitStatus
from lamina.graph import Timeline


@pytest.mark.feature("B037")
def test_files_become_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(tmp_path / f"run.rank{rank}.json") for rank in range(2)]
    for rank, file in enumerate(files):
        Timeline(rank=rank).save(file)
    out = tmp_path / "run.json"
    assert main(["trace", str(out), *files]) == ExitStatus.DONE
    assert capsys.readouterr().out == f"{out}: 2 ranks\n"
    assert [r["rank"] for r in json.loads(out.read_text())["otherData"]["ranks"]] == [0, 1]
    assert main(["trace", str(out), files[0], files[0]]) == ExitStatus.FAILED
    assert "rank 0 comes twice" in capsys.readouterr().err
    assert main(["trace", str(out), str(tmp_path / "none.json")]) == ExitStatus.FAILED
    assert "none.json" in capsys.readouterr().err
