"""Handlers of elementwise operators agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, pointwise
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(pointwise))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_integers_are_divided_towards_zero_and_powers_stay_integers() -> None:
    x, y = np.array([-7, 7, -8], np.int32), np.array([2, -2, 3], np.int32)
    assert single("Div", {"x": (3,), "y": (3,)})({"x": x, "y": y})["y0"].numpy().tolist() == [-3, -3, -2]
    found = single("Pow", {"x": (3,), "y": (3,)})({"x": x, "y": np.array([2, 3, 1], np.int32)})["y0"].numpy()
    assert (found.dtype, found.tolist()) == (np.int32, [49, 343, -8])


def test_old_operators_align_the_second_input_by_an_axis() -> None:
    x, y = np.zeros((2, 3, 4), np.float32), np.arange(3, dtype=np.float32)
    graph = single("Add", {"x": x.shape, "y": y.shape}, opset=6, broadcast=1, axis=1)
    np.testing.assert_array_equal(graph({"x": x, "y": y})["y0"].numpy(), x + y[:, None])


def test_dropout_that_draws_and_unknown_directions_are_refused() -> None:
    given = {"x": np.ones(2, np.float32), "r": np.array(0.5, np.float32), "t": np.array(True)}
    with pytest.raises(OnnxError, match="training_mode with a ratio draws random numbers"):
        single("Dropout", {n: a.shape for n, a in given.items()})(given)
    with pytest.raises(OnnxError, match="direction must be one of"):
        single("BitShift", {"x": (1,), "y": (1,)}, direction="UP")(dict.fromkeys("xy", np.ones(1, np.uint8)))
