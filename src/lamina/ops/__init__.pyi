"""Generated from the signatures by `python -m tools.stubs write`; do not edit."""

# An overload for traced values also takes what the one before takes; which one holds is decided in this order.
# mypy: disable-error-code="overload-overlap, override, misc"
# pyright: reportOverlappingOverload=false, reportIncompatibleMethodOverride=false

from collections.abc import Callable, Sequence
from typing import Literal, SupportsIndex, overload

from lamina.graph.ir.graph import Value
from lamina.ops import core as core
from lamina.ops import primitives as primitives
from lamina.ops.arguments import Dims, DTypeLike, Number, Sizes
from lamina.ops.core import DeviceLike
from lamina.ops.linalg import SlogDet
from lamina.ops.primitives.elementary import Frexp
from lamina.ops.primitives.embedding_bag import BagMode
from lamina.ops.primitives.gather import Combination
from lamina.ops.primitives.generator import GeneratorLike
from lamina.ops.primitives.grid_sample import GridMode, GridPadding
from lamina.ops.primitives.interpolate import Factors, Mode
from lamina.ops.primitives.loss import Reduction
from lamina.ops.primitives.reduce import MaxDim, MinDim
from lamina.ops.primitives.scan import CumMax, CumMin
from lamina.ops.primitives.sort import SortedDim, TopKDim
from lamina.ops.primitives.statistics import AMinMax, Interpolation, KthValueDim, ModeDim
from lamina.ops.primitives.window import Padding
from lamina.spec import Shape
from lamina.tensors import Tensor, TensorLike

__all__ = [
    "abs",
    "abs_max",
    "absolute",
    "acos",
    "acosh",
    "adam_update",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "add",
    "addbmm",
    "addcdiv",
    "addcmul",
    "addmm",
    "addmv",
    "addr",
    "affine_grid",
    "all",
    "allclose",
    "alpha_dropout",
    "amax",
    "amin",
    "aminmax",
    "angle",
    "any",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmin",
    "argsort",
    "argwhere",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "attention",
    "attention_weights",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "baddbmm",
    "bartlett_window",
    "batch_norm",
    "batch_norm_with_statistics",
    "batch_to_space",
    "batched_nms",
    "bernoulli",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "bincount",
    "bitwise_and",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "blackman_window",
    "block_diag",
    "bmm",
    "box_iou",
    "broadcast_shapes",
    "broadcast_tensors",
    "broadcast_to",
    "bucketize",
    "cartesian_prod",
    "cast",
    "cat",
    "cdist",
    "ceil",
    "celu",
    "channel_shuffle",
    "cholesky_inverse",
    "cholesky_solve",
    "chunk",
    "clamp",
    "clamp_max",
    "clamp_min",
    "clip",
    "clipped_relu",
    "clone",
    "column_stack",
    "combinations",
    "concat",
    "concatenate",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "copysign",
    "corrcoef",
    "cos",
    "cosh",
    "cosine_embedding_loss",
    "cosine_similarity",
    "count_nonzero",
    "cov",
    "cross",
    "cross_entropy",
    "ctc_loss",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "cumulative_trapezoid",
    "deg2rad",
    "depth_to_space",
    "dequantize",
    "det",
    "diag",
    "diag_embed",
    "diagflat",
    "diagonal",
    "diagonal_scatter",
    "diff",
    "digamma",
    "dist",
    "div",
    "divide",
    "divisive_norm",
    "dot",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "dsplit",
    "dstack",
    "einsum",
    "elu",
    "embedding",
    "embedding_bag",
    "empty_like",
    "eq",
    "equal",
    "erf",
    "erfc",
    "erfinv",
    "exp",
    "exp2",
    "expand",
    "expm1",
    "fake_quantize_per_channel_affine",
    "fake_quantize_per_tensor_affine",
    "feature_alpha_dropout",
    "fix",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "float_power",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "fold",
    "frac",
    "fractional_max_pool2d",
    "fractional_max_pool2d_with_indices",
    "fractional_max_pool3d",
    "fractional_max_pool3d_with_indices",
    "frexp",
    "full_like",
    "gather",
    "gaussian_nll_loss",
    "gcd",
    "ge",
    "gelu",
    "ger",
    "getitem",
    "global_avg_pool",
    "global_max_pool",
    "glu",
    "gradient",
    "greater",
    "greater_equal",
    "grid_sample",
    "group_norm",
    "gt",
    "gumbel_softmax",
    "hamming_window",
    "hann_window",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "heaviside",
    "hinge_embedding_loss",
    "histc",
    "hsplit",
    "hstack",
    "huber_loss",
    "hypot",
    "i0",
    "identity",
    "igamma",
    "igammac",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "index_reduce",
    "index_select",
    "inner",
    "instance_norm",
    "instance_norm_with_statistics",
    "interpolate",
    "inverse",
    "is_floating_point",
    "is_nonzero",
    "isclose",
    "isfinite",
    "isin",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "istft",
    "kaiser_window",
    "kl_div",
    "kron",
    "kthvalue",
    "l1_loss",
    "layer_norm",
    "lcm",
    "ldexp",
    "le",
    "leaky_relu",
    "lerp",
    "less",
    "less_equal",
    "lgamma",
    "linear",
    "local_response_norm",
    "log",
    "log1p",
    "log2",
    "log10",
    "log_softmax",
    "logaddexp",
    "logaddexp2",
    "logcumsumexp",
    "logdet",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "logit",
    "logsigmoid",
    "logsumexp",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "lt",
    "margin_ranking_loss",
    "masked_fill",
    "masked_scatter",
    "masked_select",
    "matmul",
    "matrix_exp",
    "matrix_power",
    "max",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool3d",
    "max_pool3d_with_indices",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "maximum",
    "mean",
    "median",
    "melscale_fbanks",
    "meshgrid",
    "min",
    "minimum",
    "mish",
    "mm",
    "mode",
    "moveaxis",
    "movedim",
    "mse_loss",
    "msort",
    "mul",
    "mul_no_zeros",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "multinomial",
    "multiply",
    "mv",
    "mvlgamma",
    "nan_to_num",
    "nanmean",
    "nanmedian",
    "nanquantile",
    "nansum",
    "narrow",
    "ne",
    "neg",
    "negative",
    "nextafter",
    "nll_loss",
    "nms",
    "nms_mask",
    "nonzero",
    "norm",
    "norm1",
    "norm2",
    "normal",
    "normalize",
    "not_equal",
    "numel",
    "one_hot",
    "ones_like",
    "operand",
    "outer",
    "pad",
    "pairwise_distance",
    "pdist",
    "permute",
    "pinverse",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "polygamma",
    "positive",
    "pow",
    "prelu",
    "prod",
    "put",
    "quantile",
    "quantize",
    "rad2deg",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "random_normal",
    "random_uniform",
    "randperm",
    "ravel",
    "reciprocal",
    "relu",
    "relu6",
    "remainder",
    "renorm",
    "repeat_interleave",
    "reshape",
    "resize_nearest",
    "reverse_sequence",
    "rms_norm",
    "rnn",
    "roi_align",
    "roll",
    "rot90",
    "round",
    "row_stack",
    "rrelu",
    "rsqrt",
    "rsub",
    "scaled_dot_product_attention",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "searchsorted",
    "select",
    "select_scatter",
    "selu",
    "sgd_update",
    "sgn",
    "sigmoid",
    "sigmoid_focal_loss",
    "sign",
    "signbit",
    "silu",
    "sin",
    "sinc",
    "sinh",
    "slice_scatter",
    "slogdet",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "sort",
    "space_to_batch",
    "space_to_depth",
    "split",
    "split_with_sizes",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "std_mean",
    "stft",
    "stop_gradient",
    "sub",
    "subtract",
    "sum",
    "sum_pool1d",
    "sum_pool2d",
    "sum_pool3d",
    "sum_to",
    "swap_halves",
    "swap_pairs",
    "swapaxes",
    "swapdims",
    "swish",
    "t",
    "take",
    "take_along_dim",
    "tan",
    "tanh",
    "tanhshrink",
    "tensor_split",
    "tensordot",
    "threshold",
    "tile",
    "topk",
    "trace",
    "transpose",
    "trapezoid",
    "trapz",
    "tril",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    "triu",
    "true_divide",
    "trunc",
    "unbind",
    "unflatten",
    "unfold",
    "unique",
    "unique_consecutive",
    "unravel_index",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "unsqueeze",
    "upsample",
    "upsample_bilinear",
    "upsample_nearest",
    "vander",
    "var",
    "var_mean",
    "vdot",
    "vector_norm",
    "vsplit",
    "vstack",
    "where",
    "xlogy",
    "zeros_like",
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
def acos(input: TensorLike) -> Tensor: ...
@overload
def acos(input: Value) -> Value: ...
@overload
def acosh(input: TensorLike) -> Tensor: ...
@overload
def acosh(input: Value) -> Value: ...
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
def adaptive_max_pool1d(
    input: TensorLike, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Tensor: ...
@overload
def adaptive_max_pool1d(
    input: Value, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Value: ...
@overload
def adaptive_max_pool1d_with_indices(
    input: TensorLike, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Tensor: ...
@overload
def adaptive_max_pool1d_with_indices(
    input: Value, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Value: ...
@overload
def adaptive_max_pool2d(
    input: TensorLike, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Tensor: ...
@overload
def adaptive_max_pool2d(
    input: Value, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Value: ...
@overload
def adaptive_max_pool2d_with_indices(
    input: TensorLike, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Tensor: ...
@overload
def adaptive_max_pool2d_with_indices(
    input: Value, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Value: ...
@overload
def adaptive_max_pool3d(
    input: TensorLike, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Tensor: ...
@overload
def adaptive_max_pool3d(
    input: Value, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Value: ...
@overload
def adaptive_max_pool3d_with_indices(
    input: TensorLike, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Tensor: ...
@overload
def adaptive_max_pool3d_with_indices(
    input: Value, output_size: int | Sequence[int | None] | None, return_indices: bool = False
) -> Value: ...
@overload
def add(input: TensorLike, other: TensorLike, *, alpha: Number = 1) -> Tensor: ...
@overload
def add(input: Value | TensorLike, other: Value | TensorLike, *, alpha: Number = 1) -> Value: ...
@overload
def addbmm(
    input: TensorLike, batch1: TensorLike, batch2: TensorLike, *, beta: Number = 1, alpha: Number = 1
) -> Tensor: ...
@overload
def addbmm(
    input: Value | TensorLike,
    batch1: Value | TensorLike,
    batch2: Value | TensorLike,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> Value: ...
@overload
def addcdiv(input: TensorLike, tensor1: TensorLike, tensor2: TensorLike, *, value: Number = 1) -> Tensor: ...
@overload
def addcdiv(
    input: Value | TensorLike, tensor1: Value | TensorLike, tensor2: Value | TensorLike, *, value: Number = 1
) -> Value: ...
@overload
def addcmul(input: TensorLike, tensor1: TensorLike, tensor2: TensorLike, *, value: Number = 1) -> Tensor: ...
@overload
def addcmul(
    input: Value | TensorLike, tensor1: Value | TensorLike, tensor2: Value | TensorLike, *, value: Number = 1
) -> Value: ...
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
def addmv(
    input: TensorLike, mat: TensorLike, vec: TensorLike, *, beta: Number = 1, alpha: Number = 1
) -> Tensor: ...
@overload
def addmv(
    input: Value | TensorLike,
    mat: Value | TensorLike,
    vec: Value | TensorLike,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> Value: ...
@overload
def addr(
    input: TensorLike, vec1: TensorLike, vec2: TensorLike, *, beta: Number = 1, alpha: Number = 1
) -> Tensor: ...
@overload
def addr(
    input: Value | TensorLike,
    vec1: Value | TensorLike,
    vec2: Value | TensorLike,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> Value: ...
@overload
def affine_grid(theta: TensorLike, size: Sequence[int], align_corners: bool | None = None) -> Tensor: ...
@overload
def affine_grid(theta: Value, size: Sequence[int], align_corners: bool | None = None) -> Value: ...
@overload
def all(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def all(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
def allclose(
    input: Value | TensorLike,
    other: Value | TensorLike,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> bool: ...
@overload
def alpha_dropout(
    input: TensorLike,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
    *,
    state: TensorLike | None = None,
) -> Tensor: ...
@overload
def alpha_dropout(
    input: Value | TensorLike,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
    *,
    state: Value | TensorLike | None = None,
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
def aminmax(input: TensorLike, *, dim: int | None = None, keepdim: bool = False) -> AMinMax[Tensor]: ...
@overload
def aminmax(input: Value, *, dim: int | None = None, keepdim: bool = False) -> AMinMax[Value]: ...
@overload
def angle(input: TensorLike) -> Tensor: ...
@overload
def angle(input: Value) -> Value: ...
@overload
def any(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def any(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
@overload
def argmax(input: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def argmax(input: Value, dim: int | None = None, keepdim: bool = False) -> Value: ...
@overload
def argmin(input: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def argmin(input: Value, dim: int | None = None, keepdim: bool = False) -> Value: ...
@overload
def argsort(
    input: TensorLike, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> Tensor: ...
@overload
def argsort(input: Value, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Value: ...
@overload
def argwhere(input: TensorLike) -> Tensor: ...
@overload
def argwhere(input: Value) -> Value: ...
@overload
def asin(input: TensorLike) -> Tensor: ...
@overload
def asin(input: Value) -> Value: ...
@overload
def asinh(input: TensorLike) -> Tensor: ...
@overload
def asinh(input: Value) -> Value: ...
@overload
def atan(input: TensorLike) -> Tensor: ...
@overload
def atan(input: Value) -> Value: ...
@overload
def atan2(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def atan2(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def atanh(input: TensorLike) -> Tensor: ...
@overload
def atanh(input: Value) -> Value: ...
@overload
def atleast_1d(*tensors: TensorLike) -> Tensor: ...
@overload
def atleast_1d(*tensors: Value) -> Value: ...
@overload
def atleast_2d(*tensors: TensorLike) -> Tensor: ...
@overload
def atleast_2d(*tensors: Value) -> Value: ...
@overload
def atleast_3d(*tensors: TensorLike) -> Tensor: ...
@overload
def atleast_3d(*tensors: Value) -> Value: ...
@overload
def attention(
    q: TensorLike,
    k: TensorLike,
    v: TensorLike,
    bias: TensorLike | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
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
    dropout_p: float = 0.0,
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
def bartlett_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
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
def batched_nms(boxes: TensorLike, scores: TensorLike, idxs: TensorLike, iou_threshold: float) -> Tensor: ...
@overload
def batched_nms(
    boxes: Value | TensorLike, scores: Value | TensorLike, idxs: Value | TensorLike, iou_threshold: float
) -> Value: ...
@overload
def bernoulli(
    input: TensorLike, p: float | None = None, *, generator: GeneratorLike | None = None
) -> Tensor: ...
@overload
def bernoulli(input: Value, p: float | None = None, *, generator: GeneratorLike | None = None) -> Value: ...
@overload
def bilinear(
    input1: TensorLike, input2: TensorLike, weight: TensorLike, bias: TensorLike | None = None
) -> Tensor: ...
@overload
def bilinear(
    input1: Value | TensorLike,
    input2: Value | TensorLike,
    weight: Value | TensorLike,
    bias: Value | TensorLike | None = None,
) -> Value: ...
@overload
def binary_cross_entropy(
    input: TensorLike, target: TensorLike, weight: TensorLike | None = None, *, reduction: Reduction = "mean"
) -> Tensor: ...
@overload
def binary_cross_entropy(
    input: Value | TensorLike,
    target: Value | TensorLike,
    weight: Value | TensorLike | None = None,
    *,
    reduction: Reduction = "mean",
) -> Value: ...
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
def bincount(input: TensorLike, weights: TensorLike | None = None, minlength: int = 0) -> Tensor: ...
@overload
def bincount(
    input: Value | TensorLike, weights: Value | TensorLike | None = None, minlength: int = 0
) -> Value: ...
@overload
def bitwise_and(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def bitwise_and(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def bitwise_left_shift(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def bitwise_left_shift(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def bitwise_not(input: TensorLike) -> Tensor: ...
@overload
def bitwise_not(input: Value) -> Value: ...
@overload
def bitwise_or(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def bitwise_or(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def bitwise_right_shift(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def bitwise_right_shift(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def bitwise_xor(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def bitwise_xor(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
def blackman_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def block_diag(*tensors: TensorLike) -> Tensor: ...
@overload
def block_diag(*tensors: Value) -> Value: ...
@overload
def bmm(input: TensorLike, mat2: TensorLike) -> Tensor: ...
@overload
def bmm(input: Value | TensorLike, mat2: Value | TensorLike) -> Value: ...
@overload
def box_iou(boxes1: TensorLike, boxes2: TensorLike) -> Tensor: ...
@overload
def box_iou(boxes1: Value | TensorLike, boxes2: Value | TensorLike) -> Value: ...
def broadcast_shapes(*shapes: int | Sequence[int]) -> Shape: ...
@overload
def broadcast_tensors(*tensors: TensorLike) -> tuple[Tensor, ...]: ...
@overload
def broadcast_tensors(*tensors: Value) -> tuple[Value, ...]: ...
@overload
def broadcast_to(input: TensorLike, size: Sequence[int]) -> Tensor: ...
@overload
def broadcast_to(input: Value, size: Sequence[int]) -> Value: ...
@overload
def bucketize(
    input: TensorLike, boundaries: TensorLike, *, out_int32: bool = False, right: bool = False
) -> Tensor: ...
@overload
def bucketize(
    input: Value | TensorLike, boundaries: Value | TensorLike, *, out_int32: bool = False, right: bool = False
) -> Value: ...
@overload
def cartesian_prod(*tensors: TensorLike) -> Tensor: ...
@overload
def cartesian_prod(*tensors: Value) -> Value: ...
@overload
def cast(input: TensorLike, dtype: DTypeLike) -> Tensor: ...
@overload
def cast(input: Value, dtype: DTypeLike) -> Value: ...
@overload
def cat(tensors: Sequence[TensorLike], dim: int = 0) -> Tensor: ...
@overload
def cat(tensors: Sequence[Value | TensorLike], dim: int = 0) -> Value: ...
@overload
def cdist(
    x1: TensorLike, x2: TensorLike, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary"
) -> Tensor: ...
@overload
def cdist(
    x1: Value | TensorLike,
    x2: Value | TensorLike,
    p: float = 2.0,
    compute_mode: str = "use_mm_for_euclid_dist_if_necessary",
) -> Value: ...
@overload
def ceil(input: TensorLike) -> Tensor: ...
@overload
def ceil(input: Value) -> Value: ...
@overload
def celu(input: TensorLike, alpha: float = 1.0, inplace: bool = False) -> Tensor: ...
@overload
def celu(input: Value, alpha: float = 1.0, inplace: bool = False) -> Value: ...
@overload
def channel_shuffle(input: TensorLike, groups: int) -> Tensor: ...
@overload
def channel_shuffle(input: Value, groups: int) -> Value: ...
@overload
def cholesky_inverse(L: TensorLike, upper: bool = False) -> Tensor: ...
@overload
def cholesky_inverse(L: Value, upper: bool = False) -> Value: ...
@overload
def cholesky_solve(B: TensorLike, L: TensorLike, upper: bool = False) -> Tensor: ...
@overload
def cholesky_solve(B: Value | TensorLike, L: Value | TensorLike, upper: bool = False) -> Value: ...
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
def clamp_max(input: TensorLike, max: TensorLike) -> Tensor: ...
@overload
def clamp_max(input: Value | TensorLike, max: Value | TensorLike) -> Value: ...
@overload
def clamp_min(input: TensorLike, min: TensorLike) -> Tensor: ...
@overload
def clamp_min(input: Value | TensorLike, min: Value | TensorLike) -> Value: ...
@overload
def clipped_relu(input: TensorLike, hi: float) -> Tensor: ...
@overload
def clipped_relu(input: Value, hi: float) -> Value: ...
@overload
def clone(input: TensorLike) -> Tensor: ...
@overload
def clone(input: Value) -> Value: ...
@overload
def column_stack(tensors: Sequence[TensorLike]) -> Tensor: ...
@overload
def column_stack(tensors: Sequence[Value | TensorLike]) -> Value: ...
@overload
def combinations(input: TensorLike, r: int = 2, with_replacement: bool = False) -> Tensor: ...
@overload
def combinations(input: Value, r: int = 2, with_replacement: bool = False) -> Value: ...
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
def copysign(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def copysign(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def corrcoef(input: TensorLike) -> Tensor: ...
@overload
def corrcoef(input: Value) -> Value: ...
@overload
def cos(input: TensorLike) -> Tensor: ...
@overload
def cos(input: Value) -> Value: ...
@overload
def cosh(input: TensorLike) -> Tensor: ...
@overload
def cosh(input: Value) -> Value: ...
@overload
def cosine_embedding_loss(
    input1: TensorLike,
    input2: TensorLike,
    target: TensorLike,
    margin: float = 0.0,
    *,
    reduction: Reduction = "mean",
) -> Tensor: ...
@overload
def cosine_embedding_loss(
    input1: Value | TensorLike,
    input2: Value | TensorLike,
    target: Value | TensorLike,
    margin: float = 0.0,
    *,
    reduction: Reduction = "mean",
) -> Value: ...
@overload
def cosine_similarity(x1: TensorLike, x2: TensorLike, dim: int = 1, eps: float = 1e-08) -> Tensor: ...
@overload
def cosine_similarity(
    x1: Value | TensorLike, x2: Value | TensorLike, dim: int = 1, eps: float = 1e-08
) -> Value: ...
@overload
def count_nonzero(input: TensorLike, dim: Dims | None = None) -> Tensor: ...
@overload
def count_nonzero(input: Value, dim: Dims | None = None) -> Value: ...
@overload
def cov(
    input: TensorLike,
    *,
    correction: int = 1,
    fweights: TensorLike | None = None,
    aweights: TensorLike | None = None,
) -> Tensor: ...
@overload
def cov(
    input: Value | TensorLike,
    *,
    correction: int = 1,
    fweights: Value | TensorLike | None = None,
    aweights: Value | TensorLike | None = None,
) -> Value: ...
@overload
def cross(input: TensorLike, other: TensorLike, dim: int | None = None) -> Tensor: ...
@overload
def cross(input: Value | TensorLike, other: Value | TensorLike, dim: int | None = None) -> Value: ...
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
def ctc_loss(
    log_probs: TensorLike,
    targets: TensorLike,
    input_lengths: TensorLike,
    target_lengths: TensorLike,
    blank: int = 0,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
) -> Tensor: ...
@overload
def ctc_loss(
    log_probs: Value | TensorLike,
    targets: Value | TensorLike,
    input_lengths: Value | TensorLike,
    target_lengths: Value | TensorLike,
    blank: int = 0,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
) -> Value: ...
@overload
def cummax(input: TensorLike, dim: int) -> CumMax[Tensor]: ...
@overload
def cummax(input: Value, dim: int) -> CumMax[Value]: ...
@overload
def cummin(input: TensorLike, dim: int) -> CumMin[Tensor]: ...
@overload
def cummin(input: Value, dim: int) -> CumMin[Value]: ...
@overload
def cumprod(input: TensorLike, dim: int, *, dtype: DTypeLike | None = None) -> Tensor: ...
@overload
def cumprod(input: Value, dim: int, *, dtype: DTypeLike | None = None) -> Value: ...
@overload
def cumsum(input: TensorLike, dim: int, *, dtype: DTypeLike | None = None) -> Tensor: ...
@overload
def cumsum(input: Value, dim: int, *, dtype: DTypeLike | None = None) -> Value: ...
@overload
def cumulative_trapezoid(
    y: TensorLike, x: TensorLike | None = None, *, dx: float = 1.0, dim: int = -1
) -> Tensor: ...
@overload
def cumulative_trapezoid(
    y: Value | TensorLike, x: Value | TensorLike | None = None, *, dx: float = 1.0, dim: int = -1
) -> Value: ...
@overload
def deg2rad(input: TensorLike) -> Tensor: ...
@overload
def deg2rad(input: Value) -> Value: ...
@overload
def depth_to_space(input: TensorLike, block: int | Sequence[int]) -> Tensor: ...
@overload
def depth_to_space(input: Value, block: int | Sequence[int]) -> Value: ...
@overload
def dequantize(input: TensorLike, scale: TensorLike) -> Tensor: ...
@overload
def dequantize(input: Value | TensorLike, scale: Value | TensorLike) -> Value: ...
@overload
def det(A: TensorLike) -> Tensor: ...
@overload
def det(A: Value) -> Value: ...
@overload
def diag(input: TensorLike, diagonal: int = 0) -> Tensor: ...
@overload
def diag(input: Value, diagonal: int = 0) -> Value: ...
@overload
def diag_embed(input: TensorLike, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor: ...
@overload
def diag_embed(input: Value, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Value: ...
@overload
def diagflat(input: TensorLike, offset: int = 0) -> Tensor: ...
@overload
def diagflat(input: Value, offset: int = 0) -> Value: ...
@overload
def diagonal(input: TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor: ...
@overload
def diagonal(input: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value: ...
@overload
def diagonal_scatter(
    input: TensorLike, src: TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor: ...
@overload
def diagonal_scatter(
    input: Value | TensorLike, src: Value | TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value: ...
@overload
def diff(
    input: TensorLike,
    n: int = 1,
    dim: int = -1,
    prepend: TensorLike | None = None,
    append: TensorLike | None = None,
) -> Tensor: ...
@overload
def diff(
    input: Value | TensorLike,
    n: int = 1,
    dim: int = -1,
    prepend: Value | TensorLike | None = None,
    append: Value | TensorLike | None = None,
) -> Value: ...
@overload
def digamma(input: TensorLike) -> Tensor: ...
@overload
def digamma(input: Value) -> Value: ...
@overload
def dist(input: TensorLike, other: TensorLike, p: float = 2) -> Tensor: ...
@overload
def dist(input: Value | TensorLike, other: Value | TensorLike, p: float = 2) -> Value: ...
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
    input: TensorLike,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    state: TensorLike | None = None,
) -> Tensor: ...
@overload
def dropout(
    input: Value | TensorLike,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    state: Value | TensorLike | None = None,
) -> Value: ...
@overload
def dropout1d(
    input: TensorLike,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    state: TensorLike | None = None,
) -> Tensor: ...
@overload
def dropout1d(
    input: Value | TensorLike,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    state: Value | TensorLike | None = None,
) -> Value: ...
@overload
def dropout2d(
    input: TensorLike,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    state: TensorLike | None = None,
) -> Tensor: ...
@overload
def dropout2d(
    input: Value | TensorLike,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    state: Value | TensorLike | None = None,
) -> Value: ...
@overload
def dropout3d(
    input: TensorLike,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    state: TensorLike | None = None,
) -> Tensor: ...
@overload
def dropout3d(
    input: Value | TensorLike,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    *,
    state: Value | TensorLike | None = None,
) -> Value: ...
@overload
def dsplit(input: TensorLike, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]: ...
@overload
def dsplit(input: Value, indices_or_sections: int | Sequence[int]) -> tuple[Value, ...]: ...
@overload
def dstack(tensors: Sequence[TensorLike]) -> Tensor: ...
@overload
def dstack(tensors: Sequence[Value | TensorLike]) -> Value: ...
@overload
def einsum(equation: TensorLike, *operands: TensorLike) -> Tensor: ...
@overload
def einsum(equation: Value | TensorLike, *operands: Value | TensorLike) -> Value: ...
@overload
def elu(input: TensorLike, alpha: float = 1.0, inplace: bool = False) -> Tensor: ...
@overload
def elu(input: Value, alpha: float = 1.0, inplace: bool = False) -> Value: ...
@overload
def embedding(
    input: TensorLike,
    weight: TensorLike,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor: ...
@overload
def embedding(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value: ...
@overload
def embedding_bag(
    input: TensorLike,
    weight: TensorLike,
    offsets: TensorLike | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: BagMode = "mean",
    sparse: bool = False,
    per_sample_weights: TensorLike | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor: ...
@overload
def embedding_bag(
    input: Value | TensorLike,
    weight: Value | TensorLike,
    offsets: Value | TensorLike | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: BagMode = "mean",
    sparse: bool = False,
    per_sample_weights: Value | TensorLike | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Value: ...
@overload
def empty_like(
    input: TensorLike, *, dtype: DTypeLike | None = None, device: DeviceLike | str | None = None
) -> Tensor: ...
@overload
def empty_like(
    input: Value, *, dtype: DTypeLike | None = None, device: DeviceLike | str | None = None
) -> Value: ...
@overload
def eq(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def eq(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
def equal(input: Value | TensorLike, other: Value | TensorLike) -> bool: ...
@overload
def erf(input: TensorLike) -> Tensor: ...
@overload
def erf(input: Value) -> Value: ...
@overload
def erfc(input: TensorLike) -> Tensor: ...
@overload
def erfc(input: Value) -> Value: ...
@overload
def erfinv(input: TensorLike) -> Tensor: ...
@overload
def erfinv(input: Value) -> Value: ...
@overload
def exp(input: TensorLike) -> Tensor: ...
@overload
def exp(input: Value) -> Value: ...
@overload
def exp2(input: TensorLike) -> Tensor: ...
@overload
def exp2(input: Value) -> Value: ...
@overload
def expand(input: TensorLike, size: Sequence[SupportsIndex]) -> Tensor: ...
@overload
def expand(input: Value, size: Sequence[SupportsIndex]) -> Value: ...
@overload
def expm1(input: TensorLike) -> Tensor: ...
@overload
def expm1(input: Value) -> Value: ...
@overload
def fake_quantize_per_channel_affine(
    input: TensorLike, scale: TensorLike, zero_point: TensorLike, axis: int, quant_min: int, quant_max: int
) -> Tensor: ...
@overload
def fake_quantize_per_channel_affine(
    input: Value | TensorLike,
    scale: Value | TensorLike,
    zero_point: Value | TensorLike,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Value: ...
@overload
def fake_quantize_per_tensor_affine(
    input: TensorLike, scale: TensorLike, zero_point: TensorLike, quant_min: int, quant_max: int
) -> Tensor: ...
@overload
def fake_quantize_per_tensor_affine(
    input: Value | TensorLike,
    scale: Value | TensorLike,
    zero_point: Value | TensorLike,
    quant_min: int,
    quant_max: int,
) -> Value: ...
@overload
def feature_alpha_dropout(
    input: TensorLike,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
    *,
    state: TensorLike | None = None,
) -> Tensor: ...
@overload
def feature_alpha_dropout(
    input: Value | TensorLike,
    p: float = 0.5,
    training: bool = False,
    inplace: bool = False,
    *,
    state: Value | TensorLike | None = None,
) -> Value: ...
@overload
def flatten(input: TensorLike, start_dim: int = 0, end_dim: int = -1) -> Tensor: ...
@overload
def flatten(input: Value, start_dim: int = 0, end_dim: int = -1) -> Value: ...
@overload
def flip(input: TensorLike, dims: int | Sequence[int]) -> Tensor: ...
@overload
def flip(input: Value, dims: int | Sequence[int]) -> Value: ...
@overload
def fliplr(input: TensorLike) -> Tensor: ...
@overload
def fliplr(input: Value) -> Value: ...
@overload
def flipud(input: TensorLike) -> Tensor: ...
@overload
def flipud(input: Value) -> Value: ...
@overload
def float_power(input: TensorLike, exponent: TensorLike) -> Tensor: ...
@overload
def float_power(input: Value | TensorLike, exponent: Value | TensorLike) -> Value: ...
@overload
def floor(input: TensorLike) -> Tensor: ...
@overload
def floor(input: Value) -> Value: ...
@overload
def floor_divide(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def floor_divide(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def fmax(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def fmax(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def fmin(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def fmin(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def fmod(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def fmod(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def fold(
    input: TensorLike,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Padding = 0,
    stride: Sizes = 1,
) -> Tensor: ...
@overload
def fold(
    input: Value,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Padding = 0,
    stride: Sizes = 1,
) -> Value: ...
@overload
def frac(input: TensorLike) -> Tensor: ...
@overload
def frac(input: Value) -> Value: ...
@overload
def fractional_max_pool2d(
    input: TensorLike,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: TensorLike | None = None,
) -> Tensor: ...
@overload
def fractional_max_pool2d(
    input: Value | TensorLike,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Value | TensorLike | None = None,
) -> Value: ...
@overload
def fractional_max_pool2d_with_indices(
    input: TensorLike,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: TensorLike | None = None,
) -> Tensor: ...
@overload
def fractional_max_pool2d_with_indices(
    input: Value | TensorLike,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Value | TensorLike | None = None,
) -> Value: ...
@overload
def fractional_max_pool3d(
    input: TensorLike,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: TensorLike | None = None,
) -> Tensor: ...
@overload
def fractional_max_pool3d(
    input: Value | TensorLike,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Value | TensorLike | None = None,
) -> Value: ...
@overload
def fractional_max_pool3d_with_indices(
    input: TensorLike,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: TensorLike | None = None,
) -> Tensor: ...
@overload
def fractional_max_pool3d_with_indices(
    input: Value | TensorLike,
    kernel_size: Sizes,
    output_size: Sizes | None = None,
    output_ratio: float | Sequence[float] | None = None,
    return_indices: bool = False,
    _random_samples: Value | TensorLike | None = None,
) -> Value: ...
@overload
def frexp(input: TensorLike) -> Frexp[Tensor]: ...
@overload
def frexp(input: Value) -> Frexp[Value]: ...
@overload
def full_like(
    input: TensorLike,
    fill_value: Number,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def full_like(
    input: Value,
    fill_value: Number,
    *,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Value: ...
@overload
def gather(input: TensorLike, dim: int, index: TensorLike, *, sparse_grad: bool = False) -> Tensor: ...
@overload
def gather(
    input: Value | TensorLike, dim: int, index: Value | TensorLike, *, sparse_grad: bool = False
) -> Value: ...
@overload
def gaussian_nll_loss(
    input: TensorLike,
    target: TensorLike,
    var: TensorLike,
    full: bool = False,
    eps: float = 1e-06,
    reduction: Reduction = "mean",
) -> Tensor: ...
@overload
def gaussian_nll_loss(
    input: Value | TensorLike,
    target: Value | TensorLike,
    var: Value | TensorLike,
    full: bool = False,
    eps: float = 1e-06,
    reduction: Reduction = "mean",
) -> Value: ...
@overload
def gcd(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def gcd(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
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
def glu(input: TensorLike, dim: int = -1) -> Tensor: ...
@overload
def glu(input: Value, dim: int = -1) -> Value: ...
@overload
def gradient(
    input: TensorLike,
    *,
    spacing: float | Sequence[float] = 1.0,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> list[Tensor]: ...
@overload
def gradient(
    input: Value,
    *,
    spacing: float | Sequence[float] = 1.0,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> list[Value]: ...
@overload
def grid_sample(
    input: TensorLike,
    grid: TensorLike,
    mode: GridMode = "bilinear",
    padding_mode: GridPadding = "zeros",
    align_corners: bool | None = None,
) -> Tensor: ...
@overload
def grid_sample(
    input: Value | TensorLike,
    grid: Value | TensorLike,
    mode: GridMode = "bilinear",
    padding_mode: GridPadding = "zeros",
    align_corners: bool | None = None,
) -> Value: ...
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
def gumbel_softmax(
    logits: TensorLike,
    tau: float = 1.0,
    hard: bool = False,
    eps: float = 1e-10,
    dim: int = -1,
    *,
    generator: GeneratorLike | None = None,
) -> Tensor: ...
@overload
def gumbel_softmax(
    logits: Value,
    tau: float = 1.0,
    hard: bool = False,
    eps: float = 1e-10,
    dim: int = -1,
    *,
    generator: GeneratorLike | None = None,
) -> Value: ...
def hamming_window(
    window_length: int,
    periodic: bool = True,
    alpha: float = 0.54,
    beta: float = 0.46,
    *,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
def hann_window(
    window_length: int,
    periodic: bool = True,
    *,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def hardshrink(input: TensorLike, lambd: float = 0.5) -> Tensor: ...
@overload
def hardshrink(input: Value, lambd: float = 0.5) -> Value: ...
@overload
def hardsigmoid(input: TensorLike, inplace: bool = False) -> Tensor: ...
@overload
def hardsigmoid(input: Value, inplace: bool = False) -> Value: ...
@overload
def hardswish(input: TensorLike, inplace: bool = False) -> Tensor: ...
@overload
def hardswish(input: Value, inplace: bool = False) -> Value: ...
@overload
def hardtanh(
    input: TensorLike, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False
) -> Tensor: ...
@overload
def hardtanh(input: Value, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False) -> Value: ...
@overload
def heaviside(input: TensorLike, values: TensorLike) -> Tensor: ...
@overload
def heaviside(input: Value | TensorLike, values: Value | TensorLike) -> Value: ...
@overload
def hinge_embedding_loss(
    input: TensorLike, target: TensorLike, margin: float = 1.0, *, reduction: Reduction = "mean"
) -> Tensor: ...
@overload
def hinge_embedding_loss(
    input: Value | TensorLike,
    target: Value | TensorLike,
    margin: float = 1.0,
    *,
    reduction: Reduction = "mean",
) -> Value: ...
@overload
def histc(input: TensorLike, bins: int = 100, min: float = 0, max: float = 0) -> Tensor: ...
@overload
def histc(input: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value: ...
@overload
def hsplit(input: TensorLike, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]: ...
@overload
def hsplit(input: Value, indices_or_sections: int | Sequence[int]) -> tuple[Value, ...]: ...
@overload
def hstack(tensors: Sequence[TensorLike]) -> Tensor: ...
@overload
def hstack(tensors: Sequence[Value | TensorLike]) -> Value: ...
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
def hypot(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def hypot(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def i0(input: TensorLike) -> Tensor: ...
@overload
def i0(input: Value) -> Value: ...
@overload
def identity(input: TensorLike) -> Tensor: ...
@overload
def identity(input: Value) -> Value: ...
@overload
def igamma(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def igamma(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def igammac(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def igammac(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def index_add(
    input: TensorLike, dim: int, index: TensorLike, source: TensorLike, *, alpha: Number = 1
) -> Tensor: ...
@overload
def index_add(
    input: Value | TensorLike,
    dim: int,
    index: Value | TensorLike,
    source: Value | TensorLike,
    *,
    alpha: Number = 1,
) -> Value: ...
@overload
def index_copy(input: TensorLike, dim: int, index: TensorLike, source: TensorLike) -> Tensor: ...
@overload
def index_copy(
    input: Value | TensorLike, dim: int, index: Value | TensorLike, source: Value | TensorLike
) -> Value: ...
@overload
def index_fill(input: TensorLike, dim: int, index: TensorLike, value: TensorLike) -> Tensor: ...
@overload
def index_fill(
    input: Value | TensorLike, dim: int, index: Value | TensorLike, value: Value | TensorLike
) -> Value: ...
@overload
def index_put(
    input: TensorLike, indices: Sequence[TensorLike], values: TensorLike, accumulate: bool = False
) -> Tensor: ...
@overload
def index_put(
    input: Value | TensorLike,
    indices: Sequence[Value | TensorLike],
    values: Value | TensorLike,
    accumulate: bool = False,
) -> Value: ...
@overload
def index_reduce(
    input: TensorLike,
    dim: int,
    index: TensorLike,
    source: TensorLike,
    reduce: Literal["prod", "mean", "amax", "amin"],
    *,
    include_self: bool = True,
) -> Tensor: ...
@overload
def index_reduce(
    input: Value | TensorLike,
    dim: int,
    index: Value | TensorLike,
    source: Value | TensorLike,
    reduce: Literal["prod", "mean", "amax", "amin"],
    *,
    include_self: bool = True,
) -> Value: ...
@overload
def index_select(input: TensorLike, dim: int, index: TensorLike) -> Tensor: ...
@overload
def index_select(input: Value | TensorLike, dim: int, index: Value | TensorLike) -> Value: ...
@overload
def inner(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def inner(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
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
def interpolate(
    input: TensorLike,
    size: Sizes | None = None,
    scale_factor: Factors | None = None,
    mode: Mode = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor: ...
@overload
def interpolate(
    input: Value,
    size: Sizes | None = None,
    scale_factor: Factors | None = None,
    mode: Mode = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Value: ...
@overload
def inverse(A: TensorLike) -> Tensor: ...
@overload
def inverse(A: Value) -> Value: ...
def is_floating_point(input: Value | TensorLike) -> bool: ...
def is_nonzero(input: Value | TensorLike) -> bool: ...
@overload
def isclose(
    input: TensorLike, other: TensorLike, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Tensor: ...
@overload
def isclose(
    input: Value | TensorLike,
    other: Value | TensorLike,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> Value: ...
@overload
def isfinite(input: TensorLike) -> Tensor: ...
@overload
def isfinite(input: Value) -> Value: ...
@overload
def isin(
    elements: TensorLike, test_elements: TensorLike, *, assume_unique: bool = False, invert: bool = False
) -> Tensor: ...
@overload
def isin(
    elements: Value | TensorLike,
    test_elements: Value | TensorLike,
    *,
    assume_unique: bool = False,
    invert: bool = False,
) -> Value: ...
@overload
def isinf(input: TensorLike) -> Tensor: ...
@overload
def isinf(input: Value) -> Value: ...
@overload
def isnan(input: TensorLike) -> Tensor: ...
@overload
def isnan(input: Value) -> Value: ...
@overload
def isneginf(input: TensorLike) -> Tensor: ...
@overload
def isneginf(input: Value) -> Value: ...
@overload
def isposinf(input: TensorLike) -> Tensor: ...
@overload
def isposinf(input: Value) -> Value: ...
@overload
def isreal(input: TensorLike) -> Tensor: ...
@overload
def isreal(input: Value) -> Value: ...
@overload
def istft(
    input: TensorLike,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: TensorLike | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Tensor: ...
@overload
def istft(
    input: Value | TensorLike,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Value | TensorLike | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Value: ...
def kaiser_window(
    window_length: int,
    periodic: bool = True,
    beta: float = 12.0,
    *,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def kl_div(
    input: TensorLike,
    target: TensorLike,
    *,
    reduction: Literal["mean", "sum", "none", "batchmean"] = "mean",
    log_target: bool = False,
) -> Tensor: ...
@overload
def kl_div(
    input: Value | TensorLike,
    target: Value | TensorLike,
    *,
    reduction: Literal["mean", "sum", "none", "batchmean"] = "mean",
    log_target: bool = False,
) -> Value: ...
@overload
def kron(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def kron(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def kthvalue(input: TensorLike, k: int, dim: int = -1, keepdim: bool = False) -> KthValueDim[Tensor]: ...
@overload
def kthvalue(input: Value, k: int, dim: int = -1, keepdim: bool = False) -> KthValueDim[Value]: ...
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
def lcm(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def lcm(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def ldexp(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def ldexp(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def le(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def le(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def leaky_relu(input: TensorLike, negative_slope: float = 0.01, inplace: bool = False) -> Tensor: ...
@overload
def leaky_relu(input: Value, negative_slope: float = 0.01, inplace: bool = False) -> Value: ...
@overload
def lerp(input: TensorLike, end: TensorLike, weight: TensorLike) -> Tensor: ...
@overload
def lerp(input: Value | TensorLike, end: Value | TensorLike, weight: Value | TensorLike) -> Value: ...
@overload
def lgamma(input: TensorLike) -> Tensor: ...
@overload
def lgamma(input: Value) -> Value: ...
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
def log1p(input: TensorLike) -> Tensor: ...
@overload
def log1p(input: Value) -> Value: ...
@overload
def log2(input: TensorLike) -> Tensor: ...
@overload
def log2(input: Value) -> Value: ...
@overload
def log10(input: TensorLike) -> Tensor: ...
@overload
def log10(input: Value) -> Value: ...
@overload
def log_softmax(
    input: TensorLike, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def log_softmax(input: Value, dim: int | Sequence[int] = -1, *, dtype: DTypeLike | None = None) -> Value: ...
@overload
def logaddexp(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def logaddexp(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def logaddexp2(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def logaddexp2(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def logcumsumexp(input: TensorLike, dim: int) -> Tensor: ...
@overload
def logcumsumexp(input: Value, dim: int) -> Value: ...
@overload
def logdet(A: TensorLike) -> Tensor: ...
@overload
def logdet(A: Value) -> Value: ...
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
def logical_xor(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def logical_xor(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def logit(input: TensorLike, eps: float | None = None) -> Tensor: ...
@overload
def logit(input: Value, eps: float | None = None) -> Value: ...
@overload
def logsigmoid(input: TensorLike) -> Tensor: ...
@overload
def logsigmoid(input: Value) -> Value: ...
@overload
def logsumexp(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def logsumexp(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
@overload
def lp_pool1d(
    input: TensorLike,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def lp_pool1d(
    input: Value, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Value: ...
@overload
def lp_pool2d(
    input: TensorLike,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def lp_pool2d(
    input: Value, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Value: ...
@overload
def lp_pool3d(
    input: TensorLike,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def lp_pool3d(
    input: Value, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Value: ...
@overload
def lt(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def lt(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def margin_ranking_loss(
    input1: TensorLike,
    input2: TensorLike,
    target: TensorLike,
    margin: float = 0.0,
    *,
    reduction: Reduction = "mean",
) -> Tensor: ...
@overload
def margin_ranking_loss(
    input1: Value | TensorLike,
    input2: Value | TensorLike,
    target: Value | TensorLike,
    margin: float = 0.0,
    *,
    reduction: Reduction = "mean",
) -> Value: ...
@overload
def masked_fill(input: TensorLike, mask: TensorLike, value: TensorLike) -> Tensor: ...
@overload
def masked_fill(input: Value | TensorLike, mask: Value | TensorLike, value: Value | TensorLike) -> Value: ...
@overload
def masked_scatter(input: TensorLike, mask: TensorLike, source: TensorLike) -> Tensor: ...
@overload
def masked_scatter(
    input: Value | TensorLike, mask: Value | TensorLike, source: Value | TensorLike
) -> Value: ...
@overload
def masked_select(input: TensorLike, mask: TensorLike) -> Tensor: ...
@overload
def masked_select(input: Value | TensorLike, mask: Value | TensorLike) -> Value: ...
@overload
def matmul(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def matmul(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def matrix_exp(A: TensorLike) -> Tensor: ...
@overload
def matrix_exp(A: Value) -> Value: ...
@overload
def matrix_power(A: TensorLike, n: int) -> Tensor: ...
@overload
def matrix_power(A: Value, n: int) -> Value: ...
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
def max_pool1d_with_indices(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def max_pool1d_with_indices(
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
def max_pool2d_with_indices(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def max_pool2d_with_indices(
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
def max_pool3d_with_indices(
    input: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor: ...
@overload
def max_pool3d_with_indices(
    input: Value,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Value: ...
@overload
def max_unpool1d(
    input: TensorLike,
    indices: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor: ...
@overload
def max_unpool1d(
    input: Value | TensorLike,
    indices: Value | TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Value: ...
@overload
def max_unpool2d(
    input: TensorLike,
    indices: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor: ...
@overload
def max_unpool2d(
    input: Value | TensorLike,
    indices: Value | TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Value: ...
@overload
def max_unpool3d(
    input: TensorLike,
    indices: TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor: ...
@overload
def max_unpool3d(
    input: Value | TensorLike,
    indices: Value | TensorLike,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    output_size: Sequence[int] | None = None,
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
def median(input: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def median(input: Value, dim: int | None = None, keepdim: bool = False) -> Value: ...
def melscale_fbanks(
    n_freqs: int,
    f_min: float,
    f_max: float,
    n_mels: int,
    sample_rate: int,
    norm: Literal["slaney"] | None = None,
    mel_scale: Literal["htk", "slaney"] = "htk",
    *,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def meshgrid(*tensors: TensorLike, indexing: Literal["ij", "xy"] = "ij") -> tuple[Tensor, ...]: ...
@overload
def meshgrid(*tensors: Value, indexing: Literal["ij", "xy"] = "ij") -> tuple[Value, ...]: ...
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
def mish(input: TensorLike, inplace: bool = False) -> Tensor: ...
@overload
def mish(input: Value, inplace: bool = False) -> Value: ...
@overload
def mm(input: TensorLike, mat2: TensorLike) -> Tensor: ...
@overload
def mm(input: Value | TensorLike, mat2: Value | TensorLike) -> Value: ...
@overload
def mode(input: TensorLike, dim: int = -1, keepdim: bool = False) -> ModeDim[Tensor]: ...
@overload
def mode(input: Value, dim: int = -1, keepdim: bool = False) -> ModeDim[Value]: ...
@overload
def movedim(input: TensorLike, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor: ...
@overload
def movedim(input: Value, source: int | Sequence[int], destination: int | Sequence[int]) -> Value: ...
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
def msort(input: TensorLike) -> Tensor: ...
@overload
def msort(input: Value) -> Value: ...
@overload
def mul(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def mul(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def mul_no_zeros(input: TensorLike, dim: Dims | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def mul_no_zeros(input: Value, dim: Dims | None = None, keepdim: bool = False) -> Value: ...
@overload
def multi_margin_loss(
    input: TensorLike,
    target: TensorLike,
    p: int = 1,
    margin: float = 1.0,
    weight: TensorLike | None = None,
    *,
    reduction: Reduction = "mean",
) -> Tensor: ...
@overload
def multi_margin_loss(
    input: Value | TensorLike,
    target: Value | TensorLike,
    p: int = 1,
    margin: float = 1.0,
    weight: Value | TensorLike | None = None,
    *,
    reduction: Reduction = "mean",
) -> Value: ...
@overload
def multilabel_margin_loss(
    input: TensorLike, target: TensorLike, *, reduction: Reduction = "mean"
) -> Tensor: ...
@overload
def multilabel_margin_loss(
    input: Value | TensorLike, target: Value | TensorLike, *, reduction: Reduction = "mean"
) -> Value: ...
@overload
def multilabel_soft_margin_loss(
    input: TensorLike, target: TensorLike, weight: TensorLike | None = None, *, reduction: Reduction = "mean"
) -> Tensor: ...
@overload
def multilabel_soft_margin_loss(
    input: Value | TensorLike,
    target: Value | TensorLike,
    weight: Value | TensorLike | None = None,
    *,
    reduction: Reduction = "mean",
) -> Value: ...
@overload
def multinomial(
    input: TensorLike, num_samples: int, replacement: bool = False, *, generator: GeneratorLike | None = None
) -> Tensor: ...
@overload
def multinomial(
    input: Value, num_samples: int, replacement: bool = False, *, generator: GeneratorLike | None = None
) -> Value: ...
@overload
def mv(input: TensorLike, vec: TensorLike) -> Tensor: ...
@overload
def mv(input: Value | TensorLike, vec: Value | TensorLike) -> Value: ...
@overload
def mvlgamma(input: TensorLike, p: int) -> Tensor: ...
@overload
def mvlgamma(input: Value, p: int) -> Value: ...
@overload
def nan_to_num(
    input: TensorLike, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor: ...
@overload
def nan_to_num(
    input: Value, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Value: ...
@overload
def nanmean(
    input: TensorLike, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def nanmean(
    input: Value, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Value: ...
@overload
def nanmedian(input: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor: ...
@overload
def nanmedian(input: Value, dim: int | None = None, keepdim: bool = False) -> Value: ...
@overload
def nanquantile(
    input: TensorLike,
    q: TensorLike,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: Interpolation = "linear",
) -> Tensor: ...
@overload
def nanquantile(
    input: Value | TensorLike,
    q: Value | TensorLike,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: Interpolation = "linear",
) -> Value: ...
@overload
def nansum(
    input: TensorLike, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Tensor: ...
@overload
def nansum(
    input: Value, dim: Dims | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None
) -> Value: ...
@overload
def narrow(input: TensorLike, dim: int, start: TensorLike, length: int) -> Tensor: ...
@overload
def narrow(input: Value | TensorLike, dim: int, start: Value | TensorLike, length: int) -> Value: ...
@overload
def ne(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def ne(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def neg(input: TensorLike) -> Tensor: ...
@overload
def neg(input: Value) -> Value: ...
@overload
def nextafter(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def nextafter(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
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
def nms(boxes: TensorLike, scores: TensorLike, iou_threshold: float) -> Tensor: ...
@overload
def nms(boxes: Value | TensorLike, scores: Value | TensorLike, iou_threshold: float) -> Value: ...
@overload
def nms_mask(boxes: TensorLike, scores: TensorLike, iou_threshold: float) -> Tensor: ...
@overload
def nms_mask(boxes: Value | TensorLike, scores: Value | TensorLike, iou_threshold: float) -> Value: ...
@overload
def nonzero(input: TensorLike, *, as_tuple: bool = False) -> Tensor: ...
@overload
def nonzero(input: Value, *, as_tuple: bool = False) -> Value: ...
@overload
def norm(
    input: TensorLike,
    p: float | Literal["fro", "nuc"] | None = "fro",
    dim: Dims | None = None,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
@overload
def norm(
    input: Value,
    p: float | Literal["fro", "nuc"] | None = "fro",
    dim: Dims | None = None,
    keepdim: bool = False,
    dtype: DTypeLike | None = None,
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
def normal(
    mean: TensorLike = 0.0,
    std: TensorLike = 1.0,
    size: Sequence[SupportsIndex] | None = None,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def normal(
    mean: Value | TensorLike = 0.0,
    std: Value | TensorLike = 1.0,
    size: Sequence[SupportsIndex] | None = None,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Value: ...
@overload
def normalize(
    input: TensorLike, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12
) -> Tensor: ...
@overload
def normalize(input: Value, p: float = 2.0, dim: int | tuple[int, ...] = 1, eps: float = 1e-12) -> Value: ...
def numel(input: Value | TensorLike) -> int: ...
@overload
def one_hot(
    tensor: TensorLike, num_classes: int = -1, *, dtype: DTypeLike = ..., dim: int = -1
) -> Tensor: ...
@overload
def one_hot(tensor: Value, num_classes: int = -1, *, dtype: DTypeLike = ..., dim: int = -1) -> Value: ...
@overload
def ones_like(
    input: TensorLike, *, dtype: DTypeLike | None = None, device: DeviceLike | str | None = None
) -> Tensor: ...
@overload
def ones_like(
    input: Value, *, dtype: DTypeLike | None = None, device: DeviceLike | str | None = None
) -> Value: ...
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
def pairwise_distance(
    x1: TensorLike, x2: TensorLike, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False
) -> Tensor: ...
@overload
def pairwise_distance(
    x1: Value | TensorLike, x2: Value | TensorLike, p: float = 2.0, eps: float = 1e-06, keepdim: bool = False
) -> Value: ...
@overload
def pdist(input: TensorLike, p: float = 2.0) -> Tensor: ...
@overload
def pdist(input: Value, p: float = 2.0) -> Value: ...
@overload
def permute(input: TensorLike, dims: Sequence[int]) -> Tensor: ...
@overload
def permute(input: Value, dims: Sequence[int]) -> Value: ...
@overload
def pinverse(
    A: TensorLike, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Tensor: ...
@overload
def pinverse(
    A: Value, *, atol: float | None = None, rtol: float | None = None, hermitian: bool = False
) -> Value: ...
@overload
def pixel_shuffle(input: TensorLike, upscale_factor: int) -> Tensor: ...
@overload
def pixel_shuffle(input: Value, upscale_factor: int) -> Value: ...
@overload
def pixel_unshuffle(input: TensorLike, downscale_factor: int) -> Tensor: ...
@overload
def pixel_unshuffle(input: Value, downscale_factor: int) -> Value: ...
@overload
def poisson_nll_loss(
    input: TensorLike,
    target: TensorLike,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-08,
    reduction: Reduction = "mean",
) -> Tensor: ...
@overload
def poisson_nll_loss(
    input: Value | TensorLike,
    target: Value | TensorLike,
    log_input: bool = True,
    full: bool = False,
    *,
    eps: float = 1e-08,
    reduction: Reduction = "mean",
) -> Value: ...
@overload
def polygamma(n: int, input: TensorLike) -> Tensor: ...
@overload
def polygamma(n: int, input: Value) -> Value: ...
@overload
def positive(input: TensorLike) -> Tensor: ...
@overload
def positive(input: Value) -> Value: ...
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
def put(input: TensorLike, index: TensorLike, source: TensorLike, accumulate: bool = False) -> Tensor: ...
@overload
def put(
    input: Value | TensorLike, index: Value | TensorLike, source: Value | TensorLike, accumulate: bool = False
) -> Value: ...
@overload
def quantile(
    input: TensorLike,
    q: TensorLike,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: Interpolation = "linear",
) -> Tensor: ...
@overload
def quantile(
    input: Value | TensorLike,
    q: Value | TensorLike,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    interpolation: Interpolation = "linear",
) -> Value: ...
@overload
def quantize(input: TensorLike, scale: TensorLike, dtype: DTypeLike = ...) -> Tensor: ...
@overload
def quantize(input: Value | TensorLike, scale: Value | TensorLike, dtype: DTypeLike = ...) -> Value: ...
@overload
def rad2deg(input: TensorLike) -> Tensor: ...
@overload
def rad2deg(input: Value) -> Value: ...
@overload
def rand(
    *size: SupportsIndex | Sequence[SupportsIndex],
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def rand(
    *,
    size: SupportsIndex | Sequence[SupportsIndex],
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def rand_like(
    input: TensorLike,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def rand_like(
    input: Value,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Value: ...
@overload
def randint(
    low: int,
    high: TensorLike | None = None,
    size: TensorLike | None = None,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def randint(
    low: int,
    high: Value | TensorLike | None = None,
    size: Value | TensorLike | None = None,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Value: ...
@overload
def randint_like(
    input: TensorLike,
    low: int,
    high: int | None = None,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def randint_like(
    input: Value,
    low: int,
    high: int | None = None,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Value: ...
@overload
def randn(
    *size: SupportsIndex | Sequence[SupportsIndex],
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def randn(
    *,
    size: SupportsIndex | Sequence[SupportsIndex],
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def randn_like(
    input: TensorLike,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def randn_like(
    input: Value,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Value: ...
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
def randperm(
    n: int,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = ...,
    device: DeviceLike | str | None = None,
) -> Tensor: ...
@overload
def ravel(input: TensorLike) -> Tensor: ...
@overload
def ravel(input: Value) -> Value: ...
@overload
def reciprocal(input: TensorLike) -> Tensor: ...
@overload
def reciprocal(input: Value) -> Value: ...
@overload
def relu(input: TensorLike, inplace: bool = False) -> Tensor: ...
@overload
def relu(input: Value, inplace: bool = False) -> Value: ...
@overload
def relu6(input: TensorLike, inplace: bool = False) -> Tensor: ...
@overload
def relu6(input: Value, inplace: bool = False) -> Value: ...
@overload
def remainder(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def remainder(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def renorm(input: TensorLike, p: float, dim: int, maxnorm: float) -> Tensor: ...
@overload
def renorm(input: Value, p: float, dim: int, maxnorm: float) -> Value: ...
@overload
def repeat_interleave(
    input: TensorLike, repeats: TensorLike, dim: int | None = None, *, output_size: int | None = None
) -> Tensor: ...
@overload
def repeat_interleave(
    input: Value | TensorLike,
    repeats: Value | TensorLike,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> Value: ...
@overload
def reshape(input: TensorLike, shape: int | Sequence[SupportsIndex]) -> Tensor: ...
@overload
def reshape(input: Value, shape: int | Sequence[SupportsIndex]) -> Value: ...
@overload
def resize_nearest(input: TensorLike, scale: int | Sequence[int]) -> Tensor: ...
@overload
def resize_nearest(input: Value, scale: int | Sequence[int]) -> Value: ...
@overload
def reverse_sequence(input: TensorLike, lengths: TensorLike) -> Tensor: ...
@overload
def reverse_sequence(input: Value | TensorLike, lengths: Value | TensorLike) -> Value: ...
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
    lengths: TensorLike | None = None,
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
    lengths: Value | TensorLike | None = None,
) -> tuple[Value, ...]: ...
@overload
def roi_align(
    input: TensorLike,
    boxes: TensorLike,
    output_size: Sizes,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor: ...
@overload
def roi_align(
    input: Value | TensorLike,
    boxes: Value | TensorLike,
    output_size: Sizes,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Value: ...
@overload
def roll(
    input: TensorLike, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None
) -> Tensor: ...
@overload
def roll(input: Value, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Value: ...
@overload
def rot90(input: TensorLike, k: int = 1, dims: Sequence[int] = ...) -> Tensor: ...
@overload
def rot90(input: Value, k: int = 1, dims: Sequence[int] = ...) -> Value: ...
@overload
def round(input: TensorLike, *, decimals: int = 0) -> Tensor: ...
@overload
def round(input: Value, *, decimals: int = 0) -> Value: ...
@overload
def rrelu(
    input: TensorLike,
    lower: float = ...,
    upper: float = ...,
    training: bool = False,
    inplace: bool = False,
    *,
    generator: GeneratorLike | None = None,
) -> Tensor: ...
@overload
def rrelu(
    input: Value,
    lower: float = ...,
    upper: float = ...,
    training: bool = False,
    inplace: bool = False,
    *,
    generator: GeneratorLike | None = None,
) -> Value: ...
@overload
def rsqrt(input: TensorLike) -> Tensor: ...
@overload
def rsqrt(input: Value) -> Value: ...
@overload
def rsub(input: TensorLike, other: TensorLike, *, alpha: Number = 1) -> Tensor: ...
@overload
def rsub(input: Value | TensorLike, other: Value | TensorLike, *, alpha: Number = 1) -> Value: ...
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
def scatter(
    input: TensorLike,
    dim: int,
    index: TensorLike,
    src: TensorLike,
    *,
    reduce: Literal["add", "multiply"] | None = None,
) -> Tensor: ...
@overload
def scatter(
    input: Value | TensorLike,
    dim: int,
    index: Value | TensorLike,
    src: Value | TensorLike,
    *,
    reduce: Literal["add", "multiply"] | None = None,
) -> Value: ...
@overload
def scatter_add(input: TensorLike, dim: int, index: TensorLike, src: TensorLike) -> Tensor: ...
@overload
def scatter_add(
    input: Value | TensorLike, dim: int, index: Value | TensorLike, src: Value | TensorLike
) -> Value: ...
@overload
def scatter_reduce(
    input: TensorLike,
    dim: int,
    index: TensorLike,
    src: TensorLike,
    reduce: Combination,
    *,
    include_self: bool = True,
) -> Tensor: ...
@overload
def scatter_reduce(
    input: Value | TensorLike,
    dim: int,
    index: Value | TensorLike,
    src: Value | TensorLike,
    reduce: Combination,
    *,
    include_self: bool = True,
) -> Value: ...
@overload
def searchsorted(
    sorted_sequence: TensorLike,
    input: TensorLike,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Literal["left", "right"] | None = None,
    sorter: TensorLike | None = None,
) -> Tensor: ...
@overload
def searchsorted(
    sorted_sequence: Value | TensorLike,
    input: Value | TensorLike,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: Literal["left", "right"] | None = None,
    sorter: Value | TensorLike | None = None,
) -> Value: ...
@overload
def select(input: TensorLike, dim: int, index: int) -> Tensor: ...
@overload
def select(input: Value, dim: int, index: int) -> Value: ...
@overload
def select_scatter(input: TensorLike, src: TensorLike, dim: int, index: int) -> Tensor: ...
@overload
def select_scatter(input: Value | TensorLike, src: Value | TensorLike, dim: int, index: int) -> Value: ...
@overload
def selu(input: TensorLike, inplace: bool = False) -> Tensor: ...
@overload
def selu(input: Value, inplace: bool = False) -> Value: ...
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
def sgn(input: TensorLike) -> Tensor: ...
@overload
def sgn(input: Value) -> Value: ...
@overload
def sigmoid(input: TensorLike) -> Tensor: ...
@overload
def sigmoid(input: Value) -> Value: ...
@overload
def sigmoid_focal_loss(
    inputs: TensorLike,
    targets: TensorLike,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: Reduction = "none",
) -> Tensor: ...
@overload
def sigmoid_focal_loss(
    inputs: Value | TensorLike,
    targets: Value | TensorLike,
    alpha: float = 0.25,
    gamma: float = 2.0,
    reduction: Reduction = "none",
) -> Value: ...
@overload
def sign(input: TensorLike) -> Tensor: ...
@overload
def sign(input: Value) -> Value: ...
@overload
def signbit(input: TensorLike) -> Tensor: ...
@overload
def signbit(input: Value) -> Value: ...
@overload
def silu(input: TensorLike, inplace: bool = False) -> Tensor: ...
@overload
def silu(input: Value, inplace: bool = False) -> Value: ...
@overload
def sin(input: TensorLike) -> Tensor: ...
@overload
def sin(input: Value) -> Value: ...
@overload
def sinc(input: TensorLike) -> Tensor: ...
@overload
def sinc(input: Value) -> Value: ...
@overload
def sinh(input: TensorLike) -> Tensor: ...
@overload
def sinh(input: Value) -> Value: ...
@overload
def slice_scatter(
    input: TensorLike,
    src: TensorLike,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Tensor: ...
@overload
def slice_scatter(
    input: Value | TensorLike,
    src: Value | TensorLike,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value: ...
@overload
def slogdet(A: TensorLike) -> SlogDet[Tensor]: ...
@overload
def slogdet(A: Value) -> SlogDet[Value]: ...
@overload
def smooth_l1_loss(
    input: TensorLike, target: TensorLike, *, reduction: Reduction = "mean", beta: float = 1.0
) -> Tensor: ...
@overload
def smooth_l1_loss(
    input: Value | TensorLike, target: Value | TensorLike, *, reduction: Reduction = "mean", beta: float = 1.0
) -> Value: ...
@overload
def soft_margin_loss(input: TensorLike, target: TensorLike, *, reduction: Reduction = "mean") -> Tensor: ...
@overload
def soft_margin_loss(
    input: Value | TensorLike, target: Value | TensorLike, *, reduction: Reduction = "mean"
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
def softshrink(input: TensorLike, lambd: float = 0.5) -> Tensor: ...
@overload
def softshrink(input: Value, lambd: float = 0.5) -> Value: ...
@overload
def softsign(input: TensorLike) -> Tensor: ...
@overload
def softsign(input: Value) -> Value: ...
@overload
def sort(
    input: TensorLike, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> SortedDim[Tensor]: ...
@overload
def sort(
    input: Value, dim: int = -1, descending: bool = False, *, stable: bool = False
) -> SortedDim[Value]: ...
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
def split_with_sizes(input: TensorLike, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]: ...
@overload
def split_with_sizes(input: Value, split_sizes: Sequence[int], dim: int = 0) -> tuple[Value, ...]: ...
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
def stft(
    input: TensorLike,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: TensorLike | None = None,
    center: bool = True,
    pad_mode: Literal["constant", "reflect", "replicate", "circular"] = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor: ...
@overload
def stft(
    input: Value | TensorLike,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Value | TensorLike | None = None,
    center: bool = True,
    pad_mode: Literal["constant", "reflect", "replicate", "circular"] = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Value: ...
@overload
def stop_gradient(input: TensorLike) -> Tensor: ...
@overload
def stop_gradient(input: Value) -> Value: ...
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
def swapaxes(input: TensorLike, axis0: int, axis1: int) -> Tensor: ...
@overload
def swapaxes(input: Value, axis0: int, axis1: int) -> Value: ...
@overload
def swish(input: TensorLike, beta: float = 1.0) -> Tensor: ...
@overload
def swish(input: Value, beta: float = 1.0) -> Value: ...
@overload
def t(input: TensorLike) -> Tensor: ...
@overload
def t(input: Value) -> Value: ...
@overload
def take(input: TensorLike, index: TensorLike) -> Tensor: ...
@overload
def take(input: Value | TensorLike, index: Value | TensorLike) -> Value: ...
@overload
def take_along_dim(input: TensorLike, indices: TensorLike, dim: int | None = None) -> Tensor: ...
@overload
def take_along_dim(
    input: Value | TensorLike, indices: Value | TensorLike, dim: int | None = None
) -> Value: ...
@overload
def tan(input: TensorLike) -> Tensor: ...
@overload
def tan(input: Value) -> Value: ...
@overload
def tanh(input: TensorLike) -> Tensor: ...
@overload
def tanh(input: Value) -> Value: ...
@overload
def tanhshrink(input: TensorLike) -> Tensor: ...
@overload
def tanhshrink(input: Value) -> Value: ...
@overload
def tensor_split(input: TensorLike, indices_or_sections: TensorLike, dim: int = 0) -> tuple[Tensor, ...]: ...
@overload
def tensor_split(
    input: Value | TensorLike, indices_or_sections: Value | TensorLike, dim: int = 0
) -> tuple[Value, ...]: ...
@overload
def tensordot(a: TensorLike, b: TensorLike, dims: int | Sequence[TensorLike] = 2) -> Tensor: ...
@overload
def tensordot(
    a: Value | TensorLike, b: Value | TensorLike, dims: int | Sequence[Value | TensorLike] = 2
) -> Value: ...
@overload
def threshold(input: TensorLike, threshold: Number, value: Number, inplace: bool = False) -> Tensor: ...
@overload
def threshold(input: Value, threshold: Number, value: Number, inplace: bool = False) -> Value: ...
@overload
def tile(input: TensorLike, dims: Sequence[int]) -> Tensor: ...
@overload
def tile(input: Value, dims: Sequence[int]) -> Value: ...
@overload
def topk(
    input: TensorLike, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> TopKDim[Tensor]: ...
@overload
def topk(
    input: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> TopKDim[Value]: ...
@overload
def trace(input: TensorLike) -> Tensor: ...
@overload
def trace(input: Value) -> Value: ...
@overload
def transpose(input: TensorLike, dim0: int, dim1: int) -> Tensor: ...
@overload
def transpose(input: Value, dim0: int, dim1: int) -> Value: ...
@overload
def trapezoid(y: TensorLike, x: TensorLike | None = None, *, dx: float = 1.0, dim: int = -1) -> Tensor: ...
@overload
def trapezoid(
    y: Value | TensorLike, x: Value | TensorLike | None = None, *, dx: float = 1.0, dim: int = -1
) -> Value: ...
@overload
def tril(input: TensorLike, diagonal: int = 0) -> Tensor: ...
@overload
def tril(input: Value, diagonal: int = 0) -> Value: ...
@overload
def triplet_margin_loss(
    anchor: TensorLike,
    positive: TensorLike,
    negative: TensorLike,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-06,
    swap: bool = False,
    *,
    reduction: Reduction = "mean",
) -> Tensor: ...
@overload
def triplet_margin_loss(
    anchor: Value | TensorLike,
    positive: Value | TensorLike,
    negative: Value | TensorLike,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-06,
    swap: bool = False,
    *,
    reduction: Reduction = "mean",
) -> Value: ...
@overload
def triplet_margin_with_distance_loss(
    anchor: TensorLike,
    positive: TensorLike,
    negative: TensorLike,
    *,
    distance_function: Callable[[TensorLike, TensorLike], TensorLike] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: Reduction = "mean",
) -> Tensor: ...
@overload
def triplet_margin_with_distance_loss(
    anchor: Value | TensorLike,
    positive: Value | TensorLike,
    negative: Value | TensorLike,
    *,
    distance_function: Callable[[Value | TensorLike, Value | TensorLike], Value | TensorLike] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: Reduction = "mean",
) -> Value: ...
@overload
def triu(input: TensorLike, diagonal: int = 0) -> Tensor: ...
@overload
def triu(input: Value, diagonal: int = 0) -> Value: ...
@overload
def true_divide(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def true_divide(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def trunc(input: TensorLike) -> Tensor: ...
@overload
def trunc(input: Value) -> Value: ...
@overload
def unbind(input: TensorLike, dim: int = 0) -> tuple[Tensor, ...]: ...
@overload
def unbind(input: Value, dim: int = 0) -> tuple[Value, ...]: ...
@overload
def unflatten(input: TensorLike, dim: int, sizes: Sequence[int]) -> Tensor: ...
@overload
def unflatten(input: Value, dim: int, sizes: Sequence[int]) -> Value: ...
@overload
def unfold(
    input: TensorLike, kernel_size: Sizes, dilation: Sizes = 1, padding: Padding = 0, stride: Sizes = 1
) -> Tensor: ...
@overload
def unfold(
    input: Value, kernel_size: Sizes, dilation: Sizes = 1, padding: Padding = 0, stride: Sizes = 1
) -> Value: ...
@overload
def unique(
    input: TensorLike,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Tensor: ...
@overload
def unique(
    input: Value,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Value: ...
@overload
def unique_consecutive(
    input: TensorLike, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Tensor: ...
@overload
def unique_consecutive(
    input: Value, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Value: ...
@overload
def unravel_index(indices: TensorLike, shape: int | Sequence[int]) -> tuple[Tensor, ...]: ...
@overload
def unravel_index(indices: Value, shape: int | Sequence[int]) -> tuple[Value, ...]: ...
@overload
def unsqueeze(input: TensorLike, dim: int) -> Tensor: ...
@overload
def unsqueeze(input: Value, dim: int) -> Value: ...
@overload
def upsample_bilinear(
    input: TensorLike, size: Sizes | None = None, scale_factor: Factors | None = None
) -> Tensor: ...
@overload
def upsample_bilinear(
    input: Value, size: Sizes | None = None, scale_factor: Factors | None = None
) -> Value: ...
@overload
def upsample_nearest(
    input: TensorLike, size: Sizes | None = None, scale_factor: Factors | None = None
) -> Tensor: ...
@overload
def upsample_nearest(
    input: Value, size: Sizes | None = None, scale_factor: Factors | None = None
) -> Value: ...
@overload
def vander(x: TensorLike, N: int | None = None, increasing: bool = False) -> Tensor: ...
@overload
def vander(x: Value, N: int | None = None, increasing: bool = False) -> Value: ...
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
def vdot(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def vdot(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def vector_norm(
    input: TensorLike,
    ord: float = 2,
    dim: Dims | None = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Tensor: ...
@overload
def vector_norm(
    input: Value,
    ord: float = 2,
    dim: Dims | None = None,
    keepdim: bool = False,
    *,
    dtype: DTypeLike | None = None,
) -> Value: ...
@overload
def vsplit(input: TensorLike, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]: ...
@overload
def vsplit(input: Value, indices_or_sections: int | Sequence[int]) -> tuple[Value, ...]: ...
@overload
def vstack(tensors: Sequence[TensorLike]) -> Tensor: ...
@overload
def vstack(tensors: Sequence[Value | TensorLike]) -> Value: ...
@overload
def where(condition: TensorLike) -> tuple[Tensor, ...]: ...
@overload
def where(condition: Value) -> tuple[Value, ...]: ...
@overload
def where(condition: TensorLike, input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def where(condition: Value | TensorLike, input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def xlogy(input: TensorLike, other: TensorLike) -> Tensor: ...
@overload
def xlogy(input: Value | TensorLike, other: Value | TensorLike) -> Value: ...
@overload
def zeros_like(
    input: TensorLike, *, dtype: DTypeLike | None = None, device: DeviceLike | str | None = None
) -> Tensor: ...
@overload
def zeros_like(
    input: Value, *, dtype: DTypeLike | None = None, device: DeviceLike | str | None = None
) -> Value: ...

ALIASES: dict[str, str]
absolute = abs
arccos = acos
arccosh = acosh
arcsin = asin
arcsinh = asinh
arctan = atan
arctan2 = atan2
arctanh = atanh
clip = clamp
concat = cat
concatenate = cat
divide = div
fix = trunc
ger = outer
greater = gt
greater_equal = ge
less = lt
less_equal = le
moveaxis = movedim
multiply = mul
negative = neg
not_equal = ne
row_stack = vstack
subtract = sub
swapdims = swapaxes
trapz = trapezoid
unsafe_chunk = chunk
unsafe_split = split
unsafe_split_with_sizes = split_with_sizes
upsample = interpolate
