"""Losses of probabilities, distances and margins against their formulas, one sample at a time."""

import math
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import DTypeError, ShapeError
from tests.helpers.functions import grad, run

RNG = np.random.default_rng(0)
X, Y, Z = RNG.standard_normal((3, 6, 4))
P, Q = RNG.uniform(0.05, 0.95, (2, 6, 4))
SIGNS = RNG.choice([-1, 1], (6, 4))
LABELS = RNG.integers(0, 4, 6)


def _reductions(name: str, losses: Any, *args: Any, **options: Any) -> None:
    function = getattr(ops, name)
    for reduction, wanted in (("none", losses), ("sum", losses.sum()), ("mean", losses.mean())):
        found = run(function, *args, **options, reduction=reduction)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def _cosine(a: Any, b: Any) -> Any:
    return (a * b).sum(-1) / np.sqrt(((a * a).sum(-1) + 1e-12) * ((b * b).sum(-1) + 1e-12))


@pytest.mark.feature("F076")
def test_binary_cross_entropy() -> None:
    each = -(Q * np.log(P) + (1 - Q) * np.log(1 - P))
    _reductions("binary_cross_entropy", each, P, Q)
    weight = np.array([0.0, 1, 2, 3])
    _reductions("binary_cross_entropy", each * weight, P, Q, weight)
    ends = run(ops.binary_cross_entropy, np.array([0.0, 1, 0, 1]), np.array([0.0, 1, 1, 0]), reduction="none")
    assert ends.tolist() == [0, 0, 100, 100]
    slopes = grad(ops.binary_cross_entropy, np.array([0.0, 1.0]), np.array([0.0, 1.0]), reduction="sum")[0]
    assert slopes.tolist() == [0, 0]
    whole = run(ops.binary_cross_entropy, P, (Q > 0.5).astype(np.int64), reduction="none")
    assert whole.dtype == np.float64


@pytest.mark.feature("F076")
def test_divergence() -> None:
    _reductions("kl_div", Q * (np.log(Q) - X), X, Q)
    _reductions("kl_div", np.exp(Y) * (Y - X), X, Y, log_target=True)
    found = run(ops.kl_div, X, Q, reduction="batchmean")
    assert np.isnan(run(ops.kl_div, X[:0], Q[:0], reduction="batchmean"))  # as the mean of no losses
    np.testing.assert_allclose(found, (Q * (np.log(Q) - X)).sum() / 6)
    none = run(ops.kl_div, np.array([1.0, 2.0]), np.array([0.0, 1.0]), reduction="none")
    assert none.tolist() == [0, -2]


@pytest.mark.feature("F076")
def test_counts() -> None:
    counts = RNG.integers(0, 5, (6, 4)).astype(np.float64)
    safe = np.maximum(counts, 1)
    stirling = np.where(counts > 1, counts * np.log(safe) - counts + np.log(2 * np.pi * safe) / 2, 0)
    _reductions("poisson_nll_loss", np.exp(X) - counts * X, X, counts)
    _reductions("poisson_nll_loss", P - counts * np.log(P + 1e-8), P, counts, False)
    _reductions("poisson_nll_loss", np.exp(X) - counts * X + stirling, X, counts, True, True)


@pytest.mark.feature("F076")
@pytest.mark.parametrize("shape", [(6, 4), (6, 1), (6,), (1, 4)])
def test_normal_distribution(shape: tuple[int, ...]) -> None:
    var = RNG.uniform(0.5, 2, shape)
    wide = var[:, None] if var.ndim == 1 else var
    each = (np.log(wide) + (X - Y) ** 2 / wide) / 2
    _reductions("gaussian_nll_loss", each, X, Y, var)
    _reductions("gaussian_nll_loss", each + math.log(2 * math.pi) / 2, X, Y, var, full=True)


def test_a_variance_of_zero_is_eps() -> None:
    found = run(ops.gaussian_nll_loss, X, X, 0.0, eps=0.25)
    np.testing.assert_allclose(found, math.log(0.25) / 2, rtol=1e-5)


def test_a_variance_below_eps_has_the_gradient_of_eps() -> None:
    """(1 - (x - t)^2 / eps) / (2 eps), so that training moves it; above, that of the variance itself."""
    var, eps = np.array([[0.1, 0.6]], np.float32), 0.25
    x, t = np.array([[2.0, 1.0]], np.float32), np.array([[1.0, -1.0]], np.float32)
    at = np.maximum(var.astype(np.float64), eps)
    given = lm.tensor(x), lm.tensor(t)
    _, found = lm.value_and_grad(lambda v: ops.gaussian_nll_loss(*given, v, eps=eps, reduction="sum"))(
        lm.tensor(var)
    )
    np.testing.assert_allclose(found.numpy(), (1 - (x - t) ** 2 / at) / (2 * at), rtol=1e-5)


@pytest.mark.feature("F076")
def test_angles_and_orders() -> None:
    sign, cosine = SIGNS[:, 0], _cosine(X, Y)
    each = np.where(sign == 1, 1 - cosine, np.maximum(cosine - 0.1, 0))
    _reductions("cosine_embedding_loss", each, X, Y, sign, 0.1)
    np.testing.assert_allclose(run(ops.cosine_embedding_loss, X[0], Y[0], np.array(1)), 1 - cosine[0])
    _reductions("margin_ranking_loss", np.maximum(0.3 - SIGNS * (X - Y), 0), X, Y, SIGNS, 0.3)
    _reductions("hinge_embedding_loss", np.where(SIGNS == 1, X, np.maximum(0.7 - X, 0)), X, SIGNS, 0.7)
    _reductions("soft_margin_loss", np.log1p(np.exp(-SIGNS * X)), X, SIGNS)


@pytest.mark.feature("F076")
def test_triplets() -> None:
    def apart(a: Any, b: Any) -> Any:
        return np.linalg.norm(a - b + 1e-6, axis=-1)

    _reductions("triplet_margin_loss", np.maximum(apart(X, Y) - apart(X, Z) + 1, 0), X, Y, Z)
    closer = np.minimum(apart(X, Z), apart(Y, Z))
    _reductions("triplet_margin_loss", np.maximum(apart(X, Y) - closer + 0.5, 0), X, Y, Z, 0.5, swap=True)
    found = run(
        ops.triplet_margin_with_distance_loss, X, Y, Z, distance_function=lambda a, b: (a - b).abs().sum(-1)
    )
    city = np.abs(X - Y).sum(-1) - np.abs(X - Z).sum(-1)
    np.testing.assert_allclose(found, np.maximum(city + 1, 0).mean())


@pytest.mark.feature("F076")
@pytest.mark.parametrize("p", [1, 2])
def test_one_label_with_a_margin(p: int) -> None:
    weight = np.array([1.0, 2, 3, 4])
    each = np.array(
        [
            weight[y] * sum(max(0.5 - x[y] + x[i], 0) ** p for i in range(4) if i != y) / 4
            for x, y in zip(X, LABELS, strict=True)
        ]
    )
    _reductions("multi_margin_loss", each, X, LABELS, p, 0.5, weight)
    found = run(ops.multi_margin_loss, X[0], LABELS[0], p, 0.5, weight)
    np.testing.assert_allclose(found, each[0])


@pytest.mark.feature("F076")
def test_many_labels_with_a_margin() -> None:
    target = np.array(
        [[1, 3, -1, 2], [-1, 0, 1, 2], [0, 1, 2, 3], [2, -1, -1, -1], [2, 2, -1, 0], [3, 0, 2, -1]]
    )
    each = []
    for x, row in zip(X, target, strict=True):
        labels = row[: list(row).index(-1)] if -1 in row else row
        others = [i for i in range(4) if i not in labels]
        each.append(sum(max(1 - x[y] + x[i], 0) for y in labels for i in others) / 4)
    _reductions("multilabel_margin_loss", np.array(each), X, target)
    np.testing.assert_allclose(run(ops.multilabel_margin_loss, X[0], target[0]), each[0])
    soft = -(Q * -np.log1p(np.exp(-X)) + (1 - Q) * -np.log1p(np.exp(X)))
    weight = np.array([1.0, 2, 3, 4])
    _reductions("multilabel_soft_margin_loss", soft.mean(1), X, Q)
    _reductions("multilabel_soft_margin_loss", (soft * weight).mean(1), X, Q, weight)


@pytest.mark.feature("F118")
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: run(ops.binary_cross_entropy, P, Q[:2]), ShapeError, "must have one shape"),
        (lambda: run(ops.kl_div, X, Q, reduction="batch"), ValueError, "kl_div: reduction must be one of"),
        (lambda: run(ops.gaussian_nll_loss, X, Y, P, eps=0), ValueError, "eps must be > 0, got 0"),
        (lambda: run(ops.gaussian_nll_loss, X[:1], Y, P), ShapeError, "var .* must broadcast to input"),
        (
            lambda: run(ops.cosine_embedding_loss, X, Y, SIGNS),
            ShapeError,
            r"inputs \[N, D\] and target \[N\]",
        ),
        (lambda: run(ops.margin_ranking_loss, X, Y, LABELS), ShapeError, "must have one rank"),
        (lambda: run(ops.triplet_margin_loss, X, Y, Z[0]), ShapeError, "must have one rank"),
        (lambda: run(ops.multi_margin_loss, X, LABELS, 3), ValueError, "p must be 1 or 2, got 3"),
        (lambda: run(ops.multi_margin_loss, X, LABELS * 1.0), DTypeError, "labels must be integers"),
        (lambda: run(ops.multi_margin_loss, X, LABELS + 1), IndexError, "multi_margin_loss: index 4"),
        (lambda: run(ops.multi_margin_loss, X, LABELS, 1, 1.0, P), ShapeError, r"weight must be \[C\]"),
        (lambda: run(ops.multilabel_margin_loss, X, LABELS), ShapeError, "labels do not fit"),
        (lambda: run(ops.multilabel_margin_loss, X, SIGNS[:2]), ShapeError, "must have the shape of input"),
        (lambda: run(ops.multilabel_soft_margin_loss, X, Q[0]), ShapeError, "must have one shape"),
        (lambda: run(ops.soft_margin_loss, X, SIGNS[0]), ShapeError, "must have one shape"),
    ],
)
def test_errors(call: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
