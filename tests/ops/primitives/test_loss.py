"""Losses against their formulas, one element at a time."""

import math
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.ops import primitives
from lamina.ops.core import call
from lamina.spec import ShapeError
from tests.helpers.functions import grad, run

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((4, 5))
LABELS = np.array([1, 4, 0, 4])


def _loss(x: Any, label: int, smoothing: float = 0.0) -> float:
    total = math.log(sum(math.exp(v) for v in x))
    uniform = sum(total - v for v in x) / len(x)
    return (1 - smoothing) * (total - x[label]) + smoothing * uniform


@pytest.mark.feature("F076")
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy(smoothing: float) -> None:
    each = [_loss(x, t, smoothing) for x, t in zip(LOGITS, LABELS, strict=True)]
    for reduction, wanted in (("none", each), ("sum", sum(each)), ("mean", sum(each) / 4)):
        found = run(ops.cross_entropy, LOGITS, LABELS, reduction=reduction, label_smoothing=smoothing)
        np.testing.assert_allclose(found, wanted, rtol=1e-13)


@pytest.mark.feature("F076")
def test_spatial_and_volumetric() -> None:
    """[N, C, H, W] and [N, C, D, H, W]: one loss per place."""
    for space in ((3,), (2, 3), (2, 2, 3)):
        x = RNG.standard_normal((2, 5, *space))
        labels = RNG.integers(0, 5, (2, *space))
        losses = run(ops.cross_entropy, x, labels, reduction="none")
        assert losses.shape == (2, *space)
        for place in np.ndindex(2, *space):
            wanted = _loss(x[(place[0], slice(None), *place[1:])], labels[place])
            np.testing.assert_allclose(losses[place], wanted, rtol=1e-12)


@pytest.mark.feature("F076")
def test_ignored_labels_count_nowhere() -> None:
    labels = np.array([1, -1, 0, -1])
    each = [_loss(LOGITS[0], 1), 0, _loss(LOGITS[2], 0), 0]
    np.testing.assert_allclose(
        run(ops.cross_entropy, LOGITS, labels, reduction="none", ignore_index=-1), each
    )
    np.testing.assert_allclose(
        run(ops.cross_entropy, LOGITS, labels, reduction="mean", ignore_index=-1), sum(each) / 2
    )
    dx = grad(ops.cross_entropy, LOGITS, labels, reduction="mean", ignore_index=-1)[0]
    assert (dx[[1, 3]] == 0).all()
    p = run(ops.softmax, LOGITS[[0, 2]], 1)
    p[[0, 1], [1, 0]] -= 1
    np.testing.assert_allclose(dx[[0, 2]], p / 2, atol=1e-15)


@pytest.mark.torch
@pytest.mark.feature("F076")
@pytest.mark.parametrize("weight", [None, np.array([0.5, 2.0, 0.0, 1.0, 3.0])])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize(("ignore", "space"), [(-100, ()), (3, ()), (1, (2, 3)), (7, (4,))])
def test_means_and_gradients_as_torch(
    weight: Any, smoothing: float, ignore: int, space: tuple[int, ...]
) -> None:
    """Every mode together, for a label to ignore that is a class and for one that is none."""
    torch = pytest.importorskip("torch")
    x, labels = RNG.standard_normal((6, 5, *space)), RNG.integers(0, 5, (6, *space))
    labels[2] = ignore
    options = {"ignore_index": ignore, "label_smoothing": smoothing}
    for reduction in ("mean", "sum", "none"):
        found = run(ops.cross_entropy, x, labels, weight, reduction=reduction, **options)
        given, w = torch.tensor(x, requires_grad=True), None if weight is None else torch.tensor(weight)
        wanted = torch.nn.functional.cross_entropy(
            given, torch.tensor(labels), w, reduction=reduction, **options
        )
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-12)
    wanted = torch.nn.functional.cross_entropy(given, torch.tensor(labels), w, **options)
    wanted.backward()
    dx = grad(lambda x: ops.cross_entropy(x, labels, weight, **options), x)[0]
    np.testing.assert_allclose(dx, given.grad, atol=1e-14)


@pytest.mark.feature("F076")
def test_smoothing_counts_classes_by_their_weights() -> None:
    """Element by element; what is ignored counts nowhere, and other labels outside of the classes are refused."""
    weight, labels = np.array([0.5, 2.0, 0.0, 1.0, 3.0]), np.array([1, -1, 0, 4])
    far = LOGITS * 300
    for x in (LOGITS, far):
        log_p = (
            x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True)
        )
        each = [
            0 if t < 0 else -0.7 * weight[t] * row[t] - 0.3 / 5 * (weight * row).sum()
            for row, t in zip(log_p, labels, strict=True)
        ]
        options = {"label_smoothing": 0.3, "ignore_index": -1}
        found = run(ops.cross_entropy, x, labels, weight, reduction="none", **options)
        np.testing.assert_allclose(found, each, rtol=1e-12)
        mean = run(ops.cross_entropy, x, labels, weight, **options)
        np.testing.assert_allclose(mean, sum(each) / 5.5, rtol=1e-12)
    dx = grad(lambda x: ops.cross_entropy(x, labels, weight, **options), LOGITS)[0]
    step = 1e-6 * np.eye(20).reshape(20, 4, 5)
    slopes = [
        (run(ops.cross_entropy, LOGITS + d, labels, weight, **options)
         - run(ops.cross_entropy, LOGITS - d, labels, weight, **options)) / 2e-6
        for d in step
    ]  # fmt: skip
    np.testing.assert_allclose(dx.reshape(-1), slopes, atol=1e-8)
    with pytest.raises(IndexError, match="cross_entropy: index 5 at position 3"):
        run(ops.cross_entropy, LOGITS, np.array([1, -1, 0, 5]), weight, **options)
    with pytest.raises(ShapeError, match=r"cross_entropy: logits .* do not fit"):
        run(ops.cross_entropy, LOGITS, LABELS[:3], weight, **options)


@pytest.mark.feature("F076")
def test_the_mean_of_no_labels() -> None:
    """NaN, with gradients of 0, as in torch."""
    labels = np.full(4, -100)
    assert np.isnan(run(ops.cross_entropy, LOGITS, labels))
    assert (grad(ops.cross_entropy, LOGITS, labels)[0] == 0).all()
    assert np.isnan(run(ops.nll_loss, LOGITS, labels))


def test_the_mean_of_half_losses_counts_past_what_half_types_hold() -> None:
    log_q = np.full((5000, 2), -0.5, np.float16)
    assert run(ops.nll_loss, log_q, np.zeros(5000, int)) == 0.5


def test_labels_outside_the_classes_are_refused() -> None:
    """With value, position and number of classes; where the label is ignored it may have any value."""
    labels = np.array([0, 5, -1, 1])
    text = r"index 5 at position 1 is outside 0 … 4 \(and is not ignore_index, -100\); 2 of 4 are"
    for function in (ops.cross_entropy, ops.nll_loss):
        with pytest.raises(IndexError, match=f"{function.__name__}: {text}"):
            run(function, LOGITS, labels)
        with pytest.raises(IndexError, match="index -1 at position 2 is outside 0 … 4"):
            run(function, LOGITS, labels, ignore_index=5)
    with pytest.raises(IndexError, match="one_hot: index 5 at position 1 is outside 0 … 2; 2 of 4 are"):
        run(ops.one_hot, labels, 3)
    with pytest.raises(IndexError, match=r"embedding: index 3 at position \(0, 1\) is outside 0 … 2"):
        run(ops.embedding, np.array([[0, 3]]), np.ones((3, 2)))
    assert np.isfinite(run(ops.cross_entropy, LOGITS, np.array([0, -100, -100, 1])))


@pytest.mark.feature("F076")
def test_weights_of_classes() -> None:
    """Each loss by its label's weight; the mean is by the sum of the weights that count; labels without any."""
    w, labels = np.array([0.5, 2.0, 0.0, 1.0, 3.0]), np.array([1, 4, -100, 4])
    each = np.array([w[t] * _loss(x, t) if t >= 0 else 0 for x, t in zip(LOGITS, labels, strict=True)])
    np.testing.assert_allclose(run(ops.cross_entropy, LOGITS, labels, w, reduction="none"), each)
    np.testing.assert_allclose(run(ops.cross_entropy, LOGITS, labels, w), each.sum() / (2 + 3 + 3))
    log_q = run(ops.log_softmax, LOGITS, 1)
    np.testing.assert_allclose(run(ops.nll_loss, log_q, labels, w), each.sum() / 8)
    single = run(ops.cross_entropy, LOGITS[0], np.array(1), w, reduction="none")
    np.testing.assert_allclose(single, each[0])


def test_weights_of_classes_in_smoothed_labels() -> None:
    """(1 - e) · w[label] · loss + e / C · Σ w · losses of all classes; nothing where the label is ignored."""
    x, w, e = RNG.standard_normal((2, 3, 4, 2)), np.array([0.5, 2.0, 3.0]), 0.2
    labels = RNG.integers(0, 3, (2, 4, 2))
    labels[0, 1, 1] = 7
    found = run(ops.cross_entropy, x, labels, w, reduction="none", label_smoothing=e, ignore_index=7)
    for n, i, j in np.ndindex(2, 4, 2):
        label = labels[n, i, j]
        if label == 7:
            assert found[n, i, j] == 0
            continue
        losses = np.array([_loss(x[n, :, i, j], c) for c in range(3)])
        wanted = (1 - e) * w[label] * losses[label] + e / 3 * (w * losses).sum()
        np.testing.assert_allclose(found[n, i, j], wanted, rtol=1e-12)


@pytest.mark.feature("F076")
def test_half_logits_have_float32_losses() -> None:
    half = LOGITS.astype(np.float16)
    losses = run(ops.cross_entropy, half, LABELS, reduction="none")
    assert losses.dtype == np.float32
    np.testing.assert_allclose(
        losses, run(ops.cross_entropy, half.astype(float), LABELS, reduction="none"), rtol=1e-6
    )
    assert grad(ops.cross_entropy, half, LABELS)[0].dtype == np.float16


def test_large_logits_do_not_overflow() -> None:
    x = np.array([[1e4, 0.0], [-1e4, 0.0]])
    np.testing.assert_allclose(run(ops.cross_entropy, x, np.array([1, 0]), reduction="none"), [1e4, 1e4])


@pytest.mark.feature("F076")
def test_probabilities_as_targets() -> None:
    p = RNG.random((4, 5))
    p /= p.sum(1, keepdims=True)
    log_q = np.log(run(ops.softmax, LOGITS, 1))
    np.testing.assert_allclose(run(ops.cross_entropy, LOGITS, p), -(p * log_q).sum(1).mean())
    smooth = 0.9 * p + 0.1 / 5
    np.testing.assert_allclose(
        run(ops.cross_entropy, LOGITS, p, reduction="sum", label_smoothing=0.1), -(smooth * log_q).sum()
    )


@pytest.mark.feature("F076")
def test_negative_log_likelihood() -> None:
    log_q = run(ops.log_softmax, LOGITS, 1)
    np.testing.assert_allclose(run(ops.nll_loss, log_q, LABELS), -log_q[range(4), LABELS].mean())
    ignored = run(ops.nll_loss, log_q, LABELS, reduction="mean", ignore_index=4)
    np.testing.assert_allclose(ignored, -log_q[[0, 2], [1, 0]].mean())


@pytest.mark.feature("F076")
def test_distances() -> None:
    a, b = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 4))
    d = np.abs(a - b)
    formulas = {
        ops.mse_loss: d**2,
        ops.l1_loss: d,
        ops.smooth_l1_loss: np.where(d < 1, d**2 / 2, d - 0.5),
        ops.huber_loss: np.where(d < 1, d**2 / 2, d - 0.5),
    }
    for function, each in formulas.items():
        np.testing.assert_allclose(run(function, a, b), each.mean())
        np.testing.assert_allclose(run(function, a, b, reduction="sum"), each.sum())
        np.testing.assert_allclose(run(function, a, b, reduction="none"), each)
    np.testing.assert_allclose(
        run(ops.smooth_l1_loss, a, b, reduction="none", beta=0.3), np.where(d < 0.3, d**2 / 0.6, d - 0.15)
    )
    np.testing.assert_allclose(
        run(ops.huber_loss, a, b, "none", 0.3), np.where(d < 0.3, d**2 / 2, 0.3 * (d - 0.15))
    )
    shares = np.abs(a)
    for function in (ops.mse_loss, ops.l1_loss):
        found = function(lm.tensor(a), lm.tensor(b), weight=lm.tensor(shares)).numpy()
        np.testing.assert_allclose(found, (formulas[function] * shares).sum() / shares.sum())
    found = ops.huber_loss(lm.tensor(a), lm.tensor(b), weight=lm.tensor(shares)).numpy()
    np.testing.assert_allclose(found, (formulas[ops.huber_loss] * shares).mean())  # as torch's
    np.testing.assert_allclose(grad(ops.mse_loss, a, b)[0], 2 * (a - b) / 12)
    np.testing.assert_allclose(grad(ops.l1_loss, a, b, reduction="sum")[0], np.sign(a - b))


@pytest.mark.feature("F076")
def test_binary_cross_entropy() -> None:
    x, t = np.array([-800.0, -1.0, 2.0, 800.0]), np.array([1.0, 0.0, 0.25, 1.0])
    found = run(ops.binary_cross_entropy_with_logits, x, t, reduction="none")
    np.testing.assert_allclose(found, [800, math.log1p(math.exp(-1)), 2 + math.log1p(math.exp(-2)) - 0.5, 0])


def test_one_hot() -> None:
    labels = np.array([[0, 2], [1, 2]])
    wanted = np.eye(3)[labels]
    assert run(ops.one_hot, labels, 3).dtype == np.int64
    np.testing.assert_array_equal(run(ops.one_hot, labels, 3), wanted)
    np.testing.assert_array_equal(run(ops.one_hot, labels, 3, dim=1), wanted.transpose(0, 2, 1))
    assert run(ops.one_hot, labels.astype(np.uint8), 3, dtype="float16").dtype == np.float16


@pytest.mark.feature("F118")
def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"labelled_mean: losses f64\[4\] and labels i64\[3\] must have one"):
        run(lambda *a: call(primitives.LabelledMean(0), *a), np.ones(4), LABELS[:3])
    with pytest.raises(TypeError, match=r"labelled_mean: labels must be integers, got f64\[4\]"):
        run(lambda *a: call(primitives.LabelledMean(0), *a), np.ones(4), np.ones(4))
    with pytest.raises(ShapeError, match=r"cross_entropy: logits .* do not fit, got f64\[4,5\] and i64\[3\]"):
        run(ops.cross_entropy, LOGITS, LABELS[:3])
    with pytest.raises(TypeError, match=r"labels must be integers, got b8\[4\]"):
        run(ops.cross_entropy, LOGITS, LABELS > 1)
    with pytest.raises(ValueError, match="reduction must be one of 'mean', 'sum', 'none', got 'max'"):
        run(ops.cross_entropy, LOGITS, LABELS, reduction="max")
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\], got 1.5"):
        run(ops.cross_entropy, LOGITS, LABELS, label_smoothing=1.5)
    with pytest.raises(ShapeError, match=r"cross_entropy: logits f64\[4,0\] have no classes"):
        run(ops.cross_entropy, LOGITS[:, :0], LABELS)
    with pytest.raises(ShapeError, match="probabilities .* must have one shape"):
        run(ops.cross_entropy, LOGITS, LOGITS[:3])
    with pytest.raises(
        ShapeError, match=r"mse_loss: input f64\[4,5\] and target f64\[5\] must have one shape"
    ):
        run(ops.mse_loss, LOGITS, LOGITS[0])
    with pytest.raises(ValueError, match="beta must be >= 0, got -1"):
        run(ops.smooth_l1_loss, LOGITS, LOGITS, beta=-1)
    with pytest.raises(TypeError, match="nll_loss: labels must be integers"):
        run(ops.nll_loss, LOGITS, LOGITS)
    with pytest.raises(TypeError, match=r"cross_entropy_grad: gradient f32\[4\] must be float64"):
        run(lambda *a: call(primitives.CrossEntropyGrad(), *a), LOGITS, LABELS, np.ones(4, np.float32))
    with pytest.raises(ShapeError, match="must have the shape of the labels"):
        run(lambda *a: call(primitives.CrossEntropyGrad(), *a), LOGITS, LABELS, np.ones(3))


@pytest.mark.parametrize(("alpha", "gamma"), [(0.25, 2.0), (-1.0, 2.0), (0.5, 0.0), (0.25, 1.5)])
def test_focal_loss_by_its_formula(alpha: float, gamma: float) -> None:
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((3, 4)), rng.integers(0, 2, (3, 4)).astype(np.float64)
    p = np.where(t == 1, 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(x)))
    expected = -((1 - p) ** gamma) * np.log(p) * (np.where(t == 1, alpha, 1 - alpha) if alpha >= 0 else 1)
    np.testing.assert_allclose(ops.sigmoid_focal_loss(x, t, alpha, gamma).numpy(), expected, rtol=1e-9)
    mean = ops.sigmoid_focal_loss(x, t, alpha, gamma, "mean").item()
    assert mean == pytest.approx(expected.mean())


@pytest.mark.parametrize("function", [ops.smooth_l1_loss, ops.huber_loss])
def test_the_slope_of_an_infinite_difference_is_that_of_a_large_one(function: Any) -> None:
    x = np.array([np.inf, -np.inf, 1e30, 3.0, 1.0, 0.5, -0.25, 0.0])
    (slope,) = grad(lambda x: function(x, np.zeros(8), reduction="none"), x)
    np.testing.assert_allclose(slope, [1, -1, 1, 1, 1, 0.5, -0.25, 0], rtol=1e-14)


def test_as_many_classes_as_the_largest_label_tells() -> None:
    assert ops.one_hot(lm.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    with pytest.raises(
        ValueError, match=r"one_hot: i64\[0\] has no labels to count classes by; give num_classes"
    ):
        ops.one_hot(lm.zeros(0, dtype="int64"))
    with pytest.raises(TypeError, match="one_hot: the shape of the result depends on the numbers in tensor"):
        lm.jit(ops.one_hot)(lm.tensor([2, 0]))
    with pytest.raises(ValueError, match="num_classes must be >= 1, got 0"):
        ops.one_hot(lm.tensor([0]), 0)


@pytest.mark.parametrize(
    ("logits", "target", "hint"),
    [
        (np.zeros((2, 3), np.float32), np.array([0.0, 1.0]), r"target.long\(\)"),
        (np.zeros((2, 3), np.float32), np.array([[0], [1]]), r"target.squeeze\(1\)"),
        (np.array([0, 1]), np.zeros((2, 3), np.float32), "the logits come first"),
    ],
)
def test_mistaken_labels_are_told_apart(logits: Any, target: Any, hint: str) -> None:
    with pytest.raises(ShapeError, match=hint):
        ops.cross_entropy(lm.tensor(logits), lm.tensor(target))
