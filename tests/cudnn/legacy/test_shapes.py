"""Sizes that the library works out without a GPU: outputs, derived descriptors, indices, folds."""

import random
from typing import Any

import pytest

from lamina.c import cudnn as c
from lamina.c.errors import CudnnBadParam, CudnnError
from lamina.cudnn import legacy
from tests.helpers.cudnn.installed import needs_cudnn

pytestmark = needs_cudnn


def window(rng: random.Random, rank: int) -> dict[str, Any]:
    return {
        "pad": [rng.randrange(3) for _ in range(rank)],
        "stride": [rng.randrange(1, 4) for _ in range(rank)],
        "dilation": [rng.randrange(1, 3) for _ in range(rank)],
    }


def in_order(format: str, n: int, channels: int, spatial: list[int]) -> tuple[int, ...]:
    return (n, *spatial, channels) if format == "nhwc" else (n, channels, *spatial)


def tensor(format: str, n: int, channels: int, spatial: list[int]) -> legacy.TensorDescriptor:
    return legacy.TensorDescriptor(in_order(format, n, channels, spatial), format=format)


def filters(format: str, k: int, channels: int, spatial: list[int]) -> legacy.FilterDescriptor:
    return legacy.FilterDescriptor(in_order(format, k, channels, spatial), format=format)


@pytest.mark.feature("F020", "F018", "F048", "F049")
@pytest.mark.parametrize("format", ["nchw", "nhwc"])
@pytest.mark.parametrize("rank", [2, 3])
def test_convolution_output_dims(format: str, rank: int) -> None:
    rng = random.Random(rank)
    for _ in range(50):
        made, groups = window(rng, rank), rng.choice((1, 1, 2, 3))
        sizes = [rng.randrange(9, 20) for _ in range(rank)]
        kernel = [rng.randrange(1, 4) for _ in range(rank)]
        convolution = legacy.Convolution(**made, groups=groups)
        x, w = tensor(format, 2, 4 * groups, sizes), filters(format, 5 * groups, 4, kernel)
        wanted = [
            1 + (size + 2 * pad - (k - 1) * dilation - 1) // stride
            for size, k, pad, stride, dilation in zip(sizes, kernel, *made.values(), strict=True)
        ]
        assert convolution.output_dims(x, w) == in_order(format, 2, 5 * groups, wanted)
        y = convolution.output(x, w, data_type="float16")
        assert (y.dims, y.format, y.data_type) == (
            in_order(format, 2, 5 * groups, wanted),
            x.format,
            c.CUDNN_DATA_HALF,
        )


@pytest.mark.feature("F021", "F047", "F018")
@pytest.mark.parametrize("format", ["nchw", "nhwc"])
@pytest.mark.parametrize("rank", [2, 3])
def test_deconvolution_output_dims_are_those_that_a_convolution_takes_back(format: str, rank: int) -> None:
    rng = random.Random(10 + rank)
    for _ in range(50):
        made, groups = window(rng, rank), rng.choice((1, 1, 2))
        sizes = [rng.randrange(5, 12) for _ in range(rank)]
        kernel = [rng.randrange(2, 4) for _ in range(rank)]
        extra = [rng.randrange(stride) for stride in made["stride"]]
        deconvolution = legacy.Deconvolution(**made, groups=groups)
        x, w = tensor(format, 2, 6 * groups, sizes), filters(format, 6 * groups, 5, kernel)
        y = deconvolution.output(x, w, output_padding=extra)
        assert legacy.Convolution(**made, groups=groups).output_dims(y, w) == x.dims
        assert deconvolution.bias_dims(w) == in_order(format, 1, 5 * groups, [1] * rank)


@pytest.mark.feature("F021")
def test_deconvolution_refuses_what_does_not_fit() -> None:
    x, w = tensor("nchw", 2, 6, [5, 5]), filters("nchw", 6, 4, [3, 3])
    made = legacy.Deconvolution(stride=2)
    assert made.output_dims(x, w) == (2, 4, 11, 11)
    with pytest.raises(ValueError, match="x has 6 channels and w takes 7"):
        made.output_dims(x, filters("nchw", 7, 4, [3, 3]))
    with pytest.raises(ValueError, match="CUDNN_TENSOR_NCHW and w_desc CUDNN_TENSOR_NHWC"):
        made.output_dims(x, filters("nhwc", 6, 4, [3, 3]))
    with pytest.raises(ValueError, match="output_padding="):
        made.output_dims(x, w, output_padding=2)
    with pytest.raises(ValueError, match="y would have sizes"):
        legacy.Deconvolution(pad=9).output_dims(x, w)
    with pytest.raises(ValueError, match="do not fit together"):
        made.output_dims(tensor("nchw", 2, 6, [5, 5, 5]), w)


@pytest.mark.feature("F020")
def test_convolution_refuses_what_does_not_fit() -> None:
    with pytest.raises(CudnnBadParam, match="groupCount"):
        legacy.Convolution().output_dims(tensor("nchw", 2, 6, [5, 5]), filters("nchw", 3, 4, [3, 3]))
    with pytest.raises(CudnnError):
        legacy.Convolution().output_dims(tensor("nchw", 2, 4, [5, 5]), filters("nchw", 3, 4, [9, 9]))


@pytest.mark.feature("F022", "F018", "F054")
@pytest.mark.parametrize("format", ["nchw", "nhwc"])
@pytest.mark.parametrize("rank", [2, 3])
def test_pooling_output_dims(format: str, rank: int) -> None:
    rng = random.Random(20 + rank)
    for mode in legacy.members(legacy.PoolingMode):
        sizes = [rng.randrange(6, 15) for _ in range(rank)]
        shape = [rng.randrange(2, 4) for _ in range(rank)]
        pad = [rng.randrange(k) for k in shape]
        stride = [rng.randrange(1, 4) for _ in range(rank)]
        made = legacy.Pooling(mode, window=shape, pad=pad, stride=stride)
        wanted = [1 + (n + 2 * p - k) // s for n, k, p, s in zip(sizes, shape, pad, stride, strict=True)]
        assert made.output_dims(tensor(format, 2, 3, sizes)) == in_order(format, 2, 3, wanted)
        assert made.output(tensor(format, 2, 3, sizes)).dims == in_order(format, 2, 3, wanted)


@pytest.mark.feature("F026", "F044")
def test_transforms_tell_their_destination() -> None:
    x = legacy.TensorDescriptor((2, 3, 9, 9))
    padded = legacy.TensorTransform(format="nhwc", pad_before=(0, 0, 1, 1), pad_after=(0, 5, 2, 2))
    assert padded.destination(x) == legacy.TensorDescriptor((2, 12, 12, 8), format="nhwc")
    folded = legacy.TensorTransform(fold=(3, 3)).destination(x)
    assert folded == legacy.TensorDescriptor((2, 27, 3, 3))
    assert legacy.TensorTransform(fold=(3, 3), direction="unfold").destination(folded) == x
    fresh = legacy.TensorTransform().get()  # nothing is left from descriptors made before
    assert fresh[1:4] == ((0,) * 4, (0,) * 4, (1, 1))


@pytest.mark.feature("F022", "F060")
@pytest.mark.parametrize(
    ("data_type", "derived"),
    [("float16", "float32"), ("bfloat16", "float32"), ("float32", "float32"), ("float64", "float64")],
)
def test_batch_norm_derives_the_descriptor_of_its_parameters(data_type: str, derived: str) -> None:
    x = legacy.TensorDescriptor((8, 4, 5, 6), data_type=data_type)
    for mode, dims in (("spatial", (1, 4, 1, 1)), ("per_activation", (1, 4, 5, 6))):
        wanted = legacy.TensorDescriptor(dims, data_type=derived)
        assert legacy.BatchNorm(mode).derive(x) == wanted
        assert legacy.BatchNormEx(mode).derive(x) == wanted
    persistent = legacy.BatchNorm("spatial_persistent").derive(x)
    assert persistent.dims == (1, 4, 1, 1)
    tensors = legacy.Normalization("per_channel").derive(x)
    assert tensors.mean_variance.data_type == legacy.flag(legacy.DataType, derived)
    assert tensors.scale_bias.dims == tensors.mean_variance.dims == (1, 4, 1, 1)
    assert legacy.Normalization("per_activation").derive(x).scale_bias.dims == (1, 4, 5, 6)
    deep = legacy.TensorDescriptor((2, 3, 4, 5, 6), data_type=data_type)
    assert legacy.BatchNorm().derive(deep).dims == (1, 3, 1, 1, 1)
    assert legacy.MIN_EPSILON == 0.0


@pytest.mark.feature("F026", "F065")
def test_reductions_tell_their_sizes() -> None:
    a = legacy.TensorDescriptor((2, 3, 9, 9))
    out = legacy.TensorDescriptor((1, 3, 1, 1))
    with_indices = legacy.ReduceTensor("max", indices="flattened")
    assert with_indices.indices_size(None, a_desc=a, c_desc=out) == 4 * 3
    assert legacy.ReduceTensor("max").indices_size(None, a_desc=a, c_desc=out) == 0
    assert with_indices.workspace(None, a_desc=a, c_desc=out) > 0
    with pytest.raises(ValueError, match="pass indices"):
        with_indices.run(None, a_desc=a, a=4096, c_desc=out, c=8192)


@pytest.mark.feature("F023")
def test_dropout_tells_the_size_of_its_mask() -> None:
    x = legacy.TensorDescriptor((4, 8, 16, 16))
    size = legacy.Dropout.reserve_size(x)
    assert size >= 4 * 8 * 256 // 8  # a bit per element, at least


@pytest.mark.feature("F021", "F082")
def test_algorithms_by_name() -> None:
    assert legacy.algorithm("forward", "none") is c.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM
    assert legacy.algorithm("forward", "small") is c.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM
    assert legacy.algorithm("forward", "large") is c.CUDNN_CONVOLUTION_FWD_ALGO_GEMM
    assert legacy.algorithm("backward_data", "none") is c.CUDNN_CONVOLUTION_BWD_DATA_ALGO_0
    assert legacy.algorithm("backward_data", "deterministic") is c.CUDNN_CONVOLUTION_BWD_DATA_ALGO_1
    assert legacy.algorithm("backward_filter", "small") is c.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3
    assert legacy.algorithm("backward_filter") is c.CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1
    for direction, names in legacy.NAMED.items():
        enum = type(legacy.algorithm(direction))
        assert {"none", "small", "fft", "fft_tiling", "winograd", "winograd_non_fused"} <= set(names)
        for name, member in names.items():
            assert type(member) is enum
            assert legacy.algorithm(direction, name.upper()) is member
        for short in legacy.members(enum):
            assert legacy.short(legacy.algorithm(direction, short)) == short
    with pytest.raises(ValueError, match="direction='backwards': there are forward"):
        legacy.algorithm("backwards")
    with pytest.raises(ValueError, match="no 'fastest'"):
        legacy.algorithm("forward", "fastest")
