"""Handlers of reductions agree with ONNX's own tests."""

from typing import Any

import numpy as np
import pytest

from lamina.convert.onnx import reduction
from tests.helpers.onnx_models import agrees, beside_onnxruntime, node_tests, single


@pytest.mark.parametrize("name", node_tests(reduction))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_the_last_of_equal_extremes() -> None:
    x = np.array([[1, 3, 3], [2, 2, 0]], np.float32)
    found = single("ArgMax", {"x": x.shape}, axis=1, select_last_index=1, keepdims=0)({"x": x})["y0"].numpy()
    assert found.tolist() == [2, 1]


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("options", [{}, {"select_last_index": 0}, {"select_last_index": 1}], ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_the_place_of_the_extreme_among_equal_ones(
    operator: str, options: dict[str, int], axis: int | None
) -> None:
    x = np.random.default_rng(0).integers(0, 3, (4, 5, 6)).astype(np.float32)
    where: Any = options if axis is None else {**options, "axis": axis}
    beside_onnxruntime(operator, (x,), domain="", **where)
    beside_onnxruntime(operator, (x,), domain="", keepdims=0, **where)


@pytest.mark.parametrize("operator", ["Mean", "L1", "L2", "SumSquare", "LogSum", "LogSumExp", "Prod"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_reductions_of_integers_are_integers_cut_towards_zero(operator: str, dtype: Any) -> None:
    x = np.array([[1, 2, 4], [7, -3, 3], [-7, 3, 3]], dtype)
    x = np.abs(x) if "Log" in operator else x
    beside_onnxruntime(f"Reduce{operator}", (x, np.array([1])), held=(1,), domain="", keepdims=0)


@pytest.mark.parametrize("operator", ["CumSum", "CumProd"])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums_and_products_from_either_end(operator: str, exclusive: int, reverse: int) -> None:
    x = np.random.default_rng(0).uniform(0.5, 1.5, (3, 4, 5)).astype(np.float32)
    run, neutral = (np.cumsum, 0.0) if operator == "CumSum" else (np.cumprod, 1.0)
    for axis in (0, 1, -1):
        graph = single(
            operator,
            {"x": x.shape, "a": ()},
            opset=26 if operator == "CumProd" else 22,
            exclusive=exclusive,
            reverse=reverse,
        )
        turned = np.flip(x, axis) if reverse else x
        wanted = run(turned.astype(np.float64), axis)
        if exclusive:
            wanted = np.roll(wanted, 1, axis)
            np.moveaxis(wanted, axis, 0)[0] = neutral
        wanted = np.flip(wanted, axis) if reverse else wanted
        np.testing.assert_allclose(graph({"x": x, "a": np.array(axis)})["y0"].numpy(), wanted, rtol=1e-5)


def test_running_sums_of_small_integers_keep_their_dtype() -> None:
    x = np.array([1, 2, 3], np.int32)
    graph = single("CumSum", {"x": (3,), "a": ()}, exclusive=1, reverse=1)
    found = graph({"x": x, "a": np.array(0)})["y0"].numpy()
    assert (found.dtype, found.tolist()) == (np.int32, [5, 3, 0])
