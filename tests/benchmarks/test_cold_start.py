"""Where the time until the first step goes: what is counted, and that kernels are compiled beside planning."""

import json
from pathlib import Path

import pytest

from benchmarks import cold_start
from lamina.backends import Plan
from lamina.graph.planning.layout import Plans
from tests.helpers.cudnn.installed import needs_cudnn_919

pytest.importorskip("cuda.core")
pytestmark = needs_cudnn_919


@pytest.mark.parametrize("serial", [False, True])
def test_planning_is_taken_apart_without_a_gpu(
    serial: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[str] = []
    monkeypatch.setenv("LAMINA_CACHE", str(tmp_path))  # where no program is kept
    monkeypatch.setattr(Plan, "compile_ahead", lambda plan: begun.append(plan.label))
    found = cold_start.measured("tiny-train", "none", serial)
    assert found["launches"] > found["own_kernels"] >= found["sources"] > 0
    assert found["total_s"] == pytest.approx(found["planned_s"] + found["waited_for_kernels_s"])
    assert found["parts"]["passes"]["calls"] == 1
    assert bool(begun) is not serial
    shown = cold_start.text(found)
    assert shown.startswith("tiny-train: planned ")
    assert "    layouts: 1 in " in shown
    assert Plans.__dict__["_begun"].__qualname__ == "Plans._begun"


def test_what_fails_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cold_start.main(["no such workload"]) == 1
    assert capsys.readouterr().out.startswith("no such workload, caches empty: ['StopIteration'")


@pytest.mark.slow
def test_the_second_process_finds_the_caches_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert cold_start.main(["tiny-dilated", "--serial", "--again"]) == 0
    shown = capsys.readouterr().out
    first, second = shown.split("tiny-dilated, caches as found")
    assert first.startswith("tiny-dilated, caches empty: planned ")
    assert "own kernels" in first
    assert "own kernels" not in second


def test_one_result_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cold_start.main(["tiny-dilated", "--here"]) == 0
    assert json.loads(capsys.readouterr().out)["workload"] == "tiny-dilated"
