"""Integer tensors, for every operation that may take them: what cuDNN accepts has the exact values.

Numbers are small enough that nothing leaves the type's range. What the library refuses it refuses by a typed
error, which is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lamina.cudnn import legacy
from tests.helpers.legacy import reference as ref
from tests.helpers.legacy.gpu import Gpu, Operand, ran

pytestmark = pytest.mark.gpu
SHAPE = (2, 32, 6, 8)
TYPES = pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
FORMATS = pytest.mark.parametrize("format", ["nchw", "nhwc"])
Case = tuple[Callable[..., Any], dict[str, Operand], Any]


def operand(gpu: Gpu, dtype: str, format: str, shape: tuple[int, ...] = SHAPE) -> Operand:
    low = 0 if dtype == "uint8" else -9
    return gpu.tensor(gpu.integers(shape, low, 10), dtype, format)


def activation(gpu: Gpu, x: Operand) -> Case:
    return legacy.Activation("relu").forward, {"x": x}, np.maximum(x.values, 0)


def clipped(gpu: Gpu, x: Operand) -> Case:
    return legacy.Activation("clipped_relu", coef=6.0).forward, {"x": x}, np.clip(x.values, 0, 6)


def pooling(gpu: Gpu, x: Operand) -> Case:
    wanted = ref.pool("max", x.values, (2, 2), (0, 0), (2, 2))
    return legacy.Pooling("max", window=2).forward, {"x": x}, wanted


def transform(gpu: Gpu, x: Operand) -> Case:
    return lambda handle, **named: legacy.transform_tensor(handle, **named), {"x": x}, x.values


def padded(gpu: Gpu, x: Operand) -> Case:
    change = legacy.TensorTransform(pad_before=(0, 0, 1, 0), pad_after=(0, 0, 0, 2))
    return change.run, {"x": x}, np.pad(x.values, ((0, 0), (0, 0), (1, 0), (0, 2)))


UNARY = {make.__name__: make for make in (activation, clipped, pooling, transform, padded)}


@pytest.mark.feature("F019", "F054", "F044")
@pytest.mark.parametrize("name", UNARY)
@TYPES
@FORMATS
def test_of_one_tensor(gpu: Gpu, name: str, dtype: str, format: str) -> None:
    run, operands, wanted = UNARY[name](gpu, operand(gpu, dtype, format))
    y = gpu.output(wanted.shape, dtype, format)
    named = {key: value for at, one in operands.items() for key, value in one.named(at).items()}
    if ran(lambda: run(gpu.handle, **named, **y.named("y")), sure=False):
        np.testing.assert_array_equal(y.read(), wanted)


@pytest.mark.feature("F064")
@pytest.mark.parametrize("op", ["add", "mul", "min", "max"])
@TYPES
@FORMATS
def test_op_tensor(gpu: Gpu, op: str, dtype: str, format: str) -> None:
    a, b = operand(gpu, dtype, format), operand(gpu, dtype, format)
    c = gpu.output(SHAPE, dtype, format)
    made = legacy.OpTensor(op)
    if ran(lambda: made.run(gpu.handle, **a.named("a"), **b.named("b"), **c.named("c")), sure=False):
        wanted = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[op]
        np.testing.assert_array_equal(c.read(), wanted(a.values, b.values))


@pytest.mark.feature("F044")
@TYPES
@FORMATS
def test_add_tensor(gpu: Gpu, dtype: str, format: str) -> None:
    a, c = operand(gpu, dtype, format, (1, SHAPE[1], 1, 1)), operand(gpu, dtype, format)
    if ran(lambda: legacy.add_tensor(gpu.handle, **a.named("a"), **c.named("c"), beta=1.0), sure=False):
        np.testing.assert_array_equal(c.read(), c.values + a.values)


@pytest.mark.feature("F065")
@pytest.mark.parametrize("op", ["min", "max", "amax", "add"])
@pytest.mark.parametrize("result", ["same", "float32"])
@TYPES
def test_reduce(gpu: Gpu, op: str, result: str, dtype: str) -> None:
    a = operand(gpu, dtype, "nchw", (2, 8, 3, 2))
    c = gpu.output((2, 8, 1, 1), dtype if result == "same" else result)
    made = legacy.ReduceTensor(op)
    if ran(lambda: made.run(gpu.handle, **a.named("a"), **c.named("c")), sure=False):
        np.testing.assert_array_equal(c.read(), ref.REDUCTIONS[op](a.values, (2, 3)))


@pytest.mark.feature("F044", "F019")
@pytest.mark.parametrize("result", ["float32", "float16", "float64"])
@TYPES
def test_transform_between_types(gpu: Gpu, dtype: str, result: str) -> None:
    x, y = operand(gpu, dtype, "nchw"), gpu.output(SHAPE, result, "nhwc")
    if ran(lambda: legacy.transform_tensor(gpu.handle, **x.named("x"), **y.named("y")), sure=False):
        np.testing.assert_array_equal(y.read(), x.values)
        back = gpu.output(SHAPE, dtype, "nchw")
        if result == "float64":  # refused by Lamina on the way back: see test_arguments.py
            return
        if ran(lambda: legacy.transform_tensor(gpu.handle, **y.named("x"), **back.named("y")), sure=False):
            np.testing.assert_array_equal(back.read(), x.values)


def lanes_first(values: np.ndarray[Any, Any], lanes: int) -> np.ndarray[Any, Any]:
    """N, C, H, W -> N, C / lanes, H, W, lanes."""
    n, c, h, w = values.shape
    return values.reshape(n, c // lanes, lanes, h, w).transpose(0, 1, 3, 4, 2).astype(np.int8)


@pytest.mark.feature("F019", "F054", "F044")
@pytest.mark.parametrize("name", ["activation", "pooling", "transform"])
@pytest.mark.parametrize(("data_type", "lanes"), [("int8x4", 4), ("int8x32", 32)])
def test_vectorised_tensors(gpu: Gpu, name: str, data_type: str, lanes: int) -> None:
    x = operand(gpu, "int8", "nchw")
    run, _, wanted = UNARY[name](gpu, x)
    kind = {"data_type": data_type, "format": "nchw_vect_c"}
    x_desc, y_desc = (legacy.TensorDescriptor(shape, **kind) for shape in (SHAPE, wanted.shape))
    memory, y = gpu.put(lanes_first(x.values, lanes)), gpu.zeros(wanted.size)
    if ran(lambda: run(gpu.handle, x_desc=x_desc, x=memory, y_desc=y_desc, y=y), sure=False):
        found = lanes_first(wanted, lanes)
        np.testing.assert_array_equal(gpu.read(y, found.shape, "int8"), found)


@pytest.mark.feature("F019", "F044")
@pytest.mark.parametrize(("data_type", "lanes"), [("int8x4", 4), ("int8x32", 32)])
def test_a_tensor_becomes_a_vectorised_one(gpu: Gpu, data_type: str, lanes: int) -> None:
    x, y = operand(gpu, "int8", "nchw"), gpu.zeros(int(np.prod(SHAPE)))
    y_desc = legacy.TensorDescriptor(SHAPE, data_type=data_type, format="nchw_vect_c")
    run = lambda: legacy.transform_tensor(gpu.handle, **x.named("x"), y_desc=y_desc, y=y)  # noqa: E731
    if ran(run, sure=False):
        wanted = lanes_first(x.values, lanes)
        np.testing.assert_array_equal(gpu.read(y, wanted.shape, "int8"), wanted)


@pytest.mark.feature("F052", "F019")
@pytest.mark.parametrize("with_z", [False, True])
@pytest.mark.parametrize("result", ["int8", "float32"])
def test_bias_activation_forward(gpu: Gpu, result: str, with_z: bool) -> None:
    """int8 in NHWC, the bias in float32, sums in int32, an int8 result cut to its range."""
    shape, taps = (2, 32, 9, 8), (32, 32, 3, 3)
    x, w = gpu.tensor(gpu.integers(shape), "int8", "nhwc"), gpu.filter(gpu.integers(taps), "int8", "nhwc")
    bias = gpu.tensor(gpu.integers((1, 32, 1, 1)), "float32", "nhwc")
    z, y = gpu.tensor(gpu.integers(shape), result, "nhwc"), gpu.tensor(np.zeros(shape), result, "nhwc")
    convolution = legacy.Convolution(pad=1, compute_type="int32", math_type="tensor_op")
    operands = {**x.named("x"), **w.named("w"), **bias.named("bias"), **y.named("y")}
    operands |= {**z.named("z"), "alpha2": 2.0} if with_z else {}

    def run() -> None:
        convolution.bias_activation_forward(gpu.handle, **operands, activation=legacy.Activation("relu"))

    if ran(run, sure=False):
        wanted = ref.conv(x.values, w.values, (1, 1), (1, 1), (1, 1)) + bias.values
        wanted = np.maximum(wanted + (2 * z.values if with_z else 0), 0)
        np.testing.assert_array_equal(y.read(), np.clip(wanted, -128, 127) if result == "int8" else wanted)
