"""Handlers of recurrent layers agree with ONNX's own tests."""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import lamina as lm
from lamina.convert.onnx import OnnxError, OnnxGraph, rnn
from tests.helpers.onnx_models import agrees, model, node_tests, single


@pytest.mark.parametrize("name", node_tests(rnn))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


@pytest.mark.parametrize("operator", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_the_kernel_and_the_written_recurrence_agree(operator: str, direction: str) -> None:
    """A peephole of zeros, or activations by name that are the usual ones, change nothing."""
    rng, sides = np.random.default_rng(0), 2 if direction == "bidirectional" else 1
    gates, (steps, batch, width, hidden) = rnn.GATES[operator], (5, 3, 4, 6)
    shapes = {"x": (steps, batch, width), "w": (sides, gates * hidden, width), "r": (sides, gates * hidden, hidden),
              "b": (sides, 2 * gates * hidden)}  # fmt: skip
    given = {n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    given["lengths"] = np.array([5, 2, 4], np.int32)
    options = {"direction": direction, "hidden_size": hidden}
    options |= {"linear_before_reset": 1} if operator == "GRU" else {}
    count = 3 if operator == "LSTM" else 2
    plain = single(operator, {n: a.shape for n, a in given.items()}, count, **options)(given)
    # A bound that nothing reaches keeps the kernel from being taken.
    written = single(operator, {n: a.shape for n, a in given.items()}, count, clip=1e6, **options)(given)
    for a, b in zip(plain.values(), written.values(), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-5)


def test_unknown_words_are_refused() -> None:
    shapes = {"x": (1, 1, 2), "w": (1, 3, 2), "r": (1, 3, 3)}
    given = {n: np.ones(s, np.float32) for n, s in shapes.items()}
    with pytest.raises(OnnxError, match="direction must be forward, reverse or bidirectional, got 'up'"):
        single("RNN", shapes, 2, direction="up")(given)
    with pytest.raises(OnnxError, match="activation must be one of Relu, .*, got 'Snake'"):
        single("RNN", shapes, 2, activations=["Snake"])(given)


def beside_onnxruntime(operator: str, sides: int = 1, *, hidden: int = 3, **attributes: Any) -> None:
    """All results of a layer of random weights, large enough to leave the middle of a function, are its."""
    rng, gates = np.random.default_rng(0), rnn.GATES[operator]
    shapes = {"x": (4, 2, 5), "w": (sides, gates * hidden, 5), "r": (sides, gates * hidden, hidden),
              "b": (sides, 2 * gates * hidden)}  # fmt: skip
    given = {n: 1.5 * rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    outputs: dict[str, tuple[int, ...]] = {
        "y": (4, sides, 2, hidden),
        "h": (sides, 2, hidden),
        "c": (sides, 2, hidden),
    }
    names = list(outputs)[: 3 if operator == "LSTM" else 2]
    direction = "bidirectional" if sides == 2 else "forward"
    node = helper.make_node(
        operator, list(given), names, hidden_size=hidden, direction=direction, **attributes
    )
    proto = model([node], shapes, {n: outputs[n] for n in names})
    proto.ir_version = 10
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for mine, theirs in zip(OnnxGraph(proto)(given).values(), session.run(None, given), strict=True):
        scale = max(1.0, float(np.abs(theirs).max()))
        np.testing.assert_allclose(mine.numpy() / scale, theirs / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", rnn.ACTIVATIONS)
def test_activations_are_onnxruntimes(name: str) -> None:
    beside_onnxruntime("RNN", activations=[name], activation_alpha=[0.7], activation_beta=[0.3])
    if name not in (
        "Affine",
        "ScaledTanh",
        "ThresholdedRelu",
    ):  # it takes 0 for their numbers if none are given
        beside_onnxruntime("RNN", activations=[name])


def test_numbers_of_a_function_by_default() -> None:
    """As ONNX's operators of these names."""
    x = np.array([-3.0, 0.5, 1.0, 2.0], np.float32)
    wanted = {"Affine": x, "ScaledTanh": np.tanh(x), "ThresholdedRelu": x * (x >= 1)}
    for name, y in wanted.items():
        f, alpha, beta = rnn.ACTIVATIONS[name]
        np.testing.assert_allclose(f(lm.tensor(x), alpha, beta).numpy(), y, rtol=1e-6)


@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize(
    ("operator", "functions"),
    [
        ("RNN", ["Tanh", "LeakyRelu"]),
        ("GRU", ["Sigmoid", "LeakyRelu", "HardSigmoid", "Tanh"]),
        ("LSTM", ["HardSigmoid", "Tanh", "ScaledTanh", "Sigmoid", "Elu", "LeakyRelu"]),
    ],
)
def test_a_function_has_the_next_number_if_it_takes_one(
    operator: str, functions: list[str], sides: int
) -> None:
    """Others take none away from it, and where no number is left it has its own."""
    usual = len(rnn.FUNCTIONS[operator])
    names = functions[:usual] if sides == 1 else functions
    for count in (0, 1, 2, 3):
        if "ScaledTanh" in names and count < 2:
            continue
        numbers: dict[str, Any] = {
            "activation_alpha": [0.6, 0.4, 0.8][:count],
            "activation_beta": [0.3, 0.7, 0.9][:count],
        }
        beside_onnxruntime(operator, sides, activations=names, **{k: v for k, v in numbers.items() if v})


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("RNN", {}),
        ("GRU", {}),
        ("GRU", {"linear_before_reset": 1}),
        ("LSTM", {}),
        ("LSTM", {"input_forget": 1}),
    ],
)
@pytest.mark.parametrize("sides", [1, 2])
def test_what_is_clipped_is_onnxruntimes(operator: str, attributes: dict[str, int], sides: int) -> None:
    """Written out step by step: a bound that most numbers reach."""
    beside_onnxruntime(operator, sides, clip=0.4, **attributes)
