"""jacrev, jacfwd, hessian: against differences of the function, over trees, modules and other transformations."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops

RNG = np.random.default_rng(3)
X, W = RNG.standard_normal((2, 3)), RNG.standard_normal((3, 2))


def both(x: Any, w: Any) -> Any:
    return {"a": ops.tanh(x @ w), "b": (ops.sum(x**3, 0), x.sum())}


def differences(fn: Any, x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """The Jacobian of an array in an array by central differences."""
    columns = []
    for i in range(x.size):
        e = np.zeros(x.size)
        e[i] = step
        e = e.reshape(x.shape)
        columns.append((fn(lm.tensor(x + e)).numpy() - fn(lm.tensor(x - e)).numpy()) / (2 * step))
    return np.stack(columns, -1).reshape(*np.shape(columns[0]), *x.shape)


@pytest.mark.parametrize("of", [lm.jacrev, lm.jacfwd])
@pytest.mark.parametrize("compiled", [False, True])
def test_jacobians(of: Any, compiled: bool) -> None:
    run = of(both, (0, 1))
    found = (lm.jit(run) if compiled else run)(lm.tensor(X), lm.tensor(W))
    parts = {"a": lambda y: y["a"], "b": lambda y: y["b"][0], "c": lambda y: y["b"][1]}
    got = {"a": found["a"], "b": found["b"][0], "c": found["b"][1]}
    for name, part in parts.items():
        in_x = differences(lambda x, part=part: part(both(x, lm.tensor(W))), X)
        in_w = differences(lambda w, part=part: part(both(lm.tensor(X), w)), W)
        np.testing.assert_allclose(got[name][0].numpy(), in_x, atol=1e-7)
        np.testing.assert_allclose(got[name][1].numpy(), in_w, atol=1e-7)


def curve(x: Any) -> Any:
    return ops.sum(ops.sin(x) * x) * x[0, 1]


@pytest.mark.parametrize("wrap", [lambda f: f, lm.jit])
def test_hessian(wrap: Any) -> None:
    slope = lm.grad(curve)
    np.testing.assert_allclose(
        wrap(lm.hessian(curve))(lm.tensor(X)).numpy(), differences(slope, X), atol=1e-7
    )
    each = wrap(lm.vmap(lm.hessian(lambda v: ops.prod(ops.tanh(v)))))(lm.tensor(X))
    for row, found in zip(X, each.numpy(), strict=True):
        np.testing.assert_allclose(
            found, differences(lm.grad(lambda v: ops.prod(ops.tanh(v))), row), atol=1e-7
        )


def test_modules_and_aux() -> None:
    net = nn.Linear(3, 2)
    x = lm.tensor(X.astype(np.float32))
    found = lm.jacrev(lambda net: net(x))(net)
    assert {name: g.shape for name, g in found.items()} == {"weight": (2, 2, 2, 3), "bias": (2, 2, 2)}
    np.testing.assert_allclose(found["bias"].numpy()[:, 0, 0], 1)
    jacobian, aux = lm.jacrev(lambda x: (x * 2, "seen"), has_aux=True)(lm.ones(2))
    assert (jacobian.tolist(), aux) == ([[2, 0], [0, 2]], "seen")
    jacobian, aux = lm.jacfwd(lambda x: (x * 2, x + 1), has_aux=True)(lm.ones(2))
    assert (jacobian.tolist(), aux.tolist()) == ([[2, 0], [0, 2]], [2, 2])
    through = lm.grad(lambda x: lm.jacrev(ops.sin)(x).sum())(lm.ones(2))
    np.testing.assert_allclose(through.numpy(), -np.sin(np.ones(2)), atol=1e-6)


def test_what_is_refused() -> None:
    with pytest.raises(TypeError, match=r"jacrev: fn gives i64\[2\]; derivatives are of floating point"):
        lm.jacrev(lambda x: ops.argmax(x, 1))(lm.tensor(X))
    with pytest.raises(TypeError, match=r"jacfwd: arguments are i64\[\]; derivatives are of floating point"):
        lm.jacfwd(lambda x: x)(lm.tensor(3))
