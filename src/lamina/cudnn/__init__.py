"""Floor 2, machine: objects over cuDNN's graph API. Knows addresses and streams as ints; knows no ops.

`Graph` builds a graph and gives plans; the descriptors below it can be used on their own. Plans are made for
a `Handle` (a GPU that is there) or for `DeviceProperties` (one that a file describes).
"""

from lamina._lazy import listing
from lamina.cudnn.attention import (
    AttentionBackward,
    AttentionForward,
    BandMatrixContract,
    BandMatrixExpand,
    DiagonalBandMask,
    PagedCacheLoad,
    RopeBackward,
    RopeForward,
    Softmax,
)
from lamina.cudnn.builder import Operations, packed_strides
from lamina.cudnn.convolution import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    ConvolutionForward,
)
from lamina.cudnn.database import DatabaseError, PlanDatabase, database_of, database_of_kin, read_database
from lamina.cudnn.descriptor import DATA_TYPES, Attribute, Descriptor, data_type
from lamina.cudnn.device import DeviceProperties, device_properties
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
    knob_name,
    note,
    note_filter,
)
from lamina.cudnn.explain import Explanation, Rewrite, Verdict
from lamina.cudnn.faults import known_wrong
from lamina.cudnn.finalize import Scout, scouted_target
from lamina.cudnn.graph import Graph, NoPlanError
from lamina.cudnn.handle import Handle, handle_of
from lamina.cudnn.matmul import Matmul, MatmulOperation, MoeGroupedMatmul, MoeGroupedMatmulBackward
from lamina.cudnn.norm import NormBackward, NormForward
from lamina.cudnn.plan import ExecutionPlan, KernelCache, VariantPack
from lamina.cudnn.pointwise import Pointwise, PointwiseOperation
from lamina.cudnn.quantize import BlockScaleDequantize, BlockScaleQuantize
from lamina.cudnn.random import Rng, RngOperation
from lamina.cudnn.reduction import Reduction, ReductionOperation
from lamina.cudnn.resample import Resample, ResampleBackward, ResampleForward
from lamina.cudnn.shape import Concatenate, Reshape, Signal, Slice, Transpose
from lamina.cudnn.statistics import BnBackwardWeights, BnFinalize, GenStats
from lamina.cudnn.store import Choice, PlanStore, StoredChoice, plan_store
from lamina.cudnn.tensor import Tensor

__all__ = [
    "DATA_TYPES",
    "AttentionBackward",
    "AttentionForward",
    "Attribute",
    "BandMatrixContract",
    "BandMatrixExpand",
    "BehaviorNote",
    "BlockScaleDequantize",
    "BlockScaleQuantize",
    "BnBackwardWeights",
    "BnFinalize",
    "Candidates",
    "Choice",
    "Concatenate",
    "Convolution",
    "ConvolutionBackwardData",
    "ConvolutionBackwardFilter",
    "ConvolutionForward",
    "DatabaseError",
    "Descriptor",
    "DeviceProperties",
    "DiagonalBandMask",
    "Engine",
    "EngineConfig",
    "ExecutionPlan",
    "Explanation",
    "GenStats",
    "Graph",
    "Handle",
    "Heuristics",
    "KernelCache",
    "Key",
    "KnobChoice",
    "KnobInfo",
    "Matmul",
    "MatmulOperation",
    "MoeGroupedMatmul",
    "MoeGroupedMatmulBackward",
    "NoPlanError",
    "NormBackward",
    "NormForward",
    "NumericalNote",
    "OperationGraph",
    "Operations",
    "PagedCacheLoad",
    "PlanDatabase",
    "PlanStore",
    "Pointwise",
    "PointwiseOperation",
    "Reduction",
    "ReductionOperation",
    "Resample",
    "ResampleBackward",
    "ResampleForward",
    "Reshape",
    "Rewrite",
    "Rng",
    "RngOperation",
    "RopeBackward",
    "RopeForward",
    "Scout",
    "Signal",
    "Slice",
    "Softmax",
    "StoredChoice",
    "Target",
    "Tensor",
    "Transpose",
    "VariantPack",
    "Verdict",
    "data_type",
    "database_of",
    "database_of_kin",
    "device_properties",
    "handle_of",
    "key_text",
    "knob_name",
    "known_wrong",
    "note",
    "note_filter",
    "packed_strides",
    "plan_store",
    "read_database",
    "scouted_target",
]
__dir__ = listing(__all__)
