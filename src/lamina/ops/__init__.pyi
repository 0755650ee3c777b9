"""Generated from the signatures by `python -m tools.stubs write`; do not edit."""

# An overload for traced values also takes what the one before takes; which one holds is decided in this order.
# mypy: disable-error-code="overload-overlap, override, misc"
# pyright: reportOverlappingOverload=false, reportIncompatibleMethodOverride=false

from collections.abc import Iterable, Sequence
from typing import overload

from lamina.graph.ir.graph import Value
from lamina.ops import core as core
from lamina.ops import primitives as primitives
from lamina.ops.primitives.pool import Sizes
from lamina.ops.primitives.reduce import Axes
from lamina.ops.primitives.window import Padding
from lamina.spec import DType
from lamina.tensors import Tensor, TensorLike

__all__ = [
    "abs",
    "abs_max",
    "adam_update",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "add",
    "argmax",
    "argmin",
    "attention",
    "attention_weights",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "batch_to_space",
    "binary_cross_entropy_with_logits",
    "cast",
    "ceil",
    "chunk",
    "clip",
    "clipped_relu",
    "concat",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cos",
    "cross_entropy",
    "depth_to_space",
    "dequantize",
    "div",
    "divisive_norm",
    "dropout",
    "elu",
    "embedding",
    "eq",
    "erf",
    "exp",
    "expand",
    "flatten",
    "flip",
    "floor",
    "ge",
    "gelu",
    "getitem",
    "global_avg_pool",
    "global_max_pool",
    "group_norm",
    "gt",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "huber_loss",
    "identity",
    "instance_norm",
    "l1_loss",
    "layer_norm",
    "le",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "log",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "lt",
    "matmul",
    "max",
    "max_and_argmax",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mse_loss",
    "mul",
    "mul_no_zeros",
    "ne",
    "neg",
    "nll_loss",
    "norm1",
    "norm2",
    "one_hot",
    "pad",
    "permute",
    "pixel_shuffle",
    "pixel_unshuffle",
    "pow",
    "power",
    "prelu",
    "prod",
    "quantize",
    "random_normal",
    "random_uniform",
    "reciprocal",
    "reduce",
    "relu",
    "relu6",
    "reshape",
    "resize_nearest",
    "rms_norm",
    "rnn",
    "rsqrt",
    "sgd_update",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "space_to_batch",
    "space_to_depth",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "sub",
    "sum",
    "sum_pool1d",
    "sum_pool2d",
    "sum_pool3d",
    "sum_to",
    "swap_halves",
    "swap_pairs",
    "swapaxes",
    "swish",
    "tan",
    "tanh",
    "threshold",
    "transpose",
    "unfold",
    "unsqueeze",
    "var",
    "where",
]

@overload
def abs(x: TensorLike) -> Tensor: ...
@overload
def abs(x: Value) -> Value: ...
@overload
def abs_max(x: TensorLike, axis: Axes | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def abs_max(x: Value, axis: Axes | None = None, keepdims: bool = False) -> Value: ...
@overload
def adam_update(
    p: TensorLike,
    g: TensorLike,
    m: TensorLike,
    v: TensorLike,
    step: TensorLike,
    rate: TensorLike,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-08,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def adam_update(
    p: Value | TensorLike,
    g: Value | TensorLike,
    m: Value | TensorLike,
    v: Value | TensorLike,
    step: Value | TensorLike,
    rate: Value | TensorLike,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-08,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> tuple[Value, Value, Value, Value]: ...
@overload
def adaptive_avg_pool1d(input: TensorLike, output_size: int | Sequence[int | None]) -> Tensor: ...
@overload
def adaptive_avg_pool1d(input: Value, output_size: int | Sequence[int | None]) -> Value: ...
@overload
def adaptive_avg_pool2d(input: TensorLike, output_size: int | Sequence[int | None]) -> Tensor: ...
@overload
def adaptive_avg_pool2d(input: Value, output_size: int | Sequence[int | None]) -> Value: ...
@overload
def adaptive_avg_pool3d(input: TensorLike, output_size: int | Sequence[int | None]) -> Tensor: ...
@overload
def adaptive_avg_pool3d(input: Value, output_size: int | Sequence[int | None]) -> Value: ...
@overload
def add(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def add(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def argmax(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def argmax(x: Value, axis: int | None = None, keepdims: bool = False) -> Value: ...
@overload
def argmin(x: TensorLike, axis: int | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def argmin(x: Value, axis: int | None = None, keepdims: bool = False) -> Value: ...
@overload
def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    bias: TensorLike | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor: ...
@overload
def attention(
    q: Value | TensorLike,
    k: Value | TensorLike,
    v: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Value: ...
@overload
def attention_weights(
    q: TensorLike,
    k: TensorLike,
    bias: TensorLike | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor: ...
@overload
def attention_weights(
    q: Value | TensorLike,
    k: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Value: ...
@overload
def avg_pool1d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor: ...
@overload
def avg_pool1d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Value: ...
@overload
def avg_pool2d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor: ...
@overload
def avg_pool2d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value: ...
@overload
def avg_pool3d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor: ...
@overload
def avg_pool3d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Value: ...
@overload
def batch_norm(
    input: TensorLike,
    running_mean: TensorLike,
    running_var: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
    *,
    mode: str = "spatial",
    relu: bool = False,
    residual: TensorLike | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def batch_norm(
    input: Value | TensorLike,
    running_mean: Value | TensorLike,
    running_var: Value | TensorLike,
    weight: Value | TensorLike | None = None,
    bias: Value | TensorLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
    *,
    mode: str = "spatial",
    relu: bool = False,
    residual: Value | TensorLike | None = None,
) -> tuple[Value, Value, Value]: ...
@overload
def batch_to_space(x: TensorLike, block: int | Sequence[int]) -> Tensor: ...
@overload
def batch_to_space(x: Value, block: int | Sequence[int]) -> Value: ...
@overload
def binary_cross_entropy_with_logits(
    input: TensorLike, target: TensorLike, reduction: str = "mean"
) -> Tensor: ...
@overload
def binary_cross_entropy_with_logits(
    input: Value | TensorLike, target: Value | TensorLike, reduction: str = "mean"
) -> Value: ...
@overload
def cast(x: TensorLike, dtype: DType | str | type) -> Tensor: ...
@overload
def cast(x: Value, dtype: DType | str | type) -> Value: ...
@overload
def ceil(x: TensorLike) -> Tensor: ...
@overload
def ceil(x: Value) -> Value: ...
@overload
def chunk(x: TensorLike, chunks: int, axis: int = 0) -> tuple[Tensor, ...]: ...
@overload
def chunk(x: Value, chunks: int, axis: int = 0) -> tuple[Value, ...]: ...
@overload
def clip(x: TensorLike, low: TensorLike | None = None, high: TensorLike | None = None) -> Tensor: ...
@overload
def clip(
    x: Value | TensorLike, low: Value | TensorLike | None = None, high: Value | TensorLike | None = None
) -> Value: ...
@overload
def clipped_relu(input: TensorLike, hi: float) -> Tensor: ...
@overload
def clipped_relu(input: Value, hi: float) -> Value: ...
@overload
def concat(tensors: Sequence[TensorLike], axis: int = 0) -> Tensor: ...
@overload
def concat(tensors: Sequence[Value | TensorLike], axis: int = 0) -> Value: ...
@overload
def conv1d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    dilation: int | Iterable[int] = 1,
    groups: int = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Tensor: ...
@overload
def conv1d(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    dilation: int | Iterable[int] = 1,
    groups: int = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Value: ...
@overload
def conv2d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    dilation: int | Iterable[int] = 1,
    groups: int = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Tensor: ...
@overload
def conv2d(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    dilation: int | Iterable[int] = 1,
    groups: int = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Value: ...
@overload
def conv3d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    dilation: int | Iterable[int] = 1,
    groups: int = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Tensor: ...
@overload
def conv3d(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    dilation: int | Iterable[int] = 1,
    groups: int = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Value: ...
@overload
def conv_transpose1d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    output_padding: int | Iterable[int] = 0,
    groups: int = 1,
    dilation: int | Iterable[int] = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Tensor: ...
@overload
def conv_transpose1d(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    output_padding: int | Iterable[int] = 0,
    groups: int = 1,
    dilation: int | Iterable[int] = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Value: ...
@overload
def conv_transpose2d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    output_padding: int | Iterable[int] = 0,
    groups: int = 1,
    dilation: int | Iterable[int] = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Tensor: ...
@overload
def conv_transpose2d(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    output_padding: int | Iterable[int] = 0,
    groups: int = 1,
    dilation: int | Iterable[int] = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Value: ...
@overload
def conv_transpose3d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    output_padding: int | Iterable[int] = 0,
    groups: int = 1,
    dilation: int | Iterable[int] = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Tensor: ...
@overload
def conv_transpose3d(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    stride: int | Iterable[int] = 1,
    padding: Padding = 0,
    output_padding: int | Iterable[int] = 0,
    groups: int = 1,
    dilation: int | Iterable[int] = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Value: ...
@overload
def cos(x: TensorLike) -> Tensor: ...
@overload
def cos(x: Value) -> Value: ...
@overload
def cross_entropy(
    input: TensorLike,
    target: TensorLike,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Tensor: ...
@overload
def cross_entropy(
    input: Value | TensorLike,
    target: Value | TensorLike,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
) -> Value: ...
@overload
def depth_to_space(x: TensorLike, block: int | Sequence[int]) -> Tensor: ...
@overload
def depth_to_space(x: Value, block: int | Sequence[int]) -> Value: ...
@overload
def dequantize(q: TensorLike, scale: TensorLike) -> Tensor: ...
@overload
def dequantize(q: Value | TensorLike, scale: Value | TensorLike) -> Value: ...
@overload
def div(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def div(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def divisive_norm(
    input: TensorLike,
    size: int,
    alpha: float = 0.0001,
    beta: float = 0.75,
    k: float = 2.0,
    means: TensorLike | None = None,
) -> Tensor: ...
@overload
def divisive_norm(
    input: Value | TensorLike,
    size: int,
    alpha: float = 0.0001,
    beta: float = 0.75,
    k: float = 2.0,
    means: Value | TensorLike | None = None,
) -> Value: ...
@overload
def dropout(x: TensorLike, state: TensorLike, p: float = 0.5) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def dropout(
    x: Value | TensorLike, state: Value | TensorLike, p: float = 0.5
) -> tuple[Value, Value, Value]: ...
@overload
def elu(input: TensorLike, alpha: float = 1.0) -> Tensor: ...
@overload
def elu(input: Value, alpha: float = 1.0) -> Value: ...
@overload
def embedding(index: TensorLike, weight: TensorLike) -> Tensor: ...
@overload
def embedding(index: Value | TensorLike, weight: Value | TensorLike) -> Value: ...
@overload
def eq(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def eq(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def erf(x: TensorLike) -> Tensor: ...
@overload
def erf(x: Value) -> Value: ...
@overload
def exp(x: TensorLike) -> Tensor: ...
@overload
def exp(x: Value) -> Value: ...
@overload
def expand(x: TensorLike, shape: Sequence[int]) -> Tensor: ...
@overload
def expand(x: Value, shape: Sequence[int]) -> Value: ...
@overload
def flatten(x: TensorLike, start_dim: int = 0, end_dim: int = -1) -> Tensor: ...
@overload
def flatten(x: Value, start_dim: int = 0, end_dim: int = -1) -> Value: ...
@overload
def flip(x: TensorLike, axes: int | Sequence[int]) -> Tensor: ...
@overload
def flip(x: Value, axes: int | Sequence[int]) -> Value: ...
@overload
def floor(x: TensorLike) -> Tensor: ...
@overload
def floor(x: Value) -> Value: ...
@overload
def ge(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def ge(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def gelu(input: TensorLike, approximate: str = "none") -> Tensor: ...
@overload
def gelu(input: Value, approximate: str = "none") -> Value: ...
@overload
def getitem(x: TensorLike, key: TensorLike) -> Tensor: ...
@overload
def getitem(x: Value | TensorLike, key: Value | TensorLike) -> Value: ...
@overload
def global_avg_pool(input: TensorLike) -> Tensor: ...
@overload
def global_avg_pool(input: Value) -> Value: ...
@overload
def global_max_pool(input: TensorLike) -> Tensor: ...
@overload
def global_max_pool(input: Value) -> Value: ...
@overload
def group_norm(
    input: TensorLike,
    num_groups: int,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-05,
) -> Tensor: ...
@overload
def group_norm(
    input: Value | TensorLike,
    num_groups: int,
    weight: Value | TensorLike | None = None,
    bias: Value | TensorLike | None = None,
    eps: float = 1e-05,
) -> Value: ...
@overload
def gt(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def gt(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def hardsigmoid(input: TensorLike) -> Tensor: ...
@overload
def hardsigmoid(input: Value) -> Value: ...
@overload
def hardswish(input: TensorLike) -> Tensor: ...
@overload
def hardswish(input: Value) -> Value: ...
@overload
def hardtanh(input: TensorLike, min_val: float = -1.0, max_val: float = 1.0) -> Tensor: ...
@overload
def hardtanh(input: Value, min_val: float = -1.0, max_val: float = 1.0) -> Value: ...
@overload
def huber_loss(
    input: TensorLike, target: TensorLike, reduction: str = "mean", delta: float = 1.0
) -> Tensor: ...
@overload
def huber_loss(
    input: Value | TensorLike, target: Value | TensorLike, reduction: str = "mean", delta: float = 1.0
) -> Value: ...
@overload
def identity(x: TensorLike) -> Tensor: ...
@overload
def identity(x: Value) -> Value: ...
@overload
def instance_norm(
    input: TensorLike,
    running_mean: TensorLike | None = None,
    running_var: TensorLike | None = None,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def instance_norm(
    input: Value | TensorLike,
    running_mean: Value | TensorLike | None = None,
    running_var: Value | TensorLike | None = None,
    weight: Value | TensorLike | None = None,
    bias: Value | TensorLike | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
) -> tuple[Value, Value, Value]: ...
@overload
def l1_loss(input: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor: ...
@overload
def l1_loss(input: Value | TensorLike, target: Value | TensorLike, reduction: str = "mean") -> Value: ...
@overload
def layer_norm(
    input: TensorLike,
    normalized_shape: int | Sequence[int],
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    eps: float = 1e-05,
) -> Tensor: ...
@overload
def layer_norm(
    input: Value | TensorLike,
    normalized_shape: int | Sequence[int],
    weight: Value | TensorLike | None = None,
    bias: Value | TensorLike | None = None,
    eps: float = 1e-05,
) -> Value: ...
@overload
def le(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def le(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def leaky_relu(input: TensorLike, negative_slope: float = 0.01) -> Tensor: ...
@overload
def leaky_relu(input: Value, negative_slope: float = 0.01) -> Value: ...
@overload
def linear(input: TensorLike, weight: TensorLike, bias: TensorLike | None = None) -> Tensor: ...
@overload
def linear(
    input: Value | TensorLike, weight: Value | TensorLike, bias: Value | TensorLike | None = None
) -> Value: ...
@overload
def local_response_norm(
    input: TensorLike, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0
) -> Tensor: ...
@overload
def local_response_norm(
    input: Value, size: int, alpha: float = 0.0001, beta: float = 0.75, k: float = 1.0
) -> Value: ...
@overload
def log(x: TensorLike) -> Tensor: ...
@overload
def log(x: Value) -> Value: ...
@overload
def log_softmax(input: TensorLike, dim: int | Sequence[int] = -1) -> Tensor: ...
@overload
def log_softmax(input: Value, dim: int | Sequence[int] = -1) -> Value: ...
@overload
def logical_and(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def logical_and(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def logical_not(x: TensorLike) -> Tensor: ...
@overload
def logical_not(x: Value) -> Value: ...
@overload
def logical_or(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def logical_or(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def lt(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def lt(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def matmul(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def matmul(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def max(x: TensorLike, axis: Axes | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def max(x: Value, axis: Axes | None = None, keepdims: bool = False) -> Value: ...
@overload
def max_and_argmax(x: TensorLike, axis: int, keepdims: bool = False) -> tuple[Tensor, Tensor]: ...
@overload
def max_and_argmax(x: Value, axis: int, keepdims: bool = False) -> tuple[Value, Value]: ...
@overload
def max_pool1d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def max_pool1d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Value: ...
@overload
def max_pool2d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def max_pool2d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Value: ...
@overload
def max_pool3d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def max_pool3d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Value: ...
@overload
def maximum(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def maximum(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def mean(x: TensorLike, axis: Axes | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def mean(x: Value, axis: Axes | None = None, keepdims: bool = False) -> Value: ...
@overload
def min(x: TensorLike, axis: Axes | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def min(x: Value, axis: Axes | None = None, keepdims: bool = False) -> Value: ...
@overload
def minimum(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def minimum(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def mse_loss(input: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor: ...
@overload
def mse_loss(input: Value | TensorLike, target: Value | TensorLike, reduction: str = "mean") -> Value: ...
@overload
def mul(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def mul(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def mul_no_zeros(x: TensorLike, axis: Axes | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def mul_no_zeros(x: Value, axis: Axes | None = None, keepdims: bool = False) -> Value: ...
@overload
def ne(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def ne(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def neg(x: TensorLike) -> Tensor: ...
@overload
def neg(x: Value) -> Value: ...
@overload
def nll_loss(
    input: TensorLike, target: TensorLike, reduction: str = "mean", ignore_index: int | None = None
) -> Tensor: ...
@overload
def nll_loss(
    input: Value | TensorLike,
    target: Value | TensorLike,
    reduction: str = "mean",
    ignore_index: int | None = None,
) -> Value: ...
@overload
def norm1(x: TensorLike, axis: Axes | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def norm1(x: Value, axis: Axes | None = None, keepdims: bool = False) -> Value: ...
@overload
def norm2(x: TensorLike, axis: Axes | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def norm2(x: Value, axis: Axes | None = None, keepdims: bool = False) -> Value: ...
@overload
def one_hot(labels: TensorLike, classes: int, dtype: DType | str = ..., axis: int = -1) -> Tensor: ...
@overload
def one_hot(labels: Value, classes: int, dtype: DType | str = ..., axis: int = -1) -> Value: ...
@overload
def pad(x: TensorLike, pairs: Sequence[tuple[int, int]], value: float = 0.0) -> Tensor: ...
@overload
def pad(x: Value, pairs: Sequence[tuple[int, int]], value: float = 0.0) -> Value: ...
@overload
def permute(x: TensorLike, dims: Sequence[int]) -> Tensor: ...
@overload
def permute(x: Value, dims: Sequence[int]) -> Value: ...
@overload
def pixel_shuffle(x: TensorLike, upscale_factor: int) -> Tensor: ...
@overload
def pixel_shuffle(x: Value, upscale_factor: int) -> Value: ...
@overload
def pixel_unshuffle(x: TensorLike, downscale_factor: int) -> Tensor: ...
@overload
def pixel_unshuffle(x: Value, downscale_factor: int) -> Value: ...
@overload
def pow(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def pow(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def power(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def power(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def prelu(input: TensorLike, weight: TensorLike) -> Tensor: ...
@overload
def prelu(input: Value | TensorLike, weight: Value | TensorLike) -> Value: ...
@overload
def prod(x: TensorLike, axis: Axes | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def prod(x: Value, axis: Axes | None = None, keepdims: bool = False) -> Value: ...
@overload
def quantize(x: TensorLike, scale: TensorLike, dtype: DType | str = ...) -> Tensor: ...
@overload
def quantize(x: Value | TensorLike, scale: Value | TensorLike, dtype: DType | str = ...) -> Value: ...
@overload
def random_normal(
    state: TensorLike, shape: Sequence[int], mean: float = 0.0, std: float = 1.0, dtype: DType | str = ...
) -> tuple[Tensor, Tensor]: ...
@overload
def random_normal(
    state: Value, shape: Sequence[int], mean: float = 0.0, std: float = 1.0, dtype: DType | str = ...
) -> tuple[Value, Value]: ...
@overload
def random_uniform(
    state: TensorLike, shape: Sequence[int], low: float = 0.0, high: float = 1.0, dtype: DType | str = ...
) -> tuple[Tensor, Tensor]: ...
@overload
def random_uniform(
    state: Value, shape: Sequence[int], low: float = 0.0, high: float = 1.0, dtype: DType | str = ...
) -> tuple[Value, Value]: ...
@overload
def reciprocal(x: TensorLike) -> Tensor: ...
@overload
def reciprocal(x: Value) -> Value: ...
@overload
def reduce(kind: str, x: TensorLike, axis: Axes | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def reduce(kind: str, x: Value, axis: Axes | None = None, keepdims: bool = False) -> Value: ...
@overload
def relu(input: TensorLike) -> Tensor: ...
@overload
def relu(input: Value) -> Value: ...
@overload
def relu6(input: TensorLike) -> Tensor: ...
@overload
def relu6(input: Value) -> Value: ...
@overload
def reshape(x: TensorLike, shape: int | Sequence[int]) -> Tensor: ...
@overload
def reshape(x: Value, shape: int | Sequence[int]) -> Value: ...
@overload
def resize_nearest(x: TensorLike, scale: int | Sequence[int]) -> Tensor: ...
@overload
def resize_nearest(x: Value, scale: int | Sequence[int]) -> Value: ...
@overload
def rms_norm(
    input: TensorLike,
    normalized_shape: int | Sequence[int],
    weight: TensorLike | None = None,
    eps: float | None = None,
) -> Tensor: ...
@overload
def rms_norm(
    input: Value | TensorLike,
    normalized_shape: int | Sequence[int],
    weight: Value | TensorLike | None = None,
    eps: float | None = None,
) -> Value: ...
@overload
def rnn(
    mode: str,
    x: TensorLike,
    states: Sequence[TensorLike] | None,
    weights: Sequence[TensorLike],
    *,
    hidden: int,
    layers: int = 1,
    bidirectional: bool = False,
    projection: int = 0,
    bias: bool = True,
) -> tuple[Tensor, ...]: ...
@overload
def rnn(
    mode: str,
    x: Value | TensorLike,
    states: Sequence[Value | TensorLike] | None,
    weights: Sequence[Value | TensorLike],
    *,
    hidden: int,
    layers: int = 1,
    bidirectional: bool = False,
    projection: int = 0,
    bias: bool = True,
) -> tuple[Value, ...]: ...
@overload
def rsqrt(x: TensorLike) -> Tensor: ...
@overload
def rsqrt(x: Value) -> Value: ...
@overload
def sgd_update(
    p: TensorLike,
    g: TensorLike,
    m: TensorLike,
    rate: TensorLike,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> tuple[Tensor, Tensor]: ...
@overload
def sgd_update(
    p: Value | TensorLike,
    g: Value | TensorLike,
    m: Value | TensorLike,
    rate: Value | TensorLike,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> tuple[Value, Value]: ...
@overload
def sigmoid(input: TensorLike) -> Tensor: ...
@overload
def sigmoid(input: Value) -> Value: ...
@overload
def sign(x: TensorLike) -> Tensor: ...
@overload
def sign(x: Value) -> Value: ...
@overload
def silu(input: TensorLike) -> Tensor: ...
@overload
def silu(input: Value) -> Value: ...
@overload
def sin(x: TensorLike) -> Tensor: ...
@overload
def sin(x: Value) -> Value: ...
@overload
def smooth_l1_loss(
    input: TensorLike, target: TensorLike, reduction: str = "mean", beta: float = 1.0
) -> Tensor: ...
@overload
def smooth_l1_loss(
    input: Value | TensorLike, target: Value | TensorLike, reduction: str = "mean", beta: float = 1.0
) -> Value: ...
@overload
def softmax(input: TensorLike, dim: int | Sequence[int] = -1) -> Tensor: ...
@overload
def softmax(input: Value, dim: int | Sequence[int] = -1) -> Value: ...
@overload
def softplus(input: TensorLike, beta: float = 1.0) -> Tensor: ...
@overload
def softplus(input: Value, beta: float = 1.0) -> Value: ...
@overload
def space_to_batch(x: TensorLike, block: int | Sequence[int]) -> Tensor: ...
@overload
def space_to_batch(x: Value, block: int | Sequence[int]) -> Value: ...
@overload
def space_to_depth(x: TensorLike, block: int | Sequence[int]) -> Tensor: ...
@overload
def space_to_depth(x: Value, block: int | Sequence[int]) -> Value: ...
@overload
def split(x: TensorLike, sizes: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]: ...
@overload
def split(x: Value, sizes: int | Sequence[int], axis: int = 0) -> tuple[Value, ...]: ...
@overload
def sqrt(x: TensorLike) -> Tensor: ...
@overload
def sqrt(x: Value) -> Value: ...
@overload
def square(x: TensorLike) -> Tensor: ...
@overload
def square(x: Value) -> Value: ...
@overload
def squeeze(x: TensorLike, axis: int | Sequence[int] | None = None) -> Tensor: ...
@overload
def squeeze(x: Value, axis: int | Sequence[int] | None = None) -> Value: ...
@overload
def stack(tensors: Sequence[TensorLike], axis: int = 0) -> Tensor: ...
@overload
def stack(tensors: Sequence[Value | TensorLike], axis: int = 0) -> Value: ...
@overload
def sub(a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def sub(a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
@overload
def sum(x: TensorLike, axis: Axes | None = None, keepdims: bool = False) -> Tensor: ...
@overload
def sum(x: Value, axis: Axes | None = None, keepdims: bool = False) -> Value: ...
@overload
def sum_pool1d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def sum_pool1d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
) -> Value: ...
@overload
def sum_pool2d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def sum_pool2d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
) -> Value: ...
@overload
def sum_pool3d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def sum_pool3d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
) -> Value: ...
@overload
def sum_to(x: TensorLike, shape: Sequence[int]) -> Tensor: ...
@overload
def sum_to(x: Value, shape: Sequence[int]) -> Value: ...
@overload
def swap_halves(x: TensorLike, axis: int = 0) -> Tensor: ...
@overload
def swap_halves(x: Value, axis: int = 0) -> Value: ...
@overload
def swap_pairs(x: TensorLike, axis: int = 0) -> Tensor: ...
@overload
def swap_pairs(x: Value, axis: int = 0) -> Value: ...
@overload
def swapaxes(x: TensorLike, axis1: int, axis2: int) -> Tensor: ...
@overload
def swapaxes(x: Value, axis1: int, axis2: int) -> Value: ...
@overload
def swish(input: TensorLike, beta: float = 1.0) -> Tensor: ...
@overload
def swish(input: Value, beta: float = 1.0) -> Value: ...
@overload
def tan(x: TensorLike) -> Tensor: ...
@overload
def tan(x: Value) -> Value: ...
@overload
def tanh(input: TensorLike) -> Tensor: ...
@overload
def tanh(input: Value) -> Value: ...
@overload
def threshold(input: TensorLike, threshold: float, value: float) -> Tensor: ...
@overload
def threshold(input: Value, threshold: float, value: float) -> Value: ...
@overload
def transpose(x: TensorLike, order: Sequence[int] | None = None) -> Tensor: ...
@overload
def transpose(x: Value, order: Sequence[int] | None = None) -> Value: ...
@overload
def unfold(
    input: TensorLike,
    kernel_size: int | Iterable[int],
    dilation: int | Iterable[int] = 1,
    padding: Padding = 0,
    stride: int | Iterable[int] = 1,
) -> Tensor: ...
@overload
def unfold(
    input: Value,
    kernel_size: int | Iterable[int],
    dilation: int | Iterable[int] = 1,
    padding: Padding = 0,
    stride: int | Iterable[int] = 1,
) -> Value: ...
@overload
def unsqueeze(x: TensorLike, axis: int) -> Tensor: ...
@overload
def unsqueeze(x: Value, axis: int) -> Value: ...
@overload
def var(x: TensorLike, axis: Axes | None = None, correction: float = 1, keepdims: bool = False) -> Tensor: ...
@overload
def var(x: Value, axis: Axes | None = None, correction: float = 1, keepdims: bool = False) -> Value: ...
@overload
def where(cond: TensorLike, a: TensorLike, b: TensorLike) -> Tensor: ...
@overload
def where(cond: Value | TensorLike, a: Value | TensorLike, b: Value | TensorLike) -> Value: ...
