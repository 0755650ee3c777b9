"""Reductions, sorts and softmax whose ATen names and arguments differ from the functions'."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts, known
from lamina.convert.torch.targets import example


@converts("_softmax", "_log_softmax", "softmax", "log_softmax", "softmin")
def softmax(call: TorchCall) -> Any:
    """Along one axis; torch.nn.functional chooses it itself if none is given."""
    x, dim = call["input"], call.get("dim")
    dim = (0 if x.ndim in (0, 1, 3) else 1) if dim is None else dim
    if call.get("dtype") is not None:
        x = ops.cast(x, call.dtype(x.dtype))
    return getattr(ops, call.name.lstrip("_"))(x, dim)


@converts("sum", "mean", "prod", "nansum", "nanmean")
def reduced(call: TorchCall) -> Any:
    """Over axes, all of them by default."""
    x, dim = call["input"], call.get("dim")
    x = ops.cast(x, call.dtype(x.dtype)) if call.get("dtype") is not None else x
    dim = dim if isinstance(dim, int) or not dim else tuple(dim)
    return getattr(ops, call.name)(x, None if dim == () or dim == [] else dim, call.get("keepdim", False))


@converts("_is_all_true", "_is_any_true")
def decided(call: TorchCall) -> Any:
    """Whether all elements are true, or any is: what exported conditions (`torch._check_tensor_all`) are made of."""
    return (ops.all if call.name == "_is_all_true" else ops.any)(call["input"])


@converts("cumsum", "cumprod")
def cumulated(call: TorchCall) -> Any:
    """Cumulative sums and products."""
    x = call["input"]
    return getattr(ops, call.name)(ops.cast(x, call.dtype(x.dtype)) if call.get("dtype") else x, call["dim"])


@converts("_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive")
def unique(call: TorchCall) -> Any:
    """(distinct values, the place of each element's among them, their counts).

    ATen's functions always give all three, PyTorch's those that are asked for.
    """
    is_aten = isinstance(call.node.target, torch._ops.OpOverload)
    asked = {name: is_aten or bool(call.get(name)) for name in ("return_inverse", "return_counts")}
    function = ops.unique_consecutive if call.name.endswith("consecutive") else ops.unique
    return function(call["input"], dim=call.get("dim"), **asked)


@converts("hardtanh", "relu6", "clamp", "clip")
def clamp(call: TorchCall) -> Any:
    """Clamped between two bounds."""
    x = call["input"]
    if call.name == "relu6":
        return ops.relu6(x)
    if call.name == "hardtanh":
        return ops.hardtanh(x, call.get("min_val", -1.0), call.get("max_val", 1.0))
    return ops.clamp(x, call.get("min"), call.get("max"))


@converts("elu")
def elu(call: TorchCall) -> Any:
    """alpha (exp(x) - 1) below zero; ATen also has scales for it and its input."""
    x, alpha = call["input"], call.get("alpha", 1.0)
    scale, inner = call.get("scale", 1.0), call.get("input_scale", 1.0)
    y = ops.elu(x, float(alpha)) if inner == 1 else ops.where(ops.gt(x, 0), x, ops.expm1(x * inner) * alpha)
    return y if scale == 1 else y * scale


@converts("silu", "mish", "hardswish", "hardsigmoid", "relu", "selu", "sigmoid", "tanh", "softsign", "logsigmoid",
          "log_sigmoid")  # fmt: skip
def activation(call: TorchCall) -> Any:
    """A function of one tensor; PyTorch's further arguments say where the result goes."""
    name = "logsigmoid" if call.name == "log_sigmoid" else call.name
    return getattr(ops, name)(call["input"])


@converts("fma")
def fused_multiply_add(call: TorchCall) -> Any:
    """a b + c, Dynamo's form of `addcmul_`, `addcdiv_` and `add_` with a factor."""
    return call["a"] * call["b"] + call["c"]


@converts("entr")
def entropy(call: TorchCall) -> Any:
    """-x log x; minus infinity below zero."""
    x = call["input"]
    return ops.where(ops.lt(x, 0), float("-inf"), -ops.xlogy(x, x))


@converts("_convert_indices_from_coo_to_csr")
def row_pointers(call: TorchCall) -> Any:
    """Where each row begins among sorted row indices (S,), and the end: (rows + 1,). As a sparse matrix's (CSR)."""
    rows = call["input"]
    found = ops.searchsorted(rows, ops.cast(ops.operand(np.arange(call["size"] + 1)), rows.dtype))
    return ops.cast(found, "int32" if call.get("out_int32") else "int64")


@converts("_convert_indices_from_csr_to_coo")
def row_indices(call: TorchCall) -> Any:
    """The row and the column (2, S) of each element, of the beginnings of rows and the columns (S,)."""
    begins, columns = call["crow_indices"], call["col_indices"]
    places = ops.cast(ops.operand(np.arange(columns.shape[0])), begins.dtype)
    kind = "int32" if call.get("out_int32") else "int64"
    pair = [ops.cast(ops.searchsorted(begins, places, right=True), kind) - 1, ops.cast(columns, kind)]
    return ops.stack(pair[::-1] if call.get("transpose") else pair)


@converts("bincount")
def bincount(call: TorchCall) -> Any:
    """How often each number occurs. In a graph the number of counts must follow from other tensors' shapes."""
    x, weights, seen = call["input"], call.get("weights"), example(call.node)
    size = None if seen is None else seen.shape[0]
    size = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else size
    if known(x) is not None or size is None:
        return ops.bincount(x, weights, call.get("minlength", 0))
    kind = "int64" if weights is None else weights.dtype if weights.dtype.is_float else "float64"
    each = ops.full_like(x, 1, dtype=kind) if weights is None else ops.cast(weights, kind)
    counts = ops.full_like(each[:1], 0).expand((size + 1,))  # one more, for numbers that are too large
    return ops.index_add(counts, 0, ops.clamp(x, max=size), each)[:size]
