"""ONNX Runtime's activations: its numbers, and those that it computes on GPUs alone from their definition."""

from math import erf
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.convert.onnx import OnnxError, OnnxGraph, from_onnx
from lamina.convert.onnx.contrib.pointwise import ACTIVATIONS
from tests.helpers.onnx_models import beside_onnxruntime, contributed

RNG = np.random.default_rng(0)
X, BIAS = RNG.normal(size=(2, 3, 8)).astype(np.float32), RNG.normal(size=8).astype(np.float32)


@pytest.mark.parametrize(
    ("operator", "inputs", "options"),
    [
        ("Gelu", (X,), {}), ("BiasGelu", (X, BIAS), {}), ("FastGelu", (X,), {}), ("FastGelu", (X, BIAS), {}),
        ("QuickGelu", (X,), {}), ("QuickGelu", (X,), {"alpha": 1.0}), ("ScaledSiLU", (X,), {"alpha": 2.0}),
        ("ScaledSiLU", (X, np.array(0.5, np.float32)), {}),
    ],
)  # fmt: skip
def test_activations_are_onnxruntimes(operator: str, inputs: Any, options: dict[str, float]) -> None:
    beside_onnxruntime(operator, inputs, **options)


def _gelu(x: Any) -> Any:
    return x * (1 + np.vectorize(erf)(x / np.sqrt(2))) / 2


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max((1, 2), keepdims=True))
    return e / e.sum((1, 2), keepdims=True)


@pytest.mark.parametrize(
    ("operator", "inputs", "wanted", "options"),
    [
        ("BiasSplitGelu", (X, BIAS), (X + BIAS)[..., :4] * _gelu((X + BIAS)[..., 4:]), {}),
        ("BiasAdd", (X, BIAS, X), X + BIAS + X, {}),
        ("BiasDropout", (X, BIAS, X), X + BIAS + X, {}),
        ("BiasDropout", (X, BIAS), X + BIAS, {}),
        ("BiasSoftmax", (X, BIAS), _softmax(X + BIAS), {"axis": 1, "is_inner_broadcast": 0}),
    ],
)
def test_what_has_no_kernel_on_a_cpu_is_as_defined(
    operator: str, inputs: Any, wanted: Any, options: dict[str, int]
) -> None:
    proto, given = contributed(operator, inputs, **options)
    found = from_onnx(proto).eval()(*given.values())
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_dropout_behind_a_bias_drops_in_training() -> None:
    proto, given = contributed("BiasDropout", (np.ones((100, 8), np.float32), BIAS * 0, None), ("y", "mask"))
    lm.manual_seed(0)
    y, mask = (v.numpy() for v in from_onnx(proto).train()(*given.values()))
    assert 0.3 < mask.mean() < 0.7
    np.testing.assert_array_equal(y, mask * 2.0)


def test_dropout_behind_a_bias_takes_its_ratio_and_joins_a_residual() -> None:
    ones, ratio = np.ones((200, 50), np.float32), np.array(0.25, np.float32)
    inputs = (ones, np.full(50, 2, np.float32), 5 * ones, ratio)
    proto, given = contributed("BiasDropout", inputs, ("y", "mask"), held=(3,))
    lm.manual_seed(0)
    y, mask = (v.numpy() for v in from_onnx(proto).train()(*given.values()))
    assert mask.dtype == bool
    assert abs(mask.mean() - 0.75) < 0.02
    np.testing.assert_allclose(y, 5 + mask * 3 / 0.75, rtol=1e-6)
    y, mask = (v.numpy() for v in from_onnx(proto).eval()(*given.values()))
    assert mask.dtype == bool
    assert mask.all()
    np.testing.assert_array_equal(y, 8 * ones)


@pytest.mark.parametrize(("training", "ratio"), [(False, 0.5), (True, 0.0), (True, 0.5)])
def test_a_node_that_says_that_it_drops_is_refused_where_nobody_else_says(
    training: bool, ratio: float
) -> None:
    inputs = (X, BIAS, None, np.array(ratio, np.float32), np.array(training))
    proto, given = contributed("BiasDropout", inputs, held=(3, 4))
    if training and ratio:
        with pytest.raises(OnnxError, match="training_mode with a ratio draws random numbers"):
            OnnxGraph(proto)(given)
    else:
        np.testing.assert_array_equal(OnnxGraph(proto)(given)["y"].numpy(), X + BIAS)


@pytest.mark.parametrize(
    ("options", "answers"), [({}, (1, 0, 0)), ({"isnan_only": 1}, (1, 0, 1)), ({"isinf_only": 1}, (1, 1, 0))]
)
def test_whether_all_are_finite(options: dict[str, int], answers: tuple[int, ...]) -> None:
    for extreme, answer in zip((1.0, np.nan, -np.inf), answers, strict=True):
        proto, given = contributed("IsAllFinite", (X, np.array([extreme], np.float32)), **options)
        assert bool(from_onnx(proto)(*given.values()).numpy()) == bool(answer)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("Relu", ()), ("Sigmoid", ()), ("Tanh", ()), ("Softplus", ()), ("Softsign", ()), ("LeakyRelu", (0.3,)),
        ("Elu", (0.6,)), ("ThresholdedRelu", (0.4,)), ("HardSigmoid", (0.3, 0.6)),
    ],
)  # fmt: skip
def test_an_activation_behind_a_product_is_onnxruntimes(name: str, values: tuple[float, ...]) -> None:
    options = dict(zip(("activation_alpha", "activation_beta"), values, strict=False))
    beside_onnxruntime("FusedGemm", (X[0], 2 * X[1].T), activation=name, **options)


def test_an_unknown_activation_is_named() -> None:
    proto, given = contributed("FusedGemm", (X[0], X[0].T.copy()), activation="Cube")
    with pytest.raises(
        OnnxError, match=f"FusedGemm: activation must be one of {', '.join(ACTIVATIONS)}, got 'Cube'"
    ):
        from_onnx(proto)(*given.values())
