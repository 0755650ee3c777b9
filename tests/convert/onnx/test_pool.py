"""Handlers of pooling agree with ONNX's own tests."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from lamina.convert.onnx import OnnxError, OnnxGraph, pool
from tests.helpers.onnx_models import agrees, model, node_tests, single


@pytest.mark.parametrize("name", node_tests(pool))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_a_mean_does_not_count_what_rounding_up_adds() -> None:
    x = np.arange(5, dtype=np.float32).reshape(1, 1, 5)
    options = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    found = single("AveragePool", {"x": x.shape}, **options)({"x": x})["y0"].numpy()
    np.testing.assert_allclose(found, [[[0.5, 2.5, 4.0]]])


def test_positions_of_maxima_are_counted_through_the_whole_input() -> None:
    x = np.random.default_rng(0).permutation(2 * 3 * 4 * 4).reshape(2, 3, 4, 4).astype(np.float32)
    graph = single("MaxPool", {"x": x.shape}, 2, kernel_shape=[2, 2], strides=[2, 2])
    y, index = (v.numpy() for v in graph({"x": x}).values())
    np.testing.assert_array_equal(x.reshape(-1)[index], y)


def test_kernels_without_end_are_refused() -> None:
    """What no pooling op takes is written out place by place; a file may ask for any number of them."""
    x = np.zeros((1, 1, 4, 4), np.float32)
    with pytest.raises(OnnxError, match="has more than 4096 places"):
        single("MaxPool", {"x": x.shape}, kernel_shape=[2, 65536])({"x": x})


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool"])
def test_large_kernels_are_those_of_the_pooling_ops(operator: str, rank: int) -> None:
    """They may have more places than what is written out."""
    shape = {1: (5000,), 2: (70, 80), 3: (9, 30, 20)}[rank]
    x = np.random.default_rng(0).normal(size=(1, 2, *shape)).astype(np.float32)
    kernel = [n - 1 for n in shape]
    found = single(operator, {"x": x.shape}, kernel_shape=kernel)({"x": x})["y0"].numpy()
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, tuple(range(2, 2 + rank)))
    reduced = windows.max if operator == "MaxPool" else windows.mean
    np.testing.assert_allclose(found, reduced(tuple(range(-rank, 0))), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {}, {"strides": [2, 1]}, {"pads": [2, 0, 1, 1]}, {"pads": [0, 1, 2, 1], "strides": [2, 2]},
        {"ceil_mode": 1, "strides": [2, 3]}, {"ceil_mode": 1, "strides": [2, 2], "pads": [1, 1, 0, 1]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"auto_pad": "SAME_LOWER", "strides": [2, 3]},
        {"auto_pad": "VALID", "strides": [3, 2]}, {"dilations": [2, 1]},
        {"dilations": [2, 2], "pads": [1, 1, 2, 0], "strides": [1, 2]},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(
    ("operator", "more", "count"),
    [
        ("MaxPool", {}, 1), ("MaxPool", {}, 2), ("MaxPool", {"storage_order": 1}, 2), ("AveragePool", {}, 1),
        ("AveragePool", {"count_include_pad": 1}, 1), ("LpPool", {}, 1), ("LpPool", {"p": 3}, 1),
    ],
)  # fmt: skip
def test_windows_are_onnxruntimes(
    operator: str, more: dict[str, Any], count: int, options: dict[str, Any]
) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 9, 8)).astype(np.float32)
    node = helper.make_node(operator, ["x"], ["y", "at"][:count], kernel_shape=[3, 2], **more, **options)
    proto = model([node], {"x": x.shape}, dict.fromkeys(["y", "at"][:count], ()))
    for info in proto.graph.output:  # its shape is what is asked
        info.type.tensor_type.ClearField("shape")
    if count == 2:
        proto.graph.output[1].type.tensor_type.elem_type = 7
    proto.ir_version = 10
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, theirs in zip(OnnxGraph(proto)({"x": x}).values(), session.run(None, {"x": x}), strict=True):
        assert (mine.shape, mine.dtype.numpy) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-4, atol=1e-5)
