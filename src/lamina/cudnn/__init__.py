"""Floor 2, machine: objects over cuDNN's graph API. Knows addresses and streams as ints; knows no ops.

`Graph` builds a graph and gives plans; the descriptors below it can be used on their own. Plans are made for
a `Handle` (a GPU that is there) or for `DeviceProperties` (one that a file describes).
"""

from lamina.cudnn.convolution import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    ConvolutionForward,
)
from lamina.cudnn.descriptor import DATA_TYPES, Attribute, Descriptor, data_type
from lamina.cudnn.device import DeviceProperties
from lamina.cudnn.engine import (
    BehaviorNote,
    Candidates,
    Engine,
    EngineConfig,
    Heuristics,
    Key,
    KnobChoice,
    KnobInfo,
    NumericalNote,
    OperationGraph,
    Target,
    key_text,
)
from lamina.cudnn.graph import Graph, NoPlanError
from lamina.cudnn.handle import Handle, handle_of
from lamina.cudnn.matmul import Matmul, MatmulOperation
from lamina.cudnn.plan import ExecutionPlan, VariantPack
from lamina.cudnn.pointwise import Pointwise, PointwiseOperation
from lamina.cudnn.reduction import Reduction, ReductionOperation
from lamina.cudnn.resample import Resample, ResampleBackward, ResampleForward
from lamina.cudnn.tensor import Tensor

__all__ = [
    "DATA_TYPES",
    "Attribute",
    "BehaviorNote",
    "Candidates",
    "Convolution",
    "ConvolutionBackwardData",
    "ConvolutionBackwardFilter",
    "ConvolutionForward",
    "Descriptor",
    "DeviceProperties",
    "Engine",
    "EngineConfig",
    "ExecutionPlan",
    "Graph",
    "Handle",
    "Heuristics",
    "Key",
    "KnobChoice",
    "KnobInfo",
    "Matmul",
    "MatmulOperation",
    "NoPlanError",
    "NumericalNote",
    "OperationGraph",
    "Pointwise",
    "PointwiseOperation",
    "Reduction",
    "ReductionOperation",
    "Resample",
    "ResampleBackward",
    "ResampleForward",
    "Target",
    "Tensor",
    "VariantPack",
    "data_type",
    "handle_of",
    "key_text",
]
