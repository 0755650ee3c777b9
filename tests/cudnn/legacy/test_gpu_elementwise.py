"""Activations, elementwise operations, reductions, layout changes, folding, on the GPU against float64."""

from __future__ import annotations

import numpy as np
import pytest

from lamina.cudnn import legacy
from tests.helpers.legacy import reference as ref
from tests.helpers.legacy.gpu import BLENDS, FLOATS, SURE, Gpu, compute_type, ran

pytestmark = pytest.mark.gpu
SHAPE = (2, 8, 5, 6)
TYPES = pytest.mark.parametrize("dtype", FLOATS)
FORMATS = pytest.mark.parametrize("format", ["nchw", "nhwc"])
BLENDED = pytest.mark.parametrize(("alpha", "beta"), BLENDS)


# ------------------------------------------------------------------------------------------------ activations
@pytest.mark.feature("F056", "F078", "F022")
@pytest.mark.parametrize("mode", ref.ACTIVATIONS)
@TYPES
@FORMATS
@BLENDED
def test_activation(gpu: Gpu, mode: str, dtype: str, format: str, alpha: float, beta: float) -> None:
    coef = 0.75
    function, slope = ref.ACTIVATIONS[mode]
    values = gpu.tensor(gpu.normal(SHAPE), dtype).values
    values[(values == 0) | (values == coef)] = 0.5  # off the kinks: see the next test
    x, y = gpu.tensor(values, dtype, format), gpu.output(SHAPE, dtype, format, beta)
    activation = legacy.Activation(mode, coef=coef, swish_beta=coef)
    blend = {"alpha": alpha, "beta": beta}
    certain = dtype in SURE and mode != "swish"
    if not ran(lambda: activation.forward(gpu.handle, **x.named("x"), **y.named("y"), **blend), sure=certain):
        return
    result = function(x.values, coef)
    y.check(alpha * result + beta * y.values)
    plain, dy = gpu.tensor(result, dtype, format), gpu.tensor(gpu.normal(SHAPE), dtype, format)
    dx = gpu.output(SHAPE, dtype, format, beta)
    operands = {**plain.named("y"), **dy.named("dy"), **x.named("x"), **dx.named("dx"), **blend}
    if ran(lambda: activation.backward(gpu.handle, **operands), sure=certain):
        dx.check(alpha * slope(x.values, coef) * dy.values + beta * dx.values)


@pytest.mark.feature("F056")
@pytest.mark.parametrize(("mode", "kink"), [("relu", 0.0), ("clipped_relu", 0.0), ("clipped_relu", 0.75)])
@TYPES
@FORMATS
def test_slope_at_a_kink(gpu: Gpu, mode: str, kink: float, dtype: str, format: str) -> None:
    """Exactly there the slope is 0 or 1, the library's choice, and the same everywhere."""
    x, dy = gpu.tensor(np.full(SHAPE, kink), dtype, format), gpu.tensor(gpu.normal(SHAPE), dtype, format)
    y, dx = gpu.output(SHAPE, dtype, format), gpu.output(SHAPE, dtype, format)
    made = legacy.Activation(mode, coef=0.75)
    certain = dtype in SURE
    if ran(lambda: made.forward(gpu.handle, **x.named("x"), **y.named("y")), sure=certain):
        assert np.array_equal(y.read(), x.values)
        operands = {**y.named("y"), **dy.named("dy"), **x.named("x"), **dx.named("dx")}
        if ran(lambda: made.backward(gpu.handle, **operands), sure=certain):
            found = dx.read()
            assert np.array_equal(found, dy.values) or not found.any()


@pytest.mark.feature("F056")
def test_activation_in_place(gpu: Gpu) -> None:
    x = gpu.tensor(gpu.normal(SHAPE))
    legacy.Activation("relu").forward(gpu.handle, **x.named("x"), **x.named("y"))
    x.check(np.maximum(x.values, 0))


@pytest.mark.feature("F056")
def test_nan_goes_through_where_it_is_asked_to(gpu: Gpu) -> None:
    values = gpu.normal(SHAPE)
    values[0, 0, 0, 0] = np.nan
    x, y = gpu.tensor(values), gpu.output(SHAPE)
    legacy.Activation("relu", nan="propagate").forward(gpu.handle, **x.named("x"), **y.named("y"))
    found = y.read()
    assert np.isnan(found[0, 0, 0, 0])
    assert np.isfinite(found).sum() == found.size - 1


# ------------------------------------------------------------------------------------------- two operands
@pytest.mark.feature("F064", "F078", "F026")
@pytest.mark.parametrize("op", ref.OPS)
@TYPES
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("beta", [0.0, 2.0])
def test_op_tensor(gpu: Gpu, op: str, dtype: str, repeated: bool, beta: float) -> None:
    values = np.abs(gpu.normal(SHAPE)) if op == "sqrt" else gpu.normal(SHAPE)
    a, b = gpu.tensor(values, dtype), gpu.tensor(gpu.normal((1, 8, 1, 1) if repeated else SHAPE), dtype)
    out = gpu.output(SHAPE, dtype, beta=beta)
    made = legacy.OpTensor(op, compute_type=compute_type(dtype))
    second = {} if op in ("sqrt", "not") else b.named("b")
    operands = {**a.named("a"), **second, **out.named("c"), "alpha1": 1.5, "alpha2": 0.5, "beta": beta}
    if ran(lambda: made.run(gpu.handle, **operands), sure=dtype in SURE):
        out.check(ref.OPS[op](1.5 * a.values, 0.5 * b.values) + beta * out.values)


@pytest.mark.feature("F044", "F078")
@TYPES
@FORMATS
@BLENDED
def test_add_tensor(gpu: Gpu, dtype: str, format: str, alpha: float, beta: float) -> None:
    a, old = gpu.tensor(gpu.normal((1, 8, 1, 1)), dtype, format), gpu.normal(SHAPE)
    out = gpu.tensor(old, dtype, format)
    operands = {**a.named("a"), **out.named("c"), "alpha": alpha, "beta": beta}
    if ran(lambda: legacy.add_tensor(gpu.handle, **operands), sure=dtype in SURE and format == "nchw"):
        out.check(alpha * np.broadcast_to(a.values, SHAPE) + beta * out.values)


@pytest.mark.feature("F044")
@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint8", "int32"])
def test_set_and_scale(gpu: Gpu, dtype: str) -> None:
    value, integral = (3.0, True) if "int" in dtype else (1.5, False)
    y = gpu.tensor(np.ones(SHAPE), dtype)
    if ran(
        lambda: legacy.set_tensor(gpu.handle, **y.named("y"), value=3 if integral else value),
        sure=dtype in SURE,
    ):
        assert (y.read() == value).all()
        factor = 2.0 if integral else 0.25
        if ran(
            lambda: legacy.scale_tensor(gpu.handle, **y.named("y"), alpha=factor),
            sure=dtype in SURE,
        ):
            assert (y.read() == factor * value).all()


@pytest.mark.feature("F044", "F078")
@TYPES
@BLENDED
def test_transform_tensor(gpu: Gpu, dtype: str, alpha: float, beta: float) -> None:
    x, y = gpu.tensor(gpu.normal(SHAPE), dtype, "nchw"), gpu.output(SHAPE, dtype, "nhwc", beta)
    blend = {"alpha": alpha, "beta": beta}
    if ran(
        lambda: legacy.transform_tensor(gpu.handle, **x.named("x"), **y.named("y"), **blend),
        sure=dtype in SURE,
    ):
        y.check(alpha * x.values + beta * y.values)
        back = gpu.output(SHAPE, dtype, "nchw")
        legacy.transform_tensor(gpu.handle, **y.named("x"), **back.named("y"))
        assert np.array_equal(back.read(), y.read())


@pytest.mark.feature("F044", "F017")
def test_a_strided_tensor_is_packed(gpu: Gpu) -> None:
    """Rows of 6 in memory rows of 9."""
    wide = gpu.normal((2, 8, 5, 9)).astype(np.float32)
    strided = legacy.TensorDescriptor(SHAPE, format=None, strides=(360, 45, 9, 1))
    y = gpu.output(SHAPE)
    legacy.transform_tensor(gpu.handle, x_desc=strided, x=gpu.put(wide), **y.named("y"))
    y.check(wide[..., :6].astype(np.float64))


@pytest.mark.feature("F044", "F026")
@TYPES
def test_transform_pads_and_folds(gpu: Gpu, dtype: str) -> None:
    x = gpu.tensor(gpu.normal((2, 4, 6, 6)), dtype)
    pad = legacy.TensorTransform(pad_before=(0, 0, 1, 0), pad_after=(0, 0, 0, 2))
    padded = gpu.output((2, 4, 7, 8), dtype)
    assert pad.destination(x.desc) == padded.desc
    if ran(lambda: pad.run(gpu.handle, **x.named("x"), **padded.named("y")), sure=False):
        padded.check(np.pad(x.values, ((0, 0), (0, 0), (1, 0), (0, 2))))
    fold, unfold = (
        legacy.TensorTransform(fold=(2, 3)),
        legacy.TensorTransform(fold=(2, 3), direction="unfold"),
    )
    folded, back = gpu.output((2, 24, 3, 2), dtype), gpu.output((2, 4, 6, 6), dtype)
    assert fold.destination(x.desc) == folded.desc
    assert unfold.destination(folded.desc) == x.desc
    if ran(lambda: fold.run(gpu.handle, **x.named("x"), **folded.named("y")), sure=False):
        found = folded.read()
        blocks = x.values.reshape(2, 4, 3, 2, 2, 3).transpose(0, 2, 4, 1, 3, 5).reshape(2, 3, 2, 24)
        assert np.array_equal(np.sort(found.transpose(0, 2, 3, 1), axis=-1), np.sort(blocks, axis=-1))
        unfold.run(gpu.handle, **folded.named("x"), **back.named("y"))
        assert np.array_equal(back.read(), x.values)


@pytest.mark.feature("F044", "F026")
def test_a_filter_is_transformed(gpu: Gpu) -> None:
    w, out = gpu.filter(gpu.normal((8, 4, 3, 3))), gpu.output((8, 4, 3, 3), format="nhwc", make="filter")
    change = legacy.TensorTransform(format="nhwc")
    if ran(lambda: change.run_filter(gpu.handle, **w.named("x"), **out.named("y")), sure=False):
        assert np.array_equal(out.read(), w.values)


# -------------------------------------------------------------------------------------------------- reductions
@pytest.mark.feature("F065", "F078", "F026")
@pytest.mark.parametrize("op", ref.REDUCTIONS)
@TYPES
@pytest.mark.parametrize("axes", [(0, 2, 3), (1,), (0, 1, 2, 3), (3,)])
@BLENDED
def test_reduce(gpu: Gpu, op: str, dtype: str, axes: tuple[int, ...], alpha: float, beta: float) -> None:
    shape = (2, 3, 4, 5)
    values = gpu.normal(shape)
    if op.startswith("mul"):
        values = np.sign(values) * gpu.rng.uniform(0.8, 1.25, shape)  # a product that stays in range
    if op == "mul_no_zeros":
        values[gpu.rng.uniform(size=shape) < 0.3] = 0.0
    a = gpu.tensor(values, dtype)
    small = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    out = gpu.output(small, dtype, beta=beta)
    made = legacy.ReduceTensor(op, compute_type=compute_type(dtype))
    operands = {**a.named("a"), **out.named("c"), "alpha": alpha, "beta": beta}
    if ran(lambda: made.run(gpu.handle, **operands), sure=dtype in SURE):
        out.check(alpha * ref.REDUCTIONS[op](a.values, axes) + beta * out.values)


@pytest.mark.feature("F065", "F067")
@pytest.mark.parametrize("op", ["min", "max", "amax"])
@TYPES
@pytest.mark.parametrize("axes", [(2, 3), (1,), (0, 2, 3)])
def test_reduce_with_indices(gpu: Gpu, op: str, dtype: str, axes: tuple[int, ...]) -> None:
    shape = (2, 3, 4, 5)
    a = gpu.tensor(gpu.normal(shape), dtype)
    small = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    out = gpu.output(small, dtype)
    made = legacy.ReduceTensor(op, compute_type=compute_type(dtype), indices="flattened")
    size = made.indices_size(gpu.handle, a_desc=a.desc, c_desc=out.desc)
    assert size == 4 * out.values.size
    memory = gpu.zeros(size)
    operands = {**a.named("a"), **out.named("c"), "indices": memory}
    if not ran(lambda: made.run(gpu.handle, **operands), sure=dtype == "float32"):
        return
    out.check(ref.REDUCTIONS[op](a.values, axes))
    found = gpu.read(memory, (out.values.size,), "int32")
    rest = [axis for axis in range(4) if axis not in axes]
    flat = a.values.transpose(*rest, *axes).reshape(out.values.size, -1)
    keyed = np.abs(flat) if op == "amax" else flat
    chosen = np.take_along_axis(keyed, found[:, None], axis=1)[:, 0]
    assert np.array_equal(chosen, keyed.min(1) if op == "min" else keyed.max(1))


@pytest.mark.feature("F065")
def test_reduce_takes_a_workspace(gpu: Gpu) -> None:
    a, out = gpu.tensor(gpu.normal((4, 32, 16, 16))), gpu.output((1, 32, 1, 1))
    made = legacy.ReduceTensor("add")
    size = made.workspace(gpu.handle, a_desc=a.desc, c_desc=out.desc)
    made.run(gpu.handle, **a.named("a"), **out.named("c"), workspace=gpu.zeros(size))
    out.check(a.values.sum((0, 2, 3), keepdims=True))
