"""Norms: batch statistics are written to the buffers that hold the running ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch.fx import Node
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts
from lamina.nn.norm import batch_norm_of_ranks
from lamina.runtime.ranks import current_world
from lamina.spec import Group


@converts("batch_norm")
def batch_norm(call: TorchCall) -> Any:
    """x normalized by the batch's statistics, or the running ones; without running ones always by the batch's."""
    x, mean, var = call["input"], call.get("running_mean"), call.get("running_var")
    weight, bias, training = call.get("weight"), call.get("bias"), bool(call.get("training", False))
    eps, momentum = call.get("eps", 1e-5), call.get("momentum", 0.1)
    if not training and mean is not None:
        return ops.batch_norm(x, mean, var, weight, bias, False, 0.0, eps)
    group = _ranks_of(call.node) if training else Group(0)
    if group.size > 1:
        y, mean, var = batch_norm_of_ranks(x, mean, var, weight, bias, momentum or 0.0, eps, group)
    else:
        y, mean, var = ops.batch_norm_with_statistics(x, mean, var, weight, bias, True, momentum or 0.0, eps)
    _keep(call, mean, var)
    return y


def _keep(call: TorchCall, mean: Any, var: Any) -> None:
    """Update running statistics, if any. No gradient goes through them: PyTorch updates them outside of
    autograd.
    """
    for name, value in (("running_mean", mean), ("running_var", var)):
        call.write(name, None if value is None else ops.stop_gradient(value))


#: The ranks over which all batch norms of a network synchronize statistics; () for none.
_synchronized: ContextVar[tuple[int, ...]] = ContextVar("synchronized", default=())


@contextmanager
def synchronized(group: Group | None) -> Iterator[None]:
    """Within the block batch norms synchronize statistics over the group's ranks; None: not."""
    token = _synchronized.set(() if group is None else group.ranks)
    try:
        yield
    finally:
        _synchronized.reset(token)


def _ranks_of(node: Node) -> Group:
    """The ranks over which a batch norm synchronizes: all for PyTorch's SyncBatchNorm in an exported graph."""
    if ranks := _synchronized.get():
        return Group(*ranks)
    stack: dict[str, Any] = node.meta.get("nn_module_stack") or {"": ("", "")}
    _, owner = list(stack.values())[-1]
    known = f"{SyncBatchNorm.__module__}.{SyncBatchNorm.__qualname__}"
    return Group(*range(current_world().size if owner == known else 1))


@converts("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit")
def native_batch_norm(call: TorchCall) -> Any:
    """The same, with the mean of each channel and 1 / sqrt(variance + eps), of the batch in training."""
    x, training = call["input"], bool(call.get("training", False))
    axes = tuple(i for i in range(x.ndim) if i != 1)
    statistics = _statistics(x, axes, call.either("eps", "epsilon"), False)
    return batch_norm(call), *(v if training else v[:0] for v in statistics)


def _statistics(x: Any, axes: tuple[int, ...], eps: float, keepdim: bool = True) -> tuple[Any, Any]:
    """Mean and 1 / sqrt(variance + eps) along axes."""
    var = ops.var(x, axes, correction=0, keepdim=keepdim)
    return ops.mean(x, axes, keepdim), ops.rsqrt(var + eps)


@converts("instance_norm")
def instance_norm(call: TorchCall) -> Any:
    """Each image and channel normalized by its own statistics, or the running ones."""
    own = call.get("use_input_stats", True)
    y, mean, var = ops.instance_norm_with_statistics(
        call["input"], call.get("running_mean"), call.get("running_var"), call.get("weight"), call.get("bias"),
        own, call.get("momentum", 0.1), call.get("eps", 1e-5),
    )  # fmt: skip
    if own and call.get("running_mean") is not None:
        _keep(call, mean, var)
    return y


@converts("layer_norm")
def layer_norm(call: TorchCall) -> Any:
    """Over the last axes."""
    return ops.layer_norm(
        call["input"],
        tuple(call["normalized_shape"]),
        call.get("weight"),
        call.get("bias"),
        call.get("eps", 1e-5),
    )


@converts("native_layer_norm")
def native_layer_norm(call: TorchCall) -> Any:
    """The same, with each row's mean and 1 / sqrt(variance + eps)."""
    x, rank = call["input"], len(call["normalized_shape"])
    return layer_norm(call), *_statistics(x, tuple(range(x.ndim - rank, x.ndim)), call["eps"])


@converts("group_norm")
def group_norm(call: TorchCall) -> Any:
    """Over groups of channels."""
    return ops.group_norm(
        call["input"], call["num_groups"], call.get("weight"), call.get("bias"), call.get("eps", 1e-5)
    )


@converts("native_group_norm")
def native_group_norm(call: TorchCall) -> Any:
    """The same, with each group's mean and 1 / sqrt(variance + eps), both [N, groups]."""
    x, groups, eps = call["input"], call["group"], call["eps"]
    y = ops.group_norm(x, groups, call.get("weight"), call.get("bias"), eps)
    return y, *_statistics(x.reshape((x.shape[0], groups, -1)), (2,), eps, False)


@converts("_weight_norm", "_weight_norm_interface")
def weight_norm(call: TorchCall) -> Any:
    """g v / |v|, the norm over all axes but one."""
    v, g, dim = call["v"], call["g"], call.get("dim", 0)
    axes = tuple(a for a in range(v.ndim) if dim == -1 or a != dim % v.ndim)
    return v * (g / ops.vector_norm(v, 2, axes, True))


@converts("linalg_vector_norm", "vector_norm")
def vector_norm(call: TorchCall) -> Any:
    """The norm of vectors along axes."""
    return ops.vector_norm(
        call.either("input", "x"), call.get("ord", 2), call.get("dim"), call.get("keepdim", False)
    )


@contextmanager
def cumulative_norms() -> Iterator[None]:
    """Within the block batch norms with momentum=None, whose running statistics are means over all batches, count
    these in a tensor: PyTorch reads the count as a number, which a graph cannot.
    """
    own = _BatchNorm.forward

    def forward(self: Any, input: torch.Tensor) -> torch.Tensor:
        if self.momentum is not None or not self.training or self.num_batches_tracked is None:
            return own(self, input)
        self._check_input_dim(input)
        axes = [i for i in range(input.ndim) if i != 1]
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = 1.0 / self.num_batches_tracked.to(self.running_mean.dtype)
            self.running_mean.lerp_(input.mean(axes).to(self.running_mean.dtype), share)
            self.running_var.lerp_(input.var(axes).to(self.running_var.dtype), share)
        return torch.nn.functional.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)

    _BatchNorm.forward = forward
    try:
        yield
    finally:
        _BatchNorm.forward = own
