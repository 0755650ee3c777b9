"""Attention and the layers around it that PyTorch calls as one function."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch.nn.attention import flex_attention

from lamina import ops
from lamina.convert.torch.cells import Cell
from lamina.convert.torch.factory import constant
from lamina.convert.torch.node import TorchCall, converts, read
from lamina.ops.primitives.attention import attention_and_weights
from lamina.ops.primitives.embedding import renormed
from lamina.spec import float32, float64, int32


@converts("scaled_dot_product_attention")
def attention(call: TorchCall) -> Any:
    """softmax(scale q kT + mask) v."""
    return ops.scaled_dot_product_attention(
        call["query"], call["key"], call["value"], call.get("attn_mask"), float(call.get("dropout_p", 0.0)),
        bool(call.get("is_causal", False)), call.get("scale"), bool(call.get("enable_gqa", False)),
    )  # fmt: skip


@contextmanager
def flexible_on_every_device() -> Iterator[None]:
    """Within the block `flex_attention` takes tensors that train on a CPU, too: PyTorch, which has no gradient of it
    there, refuses them before it records the call.
    """
    held = vars(flex_attention)
    check = held.get("_validate_device")
    held["_validate_device"] = lambda *tensors: None
    try:
        yield
    finally:
        held["_validate_device"] = check


@converts("flex_attention")
def flexible_attention(call: TorchCall) -> Any:
    """(y [B, H, T, E], the base-2 log-sum-exp of the rows [B, H, T], their maxima) of scores that user functions
    modify and mask: functions of a score and its four indices, run on all scores at once.
    """
    q, k, v, score_mod, blocks, scale, _, own, hidden = call.cells.values()
    q, k, v = map(read, (q, k, v))
    kind = q.dtype if q.dtype == float64 else float32
    groups = q.shape[1] // k.shape[1]
    k, v = (ops.repeat_interleave(x, groups, 1) if groups > 1 else x for x in (k, v))
    scores = ops.matmul(q, k.mT).cast(kind) * float(scale)
    places = [
        Cell(constant(call, np.arange(n).reshape([n if i == axis else 1 for i in range(4)]), int32))
        for axis, n in enumerate(scores.shape)
    ]
    scores = ops.broadcast_to(read(call.run(score_mod, [Cell(scores), *places, *own])), scores.shape)
    allowed = read(call.run(blocks[-1], [*places, *hidden]))
    scores = ops.where(allowed, scores, float("-inf"))
    most = ops.amax(scores, -1)
    empty = ops.isneginf(most).unsqueeze(-1)  # rows without a key are zeros
    weights = ops.where(empty, 0.0, ops.softmax(ops.where(empty, 0.0, scores), -1))
    y = ops.matmul(weights.cast(q.dtype), v)
    return y, ops.logsumexp(scores, -1) / math.log(2), most


@converts("flat_apply")
def indexed(call: TorchCall) -> Any:
    """x[indices], as the exporter writes it in the functions of `flex_attention`."""
    _, _, function, x, *indices = call.cells.values()
    if not str(function).endswith(".ModIndex"):
        raise call.error(f"of {function}")
    return read(x)[tuple(map(read, indices))]


@converts("multi_head_attention_forward")
def multi_head_attention(call: TorchCall) -> Any:
    """(y [T, B, E], the weights or None) of query, key and value [T, B, E]; a single sequence may lack the batch
    axis.
    """
    q, k, v = (call[n] for n in ("query", "key", "value"))
    alone = q.ndim == 2
    q, k, v = (x.unsqueeze(1) if alone else x for x in (q, k, v))
    heads, steps, batch, width = call["num_heads"], q.shape[0], q.shape[1], q.shape[2]
    mask, hidden = call.get("attn_mask"), call.get("key_padding_mask")
    hidden = hidden.unsqueeze(0) if hidden is not None and alone else hidden
    causal = bool(call.get("is_causal", False)) and hidden is None and not call.get("need_weights", True)
    # As PyTorch: is_causal replaces the mask, also for appended keys.
    mask = None if causal else mask
    q, k, v = _projected(call, q, k, v)
    k, v, mask, hidden = _longer(call, k, v, mask, hidden, batch)
    q, k, v = (x.reshape((x.shape[0], batch, heads, -1)).permute(1, 2, 0, 3) for x in (q, k, v))
    bias = _bias(mask, hidden, q, heads)
    drop = call.get("dropout_p", 0.0) if call.get("training", True) else 0.0
    if call.get("need_weights", True):
        whole = bias if bias is None or bias.ndim == 4 else bias[None, None]
        y, weights = attention_and_weights(q, k, v, whole, drop)
    else:
        weights = None
        y = ops.scaled_dot_product_attention(q, k, v, bias, drop, causal)
    y = y.permute(2, 0, 1, 3).reshape((steps, batch, width))
    y = ops.linear(y, call["out_proj_weight"], call.get("out_proj_bias"))
    if weights is not None:
        weights = ops.mean(weights, 1) if call.get("average_attn_weights", True) else weights
        weights = weights[0] if alone else weights
    return (y[:, 0] if alone else y), weights


@converts("_transformer_encoder_layer_fwd")
def encoder_layer(call: TorchCall) -> Any:
    """A torch.nn encoder layer in inference, [B, T, E], which PyTorch calls as one function there.

    Its mask is true, or not 0, where attention is not allowed: [T, T] (mask_type 0), [B, T] of keys (1), or per
    head (2).
    """
    x, mask = call["src"], call.get("mask")
    if mask is not None:
        mask = mask if str(mask.dtype) == "bool" else ops.ne(mask, 0)
        mask = mask[:, None, None, :] if call.get("mask_type") == 1 else mask

    def norm(y: Any, number: int) -> Any:
        scale, shift = call[f"norm_weight_{number}"], call[f"norm_bias_{number}"]
        return ops.layer_norm(y, scale.shape, scale, shift, call["eps"])

    def attend(y: Any) -> Any:
        parts = ops.chunk(ops.linear(y, call["qkv_weight"], call["qkv_bias"]), 3, -1)
        q, k, v = (p.reshape((*p.shape[:2], call["num_heads"], -1)).transpose(1, 2) for p in parts)
        found = ops.scaled_dot_product_attention(q, k, v, None if mask is None else _added(mask, q))
        return ops.linear(found.transpose(1, 2).reshape(y.shape), call["proj_weight"], call["proj_bias"])

    def feed(y: Any) -> Any:
        wide = ops.linear(y, call["ffn_weight_1"], call["ffn_bias_1"])
        wide = ops.gelu(wide) if call["use_gelu"] else ops.relu(wide)
        return ops.linear(wide, call["ffn_weight_2"], call["ffn_bias_2"])

    if call["norm_first"]:
        x = x + attend(norm(x, 1))
        return x + feed(norm(x, 2))
    x = norm(x + attend(x), 1)
    return norm(x + feed(x), 2)


def _projected(call: TorchCall, q: Any, k: Any, v: Any) -> tuple[Any, Any, Any]:
    bias = call.get("in_proj_bias")
    parts = (None,) * 3 if bias is None else ops.chunk(bias, 3, 0)
    if call.get("use_separate_proj_weight", False):
        weights = [call[f"{n}_proj_weight"] for n in "qkv"]
    else:
        weights = list(ops.chunk(call["in_proj_weight"], 3, 0))
    found = [ops.linear(x, w, b) for x, w, b in zip((q, k, v), weights, parts, strict=True)]
    return found[0], found[1], found[2]


def _longer(call: TorchCall, k: Any, v: Any, mask: Any, hidden: Any, batch: int) -> tuple[Any, Any, Any, Any]:
    """Keys and values with learned rows and rows of zeros appended, which every query attends to."""
    more = 0
    if call.get("bias_k") is not None:
        k = ops.cat([k, ops.expand(call["bias_k"], (1, batch, k.shape[2]))], 0)
        v = ops.cat([v, ops.expand(call["bias_v"], (1, batch, v.shape[2]))], 0)
        more += 1
    if call.get("add_zero_attn", False):
        k, v = (ops.pad(x, (0, 0, 0, 0, 0, 1)) for x in (k, v))
        more += 1
    if more:
        mask, hidden = (None if m is None else ops.pad(m, (0, more)) for m in (mask, hidden))
    return k, v, mask, hidden


def _bias(mask: Any, hidden: Any, q: Any, heads: int) -> Any:
    """The term added to the scores [B, H, S, T]: from masks that are true where attention is not allowed."""
    bias = None if mask is None else _added(mask, q)
    if bias is not None and bias.ndim == 3:
        bias = bias.reshape((-1, heads, *bias.shape[1:])) if bias.shape[0] > 1 else bias.unsqueeze(0)
    if hidden is not None:
        padding = _added(hidden, q)[:, None, None, :]
        bias = padding if bias is None else bias + padding
    return bias


def _added(mask: Any, q: Any) -> Any:
    if str(mask.dtype) != "bool":
        return ops.cast(mask, q.dtype)
    nothing = ops.full_like(mask, 0.0, dtype=q.dtype)
    return ops.masked_fill(nothing, mask, float("-inf"))


@converts("embedding")
def embedding(call: TorchCall) -> Any:
    """Rows of a table. torch.nn.functional has the indices first, ATen the table, and -1 for no padding."""
    of_aten = "indices" in call
    options = _of_table(call)
    if of_aten and options.get("padding_idx") == -1:
        del options["padding_idx"]
    return ops.embedding(call["indices" if of_aten else "input"], call["weight"], **options)


@converts("embedding_renorm")
def bounded_rows(call: TorchCall) -> Any:
    """A table whose looked-up rows are renormalized to a maximum norm, which is written to the table."""
    return renormed(call["input"], call["indices"], call["max_norm"], call["norm_type"])


@converts("embedding_bag")
def embedding_bag(call: TorchCall) -> Any:
    """Sums, means or maxima of rows."""
    modes: tuple[Any, ...] = ("sum", "mean", "max")
    mode: Any = call.get("mode", "mean")
    first = call["indices"] if "indices" in call else call["input"]
    found = ops.embedding_bag(
        first, call["weight"], call.get("offsets"), mode=modes[mode] if isinstance(mode, int) else mode,
        per_sample_weights=call.get("per_sample_weights"),
        include_last_offset=bool(call.get("include_last_offset", False)), **_of_table(call),
    )  # fmt: skip
    return (found, None, None, None) if "indices" in call else found


def _of_table(call: TorchCall) -> dict[str, Any]:
    """The options of a lookup for its table and the table's gradient."""
    names = ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")
    return {k: call[k] for k in names if (value := call.get(k)) is not None and value is not False}
