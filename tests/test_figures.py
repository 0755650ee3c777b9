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
