"""Handlers of quantized numbers agree with ONNX's own tests."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from lamina import jit, ops, tensor
from lamina.convert import from_onnx, to_onnx
from lamina.convert.onnx import OnnxError, quantize
from lamina.infer import Predictor
from tests.helpers.onnx_models import agrees, model, node_tests, single


@pytest.mark.parametrize("name", node_tests(quantize))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_a_scale_for_each_block_along_an_axis() -> None:
    x, scale = np.arange(10, dtype=np.int8).reshape(2, 5), np.array([[1, 2], [3, 4]], np.float32)
    graph = single("DequantizeLinear", {"x": x.shape, "s": scale.shape}, axis=1, block_size=3)
    np.testing.assert_array_equal(graph({"x": x, "s": scale})["y0"].numpy(), x * scale.repeat([3, 2], 1))


FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("each", [False, True], ids=["one scale", "a scale each"])
@pytest.mark.parametrize("told", ["zero point", "attribute"])
def test_float8_there_and_back(each: bool, told: str) -> None:
    """Rounded to three bits and saturated; below the normal numbers in steps of 2^-9."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(8, 4)) * s for s in (1, 300, 1e-3)]).astype(np.float32)
    scale = np.array([0.5, 1, 2, 0.01], np.float32) if each else np.float32(0.7)
    zero = {"z": np.zeros(scale.shape, FLOAT8)} if told == "zero point" else {}
    how = {} if zero else {"output_dtype": onnx.TensorProto.FLOAT8E4M3FN}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", *zero], ["q"], axis=1, **how),
        helper.make_node("DequantizeLinear", ["q", "s", *zero], ["y"], axis=1),
    ]
    compared(model(nodes, {"x": x.shape}, {"y": x.shape}, opset=21, s=scale, **zero), x)


def test_weights_in_float8() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(4, 5)).astype(FLOAT8)
    scale = rng.uniform(0.1, 1, 5).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["f"], axis=1),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    proto = model(nodes, {"x": x.shape}, {"y": (3, 5)}, opset=21, w=w, s=scale)
    compared(proto, x)
    net = from_onnx(proto)
    assert list(net.state_dict()) == ["s"]  # quantized numbers are not trained
    np.testing.assert_allclose(Predictor(net, device="cpu")(x).numpy(), net(x).numpy(), rtol=1e-5, atol=1e-6)


def test_casts_of_float8() -> None:
    x = np.array([0.1, -3.3, 447, 470, 1e9, -np.inf, np.nan, 1e-3, 0], np.float32)
    kind = onnx.TensorProto.FLOAT8E4M3FN
    nodes = [helper.make_node("Cast", ["x"], ["q"], to=kind), helper.make_node("Cast", ["q"], ["y"], to=1)]
    compared(model(nodes, {"x": x.shape}, {"y": x.shape}, opset=21), x)
    nodes = [helper.make_node("Cast", ["x"], ["q"], to=kind), helper.make_node("Cast", ["q"], ["y"], to=9)]
    compared(model(nodes, {"x": (2,)}, {"y": (onnx.TensorProto.BOOL, (2,))}, opset=21), x[[0, 8]])
    plain = helper.make_node("Cast", ["x"], ["q"], to=kind, saturate=0)
    compared(model([plain, nodes[1]], {"x": (9,)}, {"y": (onnx.TensorProto.BOOL, (9,))}, opset=21), x)
    plain = helper.make_node("QuantizeLinear", ["x", "s"], ["q"], output_dtype=kind, saturate=0)
    with pytest.raises(OnnxError, match="QuantizeLinear: saturate=0 is not built"):
        from_onnx(model([plain], {"x": (9,)}, {"q": (9,)}, opset=21, s=np.float32(1)))(x)


def test_a_quantization_of_lamina_comes_back() -> None:
    """What `to_onnx` writes of ops in float8."""

    def program(x: Any) -> Any:
        return ops.dequantize(ops.quantize(x, 0.5, "float8_e4m3fn"), 0.5)

    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32) * 100
    found = from_onnx(to_onnx(program, x))(x)
    np.testing.assert_array_equal(found.numpy(), program(tensor(x)).numpy())


def compared(proto: onnx.ModelProto, x: np.ndarray[Any, Any]) -> None:
    """The same as onnxruntime, op by op and compiled."""
    proto.ir_version = 10
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": x})
    net = from_onnx(proto).eval()
    for run in (net, jit(net)):
        found = run(x).numpy()
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
