"""Rules for networks on sequences: the same numbers, fewer passes over memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.graph import gradients, trace
from lamina.graph.passes.attention import join_parts, reshape_behind
from tests.helpers.encoder import layer, names, same

rng = np.random.default_rng(0)


@pytest.mark.feature("B011")
def test_steps_move_to_the_products() -> None:
    graph, arrays = layer(True)
    better = reshape_behind(graph)
    for node in better.nodes:
        if node.op.name in ("relu", "relu_grad"):
            assert node.outputs[0].ndim == 2, node
    same(graph, better, arrays)


def test_padded_parts_are_joined() -> None:
    def f(x: Any) -> Any:
        parts = ops.split(x, [2, 1, 4], 1)
        y = sum(ops.sum(ops.sin(p) * (i + 1.0)) for i, p in enumerate(parts))
        return gradients(y, [x])

    arrays = [rng.standard_normal((3, 7, 2))]
    graph = trace(f, *arrays)
    better = join_parts(graph)
    assert names(graph)["pad"] == 3
    assert names(better)["pad"] == 0
    assert names(better)["concat"] == 1
    same(graph, better, arrays)


def overlapping(x: Any) -> Any:
    return [ops.pad(x, (0, 2)) + ops.pad(x, (1, 1))]


def with_a_gap(x: Any) -> Any:
    return [ops.pad(x, (0, 5)) + ops.pad(x, (5, 0))]


def with_a_value(x: Any) -> Any:
    return [ops.pad(x, (0, 4), value=1.0) + ops.pad(x, (4, 0))]


@pytest.mark.parametrize("f", [overlapping, with_a_gap, with_a_value])
def test_other_sums_of_pads_stay(f: Callable[[Any], Any]) -> None:
    graph = trace(f, rng.standard_normal(4))
    assert join_parts(graph).nodes == graph.nodes


def test_broadcasts_over_reshaped_axes_stay() -> None:
    def f(x: Any, w: Any, b: Any) -> Any:
        return [ops.matmul(x, w).reshape((2, 3, 4)) + b]

    arrays = [rng.standard_normal(s) for s in ((6, 5), (5, 4), (3, 1))]
    graph = trace(f, *arrays)
    assert reshape_behind(graph).nodes == graph.nodes


def test_parts_of_a_longer_sum_are_joined() -> None:
    """Three parts cover the axis; a fourth term does not belong to them."""

    def f(x: Any, y: Any) -> Any:
        return [ops.pad(x[:2], (0, 5)) + ops.pad(x[2:3], (2, 4)) + ops.pad(x[3:], (3, 0)) + y]

    arrays = [rng.standard_normal(7) for _ in range(2)]
    graph = trace(f, *arrays)
    better = join_parts(graph)
    assert (names(better)["pad"], names(better)["concat"], names(better)["add"]) == (0, 1, 1)
    same(graph, better, arrays)


def test_a_reshape_of_a_reshape_is_one() -> None:
    graph = trace(lambda x: ops.exp(ops.reshape(ops.reshape(x, (6,)), (3, 2))), rng.standard_normal((2, 3)))
    assert names(reshape_behind(graph))["reshape"] == 1


def step_order(f: Any, *arrays: Any) -> list[str]:
    """The names of a function's ops after the pass, which gives the same values."""
    graph = trace(f, *arrays)
    better = reshape_behind(graph)
    same(graph, better, arrays)
    return [node.op.name for node in better.nodes]


def test_steps_move_before_a_reshape_that_copies_rows() -> None:
    """Windows of an image, joined: a step, or several of one tensor, may write the copy."""
    x = rng.standard_normal((2, 4, 3, 5))
    found = step_order(lambda x: [ops.exp(ops.tanh(x.transpose(1, 2).flatten(0, 1)) * 2.0)], x)
    assert found == ["transpose", "tanh", "mul", "exp", "reshape"]


def test_steps_stay_behind_other_reshapes() -> None:
    """Of a view, of columns (whose copy goes tile by tile), and where another whole tensor is read."""
    x, y = rng.standard_normal((2, 4, 3, 5)), rng.standard_normal((6, 4, 5))
    tokens = rng.standard_normal((2, 9, 5))
    assert step_order(lambda x: [ops.tanh(x.transpose(1, 2).reshape((2, 5, 3, 3)))], tokens)[-1] == "tanh"
    assert step_order(lambda x: [ops.tanh(x.transpose(1, 3).flatten(0, 1))], x)[-1] == "tanh"
    assert step_order(lambda x, y: [x.transpose(1, 2).flatten(0, 1) + y], x, y)[-1] == "add"
    assert step_order(lambda x: [ops.tanh(x.flatten(0, 1))], x)[-1] == "tanh"
