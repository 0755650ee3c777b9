"""The imperative API of cuDNN 9 as objects: one class per descriptor, operations as methods.

    handle = Handle("cuda:0")
    x_desc = TensorDescriptor((64, 128, 112, 112), data_type="float16", format="nchw")
    w_desc = FilterDescriptor((128, 128, 7, 7), data_type="float16")
    convolution = Convolution(pad=3, math_type="tensor_op")
    y_desc = convolution.output(x_desc, w_desc)
    convolution.forward(handle, x_desc=x_desc, x=x, w_desc=w_desc, w=w, y_desc=y_desc, y=y)

Memory is whatever points to some: a Buffer, an int, an array of CuPy, PyTorch, JAX or Numba. Nothing is copied
and nothing is waited for: work is queued on the handle's stream. What the installed library refuses comes as
its typed error (`lamina.c.errors`).
"""

from lamina._lazy import listing
from lamina.cudnn.legacy.activation import Activation, ActivationSettings
from lamina.cudnn.legacy.algorithms import NAMED, Algorithm, algorithm
from lamina.cudnn.legacy.arrays import on_arrays
from lamina.cudnn.legacy.attention import AttentionSettings, MultiHeadAttention
from lamina.cudnn.legacy.attention_weights import AttentionLayout
from lamina.cudnn.legacy.base import ClosedError, Descriptor, Memory
from lamina.cudnn.legacy.batchnorm import (
    MIN_EPSILON,
    BatchNorm,
    BatchNormEx,
    BatchNormExSettings,
    BatchNormSettings,
)
from lamina.cudnn.legacy.causal import (
    CausalConvolution,
    FFTCausalConvolution,
    GatedCausalConvolution,
    LongFFTCausalConvolution,
)
from lamina.cudnn.legacy.convolution import Convolution, ConvolutionSettings, FoldedBackwardData
from lamina.cudnn.legacy.ctc import CTCLoss, CTCLossSettings
from lamina.cudnn.legacy.deconvolution import Deconvolution
from lamina.cudnn.legacy.dropout import Dropout, DropoutSettings, DropoutState
from lamina.cudnn.legacy.filter import FilterDescriptor, FilterSettings
from lamina.cudnn.legacy.flags import (
    ActivationMode,
    BackwardDataAlgo,
    BackwardFilterAlgo,
    BatchNormMode,
    BatchNormOps,
    ConvolutionMode,
    CTCAlgorithm,
    CTCGradient,
    DataType,
    Determinism,
    DivisiveMode,
    ErrorQuery,
    FoldingDirection,
    ForwardAlgo,
    IndicesType,
    LossNormalization,
    LRNMode,
    MathType,
    NanPropagation,
    NormAlgo,
    NormMode,
    NormOps,
    PoolingMode,
    Preference,
    ReduceIndices,
    ReduceOp,
    ReorderType,
    SamplerType,
    SoftmaxAlgorithm,
    SoftmaxMode,
    Status,
    TensorFormat,
    TensorOp,
    flag,
    members,
    short,
)
from lamina.cudnn.legacy.graphnet import Aggregation, CSCGraph, GraphAttention
from lamina.cudnn.legacy.handles import Handle, Handles, handle_for
from lamina.cudnn.legacy.lrn import LRN, LRNSettings
from lamina.cudnn.legacy.normalization import Normalization, NormalizationSettings, NormTensors
from lamina.cudnn.legacy.optensor import OpTensor, OpTensorSettings
from lamina.cudnn.legacy.pooling import Pooling, PoolingSettings
from lamina.cudnn.legacy.reduce import ReduceSettings, ReduceTensor
from lamina.cudnn.legacy.rnn import (
    RNN,
    RNNAlgorithm,
    RNNBias,
    RNNCell,
    RNNInput,
    RNNSettings,
)
from lamina.cudnn.legacy.rnn_data import RNNData, RNNDataSettings, RNNLayout
from lamina.cudnn.legacy.rnn_search import RNNPerformance, search_rnn
from lamina.cudnn.legacy.rnn_weights import WeightLayout
from lamina.cudnn.legacy.search import Choices, Found, Search, fitting
from lamina.cudnn.legacy.sequence import SequenceData, SequenceSettings
from lamina.cudnn.legacy.softmax import Softmax, SoftmaxSettings
from lamina.cudnn.legacy.spatial import SpatialTransformer, SpatialTransformerSettings
from lamina.cudnn.legacy.tensor import TensorDescriptor, TensorSettings
from lamina.cudnn.legacy.transform import (
    TensorTransform,
    TransformSettings,
    add_tensor,
    scale_tensor,
    set_tensor,
    transform_tensor,
)
from lamina.runtime import stream_address

__all__ = [
    "LRN",
    "MIN_EPSILON",
    "NAMED",
    "RNN",
    "Activation",
    "ActivationMode",
    "ActivationSettings",
    "Aggregation",
    "Algorithm",
    "AttentionLayout",
    "AttentionSettings",
    "BackwardDataAlgo",
    "BackwardFilterAlgo",
    "BatchNorm",
    "BatchNormEx",
    "BatchNormExSettings",
    "BatchNormMode",
    "BatchNormOps",
    "BatchNormSettings",
    "CSCGraph",
    "CTCAlgorithm",
    "CTCGradient",
    "CTCLoss",
    "CTCLossSettings",
    "CausalConvolution",
    "Choices",
    "ClosedError",
    "Convolution",
    "ConvolutionMode",
    "ConvolutionSettings",
    "DataType",
    "Deconvolution",
    "Descriptor",
    "Determinism",
    "DivisiveMode",
    "Dropout",
    "DropoutSettings",
    "DropoutState",
    "ErrorQuery",
    "FFTCausalConvolution",
    "FilterDescriptor",
    "FilterSettings",
    "FoldedBackwardData",
    "FoldingDirection",
    "ForwardAlgo",
    "Found",
    "GatedCausalConvolution",
    "GraphAttention",
    "Handle",
    "Handles",
    "IndicesType",
    "LRNMode",
    "LRNSettings",
    "LongFFTCausalConvolution",
    "LossNormalization",
    "MathType",
    "Memory",
    "MultiHeadAttention",
    "NanPropagation",
    "NormAlgo",
    "NormMode",
    "NormOps",
    "NormTensors",
    "Normalization",
    "NormalizationSettings",
    "OpTensor",
    "OpTensorSettings",
    "Pooling",
    "PoolingMode",
    "PoolingSettings",
    "Preference",
    "RNNAlgorithm",
    "RNNBias",
    "RNNCell",
    "RNNData",
    "RNNDataSettings",
    "RNNInput",
    "RNNLayout",
    "RNNPerformance",
    "RNNSettings",
    "ReduceIndices",
    "ReduceOp",
    "ReduceSettings",
    "ReduceTensor",
    "ReorderType",
    "SamplerType",
    "Search",
    "SequenceData",
    "SequenceSettings",
    "Softmax",
    "SoftmaxAlgorithm",
    "SoftmaxMode",
    "SoftmaxSettings",
    "SpatialTransformer",
    "SpatialTransformerSettings",
    "Status",
    "TensorDescriptor",
    "TensorFormat",
    "TensorOp",
    "TensorSettings",
    "TensorTransform",
    "TransformSettings",
    "WeightLayout",
    "add_tensor",
    "algorithm",
    "fitting",
    "flag",
    "handle_for",
    "members",
    "on_arrays",
    "scale_tensor",
    "search_rnn",
    "set_tensor",
    "short",
    "stream_address",
    "transform_tensor",
]
__dir__ = listing(__all__)
