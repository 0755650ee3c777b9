"""Steps behind a head as oneDNN's post-ops."""

from __future__ import annotations

import numpy as np
import pytest

import lamina as lm
from lamina.backends.cpu import post
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
