"""One function per primitive: from memory descriptors to the kernel that oneDNN chooses for them.

Descriptors may be "any": the primitive descriptor then says which layout the kernel wants. Every function
raises DnnlUnimplemented when oneDNN has no kernel for the combination and DnnlInvalidArguments when the
sizes do not fit; the message names the operation and its operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lamina.c import dnnl
from lamina.c.errors import DnnlError
from lamina.onednn.attributes import Attributes, binary_kind, eltwise_kind
from lamina.onednn.engine import default_engine
from lamina.onednn.memory import MemoryDesc
from lamina.onednn.primitive import PrimitiveDesc, Recipe, failed
from lamina.onednn.threads import alone

Dims = Sequence[int]
Algorithm = dnnl.dnnl_alg_kind_t
Prop = dnnl.dnnl_prop_kind_t

PROPAGATION = {"inference": Prop.dnnl_forward_inference, "training": Prop.dnnl_forward_training}
POOLING = {
    "max": Algorithm.dnnl_pooling_max,
    "avg_include_padding": Algorithm.dnnl_pooling_avg_include_padding,
    "avg_exclude_padding": Algorithm.dnnl_pooling_avg_exclude_padding,
}


@dataclass(frozen=True)
class SlidingWindow:
    """Stride, padding and dilation per spatial axis. A dilation of 0 leaves no gap between two taps."""

    strides: Dims
    dilations: Dims
    padding_l: Dims
    padding_r: Dims

    def __str__(self) -> str:
        pads = f"padding={tuple(self.padding_l)}{tuple(self.padding_r)}"
        return f"strides={tuple(self.strides)} dilations={tuple(self.dilations)} {pads}"

    def arguments(self, dilations: str) -> dict[str, Any]:
        """The C functions' arguments by name; `dilations` is their name for the dilations."""
        pads = {"padding_l": self.padding_l, "padding_r": self.padding_r}
        return {"strides": self.strides, dilations: self.dilations, **pads}


def convolution_forward(
    src: MemoryDesc,
    weights: MemoryDesc,
    bias: MemoryDesc | None,
    dst: MemoryDesc,
    window: SlidingWindow,
    *,
    prop: str = "training",
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """dst = src * weights + bias: dnnl_convolution_forward_primitive_desc_create, direct algorithm.

    Args:
        src: [N, C, *S]. weights: [K, C, *k], or [G, K/G, C/G, *k] with groups. bias: [K]. dst: [N, K, *O].
        window: stride, padding and dilation.
        prop: "inference" or "training".
        attributes: post-ops and the like.
    """
    return _describe(
        "convolution_forward",
        {"src": src, "weights": weights, "bias": bias, "dst": dst},
        attributes,
        details=str(window),
        prop_kind=PROPAGATION[prop],
        alg_kind=Algorithm.dnnl_convolution_direct,
        **window.arguments("dilates"),
    )


def convolution_backward_data(
    diff_src: MemoryDesc,
    weights: MemoryDesc,
    diff_dst: MemoryDesc,
    window: SlidingWindow,
    *,
    hint: PrimitiveDesc,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """The gradient of a convolution's input: dnnl_convolution_backward_data_primitive_desc_create."""
    return _describe(
        "convolution_backward_data",
        {"diff_src": diff_src, "weights": weights, "diff_dst": diff_dst},
        attributes,
        details=str(window),
        alg_kind=Algorithm.dnnl_convolution_direct,
        **window.arguments("dilates"),
        hint=hint,
    )


def convolution_backward_weights(
    src: MemoryDesc,
    diff_weights: MemoryDesc,
    diff_bias: MemoryDesc | None,
    diff_dst: MemoryDesc,
    window: SlidingWindow,
    *,
    hint: PrimitiveDesc,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """The gradients of filter and bias: dnnl_convolution_backward_weights_primitive_desc_create."""
    return _describe(
        "convolution_backward_weights",
        {"src": src, "diff_weights": diff_weights, "diff_bias": diff_bias, "diff_dst": diff_dst},
        attributes,
        details=str(window),
        alg_kind=Algorithm.dnnl_convolution_direct,
        **window.arguments("dilates"),
        hint=hint,
    )


def pooling_forward(
    kind: str,
    src: MemoryDesc,
    dst: MemoryDesc,
    kernel: Dims,
    window: SlidingWindow,
    *,
    prop: str = "training",
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """Pooling: dnnl_pooling_forward_primitive_desc_create. Max pooling in training gives a workspace.

    Args:
        kind: "max", "avg_include_padding" or "avg_exclude_padding".
        src: [N, C, *S]. dst: [N, C, *O].
        kernel: the window's sizes.
    """
    return _describe(
        f"pooling_forward {kind}",
        {"src": src, "dst": dst},
        attributes,
        details=f"kernel={tuple(kernel)} {window}",
        prop_kind=PROPAGATION[prop],
        alg_kind=POOLING[kind],
        **window.arguments("dilation"),
        kernel=kernel,
    )


def pooling_backward(
    kind: str,
    diff_src: MemoryDesc,
    diff_dst: MemoryDesc,
    kernel: Dims,
    window: SlidingWindow,
    *,
    hint: PrimitiveDesc,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """The gradient of pooling's input: dnnl_pooling_backward_primitive_desc_create."""
    return _describe(
        f"pooling_backward {kind}",
        {"diff_src": diff_src, "diff_dst": diff_dst},
        attributes,
        details=f"kernel={tuple(kernel)} {window}",
        alg_kind=POOLING[kind],
        **window.arguments("dilation"),
        kernel=kernel,
        hint=hint,
    )


def matmul(
    src: MemoryDesc,
    weights: MemoryDesc,
    dst: MemoryDesc,
    *,
    bias: MemoryDesc | None = None,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """dst = src @ weights + bias, batched over leading axes: dnnl_matmul_primitive_desc_create."""
    return _describe("matmul", {"src": src, "weights": weights, "bias": bias, "dst": dst}, attributes)


def inner_product_forward(
    src: MemoryDesc,
    weights: MemoryDesc,
    bias: MemoryDesc | None,
    dst: MemoryDesc,
    *,
    prop: str = "training",
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """dst [N, K] = src [N, C, *S] · weights [K, C, *S] + bias [K]: dnnl_inner_product_forward_…."""
    return _describe(
        "inner_product_forward",
        {"src": src, "weights": weights, "bias": bias, "dst": dst},
        attributes,
        prop_kind=PROPAGATION[prop],
    )


def inner_product_backward_data(
    diff_src: MemoryDesc,
    weights: MemoryDesc,
    diff_dst: MemoryDesc,
    *,
    hint: PrimitiveDesc,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """The gradient of an inner product's input: dnnl_inner_product_backward_data_…."""
    return _describe(
        "inner_product_backward_data",
        {"diff_src": diff_src, "weights": weights, "diff_dst": diff_dst},
        attributes,
        hint=hint,
    )


def inner_product_backward_weights(
    src: MemoryDesc,
    diff_weights: MemoryDesc,
    diff_bias: MemoryDesc | None,
    diff_dst: MemoryDesc,
    *,
    hint: PrimitiveDesc,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """The gradients of an inner product's matrix and bias: dnnl_inner_product_backward_weights_…."""
    return _describe(
        "inner_product_backward_weights",
        {"src": src, "diff_weights": diff_weights, "diff_bias": diff_bias, "diff_dst": diff_dst},
        attributes,
        hint=hint,
    )


def eltwise_forward(
    function: str,
    src: MemoryDesc,
    dst: MemoryDesc,
    *,
    alpha: float = 0.0,
    beta: float = 0.0,
    prop: str = "training",
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """dst = f(src), may be in place: dnnl_eltwise_forward_primitive_desc_create."""
    return _describe(
        f"eltwise_forward {function}",
        {"src": src, "dst": dst},
        attributes,
        prop_kind=PROPAGATION[prop],
        alg_kind=eltwise_kind(function),
        alpha=alpha,
        beta=beta,
    )


def eltwise_backward(
    function: str,
    diff_src: MemoryDesc,
    diff_dst: MemoryDesc,
    data: MemoryDesc,
    *,
    alpha: float = 0.0,
    beta: float = 0.0,
    hint: PrimitiveDesc,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """diff_src = diff_dst * f'(data): dnnl_eltwise_backward_primitive_desc_create.

    `data` is the forward input, or its output for functions that end in "_use_dst_for_bwd".
    """
    return _describe(
        f"eltwise_backward {function}",
        {"diff_src": diff_src, "diff_dst": diff_dst, "data": data},
        attributes,
        alg_kind=eltwise_kind(function),
        alpha=alpha,
        beta=beta,
        hint=hint,
    )


def binary(
    function: str,
    src0: MemoryDesc,
    src1: MemoryDesc,
    dst: MemoryDesc,
    *,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """dst = src0 f src1; axes of size 1 in src1 broadcast: dnnl_binary_primitive_desc_create."""
    return _describe(
        f"binary {function}",
        {"src0": src0, "src1": src1, "dst": dst},
        attributes,
        alg_kind=binary_kind(function),
    )


def reduction(
    function: str,
    src: MemoryDesc,
    dst: MemoryDesc,
    *,
    p: float = 0.0,
    eps: float = 0.0,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """Reduce the axes that have size 1 in dst: dnnl_reduction_primitive_desc_create.

    Args:
        function: "sum", "mean", "max", "min", "mul", "norm_lp_sum", …; p and eps belong to the norms.
    """
    kind = dnnl.dnnl_alg_kind_t[f"dnnl_reduction_{function}"]
    return _describe(
        f"reduction {function}", {"src": src, "dst": dst}, attributes, alg_kind=kind, p=p, eps=eps
    )


def softmax_forward(
    src: MemoryDesc,
    dst: MemoryDesc,
    axis: int,
    *,
    log: bool = False,
    prop: str = "training",
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """(Log-)softmax along an axis: dnnl_softmax_forward_primitive_desc_create."""
    kind = Algorithm.dnnl_softmax_log if log else Algorithm.dnnl_softmax_accurate
    return _describe(
        f"softmax_forward axis={axis}",
        {"src": src, "dst": dst},
        attributes,
        prop_kind=PROPAGATION[prop],
        alg_kind=kind,
        softmax_axis=axis,
    )


def softmax_backward(
    diff_src: MemoryDesc,
    diff_dst: MemoryDesc,
    dst: MemoryDesc,
    axis: int,
    *,
    hint: PrimitiveDesc,
    log: bool = False,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """The gradient of (log-)softmax from its output: dnnl_softmax_backward_primitive_desc_create."""
    kind = Algorithm.dnnl_softmax_log if log else Algorithm.dnnl_softmax_accurate
    return _describe(
        f"softmax_backward axis={axis}",
        {"diff_src": diff_src, "diff_dst": diff_dst, "dst": dst},
        attributes,
        alg_kind=kind,
        softmax_axis=axis,
        hint=hint,
    )


def weighted_sum(
    scales: Sequence[float], sources: Sequence[MemoryDesc], dst: MemoryDesc | None = None
) -> PrimitiveDesc:
    """dst = sum of scales[i] * sources[i] (arguments DNNL_ARG_MULTIPLE_SRC + i): dnnl_sum_…."""
    return _describe(
        f"sum {_numbered(sources)}",
        {"dst": dst},
        sources=sources,
        scales=tuple(map(float, scales)),
    )


def concat(axis: int, sources: Sequence[MemoryDesc], dst: MemoryDesc | None = None) -> PrimitiveDesc:
    """Sources one after another along an axis (arguments DNNL_ARG_MULTIPLE_SRC + i): dnnl_concat_…."""
    return _describe(
        f"concat axis={axis} {_numbered(sources)}",
        {"dst": dst},
        sources=sources,
        concat_dimension=axis,
    )


def reorder(src: MemoryDesc, dst: MemoryDesc, *, attributes: Attributes | None = None) -> PrimitiveDesc:
    """Copy from one layout or data type to another: dnnl_reorder_primitive_desc_create."""
    return _describe("reorder", {"src": src, "dst": dst}, attributes, engines=("src_engine", "dst_engine"))


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
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """Normalize each channel of src [N, C, *S]: dnnl_batch_normalization_forward_primitive_desc_create.

    In training, mean and variance (arguments DNNL_ARG_MEAN, DNNL_ARG_VARIANCE, float32 [C]) are outputs;
    with `global_stats`, or in inference with it, they are inputs. The variance is the biased one.
    relu: dst is clipped at 0; in training that gives a workspace.
    """
    return _describe(
        "batch_normalization_forward",
        {"src": src, "dst": dst},
        attributes,
        prop_kind=PROPAGATION[prop],
        epsilon=epsilon,
        flags=_normalization_flags(scale, shift, global_stats, relu),
    )


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
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """The gradients of input, scale and shift: dnnl_batch_normalization_backward_primitive_desc_create."""
    return _describe(
        "batch_normalization_backward",
        {"diff_src": diff_src, "diff_dst": diff_dst, "src": src},
        attributes,
        prop_kind=Prop.dnnl_backward,
        epsilon=epsilon,
        flags=_normalization_flags(scale, shift, global_stats),
        hint=hint,
    )


def layer_normalization_forward(
    src: MemoryDesc,
    dst: MemoryDesc,
    stats: MemoryDesc,
    *,
    epsilon: float,
    scale: bool = True,
    shift: bool = True,
    prop: str = "training",
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """Normalize rows of the last axis of src: dnnl_layer_normalization_forward_primitive_desc_create.

    stats: mean and variance, float32, of src's other axes: outputs in training.
    """
    return _describe(
        "layer_normalization_forward",
        {"src": src, "dst": dst, "stat": stats},
        attributes,
        prop_kind=PROPAGATION[prop],
        epsilon=epsilon,
        flags=_normalization_flags(scale, shift),
    )


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
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """The gradients of input, scale and shift: dnnl_layer_normalization_backward_primitive_desc_create."""
    return _describe(
        "layer_normalization_backward",
        {"diff_src": diff_src, "diff_dst": diff_dst, "src": src, "stat": stats},
        attributes,
        prop_kind=Prop.dnnl_backward,
        epsilon=epsilon,
        flags=_normalization_flags(scale, shift),
        hint=hint,
    )


def lrn_forward(
    src: MemoryDesc,
    dst: MemoryDesc,
    *,
    size: int,
    alpha: float,
    beta: float,
    k: float,
    prop: str = "training",
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """src / (k + alpha / size * squares of `size` channels) ** beta: dnnl_lrn_forward_primitive_desc_create."""
    return _describe(
        f"lrn_forward size={size}",
        {"src": src, "dst": dst},
        attributes,
        prop_kind=PROPAGATION[prop],
        alg_kind=Algorithm.dnnl_lrn_across_channels,
        local_size=size,
        alpha=alpha,
        beta=beta,
        k=k,
    )


class Lstm(NamedTuple):
    """The operands of an LSTM's layers, or their gradients: T steps, N sequences, I inputs, O units, L layers.

    src_layer: [T, N, I]. src_iter, src_iter_c: [L, 1, N, O], h and c in front of the first step.
    weights_layer: [L, 1, I, 4, O]. weights_iter: [L, 1, O, 4, O]. bias: [L, 1, 4, O]; gates in the order i, f, g, o.
    dst_layer: [T, N, O]. dst_iter, dst_iter_c: [L, 1, N, O], h and c after the last step.
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

    def arguments(self, prefix: str = "") -> dict[str, MemoryDesc | None]:
        """The C functions' operands by name; no peephole, no projection."""
        given = {**self._asdict(), "weights_peephole": None, "weights_projection": None}
        return {f"{prefix}{name}": desc for name, desc in given.items()}


def lstm_forward(
    operands: Lstm, *, prop: str = "training", reverse: bool = False, attributes: Attributes | None = None
) -> PrimitiveDesc:
    """An LSTM over all steps: dnnl_lstm_forward_primitive_desc_create.

    prop: "inference" or "training", which keeps a workspace for the backward pass. reverse: from the last step on.
    """
    return _describe(
        "lstm_forward",
        operands.arguments(),
        attributes,
        prop_kind=PROPAGATION[prop],
        direction=_direction(reverse),
        flags=0,
    )


def lstm_backward(
    operands: Lstm,
    gradients: Lstm,
    *,
    hint: PrimitiveDesc,
    reverse: bool = False,
    attributes: Attributes | None = None,
) -> PrimitiveDesc:
    """The gradients of an LSTM: dnnl_lstm_backward_primitive_desc_create. Those of the weights are overwritten."""
    return _describe(
        "lstm_backward",
        operands.arguments() | gradients.arguments("diff_"),
        attributes,
        prop_kind=Prop.dnnl_backward,
        direction=_direction(reverse),
        flags=dnnl.dnnl_rnn_flags_t.dnnl_rnn_flags_diff_weights_overwrite,
        hint=hint,
    )


class Gru(NamedTuple):
    """The operands of a GRU's layers whose reset gate applies after the product with the state; sizes as of `Lstm`.

    src_layer: [T, N, I]. src_iter: [L, 1, N, O]. weights_layer: [L, 1, I, 3, O]. weights_iter: [L, 1, O, 3, O]; gates
    in the order update, reset, new. bias: [L, 1, 4, O], the fourth of the new gate's product with the state.
    dst_layer: [T, N, O]. dst_iter: [L, 1, N, O].
    """

    src_layer: MemoryDesc
    src_iter: MemoryDesc
    weights_layer: MemoryDesc
    weights_iter: MemoryDesc
    bias: MemoryDesc
    dst_layer: MemoryDesc
    dst_iter: MemoryDesc


def lbr_gru_forward(
    operands: Gru, *, prop: str = "training", reverse: bool = False, attributes: Attributes | None = None
) -> PrimitiveDesc:
    """A GRU over all steps: dnnl_lbr_gru_forward_primitive_desc_create. prop, reverse: as for `lstm_forward`."""
    return _describe(
        "lbr_gru_forward",
        operands._asdict(),
        attributes,
        prop_kind=PROPAGATION[prop],
        direction=_direction(reverse),
        flags=0,
    )


def _direction(reverse: bool) -> dnnl.dnnl_rnn_direction_t:
    directions = dnnl.dnnl_rnn_direction_t
    return directions.dnnl_unidirectional_right2left if reverse else directions.dnnl_unidirectional_left2right


def _normalization_flags(scale: bool, shift: bool, global_stats: bool = False, relu: bool = False) -> int:
    flags = dnnl.dnnl_normalization_flags_t
    value = flags.dnnl_use_scale * scale | flags.dnnl_use_shift * shift
    return int(value | flags.dnnl_use_global_stats * global_stats | flags.dnnl_fuse_norm_relu * relu)


#: Floats of the longest vector.
_MOST_LANES = 16


def _describe(
    title: str,
    operands: Mapping[str, MemoryDesc | None],
    attributes: Attributes | None = None,
    *,
    details: str = "",
    engines: Sequence[str] = ("engine",),
    hint: PrimitiveDesc | None = None,
    sources: Sequence[MemoryDesc] | None = None,
    **settings: Any,
) -> PrimitiveDesc:
    """By the function dnnl_…_primitive_desc_create of the title's first word.

    The scratchpad is user-managed unless the attributes say otherwise.

    Args:
        title: leads the text of errors; the operands, post-ops and `details` follow.
        operands: memory descriptors, by the C parameters' names without "_desc"; None where there is none.
        attributes: post-ops and the like.
        details: further information for errors, such as a window.
        engines: the parameters that take the engine.
        hint: for a backward primitive, its forward one. sources: the operands of a primitive with any number of them.
        settings: the other parameters.
    """
    create = getattr(dnnl, f"dnnl_{title.split()[0]}_primitive_desc_create")
    attr = attributes or _default_attributes()
    recipe = Recipe(title, operands, attr, details, tuple(engines), hint, sources, settings)
    handles = {f"{name}_desc": desc.handle if desc else None for name, desc in operands.items()}
    try:
        engine = dict.fromkeys(engines, default_engine().handle)
        more: dict[str, Any] = {} if hint is None else {"hint_fwd_pd": hint.handle}
        if sources is not None:
            more |= {"n": len(sources), "src_descs": tuple(s.handle for s in sources)}
        with alone(recipe.is_small):
            made = create(**engine, **handles, **settings, **more, attr=attr.handle)
    except DnnlError as error:
        raise failed(error.status, error.function, recipe.text) from None
    found = PrimitiveDesc(made, attr, recipe)
    while _writes_beyond_scratch(found) and found.next_implementation():
        pass
    return found


def _writes_beyond_scratch(made: PrimitiveDesc) -> bool:
    """Whether a kernel writes beyond its scratchpad.

    Filter gradients of 1x1 convolutions with a stride gather the positions that they read; the room for these is of
    as many channels as there are, while each is written as a whole vector (oneDNN 3: measured with AVX2, 8 floats).
    """
    recipe = made.recipe
    src, weights = recipe.operands.get("src"), recipe.operands.get("diff_weights")
    if src is None or weights is None or max(recipe.settings.get("strides", (1,))) == 1:
        return False
    channels = weights.dims[1 - src.ndim]  # of a group: diff_weights is [(G,) K, C, *kernel]
    return channels < _MOST_LANES and made.implementation.startswith("jit_1x1")


def remade(recipe: Recipe) -> PrimitiveDesc:
    """The descriptor that a recipe describes. Raises DnnlError as its original function."""
    return _describe(
        recipe.title,
        recipe.operands,
        recipe.attributes,
        details=recipe.details,
        engines=recipe.engines,
        hint=recipe.hint,
        sources=recipe.sources,
        **recipe.settings,
    )


def _numbered(sources: Sequence[MemoryDesc]) -> str:
    return " ".join(f"src{i}={source}" for i, source in enumerate(sources))


def _default_attributes() -> Attributes:
    if not _shared:
        _shared.append(Attributes())
    return _shared[0]


_shared: list[Attributes] = []
