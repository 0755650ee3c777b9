"""Equal tensors that a file holds once are trained each by itself."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import lamina as lm
from lamina.convert import from_onnx
from tests.helpers.onnx_models import model

RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(6, 3)).astype(np.float32), np.arange(6) % 3
SEPARATE = [f"{n}.{what}" for n in "nm" for what in ("weight", "bias", "running_mean", "running_var")]


def fresh(shared: str) -> onnx.ModelProto:
    """Two products with a batch norm behind each that was never trained, whose ones and zeros are held

    by each name ("none"), once with Identity nodes for the others ("names"), or once with one name ("tensors").
    """
    make = helper.make_node
    weights: dict[str, Any] = {"a": RNG_WEIGHTS[0], "b": RNG_WEIGHTS[1]}
    equal = {name: "m.weight" if name.endswith(("weight", "var")) else "m.bias" for name in SEPARATE}
    nodes = []
    for name, first in equal.items():
        if shared == "none" or (name == first):
            weights[name] = np.full(3, float(first == "m.weight"), np.float32)
        elif shared == "names":
            nodes.append(make("Identity", [first], [name]))
    parts = [[equal[n] if shared == "tensors" else n for n in SEPARATE[i : i + 4]] for i in (0, 4)]
    nodes += [
        make("MatMul", ["x", "a"], ["p"]), make("BatchNormalization", ["p", *parts[0]], ["q"]),
        make("Relu", ["q"], ["r"]), make("MatMul", ["r", "b"], ["s"]),
        make("BatchNormalization", ["s", *parts[1]], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": ("n", 3)}, {"y": ("n", 3)}, opset=17, **weights)
    proto.ir_version = 10
    return proto


RNG_WEIGHTS = RNG.normal(size=(2, 3, 3)).astype(np.float32)


def trained(proto: onnx.ModelProto) -> Any:
    """The network after four steps in which the statistics move."""
    net = from_onnx(proto, train_batch_norm=True)
    step = lm.train_step(net, lm.ops.cross_entropy, lm.optim.SGD(lr=0.5), device="cpu")
    for _ in range(4):
        step(X, LABELS)
    return step.net.eval()


def test_names_of_one_tensor_are_tensors_of_their_own() -> None:
    """As with a file that holds each: in what is trained, in the statistics, in the names, and in what is written."""
    wanted, found = trained(fresh("none")), trained(fresh("names"))
    assert set(found.state_dict()) == set(wanted.state_dict()) == {"a", "b", *SEPARATE}
    for name, value in wanted.state_dict().items():
        np.testing.assert_allclose(found.state_dict()[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-6)
    back = found.to_onnx()
    assert all(node.op_type != "Identity" for node in back.graph.node)
    session = onnxruntime.InferenceSession(back.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], wanted(X).numpy(), rtol=1e-4, atol=1e-5)


def test_statistics_are_no_tensor_that_something_else_reads() -> None:
    """A mean that is the layers' bias, too, would be moved by the one and trained by the other."""
    net = trained(fresh("tensors"))
    state = net.state_dict()
    buffers = {name for name, _ in net.named_buffers()}
    assert buffers == {"m.weight_1", "m.weight_2", "m.bias_1", "m.bias_2"}
    assert set(state) == {"a", "b", "m.weight", "m.bias", *buffers}
    separate = trained(fresh("none")).state_dict()
    first = {"m.bias_1": "n.running_mean", "m.weight_1": "n.running_var"}
    assert not np.allclose(state["m.bias_1"].numpy(), state["m.bias_2"].numpy())
    assert all(state[mine].shape == separate[theirs].shape for mine, theirs in first.items())


def test_what_is_shared_by_one_name_stays_shared() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    net = from_onnx(model(nodes, {"x": (6, 3)}, {"y": (6, 3)}, w=RNG_WEIGHTS[0]))
    assert list(net.state_dict()) == ["w"]


@pytest.mark.parametrize("case", ["output", "integers", "input"])
def test_other_identities_stay(case: str) -> None:
    """Those that make outputs, that name whole numbers, or an input."""
    w = RNG_WEIGHTS[0] if case != "integers" else np.array([1, 0])
    outputs = {"y": (6, 3)} | ({"v": (3, 3)} if case == "output" else {})
    last = helper.make_node("Gather", ["x", "v"], ["y"]) if case == "integers" else None
    name = "x" if case == "input" else "w"
    nodes = [
        helper.make_node("Identity", [name], ["v"]),
        last or helper.make_node("MatMul", ["v", "w"] if case == "input" else ["x", "v"], ["y"]),
    ]
    net = from_onnx(model(nodes, {"x": (6, 3)}, outputs, w=w))
    assert net.model.graph.node[0].op_type == "Identity"
    found = net(X)
    y = (found[0] if case == "output" else found).numpy()
    np.testing.assert_allclose(y, X[w] if case == "integers" else X @ w, rtol=1e-5, atol=1e-6)


def test_constants_of_several_floats_are_weights_that_train() -> None:
    """PaddlePaddle's exporter writes all weights as Constant nodes."""
    make, array = helper.make_node, onnx.numpy_helper.from_array
    wide, half = RNG.normal(size=(3, 4)).astype(np.float32), np.float32([0.5])
    nodes = [
        make("Constant", [], ["w"], value=array(wide)),
        make("Constant", [], ["half"], value=array(half)),
        make("MatMul", ["x", "w"], ["p"]),
        make("Mul", ["p", "half"], ["y"]),
    ]
    proto = model(nodes, {"x": ("n", 3)}, {"y": ("n", 4)}, opset=17)
    net = from_onnx(proto)
    assert list(net.state_dict()) == ["w"]
    np.testing.assert_allclose(net(X).numpy(), X @ wide / 2, rtol=1e-5)
    step = lm.train_step(net, lm.nn.MSELoss(), lm.optim.SGD(lr=0.1))
    first, *_, last = [float(step(X, np.ones((6, 4), np.float32)).item()) for _ in range(9)]
    assert last < first
    (theirs,) = onnxruntime.InferenceSession(net.to_onnx().SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(step.net.eval()(X).numpy(), theirs, rtol=1e-4, atol=1e-6)
