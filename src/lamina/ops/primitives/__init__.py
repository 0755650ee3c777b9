"""The op classes. Each family's file holds the classes and the functions that `lamina.ops` exports.

Classes not listed here are found by the op registry once their family is imported.
"""

from typing import TYPE_CHECKING, Any

from lamina.ops.core import REGISTRY
from lamina.ops.primitives.attention import Attention, AttentionGrad
from lamina.ops.primitives.boxes import KeepBoxes, RoiAlign, RoiAlignGrad
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.check_index import CheckIndex
from lamina.ops.primitives.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Exchange,
    ReduceScatter,
)
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.ctc import CtcLoss, CtcLossGrad
from lamina.ops.primitives.decompose import SingularValues, SymmetricEigen
from lamina.ops.primitives.determinant import Cofactors, Determinant
from lamina.ops.primitives.diagonal import Diagonal
from lamina.ops.primitives.dropout import Dropout, DropoutGrad, DropoutMask
from lamina.ops.primitives.elementary import BinaryFunction, Polygamma, UnaryFunction
from lamina.ops.primitives.embedding import Embedding, EmbeddingGrad
from lamina.ops.primitives.embedding_bag import BagMax, BagSpread, BagSum, EmbeddingSum
from lamina.ops.primitives.factorize import CholeskyFactor, LinearSolve, LogDeterminant, TriangularSolve
from lamina.ops.primitives.fold import Col2im, Im2col
from lamina.ops.primitives.foreach import Foreach
from lamina.ops.primitives.full_like import FullLike
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.gather import Gather, GatherGrad, Scatter
from lamina.ops.primitives.grid_sample import GridSample, GridSampleGrad, GridSampleGridGrad
from lamina.ops.primitives.loss import CrossEntropy, CrossEntropyGrad, LabelledMean
from lamina.ops.primitives.lrn import LocalResponseNorm, LocalResponseNormGrad
from lamina.ops.primitives.map_axes import MapAxes
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.nll_loss import NllLoss, NllLossGrad
from lamina.ops.primitives.norm import (
    BatchNorm,
    BatchNormGrad,
    BatchNormInfer,
    GroupNorm,
    GroupNormGrad,
    LayerNorm,
    LayerNormGrad,
    RmsNorm,
    RmsNormGrad,
)
from lamina.ops.primitives.pointwise import (
    Abs,
    Add,
    Ceil,
    ClippedRelu,
    ClippedReluGrad,
    Cos,
    Div,
    Elu,
    Eq,
    Erf,
    Exp,
    Floor,
    Ge,
    Gelu,
    GeluGrad,
    GeluTanh,
    Gt,
    HardSwish,
    Identity,
    Le,
    LeakyRelu,
    Log,
    LogicalAnd,
    LogicalNot,
    LogicalOr,
    Lt,
    Maximum,
    Minimum,
    Mul,
    Ne,
    Neg,
    Pow,
    Reciprocal,
    Relu,
    ReluGrad,
    Rsqrt,
    Sigmoid,
    SigmoidGrad,
    Sign,
    Silu,
    SiluGrad,
    Sin,
    Softplus,
    Sqrt,
    Sub,
    Tan,
    Tanh,
    TanhGrad,
    Where,
)
from lamina.ops.primitives.pool import AvgPool, AvgPoolGrad, MaxPool, MaxPoolGather, MaxPoolGrad
from lamina.ops.primitives.qr import CompleteOrthogonalFactor, OrthogonalFactor, TriangularFactor
from lamina.ops.primitives.quantize import Dequantize, Quantize, QuantizedConv, QuantizedMatmul
from lamina.ops.primitives.random import RandomNormal, RandomUniform
from lamina.ops.primitives.reduce import ArgMax, ArgMin, Reduce
from lamina.ops.primitives.region_pool import RegionMax
from lamina.ops.primitives.rnn import Rnn, RnnGrad
from lamina.ops.primitives.scan import Scan
from lamina.ops.primitives.search import SearchSorted
from lamina.ops.primitives.sequence import TakeRows
from lamina.ops.primitives.shape import After, Concat, Expand, Flip, Pad, Reshape, Slice, Transpose
from lamina.ops.primitives.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from lamina.ops.primitives.sort import Sort
from lamina.ops.primitives.spectral import ShortTimeSpectra
from lamina.ops.primitives.update import AdamUpdate, SgdUpdate
from lamina.ops.primitives.update_rules import LambUpdate
from lamina.ops.primitives.window import Window

__all__ = [
    "Abs",
    "AdamUpdate",
    "Add",
    "After",
    "AllGather",
    "AllReduce",
    "AllToAll",
    "ArgMax",
    "ArgMin",
    "Attention",
    "AttentionGrad",
    "AvgPool",
    "AvgPoolGrad",
    "BagMax",
    "BagSpread",
    "BagSum",
    "BatchNorm",
    "BatchNormGrad",
    "BatchNormInfer",
    "BinaryFunction",
    "Broadcast",
    "Cast",
    "Ceil",
    "CheckIndex",
    "CholeskyFactor",
    "ClippedRelu",
    "ClippedReluGrad",
    "Cofactors",
    "Col2im",
    "CompleteOrthogonalFactor",
    "Concat",
    "Conv",
    "ConvDataGrad",
    "ConvFilterGrad",
    "Cos",
    "CrossEntropy",
    "CrossEntropyGrad",
    "CtcLoss",
    "CtcLossGrad",
    "Dequantize",
    "Determinant",
    "Diagonal",
    "Div",
    "Dropout",
    "DropoutGrad",
    "DropoutMask",
    "Elu",
    "Embedding",
    "EmbeddingGrad",
    "EmbeddingSum",
    "Eq",
    "Erf",
    "Exchange",
    "Exp",
    "Expand",
    "Flip",
    "Floor",
    "Foreach",
    "FullLike",
    "Fused",
    "FusedElementwise",
    "Gather",
    "GatherGrad",
    "Ge",
    "Gelu",
    "GeluGrad",
    "GeluTanh",
    "GridSample",
    "GridSampleGrad",
    "GridSampleGridGrad",
    "GroupNorm",
    "GroupNormGrad",
    "Gt",
    "HardSwish",
    "Identity",
    "Im2col",
    "KeepBoxes",
    "LabelledMean",
    "LambUpdate",
    "LayerNorm",
    "LayerNormGrad",
    "Le",
    "LeakyRelu",
    "LinearSolve",
    "LocalResponseNorm",
    "LocalResponseNormGrad",
    "Log",
    "LogDeterminant",
    "LogSoftmax",
    "LogSoftmaxGrad",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Lt",
    "MapAxes",
    "Matmul",
    "MaxPool",
    "MaxPoolGather",
    "MaxPoolGrad",
    "Maximum",
    "Minimum",
    "Mul",
    "Ne",
    "Neg",
    "NllLoss",
    "NllLossGrad",
    "OrthogonalFactor",
    "Pad",
    "PivotedFactor",
    "Polygamma",
    "Pow",
    "Quantize",
    "QuantizedConv",
    "QuantizedMatmul",
    "RandomNormal",
    "RandomUniform",
    "Reciprocal",
    "Reduce",
    "ReduceScatter",
    "RegionMax",
    "Relu",
    "ReluGrad",
    "Reshape",
    "RmsNorm",
    "RmsNormGrad",
    "Rnn",
    "RnnGrad",
    "RoiAlign",
    "RoiAlignGrad",
    "RowOrder",
    "Rsqrt",
    "Scan",
    "Scatter",
    "SearchSorted",
    "SgdUpdate",
    "ShortTimeSpectra",
    "Sigmoid",
    "SigmoidGrad",
    "Sign",
    "Silu",
    "SiluGrad",
    "Sin",
    "SingularValues",
    "Slice",
    "Softmax",
    "SoftmaxGrad",
    "Softplus",
    "Sort",
    "Sqrt",
    "Sub",
    "SymmetricEigen",
    "TakeRows",
    "Tan",
    "Tanh",
    "TanhGrad",
    "Transpose",
    "TriangularFactor",
    "TriangularSolve",
    "UnaryFunction",
    "Where",
    "Window",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """An op class of a family by name. Raises AttributeError."""
        for op_class in REGISTRY.values():
            if op_class.__name__ == name and op_class.__module__.startswith(f"{__name__}."):
                return op_class
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
