"""Handlers of recurrent layers agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, rnn
from tests.helpers.onnx_models import agrees, node_tests, single


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
