"""Calls that need a GPU: the convolution example of the older binding on foreign arrays, scaling, RNN sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lamina.c import compat as libcudnn
from lamina.c import cudnn, errors

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["torch", "cupy"])
def arrays(request: pytest.FixtureRequest) -> SimpleNamespace:
    """`put(host)`, `get(device)`, `empty(shape)` and `bytes(n)` of one array library."""
    if request.param == "torch":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        return SimpleNamespace(
            put=lambda host: torch.from_numpy(host).cuda(),
            get=lambda device: device.cpu().numpy(),
            empty=lambda shape: torch.empty(shape, device="cuda"),
            bytes=lambda n: torch.empty(n, dtype=torch.uint8, device="cuda"),
            wait=torch.cuda.synchronize,
        )
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    return SimpleNamespace(
        put=cupy.asarray,
        get=cupy.asnumpy,
        empty=lambda shape: cupy.empty(shape, cupy.float32),
        bytes=lambda n: cupy.empty(n, cupy.uint8),
        wait=lambda: cupy.cuda.Device().synchronize(),
    )


@pytest.fixture
def handle() -> Iterator[int]:
    handle = cudnn.cudnnCreate()
    yield handle
    cudnn.cudnnDestroy(handle)


def convolved(x: Any, w: Any, pad: int) -> Any:
    """Cross-correlation with stride 1 in float64: (n, c, h, w) and (k, c, r, s) -> (n, k, h', w')."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:], axis=(2, 3))
    return np.einsum("nchwrs,kcrs->nkhw", windows, w.astype(np.float64))


@pytest.mark.feature("B002", "F011", "F001")
def test_the_convolution_example_runs_on_foreign_arrays(arrays: SimpleNamespace) -> None:
    rng = np.random.default_rng(0)
    host_x = rng.integers(-2, 3, (4, 8, 12, 12)).astype(np.float32)
    host_w = rng.integers(-2, 3, (6, 8, 7, 7)).astype(np.float32)

    cudnn_context = libcudnn.cudnnCreate()
    tensor_format = libcudnn.cudnnTensorFormat["CUDNN_TENSOR_NCHW"]
    data_type = libcudnn.cudnnDataType["CUDNN_DATA_FLOAT"]
    mode = libcudnn.cudnnConvolutionMode["CUDNN_CROSS_CORRELATION"]
    preference = libcudnn.cudnnConvolutionFwdPreference["CUDNN_CONVOLUTION_FWD_PREFER_FASTEST"]
    alpha, beta = 1.0, 0.0

    X, filters = arrays.put(host_x), arrays.put(host_w)
    X_desc = libcudnn.cudnnCreateTensorDescriptor()
    libcudnn.cudnnSetTensor4dDescriptor(X_desc, tensor_format, data_type, *host_x.shape)
    filters_desc = libcudnn.cudnnCreateFilterDescriptor()
    libcudnn.cudnnSetFilter4dDescriptor(filters_desc, data_type, tensor_format, *host_w.shape)
    conv_desc = libcudnn.cudnnCreateConvolutionDescriptor()
    libcudnn.cudnnSetConvolution2dDescriptor(conv_desc, 3, 3, 1, 1, 1, 1, mode, data_type)
    out = libcudnn.cudnnGetConvolution2dForwardOutputDim(conv_desc, X_desc, filters_desc)
    assert out == (4, 6, 12, 12)

    Y = arrays.empty(tuple(out))
    Y_desc = libcudnn.cudnnCreateTensorDescriptor()
    libcudnn.cudnnSetTensor4dDescriptor(Y_desc, tensor_format, data_type, *out)
    algo = libcudnn.cudnnGetConvolutionForwardAlgorithm(
        cudnn_context, X_desc, filters_desc, conv_desc, Y_desc, preference, 0
    )
    assert algo.value == int(algo)
    ws_size = libcudnn.cudnnGetConvolutionForwardWorkspaceSize(
        cudnn_context, X_desc, filters_desc, conv_desc, Y_desc, algo
    )
    workspace = arrays.bytes(ws_size.value) if ws_size.value > 0 else None
    libcudnn.cudnnConvolutionForward(
        cudnn_context,
        alpha,
        X_desc,
        X,
        filters_desc,
        filters,
        conv_desc,
        algo,
        workspace,
        ws_size.value,
        beta,
        Y_desc,
        Y,
    )
    arrays.wait()
    np.testing.assert_allclose(arrays.get(Y), convolved(host_x, host_w, 3), rtol=1e-3, atol=0.5)

    libcudnn.cudnnDestroyTensorDescriptor(X_desc)
    libcudnn.cudnnDestroyTensorDescriptor(Y_desc)
    libcudnn.cudnnDestroyFilterDescriptor(filters_desc)
    libcudnn.cudnnDestroyConvolutionDescriptor(conv_desc)
    libcudnn.cudnnDestroy(cudnn_context)


@pytest.mark.feature("F001")
def test_search_lists_algorithms_with_their_costs(handle: int) -> None:
    x, w = cudnn.cudnnCreateTensorDescriptor(), cudnn.cudnnCreateFilterDescriptor()
    cudnn.cudnnSetTensor4dDescriptor(x, 0, 0, 4, 8, 12, 12)
    cudnn.cudnnSetFilter4dDescriptor(w, 0, 0, 6, 8, 3, 3)
    conv = cudnn.cudnnCreateConvolutionDescriptor()
    cudnn.cudnnSetConvolution2dDescriptor(conv, 1, 1, 1, 1, 1, 1, 1, 0)
    y = cudnn.cudnnCreateTensorDescriptor()
    cudnn.cudnnSetTensor4dDescriptor(y, 0, 0, 4, 6, 12, 12)
    for search in (
        cudnn.cudnnFindConvolutionForwardAlgorithm,
        cudnn.cudnnGetConvolutionForwardAlgorithm_v7,
    ):
        found = search(handle, x, w, conv, y, 20)
        assert 0 < len(found) <= 20
        assert all(isinstance(perf, cudnn.cudnnConvolutionFwdAlgoPerf_t) for perf in found)
        best = next(perf for perf in found if perf.status == 0)
        assert cudnn.cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, conv, y, best.algo) == best.memory
    fixed = libcudnn.cudnnConvolutionFwdPreference.CUDNN_CONVOLUTION_FWD_NO_WORKSPACE
    algo = libcudnn.cudnnGetConvolutionForwardAlgorithm(handle, x, w, conv, y, fixed)
    assert cudnn.cudnnGetConvolutionForwardWorkspaceSize(handle, x, w, conv, y, algo) == 0


@pytest.mark.feature("F006")
def test_scaling_and_filling_by_the_tensors_type(handle: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    kinds = (
        (torch.float32, cudnn.CUDNN_DATA_FLOAT),
        (torch.float64, cudnn.CUDNN_DATA_DOUBLE),
        (torch.float16, cudnn.CUDNN_DATA_HALF),
        (torch.bfloat16, cudnn.CUDNN_DATA_BFLOAT16),
    )
    for dtype, kind in kinds:
        tensor = torch.zeros(2, 3, 4, 4, dtype=dtype, device="cuda")
        desc = cudnn.cudnnCreateTensorDescriptor()
        cudnn.cudnnSetTensor4dDescriptor(desc, cudnn.CUDNN_TENSOR_NCHW, kind, 2, 3, 4, 4)
        cudnn.cudnnSetTensor(handle, desc, tensor, 1.5)
        torch.cuda.synchronize()
        assert torch.all(tensor == 1.5), (dtype, tensor.flatten()[:4])
        if kind == cudnn.CUDNN_DATA_BFLOAT16:  # the calls below are older than bfloat16
            continue
        cudnn.cudnnScaleTensor(handle, desc, tensor, 0.5)
        torch.cuda.synchronize()
        assert torch.all(tensor == 0.75)
        ones = torch.ones_like(tensor)
        cudnn.cudnnAddTensor(handle, 0.25, desc, ones, 2.0, desc, tensor)
        torch.cuda.synchronize()
        assert torch.all(tensor == 1.75)
        cudnn.cudnnDestroyTensorDescriptor(desc)


@pytest.mark.feature("F015", "F010")
def test_streams_and_runtime_errors(handle: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    stream = torch.cuda.Stream()
    cudnn.cudnnSetStream(handle, stream.cuda_stream)
    assert cudnn.cudnnGetStream(handle) == stream.cuda_stream
    cudnn.cudnnSetStream(handle, None)
    assert cudnn.cudnnGetStream(handle) == 0
    assert cudnn.cudnnQueryRuntimeError(handle, cudnn.CUDNN_ERRQUERY_RAWCODE) is cudnn.CUDNN_STATUS_SUCCESS


@pytest.mark.feature("F004", "F005")
def test_what_is_not_supported_says_so_and_the_handle_lives(handle: int) -> None:
    desc = cudnn.cudnnCreateTensorDescriptor()
    cudnn.cudnnSetTensor4dDescriptor(desc, 0, cudnn.CUDNN_DATA_FLOAT, 2, 3, 4, 4)
    other = cudnn.cudnnCreateTensorDescriptor()
    cudnn.cudnnSetTensor4dDescriptor(other, 0, cudnn.CUDNN_DATA_FLOAT, 2, 5, 4, 4)
    with pytest.raises(errors.CudnnError) as caught:
        cudnn.cudnnSoftmaxForward(handle, 0, 0, 1.0, desc, 4096, 0.0, other, 4096)
    assert isinstance(caught.value, errors.CudnnBadParam | errors.CudnnNotSupported)
    assert cudnn.cudnnGetStream(handle) == 0


@pytest.mark.feature("F024")
@pytest.mark.parametrize(("cell", "gates"), [(cudnn.CUDNN_LSTM, 4), (cudnn.CUDNN_GRU, 3)])
def test_rnn_sizes_of_version_6(handle: int, cell: int, gates: int) -> None:
    hidden, size, layers, batch, steps = 32, 16, 2, 4, 5
    rnn, x = cudnn.cudnnCreateRNNDescriptor(), cudnn.cudnnCreateTensorDescriptor()
    libcudnn.cudnnSetRNNDescriptor_v6(handle, rnn, hidden, layers, None, 0, 0, cell, 0, 0)
    cudnn.cudnnSetTensorNdDescriptor(x, 0, 3, (batch, size, 1), (size, 1, 1))
    weights = [gates * (hidden * inputs + hidden * hidden + 2 * hidden) for inputs in (size, hidden)]
    assert libcudnn.cudnnGetRNNParamsSize(handle, rnn, x, 0) >= 4 * sum(weights)
    sizes: list[Callable[..., int]] = [
        libcudnn.cudnnGetRNNWorkspaceSize,
        libcudnn.cudnnGetRNNTrainingReserveSize,
    ]
    for get in sizes:
        assert get(handle, rnn, steps, [x] * steps) > 0
    got = libcudnn.cudnnGetRNNDescriptor_v6(handle, rnn)
    assert (got.hiddenSize, got.numLayers, got.mode) == (hidden, layers, cell)
