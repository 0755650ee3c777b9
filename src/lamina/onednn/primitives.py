"""One function per primitive: from memory descriptors to the kernel that oneDNN chooses for them.

Descriptors may be "any": the primitive descriptor then says which layout the kernel wants. Every function
raises DnnlUnimplemented when oneDNN has no kernel for the combination and DnnlInvalidArguments when the
sizes do not fit; the message names the operation and its operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lamina.c import dnnl
from lamina.c.errors import DnnlError
from lamina.onednn.attributes import Attributes, binary_kind, eltwise_kind
from lamina.onednn.engine import default_engine
from lamina.onednn.memory import MemoryDesc
from lamina.onednn.primitive import PrimitiveDesc, failed

Dims = Sequence[int]
Algorithm = dnnl.dnnl_alg_kind_t
Prop = dnnl.dnnl_prop_kind_t

PROPAGATION = {"inference": Prop.dnnl_forward_inference, "training": Prop.dnnl_forward_training}
POOLING = {
    "max": Algorithm.dnnl_pooling_max,
    "avg_include_padding": Algorithm.dnnl_pooling_avg_include_padding,
    "avg_exclude_padding": Algorithm.dnnl_pooling_avg_exclude_padding,
}
_NONE = Attributes | None


@dataclass(frozen=True)
class SlidingWindow:
    """How a kernel slides, per spatial axis. A dilation of 0 leaves no gap between two taps."""

    strides: Dims
    dilations: Dims
    padding_l: Dims
    padding_r: Dims

    def __str__(self) -> str:
        pads = f"padding={tuple(self.padding_l)}{tuple(self.padding_r)}"
        return f"strides={tuple(self.strides)} dilations={tuple(self.dilations)} {pads}"


def convolution_forward(
    src: MemoryDesc,
    weights: MemoryDesc,
    bias: MemoryDesc | None,
    dst: MemoryDesc,
    window: SlidingWindow,
    *,
    prop: str = "training",
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """dst = src * weights + bias: dnnl_convolution_forward_primitive_desc_create, direct algorithm.

    Args:
        src: [N, C, *S]. weights: [K, C, *k], or [G, K/G, C/G, *k] with groups. bias: [K]. dst: [N, K, *O].
        window: how the filter slides.
        prop: "inference" or "training".
        attributes: post-ops and the like.
    """

    def create(attr: int) -> int:
        return dnnl.dnnl_convolution_forward_primitive_desc_create(
            default_engine().handle,
            PROPAGATION[prop],
            Algorithm.dnnl_convolution_direct,
            src.handle,
            weights.handle,
            bias.handle if bias else None,
            dst.handle,
            window.strides,
            window.dilations,
            window.padding_l,
            window.padding_r,
            attr,
        )

    text = _text("convolution_forward", attributes, src=src, weights=weights, bias=bias, dst=dst)
    return _made(create, f"{text} {window}", attributes)


def convolution_backward_data(
    diff_src: MemoryDesc,
    weights: MemoryDesc,
    diff_dst: MemoryDesc,
    window: SlidingWindow,
    *,
    hint: PrimitiveDesc,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """The gradient of a convolution's input: dnnl_convolution_backward_data_primitive_desc_create."""

    def create(attr: int) -> int:
        return dnnl.dnnl_convolution_backward_data_primitive_desc_create(
            default_engine().handle,
            Algorithm.dnnl_convolution_direct,
            diff_src.handle,
            weights.handle,
            diff_dst.handle,
            window.strides,
            window.dilations,
            window.padding_l,
            window.padding_r,
            hint.handle,
            attr,
        )

    text = _text(
        "convolution_backward_data", attributes, diff_src=diff_src, weights=weights, diff_dst=diff_dst
    )
    return _made(create, f"{text} {window}", attributes)


def convolution_backward_weights(
    src: MemoryDesc,
    diff_weights: MemoryDesc,
    diff_bias: MemoryDesc | None,
    diff_dst: MemoryDesc,
    window: SlidingWindow,
    *,
    hint: PrimitiveDesc,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """The gradients of filter and bias: dnnl_convolution_backward_weights_primitive_desc_create."""

    def create(attr: int) -> int:
        return dnnl.dnnl_convolution_backward_weights_primitive_desc_create(
            default_engine().handle,
            Algorithm.dnnl_convolution_direct,
            src.handle,
            diff_weights.handle,
            diff_bias.handle if diff_bias else None,
            diff_dst.handle,
            window.strides,
            window.dilations,
            window.padding_l,
            window.padding_r,
            hint.handle,
            attr,
        )

    text = _text(
        "convolution_backward_weights", attributes, src=src, diff_weights=diff_weights, diff_dst=diff_dst
    )
    return _made(create, f"{text} {window}", attributes)


def pooling_forward(
    kind: str,
    src: MemoryDesc,
    dst: MemoryDesc,
    kernel: Dims,
    window: SlidingWindow,
    *,
    prop: str = "training",
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """Pooling: dnnl_pooling_forward_primitive_desc_create. Max pooling in training gives a workspace.

    Args:
        kind: "max", "avg_include_padding" or "avg_exclude_padding".
        src: [N, C, *S]. dst: [N, C, *O].
        kernel: the window's sizes.
    """

    def create(attr: int) -> int:
        return dnnl.dnnl_pooling_forward_primitive_desc_create(
            default_engine().handle,
            PROPAGATION[prop],
            POOLING[kind],
            src.handle,
            dst.handle,
            window.strides,
            kernel,
            window.dilations,
            window.padding_l,
            window.padding_r,
            attr,
        )

    text = _text(f"pooling_forward {kind}", attributes, src=src, dst=dst)
    return _made(create, f"{text} kernel={tuple(kernel)} {window}", attributes)


def pooling_backward(
    kind: str,
    diff_src: MemoryDesc,
    diff_dst: MemoryDesc,
    kernel: Dims,
    window: SlidingWindow,
    *,
    hint: PrimitiveDesc,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """The gradient of pooling's input: dnnl_pooling_backward_primitive_desc_create."""

    def create(attr: int) -> int:
        return dnnl.dnnl_pooling_backward_primitive_desc_create(
            default_engine().handle,
            POOLING[kind],
            diff_src.handle,
            diff_dst.handle,
            window.strides,
            kernel,
            window.dilations,
            window.padding_l,
            window.padding_r,
            hint.handle,
            attr,
        )

    text = _text(f"pooling_backward {kind}", attributes, diff_src=diff_src, diff_dst=diff_dst)
    return _made(create, f"{text} kernel={tuple(kernel)} {window}", attributes)


def matmul(
    src: MemoryDesc,
    weights: MemoryDesc,
    dst: MemoryDesc,
    *,
    bias: MemoryDesc | None = None,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """dst = src @ weights + bias, batched over leading axes: dnnl_matmul_primitive_desc_create."""

    def create(attr: int) -> int:
        return dnnl.dnnl_matmul_primitive_desc_create(
            default_engine().handle,
            src.handle,
            weights.handle,
            bias.handle if bias else None,
            dst.handle,
            attr,
        )

    text = _text("matmul", attributes, src=src, weights=weights, bias=bias, dst=dst)
    return _made(create, text, attributes)


def inner_product_forward(
    src: MemoryDesc,
    weights: MemoryDesc,
    bias: MemoryDesc | None,
    dst: MemoryDesc,
    *,
    prop: str = "training",
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """dst [N, K] = src [N, C, *S] · weights [K, C, *S] + bias [K]: dnnl_inner_product_forward_…."""

    def create(attr: int) -> int:
        return dnnl.dnnl_inner_product_forward_primitive_desc_create(
            default_engine().handle,
            PROPAGATION[prop],
            src.handle,
            weights.handle,
            bias.handle if bias else None,
            dst.handle,
            attr,
        )

    text = _text("inner_product_forward", attributes, src=src, weights=weights, bias=bias, dst=dst)
    return _made(create, text, attributes)


def inner_product_backward_data(
    diff_src: MemoryDesc,
    weights: MemoryDesc,
    diff_dst: MemoryDesc,
    *,
    hint: PrimitiveDesc,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """The gradient of an inner product's input: dnnl_inner_product_backward_data_…."""

    def create(attr: int) -> int:
        return dnnl.dnnl_inner_product_backward_data_primitive_desc_create(
            default_engine().handle, diff_src.handle, weights.handle, diff_dst.handle, hint.handle, attr
        )

    text = _text(
        "inner_product_backward_data", attributes, diff_src=diff_src, weights=weights, diff_dst=diff_dst
    )
    return _made(create, text, attributes)


def inner_product_backward_weights(
    src: MemoryDesc,
    diff_weights: MemoryDesc,
    diff_bias: MemoryDesc | None,
    diff_dst: MemoryDesc,
    *,
    hint: PrimitiveDesc,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """The gradients of an inner product's matrix and bias: dnnl_inner_product_backward_weights_…."""

    def create(attr: int) -> int:
        return dnnl.dnnl_inner_product_backward_weights_primitive_desc_create(
            default_engine().handle,
            src.handle,
            diff_weights.handle,
            diff_bias.handle if diff_bias else None,
            diff_dst.handle,
            hint.handle,
            attr,
        )

    text = _text(
        "inner_product_backward_weights", attributes, src=src, diff_weights=diff_weights, diff_dst=diff_dst
    )
    return _made(create, text, attributes)


def eltwise_forward(
    function: str,
    src: MemoryDesc,
    dst: MemoryDesc,
    *,
    alpha: float = 0.0,
    beta: float = 0.0,
    prop: str = "training",
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """dst = f(src), may be in place: dnnl_eltwise_forward_primitive_desc_create."""

    def create(attr: int) -> int:
        return dnnl.dnnl_eltwise_forward_primitive_desc_create(
            default_engine().handle,
            PROPAGATION[prop],
            eltwise_kind(function),
            src.handle,
            dst.handle,
            alpha,
            beta,
            attr,
        )

    return _made(create, _text(f"eltwise_forward {function}", attributes, src=src, dst=dst), attributes)


def eltwise_backward(
    function: str,
    diff_src: MemoryDesc,
    diff_dst: MemoryDesc,
    data: MemoryDesc,
    *,
    alpha: float = 0.0,
    beta: float = 0.0,
    hint: PrimitiveDesc,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """diff_src = diff_dst * f'(data): dnnl_eltwise_backward_primitive_desc_create.

    `data` is the forward input, or its output for functions that end in "_use_dst_for_bwd".
    """

    def create(attr: int) -> int:
        return dnnl.dnnl_eltwise_backward_primitive_desc_create(
            default_engine().handle,
            eltwise_kind(function),
            diff_src.handle,
            diff_dst.handle,
            data.handle,
            alpha,
            beta,
            hint.handle,
            attr,
        )

    text = _text(f"eltwise_backward {function}", attributes, diff_src=diff_src, diff_dst=diff_dst, data=data)
    return _made(create, text, attributes)


def binary(
    function: str, src0: MemoryDesc, src1: MemoryDesc, dst: MemoryDesc, *, attributes: _NONE = None
) -> PrimitiveDesc:
    """dst = src0 f src1; axes of size 1 in src1 broadcast: dnnl_binary_primitive_desc_create."""

    def create(attr: int) -> int:
        return dnnl.dnnl_binary_primitive_desc_create(
            default_engine().handle, binary_kind(function), src0.handle, src1.handle, dst.handle, attr
        )

    return _made(create, _text(f"binary {function}", attributes, src0=src0, src1=src1, dst=dst), attributes)


def reduction(
    function: str,
    src: MemoryDesc,
    dst: MemoryDesc,
    *,
    p: float = 0.0,
    eps: float = 0.0,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """Reduce the axes that have size 1 in dst: dnnl_reduction_primitive_desc_create.

    Args:
        function: "sum", "mean", "max", "min", "mul", "norm_lp_sum", …; p and eps belong to the norms.
    """
    kind = dnnl.dnnl_alg_kind_t[f"dnnl_reduction_{function}"]

    def create(attr: int) -> int:
        return dnnl.dnnl_reduction_primitive_desc_create(
            default_engine().handle, kind, src.handle, dst.handle, p, eps, attr
        )

    return _made(create, _text(f"reduction {function}", attributes, src=src, dst=dst), attributes)


def softmax_forward(
    src: MemoryDesc,
    dst: MemoryDesc,
    axis: int,
    *,
    log: bool = False,
    prop: str = "training",
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """(Log-)softmax along an axis: dnnl_softmax_forward_primitive_desc_create."""
    kind = Algorithm.dnnl_softmax_log if log else Algorithm.dnnl_softmax_accurate

    def create(attr: int) -> int:
        return dnnl.dnnl_softmax_forward_primitive_desc_create(
            default_engine().handle, PROPAGATION[prop], kind, src.handle, dst.handle, axis, attr
        )

    return _made(create, _text(f"softmax_forward axis={axis}", attributes, src=src, dst=dst), attributes)


def softmax_backward(
    diff_src: MemoryDesc,
    diff_dst: MemoryDesc,
    dst: MemoryDesc,
    axis: int,
    *,
    hint: PrimitiveDesc,
    log: bool = False,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """The gradient of (log-)softmax from its output: dnnl_softmax_backward_primitive_desc_create."""
    kind = Algorithm.dnnl_softmax_log if log else Algorithm.dnnl_softmax_accurate

    def create(attr: int) -> int:
        return dnnl.dnnl_softmax_backward_primitive_desc_create(
            default_engine().handle,
            kind,
            diff_src.handle,
            diff_dst.handle,
            dst.handle,
            axis,
            hint.handle,
            attr,
        )

    text = _text(f"softmax_backward axis={axis}", attributes, diff_src=diff_src, diff_dst=diff_dst, dst=dst)
    return _made(create, text, attributes)


def weighted_sum(
    scales: Sequence[float], sources: Sequence[MemoryDesc], dst: MemoryDesc | None = None
) -> PrimitiveDesc:
    """dst = sum of scales[i] * sources[i] (arguments DNNL_ARG_MULTIPLE_SRC + i): dnnl_sum_…."""
    context = _text("sum", None, **{f"src{i}": s for i, s in enumerate(sources)})

    def create(attr: int) -> int:
        return dnnl.dnnl_sum_primitive_desc_create(
            default_engine().handle,
            dst.handle if dst else None,
            len(sources),
            tuple(map(float, scales)),
            tuple(s.handle for s in sources),
            attr,
        )

    return _made(create, context, None)


def concat(axis: int, sources: Sequence[MemoryDesc], dst: MemoryDesc | None = None) -> PrimitiveDesc:
    """Sources one after another along an axis (arguments DNNL_ARG_MULTIPLE_SRC + i): dnnl_concat_…."""
    context = _text(f"concat axis={axis}", None, **{f"src{i}": s for i, s in enumerate(sources)})

    def create(attr: int) -> int:
        return dnnl.dnnl_concat_primitive_desc_create(
            default_engine().handle,
            dst.handle if dst else None,
            len(sources),
            axis,
            tuple(s.handle for s in sources),
            attr,
        )

    return _made(create, context, None)


def reorder(src: MemoryDesc, dst: MemoryDesc, *, attributes: _NONE = None) -> PrimitiveDesc:
    """Copy from one layout or data type to another: dnnl_reorder_primitive_desc_create."""

    def create(attr: int) -> int:
        engine = default_engine().handle
        return dnnl.dnnl_reorder_primitive_desc_create(src.handle, engine, dst.handle, engine, attr)

    return _made(create, _text("reorder", attributes, src=src, dst=dst), attributes)


def batch_normalization_forward(
    src: MemoryDesc,
    dst: MemoryDesc,
    *,
    epsilon: float,
    scale: bool = True,
    shift: bool = True,
    global_stats: bool = False,
    relu: bool = False,
    prop: str = "training",
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """Normalize each channel of src [N, C, *S]: dnnl_batch_normalization_forward_primitive_desc_create.

    In training, mean and variance (arguments DNNL_ARG_MEAN, DNNL_ARG_VARIANCE, float32 [C]) are outputs;
    with `global_stats`, or in inference with it, they are inputs. The variance is the biased one.
    relu: dst is clipped at 0; in training that gives a workspace.
    """

    def create(attr: int) -> int:
        return dnnl.dnnl_batch_normalization_forward_primitive_desc_create(
            default_engine().handle,
            PROPAGATION[prop],
            src.handle,
            dst.handle,
            epsilon,
            _normalization_flags(scale, shift, global_stats, relu),
            attr,
        )

    text = _text("batch_normalization_forward", attributes, src=src, dst=dst)
    return _made(create, text, attributes)


def batch_normalization_backward(
    diff_src: MemoryDesc,
    diff_dst: MemoryDesc,
    src: MemoryDesc,
    *,
    epsilon: float,
    hint: PrimitiveDesc,
    scale: bool = True,
    shift: bool = True,
    global_stats: bool = False,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """The gradients of input, scale and shift: dnnl_batch_normalization_backward_primitive_desc_create."""

    def create(attr: int) -> int:
        return dnnl.dnnl_batch_normalization_backward_primitive_desc_create(
            default_engine().handle,
            Prop.dnnl_backward,
            diff_src.handle,
            diff_dst.handle,
            src.handle,
            epsilon,
            _normalization_flags(scale, shift, global_stats),
            hint.handle,
            attr,
        )

    text = _text("batch_normalization_backward", attributes, diff_src=diff_src, diff_dst=diff_dst, src=src)
    return _made(create, text, attributes)


def layer_normalization_forward(
    src: MemoryDesc,
    dst: MemoryDesc,
    stats: MemoryDesc,
    *,
    epsilon: float,
    scale: bool = True,
    shift: bool = True,
    prop: str = "training",
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """Normalize rows of the last axis of src: dnnl_layer_normalization_forward_primitive_desc_create.

    stats: mean and variance, float32, of src's other axes: outputs in training.
    """

    def create(attr: int) -> int:
        return dnnl.dnnl_layer_normalization_forward_primitive_desc_create(
            default_engine().handle,
            PROPAGATION[prop],
            src.handle,
            dst.handle,
            stats.handle,
            epsilon,
            _normalization_flags(scale, shift),
            attr,
        )

    return _made(create, _text("layer_normalization_forward", attributes, src=src, dst=dst), attributes)


def layer_normalization_backward(
    diff_src: MemoryDesc,
    diff_dst: MemoryDesc,
    src: MemoryDesc,
    stats: MemoryDesc,
    *,
    epsilon: float,
    hint: PrimitiveDesc,
    scale: bool = True,
    shift: bool = True,
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """The gradients of input, scale and shift: dnnl_layer_normalization_backward_primitive_desc_create."""

    def create(attr: int) -> int:
        return dnnl.dnnl_layer_normalization_backward_primitive_desc_create(
            default_engine().handle,
            Prop.dnnl_backward,
            diff_src.handle,
            diff_dst.handle,
            src.handle,
            stats.handle,
            epsilon,
            _normalization_flags(scale, shift),
            hint.handle,
            attr,
        )

    text = _text("layer_normalization_backward", attributes, diff_src=diff_src, diff_dst=diff_dst, src=src)
    return _made(create, text, attributes)


def lrn_forward(
    src: MemoryDesc,
    dst: MemoryDesc,
    *,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    prop: str = "training",
    attributes: _NONE = None,
) -> PrimitiveDesc:
    """src / (k + alpha / size * squares of `size` channels) ** beta: dnnl_lrn_forward_primitive_desc_create."""

    def create(attr: int) -> int:
        return dnnl.dnnl_lrn_forward_primitive_desc_create(
            default_engine().handle,
            PROPAGATION[prop],
            Algorithm.dnnl_lrn_across_channels,
            src.handle,
            dst.handle,
            size,
            alpha,
            beta,
            k,
            attr,
        )

    return _made(create, _text(f"lrn_forward size={size}", attributes, src=src, dst=dst), attributes)


class Lstm(NamedTuple):
    """The operands of an LSTM's layers, or their gradients: T steps, N sequences, I inputs, O units, L layers.

    src_layer: [T, N, I]. src_iter, src_iter_c: [L, 1, N, O], h and c in front of the first step.
    weights_layer: [L, 1, I, 4, O]. weights_iter: [L, 1, O, 4, O]. bias: [L, 1, 4, O]; gates in the order i, f, g, o.
    dst_layer: [T, N, O]. dst_iter, dst_iter_c: [L, 1, N, O], h and c behind the last step.
    """

    src_layer: MemoryDesc
    src_iter: MemoryDesc
    src_iter_c: MemoryDesc
    weights_layer: MemoryDesc
    weights_iter: MemoryDesc
    bias: MemoryDesc
    dst_layer: MemoryDesc
    dst_iter: MemoryDesc
    dst_iter_c: MemoryDesc

    def handles(self, prefix: str = "") -> dict[str, Any]:
        """The C functions' arguments by name; no peephole, no projection."""
        given = {name: desc.handle for name, desc in self._asdict().items()}
        given |= {"weights_peephole": None, "weights_projection": None}
        return {f"{prefix}{name}_desc": handle for name, handle in given.items()}


def lstm_forward(
    operands: Lstm, *, prop: str = "training", reverse: bool = False, attributes: _NONE = None
) -> PrimitiveDesc:
    """An LSTM over all steps: dnnl_lstm_forward_primitive_desc_create.

    prop: "inference" or "training", which keeps a workspace for the backward pass. reverse: from the last step on.
    """

    def create(attr: int) -> int:
        return dnnl.dnnl_lstm_forward_primitive_desc_create(
            default_engine().handle,
            PROPAGATION[prop],
            _direction(reverse),
            **operands.handles(),
            flags=0,
            attr=attr,
        )

    return _made(create, _text("lstm_forward", attributes, **operands._asdict()), attributes)


def lstm_backward(
    operands: Lstm, gradients: Lstm, *, hint: PrimitiveDesc, reverse: bool = False, attributes: _NONE = None
) -> PrimitiveDesc:
    """The gradients of an LSTM: dnnl_lstm_backward_primitive_desc_create. Those of the weights are overwritten."""

    def create(attr: int) -> int:
        return dnnl.dnnl_lstm_backward_primitive_desc_create(
            default_engine().handle,
            Prop.dnnl_backward,
            _direction(reverse),
            **operands.handles(),
            **gradients.handles("diff_"),
            flags=dnnl.dnnl_rnn_flags_t.dnnl_rnn_flags_diff_weights_overwrite,
            hint_fwd_pd=hint.handle,
            attr=attr,
        )

    return _made(create, _text("lstm_backward", attributes, **operands._asdict()), attributes)


def _direction(reverse: bool) -> dnnl.dnnl_rnn_direction_t:
    directions = dnnl.dnnl_rnn_direction_t
    return directions.dnnl_unidirectional_right2left if reverse else directions.dnnl_unidirectional_left2right


def _normalization_flags(scale: bool, shift: bool, global_stats: bool = False, relu: bool = False) -> int:
    flags = dnnl.dnnl_normalization_flags_t
    value = flags.dnnl_use_scale * scale | flags.dnnl_use_shift * shift
    return int(value | flags.dnnl_use_global_stats * global_stats | flags.dnnl_fuse_norm_relu * relu)


def _text(name: str, attributes: Attributes | None, **operands: MemoryDesc | None) -> str:
    shown = " ".join(f"{key}={desc}" for key, desc in operands.items() if desc is not None)
    post = " ".join(f"+{p}" for p in attributes.post_ops) if attributes else ""
    return f"{name} {shown}{' ' if post else ''}{post}"


def _made(create: Callable[[int], int], context: str, attributes: Attributes | None) -> PrimitiveDesc:
    """The primitive descriptor; scratch memory is the user's unless the attributes say otherwise."""
    attr = attributes or _default_attributes()
    try:
        return PrimitiveDesc(create(attr.handle), context, attr)
    except DnnlError as error:
        raise failed(error.status, error.function, context) from None


def _default_attributes() -> Attributes:
    if not _shared:
        _shared.append(Attributes())
    return _shared[0]


_shared: list[Attributes] = []
