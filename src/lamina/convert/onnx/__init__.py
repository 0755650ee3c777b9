"""ONNX models (https://onnx.ai) as programs of Lamina's ops: on tensors they compute, on traced values they record.

    net = from_onnx("net.onnx")                   # a network: Predictor(net), train_step(net, …), net.state_dict()
    graph = OnnxGraph(onnx.load("net.onnx"))
    outputs = graph({"image": x})                 # tensors in, tensors out
    recorded = graph.trace({"image": Spec(...)})  # a lamina.graph.Graph of the same nodes

Each operator of ONNX has a handler, a function of an `OnnxNode`, in the module of its family; `converts` registers it
in `HANDLERS`. Handlers get the numbers that they need (axes, sizes, pads) from the node (`OnnxNode.integers`):
tensors and constants have known values, a traced input raises an `UnknownValueError` that names it.

Needs the package `onnx` (`pip install 'lamina[onnx]'`), which reads the files.
"""

from lamina._lazy import listing
from lamina.convert.onnx import (
    attention,
    control,
    conv,
    image,
    indexing,
    linear_attention,
    loss,
    matmul,
    norm,
    pointwise,
    pool,
    quantize,
    random,
    reduction,
    rnn,
    sequence,
    shape,
    signal,
    softmax,
    tabular,
    text,
    update,
)
from lamina.convert.onnx.contrib import attention as contrib_attention
from lamina.convert.onnx.contrib import conv as contrib_conv
from lamina.convert.onnx.contrib import matmul as contrib_matmul
from lamina.convert.onnx.contrib import norm as contrib_norm
from lamina.convert.onnx.contrib import pointwise as contrib_pointwise
from lamina.convert.onnx.contrib import quantize as contrib_quantize
from lamina.convert.onnx.contrib import shape as contrib_shape
from lamina.convert.onnx.graph import OnnxGraph
from lamina.convert.onnx.module import OnnxModule, from_onnx
from lamina.convert.onnx.node import HANDLERS, OnnxError, OnnxNode, UnknownValueError

#: The modules whose handlers fill `HANDLERS`.
FAMILIES = (
    attention, control, conv, image, indexing, linear_attention, loss, matmul, norm, pointwise, pool, quantize,
    random, reduction, rnn, sequence, shape, signal, softmax, tabular, text, update,
    contrib_attention, contrib_conv, contrib_matmul, contrib_norm, contrib_pointwise, contrib_quantize, contrib_shape,
)  # fmt: skip

__all__ = [
    "FAMILIES",
    "HANDLERS",
    "OnnxError",
    "OnnxGraph",
    "OnnxModule",
    "OnnxNode",
    "UnknownValueError",
    "from_onnx",
]
__dir__ = listing(__all__)
