"""Pooling, local response and divisive normalization, the spatial transformer, on the GPU against float64."""

from __future__ import annotations

import numpy as np
import pytest

from lamina.cudnn import legacy
from tests.helpers.legacy import reference as ref
from tests.helpers.legacy.gpu import BLENDS, FLOATS, SURE, Gpu, ran

pytestmark = pytest.mark.gpu
TYPES = pytest.mark.parametrize("dtype", FLOATS)
FORMATS = pytest.mark.parametrize("format", ["nchw", "nhwc"])
BLENDED = pytest.mark.parametrize(("alpha", "beta"), BLENDS)
POOLS = {
    "2d": ((2, 8, 9, 10), ((3, 2), (1, 0), (2, 2))),
    "overlapping": ((2, 8, 7, 7), ((3, 3), (1, 1), (1, 1))),
    "3d": ((2, 8, 5, 6, 6), ((2, 3, 2), (0, 1, 0), (2, 2, 2))),
}


@pytest.mark.feature("F054", "F078", "F022")
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("mode", legacy.members(legacy.PoolingMode))
@TYPES
@FORMATS
@BLENDED
def test_pooling(gpu: Gpu, name: str, mode: str, dtype: str, format: str, alpha: float, beta: float) -> None:
    shape, (window, pad, stride) = POOLS[name]
    pooling = legacy.Pooling(mode, window=window, pad=pad, stride=stride)
    # steps of 1/32, exact in every type, so that few windows have two equal maxima
    values = gpu.rng.permutation(np.prod(shape)).reshape(shape) % 251 / 32.0 - 4.0
    x = gpu.tensor(values, dtype, format)
    result = ref.pool(mode, x.values, window, pad, stride)
    y = gpu.output(result.shape, dtype, format, beta)
    assert pooling.output(x.desc) == y.desc
    blend = {"alpha": alpha, "beta": beta}
    certain = dtype in SURE and format == "nchw" and name != "3d"
    if not ran(lambda: pooling.forward(gpu.handle, **x.named("x"), **y.named("y"), **blend), sure=certain):
        return
    y.check(alpha * result + beta * y.values)
    plain = gpu.tensor(result, dtype, format)
    dy, dx = gpu.tensor(gpu.normal(result.shape), dtype, format), gpu.output(shape, dtype, format, beta)
    operands = {**plain.named("y"), **dy.named("dy"), **x.named("x"), **dx.named("dx"), **blend}
    if not ran(lambda: pooling.backward(gpu.handle, **operands), sure=certain):
        return
    if mode.startswith("max") and not unique(x.values, window, pad, stride):
        return  # which of equal maxima takes the gradient is the library's choice
    dx.check(alpha * ref.pool_gradient(mode, x.values, dy.values, window, pad, stride) + beta * dx.values)


def unique(x: np.ndarray, window: tuple[int, ...], pad: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    values, _ = ref._windows(x, window, pad, stride, -np.inf)
    return bool(((values == values.max(-1, keepdims=True)).sum(-1) == 1).all())


@pytest.mark.feature("F054", "F019")
@pytest.mark.parametrize("mode", ["max", "average_count_include_padding"])
def test_pooling_of_int8(gpu: Gpu, mode: str) -> None:
    x = gpu.tensor(gpu.integers((2, 32, 8, 8), -100, 100), "int8", "nhwc")
    pooling = legacy.Pooling(mode, window=2)
    y = gpu.output((2, 32, 4, 4), "int8", "nhwc")
    if ran(lambda: pooling.forward(gpu.handle, **x.named("x"), **y.named("y")), sure=False):
        wanted = ref.pool(mode, x.values, (2, 2), (0, 0), (2, 2))
        assert np.abs(y.read() - wanted).max() <= (0 if mode == "max" else 1)  # rounding is the library's


# ------------------------------------------------------------------------------------------------------- LRN
@pytest.mark.feature("F059", "F078", "F022")
@pytest.mark.parametrize("n", [5, 4, 1])
@TYPES
@FORMATS
@BLENDED
def test_lrn(gpu: Gpu, n: int, dtype: str, format: str, alpha: float, beta: float) -> None:
    setting = (n, 0.5, 0.75, 1.5)
    shape = (2, 8, 5, 4)
    lrn = legacy.LRN(n=n, alpha=0.5, beta=0.75, k=1.5)
    x, y = gpu.tensor(gpu.normal(shape), dtype, format), gpu.output(shape, dtype, format, beta)
    blend = {"alpha": alpha, "beta": beta}
    certain = dtype in SURE and format == "nchw"
    if not ran(lambda: lrn.forward(gpu.handle, **x.named("x"), **y.named("y"), **blend), sure=certain):
        return
    result = ref.lrn(x.values, *setting)
    tolerance = {"float64": 1e-6, "float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}[dtype]
    y.check(alpha * result + beta * y.values, tolerance=tolerance)
    plain, dy = gpu.tensor(result, dtype, format), gpu.tensor(gpu.normal(shape), dtype, format)
    dx = gpu.output(shape, dtype, format, beta)
    operands = {**plain.named("y"), **dy.named("dy"), **x.named("x"), **dx.named("dx"), **blend}
    if ran(lambda: lrn.backward(gpu.handle, **operands), sure=certain):
        wanted = alpha * ref.lrn_gradient(x.values, dy.values, *setting) + beta * dx.values
        dx.check(wanted, tolerance=tolerance)


@pytest.mark.feature("F059", "F078")
@pytest.mark.parametrize("n", [3, 5])
@TYPES
@BLENDED
@pytest.mark.parametrize("with_means", [False, True])
def test_divisive_normalization(
    gpu: Gpu, n: int, dtype: str, alpha: float, beta: float, with_means: bool
) -> None:
    setting = (n, 0.5, 0.75, 1.5)
    shape = (2, 3, 7, 6)
    lrn = legacy.LRN(n=n, alpha=0.5, beta=0.75, k=1.5)
    x, y = gpu.tensor(gpu.normal(shape), dtype), gpu.output(shape, dtype, beta=beta)
    centre = 0.3 * gpu.normal(shape) if with_means else np.zeros(shape)
    means = gpu.tensor(centre, dtype)
    blend = {"alpha": alpha, "beta": beta, "means": means.memory if with_means else None}
    run = lambda: lrn.divisive_forward(gpu.handle, **x.named("x"), **y.named("y"), **blend)  # noqa: E731
    if not ran(run, sure=dtype in SURE):
        return
    tolerance = {"float64": 1e-6, "float32": 1e-4, "float16": 6e-3, "bfloat16": 4e-2}[dtype]
    y.check(alpha * ref.divisive(x.values, means.values, *setting) + beta * y.values, tolerance=tolerance)
    dy, dx = gpu.tensor(gpu.normal(shape), dtype), gpu.output(shape, dtype, beta=beta)
    dmeans = gpu.output(shape, dtype, beta=beta)
    size = x.desc.nbytes
    own = {"temp": gpu.zeros(size), "temp2": gpu.zeros(size), "dmeans": dmeans.memory}
    operands = {**x.named("x"), "dy": dy.memory, **dx.named("dx"), **blend, **own}
    if ran(lambda: lrn.divisive_backward(gpu.handle, **operands), sure=dtype in SURE):
        by_x, by_means = ref.divisive_gradient(x.values, means.values, dy.values, *setting)
        dx.check(alpha * by_x + beta * dx.values, tolerance=tolerance)
        if with_means:
            dmeans.check(alpha * by_means + beta * dmeans.values, tolerance=tolerance)


# ------------------------------------------------------------------------------------------ spatial transformer
THETA = np.array([[[0.9, 0.2, 0.1], [-0.3, 0.8, 0.2]], [[1.3, -0.1, -0.2], [0.2, 1.1, 0.05]]])


@pytest.mark.feature("F073", "F027")
@TYPES
def test_grid_and_its_gradient(gpu: Gpu, dtype: str) -> None:
    if not ran(lambda: legacy.SpatialTransformer((2, 3, 5, 6), data_type=dtype), sure=dtype in SURE):
        return
    made = legacy.SpatialTransformer((2, 3, 5, 6), data_type=dtype)
    theta = gpu.tensor(THETA, dtype)
    points = gpu.output((2, 5, 6, 2), dtype)
    run = lambda: made.grid_forward(gpu.handle, theta=theta.memory, grid=points.memory)  # noqa: E731
    if not ran(run, sure=dtype in SURE):
        return
    points.check(ref.grid(theta.values, 5, 6))
    dgrid, dtheta = gpu.tensor(gpu.normal((2, 5, 6, 2)), dtype), gpu.output((2, 2, 3), dtype)
    run = lambda: made.grid_backward(gpu.handle, dgrid=dgrid.memory, dtheta=dtheta.memory)  # noqa: E731
    if ran(run, sure=dtype in SURE):
        dtheta.check(ref.grid_gradient(dgrid.values))


@pytest.mark.feature("F073", "F078")
@TYPES
@BLENDED
def test_sampler_and_its_gradients(gpu: Gpu, dtype: str, alpha: float, beta: float) -> None:
    if not ran(lambda: legacy.SpatialTransformer((2, 3, 5, 6), data_type=dtype), sure=dtype in SURE):
        return
    made = legacy.SpatialTransformer((2, 3, 5, 6), data_type=dtype)
    x = gpu.tensor(gpu.normal((2, 3, 8, 7)), dtype)
    # grid points off the kinks, where rounding would decide which pixels are meant; some lie outside
    points = gpu.tensor(ref.grid(THETA, 5, 6) * 0.97 + 0.011, dtype)
    y = gpu.output((2, 3, 5, 6), dtype, beta=beta)
    blend = {"alpha": alpha, "beta": beta}
    operands = {**x.named("x"), "grid": points.memory, **y.named("y"), **blend}
    if not ran(lambda: made.sampler_forward(gpu.handle, **operands), sure=dtype in SURE):
        return
    tolerance = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 0.15}[dtype]
    y.check(alpha * ref.sample(x.values, points.values) + beta * y.values, tolerance=tolerance)
    dy, dx = gpu.tensor(gpu.normal((2, 3, 5, 6)), dtype), gpu.output((2, 3, 8, 7), dtype, beta=beta)
    dpoints = gpu.output((2, 5, 6, 2), dtype, beta=beta)
    operands = {
        **x.named("x"),
        "grid": points.memory,
        **dy.named("dy"),
        **dx.named("dx"),
        "dgrid": dpoints.memory,
        **blend,
        "alpha_grid": alpha,
        "beta_grid": beta,
    }
    if ran(lambda: made.sampler_backward(gpu.handle, **operands), sure=dtype in ("float64", "float32")):
        by_x, by_points = ref.sample_gradient(x.values, points.values, dy.values)
        dx.check(alpha * by_x + beta * dx.values, tolerance=tolerance)
        dpoints.check(alpha * by_points + beta * dpoints.values, tolerance=tolerance)
