"""The predictions of the documentation are those of the kept step; measured all-reduces become a link."""

import json
from typing import Any

import pytest

from benchmarks import all_reduce, simulated
from lamina.simulate import Link, Workload, all_reduce_seconds


@pytest.mark.feature("B057")
def test_the_kept_predictions_are_made_again() -> None:
    kept = json.loads((simulated.RESULTS / "simulated-2026-11-23.json").read_text())
    _same(simulated.predictions(), kept)


def _same(made: Any, kept: Any) -> None:
    """Equal, numbers up to rounding."""
    if isinstance(kept, dict):
        assert made.keys() == kept.keys()
        for name in kept:
            _same(made[name], kept[name])
    elif isinstance(kept, list):
        for a, b in zip(made, kept, strict=True):
            _same(a, b)
    else:
        assert made == pytest.approx(kept, rel=1e-6, abs=1e-6)


@pytest.mark.feature("B057")
def test_the_kept_step_is_resnet50s() -> None:
    work = Workload.of_record(json.loads(simulated.STEP.read_text()))
    assert work.seconds == pytest.approx(simulated.measured_seconds())
    assert len(work.gradients) == 161
    half = 2 * 25_557_032  # bytes of its parameters in bfloat16; those of norms are kept in float32
    assert half < work.nbytes < 1.01 * half
    found = simulated.predictions()
    for row in found["h200"]:
        assert 0.99 * row["gpus"] < row["speedup"] <= row["gpus"]
    assert found["mlperf_8_h200"]["samples_per_second"] > simulated.MLPERF[8]


@pytest.mark.feature("B057")
def test_measured_points_become_a_link() -> None:
    link = Link(5e-6, 3e11)
    points = [
        (n, s, all_reduce_seconds(s, n, link, "tree")) for n in (2, 4) for s in (1 << 12, 1 << 20, 1 << 28)
    ]
    found = all_reduce.fitted(points)
    assert found["link"] == pytest.approx({"latency": 5e-6, "bandwidth": 3e11, "algorithm": "tree"})
    assert [p["bytes"] for p in found["predicted"]] == [1 << 28] * 2
    for p in found["predicted"]:
        assert p["predicted"] == pytest.approx(p["measured"])
