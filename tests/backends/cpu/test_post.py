"""Steps behind a head as oneDNN's post-ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.backends.cpu import post
from lamina.infer import Predictor
from lamina.onednn import Eltwise


def test_chains_longer_than_onednn_takes_are_several_kernels() -> None:
    """Sums over all parameters of a network, as penalties have them."""
    xs = [np.full(3, float(i), np.float32) for i in range(50)]
    total = lm.jit(lambda *parts: sum(parts[1:], parts[0]))(*xs)
    np.testing.assert_array_equal(total.numpy(), sum(xs))


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ((), True),
        (post.relu(), True),
        (post.relu(6.0), True),
        ((Eltwise("tanh"), Eltwise("abs")), True),
        ((Eltwise("logistic"),), False),
        ((Eltwise("linear", 2.0, 0.0),), True),
        ((Eltwise("linear", 2.0, 1.0),), False),
        ((Eltwise("linear", 1.0, -2.0), *post.relu()), True),  # 0 to -2 to 0
        ((Eltwise("linear", 1.0, 2.0), *post.relu()), False),
        ((Eltwise("linear", 1.0, 2.0), Eltwise("linear", 1.0, -2.0)), True),
        ((Eltwise("linear", 1.0, 2.0), Eltwise("tanh")), False),
    ],
    ids=str,
)
def test_what_is_0_at_0_may_run_over_padding(steps: tuple[Eltwise, ...], kept: bool) -> None:
    assert post.keeps_zero(steps) is kept


@pytest.mark.parametrize("count", [100, 20000])
def test_logarithms_near_one_and_softplus_far_below_zero_keep_their_digits(count: int) -> None:
    """What oneDNN approximates for results that are not small."""
    x = (1 + np.linspace(-0.3, 0.3, count + 1)).astype(np.float32)
    np.testing.assert_allclose(lm.ops.log(x).numpy(), np.log(x.astype(np.float64)), rtol=1e-6)
    low = np.linspace(-30, 5, count + 1).astype(np.float32)
    np.testing.assert_allclose(
        lm.ops.softplus(low).numpy(), np.logaddexp(0, low.astype(np.float64)), rtol=1e-6
    )


@pytest.mark.parametrize("hi", [6.0, 1.0, 0.7, 20.0, 1e-20, 1e20, 1e39])
def test_a_bound_behind_a_convolution_keeps_the_digits_of_small_numbers(hi: float) -> None:
    net = lm.nn.Sequential(lm.nn.Conv2d(1, 1, 1, bias=False), lm.nn.Hardtanh(0.0, hi)).eval()
    net[0].weight.copy_(np.ones((1, 1, 1, 1), np.float32))
    rng = np.random.default_rng(0)
    several = rng.normal(size=2000) * 10.0 ** rng.integers(-12, 4, size=2000)
    bound = np.float32(hi) if hi < 3e38 else np.float32(np.inf)
    edges = [0.0, -0.0, bound, np.nextafter(bound, np.float32(9e9)), np.nextafter(bound, np.float32(0)), 3e38]
    x = np.array([*several, *edges, np.inf, np.nan], np.float32).reshape(1, 1, 1, -1)
    y = Predictor(net, device="cpu")(x).numpy()
    np.testing.assert_array_equal(y, np.clip(x, 0, bound))
    assert not np.signbit(y[y == 0]).any()


@pytest.mark.parametrize("bounded", [lm.ops.relu, lm.ops.relu6])
@pytest.mark.parametrize("head", [lambda v: v * 2.0, lambda v: v + 3.0, lambda v: v - v.abs() * 0.5])
def test_minus_infinity_is_0_behind_a_sum_as_by_itself(bounded: Any, head: Any) -> None:
    x = np.array([-np.inf, np.inf, np.nan, -9, -0.0, 1, 9] * 40, np.float32)
    np.testing.assert_array_equal(
        lm.jit(lambda v: bounded(head(v)))(x).numpy(), bounded(head(lm.tensor(x))).numpy()
    )


@pytest.mark.parametrize("count", [10, 1000])
def test_the_gradient_of_mish_far_from_zero(count: int) -> None:
    x = np.array([-3e38, -1e15, -30, 1e4, 1e15, 1e18, 1e30, 3e38] * count, np.float32)
    for slope in (lm.grad(lambda v: lm.ops.mish(v).sum()), lm.jit(lm.grad(lambda v: lm.ops.mish(v).sum()))):
        expected = np.where(x == -30, np.float32(-2.7137108e-12), (x > 0).astype(np.float32))
        np.testing.assert_allclose(slope(x).numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 1000])
def test_negated_zeros_change_their_sign(count: int) -> None:
    zeros = np.array([0.0, -0.0] * count, np.float32)
    for function in (
        lm.ops.neg,
        lm.jit(lm.ops.neg),
        lm.jit(lambda v: -(v * 2.0)),
        lm.jit(lambda v: -(v * v * 2.0)),
    ):
        given = function(zeros).numpy()
        np.testing.assert_array_equal(np.signbit(given[::2]), True)
