"""Attention that is written out in steps becomes the op, with its gradient; what only looks alike stays."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.graph import Graph, gradients, trace
from lamina.graph.passes.canonicalize import fold_constants
from lamina.graph.passes.idioms import recognize_idioms, with_idioms
from lamina.ops.core import bind
from lamina.ops.primitives import Attention, Dropout
from tests.helpers.encoder import same

RNG = np.random.default_rng(0)
FUTURE = np.triu(np.ones((5, 5), bool), 1)


def drawn(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def attended(scores: Any, v: Any) -> Any:
    return ops.matmul(ops.softmax(scores, -1), v)


def scores(q: Any, k: Any) -> Any:
    return ops.matmul(q, k.transpose(-2, -1))


def windows(q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    """Scores (N W, H, P, P) with a bias of each head, and taken apart for a mask of each of W windows."""
    s = scores(q * 0.5, k) + bias
    s = s.reshape((2, 3, 2, 4, 4)) + mask[None, :, None]
    return attended(s.reshape((6, 2, 4, 4)), v)


def heads_joined(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Scores (B H, S, T), taken apart for a mask (B, 1, S, T)."""
    s = scores(q, k).reshape((2, 3, 4, 5)) + mask
    return attended(s.reshape((6, 4, 5)), v)


def with_einsum(q: Any, k: Any, v: Any, bias: Any) -> Any:
    """Heads are joined with images for both products."""
    s = ops.einsum("bhsd,bhtd->bhst", q, k) * 0.5 + bias
    return ops.einsum("bhst,bhtd->bhsd", ops.softmax(s, -1), v)


Q, K, V = drawn(2, 3, 4, 6), drawn(2, 3, 5, 6), drawn(2, 3, 5, 7)
SQUARE = [drawn(2, 3, 5, 6) for _ in range(3)]
BLIND = np.where(RNG.random((2, 1, 4, 5)) < 0.3, -np.inf, 0.0)
BLIND[..., 0] = 0

FORMS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "plain": (lambda q, k, v: attended(scores(q, k), v), [Q, K, V]),
    "scaled": (lambda q, k, v: attended(scores(q, k) * 0.25, v), [Q, K, V]),
    "divided": (lambda q, k, v: attended(scores(q, k) / 6**0.5, v), [Q, K, V]),
    "scaled queries": (lambda q, k, v: attended(scores(q * 0.5, k), v), [Q, K, V]),
    "both scaled": (lambda q, k, v: attended(scores(q * 0.5, 0.5 * k) * 2.0, v), [Q, K, V]),
    "a mask that is added": (lambda q, k, v, m: attended(scores(q, k) + m, v), [Q, K, V, BLIND]),
    "for all heads": (lambda q, k, v, b: attended(b + scores(q, k) * 0.5, v), [Q, K, V, drawn(4, 5)]),
    "of each head": (lambda q, k, v, b: attended(scores(q, k) + b, v), [Q, K, V, drawn(3, 4, 5)]),
    "of each image": (lambda q, k, v, b: attended(scores(q, k) + b, v), [Q, K, V, drawn(2, 1, 1, 5)]),
    "two biases": (lambda q, k, v, a, b: attended(scores(q, k) + a + b, v), [Q, K, V, drawn(3, 4, 5), BLIND]),
    "the future hidden": (
        lambda q, k, v: attended(ops.masked_fill(scores(q, k) * 0.4, FUTURE, -np.inf), v),
        SQUARE,
    ),
    "the future set to the lowest number": (
        lambda q, k, v: attended(ops.masked_fill(scores(q, k), FUTURE, float(np.finfo(np.float64).min)), v),
        SQUARE,
    ),
    "nothing hidden": (
        lambda q, k, v: attended(ops.masked_fill(scores(q, k), FUTURE & False, -1e38), v),
        SQUARE,
    ),
    "scaled keys lie transposed": (
        lambda q, k, v: attended(ops.matmul(q, k.transpose(-2, -1) / 4.0), v),
        [Q, K, V],
    ),
    "the past seen": (lambda q, k, v: attended(ops.where(~FUTURE, scores(q, k), -np.inf), v), SQUARE),
    "keys lie transposed": (
        lambda q, k, v: attended(ops.matmul(q, ops.permute(k, (0, 2, 3, 1))), v),
        [Q, drawn(2, 5, 3, 6), V],
    ),
    "matrices": (lambda q, k, v: attended(scores(q, k), v), [drawn(3, 4, 6), drawn(3, 5, 6), drawn(3, 5, 2)]),
    "five axes": (
        lambda q, k, v, b: attended(scores(q, k) + b, v),
        [drawn(2, 2, 3, 4, 6), drawn(2, 2, 3, 5, 6), drawn(2, 2, 3, 5, 2), drawn(2, 1, 4, 5)],
    ),
    "einsum": (
        lambda q, k, v: ops.einsum("bhst,bthd->bshd", ops.softmax(ops.einsum("bshd,bthd->bhst", q, k), -1), v),
        [drawn(2, 4, 3, 6), drawn(2, 5, 3, 6), drawn(2, 5, 3, 6)],
    ),
    "windows": (
        windows,
        [drawn(6, 2, 4, 6), drawn(6, 2, 4, 6), drawn(6, 2, 4, 3), drawn(1, 2, 4, 4), drawn(3, 4, 4)],
    ),
    "heads joined": (heads_joined, [drawn(6, 4, 6), drawn(6, 5, 6), drawn(6, 5, 2), BLIND]),
    "einsum with a bias of each head": (with_einsum, [Q, K, V, drawn(3, 4, 5)]),
    "einsum with a mask of each image": (with_einsum, [Q, K, V, BLIND]),
    "einsum with five axes": (
        lambda q, k, v, b: ops.einsum(
            "bghst,bghtd->bghsd", ops.softmax(ops.einsum("bghsd,bghtd->bghst", q, k) + b, -1), v
        ),
        [drawn(2, 2, 3, 4, 6), drawn(2, 2, 3, 5, 6), drawn(2, 2, 3, 5, 2), drawn(3, 4, 5)],
    ),
    "two biases, of each head and of each matrix": (
        lambda q, k, v, a, b: attended((scores(q, k).reshape((2, 3, 4, 5)) + a).reshape((6, 4, 5)) + b, v),
        [drawn(6, 4, 6), drawn(6, 5, 6), drawn(6, 5, 2), drawn(3, 4, 5), drawn(6, 1, 5)],
    ),
}  # fmt: skip


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


@pytest.mark.feature("B013")
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    """In inference, and with the gradients of all operands."""
    fn, arrays = FORMS[form]
    graph = fold_constants(trace(fn, *arrays))
    found = recognize_idioms(graph)
    assert names(found).count("attention") == 1
    assert not {"softmax", "matmul"} & set(names(found))
    same(graph, found, arrays)

    def step(better: bool, *given: Any) -> list[Any]:
        y = fn(*given[:-1])
        (y,) = with_idioms([y]) if better else [y]
        return [y, *gradients(y, list(given[:-1]), [given[-1]])]

    arrays = [*arrays, drawn(*graph.outputs[0].shape)]
    known = trace(lambda *given: step(True, *given), *arrays)
    assert names(known).count("attention") == names(known).count("attention_grad") == 1
    same(trace(lambda *given: step(False, *given), *arrays), known, arrays)


@pytest.mark.parametrize("form", [form for form in FORMS if form.startswith("einsum with")])
def test_what_is_added_is_not_repeated_and_nothing_is_transposed(form: str) -> None:
    """Though products have one axis for heads and all before them, along which a bias of heads would be repeated."""
    fn, arrays = FORMS[form]
    found = recognize_idioms(fold_constants(trace(fn, *arrays)))
    assert set(names(found)) <= {"attention", "reshape"}
    (node,) = (n for n in found.nodes if isinstance(n.op, Attention))
    bias = node.inputs[3]
    assert prod(bias.shape) == arrays[3].size


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)])
def test_einsum_of_no_images_or_heads(shape: tuple[int, int]) -> None:
    arrays = [drawn(*shape, 4, 6), drawn(*shape, 5, 6), drawn(*shape, 5, 7), drawn(shape[1], 4, 5)]
    graph = fold_constants(trace(with_einsum, *arrays))
    same(graph, recognize_idioms(graph), arrays)


def test_half_types_with_a_softmax_in_float32() -> None:
    def fn(q: Any, k: Any, v: Any) -> Any:
        weights = ops.softmax((scores(q, k) * 0.5).cast("float32"), -1)
        return ops.matmul(weights.cast("bfloat16"), v)

    arrays = [a.astype(np.float32) for a in (Q, K, V)]
    graph = trace(lambda *x: fn(*(a.cast("bfloat16") for a in x)), *arrays)
    found = recognize_idioms(graph)
    assert "attention" in names(found)
    assert "softmax" not in names(found)
    for a, b in zip(found(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(a.numpy().astype(float), b.numpy().astype(float), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("joined", [False, True])
def test_what_is_dropped_is_the_same(joined: bool) -> None:
    """The numbers that are drawn, and where the generator goes on; by a mask of the weights' shape."""

    def step(better: bool, q: Any, k: Any, v: Any, state: Any, g: Any) -> list[Any]:
        front = (6,) if joined else (2, 3)
        a, b, c = (x.reshape((*front, *x.shape[2:])) for x in (q, k, v))
        weights = ops.softmax(scores(a, b), -1).reshape((2, 3, 4, 5))
        kept, _, after = bind(Dropout(0.3), weights, state)
        y = ops.matmul(kept.reshape((*front, 4, 5)), c).reshape((2, 3, 4, 7))
        y, after = with_idioms([y, after]) if better else (y, after)
        return [y, after, *gradients(y, [q, k], [g])]

    arrays = [Q, K, V, np.array([5, 7]), drawn(2, 3, 4, 7)]
    known = trace(lambda *given: step(True, *given), *arrays)
    found = names(known)
    assert found.count("attention") == found.count("dropout_mask") == 1
    assert not {"softmax", "dropout"} & set(found)
    same(trace(lambda *given: step(False, *given), *arrays), known, arrays)


def test_a_mask_that_is_read_stays() -> None:
    def fn(q: Any, k: Any, v: Any, state: Any) -> Any:
        weights, mask, after = bind(Dropout(0.3), ops.softmax(scores(q, k), -1), state)
        return [ops.matmul(weights, v), mask, after]

    assert "attention" not in names(recognize_idioms(trace(fn, Q, K, V, np.array([5, 7]))))


OTHERS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "weights are read": (
        lambda q, k, v: [w := ops.softmax(scores(q, k), -1), ops.matmul(w, v)],
        [Q, K, V],
    ),
    "scores are read": (lambda q, k, v: [s := scores(q, k), attended(s, v)], [Q, K, V]),
    "another axis": (lambda q, k, v: ops.matmul(ops.softmax(scores(q, k), -2), v), [Q, K, V]),
    "no product": (lambda s, v: attended(s * 2.0, v), [drawn(2, 3, 4, 5), V]),
    "a factor behind a bias": (lambda q, k, v, b: attended((scores(q, k) + b) * 2.0, v), [Q, K, V, drawn(4, 5)]),
    "another function": (lambda q, k, v: attended(ops.tanh(scores(q, k)), v), [Q, K, V]),
    "hidden by a number": (
        lambda q, k, v: attended(ops.masked_fill(scores(q, k), FUTURE, -1e4), v),
        SQUARE,
    ),
    "no keys": (lambda q, k, v: attended(scores(q, k), v), [Q, K[:, :, :0], V[:, :, :0]]),
    "a wider bias": (
        lambda q, k, v, b: ops.matmul(ops.softmax(scores(q, k).cast("float64") + b, -1).cast("float32"), v),
        [*(a.astype(np.float32) for a in (Q, K, V)), drawn(4, 5)],
    ),
    "two matrices": (lambda q, k, v: attended(scores(q, k), v), [Q[0, 0], K[0, 0], V[0, 0]]),
    "dropped": (lambda q, k, v, m: ops.matmul(ops.softmax(scores(q, k), -1) * m, v), [Q, K, V, drawn(4, 5)]),
}  # fmt: skip


@pytest.mark.parametrize("form", OTHERS)
def test_what_stays(form: str) -> None:
    fn, arrays = OTHERS[form]
    assert "attention" not in names(recognize_idioms(fold_constants(trace(fn, *arrays))))


def test_a_mask_of_lowest_numbers_that_is_not_known() -> None:
    """A row that it hides whole has equal weights; no gradient reaches its scores, which the op's would: what is
    differentiated stays as it is written."""

    def fn(q: Any, k: Any, v: Any, hidden: Any) -> Any:
        return attended(ops.masked_fill(scores(q, k), hidden, float(np.finfo(np.float32).min)), v)

    hidden = RNG.random((2, 1, 4, 5)) < 0.4
    hidden[:, :, 1] = True
    arrays = [Q, K, V, hidden]
    graph = trace(fn, *arrays)
    better = recognize_idioms(graph)
    assert "attention" in names(better)
    same(graph, better, arrays)
    assert "attention" not in names(Graph(graph.inputs, with_idioms(graph.outputs)))


def test_a_row_that_sees_nothing_gives_zeros() -> None:
    """As `Attention` says it; in steps it is NaN."""
    hidden = np.full((4, 5), 0.0)
    hidden[2] = -np.inf
    graph = recognize_idioms(trace(lambda q, k, v, m: attended(scores(q, k) + m, v), Q, K, V, hidden))
    (y,) = graph(Q, K, V, hidden)
    assert not y.numpy()[:, :, 2].any()
    assert np.isfinite(y.numpy()).all()


def test_the_scale_is_the_product_of_all_numbers() -> None:
    fn, arrays = FORMS["both scaled"]
    (node,) = (n for n in recognize_idioms(trace(fn, *arrays)).nodes if isinstance(n.op, Attention))
    assert node.op == Attention(0.5, stats=True)
