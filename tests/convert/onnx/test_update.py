"""Handlers of optimizers' updates and of gradients agree with ONNX's own tests, and with derivatives."""

import numpy as np
import pytest
from onnx import helper

from lamina.convert.onnx import OnnxError, OnnxGraph, update
from lamina.spec import Spec, float32
from tests.helpers.onnx_models import agrees, model, node_tests


@pytest.mark.parametrize("name", node_tests(update))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_several_tensors_are_updated_each_with_its_own_state() -> None:
    names = ["rate", "count", "x", "z", "gx", "gz", "vx", "vz"]
    node = helper.make_node("Momentum", names, ["x1", "z1", "vx1", "vz1"], domain=update.DOMAIN, alpha=0.5, beta=0.1,
                            mode="standard", norm_coefficient=0.0)  # fmt: skip
    proto = model([node], dict.fromkeys(names, ()), dict.fromkeys(node.output, ()))
    proto.opset_import.append(helper.make_opsetid(update.DOMAIN, 1))
    given = dict(zip(names, (0.1, 0, 1.0, 2.0, 10.0, 20.0, 4.0, 6.0), strict=True))
    arrays = {n: np.array(v, np.int64 if n == "count" else np.float32) for n, v in given.items()}
    found = {n: float(v.numpy()) for n, v in OnnxGraph(proto)(arrays).items()}
    assert found == pytest.approx({"x1": 1 - 1.2, "z1": 2 - 2.3, "vx1": 12.0, "vz1": 23.0})


def test_gradients_are_of_recorded_graphs() -> None:
    """d/dx and d/dz of the sum of x² z, and of what is between; on tensors alone nothing is remembered."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Mul", ["square", "z"], ["y"]),
        helper.make_node("Gradient", ["x", "z"], ["dx", "dz"], domain=update.DOMAIN, xs=["x", "z"], y="y"),
    ]
    proto = model(nodes, dict.fromkeys("xz", (3,)), dict.fromkeys(["dx", "dz"], (3,)))
    proto.opset_import.append(helper.make_opsetid(update.DOMAIN, 1))
    spec = Spec((3,), float32)
    x, z = np.array([1, 2, 3], np.float32), np.array([5, -1, 2], np.float32)
    dx, dz = OnnxGraph(proto).trace({"x": spec, "z": spec})(x, z)
    np.testing.assert_allclose(dx.numpy(), 2 * x * z)
    np.testing.assert_allclose(dz.numpy(), x * x)
    with pytest.raises(OnnxError, match="gradients are of recorded graphs; trace or compile the model"):
        OnnxGraph(proto)({"x": x, "z": z})
    proto.graph.node[-1].input[0] = "square"
    with pytest.raises(OnnxError, match=r"is taken where \['x', 'z'\] are, not at \['square', 'z'\]"):
        OnnxGraph(proto).trace({"x": spec, "z": spec})
