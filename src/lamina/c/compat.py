"""Calls of cuDNN 2 to 8 that cuDNN 9 no longer has, on top of today's; everything else is `lamina.c.cudnn`.

A program that was written against an older binding imports this module in place of it::

    from lamina.c import compat as libcudnn

These functions behave as before: the algorithm getters take a preference and a limit, workspace sizes have
`.value`, setters accept their shorter argument lists, the RNN setter of version 6 defers to version 8.
Functions without an equivalent raise an AttributeError that names the call to use instead.
"""

# ruff: noqa: N801, N815, N816 - the names of the C API

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeVar

from lamina.c import cudnn
from lamina.c._arguments import Handle, address
from lamina.c._enum import CEnum
from lamina.c.errors import CudnnError, CudnnNotSupported, cudnn_class

__all__ = [
    "REMOVED",
    "Size",
    "cudnnActivationBackward",
    "cudnnActivationForward",
    "cudnnAddMode",
    "cudnnCheckStatus",
    "cudnnConvolutionBwdDataPreference",
    "cudnnConvolutionBwdFilterPreference",
    "cudnnConvolutionFwdPreference",
    "cudnnError",
    "cudnnGetConvolutionBackwardDataAlgorithm",
    "cudnnGetConvolutionBackwardDataWorkspaceSize",
    "cudnnGetConvolutionBackwardFilterAlgorithm",
    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
    "cudnnGetConvolutionForwardAlgorithm",
    "cudnnGetConvolutionForwardWorkspaceSize",
    "cudnnGetRNNDescriptor_v6",
    "cudnnGetRNNParamsSize",
    "cudnnGetRNNTrainingReserveSize",
    "cudnnGetRNNWorkspaceSize",
    "cudnnSetConvolution2dDescriptor",
    "cudnnSetConvolutionNdDescriptor",
    "cudnnSetPooling2dDescriptor",
    "cudnnSetRNNDescriptor_v6",
]

cudnnError = CudnnError

REMOVED: Final = {
    "cudnnRNNForwardInference": "cudnnRNNForward with CUDNN_FWD_MODE_INFERENCE",
    "cudnnRNNForwardTraining": "cudnnRNNForward with CUDNN_FWD_MODE_TRAINING",
    "cudnnRNNForwardInferenceEx": "cudnnRNNForward with CUDNN_FWD_MODE_INFERENCE",
    "cudnnRNNForwardTrainingEx": "cudnnRNNForward with CUDNN_FWD_MODE_TRAINING",
    "cudnnRNNBackwardData": "cudnnRNNBackwardData_v8",
    "cudnnRNNBackwardDataEx": "cudnnRNNBackwardData_v8",
    "cudnnRNNBackwardWeights": "cudnnRNNBackwardWeights_v8",
    "cudnnRNNBackwardWeightsEx": "cudnnRNNBackwardWeights_v8",
    "cudnnGetRNNLinLayerMatrixParams": "cudnnGetRNNWeightParams",
    "cudnnGetRNNLinLayerBiasParams": "cudnnGetRNNWeightParams",
    "cudnnSetRNNMatrixMathType": "the mathType of cudnnSetRNNDescriptor_v8",
    "cudnnSetRNNBiasMode": "the biasMode of cudnnSetRNNDescriptor_v8",
    "cudnnSetRNNPaddingMode": "the auxFlags of cudnnSetRNNDescriptor_v8",
    "cudnnSetRNNProjectionLayers": "the projSize of cudnnSetRNNDescriptor_v8",
    "cudnnSetRNNAlgorithmDescriptor": "the algo of cudnnSetRNNDescriptor_v8",
    "cudnnCreatePersistentRNNPlan": "cudnnBuildRNNDynamic",
    "cudnnSetPersistentRNNPlan": "cudnnBuildRNNDynamic",
    "cudnnDestroyPersistentRNNPlan": "cudnnBuildRNNDynamic (nothing to destroy)",
    "cudnnRNNSetClip": "cudnnRNNSetClip_v9",
    "cudnnRNNGetClip": "cudnnRNNGetClip_v9",
    "cudnnGetAlgorithmSpaceSize": "nothing: choose a cudnnRNNAlgo_t and time it",
    "cudnnSaveAlgorithm": "nothing: choose a cudnnRNNAlgo_t and time it",
    "cudnnRestoreAlgorithm": "nothing: choose a cudnnRNNAlgo_t and time it",
}


def __getattr__(name: str) -> Any:
    """All unchanged names come from `lamina.c.cudnn`."""
    if name in REMOVED:
        raise AttributeError(f"{name} was removed in cuDNN 9; use {REMOVED[name]}")
    try:
        return getattr(cudnn, name)
    except AttributeError:
        raise AttributeError(f"neither cuDNN 9 nor lamina.c.compat has {name}") from None


class Size(int):
    """A size in bytes with an additional `.value`, as the ctypes integer of older bindings had."""

    @property
    def value(self) -> int:
        """The number itself."""
        return int(self)


def cudnnCheckStatus(status: int) -> None:
    """Raise the exception of a status that is not success."""
    if status:
        raise cudnn_class(status)(status, "cudnnCheckStatus")


# ---------------------------------------------------------------------------------------------------------
# Enums


class cudnnAddMode(CEnum):
    """The dimensions of the bias of cudnnAddTensor (cuDNN 2); today the shapes alone determine them."""

    CUDNN_ADD_SAME_HW = 0
    CUDNN_ADD_IMAGE = 0
    CUDNN_ADD_SAME_CHW = 1
    CUDNN_ADD_FEATURE_MAP = 1
    CUDNN_ADD_SAME_C = 2
    CUDNN_ADD_FULL_TENSOR = 3


class cudnnConvolutionFwdPreference(CEnum):
    """The selection criterion of cudnnGetConvolutionForwardAlgorithm."""

    CUDNN_CONVOLUTION_FWD_NO_WORKSPACE = 0
    CUDNN_CONVOLUTION_FWD_PREFER_FASTEST = 1
    CUDNN_CONVOLUTION_FWD_SPECIFY_WORKSPACE_LIMIT = 2


class cudnnConvolutionBwdDataPreference(CEnum):
    """The selection criterion of cudnnGetConvolutionBackwardDataAlgorithm."""

    CUDNN_CONVOLUTION_BWD_DATA_NO_WORKSPACE = 0
    CUDNN_CONVOLUTION_BWD_DATA_PREFER_FASTEST = 1
    CUDNN_CONVOLUTION_BWD_DATA_SPECIFY_WORKSPACE_LIMIT = 2


class cudnnConvolutionBwdFilterPreference(CEnum):
    """The selection criterion of cudnnGetConvolutionBackwardFilterAlgorithm."""

    CUDNN_CONVOLUTION_BWD_FILTER_NO_WORKSPACE = 0
    CUDNN_CONVOLUTION_BWD_FILTER_PREFER_FASTEST = 1
    CUDNN_CONVOLUTION_BWD_FILTER_SPECIFY_WORKSPACE_LIMIT = 2


# ---------------------------------------------------------------------------------------------------------
# Convolution

_COUNT: Final = 16  # more than the algorithms of any direction
_Perf = TypeVar(
    "_Perf",
    cudnn.cudnnConvolutionFwdAlgoPerf_t,
    cudnn.cudnnConvolutionBwdDataAlgoPerf_t,
    cudnn.cudnnConvolutionBwdFilterAlgoPerf_t,
)


def choose(function: str, found: Sequence[_Perf], preference: int, limit: int) -> _Perf:
    """The first of a ranked list that satisfies the preference (0 none, 1 any, 2 at most `limit` bytes).

    Raises CudnnNotSupported if none does.
    """
    allowed = {0: 0, 2: limit}.get(int(preference), float("inf"))
    for perf in found:
        if perf.status == 0 and perf.memory <= allowed:
            return perf
    smallest = min((perf.memory for perf in found if perf.status == 0), default=None)
    reason = "no algorithm works" if smallest is None else f"the smallest workspace is {smallest} bytes"
    status = int(cudnn.CUDNN_STATUS_NOT_SUPPORTED)
    raise CudnnNotSupported(status, function, reason, f"preference={int(preference)}, limit={limit}")


def cudnnGetConvolutionForwardAlgorithm(
    handle: Handle,
    xDesc: Handle,
    wDesc: Handle,
    convDesc: Handle,
    yDesc: Handle,
    preference: int,
    memoryLimitInbytes: int = 0,
) -> cudnn.cudnnConvolutionFwdAlgo_t:
    """The best forward algorithm by cuDNN's heuristic (cudnnGetConvolutionForwardAlgorithm_v7)."""
    found = cudnn.cudnnGetConvolutionForwardAlgorithm_v7(handle, xDesc, wDesc, convDesc, yDesc, _COUNT)
    best = choose("cudnnGetConvolutionForwardAlgorithm", found, preference, memoryLimitInbytes)
    return cudnn.cudnnConvolutionFwdAlgo_t(best.algo)


def cudnnGetConvolutionBackwardDataAlgorithm(
    handle: Handle,
    wDesc: Handle,
    dyDesc: Handle,
    convDesc: Handle,
    dxDesc: Handle,
    preference: int,
    memoryLimitInbytes: int = 0,
) -> cudnn.cudnnConvolutionBwdDataAlgo_t:
    """The best data-gradient algorithm by cuDNN's heuristic."""
    found = cudnn.cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, wDesc, dyDesc, convDesc, dxDesc, _COUNT)
    best = choose("cudnnGetConvolutionBackwardDataAlgorithm", found, preference, memoryLimitInbytes)
    return cudnn.cudnnConvolutionBwdDataAlgo_t(best.algo)


def cudnnGetConvolutionBackwardFilterAlgorithm(
    handle: Handle,
    xDesc: Handle,
    dyDesc: Handle,
    convDesc: Handle,
    dwDesc: Handle,
    preference: int,
    memoryLimitInbytes: int = 0,
) -> cudnn.cudnnConvolutionBwdFilterAlgo_t:
    """The best filter-gradient algorithm by cuDNN's heuristic."""
    get = cudnn.cudnnGetConvolutionBackwardFilterAlgorithm_v7
    found = get(handle, xDesc, dyDesc, convDesc, dwDesc, _COUNT)
    best = choose("cudnnGetConvolutionBackwardFilterAlgorithm", found, preference, memoryLimitInbytes)
    return cudnn.cudnnConvolutionBwdFilterAlgo_t(best.algo)


def cudnnGetConvolutionForwardWorkspaceSize(*arguments: Any) -> Size:
    """As today, with `.value`."""
    return Size(cudnn.cudnnGetConvolutionForwardWorkspaceSize(*arguments))


def cudnnGetConvolutionBackwardDataWorkspaceSize(*arguments: Any) -> Size:
    """As today, with `.value`."""
    return Size(cudnn.cudnnGetConvolutionBackwardDataWorkspaceSize(*arguments))


def cudnnGetConvolutionBackwardFilterWorkspaceSize(*arguments: Any) -> Size:
    """As today, with `.value`."""
    return Size(cudnn.cudnnGetConvolutionBackwardFilterWorkspaceSize(*arguments))


def cudnnSetConvolution2dDescriptor(
    convDesc: Handle,
    pad_h: int,
    pad_w: int,
    u: int,
    v: int,
    upscalex: int,
    upscaley: int,
    mode: int,
    computeType: int = cudnn.CUDNN_DATA_FLOAT,
) -> None:
    """With or without the compute type (before cuDNN 6 there was none); upscalex/y are the dilations."""
    cudnn.cudnnSetConvolution2dDescriptor(convDesc, pad_h, pad_w, u, v, upscalex, upscaley, mode, computeType)


def cudnnSetConvolutionNdDescriptor(convDesc: Handle, *arguments: Any) -> None:
    """(padA, strideA, dilationA, mode, computeType), or today's form with the length in front."""
    if not isinstance(arguments[0], int):
        arguments = (len(arguments[0]), *arguments)
    cudnn.cudnnSetConvolutionNdDescriptor(convDesc, *arguments)


def cudnnSetPooling2dDescriptor(poolingDesc: Handle, mode: int, *arguments: int) -> None:
    """With or without the NaN option in front of the window (before cuDNN 5 there was none)."""
    if len(arguments) == 6:
        arguments = (cudnn.CUDNN_NOT_PROPAGATE_NAN, *arguments)
    cudnn.cudnnSetPooling2dDescriptor(poolingDesc, mode, *arguments)


# ---------------------------------------------------------------------------------------------------------
# Activation: a mode where a descriptor is expected today


class _Activation:
    """The given descriptor, or a temporary one for a cudnnActivationMode_t."""

    def __init__(self, activation: Handle) -> None:
        self.given = activation
        self.mode = isinstance(activation, int) and 0 <= activation <= cudnn.CUDNN_ACTIVATION_SWISH

    def __enter__(self) -> Handle:
        if not self.mode:
            return self.given
        self.descriptor = cudnn.cudnnCreateActivationDescriptor()
        nan = cudnn.CUDNN_NOT_PROPAGATE_NAN
        cudnn.cudnnSetActivationDescriptor(self.descriptor, address(self.given), nan, 1.0)
        return self.descriptor

    def __exit__(self, *exception: object) -> None:
        if self.mode:
            cudnn.cudnnDestroyActivationDescriptor(self.descriptor)


def cudnnActivationForward(handle: Handle, activation: Handle, *arguments: Any) -> None:
    """`activation` is a descriptor or, as before cuDNN 4, a cudnnActivationMode_t (coefficient 1)."""
    with _Activation(activation) as descriptor:
        cudnn.cudnnActivationForward(handle, descriptor, *arguments)


def cudnnActivationBackward(handle: Handle, activation: Handle, *arguments: Any) -> None:
    """`activation` is a descriptor or, as before cuDNN 4, a cudnnActivationMode_t (coefficient 1)."""
    with _Activation(activation) as descriptor:
        cudnn.cudnnActivationBackward(handle, descriptor, *arguments)


# ---------------------------------------------------------------------------------------------------------
# RNN of version 6: the input size and the data type came later, with the first input descriptor


class cudnnGetRNNDescriptor_v6_result(NamedTuple):
    """What `cudnnGetRNNDescriptor_v6` returns."""

    hiddenSize: int
    numLayers: int
    dropoutDesc: int
    inputMode: cudnn.cudnnRNNInputMode_t
    direction: cudnn.cudnnDirectionMode_t
    mode: cudnn.cudnnRNNMode_t
    algo: cudnn.cudnnRNNAlgo_t
    mathPrec: cudnn.cudnnDataType_t


def cudnnSetRNNDescriptor_v6(
    handle: Handle,
    rnnDesc: Handle,
    hiddenSize: int,
    numLayers: int,
    dropoutDesc: Handle,
    inputMode: int,
    direction: int,
    mode: int,
    algo: int,
    mathPrec: int,
) -> None:
    """cudnnSetRNNDescriptor_v8 with two biases, no projection and packed sequences.

    Version 6 took the input size and the data type from the first input descriptor: until then `hiddenSize`
    and `mathPrec` take their places; cudnnGetRNNParamsSize and the two space sizes set them.
    """
    _set_v8(
        rnnDesc,
        (algo, mode, direction, inputMode),
        (mathPrec, mathPrec),
        (hiddenSize, hiddenSize, numLayers),
        dropoutDesc,
    )


def _set_v8(
    rnnDesc: Handle,
    kinds: tuple[int, int, int, int],
    types: tuple[int, int],
    sizes: tuple[int, int, int],
    dropoutDesc: Handle,
) -> None:
    algo, cell, direction, input_mode = kinds
    data_type, precision = types
    input_size, hidden, layers = sizes
    math = cudnn.CUDNN_TENSOR_OP_MATH if data_type == cudnn.CUDNN_DATA_HALF else cudnn.CUDNN_DEFAULT_MATH
    cudnn.cudnnSetRNNDescriptor_v8(
        rnnDesc,
        algo,
        cell,
        cudnn.CUDNN_RNN_DOUBLE_BIAS,
        direction,
        input_mode,
        data_type,
        precision,
        math,
        input_size,
        hidden,
        hidden,
        layers,
        dropoutDesc,
        cudnn.CUDNN_RNN_PADDED_IO_DISABLED,
    )


def cudnnGetRNNDescriptor_v6(handle: Handle, rnnDesc: Handle) -> cudnnGetRNNDescriptor_v6_result:
    """The part of cudnnGetRNNDescriptor_v8 that version 6 had."""
    now = cudnn.cudnnGetRNNDescriptor_v8(rnnDesc)
    return cudnnGetRNNDescriptor_v6_result(
        now.hiddenSize,
        now.numLayers,
        now.dropoutDesc,
        now.inputMode,
        now.dirMode,
        now.cellMode,
        now.algo,
        now.mathPrec,
    )


def _complete(rnnDesc: Handle, xDesc: Handle, dataType: int | None = None) -> tuple[int, int]:
    """Set the RNN descriptor's input size and type; returns (batch, input size) of `xDesc`."""
    shape = cudnn.cudnnGetTensorNdDescriptor(xDesc, 3)
    batch, size = shape.dimA[:2]
    kind = int(shape.dataType if dataType is None else dataType)
    now = cudnn.cudnnGetRNNDescriptor_v8(rnnDesc)
    if (now.inputSize, now.dataType) != (size, kind):
        _set_v8(
            rnnDesc,
            (now.algo, now.cellMode, now.dirMode, now.inputMode),
            (kind, now.mathPrec),
            (size, now.hiddenSize, now.numLayers),
            now.dropoutDesc,
        )
    return batch, size


def sequence_lengths(batches: Sequence[int]) -> list[int]:
    """Length of each sequence from the number of active ones at each step: [3, 2] -> [2, 2, 1]."""
    return [sum(batch > sequence for batch in batches) for sequence in range(batches[0] if batches else 0)]


def cudnnGetRNNParamsSize(handle: Handle, rnnDesc: Handle, xDesc: Handle, dataType: int) -> Size:
    """Bytes of all weights: cudnnGetRNNWeightSpaceSize with the input size of `xDesc` (batch, size, 1)."""
    _complete(rnnDesc, xDesc, dataType)
    return Size(cudnn.cudnnGetRNNWeightSpaceSize(handle, rnnDesc))


def _space_sizes(handle: Handle, rnnDesc: Handle, seqLength: int, xDesc: Sequence[Handle]) -> tuple[int, int]:
    """(workspace, reserve) bytes for training on packed sequences, one descriptor per time step."""
    steps = [_complete(rnnDesc, desc) for desc in xDesc[:seqLength]]
    if len(steps) != seqLength or not steps:
        raise ValueError(f"`xDesc` has {len(xDesc)} descriptors, seqLength={seqLength} are read")
    batches, size = [batch for batch, _ in steps], steps[0][1]
    kind = cudnn.cudnnGetRNNDescriptor_v8(rnnDesc).dataType
    data = cudnn.cudnnCreateRNNDataDescriptor()
    try:
        packed = cudnn.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED
        lengths = sequence_lengths(batches)
        cudnn.cudnnSetRNNDataDescriptor(data, kind, packed, seqLength, batches[0], size, lengths, None)
        sizes = cudnn.cudnnGetRNNTempSpaceSizes(handle, rnnDesc, cudnn.CUDNN_FWD_MODE_TRAINING, data)
        return sizes.workSpaceSize, sizes.reserveSpaceSize
    finally:
        cudnn.cudnnDestroyRNNDataDescriptor(data)


def cudnnGetRNNWorkspaceSize(
    handle: Handle, rnnDesc: Handle, seqLength: int, xDesc: Sequence[Handle]
) -> Size:
    """Bytes of workspace for training and inference: cudnnGetRNNTempSpaceSizes."""
    return Size(_space_sizes(handle, rnnDesc, seqLength, xDesc)[0])


def cudnnGetRNNTrainingReserveSize(
    handle: Handle, rnnDesc: Handle, seqLength: int, xDesc: Sequence[Handle]
) -> Size:
    """Bytes of reserve space for training: cudnnGetRNNTempSpaceSizes."""
    return Size(_space_sizes(handle, rnnDesc, seqLength, xDesc)[1])
