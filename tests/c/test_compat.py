"""Calls that cuDNN 9 removed, on today's."""

from __future__ import annotations

from typing import Any

import pytest

from lamina.c import compat as libcudnn
from lamina.c import cudnn, errors

pytestmark = pytest.mark.feature("F001")


def test_unchanged_names_pass_through() -> None:
    assert libcudnn.cudnnCreateTensorDescriptor is cudnn.cudnnCreateTensorDescriptor
    assert libcudnn.cudnnTensorFormat["CUDNN_TENSOR_NCHW"] == 0
    assert libcudnn.cudnnError is errors.CudnnError


def test_removed_names_say_what_to_use() -> None:
    with pytest.raises(
        AttributeError, match="cudnnRNNForwardTraining was removed in cuDNN 9; use cudnnRNNForward"
    ):
        _ = libcudnn.cudnnRNNForwardTraining
    with pytest.raises(AttributeError, match="neither cuDNN 9 nor"):
        _ = libcudnn.cudnnNonsense
    for name in libcudnn.REMOVED:
        assert not hasattr(cudnn, name)


def perf(algo: int, memory: int, status: int = 0) -> Any:
    return cudnn.cudnnConvolutionFwdAlgoPerf_t(algo=algo, status=status, time=1.0, memory=memory)


def test_preferences_choose_from_the_ranked_list() -> None:
    ranked = [perf(7, 900, status=3000), perf(6, 500), perf(1, 100), perf(0, 0)]
    assert libcudnn.choose("f", ranked, 1, 0).algo == 6
    assert libcudnn.choose("f", ranked, 2, 499).algo == 1
    assert libcudnn.choose("f", ranked, 0, 0).algo == 0
    fastest = libcudnn.cudnnConvolutionFwdPreference["CUDNN_CONVOLUTION_FWD_PREFER_FASTEST"]
    assert libcudnn.choose("f", ranked, fastest, 0).algo == 6
    with pytest.raises(errors.CudnnNotSupported, match="the smallest workspace is 100 bytes"):
        libcudnn.choose("f", ranked[:3], 0, 0)
    with pytest.raises(errors.CudnnNotSupported, match="no algorithm works"):
        libcudnn.choose("f", ranked[:1], 1, 0)


def test_algorithm_getters_reach_todays_calls() -> None:
    for name, call in (
        ("cudnnGetConvolutionForwardAlgorithm_v7", libcudnn.cudnnGetConvolutionForwardAlgorithm),
        ("cudnnGetConvolutionBackwardDataAlgorithm_v7", libcudnn.cudnnGetConvolutionBackwardDataAlgorithm),
        (
            "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
            libcudnn.cudnnGetConvolutionBackwardFilterAlgorithm,
        ),
    ):
        with pytest.raises(errors.CudnnBadParam, match=name):
            call(None, None, None, None, None, 1, 0)


def test_sizes_answer_value() -> None:
    size = libcudnn.Size(12)
    assert (size.value, size + 1) == (12, 13)


def test_shorter_argument_lists() -> None:
    conv = libcudnn.cudnnCreateConvolutionDescriptor()
    libcudnn.cudnnSetConvolution2dDescriptor(conv, 3, 2, 1, 2, 1, 1, libcudnn.CUDNN_CROSS_CORRELATION)
    got = libcudnn.cudnnGetConvolution2dDescriptor(conv)
    assert (got.pad_h, got.pad_w, got.v, got.computeType) == (3, 2, 2, cudnn.CUDNN_DATA_FLOAT)
    libcudnn.cudnnSetConvolutionNdDescriptor(conv, (1, 1, 1), (2, 2, 2), (1, 1, 1), 1, 0)
    assert libcudnn.cudnnGetConvolutionNdDescriptor(conv, 3).strideA == [2, 2, 2]
    libcudnn.cudnnSetConvolutionNdDescriptor(conv, 2, (0, 0), (1, 1), (1, 1), 1, 0)
    assert libcudnn.cudnnGetConvolutionNdDescriptor(conv, 3).arrayLength == 2
    pool = libcudnn.cudnnCreatePoolingDescriptor()
    libcudnn.cudnnSetPooling2dDescriptor(pool, 0, 3, 4, 1, 0, 2, 1)
    got_pool = libcudnn.cudnnGetPooling2dDescriptor(pool)
    assert got_pool[2:] == (3, 4, 1, 0, 2, 1)
    libcudnn.cudnnSetPooling2dDescriptor(pool, 0, 1, 5, 5, 1, 0, 2, 1)
    assert libcudnn.cudnnGetPooling2dDescriptor(pool).maxpoolingNanOpt == 1


def test_an_activation_mode_becomes_a_descriptor() -> None:
    desc = libcudnn.cudnnCreateTensorDescriptor()
    libcudnn.cudnnSetTensor4dDescriptor(desc, 0, 0, 1, 1, 1, 1)
    with pytest.raises(errors.CudnnBadParam) as caught:  # the handle is null
        libcudnn.cudnnActivationForward(None, cudnn.CUDNN_ACTIVATION_RELU, 1.0, desc, None, 0.0, desc, None)
    assert "activationDesc=cudnnActivationDescriptor_t(0x" in caught.value.arguments


def test_check_status() -> None:
    libcudnn.cudnnCheckStatus(0)
    with pytest.raises(errors.CudnnNotSupported) as caught:
        libcudnn.cudnnCheckStatus(3000)
    assert caught.value.status == 3000


def rnn(hidden: int = 32, layers: int = 2) -> int:
    descriptor = libcudnn.cudnnCreateRNNDescriptor()
    linear, one_way, lstm = cudnn.CUDNN_LINEAR_INPUT, cudnn.CUDNN_UNIDIRECTIONAL, cudnn.CUDNN_LSTM
    libcudnn.cudnnSetRNNDescriptor_v6(
        None, descriptor, hidden, layers, None, linear, one_way, lstm, 0, cudnn.CUDNN_DATA_FLOAT
    )
    return descriptor


@pytest.mark.feature("F024")
def test_rnn_descriptor_of_version_6_goes_round() -> None:
    got = libcudnn.cudnnGetRNNDescriptor_v6(None, rnn())
    assert (got.hiddenSize, got.numLayers, got.mode) == (32, 2, cudnn.CUDNN_LSTM)
    assert (got.algo, got.mathPrec) == (cudnn.CUDNN_RNN_ALGO_STANDARD, cudnn.CUDNN_DATA_FLOAT)


@pytest.mark.feature("F024")
def test_the_input_descriptor_completes_the_rnn() -> None:
    descriptor, x = rnn(), libcudnn.cudnnCreateTensorDescriptor()
    libcudnn.cudnnSetTensorNdDescriptor(x, cudnn.CUDNN_DATA_HALF, 3, (4, 10, 1), (10, 1, 1))
    with pytest.raises(errors.CudnnBadParam, match="cudnnGetRNNWeightSpaceSize"):  # the handle is null
        libcudnn.cudnnGetRNNParamsSize(None, descriptor, x, cudnn.CUDNN_DATA_HALF)
    now = cudnn.cudnnGetRNNDescriptor_v8(descriptor)
    assert (now.inputSize, now.hiddenSize, now.projSize) == (10, 32, 32)
    assert (now.dataType, now.mathPrec, now.mathType) == (
        cudnn.CUDNN_DATA_HALF,
        cudnn.CUDNN_DATA_FLOAT,
        cudnn.CUDNN_TENSOR_OP_MATH,
    )
    for size in (libcudnn.cudnnGetRNNWorkspaceSize, libcudnn.cudnnGetRNNTrainingReserveSize):
        with pytest.raises(errors.CudnnBadParam, match="cudnnGetRNNTempSpaceSizes"):
            size(None, descriptor, 2, [x, x])
        with pytest.raises(ValueError, match="has 1 descriptors, seqLength=2 are read"):
            size(None, descriptor, 2, [x])


def test_sequence_lengths_from_batches() -> None:
    assert libcudnn.sequence_lengths([3, 2]) == [2, 2, 1]
    assert libcudnn.sequence_lengths([2, 2, 2]) == [3, 3]
    assert libcudnn.sequence_lengths([]) == []
