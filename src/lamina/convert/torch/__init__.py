"""PyTorch networks as programs of Lamina's ops: on tensors they compute, on traced values they record.

    program = FxProgram(graph_module)     # of torch.export, Dynamo or torch.fx
    program.unknown()                     # the nodes without a counterpart, before anything runs
    outputs, changed = program(x, y)      # tensors in, tensors out; what in-place functions wrote

A PyTorch function maps to the function of `lamina.ops` with its name, whether the graph calls torch's function, the
method or the ATen overload. Functions whose arguments differ, or that write to buffers, have a handler in the module
of their family; `converts` registers it in `HANDLERS`.

Needs PyTorch (`pip install 'lamina[torch]'`).
"""

from lamina._lazy import listing
from lamina.convert.torch import (
    attention,
    control,
    conv,
    deformable,
    factory,
    image,
    linalg,
    loss,
    norm,
    quantize,
    random,
    reduction,
    rnn,
    shape,
)
from lamina.convert.torch.back import to_torch
from lamina.convert.torch.converted import ConvertedModule, from_torch
from lamina.convert.torch.explaining import explain
from lamina.convert.torch.functions import TorchStep, writes
from lamina.convert.torch.interpreter import FxProgram, FxResult
from lamina.convert.torch.node import HANDLERS, TorchCall, TorchConversionError, converts
from lamina.convert.torch.parity import Parity, check
from lamina.convert.torch.report import ConversionReport

#: The modules whose handlers fill `HANDLERS`.
FAMILIES = (
    attention,
    control,
    conv,
    deformable,
    factory,
    image,
    linalg,
    loss,
    norm,
    quantize,
    random,
    reduction,
    rnn,
    shape,
)

__all__ = [
    "FAMILIES",
    "HANDLERS",
    "ConversionReport",
    "ConvertedModule",
    "FxProgram",
    "FxResult",
    "Parity",
    "TorchCall",
    "TorchConversionError",
    "TorchStep",
    "check",
    "converts",
    "explain",
    "from_torch",
    "to_torch",
    "writes",
]  # fmt: skip
__dir__ = listing(__all__)
