"""Handlers of indexing agree with ONNX's own tests."""

from typing import Any

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, indexing
from tests.helpers.onnx_models import agrees, beside_onnxruntime, node_tests, single

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


def test_a_reduction_that_is_unknown_is_refused() -> None:
    given = {"x": np.ones((2, 2), np.float32), "i": np.array([[0]]), "u": np.ones((1, 1), np.float32)}
    graph = single("ScatterElements", {n: a.shape for n, a in given.items()}, reduction="median")
    with pytest.raises(OnnxError, match="reduction must be one of none, add, mul, max, min, got 'median'"):
        graph(given)
