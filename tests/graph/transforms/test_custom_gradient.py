"""custom_vjp: the gradient is the one that was given, wherever the function stands; what is given wrong is said."""

from dataclasses import dataclass
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
        (lambda a, b: (a * b, b), lambda kept, g: (ops.sum(g), None), r"gave a gradient of shape .* f64\[3\]"),
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


@lm.custom_vjp
def stepped(x: Any) -> Any:
    """Whether x is positive, as a number."""
    return ops.gt(x, 0).float()


stepped.defvjp(lambda x: (stepped(x), x), lambda x, g: (ops.where(ops.abs(x) < 1, g, 0),))


def test_forward_may_call_the_function_itself() -> None:
    for way in (lambda f: f, lm.jit):
        value, g = way(lm.value_and_grad(lambda x: ops.sum(stepped(x) * 3)))(lm.tensor(X))
        assert value.item() == 6
        np.testing.assert_array_equal(g.numpy(), [3, 0, 0])
    np.testing.assert_array_equal(stepped(lm.tensor(X)).numpy(), [1, 0, 1])


@dataclass
class Record:
    """A user's own class of what goes in and comes out."""

    x: Any
    weight: Any = None


@lm.custom_vjp
def scaled(given: Record, rate: float) -> Record:
    return Record(given.x * rate)


scaled.defvjp(
    lambda given, rate: (scaled(given, rate), Record(given.x, rate)),
    lambda kept, g: (Record(g.x * 10 * kept.weight), None),
)


def test_dataclasses_among_arguments_and_results() -> None:
    def loss(x: Any) -> Any:
        return ops.sum(scaled(Record(x), 2.0).x)

    for way in (lambda f: f, lm.jit):
        value, g = way(lm.value_and_grad(loss))(lm.tensor(X))
        assert value.item() == 3
        np.testing.assert_array_equal(g.numpy(), 20)


def test_gradients_are_fitted_to_their_arguments() -> None:
    """As torch.autograd.Function's: cast, and summed where the argument was broadcast."""

    @lm.custom_vjp
    def shifted(x: Any, shift: Any) -> Any:
        return (x + shift).float()

    shifted.defvjp(lambda x, shift: (shifted(x, shift), None), lambda kept, g: (g, g))
    x, shift = lm.ones((4, 3), dtype=lm.float64), lm.ones((1, 3), dtype=lm.float16)
    for way in (lambda f: f, lm.jit):
        to_x, to_shift = way(lm.grad(lambda x, shift: ops.sum(shifted(x, shift) * 2), (0, 1)))(x, shift)
        assert (to_x.dtype, to_shift.dtype, to_shift.shape) == (lm.float64, lm.float16, (1, 3))
        np.testing.assert_array_equal(to_shift.numpy(), 8)

    shifted.defvjp(lambda x, shift: (shifted(x, shift), None), lambda kept, g: (g, ops.sum(g, 1)))
    with pytest.raises(
        TypeError, match=r"backward of shifted gave a gradient of shape \(4,\) for an argument"
    ):
        lm.grad(lambda shift: ops.sum(shifted(x, shift)))(shift)
