"""Attention in steps: its graphs, run by NumPy from their descriptors, beside the formula and finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lamina.backends.cuda.launch.program import Place
from lamina.cudnn import Graph, Tensor
from lamina.cudnn.composed import Dropout, Lengths, attention, attention_grad
from tests.helpers.cudnn.installed import needs_cudnn
from tests.helpers.cudnn.interpreter import run_graph

pytestmark = needs_cudnn
BATCH, HEADS, ROWS, COLUMNS, FEATURES = 2, 3, 4, 5, 6
Q, KEYS, ROW = (BATCH, HEADS, ROWS, FEATURES), (BATCH, HEADS, COLUMNS, FEATURES), (BATCH, HEADS, ROWS, 1)
SCORES, LOW = (BATCH, HEADS, ROWS, COLUMNS), -1e30
Array = np.ndarray[Any, Any]


class Memory:
    """Values of tensors that are not virtual, by uid: what a graph reads and writes."""

    def __init__(self) -> None:
        self.values: dict[int, Array] = {}

    def at(self, place: Place, tensor: Tensor) -> Array:
        """What lies behind a tensor; NaN before it is written."""
        return self.values.setdefault(place.index, np.full(tensor.dimensions, np.nan))

    def run(self, graph: Graph) -> None:
        """The graph, whose tensors have addresses unless they are virtual."""
        places = {t.uid: Place("input", t.uid) for t in graph.tensors if not t.virtual}
        run_graph(graph, places, self)  # type: ignore[arg-type]


def transposed(graph: Graph) -> Tensor:
    """Keys or values [batch, heads, features, columns], stored by rows."""
    area = COLUMNS * FEATURES
    strides = (HEADS * area, area, 1, FEATURES)
    return graph.tensor((BATCH, HEADS, FEATURES, COLUMNS), strides, "float32")


def options(graph: Graph, memory: Memory, kind: str, rng: np.random.Generator) -> dict[str, Any]:
    """A bias for all batches, a causal mask, both or neither."""
    found = {}
    if "bias" in kind:
        found["bias"] = graph.packed((1, HEADS, ROWS, COLUMNS), "float32")
        memory.values[found["bias"].uid] = rng.standard_normal((1, HEADS, ROWS, COLUMNS))
    if "causal" in kind:
        found["causal"] = graph.scalar()
        memory.values[found["causal"].uid] = np.full((1, 1, 1, 1), LOW)
    return found


def weights_of(q: Array, k: Array, bias: Any, causal: bool, scale: float) -> tuple[Array, Array]:
    """The weights and the log of the sum of exponentials, by the formula."""
    scores = scale * np.einsum("bhrf,bhcf->bhrc", q, k) + (0.0 if bias is None else bias)
    if causal:
        scores = np.where(np.arange(ROWS)[:, None] >= np.arange(COLUMNS), scores, LOW)
    stats = np.log(np.exp(scores).sum(-1, keepdims=True))
    return np.exp(scores - stats), stats


@pytest.mark.parametrize("kind", ["plain", "bias", "causal", "bias causal"])
def test_values_and_gradients(kind: str) -> None:
    rng, memory, graph = np.random.default_rng(0), Memory(), Graph("float32")
    q, v, o = graph.packed(Q, "float32"), graph.packed(KEYS, "float32"), graph.packed(Q, "float32")
    k, scale, stats = transposed(graph), graph.scalar(), graph.packed(ROW, "float32")
    queries, keys, values = (rng.standard_normal(shape) for shape in (Q, KEYS, KEYS))
    memory.values |= {q.uid: queries, k.uid: keys.swapaxes(2, 3), v.uid: values}
    memory.values[scale.uid] = np.full((1, 1, 1, 1), 0.3)
    more = options(graph, memory, kind, rng)
    attention(graph, q, k, v, o, scale=scale, stats=stats, **more)
    memory.run(graph)
    bias = memory.values[more["bias"].uid] if "bias" in more else None
    weights, wanted = weights_of(queries, keys, bias, "causal" in kind, 0.3)
    np.testing.assert_allclose(memory.values[o.uid], weights @ values, rtol=1e-12)
    np.testing.assert_allclose(memory.values[stats.uid], wanted, rtol=1e-12)

    back, given = Graph("float32"), Memory()
    do, q, o, dq = (back.packed(Q, "float32") for _ in range(4))
    dk, dv = (back.packed(KEYS, "float32") for _ in range(2))
    k, v, scale, one = transposed(back), transposed(back), back.scalar(), back.scalar()
    stats, row_sum, dq_sum = (
        back.packed(ROW, "float32"),
        back.packed(ROW, "float32"),
        back.packed(Q, "float32"),
    )
    slopes = rng.standard_normal(Q)
    given.values |= {do.uid: slopes, q.uid: queries, o.uid: weights @ values, stats.uid: wanted}
    given.values |= {k.uid: keys.swapaxes(2, 3), v.uid: values.swapaxes(2, 3)}
    given.values |= {scale.uid: np.full((1, 1, 1, 1), 0.3), one.uid: np.ones((1, 1, 1, 1))}
    more = options(back, given, kind, rng)
    if bias is not None:
        given.values[more["bias"].uid] = bias
    places = {"dq": dq, "dk": dk, "dv": dv, "row_sum": row_sum, "dq_sum": dq_sum}
    attention_grad(back, do, q, k, v, o, stats=stats, scale=scale, one=one, **places, **more)
    given.run(back)

    def loss(queries: Array, keys: Array, values: Array) -> float:
        return float((slopes * (weights_of(queries, keys, bias, "causal" in kind, 0.3)[0] @ values)).sum())

    for tensor, numeric in zip((dq, dk, dv), differences(loss, [queries, keys, values]), strict=True):
        np.testing.assert_allclose(given.values[tensor.uid], numeric, rtol=1e-6, atol=1e-8)


def differences(loss: Any, arrays: list[Array]) -> Iterator[Array]:
    """The gradient for each array by central differences."""
    for which, array in enumerate(arrays):
        found = np.empty(array.shape)
        for place in np.ndindex(*array.shape):
            ends = []
            for step in (1e-5, -1e-5):
                moved = [a.copy() for a in arrays]
                moved[which][place] += step
                ends.append(loss(*moved))
            found[place] = (ends[0] - ends[1]) / 2e-5
        yield found


@pytest.mark.parametrize("kind", ["dropout", "lengths", "both"])
def test_what_lies_in_memory_is_what_the_caller_gives(kind: str) -> None:
    """All between is virtual, which is what cuDNN fuses; the mask is drawn for each weight."""
    graph = Graph("float32")
    q, v, o = graph.packed(Q, "float16"), graph.packed(KEYS, "float16"), graph.packed(Q, "float16")
    k, scale, stats = transposed(graph), graph.scalar(), graph.packed(ROW, "float32")
    seed, offset = (graph.packed((1, 1, 1, 1), "int64") for _ in range(2))
    lengths = [graph.packed((BATCH, 1, 1, 1), "int32") for _ in range(2)]
    dropout = Dropout(0.75, seed, offset, graph.scalar()) if kind != "lengths" else None
    masked = Lengths(*lengths, graph.scalar()) if kind != "dropout" else None
    given = {t.uid for t in graph.tensors}
    attention(graph, q, k, v, o, scale=scale, stats=stats, dropout=dropout, lengths=masked)
    assert all(t.virtual for t in graph.tensors if t.uid not in given)
    drawn = [op for op in graph.operations if type(op).__name__ == "RngOperation"]
    assert len(drawn) == (dropout is not None)
    products = [op._values for op in graph.operations if type(op).__name__ == "MatmulOperation"]
    if masked is not None:
        assert [(p.get("m"), p.get("n"), p.get("k")) for p in products] == [
            (masked.q, masked.kv, None),
            (masked.q, None, masked.kv),
        ]
        assert [p["matmul"]._values["padding"] for p in products] == [0.0, 0.0]
    for op in drawn:
        assert tuple(op._values["y"].dimensions) == SCORES
