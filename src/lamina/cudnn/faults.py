"""Engines of the library that are known to compute something else than they are asked for.

Found by running every engine of a graph on whole numbers, whose results are exact, against plain sums (cuDNN 9.19.0
on an H200; `tests/cudnn/test_gpu_faults.py` does it again). Convolutions in one operation whose padding before an
axis is not that behind it:

    filter gradient   engines 1 and 20 (all types and layouts), 18 and 70 (float32)
    data gradient     engines 50 and 78 (float32)

The forward direction, all other engines and even padding are right, whether the filter is flipped or not; but engine
70 is also wrong for even padding where stride and dilation are both above 1. The imperative API
(`lamina.cudnn.legacy`) cannot say uneven padding, so its algorithms are not concerned.

The heuristics name these engines, some of them first. So what Lamina takes from heuristics is passed through
`known_wrong`; an engine that is asked for by its number is made as asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.cudnn.convolution import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
)
from lamina.cudnn.descriptor import Descriptor

#: The library in which the faults were found; in others they are taken to be there until somebody has looked.
FOUND_IN = "9.19.0"


@dataclass(frozen=True)
class Fault:
    """Engines of one operation that give wrong numbers for uneven padding.

    strided: also for even padding where a stride and a dilation are above 1.
    """

    operation: type[Descriptor]
    what: str
    engines: frozenset[int]
    strided: bool = False

    def reason(self, window: Convolution, engine: int) -> str:
        """Why the engine is not to be used for a window, "" where nothing is known against it."""
        if engine not in self.engines:
            return ""
        values = window.values
        stride, dilation = values["stride"], values["dilation"]
        if values["pre"] != values["post"]:
            case = f"padding {values['pre']} before and {values['post']} behind"
        elif self.strided and max(stride) > 1 and max(dilation) > 1:
            case = f"stride {stride} with dilation {dilation}"
        else:
            return ""
        return f"gives wrong {self.what} for {case} (found in cuDNN {FOUND_IN})"


FAULTS = (
    Fault(ConvolutionBackwardFilter, "filter gradients", frozenset({1, 18, 20})),
    Fault(ConvolutionBackwardFilter, "filter gradients", frozenset({70}), strided=True),
    Fault(ConvolutionBackwardData, "data gradients", frozenset({50, 78})),
)


def known_wrong(operations: Sequence[Descriptor], engine: int) -> str:
    """Why an engine must not be used for a graph because its results are known to be wrong; "" for all others.

    Heuristics' results are passed through it (`OperationGraph.configs`, `Graph.plans`, `Graph.autotune`).

    Args:
        operations: of the graph. Engines are numbered for each pattern of operations; the faults are in graphs
            of one.
        engine: the engine's number (`Engine.index`).
    """
    if len(operations) != 1:
        return ""
    (operation,) = operations
    reasons = (
        fault.reason(operation.values["convolution"], engine)
        for fault in FAULTS
        if type(operation) is fault.operation
    )
    return next(filter(None, reasons), "")
