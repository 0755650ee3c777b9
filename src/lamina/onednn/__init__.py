"""Floor 2: oneDNN as objects over the C API (`lamina.c.dnnl`).

    from lamina import onednn

    x = onednn.MemoryDesc((8, 3, 32, 32), "f32")
    y = onednn.MemoryDesc((8, 3, 32, 32), "f32")
    desc = onednn.eltwise_forward("relu", x, y)
    relu = onednn.Primitive(desc)
    relu.execute({onednn.ARG.SRC: onednn.Memory(x, address), onednn.ARG.DST: onednn.Memory(y, address)})

Every object owns its handle from birth; `close()` is idempotent and objects may be closed in any order.
Descriptors, attributes and primitives may be shared by threads once made; a memory is for one call at a time.
"""

from lamina._lazy import listing
from lamina.onednn import arguments as ARG  # noqa: N812
from lamina.onednn.attributes import (
    Attributes,
    Binary,
    Eltwise,
    PostOp,
    Sum,
    post_op_argument,
    scale_argument,
)
from lamina.onednn.engine import Engine, Stream, available, default_engine, default_stream
from lamina.onednn.memory import Memory, MemoryDesc
from lamina.onednn.primitive import Primitive, PrimitiveDesc
from lamina.onednn.primitives import (
    Gru,
    Lstm,
    SlidingWindow,
    batch_normalization_backward,
    batch_normalization_forward,
    binary,
    concat,
    convolution_backward_data,
    convolution_backward_weights,
    convolution_forward,
    eltwise_backward,
    eltwise_forward,
    inner_product_backward_data,
    inner_product_backward_weights,
    inner_product_forward,
    layer_normalization_backward,
    layer_normalization_forward,
    lbr_gru_forward,
    lrn_forward,
    lstm_backward,
    lstm_forward,
    matmul,
    pooling_backward,
    pooling_forward,
    reduction,
    reorder,
    softmax_backward,
    softmax_forward,
    weighted_sum,
)

__all__ = [
    "ARG",
    "Attributes",
    "Binary",
    "Eltwise",
    "Engine",
    "Gru",
    "Lstm",
    "Memory",
    "MemoryDesc",
    "PostOp",
    "Primitive",
    "PrimitiveDesc",
    "SlidingWindow",
    "Stream",
    "Sum",
    "available",
    "batch_normalization_backward",
    "batch_normalization_forward",
    "binary",
    "concat",
    "convolution_backward_data",
    "convolution_backward_weights",
    "convolution_forward",
    "default_engine",
    "default_stream",
    "eltwise_backward",
    "eltwise_forward",
    "inner_product_backward_data",
    "inner_product_backward_weights",
    "inner_product_forward",
    "layer_normalization_backward",
    "layer_normalization_forward",
    "lbr_gru_forward",
    "lrn_forward",
    "lstm_backward",
    "lstm_forward",
    "matmul",
    "pooling_backward",
    "pooling_forward",
    "post_op_argument",
    "reduction",
    "reorder",
    "scale_argument",
    "softmax_backward",
    "softmax_forward",
    "weighted_sum",
]
__dir__ = listing(__all__)
