"""Tensors made from numbers: constants of the program, on the device of its tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts, is_operand
from lamina.graph.ir import graph as ir
from lamina.graph.ir.call_numbers import numbers_now
from lamina.ops.core import Operand, recorder, recording
from lamina.spec import DType, as_dtype
from lamina.tensors import Tensor, as_tensor


def usual() -> DType:
    """PyTorch's default float dtype while the graph is recorded (torch.set_default_dtype)."""
    return as_dtype(str(torch.get_default_dtype()).removeprefix("torch."))


def constant(call: TorchCall, values: Any, dtype: DType) -> Operand:
    """A new tensor on the program's device."""
    found = as_tensor(np.asarray(values).astype(dtype.numpy))
    with recording(None):  # moved now, not by the program
        there = found if call.device is None else found.to(call.device)
    return settled(there)


def settled(x: Tensor) -> Operand:
    """A tensor that the program makes itself: a constant of a recorded graph, whose numbers shapes may depend on."""
    by = recorder()
    return x if by is None or by.knows(x) else ir.constant(x)


def _kind(*values: Any) -> DType:
    """The dtype of Python numbers, and of tensors' numbers."""
    if any(v.dtype.is_float if is_operand(v) else isinstance(v, float) for v in values):
        return usual()
    truths = all(v.dtype.name == "bool" if is_operand(v) else isinstance(v, bool) for v in values)
    return as_dtype("bool" if truths else "int64")


@converts("zeros", "ones", "empty", "full", "new_zeros", "new_ones", "new_empty", "new_full", "empty_strided",
          "new_empty_strided", "empty_permuted")  # fmt: skip
def filled(call: TorchCall) -> Any:
    """The same value everywhere; uninitialized memory is zeros."""
    name = call.name.removeprefix("new_")
    value: Any = 1 if name == "ones" else 0
    kind = call["input"].dtype if call.name.startswith("new_") else usual()
    if name == "full":
        value = call["fill_value"]
        kind = kind if call.name == "new_full" else _kind(value)
    size = call["size"]
    shape, dtype = (size,) if isinstance(size, int) else tuple(size), call.dtype(kind)
    if is_operand(value):
        return ops.stop_gradient(ops.expand(ops.cast(value, dtype), shape))
    return constant(call, np.full(shape, value), dtype)


@converts("zeros_like", "ones_like", "empty_like", "full_like")
def like(call: TorchCall) -> Any:
    """The same value everywhere, in the shape of another tensor."""
    x = call["input"]
    value = call["fill_value"] if call.name == "full_like" else int(call.name == "ones_like")
    if is_operand(value):
        return ops.stop_gradient(ops.broadcast_to(ops.cast(value, call.dtype(x.dtype)), x.shape))
    return ops.stop_gradient(
        ops.full_like(x, value, dtype=call.dtype(x.dtype))
    )  # a constant, known to autograd


@converts("arange")
def arange(call: TorchCall) -> Any:
    """Numbers from start up to, but excluding, end: as many as in the call that is recorded."""
    start, end, step = (_now(call, v) for v in (call.get("start", 0), call["end"], call.get("step", 1)))
    kind = _kind(start, end, step)
    return constant(call, np.arange(start, end, step), call.dtype(kind))


def _now(call: TorchCall, number: Any) -> Any:
    """A number that a size depends on, in the call that is recorded."""
    found = numbers_now(number) if is_operand(number) else number
    if found is None:
        raise call.error(
            "the size of the result depends on numbers that are known only when the program runs"
        )
    return found.item() if is_operand(number) else found


@converts("linspace", "logspace")
def linspace(call: TorchCall) -> Any:
    """Numbers from start to end, both included."""
    dtype, ends = call.dtype(usual()), (call["start"], call["end"])
    if any(map(is_operand, ends)):
        return ops.stop_gradient(_between(call, *ends, dtype))
    found = np.linspace(*ends, call["steps"], dtype=np.float64)
    return constant(call, found if call.name == "linspace" else call.get("base", 10.0) ** found, dtype)


def _between(call: TorchCall, start: Any, end: Any, dtype: DType) -> Any:
    """`linspace` and `logspace` between numbers that are known only when the program runs: [steps]."""
    wide = dtype if dtype.is_float else as_dtype("float64")
    start, end = (ops.cast(v, wide) if is_operand(v) else v for v in (start, end))
    share = np.linspace(0.0, 1.0, call["steps"])
    found = constant(call, 1.0 - share, wide) * start + constant(call, share, wide) * end
    return ops.cast(found if call.name == "linspace" else ops.pow(call.get("base", 10.0), found), dtype)


@converts("fftfreq", "rfftfreq")
def frequencies(call: TorchCall) -> Any:
    """The frequencies of a transform."""
    make = getattr(np.fft, call.name)
    return constant(call, make(call["n"], call.get("d", 1.0)), call.dtype(usual()))


@converts("eye")
def eye(call: TorchCall) -> Any:
    """Ones on the diagonal."""
    return constant(call, np.eye(call["n"], call.get("m")), call.dtype(usual()))


@converts("Tensor")
def old_tensor(call: TorchCall) -> Any:
    """torch.Tensor from a list of numbers: float32."""
    values = call.get("data", [])
    if not isinstance(values, (tuple, list)):
        raise call.error("memory that means nothing: torch.empty(*sizes) says so")
    return constant(call, np.asarray(values), usual())


@converts("scalar_tensor", "tensor", "as_tensor", "new_tensor")
def tensor(call: TorchCall) -> Any:
    """A tensor from numbers."""
    values = call.either("s", "data")
    if is_operand(values):
        return values if call.get("dtype") is None else ops.cast(values, call.dtype(values.dtype))
    flat = np.asarray(values)
    kind = (
        usual()
        if call.name == "scalar_tensor"
        else _kind(*flat.reshape(-1).tolist())
        if flat.size
        else usual()
    )
    return constant(call, flat, call.dtype(kind))


@converts("tril_indices", "triu_indices")
def triangle(call: TorchCall) -> Any:
    """The indices of a triangle of a matrix."""
    make = np.tril_indices if call.name == "tril_indices" else np.triu_indices
    found = np.stack(make(call["row"], call.get("offset", 0), call["col"]))
    return constant(call, found, call.dtype("int64"))
