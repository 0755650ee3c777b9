"""Attention with a bias that is known: causal masks are no bias, repeated ones are kept once; others stay."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.graph import Graph, gradients, trace
from lamina.graph.ir.graph import constant
from lamina.graph.passes import known_masks
from lamina.graph.passes.idioms import recognize_idioms, with_idioms
from lamina.ops.core import bind
from lamina.ops.primitives import Attention, AttentionGrad
from tests.helpers.encoder import same

RNG = np.random.default_rng(0)
Q, K, V, G = (RNG.standard_normal((2, 3, 5, 4)) for _ in range(4))
SEEN = np.tri(5, dtype=bool)


def written_out(low: float, dtype: Any = np.float64) -> Any:
    """The causal mask as programs write it, once for each sample."""
    return np.broadcast_to(np.where(SEEN, 0.0, low), (2, 1, 5, 5)).astype(dtype)


def of_ranges(q: Any) -> Any:
    """… made of ranges and comparisons, as it is recorded: of no input's numbers."""
    rows = constant(np.arange(q.shape[2]))
    seen = rows.reshape((5, 1)) >= rows
    return ops.where(seen, 0.0, -np.inf).reshape((1, 1, 5, 5)).expand((2, 1, 5, 5))


CAUSAL: dict[str, Callable[[Any], Any]] = {
    "infinite": lambda q: written_out(-np.inf),
    "the least number": lambda q: written_out(float(np.finfo(np.float32).min)),
    "the least half": lambda q: written_out(-65504.0),
    "of booleans": lambda q: np.broadcast_to(SEEN, (2, 3, 5, 5)).copy(),
    "of ranges": of_ranges,
}
OTHERS: dict[str, Any] = {
    "little is hidden": written_out(-100.0),
    "windows": np.where(SEEN & ~np.tri(5, k=-3, dtype=bool), 0.0, -np.inf)[None, None],
    "the past is hidden": np.where(SEEN.T, 0.0, -np.inf)[None, None],
    "one sees more": np.where(SEEN | (np.arange(25).reshape(5, 5) == 4), 0.0, -np.inf)[None, None],
    "of one sample": np.stack([np.where(SEEN, 0.0, -np.inf), np.zeros((5, 5))])[:, None],
}


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return ops.scaled_dot_product_attention(q, k, v, mask)


def attentions(graph: Graph) -> list[Any]:
    return [n for n in graph.nodes if isinstance(n.op, Attention | AttentionGrad)]


@pytest.mark.feature("B013")
@pytest.mark.parametrize("form", CAUSAL)
def test_causal_masks_are_no_bias(form: str) -> None:
    graph = trace(lambda q, k, v: attention(q, k, v, CAUSAL[form](q)), Q, K, V)
    found = recognize_idioms(graph)
    (node,) = attentions(found)
    assert node.op.causal
    assert len(node.inputs) == 3
    same(graph, found, [Q, K, V])


@pytest.mark.parametrize("early", [True, False])
def test_their_gradients(early: bool) -> None:
    """Recognized before the gradient is made, or in both."""

    def step(better: bool, q: Any, k: Any, v: Any, g: Any) -> list[Any]:
        y = attention(q, k, v, written_out(-np.inf))
        (y,) = with_idioms([y]) if better else [y]
        return [y, *gradients(y, [q, k, v], [g])]

    plain = trace(lambda *x: step(False, *x), Q, K, V, G)
    found = recognize_idioms(trace(lambda *x: step(early, *x), Q, K, V, G))
    assert [(n.op.causal, len(n.inputs)) for n in attentions(found)] == [(True, 3), (True, 6)]
    same(plain, found, [Q, K, V, G])


@pytest.mark.parametrize("form", OTHERS)
def test_others_stay_a_bias(form: str) -> None:
    graph = trace(lambda q, k, v: attention(q, k, v, OTHERS[form]), Q, K, V)
    found = recognize_idioms(graph)
    (node,) = attentions(found)
    assert not node.op.causal
    assert len(node.inputs) == 4
    same(graph, found, [Q, K, V])


def test_what_repeats_itself_is_kept_once() -> None:
    """Of samples, heads and rows; the same in the gradient."""
    bias = np.broadcast_to(RNG.standard_normal((1, 3, 1, 5)), (2, 3, 5, 5)).copy()

    def step(q: Any, k: Any, v: Any, g: Any) -> list[Any]:
        y = attention(q, k, v, bias)
        return [y, *gradients(y, [q, k, v], [g])]

    graph = trace(step, Q, K, V, G)
    found = recognize_idioms(graph)
    assert [n.inputs[-1].shape for n in attentions(found)] == [(1, 3, 1, 5)] * 2
    same(graph, found, [Q, K, V, G])


def test_layers_share_what_is_left_of_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is computed once for all of them."""
    bias = np.broadcast_to(RNG.standard_normal((1, 1, 5, 5)), (2, 3, 5, 5)).copy()
    computed = list[Any]()
    once = known_masks._once
    monkeypatch.setattr(known_masks, "_once", lambda known: [once(known), computed.append(known)][0])

    def layers(q: Any, k: Any, v: Any) -> Any:
        mask = constant(bias)
        return attention(attention(q, k, v, mask), k, v, mask)

    graph = trace(layers, Q, K, V)
    found = recognize_idioms(graph)
    first, second = attentions(found)
    assert first.inputs[3] is second.inputs[3]
    assert len(computed) == 1
    same(graph, found, [Q, K, V])


def test_a_bias_of_zeros_is_none() -> None:
    graph = trace(lambda q, k, v: attention(q, k, v, np.ones((1, 1, 1, 5), bool)), Q, K, V)
    found = recognize_idioms(graph)
    assert [len(n.inputs) for n in attentions(found)] == [3]
    same(graph, found, [Q, K, V])


def test_under_causal_what_is_hidden_anyway_is_left_out() -> None:
    op = Attention(0.5, causal=True)
    graph = trace(lambda q, k, v: bind(op, q, k, v, written_out(-np.inf)), Q, K, V)
    found = recognize_idioms(graph)
    assert [(n.op, len(n.inputs)) for n in attentions(found)] == [(op, 3)]
    same(graph, found, [Q, K, V])


def test_a_bias_that_is_learnt_or_given_stays() -> None:
    bias = written_out(-np.inf)
    given = trace(lambda q, k, v, b: attention(q, k, v, b), Q, K, V, bias)
    assert [len(n.inputs) for n in attentions(recognize_idioms(given))] == [4]


def test_a_gradient_that_is_read_keeps_its_bias() -> None:
    """Of a bias that is known, whose gradient a program asks for."""
    bias = written_out(-65504.0)
    o, stats = (np.asarray(a) for a in Attention(0.5, stats=True).reference(Q, K, V, bias))
    graph = trace(lambda q, k, v: bind(AttentionGrad(0.5), q, k, v, o, stats, G, bias), Q, K, V)
    found = recognize_idioms(graph)
    assert [len(n.inputs) for n in attentions(found)] == [7]
    same(graph, found, [Q, K, V])


def test_long_masks_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.graph.passes.known_masks._MOST_ELEMENTS", 49)
    graph = trace(lambda q, k, v: attention(q, k, v, of_ranges(q)), Q, K, V)
    assert [len(n.inputs) for n in attentions(recognize_idioms(graph))] == [4]


def test_a_bias_is_looked_at_for_the_rows_that_read_it() -> None:
    """What hides all but the first column is a causal mask of one row, and of no more."""
    first = np.where(np.arange(5) == 0, 0.0, -np.inf).reshape((1, 1, 1, 5))

    def both(q: Any, k: Any, v: Any) -> Any:
        mask = constant(first)
        return [attention(q[:, :, :1], k, v, mask), attention(q, k, v, mask)]

    graph = trace(both, Q, K, V)
    found = recognize_idioms(graph)
    assert sorted((n.op.causal, n.inputs[0].shape[2]) for n in attentions(found)) == [(False, 5), (True, 1)]
    same(graph, found, [Q, K, V])
