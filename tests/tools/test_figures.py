"""Figures in the documentation are those of the newest measurements."""

import pytest

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
    case = {
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
    started = figures.suite_start(record | {"date": "2026-01-01", "cases": [_started(case)]})
    assert "| gru-t20-both | lamina | 9.0 s | 2.0 s | 3 MiB |" in started


def _started(case: dict[str, object]) -> dict[str, object]:
    facts = {"median_ms": 1.0, "cold_first_step_s": 9.0, "first_step_s": 2.0, "peak_bytes": 3 << 20}
    return case | {"results": {"lamina": facts, "jax": {"error": "no"}}}


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
