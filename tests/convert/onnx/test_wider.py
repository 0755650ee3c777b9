"""Integers without a type of Lamina's are held in a wider one, and read only where that changes no result."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from lamina.convert.onnx import OnnxError, OnnxGraph, from_onnx
from lamina.convert.onnx.wider import WIDER, widened
from tests.helpers.onnx_models import model

RNG = np.random.default_rng(0)
PACKED = [TensorProto.INT2, TensorProto.UINT2, TensorProto.INT4, TensorProto.UINT4]
WIDE = [TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64]


def _numbers(code: int, count: int) -> list[int]:
    low, high = WIDER[code].bounds
    return [low, high, *RNG.integers(low, min(high, 1 << 40), size=count - 2).tolist()]


@pytest.mark.parametrize("code", [*PACKED, *WIDE])
@pytest.mark.parametrize("raw", [False, True])
def test_numbers_are_those_of_the_file(code: int, raw: bool) -> None:
    wanted = _numbers(code, 7)
    if code == TensorProto.UINT64:
        wanted[1] = (1 << 63) - 1
    proto = helper.make_tensor("w", code, [7], wanted)
    if raw:
        proto = numpy_helper.from_array(numpy_helper.to_array(proto), "w")
        assert proto.HasField("raw_data")
    found = widened(proto, None)
    assert found.dtype == WIDER[code].dtype
    assert found.numpy().tolist() == wanted


def test_what_goes_beyond_the_wider_type_or_the_data_is_refused() -> None:
    with pytest.raises(OnnxError, match=r"tensor 'w' has numbers from 2\^63 on"):
        widened(helper.make_tensor("w", TensorProto.UINT64, [1], [1 << 63]), None)
    short = helper.make_tensor("w", TensorProto.INT4, [3], [1, 2, 3])
    short.dims[0] = 9
    with pytest.raises(OnnxError, match=r"tensor 'w' of shape \[9\] needs 5 (bytes|numbers), the file has 2"):
        widened(short, None)


@pytest.mark.parametrize("code", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("way", ["blocks", "whole"])
def test_weights_of_four_bits(code: int, way: str, tmp_path: Any) -> None:
    options: dict[str, int] = {"axis": 0, "block_size": 4} if way == "blocks" else {"axis": 0}
    shape = [2, 6] if way == "blocks" else []
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["real"], **options),
        helper.make_node("MatMul", ["x", "real"], ["y"]),
    ]
    scales = np.abs(RNG.normal(size=shape)).astype(np.float32)
    proto = model(nodes, {"x": (3, 8)}, {"y": (3, 6)}, opset=21, s=scales)
    zero = helper.make_tensor("z", code, shape, _numbers(code, 12) if shape else [3])
    proto.graph.initializer.extend([helper.make_tensor("w", code, [8, 6], _numbers(code, 48)), zero])
    proto.ir_version = 10
    apart = onnx.ModelProto.FromString(proto.SerializeToString())
    onnx.save(apart, tmp_path / "net.onnx", save_as_external_data=True, size_threshold=0)
    x = RNG.normal(size=(3, 8)).astype(np.float32)
    (wanted,) = _session(proto).run(None, {"x": x})
    for source in (proto, tmp_path / "net.onnx"):
        net = from_onnx(source)
        np.testing.assert_allclose(net(x).numpy(), wanted, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(_session(net.to_onnx()).run(None, {"x": x})[0], wanted)


def _session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Without its fusions, one of which rounds the other operand of such a product."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])


def test_steps_to_sixteen_bits_stay_within_their_numbers() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    zero = np.array(100, np.uint16)
    proto = model(nodes, {"x": (4,)}, {"y": (4,)}, opset=21, s=np.float32(0.5), z=zero)
    found = OnnxGraph(proto)({"x": np.array([-60, 0.2, 0.3, 1e6], np.float32)})["y"].numpy()
    assert found.tolist() == [-50.0, 0.0, 0.5, (65535 - 100) / 2]


def test_an_operator_that_computes_in_the_type_is_named() -> None:
    kinds = np.array([1, 2], np.uint32)
    proto = model([helper.make_node("Sub", ["k", "k"], ["y"], name="less")], {}, {"y": (2,)}, k=kinds)
    with pytest.raises(
        OnnxError, match="Sub 'less': input 'k' is of element type uint32, which has no counterpart"
    ):
        OnnxGraph(proto)
    cast = helper.make_node("Cast", ["k"], ["y"], to=TensorProto.FLOAT)
    assert OnnxGraph(model([cast], {}, {"y": (2,)}, k=kinds))({})["y"].numpy().tolist() == [1, 2]
