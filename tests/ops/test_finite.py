"""policy(check_finite=True): the first op that gives NaN or an infinity is named, with module and line."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.ops.finite import check_given, check_results, has_nan, is_finite
from lamina.ops.origin import Origin
from lamina.ops.primitives import Exp

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


class Faulty(nn.Module):
    def __init__(self) -> None:
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return ops.log(ops.tanh(self.inner(x)) - 2)


def network() -> nn.Module:
    lm.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), Faulty(), nn.ReLU(), nn.Linear(4, 2))


def ways(device: str = "cpu") -> dict[str, Any]:
    net = network().to(device)
    x = lm.tensor(X, device=device)
    step = lm.train_step(network(), ops.cross_entropy, lm.optim.SGD(lr=0.1), device=device)
    return {
        "eager": lambda: net(x),
        "jit": lambda: lm.jit(net)(x),
        "gradient": lambda: lm.grad(lambda net, x: ops.sum(net(x)))(net, x),
        "step": lambda: step(X, np.array([0, 1, 0])),
        "predictor": lambda: lm.infer.Predictor(net, device=device)(X),
    }


MESSAGE = (
    r"^log in 1, test_finite.py:23: output 0 of shape \(3, 4\) has 12 values .* not finite, the first is nan"
)


@pytest.mark.feature("F118")
@pytest.mark.parametrize("way", ["eager", "jit", "gradient", "step", "predictor"])
def test_the_first_op_is_named(way: str) -> None:
    run = ways()[way]
    if way != "step":  # which has NaN in its weights from then on
        run()  # nothing is looked at without the switch
    with lm.policy(check_finite=True), pytest.raises(lm.NonFiniteError, match=MESSAGE):
        run()


@pytest.mark.gpu
@pytest.mark.feature("F118")
@pytest.mark.parametrize("way", ["eager", "jit", "gradient", "step", "predictor"])
def test_the_first_op_is_named_on_a_gpu(way: str) -> None:
    run = ways("cuda")[way]
    for _ in range(0 if way == "step" else 3):  # the third call launches one CUDA graph
        run()
    with lm.policy(check_finite=True), pytest.raises(lm.NonFiniteError, match=MESSAGE):
        run()


def test_gradients_that_overflow_are_named() -> None:
    with (
        lm.policy(check_finite=True),
        pytest.raises(lm.NonFiniteError, match=r"div in gradient of test_finite.py:\d+"),
    ):
        lm.grad(lambda x: ops.sum(ops.sqrt(x)))(np.zeros(3, np.float32))


def test_what_is_sound_gives_the_same_bits() -> None:
    losses = []
    for check in (False, True):
        lm.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
        step = lm.train_step(net, ops.cross_entropy, lm.optim.Adam(lr=0.01), device="cpu")
        lm.manual_seed(2)
        with lm.policy(check_finite=check):
            losses.append([float(step(X, np.array([0, 1, 0]))) for _ in range(4)])
    assert losses[0] == losses[1]


def test_infinities_that_are_meant_pass() -> None:
    """A mask of -inf is no fault of the op that reads it."""
    mask = np.array([0, -np.inf, 0, 0], np.float32)

    def fn(x: Any) -> Any:
        return ops.softmax(x + lm.tensor(mask), 1)

    with lm.policy(check_finite=True):
        assert np.isfinite(fn(lm.tensor(X)).numpy()).all()
        assert np.isfinite(lm.jit(fn)(X).numpy()).all()


def test_an_input_with_nan_is_named() -> None:
    x = X.copy()
    x[1, 2] = np.nan
    with (
        lm.policy(check_finite=True),
        pytest.raises(lm.NonFiniteError, match=r"input args\[0\] of .* holds NaN"),
    ):
        lm.jit(lambda x: ops.relu(x) * 2)(x)


def test_every_float_type_is_looked_at() -> None:
    for kind in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        fine, nan = np.ones(3, kind), np.array([1, np.nan, 1]).astype(kind)
        assert (is_finite(fine), is_finite(nan), has_nan(fine), has_nan(nan)) == (True, False, False, True)
    assert not is_finite(np.array([np.inf], np.float16))
    assert not has_nan(np.array([np.inf], np.float16))
    assert is_finite(np.array([1, 2]))
    check_results(Exp(), Origin(), [np.ones(3), np.array([1])])
    check_given("x", np.array([np.inf]))
    with pytest.raises(
        lm.NonFiniteError,
        match=r"^exp: output 1 of shape \(2,\) has 1 .* the first is inf at \[1\]; .* op is exp\(\)",
    ):
        check_results(Exp(), Origin(), [np.ones(3), np.array([1, np.inf])])
