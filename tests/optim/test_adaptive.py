"""Regularized optimizers and Adadelta: limits of their arguments, dtypes of gradients."""

import numpy as np
import pytest

import lamina as lm
from lamina import optim
from lamina.optim.adaptive import decayed


@pytest.mark.parametrize(("l1", "l2"), [(-1e-9, 0.0), (0.0, -1e-9), (-0.1, 0.2), (0.1, -0.2)])
def test_negative_weights_are_refused_each(l1: float, l2: float) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        optim.Regularized(optim.SGD(), l1=l1, l2=l2)


@pytest.mark.parametrize(("l1", "l2"), [(0.0, 0.0), (0.0, 0.25), (0.5, 0.0)])
def test_each_term_alone(l1: float, l2: float) -> None:
    w, g = np.float32([1.0, -2.0, 0.0]), np.float32([0.5, 0.5, 0.5])
    optimizer = optim.Regularized(optim.SGD(0.1), l1=l1, l2=l2)
    p = lm.tensor(w)
    new, _ = optimizer.update(p, lm.tensor(g), optimizer.init(p), np.float32(0.1))
    np.testing.assert_allclose(new.numpy(), w - 0.1 * (g + l1 * np.sign(w) + l2 * w), rtol=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
@pytest.mark.parametrize(
    ("param", "grad"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float64", "float64")]
)
def test_gradients_take_the_parameters_dtype(param: str, grad: str, weight_decay: float) -> None:
    w, g = lm.tensor([2.0, -4.0], param), lm.tensor([1.0, 0.5], grad)
    found = decayed(w, g, weight_decay)
    assert found.dtype is w.dtype
    wanted = np.array([1.0, 0.5]) + weight_decay * np.array([2.0, -4.0])
    np.testing.assert_array_equal(found.numpy().astype(np.float64), wanted)
