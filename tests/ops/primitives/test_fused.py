"""Fused nodes: what they compute, where operands go, how they print, and what they refuse."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.ops import primitives
from lamina.ops.core import bind, call, inferred
from lamina.ops.primitives import (
    Add,
    Conv,
    Fused,
    Matmul,
    MaxPool,
    Mul,
    Relu,
    ReluGrad,
    Sigmoid,
    Softmax,
    Sub,
    Window,
)
from lamina.spec import ShapeError, Spec, float32
from tests.helpers.eager import Eager
from tests.helpers.functions import run

WINDOW = Window((1, 1), ((1, 1), (1, 1)), (1, 1))


@pytest.mark.feature("F052")
def test_conv_bias_activation_and_residual() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 3, 5, 5)), rng.standard_normal((4, 3, 3, 3))
    bias, z = rng.standard_normal((1, 4, 1, 1)), rng.standard_normal((2, 4, 5, 5))
    op = Fused((Conv(WINDOW), Add(), Add(), Relu()))
    wanted = np.maximum(run(ops.conv2d, x, w, None, 1, 1) + bias + z, 0)
    np.testing.assert_allclose(run(lambda *a: call(op, *a), x, w, bias, z), wanted, atol=1e-12)
    assert str(op) == "fused(conv(window=[stride=(1,1),padding=((1,1),(1,1))]) > add() > add() > relu())"


def test_the_running_value_is_the_gradient_of_an_activation() -> None:
    y, a, b = np.array([1.0, -1.0]), np.array([2.0, 3.0]), np.array([10.0, 10.0])
    op = Fused((Mul(), ReluGrad(), Sub()))
    assert run(lambda *v: call(op, *v), a, b, y, np.ones(2)).tolist() == [19, -1]


def test_other_outputs_of_the_head_are_kept() -> None:
    op = Fused((MaxPool((2,), Window((2,), ((0, 0),), (1,)), True), Mul()))
    y, index = run(lambda *v: tuple(bind(op, *v)), np.array([[[1.0, 3.0, 5.0, 4.0]]]), np.array(2.0))
    assert (y.tolist(), index.tolist()) == ([[[6, 10]]], [[[1, 0]]])
    assert op.prune((True, True)) is op
    assert op.prune((True, False)) == Fused((MaxPool((2,), op.ops[0].window), Mul()))
    assert Fused((Add(), Relu())).prune((True,)) == Fused((Add(), Relu()))


@pytest.mark.feature("F118")
@pytest.mark.parametrize(
    ("chain", "shapes", "message"),
    [
        ((Conv(WINDOW), Softmax((1,))), ((1, 1, 3, 3), (1, 1, 3, 3)), "needs a head and elementwise steps"),
        ((), ((3,),), "needs a head and elementwise steps"),
        ((Matmul(), Add()), ((3, 3), (3, 3)), "2 inputs are not what fused"),
        ((Matmul(), Sigmoid()), ((3, 3), (3, 3), (3, 3)), "3 inputs are not what fused"),
        ((Matmul(), Add()), ((3, 3), (3, 3), (2, 1, 3)), "a step changes the shape"),
        ((Matmul(), Add()), ((3, 3), (3, 4), (3, 3)), "add: shapes .* do not broadcast"),
    ],
)
def test_errors(chain: Any, shapes: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Fused(chain).infer(*(Spec(s, float32) for s in shapes))


def test_steps_may_not_change_the_dtype_unseen() -> None:
    """A comparison in the chain is seen in infer."""
    x = Eager(np.array([1.0, -2.0]))
    assert call(Fused((Add(), primitives.Gt())), x, x, Eager(np.array(0.0))).value.tolist() == [True, False]


def test_equal_chains_are_inferred_once() -> None:
    x = Spec((2, 3), float32)
    first = inferred(Fused((Add(), Relu())), x, x)
    assert first == (x,)
    assert inferred(Fused((Add(), Relu())), x, x) is first
