"""How a step scales: what is compared with what, and the whole of it on CPUs."""

from pathlib import Path

import pytest

from benchmarks.common import files_of


@pytest.mark.torch
def test_times_of_more_ranks_are_compared_with_those_of_the_fewest() -> None:
    from benchmarks.weak_scaling import efficiencies, ways_of

    times = {
        1: {"lamina": {"ms": 10.0}, "ddp": {"error": "RuntimeError"}},
        2: {"lamina": {"ms": 10.5}, "lamina-shards": {"ms": 12.5}, "ddp": {"ms": 20.0}},
    }
    assert efficiencies(times) == {"lamina": {"1": 1.0, "2": 0.9524}, "lamina-shards": {"2": 0.8}}
    assert ways_of(1, ["lamina", "lamina-shards"], "cuda") == ["lamina"]
    assert ways_of(2, ["lamina-shards", "ddp-bf16"], "cuda") == ["lamina-shards", "ddp-bf16"]
    assert ways_of(2, ["lamina-bf16", "ddp-bf16"], "cpu") == ["lamina-bf16"]


@pytest.mark.slow
@pytest.mark.torch
def test_two_ranks_on_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    from benchmarks import weak_scaling

    settings = ["--device", "cpu", "--only", "small", "--rounds", "2", "--seconds", "0.01"]
    monkeypatch.setattr("sys.argv", ["weak_scaling", *settings, "--out", str(tmp_path)])
    weak_scaling.main()
    (file,) = files_of("weak_scaling_cpu", tmp_path)
    found = json.loads(file.read_text())["networks"]["small"]
    assert found["ranks"]["1"].keys() == {"lamina", "ddp"}
    assert found["ranks"]["2"].keys() == {"lamina", "lamina-bf16", "lamina-shards", "lamina-apart", "ddp"}
    rows = [row for ways in found["ranks"].values() for row in ways.values()]
    assert all(row["ms"] > 0 and row["batch"] == 8 for row in rows)
    both = found["ranks"]["2"]
    assert both["lamina-shards"]["state_bytes"] < both["lamina"]["state_bytes"]
    assert found["efficiency"].keys() == both.keys()
