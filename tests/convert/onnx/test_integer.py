"""Products of 8-bit integers: by kernels for them, with the numbers of onnxruntime."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from lamina.convert.onnx import from_onnx
from lamina.convert.onnx.integer import exact_parts, quantized_to, signed, weights
from lamina.infer import Predictor
from lamina.ops import matmul
from lamina.spec import float32, int8, uint8
from lamina.tensors import tensor

RNG = np.random.default_rng(0)
node = helper.make_node


def integers(low: int, high: int, kind: Any, *shape: int) -> Any:
    """Whole numbers."""
    return RNG.integers(low, high, shape).astype(kind)


def model(nodes: list[Any], x: Any, out: int, **held: Any) -> onnx.ModelProto:
    """A model of one input and the output y, with held tensors."""
    info = helper.make_tensor_value_info
    code = helper.np_dtype_to_tensor_dtype(x.dtype)
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()]
    graph = helper.make_graph(
        nodes, "net", [info("x", code, [None, *x.shape[1:]])], [info("y", out, None)], tensors
    )
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,
    )


def beside_onnxruntime(proto: onnx.ModelProto, x: Any, atol: float) -> list[str]:
    """Compare op by op and compiled with onnxruntime, each node by itself; the steps of the program.

    Without VNNI it adds pairs of 8-bit products in 16 bits, where they saturate: convolutions of uint8 have weights
    of at most 64 here, 2 * 255 * 64 < 2^15.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (wanted,) = session.run(None, {"x": x})
    return beside(wanted, proto, x, atol)


def beside(wanted: Any, proto: onnx.ModelProto, x: Any, atol: float) -> list[str]:
    """Compare op by op and compiled with what is wanted; the steps of the program."""
    net = from_onnx(proto).eval()
    program = Predictor(net, device="cpu")
    for found in (net(x), program(x)):
        assert found.shape == wanted.shape
        assert found.dtype.numpy == wanted.dtype
        np.testing.assert_allclose(
            found.numpy().astype(np.float64), wanted.astype(np.float64), rtol=0, atol=atol
        )
    return [str(n.op) for n in program.program(tensor(x).spec).graph.nodes]


F32 = np.float32
SCALES = {"sx": F32(0.031), "sw": RNG.uniform(0.005, 0.02, 6).astype(F32), "sy": F32(0.113)}


def quantized_conv(form: str, kind: Any, groups: int, middle: int) -> tuple[onnx.ModelProto, Any]:
    """A convolution of quantized images: one node, or with a relu between DequantizeLinear and QuantizeLinear."""
    window = {"pads": [1, 1, 0, 1], "strides": [2, 1], "group": groups}
    zero = {"zx": np.asarray(middle, kind), "zw": np.zeros(6, np.int8), "zy": np.asarray(middle + 2, kind)}
    held = {"w": integers(-64, 65, np.int8, 6, 4 // groups, 3, 3), "b": integers(-999, 999, np.int32, 6)}
    begin = [node("QuantizeLinear", ["x", "sx", "zx"], ["q"])]
    end = [node("DequantizeLinear", ["r", "sy", "zy"], ["y"])]
    if form == "QLinearConv":
        names = ["q", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"]
        nodes = [*begin, node(form, names, ["r"], **window), *end]
    else:
        held["b"] = held["b"].astype(F32) * 0.001
        nodes = [
            *begin,
            node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
            node("DequantizeLinear", ["w", "sw", "zw"], ["e"], axis=0),
            node("Conv", ["d", "e", "b"], ["c"], **window),
            node("Relu", ["c"], ["a"]),
            node("QuantizeLinear", ["a", "sy", "zy"], ["r"]),
            *end,
        ]
    x = RNG.standard_normal((2, 4, 7, 6)).astype(F32)
    return model(nodes, x, onnx.TensorProto.FLOAT, **SCALES, **zero, **held), x


@pytest.mark.parametrize("form", ["QLinearConv", "Conv"])
@pytest.mark.parametrize(
    ("kind", "groups", "middle"), [(np.uint8, 1, 110), (np.uint8, 2, 0), (np.int8, 1, -7)]
)
def test_convolutions(form: str, kind: Any, groups: int, middle: int) -> None:
    proto, x = quantized_conv(form, kind, groups, middle)
    steps = beside_onnxruntime(proto, x, 1e-5)
    assert any("quantized_conv" in s for s in steps)
    assert not any(s.startswith(("conv(", "fused(conv(")) for s in steps)


@pytest.mark.parametrize("transposed", [0, 1])
def test_products_of_dequantized_numbers(transposed: int) -> None:
    w = integers(-99, 99, np.int8, *((6, 40) if transposed else (40, 6)))
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["e"], axis=1 - transposed),
        node("Gemm", ["d", "e", "b"], ["y"], transB=transposed),
    ]
    x = RNG.standard_normal((5, 40)).astype(F32)
    held = {"zx": np.uint8(128), "zw": np.zeros(6, np.int8), "w": w, "b": RNG.standard_normal(6).astype(F32)}
    steps = beside_onnxruntime(model(nodes, x, onnx.TensorProto.FLOAT, **SCALES, **held), x, 1e-4)
    assert any("quantized_matmul" in s for s in steps)


def test_scales_along_the_summed_axis_are_no_integer_product() -> None:
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["q"]),
        node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["e"], axis=0),
        node("MatMul", ["d", "e"], ["y"]),
    ]
    x = RNG.standard_normal((5, 6)).astype(F32)
    held = {"zx": np.uint8(128), "zw": np.zeros(6, np.int8), "w": integers(-99, 99, np.int8, 6, 6)}
    steps = beside_onnxruntime(model(nodes, x, onnx.TensorProto.FLOAT, **SCALES, **held), x, 1e-4)
    assert not any("quantized_matmul" in s for s in steps)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_sums_of_integers_are_exact_beyond_what_float32_holds(kind: Any) -> None:
    """Products [K = 3000] and convolutions of the largest numbers, in parts; weights of nine bits by float32."""
    w = np.full((3000, 3), 127, np.int8) if kind is np.int8 else integers(200, 256, np.uint8, 3000, 3)
    w[::2, 0] -= 1
    x = integers(250, 256, np.uint8, 4, 3000)
    product = [node("MatMulInteger", ["x", "w", "zx"], ["y"])]
    centred, exact = x.astype(np.int32) - 3, w.astype(np.int32)
    beside(centred @ exact, model(product, x, onnx.TensorProto.INT32, w=w, zx=np.uint8(3)), x, 0)
    image, filters = x.reshape(4, 3000, 1, 1), np.ascontiguousarray(w.T).reshape(3, 3000, 1, 1)
    conv = [node("ConvInteger", ["x", "w", "zx", "zw"], ["y"])]
    held = {"w": filters, "zx": np.uint8(3), "zw": np.asarray(1, kind)}
    sums = (centred @ (exact - 1)).reshape(4, 3, 1, 1)
    beside(sums, model(conv, image, onnx.TensorProto.INT32, **held), image, 0)


def test_ranges_are_known_while_the_program_runs_alone() -> None:
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("ConvInteger", ["q", "w", "z"], ["c"], pads=[1, 1, 1, 1]),
        node("Cast", ["c"], ["f"], to=1),
        node("Mul", ["f", "s"], ["y"]),
    ]
    x = RNG.standard_normal((2, 3, 5, 5)).astype(F32)
    proto = model(nodes, x, onnx.TensorProto.FLOAT, w=integers(-64, 65, np.int8, 4, 3, 3, 3))
    steps = beside_onnxruntime(proto, x, 1e-2)
    assert any("quantized_conv" in s for s in steps)


def test_a_network_of_dequantized_numbers_trains_in_float32() -> None:
    proto, x = quantized_conv("Conv", np.uint8, 1, 128)
    assert from_onnx(proto).train()(x).shape == (2, 6, 3, 6)


def test_parts() -> None:
    moved, zero = signed(tensor(np.uint8([0, 128, 255])), tensor(np.uint8(3)))
    assert (moved.dtype, moved.numpy().tolist(), zero.numpy()) == (int8, [-128, 0, 127], -125)
    assert weights(tensor(np.uint8([[0, 255]])), tensor(np.uint8(128))).tolist() == [[-128, 127]]  # type: ignore[union-attr]
    assert weights(tensor(np.uint8([[0, 255]])), None) is None  # nine bits
    assert weights(matmul(tensor(F32([[1]])), tensor(F32([[1]]))), None) is None
    assert exact_parts(np.full((1, 1000, 1, 1), 127)) == [(0, 516), (516, 1000)]
    assert exact_parts(np.full((1, 2, 9, 9999), 127)) == []
    even = quantized_to(tensor(F32([-1, 0.6, 99])), tensor(F32(1)), tensor(np.uint8(2)), uint8)
    assert (even.dtype, even.numpy().tolist()) == (uint8, [1, 3, 101])
    assert (
        quantized_to(tensor(F32([0.5])), tensor(F32(1)), tensor(np.uint8(3)), uint8) is None
    )  # 0 + 3, not 4
    assert quantized_to(tensor(F32([0.5])), tensor(F32(1)), None, float32) is None
