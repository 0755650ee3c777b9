"""Joined parts of a step's result become a step of joined parts: the same bits, and nothing is written in between."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.backends.cuda import backend
from lamina.graph import Graph, compile, gradients, trace
from lamina.graph.passes.manager import optimize
from lamina.graph.passes.steps_behind_parts import steps_behind_parts
from lamina.spec import Spec, bfloat16, float32
from tests.helpers.planned import H200


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def behind(fn: Any, *specs: Spec) -> Graph:
    """The graph of a function after the pass, which gives the same bits."""
    graph = trace(fn, *specs)
    better = steps_behind_parts(graph)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s.shape).astype(s.dtype.numpy) for s in specs]
    ways = [compile(g, "cpu", backend="reference", optimize=False)(*arrays) for g in (better, graph)]
    for found, wanted in zip(*ways, strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    return better


def turned(x: Any) -> Any:
    """(a, b) -> (-b, a), halves of the last axis."""
    half = x.shape[-1] // 2
    return ops.cat([-x[..., half:], x[..., :half]], -1)


X = Spec((2, 3, 8), float32)


def test_a_product_is_turned_before_it_is_multiplied() -> None:
    better = behind(
        lambda x, y: turned((x.float() * y).to(dtype="bfloat16")),
        Spec((2, 3, 8), bfloat16),
        Spec((3, 8), float32),
    )
    assert names(better)[-2:] == ["mul", "cast"]
    assert {tuple(n.inputs[0].shape) for n in better.nodes if n.op.name == "concat"} == {(2, 3, 4), (3, 4)}
    assert [n.inputs[0].dtype for n in better.nodes if n.op.name == "neg"] == [bfloat16]


def test_what_is_repeated_along_the_axis_is_not_cut() -> None:
    better = behind(lambda x, y: turned(x * y), X, Spec((3, 1), float32))
    assert names(better) == ["slice", "slice", "neg", "concat", "mul"]


def test_any_parts_in_any_order() -> None:
    """Three parts, one of them of every second element, along a negative axis; the activation has no sign."""
    better = behind(lambda x: ops.cat([(y := ops.relu(x))[:, 2:], y[:, :1], y[:, ::2]], -2), X)
    assert names(better) == ["slice", "slice", "slice", "concat", "relu"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: turned(ops.relu(x)),  # -relu(x) is not relu(-x)
        lambda x: [turned(y := x * x.float().sum()), y],  # the product is wanted by itself
        lambda x: ops.cat([ops.exp(x)[:, :2], ops.exp(x + 1.0)[:, 2:]], 1),  # parts of two tensors
        lambda x: ops.cat([(y := ops.exp(x))[:1, :2], y[1:, 2:]], 1),  # cut along another axis, too
    ],
)
def test_what_stays(fn: Any) -> None:
    graph = trace(fn, X)
    assert names(behind(fn, X)) == names(graph)


def test_a_rotary_embeddings_gradient_is_one_kernel() -> None:
    """Under autocast sines and cosines are float32, heads are rounded behind each product."""
    cuda = backend(H200)

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        return ((x.float() * cos).to(dtype="bfloat16")) + (turned(x).float() * sin).to(dtype="bfloat16")

    def gradient(x: Any, cos: Any, sin: Any, g: Any) -> Any:
        return gradients(rotated(x, cos, sin), [x], [g])

    heads, angles = Spec((2, 3, 5, 16), bfloat16), Spec((5, 16), float32)
    better = optimize(trace(gradient, heads, angles, angles, heads), cuda, stays=())
    assert [name for name in names(better) if name not in ("concat", "slice")] == ["fused_elementwise"]
