"""Attention reads parts of other tensors where they lie: the same numbers, no copies of the parts."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.backends.cuda.attention.parted_attention_fusion import PARTED_ATTENTION
from lamina.graph import Graph, gradients, trace
from lamina.graph.passes.fusion import fuse_patterns
from lamina.graph.passes.pattern import Report
from lamina.ops.core import Array
from lamina.spec import bfloat16
from tests.helpers.encoder import names, same
from tests.helpers.stand_in import CUDA, StandIn

rng = np.random.default_rng(0)


def heads(x: Any, count: int) -> Any:
    """[B, S, H D] as [B, H, S, D]."""
    return ops.permute(x.reshape((*x.shape[:2], count, x.shape[2] // count)), (0, 2, 1, 3))


def keys_and_values(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Two halves of a projection of another sequence."""
    k, v = ops.chunk(y, 2, -1)
    return heads(x, 2), heads(k, 2), heads(v, 2)


def wide_values(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Each head's q, k and v side by side, v twice as wide (LeViT)."""
    parts = ops.split(x.reshape((*x.shape[:2], 2, 32)), [8, 8, 16], 3)
    q, k, v = (ops.permute(p, (0, 2, 1, 3)) for p in parts)
    return q, k, v


def channels(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Each head's q, k and v among the channels of an image (CoAtNet)."""
    image = ops.permute(x, (0, 2, 1)).reshape((2, 2, 24, x.shape[1]))
    q, k, v = (ops.permute(p, (0, 1, 3, 2)) for p in ops.chunk(image, 3, 2))
    return q, k, v


def other_order(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Thirds as k, v, q."""
    k, v, q = ops.chunk(x, 3, -1)
    return heads(q, 2), heads(k, 2), heads(v, 2)


#: The parts, and the features of their projections.
CASES: list[tuple[Callable[..., Any], int, int]] = [
    (keys_and_values, 16, 32),
    (wide_values, 64, 8),
    (channels, 48, 8),
    (other_order, 48, 8),
]


def traced(
    parts: Callable[..., Any], wide: int, beside: int, bias: bool, queries: int = 5
) -> tuple[Graph, list[Array]]:
    """Attention on parts of two sequences, the second one longer by one, with its gradients."""
    rows = queries + 1 if parts is keys_and_values else queries

    def f(x: Any, y: Any, b: Any) -> Any:
        made = ops.attention(*parts(x, y), *([b] if bias else []))
        return [made, *gradients((made * made).sum(), [x, y] if rows > queries else [x])]

    arrays = [
        rng.standard_normal(s) for s in ((2, queries, wide), (2, queries + 1, beside), (1, 2, queries, rows))
    ]
    return trace(f, *arrays), arrays


@pytest.mark.feature("B013", "B022")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("parts", "wide", "beside"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_parts_are_read_where_they_lie(parts: Callable[..., Any], wide: int, beside: int, bias: bool) -> None:
    graph, arrays = traced(parts, wide, beside, bias)
    better = fuse_patterns(graph, [PARTED_ATTENTION], StandIn(), Report())
    found = names(better)
    assert found["parted_attention"] == 2  # and the gradient's
    assert not {"slice", "attention", "attention_grad"} & set(found)
    same(graph, better, arrays)


def test_whole_tensors_stay() -> None:
    """Transpositions and reshapes alone are views already."""
    graph = trace(lambda x: [ops.attention(*[heads(x, 2)] * 3)], rng.standard_normal((2, 5, 16)))
    better = fuse_patterns(graph, [PARTED_ATTENTION], StandIn(), Report())
    assert "parted_attention" not in names(better)


def test_a_part_that_is_no_view_stays() -> None:
    """A reshape that mixes the rows and columns of a slice is a copy."""

    def f(x: Any) -> Any:
        taken = x[:, :, 4:].reshape((2, 2, 5, 6))
        return [ops.attention(taken, taken, taken)]

    graph = trace(f, rng.standard_normal((2, 5, 16)).astype(bfloat16.numpy))
    report = Report()
    better = fuse_patterns(graph, [PARTED_ATTENTION], CUDA, report)
    assert names(better) == names(graph)
    assert "take no view" in report.refused[0]
