"""ONNX Runtime's operators that move elements: its numbers."""

from typing import Any

import numpy as np
import pytest

from lamina.convert.onnx import from_onnx
from tests.helpers.onnx_models import beside_onnxruntime, contributed

RNG = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_a_new_axis(axis: int) -> None:
    beside_onnxruntime("ExpandDims", (_normal(3, 4), np.array(axis, np.int32)), held=(1,))


def test_operators_that_onnx_has_too() -> None:
    beside_onnxruntime("Pad", (_normal(3, 4), np.array([1, 0, 0, 2]), np.float32([0.5])), held=(1, 2))
    beside_onnxruntime("Trilu", (_normal(4, 5), np.array(1)), held=(1,), upper=0)
    beside_onnxruntime("GatherND", (_normal(3, 4), np.array([[1, 2], [0, 3]])))


def test_a_range_with_and_without_a_step() -> None:
    beside_onnxruntime("Range", (np.array([1]), np.array(9), np.array(2)), held=(0, 1, 2))
    beside_onnxruntime("Range", (np.array(1, np.float32), np.array(9.5, np.float32)), held=(0, 1))


def test_different_elements_as_they_come() -> None:
    x = np.array([2, 1, 1, 3, 4, 3], np.float32)
    beside_onnxruntime("Unique", (x,), ("y", "place", "count"), held=(0,))


def test_windows_of_an_axis() -> None:
    beside_onnxruntime("UnfoldTensor", (_normal(3, 9),), size=3, step=2)
    beside_onnxruntime("UnfoldTensor", (_normal(3, 9, 2),), size=4, step=1, dim=1)


def test_a_range_that_depends_on_an_input_runs_op_by_op() -> None:
    proto, given = contributed("Range", (np.array(1), np.array(4)))
    assert from_onnx(proto)(*given.values()).numpy().tolist() == [1, 2, 3]
