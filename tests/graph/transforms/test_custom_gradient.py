"""custom_vjp: the gradient is the one that was given, wherever the function stands; what is given wrong is said."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops

X = np.array([0.5, -2.0, 3.0])


@lm.custom_vjp
def clipped(x: Any) -> Any:
    """x, whose gradient is cut at 1."""
    return x * 1.0


clipped.defvjp(lambda x: (x * 1.0, None), lambda kept, g: (ops.clamp(g, -1, 1),))


@lm.custom_vjp
def log1pexp(tree: Any, shift: Any) -> Any:
    return {"y": ops.log(1 + ops.exp(tree["x"])) + shift, "count": np.array([3])}


def _forward(tree: Any, shift: Any) -> Any:
    e = ops.exp(tree["x"])
    return {"y": ops.log(1 + e) + shift, "count": np.array([3])}, (e, "kept")


def _backward(kept: Any, g: Any) -> Any:
    e, text = kept
    assert text == "kept"
    assert g["count"] is None
    return {"x": g["y"] * (1 - 1 / (1 + e)), "other": None}, None


log1pexp.defvjp(_forward, _backward)


@pytest.mark.feature("F105")
def test_the_gradient_is_the_one_that_is_given() -> None:
    assert lm.grad(lambda x: ops.sum(clipped(x) * X))(X).tolist() == [0.5, -1, 1]
    assert lm.jit(lm.grad(lambda x: ops.sum(clipped(x) * X)))(X).tolist() == [0.5, -1, 1]
    traced = lm.trace(lambda x: lm.gradients(ops.sum(clipped(x) * X), [x]), X)
    assert lm.compile(traced, "cpu")(X)[0].tolist() == [0.5, -1, 1]
    assert clipped(lm.tensor(X)).tolist() == X.tolist()


def test_trees_residuals_and_missing_gradients() -> None:
    def loss(x: Any, shift: Any) -> Any:
        return ops.sum(log1pexp({"x": x, "other": np.zeros(2)}, shift)["y"])

    for fn in (lm.grad(loss, (0, 1)), lm.jit(lm.grad(loss, (0, 1)))):
        to_x, to_shift = fn(X * 30, np.zeros(3))
        np.testing.assert_allclose(to_x.numpy(), 1 / (1 + np.exp(-30 * X)), 1e-12, 1e-12)
        assert to_shift.tolist() == [0, 0, 0]


def test_second_derivatives_differentiate_the_rule() -> None:
    def loss(x: Any) -> Any:
        return ops.sum(log1pexp({"x": x, "other": X}, 0.0)["y"])

    s = 1 / (1 + np.exp(-X))
    found = lm.hvp(loss, (X,), (np.ones(3),))[1][0]
    np.testing.assert_allclose(found.numpy(), s * (1 - s), 1e-10)


def test_within_vmap() -> None:
    rows = np.stack([X, 2 * X])
    found = lm.vmap(lm.grad(lambda x, w: ops.sum(clipped(x) * w)), (0, None))(rows, X)
    assert found.tolist() == [[0.5, -1, 1]] * 2
    plain = lm.vmap(lm.grad(lambda x: ops.sum(log1pexp({"x": x, "other": X}, 0.0)["y"])))(rows)
    np.testing.assert_allclose(plain.numpy(), 1 / (1 + np.exp(-rows)), 1e-10)
    through = lm.grad(lambda x: ops.sum(lm.vmap(clipped)(x) * rows))(rows)
    assert through.tolist() == [[0.5, -1, 1], [1, -1, 1]]


def test_in_a_training_step() -> None:
    net = lm.nn.Linear(3, 1)
    step = lm.train_step(
        net, lambda y, t: ops.mean(clipped((y - t) ** 2)), lm.optim.SGD(lr=0.1), device="cpu"
    )
    x = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
    losses = [float(step(x, x[:, :1])) for _ in range(20)]
    assert losses[-1] < losses[0]


def _broken(forward: Any, backward: Any) -> Any:
    fn = lm.custom_vjp(lambda a, b: a * b)
    fn.defvjp(forward, backward)
    return lm.grad(lambda x: ops.sum(fn(x, 2.0)))


@pytest.mark.parametrize(
    ("forward", "backward", "text"),
    [
        (lambda a, b: a * b, None, r"forward of <lambda> must give \(result, kept\), got Value"),
        (lambda a, b: (a * b, b), lambda kept, g: g, "one gradient or None for each of its 2 arguments, got "),
        (lambda a, b: (a * b, b), lambda kept, g: (g,), "for each of its 2 arguments, got 1 of them"),
        (lambda a, b: (a * b, b), lambda kept, g: ((g, g), None), r"gave \(\*, \*\) for argument 0, which is \*"),
        (lambda a, b: (a * b, b), lambda kept, g: (ops.sum(g), None), r"custom_gradient.vjp gave f64\[\].* f64\[3\]"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(forward: Any, backward: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        _broken(forward, backward or (lambda kept, g: (g, None)))(X)


def test_what_is_missing_is_said() -> None:
    fn = lm.custom_vjp(lambda x: x)
    with pytest.raises(
        TypeError, match=r"<lambda> has no gradient yet; call <lambda>.defvjp\(forward, backward\)"
    ):
        fn(X)
    with pytest.raises(TypeError, match="custom_vjp: takes a function, got 3"):
        lm.custom_vjp(3)  # type: ignore[arg-type]
    assert repr(clipped) == "custom_vjp(clipped)"
    with pytest.raises(TypeError, match="clipped takes positional arguments alone, got x="):
        lm.grad(lambda v: ops.sum(clipped(x=v)))(X)
