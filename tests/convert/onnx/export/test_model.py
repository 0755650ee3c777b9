"""Networks, functions and graphs as models: names, weights, free axes, files; and networks of all kinds."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import lamina as lm
from lamina import _tree, nn, ops
from lamina.convert import ExportError, from_onnx, to_onnx
from lamina.convert.onnx import OnnxGraph
from lamina.graph import trace
from lamina.spec import Spec, bfloat16, float32, int64
from tests.helpers.onnx_networks import NETWORKS, QUICK, Case

pytestmark = pytest.mark.feature("B026")
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def run(model: onnx.ModelProto, **inputs: Any) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def test_weights_stand_under_their_names_bit_by_bit(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    model = to_onnx(net, floats(2, 3, 8, 8), path=tmp_path / "net.onnx")
    stored = onnx.load(tmp_path / "net.onnx")
    assert stored == model
    found = {t.name: numpy_helper.to_array(t) for t in stored.graph.initializer}
    for name, x in net.state_dict().items():
        assert found[name].tobytes() == x.numpy().tobytes()
        assert found[name].shape == x.shape
    assert [v.name for v in model.graph.input] == ["input_0"]
    assert [v.name for v in model.graph.output] == ["output"]
    assert model.graph.node[0].name == "0/Conv"
    assert model.producer_name == "lamina"
    assert model.opset_import[0].version == 20


def test_a_training_network_is_exported_in_inference_mode_and_stays_in_training() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    assert net.training
    types = [n.op_type for n in to_onnx(net, floats(2, 3)).graph.node]
    assert "Dropout" not in types
    assert "BatchNormalization" in types
    assert net.training


@pytest.mark.parametrize("opset", range(17, 24))
def test_every_opset(opset: int) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.Upsample(scale_factor=2), nn.Mish()
    )
    assert to_onnx(net, floats(2, 3, 6, 6), opset=opset).opset_import[0].version == opset


def test_names_and_structures() -> None:
    def fn(x: Any, pair: Any) -> Any:
        return {"sum": x + pair["a"], "list": [x * pair["b"], x]}

    x = floats(2, 3)
    model = to_onnx(fn, x, {"a": x, "b": x})
    assert [v.name for v in model.graph.input] == ["input_0", "input_1_a", "input_1_b"]
    assert [v.name for v in model.graph.output] == ["output_sum", "output_list_0", "output_list_1"]
    named = to_onnx(fn, x, {"a": x, "b": x}, input_names=["u", "v", "w"], output_names=["p", "q", "r"])
    found = run(named, u=x, v=2 * x, w=3 * x)
    for y, wanted in zip(found, (3 * x, 3 * x * x, x), strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-5)


def test_an_output_that_is_an_input_or_a_weight_or_stands_twice() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(floats(3))

        def forward(self, x: Any) -> Any:
            y = x.exp()
            return y, y, x, self.weight

    net, x = Net(), floats(2, 3)
    found = run(to_onnx(net, x), input_0=x)
    for y, wanted in zip(found, (np.exp(x), np.exp(x), x, net.weight.numpy()), strict=True):
        np.testing.assert_allclose(y, wanted, rtol=1e-6)


def test_a_graph_is_exported_as_it_is() -> None:
    graph = trace(
        lambda x, y: (x @ y, x.sum()), Spec((2, 3), float32), Spec((3, 4), float32), names=["x", "y"]
    )
    model = to_onnx(graph)
    assert [v.name for v in model.graph.input] == ["x", "y"]
    x, y = floats(2, 3), floats(3, 4)
    np.testing.assert_allclose(run(model, x=x, y=y)[0], x @ y, rtol=1e-5)
    with pytest.raises(TypeError, match="a Graph has inputs of its own"):
        to_onnx(graph, x)
    with pytest.raises(ValueError, match="a Graph has fixed sizes"):
        to_onnx(graph, dynamic="batch")


def test_shared_weights_are_written_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x))

    model = to_onnx(Tied(), np.array([[1, 2, 6]]))
    assert [t.name for t in model.graph.initializer if t.dims == [7, 4]] == ["first.weight"]


# ---- free axes


class Heads(nn.Module):
    """Attention of which every reshape depends on batch and time."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        b, t, _ = x.shape
        q, k, v = ops.chunk(self.qkv(x).reshape((b * t, 3, 2, 4)), 3, 1)
        q, k, v = (y.reshape((b, t, 2, 4)).permute((0, 2, 1, 3)) for y in (q, k, v))
        found = ops.scaled_dot_product_attention(q, k, v, is_causal=True)
        places = ops.operand(np.arange(t, dtype=np.float32)).reshape((1, t, 1))
        return self.out(found.permute((0, 2, 1, 3)).reshape((b, t, 8))) + places


def test_batch_and_time_are_free() -> None:
    net = Heads()
    model = to_onnx(net, floats(2, 5, 8), dynamic={"input_0": {0: "batch", 1: "time"}})
    assert [d.dim_param or d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [
        "batch",
        "time",
        8,
    ]
    assert [d.dim_param or d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [
        "batch",
        "time",
        8,
    ]
    for shape in ((1, 1, 8), (3, 9, 8), (4, 2, 8)):
        x = floats(*shape)
        wanted = net(ops.operand(x)).numpy()
        np.testing.assert_allclose(run(model, input_0=x)[0], wanted, atol=1e-5)
        found = OnnxGraph(model)({"input_0": ops.operand(x)})["output"].numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_images_of_any_size() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.ReflectionPad2d(1), nn.MaxPool2d(2),
        nn.ConvTranspose2d(4, 4, 2, 2), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2),
    )  # fmt: skip
    model = to_onnx(net, floats(2, 3, 16, 20), dynamic={"input_0": {0: "n", 2: "h", 3: "w"}})
    for shape in ((1, 3, 24, 17), (3, 3, 33, 40)):
        x = floats(*shape)
        with_net = net.eval()(ops.operand(x)).numpy()
        np.testing.assert_allclose(run(model, input_0=x)[0], with_net, atol=1e-5)


#: Functions of x [batch, time, 6], whose sizes and constants depend on both axes.
SIZED: dict[str, Any] = {
    "moments": lambda x: (x - x.mean((1, 2), keepdim=True)) / (x.var((1, 2), keepdim=True) + 1e-5).sqrt(),
    "deviations": lambda x: (x.std(), x.var(0), x / x.shape[1] ** 0.5),
    "tables of sines": lambda x: (
        x + (lm.arange(x.shape[1]).float()[:, None] * np.float32([1, 0.1] * 3)).sin()
    ),
    "clipped distances": lambda x: (
        x @ x.transpose(1, 2) + (lm.arange(x.shape[1])[:, None] - lm.arange(x.shape[1])).clamp(-2, 2)
    ),
    "a causal bias": lambda x: (
        x @ x.transpose(1, 2) + lm.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
    ).softmax(-1),
    "halves": lambda x: x.chunk(2, 1),
    "every other": lambda x: x[:, ::2],
    "the middle": lambda x: x.median(1),
    "rolled": lambda x: (x.roll(1, 1), x.roll(-1, 0), ops.pad(x.transpose(1, 2), (2, 1), mode="circular")),
    "by batch": lambda x: x[lm.arange(x.shape[0]), -1],
    "written": lambda x: _first_is_zero(x.clone()),
    "resized": lambda x: ops.interpolate(
        x[:, None], size=(x.shape[1] + 3, 2 * x.shape[1] - 1), mode="bilinear"
    ),
    "the whole image": lambda x: (
        ops.avg_pool2d(x[:, None], (x.shape[1], x.shape[2])),
        ops.max_pool2d(x[:, None], (x.shape[1], x.shape[2])),
    ),
    "rounded up": lambda x: ops.max_pool2d(x[:, None], 3, 2, 1, ceil_mode=True),
}


def _first_is_zero(x: Any) -> Any:
    x[:, 0] = 0.0
    return x


@pytest.mark.parametrize("name", SIZED)
def test_sizes_and_constants_follow_free_axes(name: str) -> None:
    f = SIZED[name]
    model = to_onnx(f, floats(2, 7, 6), dynamic={"input_0": {0: "batch", 1: "time"}})
    for batch, time in ((2, 7), (3, 9), (5, 12)):
        x = floats(batch, time, 6)
        wanted = _tree.flatten(f(ops.operand(x)))[0]
        for found, one in zip(run(model, input_0=x), wanted, strict=True):
            np.testing.assert_allclose(found, one.numpy(), atol=1e-5, rtol=1e-5)


def test_a_state_is_no_part_of_a_model() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            self.register_buffer("calls", lm.zeros(3))

        def forward(self, x: Any) -> Any:
            self.calls = self.calls + 1.0
            return x + self.calls

    with pytest.raises(TypeError, match="to_onnx: forward writes to 'calls'.*an argument and a result"):
        to_onnx(Counting(), floats(2, 3))


def test_the_state_of_a_recurrent_layer_follows_the_batch() -> None:
    net = nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True)
    model = to_onnx(net, floats(2, 6, 4), dynamic={"input_0": {0: "batch", 1: "time"}})
    x = floats(3, 9, 4)
    y, (h, c) = net(ops.operand(x))
    for found, wanted in zip(run(model, input_0=x), (y, h, c), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), atol=1e-5)


def test_what_depends_on_a_free_axis_otherwise_is_refused() -> None:
    def unrolled(x: Any) -> Any:
        return sum((x[i] for i in range(x.shape[0])), start=x[0] * 0.0)

    with pytest.raises(ExportError, match="another program for other sizes of its free axes batch: .* ops"):
        to_onnx(unrolled, floats(3, 4), dynamic="batch")
    weights = {n: floats(n) for n in range(20)}
    with pytest.raises(ExportError, match="a constant of shape .* depends on a free axis"):
        to_onnx(lambda x: x * weights[x.shape[0]], floats(3), dynamic="batch")


def test_a_type_that_an_operator_does_not_take_says_which_opset_does() -> None:
    net, x = nn.Conv2d(3, 4, 3).to("bfloat16"), Spec((2, 3, 6, 6), bfloat16)
    with pytest.raises(ExportError, match="opset 20 does not take .*Conv.*bfloat16.*give a later opset"):
        to_onnx(net, x)
    assert to_onnx(net, x, opset=22).opset_import[0].version == 22


def test_bad_arguments() -> None:
    net, x = nn.Linear(3, 4), floats(2, 3)
    with pytest.raises(ValueError, match="opset must be 17 to 23, got 16"):
        to_onnx(net, x, opset=16)
    with pytest.raises(TypeError, match="net must be an instance of Module or .* or a function, got 3"):
        to_onnx(3, x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"dynamic names \['y'\], the inputs are \['input_0'\]"):
        to_onnx(net, x, dynamic={"y": {0: "batch"}})
    with pytest.raises(ValueError, match=r"dynamic has axes \[2\] of input_0"):
        to_onnx(net, x, dynamic={"input_0": {2: "batch"}})
    with pytest.raises(ValueError, match="the free axis 'n' has size 2 and, in input_0, 3"):
        to_onnx(net, x, dynamic={"input_0": {0: "n", 1: "n"}})
    with pytest.raises(ValueError, match="input_names must be 1 names"):
        to_onnx(net, x, input_names=["a", "b"])
    with pytest.raises(ValueError, match="is that of two inputs, outputs or weights"):
        to_onnx(net, x, input_names=["a"], output_names=["a"])
    with pytest.raises(ValueError, match="weights in a file of their own need path="):
        to_onnx(net, x, external_data=True)
    with pytest.raises(OSError, match="nowhere"):
        to_onnx(net, x, path="/nowhere/net.onnx")


def test_weights_in_a_file_beside(tmp_path: Path) -> None:
    net, x = nn.Linear(64, 64), floats(2, 64)
    to_onnx(net, x, path=tmp_path / "net.onnx", external_data=True)
    assert (tmp_path / "net.onnx.data").stat().st_size >= 4 * 64 * 64
    assert (tmp_path / "net.onnx").stat().st_size < 4000
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"input_0": x})[0], net(ops.operand(x)).numpy(), atol=1e-5)


# ---- networks


def comes_back(case: Case) -> None:
    """Runs in onnxruntime and in OnnxGraph within 1e-4 (the self-check), and its weights are the same bits."""
    net, examples = case.made()
    model = to_onnx(net, *examples, dynamic=case.dynamic)
    back = OnnxGraph(model).initializers
    for name, x in dict(net.named_parameters()).items():
        assert back[name].numpy().tobytes() == x.numpy().tobytes()


@pytest.mark.parametrize("name", QUICK)
def test_small_networks_come_back(name: str) -> None:
    comes_back(NETWORKS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NETWORKS if n not in QUICK])
def test_networks_come_back(name: str) -> None:
    comes_back(NETWORKS[name])


@pytest.mark.parametrize(
    "name", ["LeNet", "program_unet", "program_vit", "gru", "lstm_step", "transformer", "signal"]
)
def test_a_model_that_came_in_goes_out_again(name: str) -> None:
    """Lamina -> ONNX -> Lamina -> ONNX: the weights are the same bits, the outputs pass the check."""
    net, examples = NETWORKS[name].made()
    model = to_onnx(net, *examples, check=False)
    again = to_onnx(from_onnx(model), *_tree.leaves(examples))
    stored = {t.raw_data for t in again.graph.initializer}
    first = {t.name: t.raw_data for t in model.graph.initializer}
    assert all(first[n] in stored for n in dict(net.named_parameters()))


def test_thirty_networks_and_more() -> None:
    assert len(NETWORKS) >= 30


def test_integers_reach_embeddings() -> None:
    net = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3))
    model = to_onnx(net, Spec((2, 5), int64), dynamic="batch")
    assert run(model, input_0=np.full((3, 5), 8))[0].shape == (3, 5, 3)
