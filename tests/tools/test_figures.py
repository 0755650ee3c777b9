"""Figures in the documentation are those of the newest measurements."""

import re
from pathlib import Path

import pytest

from benchmarks import common
from benchmarks.common import RESULTS, files_of, write
from tools import figures


def test_the_documents_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main(["--check"]) == 0, capsys.readouterr().out


def test_a_block_is_replaced_and_the_rest_is_kept() -> None:
    rows = [{"call": "f", "ctypes_ns": 1, "lamina_ns": 3}]
    made = figures.call_cost({"date": "2026-01-01", "rows": rows, "processor": "a machine"})
    assert made.startswith("| call | bare ctypes |")
    assert "| f | 1 ns | 3 ns | 2 ns |" in made
    assert made.endswith("Measured 2026-01-01; a machine.\n")
    assert figures.filled("no figures here") == "no figures here"
    with pytest.raises(KeyError, match="unheard_of"):
        figures.filled("<!-- figures: unheard_of -->\n<!-- /figures -->")


def test_only_the_newest_result_of_each_kind_is_kept() -> None:
    kinds = [re.fullmatch(r"(\w+?)(-\d+){3,4}", path.stem) for path in RESULTS.iterdir()]
    names = [kind[1] for kind in kinds if kind]
    assert len(names) == len(kinds) == len(set(names)) > 0


def test_a_new_result_takes_the_place_of_older_ones_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    for name in ("a-2020-01-01", "a-2020-01-01-2", "a_b-2020-01-01", "a-b"):
        (tmp_path / f"{name}.json").write_text("{}")
    assert [p.stem for p in files_of("a", tmp_path)] == ["a-2020-01-01", "a-2020-01-01-2"]
    made = write("a", {"x": 1})
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["a-b.json", "a_b-2020-01-01.json", made.name]
    )
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert figures.newest("a")["x"] == 1
    other = tmp_path / "other"
    other.mkdir()
    (other / "a-2020-01-01.json").write_text("{}")
    write("a", {}, other)  # somebody's own folder
    assert (other / "a-2020-01-01.json").exists()


def test_steps_on_several_gpus_stand_beside_one() -> None:
    ranks = {
        "1": {"lamina": {"ms": 2.0, "batch": 8}, "ddp": {"ms": 4.0, "batch": 8}},
        "2": {
            "lamina": {"ms": 2.5, "batch": 8},
            "lamina-bf16": {"ms": 2.0, "batch": 8},
            "ddp": {"error": "RuntimeError"},
        },
    }
    shares = {"lamina": {"1": 1.0, "2": 0.8}, "lamina-bf16": {"2": 1.0}}
    record = {
        "date": "2026-01-01",
        "machine": "a GPU",
        "networks": {"small": {"ranks": ranks, "efficiency": shares}},
    }
    made = figures.weak_scaling(record)
    assert "| network | samples a GPU | way | 1 GPU, ms | 2 GPUs, ms | times one GPU, 2 |" in made
    assert "| small | 8 | lamina | 2.00 | 2.50 | 1.60 |" in made
    assert "| small | 8 | lamina-bf16 | 2.00 | 2.00 | 2.00 |" in made
    assert "ddp" not in made


def test_a_missing_result_is_named() -> None:
    with pytest.raises(FileNotFoundError, match="no result of nothing"):
        figures.newest("nothing")


def test_the_suite_shows_the_best_of_a_peers_modes_and_what_is_missing() -> None:
    results = {
        "lamina": {"median_ms": 1.5},
        "torch eager": {"median_ms": 4.0},
        "torch eager-amp": {"median_ms": 3.0},
        "jax": {"error": "out of memory"},
    }
    case: dict[str, object] = {
        "name": "gru-t20-both",
        "kind": "both",
        "network": "gru",
        "shape": [20, 16, 128],
        "size": [128, 1],
    }
    case |= {"dtype": "fp16", "results": results, "speedup": 2.0, "fraction_of_limit": 0.25}
    record = {"cases": [case], "geometric_mean": 2.0, "device": "a GPU", "cudnn": 91900, "threads": None}
    made = figures.suite(record | {"date": "2026-01-01"})
    assert made.startswith(
        "|  | batch | type | Lamina ms | PyTorch eager | JAX | faster than the best peer |"
    )
    row = (
        "| GRU of 1 layer, 128 units, 20 steps, forward + backward | 16 | fp16 | 1.5 | 3 | - | 2.00× | 25% |"
    )
    assert row in made
    assert "Geometric mean over the best peers: 2.00 times." in made
    assert made.endswith("Measured 2026-01-01; a GPU, cuDNN 91900.\n")
    tuned = case | {"results": results | {"lamina fastest": {"median_ms": 1.25}}, "regret": 1.2}
    both = {"cases": [tuned], "regret": 1.2, "geometric_mean_tuned": 2.4, "date": "2026-01-01"}
    made = figures.suite(record | both)
    assert "| Lamina ms | tuned | regret | PyTorch eager |" in made
    assert "| 1.5 | 1.25 | 1.20 | 3 |" in made
    assert "2.00 times; tuned 2.40, regret 1.20." in made
    settled = case | {"results": results | {"lamina tuned": {"median_ms": 1.2}}, "speedup_settled": 2.5}
    more = {"cases": [settled, case], "geometric_mean_settled": 2.5, "date": "2026-01-01"}
    made = figures.suite(record | more)
    assert (
        "| Lamina ms | tuned between steps | PyTorch eager | JAX | faster than the best peer | tuned between"
        in made
    )
    assert "| 1.5 | 1.2 | 3 | - | 2.00× | 2.50× | 25% |" in made
    assert "| 1.5 | - | 3 | - | 2.00× | - | 25% |" in made
    assert "2.00 times; of those that are tuned between steps 2.50." in made
    started = figures.suite_start(record | {"date": "2026-01-01", "cases": [_started(case)]})
    assert "| gru-t20-both | lamina | 9.0 s | 2.0 s | 3 MiB |" in started


def _started(case: dict[str, object]) -> dict[str, object]:
    facts = {"median_ms": 1.0, "cold_first_step_s": 9.0, "first_step_s": 2.0, "peak_bytes": 3 << 20}
    return case | {"results": {"lamina": facts, "jax": {"error": "no"}}}


def test_planning_is_shown_with_empty_caches_and_with_those_found() -> None:
    facts = {"workload": "tiny", "planning_processor_s": 1.25, "processor_s": 8.75, "sources": 30}
    warm = facts | {"caches": "as found", "planning_processor_s": 0.25}
    record = {"results": [facts | {"caches": "empty"}, warm], "date": "2026-01-01", "processor": "a CPU"}
    assert "| tiny | 1.25 s | 0.25 s | 30 | 7.5 s |" in figures.cold_start(record)


def test_curves_are_compared_by_their_means() -> None:
    mean = {"network": "resnet18", "precision": "bf16", "seeds": 3, "difference": -0.25}
    mean |= {"accuracy": {"lamina": 98.0, "torch": 98.25}}
    made = figures.curves(
        {"date": "2026-01-01", "steps": 200, "batch": 64, "device": "a GPU", "means": [mean]}
    )
    assert "| ResNet-18 | bf16 | 3 | 98.00 % | 98.25 % | -0.25 points |" in made


def test_a_table_without_figures_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RESULTS", figures.ROOT / "benchmarks" / "nowhere")
    text = "<!-- figures: curves -->\n<!-- /figures -->"
    assert figures.filled(text) == "<!-- figures: curves -->\nNot measured yet.\n<!-- /figures -->"


def test_ways_of_pytorch_are_compared_with_the_best_of_its_own() -> None:
    times = {"eager": 4.0, "reduce-overhead": 3.0, "lamina": 2.0, "converted": 1.5}
    record = {
        "date": "2026-01-01",
        "machine": "a machine",
        "networks": {"net": {"batch": 8, "ms": times, "first_s": {}}},
    }
    made = figures.torch_backend(record)
    assert "| `net` | 8 | 4 | 3 | 2 | 1.5 | 1.50× | 2.00× |" in made
    assert "compile" not in made.splitlines()[0]
