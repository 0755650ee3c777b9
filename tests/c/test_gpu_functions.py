"""Functions that the objects above this layer do not call, on a GPU: older versions of settings, fused operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from ctypes import c_double, c_int, c_int64, c_size_t
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lamina.c import cudnn
from lamina.c.errors import CudnnNotSupported
from lamina.runtime import Buffer
from tests.cudnn.legacy import test_gpu_rnn as rnn
from tests.helpers.legacy import reference as ref
from tests.helpers.legacy.gpu import Array, Gpu, close

pytestmark = [pytest.mark.gpu, pytest.mark.feature("F001")]
FLOAT, HALF = cudnn.CUDNN_DATA_FLOAT, cudnn.CUDNN_DATA_HALF


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    made = Gpu()
    yield made
    made.handle.close()


@pytest.fixture
def made() -> Iterator[Callable[..., int]]:
    """`made("Tensor")` is a new descriptor, destroyed after the test."""
    with ExitStack() as stack:

        def make(kind: str, *arguments: Any) -> int:
            stem = kind if "FusedOps" in kind else f"{kind}Descriptor"
            descriptor: int = getattr(cudnn, f"cudnnCreate{stem}")(*arguments)
            stack.callback(getattr(cudnn, f"cudnnDestroy{stem}"), descriptor)
            return descriptor

        yield make


Make = Callable[..., int]
Nhwc = Callable[..., int]  # (data type, n, c, h, w) -> a descriptor of a tensor in memory order n, h, w, c


@pytest.fixture
def nhwc(made: Make) -> Nhwc:
    def make(dtype: int, *dims: int) -> int:
        descriptor = made("Tensor")
        cudnn.cudnnSetTensor4dDescriptor(descriptor, cudnn.CUDNN_TENSOR_NHWC, dtype, *dims)
        return descriptor

    return make


# ------------------------------------------------------------------------------------------ other ways to set up


def test_a_tensor_with_strides_of_its_own_is_packed(gpu: Gpu, made: Make) -> None:
    values = gpu.normal((2, 3, 4, 5)).astype(np.float32)
    spread = np.zeros((2, 3, 4, 10), np.float32)
    spread[..., ::2] = values
    source, target = made("Tensor"), made("Tensor")
    cudnn.cudnnSetTensor4dDescriptorEx(source, FLOAT, 2, 3, 4, 5, 120, 40, 10, 2)
    cudnn.cudnnSetTensor4dDescriptor(target, cudnn.CUDNN_TENSOR_NCHW, FLOAT, 2, 3, 4, 5)
    x, y = gpu.put(spread), gpu.zeros(values.nbytes)
    cudnn.cudnnTransformTensor(gpu.handle.address, 1.0, source, x.pointer, 0.0, target, y.pointer)
    np.testing.assert_array_equal(gpu.read(y, values.shape, "float32"), values)


def test_a_pooling_of_the_size_that_it_tells(gpu: Gpu, made: Make) -> None:
    values = gpu.normal((2, 3, 9, 8)).astype(np.float32)
    pooling, source, target = made("Pooling"), made("Tensor"), made("Tensor")
    cudnn.cudnnSetPooling2dDescriptor(pooling, cudnn.CUDNN_POOLING_MAX, 0, 3, 2, 1, 0, 2, 3)
    cudnn.cudnnSetTensor4dDescriptor(source, cudnn.CUDNN_TENSOR_NCHW, FLOAT, *values.shape)
    dims = cudnn.cudnnGetPooling2dForwardOutputDim(pooling, source)
    cudnn.cudnnSetTensor4dDescriptor(target, cudnn.CUDNN_TENSOR_NCHW, FLOAT, *dims)
    x, y = gpu.put(values), gpu.zeros(4 * int(np.prod(dims)))
    cudnn.cudnnPoolingForward(gpu.handle.address, pooling, 1.0, source, x.pointer, 0.0, target, y.pointer)
    wanted = ref.pool("max", values, (3, 2), (1, 0), (2, 3))
    np.testing.assert_array_equal(gpu.read(y, dims, "float32"), wanted)


LABELS, LENGTHS = [[1, 2, 2, 3], [4], [2, 1, 3]], [9, 5, 7]
SETTINGS: dict[str, tuple[Any, ...]] = {
    "Ex": (cudnn.CUDNN_LOSS_NORMALIZATION_SOFTMAX, cudnn.CUDNN_NOT_PROPAGATE_NAN),
    "_v8": (cudnn.CUDNN_LOSS_NORMALIZATION_SOFTMAX, cudnn.CUDNN_NOT_PROPAGATE_NAN, 4),
    "_v9": (cudnn.CUDNN_LOSS_NORMALIZATION_SOFTMAX, cudnn.CUDNN_CTC_ZERO_OOB_GRADIENTS, 4),
}


@pytest.mark.parametrize("version", SETTINGS)
def test_a_ctc_loss_of_each_version(gpu: Gpu, made: Make, version: str) -> None:
    """Costs of three sequences; the functions without a version take labels on the host."""
    activations = gpu.normal((9, 3, 5)).astype(np.float32)
    x, loss, costs = made("Tensor"), made("CTCLoss"), gpu.zeros(12)
    cudnn.cudnnSetTensorNdDescriptor(x, FLOAT, 3, (9, 3, 5), (15, 5, 1))
    getattr(cudnn, "cudnnSetCTCLossDescriptor" + version)(loss, FLOAT, *SETTINGS[version])
    probs, gradients = gpu.put(activations), gpu.zeros(activations.nbytes)
    flat, sizes = [one for label in LABELS for one in label], [len(label) for label in LABELS]
    handle, algorithm = gpu.handle.address, cudnn.CUDNN_CTC_LOSS_ALGO_DETERMINISTIC
    if version == "Ex":
        host = (flat, sizes, LENGTHS)
        size = cudnn.cudnnGetCTCLossWorkspaceSize(handle, x, x, *host, algorithm, loss)
        space = gpu.zeros(size)
        outputs = (costs.pointer, x, gradients.pointer)
        cudnn.cudnnCTCLoss(handle, x, probs.pointer, *host, *outputs, algorithm, loss, space.pointer, size)
    else:
        device = [gpu.put(np.array(one, np.int32)) for one in (flat, sizes, LENGTHS)]
        size = cudnn.cudnnGetCTCLossWorkspaceSize_v8(handle, algorithm, loss, x, x)
        space = gpu.zeros(size)
        inputs = (x, probs.pointer, *(one.pointer for one in device))
        outputs = (costs.pointer, x, gradients.pointer)
        cudnn.cudnnCTCLoss_v8(handle, algorithm, loss, *inputs, *outputs, size, space.pointer)
    wanted, slopes = ref.ctc(activations.astype(np.float64), LABELS, LENGTHS)
    close(gpu.read(costs, (3,), "float32").astype(np.float64), wanted, 1e-4)
    found = gpu.read(gradients, (9, 3, 5), "float32").astype(np.float64)
    for i, steps in enumerate(LENGTHS):
        close(found[:steps, i], slopes[:steps, i], 1e-4)


@pytest.mark.parametrize("projection", [None, 12])
def test_clipping_of_version_8(gpu: Gpu, projection: int | None) -> None:
    """The bounds that version 8 sets take the place of those that the network was made with."""
    made = rnn.case("lstm", "float32", clip=(-9.0, 9.0), projection=projection)
    cudnn.cudnnRNNSetClip_v8(
        made.rnn.address, cudnn.CUDNN_RNN_CLIP_MINMAX, cudnn.CUDNN_NOT_PROPAGATE_NAN, -0.125, 0.25
    )
    made = made._replace(spec=replace(made.spec, clip=(-0.125, 0.25)))
    run = rnn.Run(gpu.handle, made)
    want = run.expected()
    clipped = np.mean([step.inner != step.cell for done in want.tape for step in done.steps])
    assert 0.05 < clipped < 0.95
    rnn.check(run, "float32", gradients=False)


# ------------------------------------------------------------------------------------------- fused operations

CHANNELS, COUNT, EPSILON = 32, 2048, 1e-3
SPATIAL = c_int(cudnn.CUDNN_BATCHNORM_SPATIAL_PERSISTENT)
ALIGNED = c_int(cudnn.CUDNN_PTR_16B_ALIGNED)


def fused(
    gpu: Gpu,
    made: Make,
    ops: int,
    descriptors: Mapping[str, Any],
    memory: Mapping[str, Buffer],
    **scalars: Any,
) -> None:
    """Make the plan of a fused operation and execute it.

    `descriptors` by the label after CUDNN_PARAM_, `memory` by the label after CUDNN_PTR_ (which is that of its
    placeholder as well), `scalars` by the label after CUDNN_SCALAR_.
    """
    constants = made("FusedOpsConstParamPack", ops)
    put = cudnn.cudnnSetFusedOpsConstParamPackAttribute
    for label, value in descriptors.items():
        put(constants, getattr(cudnn, f"CUDNN_PARAM_{label}"), value)
    for label in memory:
        put(constants, getattr(cudnn, f"CUDNN_PARAM_{label}_PLACEHOLDER"), ALIGNED)
    plan, handle = made("FusedOpsPlan", ops), gpu.handle.address
    size = cudnn.cudnnMakeFusedOpsPlan(handle, plan, constants)
    space = gpu.zeros(size)
    variants = made("FusedOpsVariantParamPack", ops)
    give = cudnn.cudnnSetFusedOpsVariantParamPackAttribute
    for label, buffer in memory.items():
        give(variants, getattr(cudnn, f"CUDNN_PTR_{label}"), buffer.pointer)
    scalars["SIZE_T_WORKSPACE_SIZE_IN_BYTES"] = c_size_t(size)
    for label, value in scalars.items():
        give(variants, getattr(cudnn, f"CUDNN_SCALAR_{label}"), value)
    give(variants, cudnn.CUDNN_PTR_WORKSPACE, space.pointer)
    cudnn.cudnnFusedOpsExecute(handle, plan, variants)
    gpu.handle.synchronize()


def channel_values(gpu: Gpu) -> dict[str, Array]:
    """Float values per channel; those of a scale or a variance are positive."""
    names = ("BN_SCALE", "BN_BIAS", "BN_RUNNING_MEAN", "BN_RUNNING_VAR")
    values = {name: gpu.normal((CHANNELS,)).astype(np.float32) for name in names}
    return {name: np.abs(v) + 0.5 if name in names[::3] else v for name, v in values.items()}


def channel_descriptors(nhwc: Nhwc) -> dict[str, Any]:
    shape = (1, CHANNELS, 1, 1)
    return {
        "BN_MODE": SPATIAL,
        "BN_SCALEBIAS_MEANVAR_DESC": nhwc(FLOAT, *shape),
        "BN_EQSCALEBIAS_DESC": nhwc(HALF, *shape),
    }


def equivalents(gpu: Gpu) -> dict[str, Buffer]:
    """Memory for the scale and the bias that do the same as the batch norm."""
    return {name: gpu.zeros(2 * CHANNELS) for name in ("BN_EQSCALE", "BN_EQBIAS")}


def test_batch_norm_is_finalized_for_inference(gpu: Gpu, made: Make, nhwc: Nhwc) -> None:
    values, results = channel_values(gpu), equivalents(gpu)
    memory = {name: gpu.put(v) for name, v in values.items()} | results
    ops = cudnn.CUDNN_FUSED_BN_FINALIZE_STATISTICS_INFERENCE
    fused(gpu, made, ops, channel_descriptors(nhwc), memory, DOUBLE_BN_EPSILON=c_double(EPSILON))
    scale = values["BN_SCALE"] / np.sqrt(values["BN_RUNNING_VAR"] + EPSILON)
    wanted = {"BN_EQSCALE": scale, "BN_EQBIAS": values["BN_BIAS"] - values["BN_RUNNING_MEAN"] * scale}
    for name, want in wanted.items():
        close(gpu.read(results[name], (CHANNELS,), "float16").astype(np.float64), want, 2e-3)


def test_batch_norm_is_finalized_for_training(gpu: Gpu, made: Make, nhwc: Nhwc) -> None:
    """From the sums of COUNT values per channel and of their squares."""
    x = gpu.normal((COUNT, CHANNELS)) + 0.5
    values, results = channel_values(gpu), equivalents(gpu)
    saved = {name: gpu.zeros(4 * CHANNELS) for name in ("BN_SAVED_MEAN", "BN_SAVED_INVSTD")}
    sums = {"YSUM": x.sum(0).astype(np.float32), "YSQSUM": (x * x).sum(0).astype(np.float32)}
    given = {name: gpu.put(v) for name, v in (sums | values).items()}
    descriptors = channel_descriptors(nhwc)
    descriptors["YSTATS_DESC"] = nhwc(FLOAT, 1, CHANNELS, 1, 1)
    fused(
        gpu,
        made,
        cudnn.CUDNN_FUSED_BN_FINALIZE_STATISTICS_TRAINING,
        descriptors,
        given | results | saved,
        INT64_T_BN_ACCUMULATION_COUNT=c_int64(COUNT),
        DOUBLE_BN_EXP_AVG_FACTOR=c_double(0.25),
        DOUBLE_BN_EPSILON=c_double(EPSILON),
    )
    mean, variance = x.mean(0), x.var(0)
    inverse = 1 / np.sqrt(variance + EPSILON)
    scale = values["BN_SCALE"] * inverse
    unbiased = variance * COUNT / (COUNT - 1)
    for name, want, dtype in (
        ("BN_SAVED_MEAN", mean, "float32"),
        ("BN_SAVED_INVSTD", inverse, "float32"),
        ("BN_RUNNING_MEAN", 0.75 * values["BN_RUNNING_MEAN"] + 0.25 * mean, "float32"),
        ("BN_RUNNING_VAR", 0.75 * values["BN_RUNNING_VAR"] + 0.25 * unbiased, "float32"),
        ("BN_EQSCALE", scale, "float16"),
        ("BN_EQBIAS", values["BN_BIAS"] - mean * scale, "float16"),
    ):
        found = gpu.read((given | results | saved)[name], (CHANNELS,), dtype).astype(np.float64)
        close(found, want, 2e-3 if dtype == "float16" else 1e-4)


def pointwise_convolution(made: Make) -> int:
    convolution = made("Convolution")
    mode = cudnn.CUDNN_CROSS_CORRELATION
    cudnn.cudnnSetConvolution2dDescriptor(convolution, 0, 0, 1, 1, 1, 1, mode, FLOAT)
    cudnn.cudnnSetConvolutionMathType(convolution, cudnn.CUDNN_TENSOR_OP_MATH)
    return convolution


IMAGE, TAPS, RESULT = (8, CHANNELS, 16, 16), (64, CHANNELS, 1, 1), (8, 64, 16, 16)


def half(gpu: Gpu, dims: tuple[int, ...]) -> Array:
    """Random values in float16; dims: sizes in memory order."""
    return gpu.normal(dims).astype(np.float16)


def packed_filter(made: Make) -> int:
    descriptor = made("Filter")
    cudnn.cudnnSetFilter4dDescriptor(descriptor, HALF, cudnn.CUDNN_TENSOR_NHWC, *TAPS)
    return descriptor


def test_a_fused_convolution_has_no_kernel_for_hopper(gpu: Gpu, made: Make, nhwc: Nhwc) -> None:
    """1x1 on half types with NHWC, which earlier GPUs take: refused when the plan is made."""
    descriptors = {"XDESC": nhwc(HALF, *IMAGE), "BN_MODE": SPATIAL, "CONV_DESC": pointwise_convolution(made)}
    descriptors |= {"WDESC": packed_filter(made), "YDESC": nhwc(HALF, *RESULT)}
    descriptors["YSTATS_DESC"] = nhwc(FLOAT, 1, 64, 1, 1)
    sizes = {"XDATA": IMAGE, "WDATA": TAPS, "YDATA": RESULT}
    memory = {name: gpu.put(half(gpu, dims)) for name, dims in sizes.items()}
    memory |= {"YSUM": gpu.zeros(256), "YSQSUM": gpu.zeros(256)}
    ops = cudnn.CUDNN_FUSED_SCALE_BIAS_ACTIVATION_CONV_BNSTATS
    with pytest.raises(CudnnNotSupported) as caught:
        fused(gpu, made, ops, descriptors, memory)
    assert (caught.value.function, caught.value.code) == (
        "cudnnMakeFusedOpsPlan",
        "CUDNN_STATUS_NOT_SUPPORTED",
    )


def test_a_filter_gradient_of_a_fused_operation(gpu: Gpu, made: Make, nhwc: Nhwc) -> None:
    """1x1 without scale, bias and activation: dw[k, c] = sum over the pixels of dy[k] * x[c]."""
    descriptors = {"XDESC": nhwc(HALF, *IMAGE), "BN_MODE": SPATIAL, "CONV_DESC": pointwise_convolution(made)}
    descriptors |= {"DWDESC": packed_filter(made), "DYDESC": nhwc(HALF, *RESULT)}
    x, dy = (half(gpu, (n * h * w, c)) for n, c, h, w in (IMAGE, RESULT))  # NHWC: [pixels, channels]
    dw = gpu.put(np.full((64, CHANNELS), np.nan, np.float16))
    memory = {"XDATA": gpu.put(x), "DYDATA": gpu.put(dy), "DWDATA": dw}
    fused(gpu, made, cudnn.CUDNN_FUSED_SCALE_BIAS_ACTIVATION_WGRAD, descriptors, memory)
    wanted = dy.astype(np.float64).T @ x.astype(np.float64)
    close(gpu.read(dw, (64, CHANNELS), "float16").astype(np.float64), wanted, 2e-3)
