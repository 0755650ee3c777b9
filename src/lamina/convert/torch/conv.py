"""Convolutions and pools whose torch arguments differ from those of the op of the same name."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts
from lamina.graph.transforms.derivatives import vjp

CONV: dict[int, Callable[..., Any]] = {1: ops.conv1d, 2: ops.conv2d, 3: ops.conv3d}
TRANSPOSED: dict[int, Callable[..., Any]] = {
    1: ops.conv_transpose1d, 2: ops.conv_transpose2d, 3: ops.conv_transpose3d
}  # fmt: skip


@converts("convolution", "_convolution")
def convolution(call: TorchCall) -> Any:
    """With any number of spatial axes, transposed or not."""
    rank = call["weight"].ndim - 2
    given = (call["input"], call["weight"], call.get("bias"), tuple(call["stride"]), tuple(call["padding"]))
    if call["transposed"]:
        more = (tuple(call["output_padding"]), call["groups"], tuple(call["dilation"]))
        return TRANSPOSED[rank](*given, *more)
    return CONV[rank](*given, tuple(call["dilation"]), call["groups"])


@converts("conv_tbc")
def conv_tbc(call: TorchCall) -> Any:
    """Time first, [T, N, C], with a filter of [taps, C, M]."""
    x, weight = call["input"].permute(1, 2, 0), call["weight"].permute(2, 1, 0)
    return ops.conv1d(x, weight, call["bias"], padding=call.get("pad", 0)).permute(2, 0, 1)


@converts("convolution_backward")
def convolution_backward(call: TorchCall) -> Any:
    """The gradients of input, weight and bias, None for those not requested."""
    g, x, weight = call["grad_output"], call["input"], call["weight"]
    rank = weight.ndim - 2
    sizes = [tuple(call[name]) for name in ("stride", "padding", "dilation", "output_padding")]

    def forward(x: Any, weight: Any) -> Any:
        stride, padding, dilation, more = sizes
        if call["transposed"]:
            return TRANSPOSED[rank](x, weight, None, stride, padding, more, call["groups"], dilation)
        return CONV[rank](x, weight, None, stride, padding, dilation, call["groups"])

    of_x, of_weight, of_bias = call["output_mask"]
    made = vjp(forward, x, weight)[1](g) if of_x or of_weight else (None, None)
    axes = tuple(i for i in range(g.ndim) if i != 1)
    return made[0] if of_x else None, made[1] if of_weight else None, ops.sum(g, axes) if of_bias else None


@converts("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(call: TorchCall) -> Any:
    """torch's function returns the indices if requested, the ATen overload always."""
    indices = call.get("return_indices", str(call.node.target).startswith("aten"))
    return getattr(ops, call.name)(call["input"], call["output_size"], return_indices=indices)


@converts("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def adaptive_avg_pool(call: TorchCall) -> Any:
    """Means of parts of the image."""
    return getattr(ops, call.name[1:])(call["input"], tuple(call["output_size"]))


@converts("max_pool1d", "max_pool2d", "max_pool3d", "max_pool1d_with_indices", "max_pool2d_with_indices",
          "max_pool3d_with_indices", "boolean_dispatch")  # fmt: skip
def max_pool(call: TorchCall) -> Any:
    """The maxima of windows, with their indices if requested."""
    name = call.name
    options = {k: call[k] for k in ("padding", "dilation", "ceil_mode") if k in call}
    step = call.get("stride") or None
    if call.get("return_indices", False) and not name.endswith("_with_indices"):
        name += "_with_indices"
    return getattr(ops, name)(call["input"], call["kernel_size"], step, **options)


@converts("max_unpool2d", "max_unpool3d")
def max_unpool(call: TorchCall) -> Any:
    """Elements put back at the indices of a pool; the ATen overload only gets the image's sizes."""
    if "kernel_size" in call:
        names = ("stride", "padding", "output_size")
        options = {k: call[k] for k in names if call.get(k) is not None}
        return getattr(ops, call.name)(call["input"], call["indices"], call["kernel_size"], **options)
    x, index, sizes = call["input"], call["indices"], tuple(call["output_size"])
    planes = x.shape[: x.ndim - len(sizes)]
    flat = (*planes, -1)
    zeros = x.new_zeros((*planes, prod(sizes)))
    return ops.scatter(zeros, -1, index.reshape(flat), x.reshape(flat)).reshape((*planes, *sizes))


@converts("fractional_max_pool2d", "fractional_max_pool3d")
def fractional_max_pool(call: TorchCall) -> Any:
    """The maxima of random windows; the ATen overload always returns the indices."""
    of_aten = "random_samples" in call
    names = ("output_size", "output_ratio", "_random_samples")
    options = {k: call[k] for k in names if call.get(k) is not None}
    options |= {"_random_samples": call["random_samples"]} if of_aten else {}
    indices = of_aten or bool(call.get("return_indices", False))
    return getattr(ops, call.name)(call["input"], call["kernel_size"], **options, return_indices=indices)


@converts("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(call: TorchCall) -> Any:
    """Means of windows."""
    names = ("padding", "ceil_mode", "count_include_pad", "divisor_override")
    options = {k: call[k] for k in names if call.get(k) is not None}
    return getattr(ops, call.name)(call["input"], call["kernel_size"], call.get("stride") or None, **options)


@converts("lp_pool1d", "lp_pool2d", "lp_pool3d")
def lp_pool(call: TorchCall) -> Any:
    """Norms of windows."""
    return getattr(ops, call.name)(
        call["input"],
        call["norm_type"],
        call["kernel_size"],
        call.get("stride") or None,
        call.get("ceil_mode", False),
    )
