"""Engines of the library that are known to give wrong results, or not to terminate.

Found by running every engine of a graph on whole numbers, whose results are exact, against plain sums (cuDNN 9.19.0,
compute capability 9.0; `tests/cudnn/test_gpu_faults.py` does it again). Convolutions in one operation whose padding
before an axis is not that after it:

    filter gradient   engines 1 and 20 (all types and layouts), 18 and 70 (float32)
    data gradient     engines 50 and 78 (float32)
    forward           engine 5 (float32, one channel a group: filters of 1 x 5 and 1 x 11 over images of one row)

All other engines and even padding are right, whether the filter is flipped or not; but engine 70 is also wrong for
even padding where stride and dilation are both above 1. The imperative API (`lamina.cudnn.legacy`) cannot express
uneven padding, so its algorithms are not affected.

The filter gradient's engine 17 (Winograd's algorithm) is off by 5 in 1,000 for filters of 5 x 5 in float32, as much
as TF32 would be: fewer digits than float32 requires.

Instance norm's gradients of scale and bias by engine 0 miss an image in most runs, as if by a race; engine 2 is
right.

Deterministic reductions behind a batched matrix product do not terminate with engine 1, the only one that accepts
them. Blocks that reduce the same rows (or columns) count themselves in a semaphore of the workspace, and the last of
them waits until the count is exactly their number; neither that semaphore nor the partial sums beside it are separate
per matrix (the workspace has the same size for any number of matrices), so that the count may exceed the value waited
for: one run ended, another did not. The kernel's code is the same in cuDNN 9.28. Behind a convolution, and behind a
single matrix, blocks differ only in these two coordinates.

The heuristics name these engines, some of them first. So Lamina filters their results through `known_wrong`; an
engine that is requested by its number is not filtered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from lamina.c import cudnn as c
from lamina.cudnn.convolution import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    ConvolutionForward,
)
from lamina.cudnn.descriptor import Descriptor
from lamina.cudnn.matmul import MatmulOperation
from lamina.cudnn.norm import NormBackward
from lamina.cudnn.reduction import ReductionOperation

#: The library version in which the faults were found; others are assumed to have them until somebody has tested.
FOUND_IN = "9.19.0"


@dataclass(frozen=True)
class Fault:
    """Engines that must not compute some graphs."""

    engines: frozenset[int]

    def what(self, operations: Sequence[Descriptor]) -> str:
        """The engines' fault for a graph of such operations, "" where none is known."""
        raise NotImplementedError

    def reason(self, operations: Sequence[Descriptor], engine: int) -> str:
        """Why an engine must not be used for a graph, "" where no fault is known."""
        what = self.what(operations) if engine in self.engines else ""
        return f"{what} (found in cuDNN {FOUND_IN})" if what else ""


@dataclass(frozen=True)
class WrongNumbers(Fault):
    """Engines that give wrong numbers for one operation. numbers: which."""

    operation: type[Descriptor]
    numbers: str

    def case(self, operation: Any) -> str:
        """The property of an operation that the engines get wrong, "" where none is known."""
        raise NotImplementedError

    def what(self, operations: Sequence[Descriptor]) -> str:
        """Wrong numbers; engines of graphs of several operations are numbered otherwise."""
        if len(operations) != 1 or type(operations[0]) is not self.operation:
            return ""
        case = self.case(operations[0])
        return f"gives wrong {self.numbers} for {case}" if case else ""


@dataclass(frozen=True)
class UnevenPadding(WrongNumbers):
    """Wrong where the padding before an axis differs from that after it.

    strided: also for even padding where a stride and a dilation are above 1. depthwise: only with several groups of
        one channel each.
    """

    strided: bool = False
    depthwise: bool = False

    def case(self, operation: Any) -> str:
        """Uneven padding, or strides with dilation."""
        if self.depthwise and not _is_depthwise(operation):
            return ""
        window: Convolution = operation.values["convolution"]
        values = window.values
        stride, dilation = values["stride"], values["dilation"]
        if values["pre"] != values["post"]:
            return f"padding {values['pre']} before and {values['post']} after"
        if self.strided and max(stride) > 1 and max(dilation) > 1:
            return f"stride {stride} with dilation {dilation}"
        return ""


def _is_depthwise(operation: Any) -> bool:
    x, w = operation.values["x"].dimensions, operation.values["w"].dimensions
    return bool(w[1] == 1 and x[1] > 1)


@dataclass(frozen=True)
class CoarseTransform(WrongNumbers):
    """Too coarse in float32 for filters of some sizes, where a transform takes large tiles."""

    sizes: frozenset[tuple[int, ...]] = frozenset()

    def case(self, operation: Any) -> str:
        """Filters of one of the sizes in float32."""
        filters = operation.values["dw"]
        size, single = filters.dimensions[2:], c.cudnnDataType_t.CUDNN_DATA_FLOAT
        found = tuple(size) in self.sizes and filters.data_type == single
        return f"filters of {' x '.join(map(str, size))} in float32, off by 5 in 1,000" if found else ""


@dataclass(frozen=True)
class InstanceSums(WrongNumbers):
    """Wrong where instance norm sums over several images: some run misses one of them."""

    def case(self, operation: Any) -> str:
        """Instance norm of several images."""
        mode, x = operation.values["mode"], operation.values["x"]
        instance = mode == c.cudnnBackendNormMode_t.CUDNN_INSTANCE_NORM
        return f"instance norm of {x.dimensions[0]} images" if instance and x.dimensions[0] > 1 else ""


@dataclass(frozen=True)
class EndlessReduction(Fault):
    """Does not terminate where a deterministic reduction follows a batched matrix product."""

    def what(self, operations: Sequence[Descriptor]) -> str:
        """A deterministic reduction, and a batched matrix product."""
        reduces = any(_is_deterministic(o) for o in operations if isinstance(o, ReductionOperation))
        products = [o.values["c"].dimensions for o in operations if isinstance(o, MatmulOperation)]
        matrices = max((prod(shape[:-2]) for shape in products), default=0)
        if not reduces or matrices < 2:
            return ""
        return f"does not end for a deterministic reduction behind a product of {matrices} matrices"


def _is_deterministic(operation: ReductionOperation) -> bool:
    return bool(operation.values["reduction"].values.get("deterministic"))


FAULTS: tuple[Fault, ...] = (
    UnevenPadding(frozenset({1, 18, 20}), ConvolutionBackwardFilter, "filter gradients"),
    UnevenPadding(frozenset({70}), ConvolutionBackwardFilter, "filter gradients", strided=True),
    UnevenPadding(frozenset({50, 78}), ConvolutionBackwardData, "data gradients"),
    UnevenPadding(frozenset({5}), ConvolutionForward, "results", depthwise=True),
    CoarseTransform(frozenset({17}), ConvolutionBackwardFilter, "filter gradients", frozenset({(5, 5)})),
    InstanceSums(frozenset({0}), NormBackward, "gradients of scale and bias"),
    EndlessReduction(frozenset({1})),
)


def known_wrong(operations: Sequence[Descriptor], engine: int) -> str:
    """Why an engine must not be used for a graph: its results are wrong, or it does not terminate; "" for all others.

    Heuristics' results are filtered by it (`OperationGraph.configs`, `Graph.plans`, `Graph.autotune`).

    Args:
        operations: of the graph. Engines are numbered for each pattern of operations.
        engine: the engine's number (`Engine.index`).
    """
    return next(filter(None, (fault.reason(operations, engine) for fault in FAULTS)), "")
