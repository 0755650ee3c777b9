"""Handlers of indexing agree with ONNX's own tests."""

from typing import Any

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, from_onnx, indexing
from tests.helpers.onnx_models import agrees, beside_onnxruntime, contributed, node_tests, single

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", node_tests(indexing))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_negative_positions_count_from_the_end() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    graph = single("Gather", {"x": x.shape, "i": (2, 2)}, axis=1)
    index = np.array([[0, -1], [-4, 2]])
    np.testing.assert_array_equal(graph({"x": x, "i": index})["y0"].numpy(), x[:, index])


def _index(shape: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    """Positions [*shape, len(sizes)] in axes of these sizes, some from the end."""
    return np.stack([RNG.integers(-n, n, shape) for n in sizes], -1).astype(np.int64)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("batch", [0, 1, 2])
@pytest.mark.parametrize("outer", [(), (3,), (4, 1)])
def test_slices_at_positions_of_several_axes(batch: int, depth: int, outer: tuple[int, ...]) -> None:
    x = RNG.standard_normal((2, 3, 4, 5)).astype(np.float32)
    index = _index((*x.shape[:batch], *outer), x.shape[batch : batch + depth])
    beside_onnxruntime("GatherND", (x, index), domain="", batch_dims=batch)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_slices_and_elements_along_an_axis(axis: int) -> None:
    x = RNG.standard_normal((2, 3, 5)).astype(np.float32)
    n = x.shape[axis]
    for shape in ((), (4,), (2, 1, 3)):
        beside_onnxruntime("Gather", (x, np.array(RNG.integers(-n, n, shape))), domain="", axis=axis)
    beside_onnxruntime("GatherElements", (x, RNG.integers(-n, n, (2, 3, 5))), domain="", axis=axis)
    beside_onnxruntime("GatherElements", (x, RNG.integers(-n, n, (1, 2, 3))), domain="", axis=axis)


@pytest.mark.parametrize("reduction", [None, "none", "add", "mul", "max", "min"])
def test_what_is_written_at_positions(reduction: str | None) -> None:
    """Each position once where the last write would win."""
    x = RNG.standard_normal((4, 3, 5)).astype(np.float32)
    options: Any = {} if reduction is None else {"reduction": reduction}
    for depth, rows in ((1, 2), (2, 4), (3, 7)):
        every = np.stack(
            np.unravel_index(RNG.permutation(np.prod(x.shape[:depth]))[:rows], x.shape[:depth]), -1
        )
        index = every.astype(np.int64) - np.array(x.shape[:depth]) * (depth == 2)
        updates = RNG.standard_normal((rows, *x.shape[depth:])).astype(np.float32)
        beside_onnxruntime("ScatterND", (x, index, updates), domain="", **options)
    for axis in (0, 1, -1):
        n = x.shape[axis]
        index = np.stack([RNG.permutation(n)[:2] for _ in range(6)]).reshape(3, 2, 2).swapaxes(axis, 2) - n
        updates = RNG.standard_normal(index.shape).astype(np.float32)
        beside_onnxruntime("ScatterElements", (x, index, updates), domain="", axis=axis, **options)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_slices_whose_condition_holds(axis: int | None) -> None:
    """A condition that is shorter than the axis keeps nothing behind its end."""
    x = RNG.standard_normal((4, 3, 5)).astype(np.float32)
    options: Any = {} if axis is None else {"axis": axis}
    for keep in ([True, False, True], [False, True], [False, False]):
        beside_onnxruntime("Compress", (x, np.array(keep)), held=(1,), domain="", **options)


@pytest.mark.parametrize("ordered", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_different_elements_and_slices(axis: int | None, ordered: int) -> None:
    x = np.array([[2, 1, 1, 2], [0, 3, 3, 0], [2, 1, 1, 2], [-1, 5, 5, -1]], np.float32)
    options: Any = {} if axis is None else {"axis": axis}
    names = ("values", "first", "inverse", "counts")
    beside_onnxruntime("Unique", (x,), names, held=(0,), domain="", sorted=ordered, **options)


@pytest.mark.parametrize("centred", [0, 1])
@pytest.mark.parametrize("limits", [(3, 0.5), (3, 0.1, 0.3), (20, 0.3, -1.0), (1, 1.0, 0.5), (0, 0.5)])
def test_boxes_that_overlap_no_better_one(centred: int, limits: tuple[float, ...]) -> None:
    boxes, scores = RNG.random((2, 12, 4)).astype(np.float32), RNG.random((2, 3, 12)).astype(np.float32)
    most, *others = limits
    given = (boxes, scores, np.array([most], np.int64), *(np.array([x], np.float32) for x in others))
    held = tuple(range(len(given)))
    beside_onnxruntime("NonMaxSuppression", given, held=held, domain="", center_point_box=centred)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 5)])
def test_features_are_elements_of_the_last_axis(shape: tuple[int, ...]) -> None:
    x = RNG.standard_normal(shape).astype(np.float32)
    proto, given = contributed("ArrayFeatureExtractor", (x, np.array([[4, 0, 0]])), domain="ai.onnx.ml")
    found = from_onnx(proto)(*given.values()).numpy()
    np.testing.assert_array_equal(found, x[..., [4, 0, 0]].reshape(found.shape))
    assert found.shape == (*(shape[:-1] or (1,)), 3)


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, 2, -1])
def test_a_cache_is_written_from_each_samples_place_on(axis: int, mode: str) -> None:
    cache = RNG.standard_normal((3, 6, 5)).astype(np.float32)
    shape = [3, 6, 5]
    shape[axis] = 2
    update, start = (
        RNG.standard_normal(shape).astype(np.float32),
        np.array([0, 3, 4 if mode == "circular" else 2]),
    )
    for places in ((start,), ()):
        given = {"c": cache, "u": update, **dict(zip("s", places, strict=False))}
        graph = single(
            "TensorScatter", {n: a.shape for n, a in given.items()}, opset=24, axis=axis, mode=mode
        )
        wanted = np.moveaxis(cache.copy(), axis, 1)
        for n, first in enumerate(start if places else [0, 0, 0]):
            for k in range(2):
                wanted[n, (first + k) % wanted.shape[1]] = np.moveaxis(update, axis, 1)[n, k]
        np.testing.assert_array_equal(graph(given)["y0"].numpy(), np.moveaxis(wanted, 1, axis))


def test_a_reduction_that_is_unknown_is_refused() -> None:
    given = {"x": np.ones((2, 2), np.float32), "i": np.array([[0]]), "u": np.ones((1, 1), np.float32)}
    graph = single("ScatterElements", {n: a.shape for n, a in given.items()}, reduction="median")
    with pytest.raises(OnnxError, match="reduction must be one of none, add, mul, max, min, got 'median'"):
        graph(given)
