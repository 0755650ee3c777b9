"""Regions of torch.autocast within a graph: which calls compute in the half type, which in float32.

PyTorch keeps these lists in its dispatcher (aten/src/ATen/autocast_mode.h) and documents them
(https://docs.pytorch.org/docs/stable/amp.html, "Autocast Op Reference").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node

from lamina import ops
from lamina.convert.torch.cells import Cell
from lamina.convert.torch.targets import example, name_of
from lamina.spec import DType, float32

#: Matrix products: computed in the half type.
HALF = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution",
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "chain_matmul", "multi_dot", "linear", "matmul",
    "__matmul__", "mm", "mv", "prelu", "scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "einsum", "tensordot",
    "multi_head_attention_forward", "grouped_mm", "_grouped_mm", "grouped_mm_fallback",
    "transformers::grouped_mm_fallback",
})  # fmt: skip
#: Recurrent layers: on a GPU cuDNN's, with input, states and weights in the half type (ATen/cudnn/AutocastRNN.cpp).
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
#: Norms whose parameters and running statistics, which they update, stay float32 with an input of a half type.
MIXED = frozenset({"batch_norm", "instance_norm"})
#: Functions of several tensors: computed in the widest type among them.
WIDEST = frozenset({
    "addcdiv", "addcmul", "atan2", "bilinear", "cat", "cross", "dot", "grid_sample", "grid_sampler", "index_copy",
    "index_put", "scatter_add", "stack", "vdot",
})  # fmt: skip
#: Sums of many numbers, exponentials, powers and losses: computed in float32.
FULL = frozenset({
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "__pow__", "__rpow__", "softplus", "layer_norm", "group_norm", "norm", "cosine_similarity",
    "softmax",
    "log_softmax", "softmin", "cumprod", "cumsum", "dist", "pdist", "cdist", "renorm", "logsumexp", "prod", "sum",
    "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy", "cross_entropy_loss", "ctc_loss",
    "rms_norm", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss",
    "margin_ranking_loss", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
    "soft_margin_loss", "triplet_margin_loss",
})  # fmt: skip


class Autocast:
    """The regions that the run is in, innermost last: a dtype, None where a region disables autocast."""

    def __init__(self) -> None:
        self._regions: list[DType | None] = []

    @property
    def active(self) -> bool:
        """Whether arguments are cast here."""
        return bool(self._regions) and self._regions[-1] is not None

    def enter(self, dtype: DType | None) -> None:
        """Enter a region."""
        self._regions.append(dtype)

    def exit(self) -> None:
        """Leave the innermost region."""
        self._regions.pop()

    def cast(self, node: Node, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a call in the dtype in which its function computes."""
        name, half = plain_name(node), self._regions[-1]
        if half is None or name not in HALF | FULL:
            return args, kwargs
        kind = half if name in HALF else float32
        if not _gives(node, kind):
            return args, kwargs

        return cast_each(args, kwargs, kind)


def in_one_type(node: Node, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a product in the half type, if some are and others float32; those of other functions of
    several tensors in float32.

    PyTorch has no such call: the graph was traced in float32, and the precision of a step has cast its parameters and
    inputs, but not buffers and constants (the vectors of spectral norm, the initial zeros of a recurrent layer).
    """
    name = plain_name(node)
    if name not in HALF | WIDEST:
        return args, kwargs
    kinds = {c.read().dtype for c in _cells((args, kwargs)) if _is_castable(c.read())}
    if len(kinds) != 2 or float32 not in kinds:
        return args, kwargs
    return cast_each(args, kwargs, (kinds - {float32}).pop() if name in HALF else float32)


def cast_each(args: Any, kwargs: Any, kind: DType) -> tuple[Any, Any]:
    """Nested arguments with their floating-point tensors, except float64, in one dtype."""

    def one(x: Any) -> Any:
        return _as(x, kind)

    return _each(args, one), _each(kwargs, one)


def _gives(node: Node, kind: DType) -> bool:
    """Whether PyTorch's result has this dtype, as far as known: its lists differ between devices."""
    seen = example(node)
    first = seen[0] if isinstance(seen, (tuple, list)) and seen else seen
    return not isinstance(first, torch.Tensor) or str(first.dtype).removeprefix("torch.") == str(kind)


def plain_name(node: Node) -> str:
    """The name of a function, without the trailing underscore of its in-place form."""
    name = name_of(node)
    return name if name.endswith("__") else name.rstrip("_")


def _cells(value: Any) -> Iterator[Cell]:
    """The tensors among nested arguments."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from _cells(v)
    elif isinstance(value, Cell):
        yield value


def _each(value: Any, cast: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {k: _each(v, cast) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_each(v, cast) for v in value)
    return cast(value)


def _as(x: Any, kind: DType) -> Any:
    if not isinstance(x, Cell):
        return x
    held = x.read()
    return Cell(ops.cast(held, kind)) if _is_castable(held) and held.dtype != kind else x


def _is_castable(held: Any) -> bool:
    """Autocast leaves float64 alone."""
    return bool(held.dtype.is_float and held.dtype.itemsize <= 4)
