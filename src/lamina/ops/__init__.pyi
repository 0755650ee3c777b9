"""Generated from the signatures by `python -m tools.stubs write`; do not edit."""

# An overload for traced values also takes what the one before takes; which one holds is decided in this order.
# mypy: disable-error-code="overload-overlap, override, misc"
# pyright: reportOverlappingOverload=false, reportIncompatibleMethodOverride=false

from collections.abc import Sequence
from typing import Literal, SupportsIndex, overload

from lamina.graph.ir.graph import Value
from lamina.ops import core as core
from lamina.ops import primitives as primitives
from lamina.ops.arguments import Dims, DTypeLike, Number, Sizes
from lamina.ops.primitives.loss import Reduction
from lamina.ops.primitives.reduce import MaxDim, MinDim
from lamina.ops.primitives.window import Padding
from lamina.tensors import Tensor, TensorLike

__all__ = [
    "abs",
    "abs_max",
    "adam_update",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "add",
    "addmm",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "attention",
    "attention_weights",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "baddbmm",
    "batch_norm",
    "batch_norm_with_statistics",
    "batch_to_space",
    "binary_cross_entropy_with_logits",
    "bmm",
    "cast",
    "cat",
    "ceil",
    "chunk",
    "clamp",
    "clipped_relu",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cos",
    "cross_entropy",
    "cumsum",
    "depth_to_space",
    "dequantize",
    "div",
    "divisive_norm",
    "dot",
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
    "instance_norm_with_statistics",
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
    "logsumexp",
    "lt",
    "matmul",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mm",
    "mse_loss",
    "mul",
    "mul_no_zeros",
    "mv",
    "ne",
    "neg",
    "nll_loss",
    "norm1",
    "norm2",
    "one_hot",
    "operand",
    "outer",
    "pad",
    "permute",
    "pixel_shuffle",
    "pixel_unshuffle",
    "pow",
    "prelu",
    "prod",
    "quantize",
    "random_normal",
    "random_uniform",
    "reciprocal",
    "relu",
    "relu6",
    "reshape",
    "resize_nearest",
    "rms_norm",
    "rnn",
    "rsqrt",
    "scaled_dot_product_attention",
    "sgd_update",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "smooth_l1_loss",
    "softmax",
    "softmin",
    "softplus",
    "space_to_batch",
    "space_to_depth",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "std_mean",
    "sub",
    "sum",
    "sum_pool1d",
    "sum_pool2d",
    "sum_pool3d",
    "sum_to",
    "swap_halves",
    "swap_pairs",
    "swish",
    "tan",
    "tanh",
    "threshold",
    "transpose",
    "trunc",
    "unfold",
    "unsqueeze",
    "var",
    "var_mean",
    "where",
]

@overload
def abs(input: TensorLike) -> Tensor: ...
@overload
def abs(input: Value) -> Value: ...
@overload
def abs_max(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def abs_max(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
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
def adaptive_avg_pool1d(input: TensorLike, output_size: int | Sequence[int | None] | None) -> Tensor: ...
@overload
def adaptive_avg_pool1d(input: Value, output_size: int | Sequence[int | None] | None) -> Value: ...
@overload
def adaptive_avg_pool2d(input: TensorLike, output_size: int | Sequence[int | None] | None) -> Tensor: ...
@overload
def adaptive_avg_pool2d(input: Value, output_size: int | Sequence[int | None] | None) -> Value: ...
@overload
def adaptive_avg_pool3d(input: TensorLike, output_size: int | Sequence[int | None] | None) -> Tensor: ...
@overload
def adaptive_avg_pool3d(input: Value, output_size: int | Sequence[int | None] | None) -> Value: ...
@overload
def add(input: TensorLike, other: TensorLike, *, alpha: Number = 1) -> Tensor: ...
@overload
def add(input: Value | TensorLike, other: Value | TensorLike, *, alpha: Number = 1) -> Value: ...
@overload
def addmm(
    input: TensorLike, mat1: TensorLike, mat2: TensorLike, *, beta: Number = 1, alpha: Number = 1
) -> Tensor: ...
@overload
def addmm(
    input: Value | TensorLike,
    mat1: Value | TensorLike,
    mat2: Value | TensorLike,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> Value: ...
@overload
def amax(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def amax(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
@overload
def amin(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def amin(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
@overload
def argmax(input: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def argmax(input: Value, dim: int | None = None, keepdim: bool = False) -> Value: ...
@overload
def argmin(input: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def argmin(input: Value, dim: int | None = None, keepdim: bool = False) -> Value: ...
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
def baddbmm(
    input: TensorLike, batch1: TensorLike, batch2: TensorLike, *, beta: Number = 1, alpha: Number = 1
) -> Tensor: ...
@overload
def baddbmm(
    input: Value | TensorLike,
    batch1: Value | TensorLike,
    batch2: Value | TensorLike,
    *,
    beta: Number = 1,
    alpha: Number = 1,
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
    mode: Literal["spatial", "per_activation", "spatial_persistent"] = "spatial",
    relu: bool = False,
    residual: TensorLike | None = None,
) -> Tensor: ...
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
    mode: Literal["spatial", "per_activation", "spatial_persistent"] = "spatial",
    relu: bool = False,
    residual: Value | TensorLike | None = None,
) -> Value: ...
@overload
def batch_norm_with_statistics(
    input: TensorLike,
    running_mean: TensorLike,
    running_var: TensorLike,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
    *,
    mode: Literal["spatial", "per_activation", "spatial_persistent"] = "spatial",
    relu: bool = False,
    residual: TensorLike | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def batch_norm_with_statistics(
    input: Value | TensorLike,
    running_mean: Value | TensorLike,
    running_var: Value | TensorLike,
    weight: Value | TensorLike | None = None,
    bias: Value | TensorLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
    *,
    mode: Literal["spatial", "per_activation", "spatial_persistent"] = "spatial",
    relu: bool = False,
    residual: Value | TensorLike | None = None,
) -> tuple[Value, Value, Value]: ...
@overload
def batch_to_space(input: TensorLike, block: int | Sequence[int]) -> Tensor: ...
@overload
def batch_to_space(input: Value, block: int | Sequence[int]) -> Value: ...
@overload
def binary_cross_entropy_with_logits(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    *,
    reduction: Reduction = "mean",
    pos_weight: TensorLike | None = None,
) -> Tensor: ...
@overload
def binary_cross_entropy_with_logits(
    input: Value | TensorLike,
    target: Value | TensorLike,
    weight: Value | TensorLike | None = None,
    *,
    reduction: Reduction = "mean",
    pos_weight: Value | TensorLike | None = None,
) -> Value: ...
@overload
def bmm(input: TensorLike, mat2: TensorLike) -> Tensor: ...
@overload
def bmm(input: Value | TensorLike, mat2: Value | TensorLike) -> Value: ...
@overload
def cast(input: TensorLike, dtype: DTypeLike) -> Tensor: ...
@overload
def cast(input: Value, dtype: DTypeLike) -> Value: ...
@overload
def cat(tensors: Sequence[TensorLike], dim: int = 0) -> Tensor: ...
@overload
def cat(tensors: Sequence[Value | TensorLike], dim: int = 0) -> Value: ...
@overload
def ceil(input: TensorLike) -> Tensor: ...
@overload
def ceil(input: Value) -> Value: ...
@overload
def chunk(input: TensorLike, chunks: int, dim: int = 0) -> tuple[Tensor, ...]: ...
@overload
def chunk(input: Value, chunks: int, dim: int = 0) -> tuple[Value, ...]: ...
@overload
def clamp(input: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None) -> Tensor: ...
@overload
def clamp(
    input: Value | TensorLike, min: Value | TensorLike | None = None, max: Value | TensorLike | None = None
) -> Value: ...
@overload
def clipped_relu(input: TensorLike, hi: float) -> Tensor: ...
@overload
def clipped_relu(input: Value, hi: float) -> Value: ...
@overload
def conv1d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
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
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
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
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
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
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
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
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
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
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
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
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Tensor: ...
@overload
def conv_transpose1d(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Value: ...
@overload
def conv_transpose2d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Tensor: ...
@overload
def conv_transpose2d(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Value: ...
@overload
def conv_transpose3d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Tensor: ...
@overload
def conv_transpose3d(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    bias: Value | TensorLike | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    flip: bool = False,
    algorithm: str | None = None,
) -> Value: ...
@overload
def cos(input: TensorLike) -> Tensor: ...
@overload
def cos(input: Value) -> Value: ...
@overload
def cross_entropy(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    *,
    ignore_index: int | None = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Tensor: ...
@overload
def cross_entropy(
    input: Value | TensorLike,
    target: Value | TensorLike,
    weight: Value | TensorLike | None = None,
    *,
    ignore_index: int | None = -100,
    reduction: Reduction = "mean",
    label_smoothing: float = 0.0,
) -> Value: ...
@overload
def cumsum(input: TensorLike, dim: int, *, dtype: DTypeLike | None = None) -> Tensor: ...
@overload
def cumsum(input: Value, dim: int, *, dtype: DTypeLike | None = None) -> Value: ...
@overload
def depth_to_space(input: TensorLike, block: int | Sequence[int]) -> Tensor: ...
@overload
def depth_to_space(input: Value, block: int | Sequence[int]) -> Value: ...
@overload
def dequantize(input: TensorLike, scale: TensorLike) -> Tensor: ...
@overload
def dequantize(input: Value | TensorLike, scale: Value | TensorLike) -> Value: ...
@overload
def div(
    input: TensorLike, other: TensorLike, *, rounding_mode: Literal["trunc", "floor"] | None = None
) -> Tensor: ...
@overload
def div(
    input: Value | TensorLike,
    other: Value | TensorLike,
    *,
    rounding_mode: Literal["trunc", "floor"] | None = None,
) -> Value: ...
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
def dot(input: TensorLike, tensor: TensorLike) -> Tensor: ...
@overload
def dot(input: Value | TensorLike, tensor: Value | TensorLike) -> Value: ...
@overload
def dropout(
    input: TensorLike, p: float = 0.5, training: bool = True, *, state: TensorLike
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def dropout(
    input: Value | TensorLike, p: float = 0.5, training: bool = True, *, state: Value | TensorLike
) -> tuple[Value, Value, Value]: ...
@overload
def elu(input: TensorLike, alpha: float = 1.0) -> Tensor: ...
@overload
def elu(input: Value, alpha: float = 1.0) -> Value: ...
@overload
def embedding(input: TensorLike, weight: TensorLike, padding_idx: int | None = None) -> Tensor: ...
@overload
def embedding(
    input: Value | TensorLike, weight: Value | TensorLike, padding_idx: int | None = None
) -> Value: ...
@overload
def eq(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def eq(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def erf(input: TensorLike) -> Tensor: ...
@overload
def erf(input: Value) -> Value: ...
@overload
def exp(input: TensorLike) -> Tensor: ...
@overload
def exp(input: Value) -> Value: ...
@overload
def expand(input: TensorLike, size: Sequence[SupportsIndex]) -> Tensor: ...
@overload
def expand(input: Value, size: Sequence[SupportsIndex]) -> Value: ...
@overload
def flatten(input: TensorLike, start_dim: int = 0, end_dim: int = -1) -> Tensor: ...
@overload
def flatten(input: Value, start_dim: int = 0, end_dim: int = -1) -> Value: ...
@overload
def flip(input: TensorLike, dims: int | Sequence[int]) -> Tensor: ...
@overload
def flip(input: Value, dims: int | Sequence[int]) -> Value: ...
@overload
def floor(input: TensorLike) -> Tensor: ...
@overload
def floor(input: Value) -> Value: ...
@overload
def ge(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def ge(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def gelu(input: TensorLike, approximate: Literal["none", "tanh"] = "none") -> Tensor: ...
@overload
def gelu(input: Value, approximate: Literal["none", "tanh"] = "none") -> Value: ...
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
def gt(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def gt(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def hardsigmoid(input: TensorLike) -> Tensor: ...
@overload
def hardsigmoid(input: Value) -> Value: ...
@overload
def hardswish(input: TensorLike) -> Tensor: ...
@overload
def hardswish(input: Value) -> Value: ...
@overload
def hardtanh(input: TensorLike, min_val: Number = -1.0, max_val: Number = 1.0) -> Tensor: ...
@overload
def hardtanh(input: Value, min_val: Number = -1.0, max_val: Number = 1.0) -> Value: ...
@overload
def huber_loss(
    input: TensorLike,
    target: TensorLike,
    reduction: Reduction = "mean",
    delta: float = 1.0,
    weight: TensorLike | None = None,
) -> Tensor: ...
@overload
def huber_loss(
    input: Value | TensorLike,
    target: Value | TensorLike,
    reduction: Reduction = "mean",
    delta: float = 1.0,
    weight: Value | TensorLike | None = None,
) -> Value: ...
@overload
def identity(input: TensorLike) -> Tensor: ...
@overload
def identity(input: Value) -> Value: ...
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
) -> Tensor: ...
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
) -> Value: ...
@overload
def instance_norm_with_statistics(
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
def instance_norm_with_statistics(
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
def l1_loss(
    input: TensorLike, target: TensorLike, *, reduction: Reduction = "mean", weight: TensorLike | None = None
) -> Tensor: ...
@overload
def l1_loss(
    input: Value | TensorLike,
    target: Value | TensorLike,
    *,
    reduction: Reduction = "mean",
    weight: Value | TensorLike | None = None,
) -> Value: ...
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
def le(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def le(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
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
def log(input: TensorLike) -> Tensor: ...
@overload
def log(input: Value) -> Value: ...
@overload
def log_softmax(
    input: TensorLike, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def log_softmax(input: Value, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None) -> Value: ...
@overload
def logical_and(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def logical_and(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def logical_not(input: TensorLike) -> Tensor: ...
@overload
def logical_not(input: Value) -> Value: ...
@overload
def logical_or(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def logical_or(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def logsumexp(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def logsumexp(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
@overload
def lt(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def lt(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def matmul(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def matmul(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def max(input: TensorLike) -> Tensor: ...
@overload
def max(input: Value) -> Value: ...
@overload
def max(input: TensorLike, dim: int, keepdim: bool = False) -> MaxDim[Tensor]: ...
@overload
def max(input: Value, dim: int, keepdim: bool = False) -> MaxDim[Value]: ...
@overload
def max(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def max(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def max_pool1d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor: ...
@overload
def max_pool1d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Value: ...
@overload
def max_pool2d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor: ...
@overload
def max_pool2d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Value: ...
@overload
def max_pool3d(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor: ...
@overload
def max_pool3d(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Value: ...
@overload
def maximum(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def maximum(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def mean(
    input: TensorLike, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def mean(
    input: Value, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Value: ...
@overload
def min(input: TensorLike) -> Tensor: ...
@overload
def min(input: Value) -> Value: ...
@overload
def min(input: TensorLike, dim: int, keepdim: bool = False) -> MinDim[Tensor]: ...
@overload
def min(input: Value, dim: int, keepdim: bool = False) -> MinDim[Value]: ...
@overload
def min(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def min(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def minimum(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def minimum(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def mm(input: TensorLike, mat2: TensorLike) -> Tensor: ...
@overload
def mm(input: Value | TensorLike, mat2: Value | TensorLike) -> Value: ...
@overload
def mse_loss(
    input: TensorLike, target: TensorLike, *, reduction: Reduction = "mean", weight: TensorLike | None = None
) -> Tensor: ...
@overload
def mse_loss(
    input: Value | TensorLike,
    target: Value | TensorLike,
    *,
    reduction: Reduction = "mean",
    weight: Value | TensorLike | None = None,
) -> Value: ...
@overload
def mul(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def mul(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def mul_no_zeros(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def mul_no_zeros(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
@overload
def mv(input: TensorLike, vec: TensorLike) -> Tensor: ...
@overload
def mv(input: Value | TensorLike, vec: Value | TensorLike) -> Value: ...
@overload
def ne(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def ne(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def neg(input: TensorLike) -> Tensor: ...
@overload
def neg(input: Value) -> Value: ...
@overload
def nll_loss(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    *,
    ignore_index: int | None = -100,
    reduction: Reduction = "mean",
) -> Tensor: ...
@overload
def nll_loss(
    input: Value | TensorLike,
    target: Value | TensorLike,
    weight: Value | TensorLike | None = None,
    *,
    ignore_index: int | None = -100,
    reduction: Reduction = "mean",
) -> Value: ...
@overload
def norm1(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def norm1(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
@overload
def norm2(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def norm2(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
@overload
def one_hot(tensor: TensorLike, num_classes: int, *, dtype: DTypeLike = ..., dim: int = -1) -> Tensor: ...
@overload
def one_hot(tensor: Value, num_classes: int, *, dtype: DTypeLike = ..., dim: int = -1) -> Value: ...
@overload
def operand(x: TensorLike, what: str = "", name: str = "input") -> Tensor: ...
@overload
def operand(x: Value, what: str = "", name: str = "input") -> Value: ...
@overload
def outer(input: TensorLike, vec2: TensorLike) -> Tensor: ...
@overload
def outer(input: Value | TensorLike, vec2: Value | TensorLike) -> Value: ...
@overload
def pad(
    input: TensorLike,
    pad: Sequence[int],
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant",
    value: Number | None = None,
) -> Tensor: ...
@overload
def pad(
    input: Value,
    pad: Sequence[int],
    mode: Literal["constant", "reflect", "replicate", "circular"] = "constant",
    value: Number | None = None,
) -> Value: ...
@overload
def permute(input: TensorLike, dims: Sequence[int]) -> Tensor: ...
@overload
def permute(input: Value, dims: Sequence[int]) -> Value: ...
@overload
def pixel_shuffle(input: TensorLike, upscale_factor: int) -> Tensor: ...
@overload
def pixel_shuffle(input: Value, upscale_factor: int) -> Value: ...
@overload
def pixel_unshuffle(input: TensorLike, downscale_factor: int) -> Tensor: ...
@overload
def pixel_unshuffle(input: Value, downscale_factor: int) -> Value: ...
@overload
def pow(input: TensorLike, exponent: TensorLike) -> Tensor: ...
@overload
def pow(input: Value | TensorLike, exponent: Value | TensorLike) -> Value: ...
@overload
def prelu(input: TensorLike, weight: TensorLike) -> Tensor: ...
@overload
def prelu(input: Value | TensorLike, weight: Value | TensorLike) -> Value: ...
@overload
def prod(
    input: TensorLike, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def prod(
    input: Value, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Value: ...
@overload
def quantize(input: TensorLike, scale: TensorLike, dtype: DTypeLike = ...) -> Tensor: ...
@overload
def quantize(input: Value | TensorLike, scale: Value | TensorLike, dtype: DTypeLike = ...) -> Value: ...
@overload
def random_normal(
    state: TensorLike,
    shape: int | Sequence[SupportsIndex],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: DTypeLike = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def random_normal(
    state: Value,
    shape: int | Sequence[SupportsIndex],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: DTypeLike = ...,
) -> tuple[Value, Value]: ...
@overload
def random_uniform(
    state: TensorLike,
    shape: int | Sequence[SupportsIndex],
    low: float = 0.0,
    high: float = 1.0,
    dtype: DTypeLike = ...,
) -> tuple[Tensor, Tensor]: ...
@overload
def random_uniform(
    state: Value,
    shape: int | Sequence[SupportsIndex],
    low: float = 0.0,
    high: float = 1.0,
    dtype: DTypeLike = ...,
) -> tuple[Value, Value]: ...
@overload
def reciprocal(input: TensorLike) -> Tensor: ...
@overload
def reciprocal(input: Value) -> Value: ...
@overload
def relu(input: TensorLike) -> Tensor: ...
@overload
def relu(input: Value) -> Value: ...
@overload
def relu6(input: TensorLike) -> Tensor: ...
@overload
def relu6(input: Value) -> Value: ...
@overload
def reshape(input: TensorLike, shape: int | Sequence[SupportsIndex]) -> Tensor: ...
@overload
def reshape(input: Value, shape: int | Sequence[SupportsIndex]) -> Value: ...
@overload
def resize_nearest(input: TensorLike, scale: int | Sequence[int]) -> Tensor: ...
@overload
def resize_nearest(input: Value, scale: int | Sequence[int]) -> Value: ...
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
def rsqrt(input: TensorLike) -> Tensor: ...
@overload
def rsqrt(input: Value) -> Value: ...
@overload
def scaled_dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    attn_mask: TensorLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor: ...
@overload
def scaled_dot_product_attention(
    query: Value | TensorLike,
    key: Value | TensorLike,
    value: Value | TensorLike,
    attn_mask: Value | TensorLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value: ...
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
def sign(input: TensorLike) -> Tensor: ...
@overload
def sign(input: Value) -> Value: ...
@overload
def silu(input: TensorLike) -> Tensor: ...
@overload
def silu(input: Value) -> Value: ...
@overload
def sin(input: TensorLike) -> Tensor: ...
@overload
def sin(input: Value) -> Value: ...
@overload
def smooth_l1_loss(
    input: TensorLike, target: TensorLike, *, reduction: Reduction = "mean", beta: float = 1.0
) -> Tensor: ...
@overload
def smooth_l1_loss(
    input: Value | TensorLike, target: Value | TensorLike, *, reduction: Reduction = "mean", beta: float = 1.0
) -> Value: ...
@overload
def softmax(
    input: TensorLike, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def softmax(input: Value, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None) -> Value: ...
@overload
def softmin(
    input: TensorLike, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def softmin(input: Value, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None) -> Value: ...
@overload
def softplus(input: TensorLike, beta: float = 1.0, threshold: float = 20.0) -> Tensor: ...
@overload
def softplus(input: Value, beta: float = 1.0, threshold: float = 20.0) -> Value: ...
@overload
def space_to_batch(input: TensorLike, block: int | Sequence[int]) -> Tensor: ...
@overload
def space_to_batch(input: Value, block: int | Sequence[int]) -> Value: ...
@overload
def space_to_depth(input: TensorLike, block: int | Sequence[int]) -> Tensor: ...
@overload
def space_to_depth(input: Value, block: int | Sequence[int]) -> Value: ...
@overload
def split(
    tensor: TensorLike, split_size_or_sections: int | Sequence[int], dim: int = 0
) -> tuple[Tensor, ...]: ...
@overload
def split(tensor: Value, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Value, ...]: ...
@overload
def sqrt(input: TensorLike) -> Tensor: ...
@overload
def sqrt(input: Value) -> Value: ...
@overload
def square(input: TensorLike) -> Tensor: ...
@overload
def square(input: Value) -> Value: ...
@overload
def squeeze(input: TensorLike, dim: Dims | None = None) -> Tensor: ...
@overload
def squeeze(input: Value, dim: Dims | None = None) -> Value: ...
@overload
def stack(tensors: Sequence[TensorLike], dim: int = 0) -> Tensor: ...
@overload
def stack(tensors: Sequence[Value | TensorLike], dim: int = 0) -> Value: ...
@overload
def std(
    input: TensorLike,
    dim: Dims | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor: ...
@overload
def std(
    input: Value,
    dim: Dims | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Value: ...
@overload
def std_mean(
    input: TensorLike,
    dim: Dims | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def std_mean(
    input: Value,
    dim: Dims | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Value, Value]: ...
@overload
def sub(input: TensorLike, other: TensorLike, *, alpha: Number = 1) -> Tensor: ...
@overload
def sub(input: Value | TensorLike, other: Value | TensorLike, *, alpha: Number = 1) -> Value: ...
@overload
def sum(
    input: TensorLike, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def sum(
    input: Value, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Value: ...
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
def sum_to(input: TensorLike, shape: Sequence[int]) -> Tensor: ...
@overload
def sum_to(input: Value, shape: Sequence[int]) -> Value: ...
@overload
def swap_halves(input: TensorLike, dim: int = 0) -> Tensor: ...
@overload
def swap_halves(input: Value, dim: int = 0) -> Value: ...
@overload
def swap_pairs(input: TensorLike, dim: int = 0) -> Tensor: ...
@overload
def swap_pairs(input: Value, dim: int = 0) -> Value: ...
@overload
def swish(input: TensorLike, beta: float = 1.0) -> Tensor: ...
@overload
def swish(input: Value, beta: float = 1.0) -> Value: ...
@overload
def tan(input: TensorLike) -> Tensor: ...
@overload
def tan(input: Value) -> Value: ...
@overload
def tanh(input: TensorLike) -> Tensor: ...
@overload
def tanh(input: Value) -> Value: ...
@overload
def threshold(input: TensorLike, threshold: Number, value: Number) -> Tensor: ...
@overload
def threshold(input: Value, threshold: Number, value: Number) -> Value: ...
@overload
def transpose(input: TensorLike, dim0: int, dim1: int) -> Tensor: ...
@overload
def transpose(input: Value, dim0: int, dim1: int) -> Value: ...
@overload
def trunc(input: TensorLike) -> Tensor: ...
@overload
def trunc(input: Value) -> Value: ...
@overload
def unfold(
    input: TensorLike, kernel_size: Sizes, dilation: Sizes = 1, padding: Padding = 0, stride: Sizes = 1
) -> Tensor: ...
@overload
def unfold(
    input: Value, kernel_size: Sizes, dilation: Sizes = 1, padding: Padding = 0, stride: Sizes = 1
) -> Value: ...
@overload
def unsqueeze(input: TensorLike, dim: int) -> Tensor: ...
@overload
def unsqueeze(input: Value, dim: int) -> Value: ...
@overload
def var(
    input: TensorLike,
    dim: Dims | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor: ...
@overload
def var(
    input: Value,
    dim: Dims | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Value: ...
@overload
def var_mean(
    input: TensorLike,
    dim: Dims | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]: ...
@overload
def var_mean(
    input: Value,
    dim: Dims | bool | None = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Value, Value]: ...
@overload
def where(condition: TensorLike, input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def where(condition: Value | TensorLike, input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
