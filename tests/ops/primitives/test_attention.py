"""Attention: masks of every shape that broadcasts, their gradients, dropout, groups of heads, rows without
columns."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.backends.cpu.loops import compiler
from lamina.backends.reference import run_reference
from lamina.ops.core import bind
from lamina.ops.primitives import Attention
from lamina.ops.primitives.attention import AttentionGrad
from lamina.spec import ShapeError, Spec, bfloat16, float64
from tests.helpers.functions import numerical

RNG = np.random.default_rng(3)
#: leading axes of query, key and value; rows; columns; features of keys and of values.
SHAPES: list[Any] = [
    ((2, 3), 4, 5, 6, 6), ((2, 3), 5, 4, 3, 7), ((), 3, 3, 4, 2), ((3,), 1, 6, 4, 4), ((2, 1, 2), 3, 2, 5, 5),
]  # fmt: skip


def operands(case: Any) -> list[Any]:
    lead, rows, columns, width, out = case
    return [RNG.standard_normal((*lead, n, f)) for n, f in ((rows, width), (columns, width), (columns, out))]


def definition(q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: Any = None) -> Any:
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    return weights / np.maximum(weights.sum(-1, keepdims=True), 1e-300) @ v


def masks(case: Any) -> list[Any]:
    """A mask of every shape that broadcasts to the scores."""
    lead, rows, columns = case[:3]
    full = (*lead, rows, columns)
    shapes = {full[start:] for start in range(len(full))}
    shapes |= {tuple(1 if i == axis else n for i, n in enumerate(full)) for axis in range(len(full))}
    return [RNG.standard_normal(shape) for shape in sorted(shapes)]


@pytest.mark.parametrize("case", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_values_with_every_mask(case: Any, causal: bool) -> None:
    q, k, v = operands(case)
    for mask in [None, *masks(case), *(m > -0.8 for m in masks(case))]:
        wanted = definition(q, k, v, mask, causal, 0.7)
        found = ops.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=0.7)
        np.testing.assert_allclose(
            found.numpy(), wanted, atol=1e-10, err_msg=str(mask is not None and mask.shape)
        )
        if mask is not None:  # the weights held whole give the same
            nearly = ops.scaled_dot_product_attention(q, k, v, mask, 1e-12, causal, 0.7)
            np.testing.assert_allclose(nearly.numpy(), wanted, atol=1e-9)


@pytest.mark.parametrize("case", SHAPES[:2], ids=str)
def test_gradients_of_operands_and_of_every_mask(case: Any) -> None:
    q, k, v = operands(case)
    scale = RNG.standard_normal((*case[0], case[1], case[4]))
    for mask in masks(case)[::3]:

        def total(q: Any, k: Any, v: Any, mask: Any) -> Any:
            return (ops.scaled_dot_product_attention(q, k, v, mask, is_causal=True) * scale).sum()

        found = lm.grad(total, (0, 1, 2, 3))(*map(lm.tensor, (q, k, v, mask)))
        for g, wanted in zip(found, numerical(total, [q, k, v, mask]), strict=True):
            np.testing.assert_allclose(g.numpy(), wanted, atol=1e-6)


def test_rows_that_see_nothing_are_zeros_and_so_are_their_gradients() -> None:
    q, k, v = operands(SHAPES[0])
    mask = np.ones((4, 5), bool)
    mask[2] = False
    for drop in (0.0, 1e-12):

        def total(q: Any, k: Any, v: Any, drop: float = drop) -> Any:
            return (ops.scaled_dot_product_attention(q, k, v, mask, drop) ** 2).sum()

        y = ops.scaled_dot_product_attention(q, k, v, mask, drop).numpy()
        assert not y[:, :, 2].any()
        np.testing.assert_allclose(y, definition(q, k, v, mask), atol=1e-9)
        found = [g.numpy() for g in lm.grad(total, (0, 1, 2))(*map(lm.tensor, (q, k, v)))]
        assert not found[0][:, :, 2].any()
        for g, wanted in zip(found, numerical(total, [q, k, v]), strict=True):
            np.testing.assert_allclose(g, wanted, atol=1e-6)


@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_libraries_in_single_precision_compute_the_same(case: Any) -> None:
    """Masks of every shape, some of whose rows see nothing, forward and backward."""
    given = operands(case)
    scale = RNG.standard_normal((*case[0], case[1], case[4]))
    for mask in masks(case):
        mask = np.where(RNG.uniform(size=mask.shape) < 0.3, -np.inf, mask)
        for causal in (False, True):

            def total(q: Any, k: Any, v: Any, m: Any, causal: bool = causal) -> Any:
                y = ops.scaled_dot_product_attention(q, k, v, m, is_causal=causal)
                return (y * scale.astype(y.dtype.numpy)).sum()

            both = []
            for dtype in (np.float64, np.float32):
                held = [lm.tensor(x.astype(dtype)) for x in (*given, mask)]
                y = ops.scaled_dot_product_attention(*held, is_causal=causal)
                both.append(
                    [y, *lm.jit(lm.grad(total, (0, 1, 2, 3)))(*held), *lm.grad(total, (0, 1, 2))(*held)]
                )
            for wanted, found in zip(*both, strict=True):
                np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=2e-5)


def test_groups_of_heads_share_keys_and_values() -> None:
    q, k, v = (RNG.standard_normal(s) for s in ((2, 6, 4, 5), (2, 2, 3, 5), (2, 2, 3, 7)))
    wide = [np.repeat(x, 3, 1) for x in (k, v)]
    found = ops.scaled_dot_product_attention(q, k, v, enable_gqa=True).numpy()
    np.testing.assert_allclose(found, definition(q, *wide), atol=1e-10)

    def total(q: Any, k: Any, v: Any) -> Any:
        return (ops.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) ** 2).sum()

    for g, wanted in zip(
        lm.grad(total, (0, 1, 2))(*map(lm.tensor, (q, k, v))), numerical(total, [q, k, v]), strict=True
    ):
        np.testing.assert_allclose(g.numpy(), wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("mask", "copies"),
    [
        (None, False),
        ((7,), False),
        ((2, 1, 1, 7), False),
        ((2, 6, 4, 7), False),
        ((6, 4, 7), False),
        ((4, 7), True),
        ((2, 6, 1, 7), True),
    ],
)
def test_shared_keys_and_values_are_copied_only_where_a_mask_asks_for_it(
    mask: tuple[int, ...] | None, copies: bool
) -> None:
    q, k, v = (RNG.standard_normal(s) for s in ((2, 6, 4, 8), (2, 3, 7, 8), (2, 3, 7, 5)))
    bias = None if mask is None else RNG.standard_normal(mask)
    given = (q, k, v) if bias is None else (q, k, v, bias)
    graph = lm.trace(lambda *xs: ops.scaled_dot_product_attention(*xs, enable_gqa=True), *given)
    (node,) = [n for n in graph.nodes if n.op.name == "attention"]
    assert (node.inputs[1].shape == (2, 6, 7, 8)) == copies
    assert node.inputs[1].shape[1] in (3, 6)
    wide = [np.repeat(x, 2, 1) for x in (k, v)]
    wanted = ops.scaled_dot_product_attention(q, *wide, bias).numpy()
    np.testing.assert_allclose(graph(*map(lm.tensor, given))[0].numpy(), wanted, rtol=1e-10, atol=1e-12)


def test_dropped_weights_are_zeros_and_the_others_grow() -> None:
    nn.manual_seed(4)
    q, k = np.zeros((1, 1, 500, 4)), np.zeros((1, 1, 20, 4))
    y = ops.scaled_dot_product_attention(q, k, np.eye(20)[None, None], dropout_p=0.25).numpy()
    assert {round(float(w), 9) for w in np.unique(y)} == {0.0, round(1 / 20 / 0.75, 9)}
    assert abs((y == 0).mean() - 0.25) < 0.02
    assert not ops.scaled_dot_product_attention(q, k, np.eye(20)[None, None], dropout_p=1.0).numpy().any()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_dropout_and_its_gradients_by_the_definition(compiled: bool, causal: bool) -> None:
    """The mask is that of a dropout of the weights from the same state, in both directions."""
    q, k, v = (RNG.standard_normal((2, 3, n, 4)) for n in (5, 6, 6))
    ones = lm.tensor(np.ones((2, 3, 5, 6)))

    def fused(q: Any, k: Any, v: Any) -> Any:
        y = ops.scaled_dot_product_attention(q, k, v, dropout_p=0.25, is_causal=causal)
        return ops.sin(y).sum()

    def written(q: Any, k: Any, v: Any) -> Any:
        weights = ops.attention_weights(q, k, causal=causal) * ops.dropout(ones, 0.25)
        return ops.sin(ops.matmul(weights, v)).sum()

    found = []
    for f in (fused, written):
        both = lm.value_and_grad(f, [0, 1, 2])
        nn.manual_seed(11)
        found.append((lm.jit(both) if compiled else both)(*map(lm.tensor, (q, k, v))))
    (y, grads), (wanted, slopes) = found
    assert y.item() == pytest.approx(wanted.item(), rel=1e-12)
    for x, w in zip(grads, slopes, strict=True):
        np.testing.assert_allclose(x.numpy(), w.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 1, 3), (0, 3)], ids=str)
def test_nothing_asks_and_nothing_is_asked(lead: tuple[int, ...], dropout_p: float) -> None:
    """No rows, of any number of axes, and no batch; with a mask, too."""
    q, k = np.zeros((*lead, 0, 4), np.float32), np.ones((*lead, 6, 4), np.float32)
    for mask in (None, np.ones((1,) * len(lead) + (1, 6), bool)):
        y = ops.scaled_dot_product_attention(q, k, k, mask, dropout_p=dropout_p)
        assert y.shape == q.shape


def test_an_error_of_a_mask_says_its_shape() -> None:
    q = Spec((2, 3, 4, 8), float64)
    with pytest.raises(ShapeError, match=r"the mask of dropout must be \(2, 3, 4, 4\), got f64\[2,3,4,5\]"):
        Attention(1.0, keep=0.5).infer(q, q, q, Spec((2, 3, 4, 5), float64))
    with pytest.raises(ShapeError, match="takes 3 operands, a mask of dropout and perhaps a bias"):
        Attention(1.0, keep=0.5).infer(q, q, q)
    with pytest.raises(ValueError, match=r"keep must be in \[0, 1\], got 1.5"):
        Attention(1.0, keep=1.5).infer(q, q, q)


def test_weights_that_nobody_uses_are_not_computed() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True)
    x = RNG.standard_normal((2, 5, 8)).astype(np.float32)
    graph = lm.trace(lambda x: layer(x, x, x)[0], x)
    names = [n.op.name for n in graph.nodes]
    assert names.count("attention") == 1
    assert "softmax" not in names
    both = [n.op.name for n in lm.trace(lambda x: layer(x, x, x), x).nodes]
    assert both.count("softmax") == 1


def test_weights_that_are_returned_are_those_of_the_result() -> None:
    """Computed at once and compiled, in training with dropout."""
    nn.manual_seed(3)
    layer = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    layer.out_proj.weight.copy_(np.eye(8, dtype=np.float32))
    x = RNG.standard_normal((2, 5, 8)).astype(np.float32)
    compiled, found = lm.jit(lambda x: layer(x, x, x, average_attn_weights=False)), []
    for run in (lambda x: layer(x, x, x, average_attn_weights=False), compiled):
        nn.manual_seed(3)
        y, weights = run(lm.tensor(x))
        values = (x @ layer.in_proj_weight.numpy()[16:].T).reshape(2, 5, 2, 4).transpose(0, 2, 1, 3)
        wanted = (weights.numpy() @ values).transpose(0, 2, 1, 3).reshape(2, 5, 8)
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-4, atol=1e-5)
        found.append(weights.numpy())
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)
    assert (found[0] == 0).any()


@pytest.mark.torch
@pytest.mark.parametrize("case", SHAPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients_are_those_of_torch(case: Any, causal: bool) -> None:
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    given = operands(case)
    scale = RNG.standard_normal((*case[0], case[1], case[4]))
    several = [m for m in masks(case) if m.ndim > 1]  # torch takes no mask of one axis
    for mask in [None] if causal else [None, *several, *(m > -0.8 for m in several)]:
        floats = [*given, *([mask] if mask is not None and mask.dtype != bool else [])]
        theirs = [torch.tensor(x, requires_grad=True) for x in floats]
        last = theirs[3] if len(theirs) == 4 else None if mask is None else torch.tensor(mask)
        y = attend(*theirs[:3], last, is_causal=causal)
        slopes = torch.autograd.grad((y * torch.tensor(scale)).sum(), theirs)

        def total(q: Any, k: Any, v: Any, m: Any = mask) -> Any:
            return (ops.scaled_dot_product_attention(q, k, v, m, is_causal=causal) * scale).sum()

        mine = ops.scaled_dot_product_attention(*given, mask, is_causal=causal).numpy()
        np.testing.assert_allclose(mine, y.detach().numpy(), atol=1e-10)
        found = lm.grad(total, tuple(range(len(floats))))(*map(lm.tensor, floats))
        for g, wanted in zip(found, slopes, strict=True):
            np.testing.assert_allclose(g.numpy(), wanted.numpy(), atol=1e-10)


def test_gradients_in_half_types_keep_their_digits() -> None:
    """Where one weight of a row is nearly 1, slopes nearly cancel: what they differ by is not that of a rounded o."""
    drawn = [np.random.default_rng(3).uniform(-9, 9, s) for s in ((4, 1, 3, 8), (4, 1, 6, 8), (4, 1, 6, 8))]
    halves = [lm.tensor(x.astype(bfloat16.numpy)) for x in drawn]
    wide = [x.cast(float64) for x in halves]

    def total(q: Any, k: Any, v: Any) -> Any:
        return ops.scaled_dot_product_attention(q, k, v).cast(float64).sum()

    for found, wanted in zip(
        lm.grad(total, (0, 1, 2))(*halves), lm.grad(total, (0, 1, 2))(*wide), strict=True
    ):
        error = np.abs(found.numpy().astype(np.float64) - wanted.numpy()).max()
        assert error < 0.01 * np.abs(wanted.numpy()).max()


@pytest.mark.parametrize("low", [-1e20, -3.3e38])
def test_weights_are_even_where_all_scores_are_as_low(low: float) -> None:
    """A mask of finite numbers over a whole row; the reference and the CPU alike."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 1, 20, 8)).astype(np.float32) for _ in range(3))
    bias = np.full((1, 1, 20, 20), low, np.float32)
    (wanted,) = run_reference(Attention(0.3), [q, k, v, bias], float64)
    np.testing.assert_allclose(
        wanted, np.broadcast_to(v.mean(2, keepdims=True), wanted.shape), rtol=1e-5, atol=1e-5
    )
    (found,) = bind(Attention(0.3), *(lm.tensor(a) for a in (q, k, v, bias)))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("low", [-1e5, -1e9, -3.4e38, 3e5])
@pytest.mark.parametrize("compiled", [True, False])
def test_gradients_of_rows_that_a_finite_bias_masks_whole(
    low: float, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their statistic is the largest score alone in float32; with generated loops and without, by the definition."""
    monkeypatch.setattr(compiler, "available", lambda: compiled)
    rng = np.random.default_rng(0)
    shapes = (2, 2, 7, 4), (2, 2, 5, 4), (2, 2, 5, 3), (2, 1, 7, 5), (2, 2, 7, 3)
    q, k, v, bias, g = (rng.integers(-4, 5, s).astype(np.float32) / 4 for s in shapes)
    bias[1, 0, :3] = low
    made = Attention(0.5, stats=True)
    o, stats = bind(made, *map(lm.tensor, (q, k, v, bias)))
    operands = [lm.tensor(x) for x in (q, k, v)] + [o, stats, lm.tensor(g), lm.tensor(bias)]

    def wanted(dtype: Any) -> list[Any]:
        scores = 0.5 * q @ k.swapaxes(2, 3) + bias.astype(dtype)
        w = np.exp((scores - scores.max(3, keepdims=True)).astype(np.float64))
        w /= w.sum(3, keepdims=True)
        slope = g @ v.swapaxes(2, 3)
        ds = w * (slope - (w * slope).sum(3, keepdims=True))
        return [0.5 * ds @ k, 0.5 * ds.swapaxes(2, 3) @ q, w.swapaxes(2, 3) @ g, ds.sum(1, keepdims=True)]

    near = 0.02 if abs(low) < 1e8 else 1e-5  # float32 has multiples of 2^-7 around 1e5
    for found, x in zip(bind(AttentionGrad(0.5), *operands), wanted(np.float32), strict=True):
        np.testing.assert_allclose(found.numpy(), x, atol=near)
    found64 = run_reference(AttentionGrad(0.5), [x.numpy() for x in operands], float64)
    for found, x in zip(found64, wanted(np.float64), strict=True):
        np.testing.assert_allclose(found, x, atol=1e-5)


def test_second_derivatives_of_rows_that_a_finite_bias_masks_whole() -> None:
    """The gradient's own gradient, as the steps of the definition have it."""
    rng = np.random.default_rng(0)
    q, k, v, g = (lm.tensor(rng.standard_normal((1, 1, 4, 4)).astype(np.float32)) for _ in range(4))
    bias = np.zeros((1, 1, 4, 4), np.float32)
    bias[..., :2, :] = -3.4e38

    def steps(q: Any, k: Any, v: Any) -> Any:
        return ops.softmax(q @ k.transpose(2, 3) * 0.5 + bias, -1) @ v

    def fused(q: Any, k: Any, v: Any) -> Any:
        return ops.scaled_dot_product_attention(q, k, v, bias, scale=0.5)

    def penalty(function: Any) -> Any:
        def total(*given: Any) -> Any:
            slopes = lm.grad(lambda *x: (function(*x) * g).sum(), (0, 1, 2))(*given)
            return sum((s * s).sum() for s in slopes)

        return lm.grad(total, (0, 1, 2))(q, k, v)

    for found, wanted in zip(penalty(fused), penalty(steps), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=1e-4)
