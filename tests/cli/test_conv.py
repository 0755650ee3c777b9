"""`lamina conv`: the support list without a GPU, and (on a GPU) the measured table."""

import json
from typing import Any

import numpy as np
import pytest

from lamina.backends.reference import run_reference
from lamina.cli import main
from lamina.cli.conv_case import Case, CaseRow, remarks
from lamina.spec import float64
from tests.helpers.cudnn.installed import needs_cudnn_919

SMALL = ["conv", "--n", "8", "--c", "32", "--k", "64", "--h", "16", "--w", "12", "--pad", "1"]


def rows(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert main([*SMALL, "--device", "none", "--json", *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


# --------------------------------------------------------------------------------------------------- the case


def case(**changes: Any) -> Case:
    return Case(
        **{"n": 2, "c": 4, "h": 9, "w": 8, "k": 6, "r": 3, "s": 2, "pad": (1, 0), "stride": (2, 1)} | changes
    )


def test_sizes_agree_with_the_ops() -> None:
    one = case(dilation=(1, 2), groups=2)
    arrays = {name: np.ones(shape) for name, shape in (("x", one.x), ("w", one.filter), ("y", one.y))}
    operands = {"forward": "xw", "data": "yw", "filter": "xy"}
    for direction, names in operands.items():
        (result,) = run_reference(one.op(direction), [arrays[n] for n in names], float64)
        assert result.shape == one.shapes(direction)[2]
        assert [arrays[n].shape for n in names] == list(one.shapes(direction)[:2])
    assert one.y == (2, 6, 5, 6)
    assert one.flops == 2 * 2 * 6 * 5 * 6 * 2 * 3 * 2
    assert one.nbytes == 2 * (2 * 4 * 9 * 8 + 6 * 2 * 3 * 2 + 2 * 6 * 5 * 6)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="c=4 and k=6 are not multiples of groups=4"):
        case(groups=4)
    with pytest.raises(ValueError, match="filter 12x2 does not fit into the padded 9x8"):
        case(r=12)


def test_what_runs_nothing_is_said() -> None:
    one = case(dtype="float64")
    rows = [
        CaseRow("forward", "imperative", "algo_0", milliseconds=1.0),
        CaseRow("forward", "imperative", "algo_1", refused="not_supported"),
        CaseRow("data", "imperative", "algo_0", refused="not_supported"),
        CaseRow("data", "imperative", "algo_1", refused="not_supported"),
        CaseRow("data", "graph", "eng0", refused="NOT_SUPPORTED_LAYOUT: no"),
    ]
    assert remarks(one, rows) == [
        "data: the imperative API does not run float64 nhwc: not_supported; --layout nchw may",
        "data: the graph API does not run float64 nhwc: NOT_SUPPORTED_LAYOUT: no",
    ]
    assert remarks(one, rows[:2]) == []


# ------------------------------------------------------------------------------------------------ without a GPU


@needs_cudnn_919
@pytest.mark.feature("F119", "F090", "B007")
def test_support_list(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys)
    assert found["where"] == "planned without a GPU"
    assert found["case"]["y"] == [8, 64, 16, 12]
    for direction in ("forward", "data", "filter"):
        of = [CaseRow(**row) for row in found["rows"] if row["direction"] == direction]
        engines = [row for row in of if row.api == "graph" and not row.refused]
        assert len({row.name.split("{")[0] for row in engines}) == len(engines) > 3
        assert any("tensor_core" in row.notes for row in engines)
        assert all(row.milliseconds is None and row.error is None for row in of)
        assert any(row.deterministic for row in engines)
        named = {row.name for row in of if row.api == "imperative"}
        assert "fft_tiling" in named or "algo_1" in named
        assert "count" not in named


@needs_cudnn_919
@pytest.mark.feature("F119")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_every_type_and_layout(dtype: str, layout: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "--dtype", dtype, "--layout", layout, "--direction", "filter", "--engines", "best")
    engines = [row for row in found["rows"] if row["api"] == "graph"]
    assert len(engines) == 1
    assert engines[0]["refused"] == ""
    assert {row["direction"] for row in found["rows"]} == {"filter"}


@pytest.mark.feature("F120")
@needs_cudnn_919
def test_all_engines_are_more_than_the_best_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    count = {}
    for engines in ("none", "best", "each", "all"):
        found = rows(capsys, "--direction", "forward", "--engines", engines)["rows"]
        count[engines] = sum(row["api"] == "graph" and not row["refused"] for row in found)
    assert count["none"] == 0
    assert count["best"] == 1 < count["each"] < count["all"]


@needs_cudnn_919
@pytest.mark.feature("F119", "B008", "F120")
def test_table_and_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    odd = ["conv", "--c", "35", "--k", "30", "--groups", "5", "--device", "none", "--direction", "forward"]
    assert main(odd) == 0
    out = capsys.readouterr().out
    assert "x (64, 35, 56, 56), w (30, 7, 3, 3), y (64, 30, 54, 54), bfloat16, nhwc" in out
    assert "not asked: that needs a GPU" in out
    assert "implicit_precomp_gemm" in out


@pytest.mark.feature("F120")
def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--device", "none", "--groups", "3"]) == 1
    assert "not multiples of groups=3" in capsys.readouterr().err
    assert main(["conv", "--stride", "1", "2", "3", "--device", "none"]) == 1
    assert "--stride takes one number or two, got 3" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*SMALL, "--pad", "-1"])


# -------------------------------------------------------------------------------------------------- with a GPU


#: (direction, API) of which nothing runs in float64, channels last: every imperative gradient is refused, while the
#: graph API has engines for all three directions. CaseRow-major both APIs run all three (cuDNN 9.19).
WITHOUT_FLOAT64 = {("data", "imperative"), ("filter", "imperative")}


@pytest.mark.gpu
@pytest.mark.feature("F119", "F079", "F081", "F090", "F120")
@pytest.mark.parametrize(
    ("dtype", "layout", "bound"),
    [
        ("bfloat16", "nhwc", 5e-2),
        ("float32", "nhwc", 5e-3),
        ("float64", "nhwc", 1e-12),
        ("float64", "nchw", 1e-12),
    ],
)
def test_measured(dtype: str, layout: str, bound: float, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--dtype", dtype, "--layout", layout, "--repeats", "3", "--json", "--device", "cuda"]
    assert main([*SMALL, *wanted]) == 0
    found = json.loads(capsys.readouterr().out)
    run = [r for r in found["rows"] if not r["refused"]]
    every = {
        (direction, api) for direction in ("forward", "data", "filter") for api in ("imperative", "graph")
    }
    without = WITHOUT_FLOAT64 if (dtype, layout) == ("float64", "nhwc") else set()
    assert {(r["direction"], r["api"]) for r in run} == every - without
    assert {(r["direction"], r["api"]) for r in found["rows"]} == every
    assert len(found["remarks"]) == len(without)
    assert all(row["milliseconds"] > 0 and row["tflops"] > 0 for row in run)
    assert all(row["error"] < bound for row in run if "winograd" not in row["name"])


@pytest.mark.gpu
@pytest.mark.feature("F119")
def test_large_cases_are_compared_with_double_precision(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["conv", "--n", "16", "--repeats", "2", "--engines", "best", "--json", "--device", "cuda"]) == 0
    )
    found = [row for row in json.loads(capsys.readouterr().out)["rows"] if row["api"] == "graph"]
    assert len(found) == 3
    assert all(row["error"] < 1e-2 and 0 < row["fraction"] < 1.2 for row in found)
