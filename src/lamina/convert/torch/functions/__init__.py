"""Lamina's ops as PyTorch functions: how `to_torch` writes networks.

Each op is written by a function in the module of its family, registered by `writes`. It calls PyTorch's functions on
the operands' representations: on proxies of torch.fx they are recorded, on tensors they run.
"""

from lamina._lazy import listing
from lamina.convert.torch.functions import (
    conv,
    decompose,
    image,
    indexing,
    loss,
    matmul,
    norm,
    pointwise,
    reduction,
    rnn,
    shape,
)
from lamina.convert.torch.functions.step import TorchStep, refusal, refuses, torch_dtype, writer_of, writes

#: The modules whose functions fill the tables.
FAMILIES = (conv, decompose, image, indexing, loss, matmul, norm, pointwise, reduction, rnn, shape)

__all__ = [
    "FAMILIES",
    "TorchStep",
    "refusal",
    "refuses",
    "torch_dtype",
    "writer_of",
    "writes",
]
__dir__ = listing(__all__)
