"""The settings that cuDNN names: enums under short names, found by value, by C name or by short name.

    flag(PoolingMode, "max"), flag(DataType, "float16"), flag(ForwardAlgo, "implicit_gemm"), short(TensorFormat(1))

A flag is the C layer's IntEnum, so that it can be passed to `lamina.c.cudnn` as it is.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar, cast

from lamina.c import cudnn as c
from lamina.c._enum import CEnum
from lamina.cudnn.descriptor import DATA_TYPES, dtype_name

Status: TypeAlias = c.cudnnStatus_t
ErrorQuery: TypeAlias = c.cudnnErrQueryMode_t
DataType: TypeAlias = c.cudnnDataType_t
TensorFormat: TypeAlias = c.cudnnTensorFormat_t
MathType: TypeAlias = c.cudnnMathType_t
NanPropagation: TypeAlias = c.cudnnNanPropagation_t
Determinism: TypeAlias = c.cudnnDeterminism_t
ConvolutionMode: TypeAlias = c.cudnnConvolutionMode_t
ReorderType: TypeAlias = c.cudnnReorderType_t
ForwardAlgo: TypeAlias = c.cudnnConvolutionFwdAlgo_t
BackwardDataAlgo: TypeAlias = c.cudnnConvolutionBwdDataAlgo_t
BackwardFilterAlgo: TypeAlias = c.cudnnConvolutionBwdFilterAlgo_t
ActivationMode: TypeAlias = c.cudnnActivationMode_t
PoolingMode: TypeAlias = c.cudnnPoolingMode_t
SoftmaxAlgorithm: TypeAlias = c.cudnnSoftmaxAlgorithm_t
SoftmaxMode: TypeAlias = c.cudnnSoftmaxMode_t
BatchNormMode: TypeAlias = c.cudnnBatchNormMode_t
BatchNormOps: TypeAlias = c.cudnnBatchNormOps_t
NormMode: TypeAlias = c.cudnnNormMode_t
NormAlgo: TypeAlias = c.cudnnNormAlgo_t
NormOps: TypeAlias = c.cudnnNormOps_t
LRNMode: TypeAlias = c.cudnnLRNMode_t
DivisiveMode: TypeAlias = c.cudnnDivNormMode_t
TensorOp: TypeAlias = c.cudnnOpTensorOp_t
ReduceOp: TypeAlias = c.cudnnReduceTensorOp_t
ReduceIndices: TypeAlias = c.cudnnReduceTensorIndices_t
IndicesType: TypeAlias = c.cudnnIndicesType_t
FoldingDirection: TypeAlias = c.cudnnFoldingDirection_t
SamplerType: TypeAlias = c.cudnnSamplerType_t
CTCAlgorithm: TypeAlias = c.cudnnCTCLossAlgo_t
CTCGradient: TypeAlias = c.cudnnCTCGradMode_t
LossNormalization: TypeAlias = c.cudnnLossNormalizationMode_t


class Preference(IntEnum):
    """What a heuristic search looks for (cuDNN 9 has no such enum any more; its ranked lists are cut by it)."""

    NO_WORKSPACE = 0
    PREFER_FASTEST = 1
    SPECIFY_WORKSPACE_LIMIT = 2


_Flag = TypeVar("_Flag", bound=IntEnum)
Name: TypeAlias = str | int
"""A flag as callers may write it: the member, its value, its C name, or its short name in any case."""

#: What the names of an enum begin with, in C.
PREFIXES: Final[dict[type[IntEnum], str]] = {
    Status: "CUDNN_STATUS_",
    ErrorQuery: "CUDNN_ERRQUERY_",
    DataType: "CUDNN_DATA_",
    TensorFormat: "CUDNN_TENSOR_",
    MathType: "CUDNN_",
    NanPropagation: "CUDNN_",
    Determinism: "CUDNN_",
    ConvolutionMode: "CUDNN_",
    ReorderType: "CUDNN_",
    ForwardAlgo: "CUDNN_CONVOLUTION_FWD_ALGO_",
    BackwardDataAlgo: "CUDNN_CONVOLUTION_BWD_DATA_",
    BackwardFilterAlgo: "CUDNN_CONVOLUTION_BWD_FILTER_",
    ActivationMode: "CUDNN_ACTIVATION_",
    PoolingMode: "CUDNN_POOLING_",
    SoftmaxAlgorithm: "CUDNN_SOFTMAX_",
    SoftmaxMode: "CUDNN_SOFTMAX_MODE_",
    BatchNormMode: "CUDNN_BATCHNORM_",
    BatchNormOps: "CUDNN_BATCHNORM_OPS_",
    NormMode: "CUDNN_NORM_",
    NormAlgo: "CUDNN_NORM_ALGO_",
    NormOps: "CUDNN_NORM_OPS_",
    LRNMode: "CUDNN_LRN_",
    DivisiveMode: "CUDNN_DIVNORM_",
    TensorOp: "CUDNN_OP_TENSOR_",
    ReduceOp: "CUDNN_REDUCE_TENSOR_",
    ReduceIndices: "CUDNN_REDUCE_TENSOR_",
    IndicesType: "CUDNN_",
    FoldingDirection: "CUDNN_TRANSFORM_",
    SamplerType: "CUDNN_SAMPLER_",
    CTCAlgorithm: "CUDNN_CTC_LOSS_ALGO_",
    CTCGradient: "CUDNN_CTC_",
    LossNormalization: "CUDNN_LOSS_NORMALIZATION_",
    Preference: "",
}
#: Endings that add nothing to a short name ("default" for CUDNN_DEFAULT_MATH, "zero" for ..._OOB_GRADIENTS).
_ENDINGS: Final[dict[type[IntEnum], str]] = {
    MathType: "_MATH",
    NanPropagation: "_NAN",
    ReorderType: "_REORDER",
    ReduceIndices: "_INDICES",
    IndicesType: "_INDICES",
    CTCGradient: "_OOB_GRADIENTS",
}
_DATA_TYPE_NAMES: Final = {int(value): name for name, value in DATA_TYPES.items()}


@lru_cache(maxsize=1024, typed=True)  # members of different enums are equal as ints
def short(value: IntEnum) -> str:
    """The short name of a flag: "nhwc", "float16", "clipped_relu", "implicit_gemm", "algo_1".

    Backward algorithms lose the word "algo" where a name follows it: "fft", "winograd_nonfused".
    """
    kind = type(value)
    if kind is DataType and int(value) in _DATA_TYPE_NAMES:
        return _DATA_TYPE_NAMES[int(value)]
    name = value.name.removeprefix(PREFIXES.get(kind, "")).removesuffix(_ENDINGS.get(kind, ""))
    if kind in (BackwardDataAlgo, BackwardFilterAlgo) and not name[-1].isdigit():
        name = name.removeprefix("ALGO_")
    return name.lower()


@lru_cache(maxsize=64)
def _names(kind: type[IntEnum]) -> dict[str, IntEnum]:
    """Every lower-case name that a member answers to."""
    found: dict[str, IntEnum] = {}
    for name, member in kind.__members__.items():
        found[name.lower()] = found[name.removeprefix(PREFIXES[kind]).lower()] = member
        found[short(member)] = member
    return found


@lru_cache(maxsize=1024)
def _flag(kind: type[IntEnum], value: Name) -> IntEnum:
    if isinstance(value, str):
        found = _names(kind).get(value.lower())
        if found is None:
            known = ", ".join(dict.fromkeys(short(member) for member in kind))
            raise ValueError(f"{kind.__name__}: no {value!r}; there are {known}")
        return found
    return kind(value)


def flag(kind: type[_Flag], value: Name) -> _Flag:
    """The member of the enum `kind` that `value` means.

    Args:
        kind: one of the enums of this module.
        value: a member, a number, a C name ("CUDNN_POOLING_MAX"), or a short name ("max"), in any case; of element
            types also a dtype of NumPy, PyTorch or Lamina.

    Raises:
        ValueError: no such name; the text lists those there are. A number that the header does not know
            passes (the library may be newer), and the library judges it.
    """
    if type(value) is kind:
        return value
    if kind is DataType:
        value = dtype_name(value) or value
    if not isinstance(value, (str, int)) or isinstance(value, (bool, IntEnum)):
        raise TypeError(f"{kind.__name__}: one of its members, a name or a number is wanted, got {value!r}")
    return cast(_Flag, _flag(kind, value))


def members(kind: type[CEnum]) -> tuple[str, ...]:
    """The short names of an enum's members, in order; counters ("..._COUNT") are no members."""
    return tuple(dict.fromkeys(short(m) for m in kind if not m.name.endswith("_COUNT")))
