"""ONNX models from networks, functions and graphs: `lamina.convert.to_onnx`.

Each op is written by a function in the module of its family: `exports` for one that adds ONNX operators to the model,
`composes` for one that expresses the op by other ops. Custom ops are registered the same way.
"""

from lamina._lazy import listing
from lamina.convert.onnx.export import (
    conv,
    image,
    indexing,
    loss,
    matmul,
    norm,
    pointwise,
    pool,
    reduction,
    rnn,
    shape,
)
from lamina.convert.onnx.export.check import CheckError
from lamina.convert.onnx.export.model import to_onnx
from lamina.convert.onnx.export.writer import ExportError, OpExport, composes, exports, how, refuses

#: The modules whose functions fill the tables.
FAMILIES = (conv, image, indexing, loss, matmul, norm, pointwise, pool, reduction, rnn, shape)

__all__ = [
    "FAMILIES",
    "CheckError",
    "ExportError",
    "OpExport",
    "composes",
    "exports",
    "how",
    "refuses",
    "to_onnx",
]
__dir__ = listing(__all__)
