"""Each rule gives the same numbers over fewer bytes, and leaves alone what only looks alike."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import gradients, trace
from lamina.graph.passes.algebraic import (
    EXPANSION_ABSORBED,
    HEADS_AS_ROWS,
    MASK_BEFORE_SPREADING,
    SLICE_BEFORE_NORM,
    STEP_BEFORE_SPREADING,
    SUM_BEFORE_SPREADING,
)
from lamina.graph.passes.idioms import with_idioms
from lamina.graph.passes.pattern import rewrite
from lamina.ops import primitives
from lamina.ops.core import call

rng = np.random.default_rng(0)


def network(x, w, b):  # type: ignore[no-untyped-def]
    """Convolution, bias, relu, overlapping pool; the gradients of all three operands."""
    y = ops.max_pool2d(ops.relu(ops.conv2d(x, w, b, padding=1)), 3, stride=2, padding=1)
    return gradients(ops.sum(y * y), [x, w, b])


def operands(dtype=np.float64):  # type: ignore[no-untyped-def]
    return [rng.standard_normal(s).astype(dtype) for s in ((2, 3, 9, 7), (4, 3, 3, 3), (4,))]


def sizes(graph: lm.graph.Graph, name: str) -> list[tuple[int, ...]]:
    return [tuple(n.inputs[0].shape) for n in graph.nodes if n.op.name == name]


@pytest.mark.feature("B013")
def test_the_gradient_of_relu_is_taken_behind_the_pool() -> None:
    arrays = operands()
    graph = trace(network, *arrays)
    better = rewrite(graph, [MASK_BEFORE_SPREADING])
    assert sizes(graph, "relu_grad") == [(2, 4, 9, 7)]
    assert sizes(better, "relu_grad") == [(2, 4, 5, 4)]
    for found, expected in zip(better(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-13)


def test_the_bias_gradient_sums_before_the_gradient_is_spread() -> None:
    arrays = operands()
    graph = rewrite(trace(network, *arrays), [MASK_BEFORE_SPREADING])
    better = rewrite(graph, [SUM_BEFORE_SPREADING])
    assert (2, 4, 9, 7) in sizes(graph, "reduce")
    assert (2, 4, 9, 7) not in sizes(better, "reduce")
    for found, expected in zip(better(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12)


def test_a_gradient_masked_by_another_tensor_stays() -> None:
    def f(x, z):  # type: ignore[no-untyped-def]
        y = ops.max_pool2d(x, 2)
        (g,) = gradients(ops.sum(y * y), [x])
        return call(primitives.ReluGrad(), z, g)

    x = rng.standard_normal((1, 2, 4, 4))
    graph = trace(f, x, x)
    assert rewrite(graph, [MASK_BEFORE_SPREADING]).nodes == graph.nodes


@pytest.mark.parametrize("axes", [(0, 1), (2,), (1, 3)])
def test_a_sum_over_some_places_stays(axes: tuple[int, ...]) -> None:
    def f(x):  # type: ignore[no-untyped-def]
        (g,) = gradients(ops.sum(ops.square(ops.max_pool2d(x, 2))), [x])
        return ops.sum(g, dim=axes)

    graph = trace(f, rng.standard_normal((1, 2, 4, 4)))
    assert rewrite(graph, [SUM_BEFORE_SPREADING]).nodes == graph.nodes


def test_a_not_a_number_in_the_image_stays_where_it_was() -> None:
    arrays = operands()
    arrays[0][0, 0, 4, 4] = np.nan
    graph = trace(network, *arrays)
    better = rewrite(graph, [MASK_BEFORE_SPREADING, SUM_BEFORE_SPREADING])
    for found, expected in zip(better(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_one_number_for_all_places_is_not_expanded(shape: tuple[int, ...]) -> None:
    arrays = [rng.standard_normal((3, 4, 2, 5)), rng.integers(0, 4, (3, 2, 5)), rng.standard_normal(shape)]

    def f(x, labels, g):  # type: ignore[no-untyped-def]
        return call(primitives.CrossEntropyGrad(), x, labels, ops.expand(g, (3, 2, 5)))

    graph = trace(f, *arrays)
    better = rewrite(graph, [EXPANSION_ABSORBED])
    assert [n.op.name for n in better.nodes if n.op.name != "reshape"] == ["cross_entropy_grad"]
    (found,), (wanted,) = better(*arrays), graph(*arrays)
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-13)


def test_what_is_expanded_along_some_axes_alone_stays() -> None:
    arrays = [rng.standard_normal((3, 4, 2)), rng.integers(0, 4, (3, 2)), rng.standard_normal((3, 1))]

    def f(x, labels, g):  # type: ignore[no-untyped-def]
        return call(primitives.CrossEntropyGrad(), x, labels, ops.expand(g, (3, 2)))

    better = rewrite(trace(f, *arrays), [EXPANSION_ABSORBED])
    assert [n.op.name for n in better.nodes] == ["expand", "cross_entropy_grad"]


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("cut", [(slice(None), 0), (slice(0, 1), slice(1, 5, 2)), (slice(None), slice(3, 3))])
def test_rows_that_are_read_are_normalized(rms: bool, cut: tuple[slice | int, ...]) -> None:
    def f(x, scale, bias):  # type: ignore[no-untyped-def]
        y = ops.rms_norm(x, (6,), scale) if rms else ops.layer_norm(x, (6,), scale, bias)
        return y[cut]

    arrays = [rng.standard_normal(s) for s in ((2, 5, 6), (6,), (6,))]
    graph = trace(f, *arrays)
    better = rewrite(graph, [SLICE_BEFORE_NORM])
    name = "rms_norm" if rms else "layer_norm"
    assert sizes(graph, name) == [(2, 5, 6)]
    (rows,) = sizes(better, name)
    assert np.prod(rows) == arrays[0][cut].size
    (found,), (expected,) = better(*arrays), graph(*arrays)
    np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_norms_that_are_read_elsewhere_or_cut_across_stay() -> None:
    def both(x):  # type: ignore[no-untyped-def]
        y = ops.layer_norm(x, (6,))
        return y[:, 0], y

    def across(x):  # type: ignore[no-untyped-def]
        return ops.layer_norm(x, (6,))[..., :3]

    def training(x):  # type: ignore[no-untyped-def]
        return gradients(ops.sum(ops.layer_norm(x, (6,))[:, 0] ** 2), [x])

    x = rng.standard_normal((2, 5, 6))
    for f in (both, across, training):
        graph = trace(f, x)
        assert rewrite(graph, [SLICE_BEFORE_NORM]).nodes == graph.nodes


def spread(x, heads=6):  # type: ignore[no-untyped-def]
    """Heads [N, H, T, D], each as often as it serves one of `heads`."""
    n, h, t, d = x.shape
    return x.reshape((n, h, 1, t, d)).expand((n, h, heads // h, t, d)).reshape((n, heads, t, d))


@pytest.mark.parametrize(
    ("step", "moved"),
    [
        (ops.relu, True),
        (lambda x: x.half(), True),
        (lambda x: x.double(), False),
        (lambda x: x * x, False),
        (lambda x: ops.softmax(x, -1), False),
    ],
)
def test_what_is_repeated_is_computed_once(step, moved) -> None:  # type: ignore[no-untyped-def]
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    graph = trace(lambda x: step(spread(x)).transpose(1, 2), x)
    better = rewrite(graph, [STEP_BEFORE_SPREADING])
    (node,) = [n for n in better.nodes if n.op.name not in ("reshape", "expand", "transpose")]
    assert node.inputs[0].shape == ((2, 3, 4, 5) if moved else (2, 6, 4, 5))
    np.testing.assert_array_equal(better(x)[0].numpy(), graph(x)[0].numpy())


def test_what_is_read_repeated_stays() -> None:
    x = rng.standard_normal((2, 3, 4, 5))
    graph = trace(lambda x: [y := spread(x), ops.relu(y)], x)
    better = rewrite(graph, [STEP_BEFORE_SPREADING])
    assert sizes(better, "relu") == [(2, 6, 4, 5)]
    unspread = trace(lambda x: ops.relu(x.reshape((6, 20)).transpose(0, 1)), x)
    assert sizes(rewrite(unspread, [STEP_BEFORE_SPREADING]), "relu") == [(20, 6)]


def test_gradients_of_what_is_repeated_are_added_up_in_the_rounded_type() -> None:
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    g = rng.standard_normal((2, 6, 4, 5)).astype(np.float16)

    def step(x, g):  # type: ignore[no-untyped-def]
        (y,) = with_idioms([spread(x).half()])
        return gradients(y, [x], [g])

    graph = trace(step, x, g)
    (total,) = [n for n in graph.nodes if n.op.name == "reduce"]
    assert total.inputs[0].dtype == lm.float16
    wanted = g.astype(np.float32).reshape((2, 3, 2, 4, 5)).sum(2)
    np.testing.assert_allclose(graph(x, g)[0].numpy(), wanted, rtol=2e-3, atol=2e-3)


def attended(keys, mask, *, repeat=True, causal=False):  # type: ignore[no-untyped-def]
    """A function of q [2, 6, S, 4], k and v of fewer heads, and perhaps a mask: each key head is repeated."""

    def f(q, k, v, *bias):  # type: ignore[no-untyped-def]
        if repeat:
            k, v = (
                x.expand((2, 6, 7, 4))
                if keys == 1
                else x.unsqueeze(2).expand((2, keys, 6 // keys, 7, 4)).reshape((2, 6, 7, 4))
                for x in (k, v)
            )
        return ops.scaled_dot_product_attention(q, k, v, *bias, is_causal=causal)

    shapes = [(2, 6, 1 if mask == (2, 1, 1, 7) else 3, 4), (2, keys, 7, 4), (2, keys, 7, 4)]
    arrays = [rng.standard_normal(s) for s in (*shapes, *([mask] if mask else []))]
    return f, arrays


@pytest.mark.parametrize(("keys", "mask"), [(2, None), (1, None), (2, (2, 1, 1, 7)), (1, (2, 1, 1, 7))])
def test_heads_that_share_keys_become_rows(keys, mask) -> None:  # type: ignore[no-untyped-def]
    f, arrays = attended(keys, mask)
    graph = trace(f, *arrays)
    better = rewrite(graph, [HEADS_AS_ROWS])
    assert sizes(graph, "attention")[0][1] == 6
    assert sizes(better, "attention")[0][1] == keys
    assert not sizes(better, "expand")
    np.testing.assert_allclose(better(*arrays)[0].numpy(), graph(*arrays)[0].numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("keys", "mask", "options"),
    [
        (2, (2, 1, 3, 7), {}),  # rows attend to columns of their own
        (2, (1, 6, 1, 7), {}),
        (2, None, {"causal": True}),
        (6, None, {"repeat": False}),
    ],
)
def test_heads_that_attend_apart_stay(keys, mask, options) -> None:  # type: ignore[no-untyped-def]
    f, arrays = attended(keys, mask, **options)
    assert sizes(rewrite(trace(f, *arrays), [HEADS_AS_ROWS]), "attention") == [(2, 6, 3, 4)]


def test_repeated_keys_stay_where_a_gradient_follows() -> None:
    f, arrays = attended(2, None)
    graph = trace(lambda *x: gradients(ops.sum(f(*x)), [*x]), *arrays)
    assert sizes(rewrite(graph, [HEADS_AS_ROWS]), "attention") == [(2, 6, 3, 4)]
