"""Gradients of programs: against finite differences and by hand, second order included."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import grad, gradients, trace, value_and_grad
from lamina.spec import Spec, float32, float64, int64


def numeric(f, x: np.ndarray, step: float = 1e-6) -> np.ndarray:  # type: ignore[no-untyped-def,type-arg]
    found = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        found[i] = (f(up) - f(down)) / (2 * step)
    return found


@pytest.mark.feature("F102")
def test_a_small_network_against_finite_differences() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((2, 2, 6, 6)), rng.standard_normal((3, 2, 3, 3)) * 0.5
    v = rng.standard_normal((10, 12)) * 0.3
    labels = np.array([1, 7])

    def loss(w, v):  # type: ignore[no-untyped-def]
        y = ops.max_pool2d(ops.relu(ops.conv2d(x, w, padding=1)), 3, 3)
        return ops.cross_entropy(ops.linear(ops.flatten(y, 1), v), labels)

    value, (dw, dv) = value_and_grad(loss, argnums=(0, 1))(w, v)
    assert value.shape == ()
    np.testing.assert_allclose(dw.numpy(), numeric(lambda a: loss(a, v).item(), w), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(dv.numpy(), numeric(lambda a: loss(w, a).item(), v), rtol=1e-5, atol=1e-8)


def test_a_value_that_is_used_twice_collects_both_gradients() -> None:
    x = np.array([1.0, -2.0, 3.0])
    found = grad(lambda a: ops.sum(a * a + a))(x)
    np.testing.assert_allclose(found.numpy(), 2 * x + 1)


def test_second_derivatives() -> None:
    x = np.array([0.3, -0.7])

    def f(a):  # type: ignore[no-untyped-def]
        return ops.sum(ops.sin(a) * a)

    second = grad(lambda a: ops.sum(grad(f)(a)))(x)
    np.testing.assert_allclose(second.numpy(), 2 * np.cos(x) - x * np.sin(x), rtol=1e-12)


def test_second_derivative_of_a_convolution() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 2, 5, 5)), rng.standard_normal((2, 2, 3, 3))

    def slope(w):  # type: ignore[no-untyped-def]
        g = grad(lambda x: ops.sum(ops.tanh(ops.conv2d(x, w, stride=2))))(x)
        return ops.sum(g * g)

    found = grad(slope)(w)
    np.testing.assert_allclose(found.numpy(), numeric(lambda a: slope(a).item(), w), rtol=1e-4, atol=1e-6)


def test_independent_values_have_gradient_zero() -> None:
    a, b = grad(lambda a, b: ops.sum(a), argnums=(0, 1))(np.ones(2), np.ones((3, 2)))
    np.testing.assert_array_equal(a.numpy(), [1, 1])
    np.testing.assert_array_equal(b.numpy(), np.zeros((3, 2)))


def test_gradients_that_arrive_from_outside() -> None:
    def f(x, g):  # type: ignore[no-untyped-def]
        return gradients(ops.exp(x), [x], [g])

    x, g = np.array([0.0, 1.0]), np.array([2.0, 3.0])
    (found,) = trace(f, x, g)(x, g)
    np.testing.assert_allclose(found.numpy(), np.exp(x) * g)


def test_what_cannot_be_differentiated_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(2,\); give a scalar"):
        trace(lambda x: gradients(ops.neg(x), [x]), Spec((2,), float32))
    with pytest.raises(TypeError, match="only floating point values have gradients"):
        trace(lambda x: gradients(ops.sum(ops.cast(x, "float32")), [x]), Spec((2,), int64))
    with pytest.raises(TypeError, match="has no gradient"):
        trace(lambda p, g, m, lr: gradients(ops.sum(ops.sgd_update(p, g, m, lr)[0]), [p]), *_SGD)


_SGD = [Spec((2,), float32)] * 3 + [Spec((), float32)]


def test_constants_do_not_get_gradients() -> None:
    w = lm.tensor(np.ones((3, 3)))
    loss = grad(lambda a: ops.sum(ops.tanh(ops.matmul(a, w))))
    graph = trace(loss, Spec((2, 3), float64))
    assert sum(n.op.name == "matmul" for n in graph.nodes) == 2  # forward, and the gradient of a alone
