"""Softmax and batch normalization in all their forms, on the GPU against float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from lamina.cudnn import legacy
from tests.helpers.legacy import reference as ref
from tests.helpers.legacy.gpu import BLENDS, FLOATS, SURE, TOLERANCE, Gpu, Operand, close, ran

pytestmark = pytest.mark.gpu
SHAPE = (8, 8, 5, 6)
EPSILON = 1e-3
TYPES = pytest.mark.parametrize("dtype", FLOATS)
FORMATS = pytest.mark.parametrize("format", ["nchw", "nhwc"])
BLENDED = pytest.mark.parametrize(("alpha", "beta"), BLENDS)


# ---------------------------------------------------------------------------------------------------- softmax
@pytest.mark.feature("F058", "F078", "F022")
@pytest.mark.parametrize("algorithm", legacy.members(legacy.SoftmaxAlgorithm))
@pytest.mark.parametrize("mode", legacy.members(legacy.SoftmaxMode))
@TYPES
@FORMATS
@BLENDED
def test_softmax(
    gpu: Gpu, algorithm: str, mode: str, dtype: str, format: str, alpha: float, beta: float
) -> None:
    softmax = legacy.Softmax(algorithm=algorithm, mode=mode)
    x, y = gpu.tensor(gpu.normal(SHAPE), dtype, format), gpu.output(SHAPE, dtype, format, beta)
    blend = {"alpha": alpha, "beta": beta}
    certain = dtype in SURE and format == "nchw"
    if not ran(lambda: softmax.forward(gpu.handle, **x.named("x"), **y.named("y"), **blend), sure=certain):
        return
    result = ref.softmax(algorithm, mode, x.values)
    y.check(alpha * result + beta * y.values)
    plain, dy = gpu.tensor(result, dtype, format), gpu.tensor(gpu.normal(SHAPE), dtype, format)
    dx = gpu.output(SHAPE, dtype, format, beta)
    operands = {**plain.named("y"), **dy.named("dy"), **dx.named("dx"), **blend}
    if ran(lambda: softmax.backward(gpu.handle, **operands), sure=certain):
        wanted = ref.softmax_gradient(algorithm, mode, plain.values, dy.values)
        dx.check(alpha * wanted + beta * dx.values, tolerance=3 * TOLERANCE[dtype])


@pytest.mark.feature("F058")
def test_accurate_softmax_of_large_values(gpu: Gpu) -> None:
    x, y = gpu.tensor(gpu.normal(SHAPE) + 500.0), gpu.output(SHAPE)
    legacy.Softmax(algorithm="accurate").forward(gpu.handle, **x.named("x"), **y.named("y"))
    y.check(ref.softmax("accurate", "channel", x.values))


# ------------------------------------------------------------------------------------------------- batch norm
class Parameters:
    """Scale, bias and statistics of a normalization, in the type that is derived for them."""

    def __init__(self, gpu: Gpu, mode: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.gpu = gpu
        kind = "float64" if dtype == "float64" else "float32"
        axes = ref.norm_axes(mode, np.empty(shape))
        small = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        uniform = gpu.rng.uniform(0.5, 1.5, (5, *small))
        self.scale, self.variance = gpu.tensor(uniform[0], kind), gpu.tensor(uniform[1], kind)
        self.bias, self.mean = (gpu.tensor(gpu.normal(small), kind) for _ in range(2))
        self.saved_mean, self.saved_inv = (gpu.output(small, kind) for _ in range(2))
        self.dscale, self.dbias = (gpu.output(small, kind) for _ in range(2))

    def affine(self) -> dict[str, Any]:
        return {"scale": self.scale.memory, "bias": self.bias.memory}

    def saved(self) -> dict[str, Any]:
        return {"saved_mean": self.saved_mean.memory, "saved_inv_variance": self.saved_inv.memory}

    def running(self) -> dict[str, Any]:
        return {"running_mean": self.mean.memory, "running_variance": self.variance.memory}

    def gradients(self) -> dict[str, Any]:
        return {"dscale": self.dscale.memory, "dbias": self.dbias.memory}


def check_training(p: Parameters, mode: str, x: Operand, factor: float) -> None:
    """Saved and running statistics after a training step."""
    mean, _, unbiased, inv = ref.statistics(mode, x.values, EPSILON)
    p.saved_mean.check(mean, tolerance=1e-4)
    p.saved_inv.check(inv, tolerance=1e-4)
    p.mean.check((1 - factor) * p.mean.values + factor * mean, tolerance=1e-4)
    p.variance.check((1 - factor) * p.variance.values + factor * unbiased, tolerance=1e-4)


@pytest.mark.feature("F060", "F078", "F022", "F112")
@pytest.mark.parametrize("mode", legacy.members(legacy.BatchNormMode))
@pytest.mark.parametrize("shape", [SHAPE, (6, 4, 3, 4, 5)], ids=["2d", "3d"])
@TYPES
@FORMATS
@BLENDED
def test_batch_norm(
    gpu: Gpu, mode: str, shape: tuple[int, ...], dtype: str, format: str, alpha: float, beta: float
) -> None:
    norm, kind = legacy.BatchNorm(mode), mode.removesuffix("_persistent")
    p = Parameters(gpu, kind, dtype, shape)
    x, y = gpu.tensor(gpu.normal(shape) + 0.5, dtype, format), gpu.output(shape, dtype, format, beta)
    blend = {"alpha": alpha, "beta": beta}
    certain = dtype in SURE and format == "nchw" and mode != "spatial_persistent" and beta == 0
    operands = {**x.named("x"), **y.named("y"), **p.affine(), "epsilon": EPSILON, **blend}

    def train() -> None:
        norm.forward_training(gpu.handle, **operands, **p.running(), **p.saved(), factor=0.25)

    if not ran(train, sure=certain):
        return
    y.check(alpha * ref.batch_norm(kind, x.values, p.scale.values, p.bias.values, EPSILON) + beta * y.values)
    check_training(p, kind, x, 0.25)
    assert norm.mode == legacy.flag(legacy.BatchNormMode, mode)
    dy, dx = gpu.tensor(gpu.normal(shape), dtype, format), gpu.output(shape, dtype, format, beta)
    operands = {
        **x.named("x"),
        **dy.named("dy"),
        **dx.named("dx"),
        "scale": p.scale.memory,
        **p.gradients(),
        "epsilon": EPSILON,
        **blend,
    }
    wanted = ref.batch_norm_gradient(kind, x.values, dy.values, p.scale.values, EPSILON)
    for saved in (p.saved(), {}):  # without saved statistics they are computed again
        if beta:
            dx = gpu.output(shape, dtype, format, beta)
            operands |= dx.named("dx")
        if ran(partial(norm.backward, gpu.handle, **operands, **saved), sure=certain):
            dx.check(alpha * wanted[0] + beta * dx.values, tolerance=3 * TOLERANCE[dtype])
            p.dscale.check(wanted[1], tolerance=2e-4)
            p.dbias.check(wanted[2], tolerance=2e-4)


@pytest.mark.feature("F060", "F078")
@pytest.mark.parametrize("mode", ["spatial", "per_activation"])
@TYPES
@FORMATS
@BLENDED
def test_batch_norm_inference(
    gpu: Gpu, mode: str, dtype: str, format: str, alpha: float, beta: float
) -> None:
    norm, p = legacy.BatchNorm(mode), Parameters(gpu, mode, dtype, SHAPE)
    x, y = gpu.tensor(gpu.normal(SHAPE), dtype, format), gpu.output(SHAPE, dtype, format, beta)
    operands = {**x.named("x"), **y.named("y"), **p.affine(), "epsilon": EPSILON}
    stats = {"mean": p.mean.memory, "variance": p.variance.memory, "alpha": alpha, "beta": beta}
    run = lambda: norm.forward_inference(gpu.handle, **operands, **stats)  # noqa: E731
    if ran(run, sure=dtype in SURE and format == "nchw" and beta == 0):
        hat = (x.values - p.mean.values) / np.sqrt(p.variance.values + EPSILON)
        y.check(alpha * (p.scale.values * hat + p.bias.values) + beta * y.values)


FUSED = {"bn": (False, False), "bn_activation": (True, False), "bn_add_activation": (True, True)}
WIDE = (8, 16, 6, 6)  # the fused kernels want float16, NHWC and C a multiple of 4


def fused_reference(p: Parameters, x: Operand, z: Operand, ops: str) -> Any:
    """y and the gradients by x, z, scale and bias for a given dy."""
    active, added = FUSED[ops]
    before = ref.batch_norm("spatial", x.values, p.scale.values, p.bias.values, EPSILON)
    before = before + z.values if added else before

    def gradients(dy: Any) -> Any:
        through = dy * (before > 0) if active else dy
        return (*ref.batch_norm_gradient("spatial", x.values, through, p.scale.values, EPSILON), through)

    return np.maximum(before, 0) if active else before, gradients


@pytest.mark.feature("F061", "F022")
@pytest.mark.parametrize("ops", FUSED)
@pytest.mark.parametrize("mode", ["spatial_persistent", "spatial"])
@TYPES
@pytest.mark.parametrize("own", [False, True])
def test_batch_norm_ex(gpu: Gpu, ops: str, mode: str, dtype: str, own: bool) -> None:
    active, added = FUSED[ops]
    norm, p = legacy.BatchNormEx(mode, ops=ops), Parameters(gpu, "spatial", dtype, WIDE)
    x, z = (gpu.tensor(gpu.normal(WIDE), dtype, "nhwc") for _ in range(2))
    y = gpu.output(WIDE, dtype, "nhwc")
    activation = legacy.Activation("relu") if active else None
    extra = {**(z.named("z") if added else {}), "activation": activation}
    operands = {**x.named("x"), **y.named("y"), **p.affine(), **p.saved(), **p.running(), "epsilon": EPSILON}
    spaces: dict[str, Any] = {}
    reserve: list[Any] = []

    def train() -> None:
        if own:
            described = {"x_desc": x.desc, "y_desc": y.desc, "z_desc": z.desc if added else None}
            size = norm.forward_workspace(gpu.handle, **described, activation=activation)
            kept = norm.reserve_size(gpu.handle, x_desc=x.desc, activation=activation)
            spaces.update(workspace=gpu.zeros(size), reserve=gpu.zeros(kept))
        reserve.append(norm.forward_training(gpu.handle, **operands, **extra, **spaces, factor=0.25))

    if not ran(train, sure=ops == "bn" and mode == "spatial_persistent" and dtype in ("float32", "float16")):
        return
    result, gradients = fused_reference(p, x, z, ops)
    y.check(result, tolerance=2 * TOLERANCE[dtype])
    check_training(p, "spatial", x, 0.25)
    if own:
        assert reserve == [spaces["reserve"]]
    dy = gpu.tensor(gpu.normal(WIDE), dtype, "nhwc")
    dx, dz = gpu.output(WIDE, dtype, "nhwc"), gpu.output(WIDE, dtype, "nhwc")
    operands = {
        **x.named("x"),
        **dy.named("dy"),
        **dx.named("dx"),
        **(y.named("y") if active else {}),
        **(dz.named("dz") if added else {}),
        **p.affine(),
        **p.gradients(),
        **p.saved(),
        "activation": activation,
        "epsilon": EPSILON,
        "reserve": reserve[0],
    }
    if ran(lambda: norm.backward(gpu.handle, **operands), sure=False):
        by_x, by_scale, by_bias, by_z = gradients(dy.values)
        tolerance = 4 * TOLERANCE[dtype]
        agree_but_for_kinks(dx, by_x, tolerance)
        close(p.dscale.read(), by_scale, 10 * TOLERANCE[dtype])
        close(p.dbias.read(), by_bias, 10 * TOLERANCE[dtype])
        if added:
            agree_but_for_kinks(dz, by_z, tolerance)


def agree_but_for_kinks(found: Operand, wanted: Any, tolerance: float) -> None:
    """Equal but where a value so near 0 was rounded that relu's side is open: at most 1 % of them."""
    error = np.abs(found.read() - wanted) / max(1.0, np.abs(wanted).max())
    assert np.isfinite(error).all()
    assert (error > tolerance).mean() <= 0.01


# ---------------------------------------------------------------------------------------------- normalization
NORMS = {"norm": "bn", "norm_activation": "bn_activation", "norm_add_activation": "bn_add_activation"}


@pytest.mark.feature("F060", "F061")
@pytest.mark.parametrize("ops", NORMS)
@pytest.mark.parametrize("algorithm", ["standard", "persist"])
@TYPES
def test_normalization(gpu: Gpu, ops: str, algorithm: str, dtype: str) -> None:
    active, added = FUSED[NORMS[ops]]
    norm = legacy.Normalization("per_channel", ops=ops, algorithm=algorithm)
    p = Parameters(gpu, "spatial", dtype, WIDE)
    x, z = (gpu.tensor(gpu.normal(WIDE), dtype, "nhwc") for _ in range(2))
    y = gpu.output(WIDE, dtype, "nhwc")
    extra = {**(z.named("z") if added else {}), "activation": legacy.Activation() if active else None}
    operands = {**x.named("x"), **y.named("y"), **p.affine(), **p.saved(), **p.running(), "epsilon": EPSILON}
    reserve: list[Any] = []

    def train() -> None:
        reserve.append(norm.forward_training(gpu.handle, **operands, **extra, factor=0.25))

    if not ran(train, sure=False):
        return
    result, gradients = fused_reference(p, x, z, NORMS[ops])
    y.check(result, tolerance=2 * TOLERANCE[dtype])
    check_training(p, "spatial", x, 0.25)
    dy = gpu.tensor(gpu.normal(WIDE), dtype, "nhwc")
    dx, dz = gpu.output(WIDE, dtype, "nhwc"), gpu.output(WIDE, dtype, "nhwc")
    operands = {
        **x.named("x"),
        **dy.named("dy"),
        **dx.named("dx"),
        **(y.named("y") if active else {}),
        **(dz.named("dz") if added else {}),
        **p.affine(),
        **p.gradients(),
        **p.saved(),
        "activation": extra["activation"],
        "epsilon": EPSILON,
        "reserve": reserve[0],
    }
    if ran(lambda: norm.backward(gpu.handle, **operands), sure=False):
        by_x, by_scale, _, _ = gradients(dy.values)
        agree_but_for_kinks(dx, by_x, 4 * TOLERANCE[dtype])
        close(p.dscale.read(), by_scale, 10 * TOLERANCE[dtype])


@pytest.mark.feature("F060")
@TYPES
def test_normalization_inference(gpu: Gpu, dtype: str) -> None:
    norm, p = legacy.Normalization("per_channel"), Parameters(gpu, "spatial", dtype, SHAPE)
    x, y = gpu.tensor(gpu.normal(SHAPE), dtype), gpu.output(SHAPE, dtype)
    operands = {**x.named("x"), **y.named("y"), **p.affine(), "epsilon": EPSILON}
    stats = {"mean": p.mean.memory, "variance": p.variance.memory}
    if ran(lambda: norm.forward_inference(gpu.handle, **operands, **stats), sure=False):
        hat = (x.values - p.mean.values) / np.sqrt(p.variance.values + EPSILON)
        y.check(p.scale.values * hat + p.bias.values)
