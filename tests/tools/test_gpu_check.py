"""Stages run in order, each within its time; what they printed and how they ended is in the folder."""

import json
from pathlib import Path

import pytest

from tools.gpu_check import Stage, belongs, main, results


def test_stages_end_in_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests that pass, a module that fails, one that takes too long, and one behind it."""
    stages = [
        "60 tests 1/1 -m 'not gpu' -p no:cacheprovider tests/test_version.py",
        "60 timeit -n 1 -r 1 1/0",
        "0.5 timeit -n 1 -r 1 'import time; print(7, flush=True); time.sleep(60)'",
        "60 json.tool --help",
    ]
    assert main([str(tmp_path), *(word for s in stages for word in ("--stage", s))]) == 1
    passed, failed, slow, last = json.loads((tmp_path / "summary.json").read_text())
    assert passed["status"] == 0
    assert passed["counts"]["passed"] > 0
    assert passed["failed"] == []
    assert failed["status"] == 1
    assert any("ZeroDivisionError" in line for line in failed["last"])
    assert slow["timed_out"]
    assert slow["seconds"] < 30
    assert (tmp_path / "3-timeit.log").exists()
    assert (last["status"], last["timed_out"]) == (0, False)
    assert "3/4 timeit" in capsys.readouterr().out


def test_parts_are_all_and_stay_the_same() -> None:
    names = [f"tests/test_a.py::test_b[{i}]" for i in range(200)]
    parts = [{n for n in names if belongs(n, part, 3)} for part in (1, 2, 3)]
    assert set.union(*parts) == set(names)
    assert sum(map(len, parts)) == len(names)
    assert min(map(len, parts)) > 40
    assert belongs("tests/test_a.py::test_b[0]", 1, 2) != belongs("tests/test_a.py::test_b[0]", 2, 2)
    assert parts[0] == {n for n in reversed(names) if belongs(n, 1, 3)}


ENDLESS = """
import pytest, time
pytestmark = pytest.mark.gpu
def test_passes(): pass
def test_hangs(): time.sleep(60)
def test_fails(): assert 1 == 2
def test_behind(): pass
def test_skipped(): pytest.skip("not here")
"""


@pytest.mark.parametrize("workers", ["", pytest.param("-n 1 ", marks=pytest.mark.slow)])
def test_a_test_that_does_not_end_costs_no_results(tmp_path: Path, workers: str) -> None:
    """It is named, and those behind it run."""
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    stage = f"120 tests 1/1 {workers}-p no:cacheprovider --rootdir={tmp_path} {tmp_path}"
    assert main([str(tmp_path / "out"), "--each", "2", "--stage", stage]) == 1
    (summary,) = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["counts"] == {"passed": 2, "failed": 1, "skipped": 1}
    assert summary["unfinished"] == ["test_endless.py::test_hangs"]
    assert summary["failed"] == ["test_endless.py::test_fails"]
    assert not summary["timed_out"]
    assert summary["status"] != 0
    assert "assert 1 == 2" in (tmp_path / "out" / "1-tests.jsonl").read_text()


@pytest.mark.slow
def test_a_stage_that_is_cut_keeps_its_results(tmp_path: Path) -> None:
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    stage = f"10 tests 1/1 -p no:cacheprovider --rootdir={tmp_path} {tmp_path}"
    assert main([str(tmp_path / "out"), "--stage", stage]) == 1
    (summary,) = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["timed_out"]
    assert (summary["counts"]["passed"], summary["unfinished"]) == (1, ["test_endless.py::test_hangs"])


def test_results_of_a_record(tmp_path: Path) -> None:
    """Without the line that is not finished; a test's last line counts."""
    record = tmp_path / "r.jsonl"
    ends = [("a::b", "begun"), ("a::b", "passed"), ("a::c", "begun"), ("a::c", "failed"), ("a::d", "begun")]
    record.write_text(
        "".join(json.dumps({"test": t, "outcome": o}) + "\n" for t, o in ends) + '{"test": "a::'
    )
    found = results(record)
    assert found.counts == {"passed": 1, "failed": 1, "skipped": 0}
    assert (found.failed, found.unfinished) == (["a::c"], ["a::d"])
    assert results(tmp_path / "none").unfinished == []


@pytest.mark.parametrize("text", ["tests 1/2", "0 tests 1/2", "10", "-3 tests"])
def test_what_is_no_stage(text: str) -> None:
    with pytest.raises(ValueError, match="a stage is|could not convert"):
        Stage.parse(text)
