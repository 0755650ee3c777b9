"""Values at labels: what counts, gradients by values and weights, and what is refused."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.ops.core import bind
from lamina.ops.primitives import NllLoss, NllLossGrad
from lamina.spec import DTypeError, ShapeError, Spec, bfloat16, float32, int64
from tests.helpers.functions import run

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 3, 4))
LABELS = np.array([[0, 2, 1, -1], [1, 1, 0, 2]])
WEIGHT = np.array([0.5, 0.0, 2.0])


def test_losses_and_shares() -> None:
    losses, shares = run(lambda *a: tuple(bind(NllLoss(-1), *a)), X, LABELS, WEIGHT)
    for n, s in np.ndindex(2, 4):
        c = LABELS[n, s]
        wanted = (0, 0) if c < 0 else (-WEIGHT[c] * X[n, c, s], WEIGHT[c])
        assert (losses[n, s], shares[n, s]) == pytest.approx(wanted)


def test_a_weight_of_0_hides_what_is_not_finite() -> None:
    x = X.copy()
    x[0, 1, 2], x[1, 1, 0] = np.inf, np.nan
    losses, _ = run(lambda *a: tuple(bind(NllLoss(-1), *a)), x, LABELS, WEIGHT)
    assert losses[0, 2] == 0
    assert losses[1, 0] == 0
    assert np.isnan(run(lambda *a: bind(NllLoss(-1), *a)[0], x, LABELS)[1, 0])


def test_gradients_by_values_and_weights() -> None:
    """Beside finite differences, of losses and shares."""

    def total(x: Any, w: Any) -> Any:
        losses, shares = bind(NllLoss(-1), x, lm.tensor(LABELS), w)
        return ops.sum(losses * losses) + ops.sum(shares * losses)

    given = [lm.tensor(v) for v in (X, np.array([0.5, 0.7, 2.0]))]
    for grads in (lm.grad(total, (0, 1))(*given), lm.jit(lm.grad(total, (0, 1)))(*given)):
        for k, g in enumerate(grads):
            for at in np.ndindex(*g.shape):
                moved = []
                for step in (1e-6, -1e-6):
                    arrays = [v.numpy().copy() for v in given]
                    arrays[k][at] += step
                    moved.append(total(*map(lm.tensor, arrays)).item())
                assert g.numpy()[at] == pytest.approx((moved[0] - moved[1]) / 2e-6, abs=1e-7)


def test_the_gradients_gradient_by_the_weights() -> None:
    def slopes(w: Any) -> Any:
        x = bind(NllLossGrad(3, -1), lm.tensor(LABELS), lm.tensor(X[:, 0]), w)[0]
        return ops.sum(x * lm.tensor(X))

    found = lm.grad(slopes)(lm.tensor([0.5, 0.7, 2.0], dtype="float64")).numpy()
    wanted = np.zeros(3)
    for n, s in np.ndindex(2, 4):
        if LABELS[n, s] >= 0:
            wanted[LABELS[n, s]] -= X[n, 0, s] * X[n, LABELS[n, s], s]
    np.testing.assert_allclose(found, wanted)


def test_vmap_over_samples() -> None:
    def loss(x: Any, label: Any) -> Any:
        return ops.nll_loss(x.unsqueeze(0), label.unsqueeze(0))

    x, labels = X[0].T, LABELS[1]
    np.testing.assert_allclose(lm.vmap(loss)(x, labels).numpy(), [-x[i, c] for i, c in enumerate(labels)])


@pytest.mark.parametrize(
    ("specs", "error", "message"),
    [
        ((Spec((2, 3), float32), Spec((2,), float32)), DTypeError, "labels must be integers"),
        ((Spec((2, 3), float32), Spec((3,), int64)), ShapeError, "do not fit"),
        ((Spec((3,), float32), Spec((), int64)), ShapeError, "do not fit"),
        ((Spec((2, 3), float32), Spec((2,), int64), Spec((2,), float32)), ShapeError, r"float32\[3\], got"),
        ((Spec((2, 3), float32), Spec((2,), int64), Spec((3,), bfloat16)), ShapeError, r"float32\[3\], got"),
    ],
)
def test_errors(specs: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        NllLoss().infer(*specs)


def test_labels_that_are_no_class_are_named() -> None:
    for classes in (3, 5000):
        x, labels = lm.zeros(4, classes), lm.tensor([0, 1, classes, -2])
        with pytest.raises(IndexError, match=f"nll_loss: index {classes} at position 2"):
            ops.nll_loss(x, labels)
        with pytest.raises(IndexError, match="cross_entropy: index -2 at position 3"):
            ops.cross_entropy(x, lm.tensor([0, 1, -100, -2]), lm.ones(classes), label_smoothing=0.1)
