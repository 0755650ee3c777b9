"""Handlers of operators that move elements agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, shape
from tests.helpers.onnx_models import agrees, beside_onnxruntime, node_tests, single


@pytest.mark.parametrize("name", node_tests(shape))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


@pytest.mark.parametrize(
    "key", [slice(None, None, -1), slice(4, 0, -2), slice(-2, -9, -1), slice(1, 4, 2), slice(3, 3)]
)
def test_slices_walk_as_pythons_do(key: slice) -> None:
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    end = np.iinfo(np.int64)
    start = key.start if key.start is not None else end.max
    stop = key.stop if key.stop is not None else end.min
    graph = single("Slice", {"x": x.shape, "s": (1,), "e": (1,), "a": (1,), "t": (1,)})
    given = {"s": start, "e": stop, "a": 1, "t": key.step or 1}
    found = graph({"x": x} | {n: np.array([v], np.int64) for n, v in given.items()})["y0"].numpy()
    np.testing.assert_array_equal(found, x[:, key])


@pytest.mark.parametrize("step", [1, 2, -1, -2])
@pytest.mark.parametrize("start", [-9, -3, 1, 9])
@pytest.mark.parametrize("end", [-9, -1, 0, 2, 9, 2**31 - 1, 2**63 - 1, -(2**63)])
def test_ends_of_slices_are_read_as_onnxruntime_does(start: int, end: int, step: int) -> None:
    """A start before the first element is the first one; the largest end is the end, backwards too."""
    x, given = np.arange(3, dtype=np.float32), [np.array([v], np.int64) for v in (start, end, 0, step)]
    beside_onnxruntime("Slice", (x, *given), domain="", held=(1, 2, 3, 4))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_padding_cuts_with_negative_numbers(mode: str) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    graph = single("Pad", {"x": x.shape, "p": (4,)}, mode=mode)
    found = graph({"x": x, "p": np.array([1, -1, 2, 2])})["y0"].numpy()
    np.testing.assert_array_equal(found, np.pad(x[:, 1:], ((1, 2), (0, 2)), mode))


def test_a_shape_that_keeps_an_axis_that_is_not_there_is_refused() -> None:
    with pytest.raises(OnnxError, match=r"shape \(6, 0\) keeps the size of an axis"):
        single("Reshape", {"x": (6,), "s": (2,)})({"x": np.ones(6, np.float32), "s": np.array([6, 0])})


def test_without_a_permutation_all_axes_are_turned_around() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(single("Transpose", {"x": x.shape})({"x": x})["y0"].numpy(), x.T)
