"""Models as networks: names, state, training, compiled and saved; numbers are onnxruntime's."""

import copy
import io
import pickle
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import lamina as lm
from lamina import nn
from lamina.convert import OnnxModule, from_onnx, to_onnx
from lamina.convert.onnx import OnnxError
from lamina.infer import Inferer, Predictor, quantize
from lamina.nn.settings import SameModules
from tests.helpers.onnx_models import model

RNG = np.random.default_rng(0)
NAMES = ["conv.weight", "conv.bias", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "fc.weight"]


def numbers(*shape: int) -> np.ndarray:
    return (RNG.normal(size=shape) * 0.3).astype(np.float32)


def network() -> onnx.ModelProto:
    """conv > batch norm > relu > doubled image > dropout > mean > product > times a scalar; any batch."""
    make = helper.make_node
    nodes = [
        make("Conv", ["x", "conv.weight", "conv.bias"], ["c"], pads=[1, 1, 1, 1]),
        make("BatchNormalization", ["c", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"], ["n"]),
        make("Relu", ["n"], ["r"]),
        make("Resize", ["r", "", "factors"], ["u"]),
        make("Dropout", ["u", "ratio"], ["d"]),
        make("GlobalAveragePool", ["d"], ["g"]),
        make("Shape", ["g"], ["s"]),
        make("Slice", ["s", "first", "second"], ["n0"]),
        make("Concat", ["n0", "rest"], ["flat"], axis=0),
        make("Reshape", ["g", "flat"], ["f"]),
        make("Gemm", ["f", "fc.weight"], ["p"], transB=1),
        make("Mul", ["p", "factor"], ["y"]),
    ]
    weights = {
        "conv.weight": numbers(8, 3, 3, 3), "conv.bias": numbers(8), "bn.weight": 1 + numbers(8),
        "bn.bias": numbers(8), "bn.running_mean": numbers(8), "bn.running_var": 1 + numbers(8) ** 2,
        "fc.weight": numbers(5, 8), "factor": np.float32(2), "factors": np.array([1, 1, 2, 2], np.float32),
        "ratio": np.float32(0.5), "first": np.array([0]), "second": np.array([1]), "rest": np.array([-1]),
    }  # fmt: skip
    found = model(nodes, {"x": ("N", 3, 8, 8)}, {"y": ("N", 5)}, opset=17, **weights)
    found.ir_version = 10
    return found


def test_weights_stay_where_they_are_between_calls_of_a_program() -> None:
    """Memory of a file's arrays would be read, and brought into the kernels' layout, in each call."""
    net = lm.convert.from_onnx(network()).eval()
    assert not any(x.buffer.borrowed for x in (*net.parameters(), *net.buffers()))
    compiled, x = lm.jit(net), lm.tensor(numbers(2, 3, 8, 8))
    compiled(x)
    assert len(compiled.program(x).resident) == len(NAMES)


def test_an_input_with_a_default_may_be_given() -> None:
    rows = {"x": (2, 3), "w": (3,)}
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], rows, {"y": (2, 3)}, opset=17, w=numbers(3))
    proto.ir_version = 10
    net, x, w = from_onnx(proto), numbers(2, 3), numbers(3)
    assert (net.input_names, net.default_names, list(net.state_dict())) == (("x",), ("w",), ["w"])
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = [session.run(None, given)[0] for given in ({"x": x}, {"x": x, "w": w})]
    for run in (net, lm.jit(lambda *a, **named: net(*a, **named))):
        np.testing.assert_allclose(run(x).numpy(), wanted[0])
        np.testing.assert_allclose(run(x, w).numpy(), wanted[1])
        np.testing.assert_allclose(run(x, w=w).numpy(), wanted[1])
    np.testing.assert_allclose(Predictor(net, device="cpu")((x, w)).numpy(), wanted[1])
    with pytest.raises(
        OnnxError, match=r"takes 2 inputs \('x', 'w'\), of which \('w',\) have defaults, got 3"
    ):
        net(x, w, w)


def test_weights_of_an_old_file_are_given_by_name_alone() -> None:
    rows = {"x": (2, 3), "w": (3,)}
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], rows, {"y": (2, 3)}, opset=8, w=numbers(3))
    proto.ir_version = 3
    net, x, w = from_onnx(proto), numbers(2, 3), numbers(3)
    assert net.default_names == ()
    np.testing.assert_allclose(net(x, w=w).numpy(), x + w)
    with pytest.raises(OnnxError, match="takes 1 inputs"):
        net(x, w)


def theirs(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


X = numbers(4, 3, 8, 8)


def test_floats_are_parameters_statistics_buffers_and_what_decides_shapes_constants() -> None:
    net = from_onnx(network())
    assert list(net.state_dict()) == NAMES
    assert [n for n, _ in net.named_buffers()] == ["bn.running_mean", "bn.running_var"]
    assert (net.input_names, net.output_names) == (("x",), ("y",))
    assert "x -> y; 12 nodes" in net.extra_repr()


@pytest.mark.feature("B026")
def test_it_computes_what_onnxruntime_does_in_every_way_to_run_it() -> None:
    proto = network()
    net, wanted = from_onnx(proto.SerializeToString()).eval(), theirs(proto, X)
    predictor = Predictor(net, device="cpu")
    with Inferer(net, device="cpu") as inferer:
        served = inferer(X[:1])
    found = [
        net(lm.tensor(X)), net(x=lm.tensor(X)), lm.jit(net)(lm.tensor(X)), predictor(X), predictor({"x": X}),
    ]  # fmt: skip
    for y in found:
        np.testing.assert_allclose(y.numpy(), wanted, atol=1e-5)
    np.testing.assert_allclose(np.asarray(served), wanted[:1], atol=1e-5)
    np.testing.assert_allclose(predictor(X[:3]).numpy(), wanted[:3], atol=1e-5)  # the batch is free
    half = Predictor(net, device="cpu", precision="bf16")(X)
    np.testing.assert_allclose(half.numpy(), wanted, atol=0.05)
    np.testing.assert_allclose(quantize(net, [X], device="cpu")(X).numpy(), wanted, atol=0.05)


@pytest.mark.parametrize("by_batch", [False, True])
def test_it_trains_and_goes_back_with_its_weights(by_batch: bool) -> None:
    """Batch norms stay as the file says, or are those of training, whose running statistics move."""
    net = from_onnx(network(), train_batch_norm=by_batch)
    before = {k: v.numpy().copy() for k, v in net.state_dict().items()}
    step = lm.train_step(net, lm.ops.cross_entropy, lm.optim.SGD(lr=0.05), device="cpu")
    losses = [float(step(X, np.arange(4))) for _ in range(12)]
    assert losses[-1] < losses[0]
    moved = {k for k, v in net.state_dict().items() if (v.numpy() != before[k]).any()}
    assert moved == {n for n in NAMES if by_batch or "running" not in n}
    wanted = net.eval()(lm.tensor(X)).numpy()
    np.testing.assert_allclose(theirs(net.to_onnx(), X), wanted, atol=1e-5)


def test_a_model_in_half_precision_takes_floats_of_any_width() -> None:
    """What it is given is cast to the type that the file asks for, also where a predictor computes in float32."""
    x, w = numbers(4, 6).astype(np.float16), numbers(6, 3).astype(np.float16)
    kind = onnx.TensorProto.FLOAT16
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    net = from_onnx(model(nodes, {"x": (kind, (4, 6))}, {"y": (kind, (4, 3))}, w=w)).eval()
    wanted = np.maximum(x.astype(float) @ w, 0)
    for found in (net(x), net(x.astype(np.float32)), Predictor(net, device="cpu")(x)):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-3, atol=2e-3)
    assert net(x.astype(np.float64)).dtype.name == "float16"


def test_batch_statistics_are_those_of_a_layer() -> None:
    proto = model(
        [helper.make_node("BatchNormalization", ["x", "w", "b", "m", "v"], ["y"], momentum=0.8)],
        {"x": (4, 3, 8, 8)}, {"y": (4, 3, 8, 8)}, opset=17,
        w=numbers(3), b=numbers(3), m=numbers(3), v=1 + numbers(3) ** 2,
    )  # fmt: skip
    net, layer = from_onnx(proto, train_batch_norm=True), nn.BatchNorm2d(3, momentum=0.2)
    keys = {"weight": "w", "bias": "b", "running_mean": "m", "running_var": "v"}
    layer.load_state_dict(
        {k: net.state_dict().get(keys.get(k, ""), v) for k, v in layer.state_dict().items()}
    )
    np.testing.assert_allclose(net(lm.tensor(X)).numpy(), layer(lm.tensor(X)).numpy(), rtol=1e-5)
    for key, name in keys.items():
        np.testing.assert_allclose(net.state_dict()[name].numpy(), layer.state_dict()[key].numpy(), rtol=1e-6)


def test_dropout_drops_in_training_alone() -> None:
    proto = model([helper.make_node("Dropout", ["x"], ["y"])], {"x": (100,)}, {"y": (100,)})
    net, x = from_onnx(proto), lm.ones((100,))
    assert (net.eval()(x).numpy() == 1).all()
    lm.manual_seed(1)
    assert set(net.train()(x).numpy().tolist()) == {0.0, 2.0}
    assert (lm.jit(net)(x).numpy() != lm.jit(net)(x).numpy()).any()  # each call draws anew


def test_gradients_are_those_of_the_formula() -> None:
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (2, 3)}, {"y": (2, 4)}, w=numbers(3, 4)
    )
    net, x = from_onnx(proto), lm.tensor(numbers(2, 3))
    grads = lm.grad(lambda w: lm.ops.sum(lm.ops.square(nn.functional_call(net, w, x))))(
        dict(net.named_parameters())
    )
    w = net.state_dict()["w"].numpy()
    np.testing.assert_allclose(grads["w"].numpy(), 2 * x.numpy().T @ (x.numpy() @ w), rtol=1e-4)


def test_it_is_copied_pickled_and_loaded(tmp_path: object) -> None:
    net = from_onnx(network()).eval()
    other = from_onnx(network()).eval()
    other.load_state_dict({k: v.numpy() + 1 for k, v in other.state_dict().items()})
    lm.save_safetensors(net, tmp_path / "w.safetensors")
    other.load_state_dict(lm.load_safetensors(tmp_path / "w.safetensors"))
    wanted = net(lm.tensor(X)).numpy()
    for made in (other, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert isinstance(made, OnnxModule)
        np.testing.assert_array_equal(made(lm.tensor(X)).numpy(), wanted)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("a.b", "a.b"), ("onnx::Conv_12", "onnx::Conv_12"), ("0.weight", "0.weight"), ("model.w", "model.w"),
        ("_parameters", "_parameters_"), ("a..b", "a._.b"), ("_graph.w", "_graph_.w"), ("forward", "forward"),
        ("training", "training_"), ("a.training", "a.training_"), ("_model", "_model_"), ("_masters", "_masters_"),
        (".".join("a" * 50), "_".join("a" * 50)),
    ],
)  # fmt: skip
def test_any_name_is_legal(name: str, key: str) -> None:
    proto = model(
        [helper.make_node("Add", ["x", name], ["y"])], {"x": (2,)}, {"y": (2,)}, **{name: numbers(2)}
    )
    net = from_onnx(proto).eval()
    assert list(net.state_dict()) == [key]
    y = net(lm.zeros((2,))).numpy()
    np.testing.assert_array_equal(y, net.state_dict()[key].numpy())
    assert net.to_onnx().graph.initializer[0].raw_data == y.tobytes()


def test_what_is_trained_may_be_chosen() -> None:
    net = from_onnx(network(), trainable=lambda name, x: name == "factor" or name.startswith("fc"))
    assert [n for n, _ in net.named_parameters()] == ["factor", "fc.weight"]


def test_several_outputs_and_inputs_by_order() -> None:
    nodes = [helper.make_node("Sub", ["a", "b"], ["d"]), helper.make_node("Add", ["a", "b"], ["s"])]
    net = from_onnx(model(nodes, {"a": (2,), "b": (2,)}, {"d": (2,), "s": (2,)}))
    d, s = net(lm.tensor([3.0, 4.0]), lm.tensor([1.0, 2.0]))
    assert (d.tolist(), s.tolist()) == ([2, 2], [4, 6])


def test_what_a_call_refuses() -> None:
    net = from_onnx(network())
    with pytest.raises(OnnxError, match=r"inputs \['x'\] are not given"):
        net()
    with pytest.raises(OnnxError, match=r"takes 1 inputs \('x',\), got 2"):
        net(X, X)
    with pytest.raises(OnnxError, match=r"input 'x' has 4 axes in the model, got f32\[3,8,8\]"):
        net(X[0])
    with pytest.raises(OnnxError, match=r"\['z'\] are no inputs of the graph"):
        net(X, z=X)


def test_inputs_are_a_dict_too() -> None:
    """As a predictor takes them."""
    proto = model([helper.make_node("Sub", ["a", "b"], ["y"])], {"a": (2,), "b": (2,)}, {"y": (2,)})
    net, a, b = from_onnx(proto), np.array([3, 5], "f"), np.array([1, 7], "f")
    for found in (net({"b": b, "a": a}), net({"a": a}, b=b), net(a, b)):
        np.testing.assert_array_equal(found.numpy(), [2, -2])
    with pytest.raises(OnnxError, match=r"inputs \['a'\] are given by place and by name"):
        net(a, a=a)


def test_inputs_of_integers_get_the_width_of_the_file_and_keep_their_kind() -> None:
    """Tokens in int32 serve a model that joins them with its own int64; floats in their place are refused."""
    kind = onnx.TensorProto.INT64
    nodes = [helper.make_node("Concat", ["first", "tokens"], ["all"], axis=0)]
    nodes.append(helper.make_node("Gather", ["table", "all"], ["y"]))
    weights = {"first": np.array([2]), "table": numbers(4, 3)}
    net = from_onnx(model(nodes, {"tokens": (kind, ("n",))}, {"y": ("n", 3)}, **weights)).eval()
    tokens = np.array([3, -4])
    for run in (net, lm.jit(net), Predictor(net, device="cpu")):
        for dtype in (np.int64, np.int32, np.uint8):
            given = np.abs(tokens).astype(dtype) % 4 if dtype == np.uint8 else tokens.astype(dtype)
            np.testing.assert_array_equal(run(given).numpy(), weights["table"][[2, 3, 0]])
    with pytest.raises(OnnxError, match=r"input 'tokens' is of int64 in the model, got f32\[2\]"):
        net(tokens.astype(np.float32))
    with pytest.raises(OnnxError, match=r"input 'tokens' is of int64 in the model, got b8\[2\]"):
        net(tokens > 0)


def test_what_never_changes_is_compared_by_no_call() -> None:
    """Dicts of a module are settings that each call of a program looks at; a network of a file has none."""
    net = from_onnx(network())
    assert not SameModules(net)._around
    assert net.names == {name: name for name in NAMES}


def test_operators_without_a_handler_are_named_when_it_is_read() -> None:
    nodes = [helper.make_node("Foo", ["x"], ["h"]), helper.make_node("Bar", ["h"], ["y"], domain="mine")]
    with pytest.raises(OnnxError, match=r"operators without a handler: Foo, mine\.Bar; register a function"):
        from_onnx(model(nodes, {"x": (2,)}, {"y": (2,)}))


@pytest.mark.torch
@pytest.mark.feature("B026")
@pytest.mark.parametrize("name", ["images", "tokens", "sequences"])
def test_from_pytorch_through_onnx_and_back_into_it(name: str) -> None:
    """PyTorch -> ONNX -> Lamina -> ONNX -> onnxruntime: weights are the same bits, outputs PyTorch's."""
    import torch
    from torch import nn as theirs_nn

    class Attending(theirs_nn.Module):
        """Two heads, a layer norm and a feed-forward block, written out."""

        def __init__(self) -> None:
            super().__init__()
            self.all, self.norm = theirs_nn.Linear(16, 48), theirs_nn.LayerNorm(16)
            self.wide, self.back = theirs_nn.Linear(16, 32), theirs_nn.Linear(32, 16)

        def forward(self, x):  # type: ignore[no-untyped-def]
            q, k, v = (t.reshape(2, 5, 2, 8).transpose(1, 2) for t in self.all(self.norm(x)).chunk(3, -1))
            shares = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, -1)
            x = x + (shares @ v).transpose(1, 2).reshape(2, 5, 16)
            return x + self.back(theirs_nn.functional.gelu(self.wide(x)))

    torch.manual_seed(0)
    made = {
        "images": (
            theirs_nn.Sequential(
                theirs_nn.Conv2d(3, 8, 3, padding=1), theirs_nn.BatchNorm2d(8), theirs_nn.Hardswish(),
                theirs_nn.Conv2d(8, 8, 3, groups=8), theirs_nn.GELU(), theirs_nn.MaxPool2d(2), theirs_nn.Flatten(),
                theirs_nn.Linear(72, 5),
            ),
            torch.randn(2, 3, 8, 8),
        ),
        "tokens": (Attending(), torch.randn(2, 5, 16)),
        "sequences": (theirs_nn.LSTM(6, 8, 2, bidirectional=True), torch.randn(4, 2, 6)),
    }  # fmt: skip
    net, x = made[name][0].eval(), made[name][1]
    with torch.no_grad():
        found = net(x)
        wanted = (found[0] if isinstance(found, tuple) else found).numpy()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            net, (x,), file, dynamo=False, opset_version=17, do_constant_folding=False,
            training=torch.onnx.TrainingMode.EVAL,
        )  # fmt: skip
    first = onnx.load_from_string(file.getvalue())
    ours = from_onnx(first).eval()
    mine = ours(x.numpy())
    np.testing.assert_allclose(
        (mine[0] if isinstance(mine, tuple) else mine).numpy(), wanted, rtol=1e-4, atol=1e-5
    )
    again = to_onnx(ours, x.numpy())
    session = onnxruntime.InferenceSession(again.SerializeToString(), providers=["CPUExecutionProvider"])
    (result, *_) = session.run(None, {again.graph.input[0].name: x.numpy()})
    np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)
    stored = {numpy_helper.to_array(t).tobytes() for t in again.graph.initializer}
    of_network = {p.detach().numpy().tobytes() for p in net.state_dict().values()}
    for t in first.graph.initializer:
        held = numpy_helper.to_array(t).tobytes()
        assert held in stored or held not in of_network, t.name
    if name == "images":
        assert {p.detach().numpy().tobytes() for p in net.parameters()} <= stored


def test_weights_of_half_types_train_in_float32_and_meet_their_operators_in_the_half_type() -> None:
    make = helper.make_node
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    nodes = [
        make("Cast", ["x"], ["h"], to=half), make("MatMul", ["h", "w"], ["m"]), make("Cast", ["m"], ["y"], to=single),
    ]  # fmt: skip
    weight = numbers(3, 4).astype(np.float16)
    net = from_onnx(model(nodes, {"x": (2, 3)}, {"y": (2, 4)}, w=weight))
    step = lm.train_step(net, lambda y, _: lm.ops.sum(y), lm.optim.SGD(lr=0.5))
    x = np.ones((2, 3), np.float32)
    loss = step(x, np.zeros(1, np.float32))
    np.testing.assert_allclose(float(loss), 2 * weight.astype(np.float32).sum(), rtol=1e-2)
    after = next(iter(step.net.parameters())).numpy().astype(np.float32)
    np.testing.assert_allclose(after, weight.astype(np.float32) - 1.0, atol=2e-3)
