"""Memory shared by PyTorch's tensors and Lamina's programs, without a copy where that is safe."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
import torch.utils.dlpack

from lamina.runtime import Buffer, Device, Stream, as_stream
from lamina.spec import DType, Spec, as_dtype
from lamina.tensors import Tensor

#: Addresses that are not multiples of this many bytes are not passed to kernels, which use loads of this size.
ALIGNED = 64


def dtype_of_tensor(x: torch.Tensor) -> DType:
    """Lamina's dtype of a tensor. Raises DTypeError for unsupported ones (complex, quantized)."""
    return as_dtype(str(x.dtype).removeprefix("torch."))


def spec_of(x: torch.Tensor) -> Spec:
    """Shape and dtype of a tensor."""
    return Spec(tuple(x.shape), dtype_of_tensor(x))


def device_of_tensors(tensors: Sequence[torch.Tensor]) -> Device:
    """The device of a program on these tensors: that of the tensors on one, else the CPU.

    A scalar on the CPU may accompany tensors on a GPU. Raises ValueError for several devices, and for one
    that is neither a CPU nor a CUDA device.
    """
    found = dict.fromkeys(str(x.device) for x in tensors if x.ndim or x.device.type != "cpu")
    if len(found) > 1:
        raise ValueError(f"its tensors are on several devices: {', '.join(found)}")
    return Device(next(iter(found), "cpu"))


def copied(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module, also of one that holds computed tensors (as torch.nn.utils.weight_norm does),
    which copy.deepcopy refuses: these are copied by value.
    """
    held = (x for part in module.modules() for x in vars(part).values() if isinstance(x, torch.Tensor))
    return copy.deepcopy(module, {id(x): x.detach().clone() for x in held if not x.is_leaf})


def is_lendable(x: torch.Tensor) -> bool:
    """Whether kernels may read a tensor in place: row-major, and aligned."""
    return x.is_contiguous() and x.data_ptr() % ALIGNED == 0 and not x.is_conj() and not x.is_neg()


def overlaps(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> bool:
    """Whether one of the tensors at the places `written` may share an element with another of the tensors."""
    spans = [_span(x) for x in tensors]
    return any(
        i != k and begin < spans[i][1] and spans[i][0] < end
        for i in written
        for k, (begin, end) in enumerate(spans)
    )


def _span(x: torch.Tensor) -> tuple[int, int]:
    """The start and end of a tensor's elements in memory."""
    begin = x.data_ptr()
    if not x.numel():
        return begin, begin
    last = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
    return begin, begin + (last + 1) * x.itemsize


def real_form(x: torch.Tensor) -> torch.Tensor:
    """A complex tensor's memory as real numbers [..., 2]; others unchanged."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def lent(x: torch.Tensor, device: Device) -> Buffer:
    """A tensor's memory, which is not kept alive: the caller of a program holds the tensor."""
    return Buffer.borrow(x.data_ptr(), x.nbytes, device)


def shown(x: Tensor) -> torch.Tensor:
    """A Lamina tensor as PyTorch's, over the same memory."""
    return torch.utils.dlpack.from_dlpack(x)


def torch_tensor(x: Tensor) -> torch.Tensor:
    """A copy of a tensor as one of PyTorch on the CPU."""
    if str(x.dtype) == "bfloat16":  # NumPy lacks these types: their bits are copied
        return torch.from_numpy(np.ascontiguousarray(x.numpy()).view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(x.numpy()))


def is_capturing(device: Device) -> bool:
    """Whether PyTorch's stream of this thread is being recorded as a CUDA graph."""
    return device.kind == "cuda" and torch.cuda.is_current_stream_capturing()


def current_stream(device: Device) -> Stream | None:
    """PyTorch's stream of this thread, where it queues work; None for a device's own (a CPU)."""
    if device.kind == "cpu":
        return None
    return as_stream(torch.cuda.current_stream(device.index), device)
