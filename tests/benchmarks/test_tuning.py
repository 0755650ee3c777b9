"""How the figures of tuning between steps are made of each step's time."""

import json
from pathlib import Path

import pytest

from benchmarks import tuning


@pytest.mark.feature("B051")
def test_the_time_is_split_where_tuning_ends() -> None:
    times = [500.0] * 3 + [10.0] * 100 + [15.0, 30.0] + [8.0] * 200
    opens = [5] * 104 + [0] * 201
    swaps = [0] * 104 + [2] * 201
    found = tuning.split(times, swaps, opens)
    assert (found["before_ms"], found["after_ms"], found["swaps"]) == (10.0, 8.0, 2)
    assert (found["first_swap_step"], found["settled_step"], found["is_settled"]) == (104, 104, True)
    assert (found["tuning_p50_ms"], found["slowest_ms"]) == (10.0, 30.0)
    still = tuning.split(times, [0] * 305, [0] * 305)
    assert (still["first_swap_step"], still["settled_s"]) == (None, None)
    assert "tuning_p99_ms" not in still


def test_losses_are_compared_up_to_the_first_swap() -> None:
    plain = {"losses": [3.0, 2.0, 1.0, 0.5]}
    tuned = {"losses": [3.0, 2.0, 1.1, 0.5], "first_swap_step": 1}
    found = tuning.compared(tuned, plain)
    assert found["equal_before_the_first_swap"]
    assert found["largest_relative_difference"] == pytest.approx(0.1)
    assert not tuning.compared({**tuned, "first_swap_step": 2}, plain)["equal_before_the_first_swap"]


@pytest.mark.feature("B051")
@pytest.mark.slow
def test_the_command_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["LeNet", "--batch-size", "4", "--seconds", "0", "--device", "cpu", "--precision", "fp32"]
    assert tuning.main([*arguments, "--out", str(tmp_path)]) == 0
    printed = capfd.readouterr().out
    record = json.loads(printed[printed.index("{") :])
    assert record["losses"]["largest_relative_difference"] == 0
    assert record["runs"]["tuning"]["tuning"].startswith("0 open, 0 done")
    assert [file.name.split("-")[0] for file in tmp_path.iterdir()] == ["tuning_LeNet"]
