"""What counts worlds that end: one of each kind, and that a wrong one is told from a right one."""

import json
from pathlib import Path

import pytest

from tests.helpers import many_worlds


@pytest.mark.slow
@pytest.mark.feature("B034")
@pytest.mark.parametrize("fault", ["none", "SIGKILL", "raises"])
def test_worlds_on_cpus_end_as_they_should(tmp_path: Path, fault: str) -> None:
    out = tmp_path / "worlds.jsonl"
    given = ["--ranks", "3", "--times", "2", "--at-once", "2", "--device", "cpu", "--fault", fault]
    assert many_worlds.main([str(out), *given]) == 0
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["number"] for one in found] == [0, 1]
    assert all((one["status"] == 0) == (fault == "none") for one in found)


@pytest.mark.parametrize("fault", ["capture", "memory"])
def test_cpus_have_not_every_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str) -> None:
    with pytest.raises(SystemExit):
        many_worlds.main([str(tmp_path / "worlds.jsonl"), "--device", "cpu", "--fault", fault])
    assert f"--fault {fault} is for GPUs, CPUs have none, SIGKILL, SIGSTOP, raises" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "fault", "wrong"),
    [
        ("", "none", ""),
        ("raise ValueError('no reason')", "none", "it failed"),
        ("", "raises", "it ended well in spite of its fault"),
        ("raise SystemExit(3)", "raises", "no error names rank 1"),
        ("raise SystemExit('rank 1 has failed')", "raises", ""),
        ("import subprocess; subprocess.Popen(['sleep', '60'])", "none", "it left a process"),
        ("import time; time.sleep(60)", "none", "no end within 1 s"),
    ],
)
def test_what_is_wrong_with_a_world_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, fault: str, wrong: str
) -> None:
    """Of a program that is no world, which ends at once."""
    monkeypatch.setattr(many_worlds, "program", lambda fault: text)
    monkeypatch.setattr(
        many_worlds, "command", lambda file, ranks, device: [many_worlds.sys.executable, str(file)]
    )
    monkeypatch.setattr(many_worlds, "LIMIT", 1 if "time" in text else 30)
    found = many_worlds.world(0, fault, 2, "cpu", tmp_path)
    assert found["wrong"].startswith(wrong)
    assert bool(found["wrong"]) == bool(wrong)
