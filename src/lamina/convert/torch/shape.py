"""Shapes, views, indexing, dtypes and properties of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from lamina import ops
from lamina.convert.torch.cells import Cell, View
from lamina.convert.torch.factory import settled
from lamina.convert.torch.node import (
    TorchCall,
    aliases,
    converts,
    dtype_of,
    is_operand,
    known,
    read,
)
from lamina.convert.torch.selecting import is_only_computed_with, selected
from lamina.convert.torch.targets import example
from lamina.graph.ir.call_numbers import numbers_now
from lamina.ops.primitives.arrange import windows
from lamina.ops.primitives.marker import overwritten
from lamina.spec import bool_
from lamina.tensors import Tensor

#: The end of a slice without a bound.
TO_THE_END = 2**63 - 1


# ---------------------------------------------------------------------------------------------- tensor properties
@converts("size", "sym_size")
def size(call: TorchCall) -> Any:
    """The shape, or one axis of it."""
    shape = tuple(call["input"].shape)
    return shape if call.get("dim") is None else shape[call["dim"]]


@converts("numel", "sym_numel", "nelement")
def numel(call: TorchCall) -> Any:
    """The number of elements."""
    return prod(call["input"].shape)


@converts("stride", "sym_stride")
def stride(call: TorchCall) -> Any:
    """The strides of a row-major tensor: the actual layout is decided by the plan here."""
    shape = call["input"].shape
    found = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    return found if call.get("dim") is None else found[call["dim"]]


@converts("storage_offset", "sym_storage_offset")
def storage_offset(call: TorchCall) -> Any:
    """0: each tensor is its own."""
    return 0


@converts("is_contiguous", "is_same_size", "is_nonzero")
def is_contiguous(call: TorchCall) -> Any:
    """Whether it is contiguous, which all tensors are here."""
    return True


@converts("is_complex", "is_quantized", "is_sparse", "is_inference")
def is_never(call: TorchCall) -> Any:
    """False."""
    return False


@converts("item", "_local_scalar_dense", "tolist", "__bool__", "__int__", "__float__")
def item(call: TorchCall) -> Any:
    """The values of a tensor, which must be known at trace time; some follow from the shapes of others.

    A float that PyTorch does not know either remains a tensor without axes: nothing else depends on its value. So
    does any number that is only computed with. An integer that is a size is that of the call that is recorded.
    """
    found, seen = known(call["input"]), example(call.node)
    if isinstance(seen, torch.SymInt):
        seen = seen.node.maybe_as_int()
    if isinstance(seen, (bool, int, float)):
        if found is not None and found != seen:
            raise call.error(f"is {found}, and must be {seen} for these shapes")
        return seen
    if found is None and (isinstance(seen, torch.SymFloat) or is_only_computed_with(call.node)):
        return ops.stop_gradient(ops.reshape(call["input"], ()))
    if found is None and isinstance(example(call.node), torch.SymInt):
        found = numbers_now(call["input"])
    if found is None:
        raise call.error("asks for numbers that are known only when the program runs")
    return found.tolist() if call.name == "tolist" else found.item()


@converts("getattr")
@aliases
def attribute(call: TorchCall) -> Any:
    """An attribute of a tensor (its shape, its transpose), or of any other object."""
    x, name = call.cells["input"], call["attribute"]
    if not isinstance(x, Cell):
        return getattr(x, name)
    if name in ("T", "mT", "H", "mH"):
        return View(x, lambda whole: getattr(whole, name.replace("H", "T")))
    if name == "data":
        return detached(x)
    if name == "device":
        return call.device or "cpu"
    return getattr(x.read(), name)


# ---------------------------------------------------------------------------------------------- the same elements
@converts("alias", "lift", "lift_fresh", "resolve_conj", "resolve_neg", "contiguous", "to_dense", "pin_memory",
          "share_memory_", "_conj", "conj", "real", "view_of", "positive", "requires_grad_", "retain_grad",
          "refine_names", "cpu", "cuda", "real_part", "coalesce")  # fmt: skip
def same(call: TorchCall) -> Any:
    """The tensor itself."""
    return call.either("input", "x")


@converts("lift_fresh_copy")
def literal(call: TorchCall) -> Any:
    """A tensor that the code makes of numbers, `torch.tensor([…])`: PyTorch's graphs hold the numbers."""
    x = call["input"]
    return settled(x) if isinstance(x, Tensor) else x


@converts("clone", "detach_copy", "alias_copy", "_fw_primal")
def clone(call: TorchCall) -> Any:
    """Another tensor with the same values."""
    return call.either("input", "x")


@converts("detach", "_get_data_attr")
@aliases
def detach(call: TorchCall) -> Any:
    """The tensor's memory, without a gradient."""
    return detached(call.cells["input"])


def detached(x: Cell) -> Cell:
    """A cell of the same memory through which no gradient flows, neither on reading nor on writing."""
    return View(x, ops.stop_gradient, overwritten) if x.read().dtype.is_float else x


@converts("detach_")
def detach_in_place(call: TorchCall) -> Any:
    """The tensor, detached in place."""
    x = call["input"]
    return ops.stop_gradient(x) if x.dtype.is_float else x


@converts("view", "reshape", "_unsafe_view", "unsafe_view", "_reshape_alias", "view_copy")
def view(call: TorchCall) -> Any:
    """The elements in another shape."""
    x = call["input"]
    if call.get("dtype") is not None:
        if dtype_of(call["dtype"]) == x.dtype:
            return x
        raise call.error("the bytes of a tensor under another dtype")
    shape = call.either("shape", "size")
    return ops.reshape(x, tuple(shape) if isinstance(shape, (tuple, list)) else (shape,))


@converts("expand", "expand_copy")
def expand(call: TorchCall) -> Any:
    """Broadcast along axes of size 1 and new leading axes."""
    size = call["size"]
    return call["input"].expand((size,) if isinstance(size, int) else tuple(size))


@converts("slice", "slice_copy")
def slice_(call: TorchCall) -> Any:
    """start:end:step of one axis."""
    x, dim = call["input"], call.get("dim", 0)
    end = call.get("end")
    part = slice(call.get("start"), None if end is None or end >= TO_THE_END else end, call.get("step", 1))
    return x[(slice(None),) * (dim % x.ndim) + (part,)]


@converts("unfold")
def unfold(call: TorchCall) -> Any:
    """Windows of one axis (the method), or patches of images as columns (the function of torch.nn.functional)."""
    if "dimension" in call:
        return windows(call["input"], call["dimension"], call["size"], call["step"])
    rest = {k: call[k] for k in ("dilation", "padding", "stride") if k in call}
    return ops.unfold(call["input"], call["kernel_size"], **rest)


@converts("im2col")
def im2col(call: TorchCall) -> Any:
    """Patches of images as columns."""
    return ops.unfold(
        call["input"], *(tuple(call[k]) for k in ("kernel_size", "dilation", "padding", "stride"))
    )


@converts("col2im")
def col2im(call: TorchCall) -> Any:
    """Columns summed up to images."""
    names = ("output_size", "kernel_size", "dilation", "padding", "stride")
    return ops.fold(call["input"], *(tuple(call[k]) for k in names))


@converts("as_strided")
def as_strided(call: TorchCall) -> Any:
    """Elements at any strides in the tensor's PyTorch memory; row-major if that is unknown."""
    x, sizes = call["input"], tuple(call["size"])
    offset, strides = _memory(call, x)
    first = call.get("storage_offset")
    places = _places(sizes, call["stride"], offset if first is None else first)
    held = _places(x.shape, strides, offset)  # the memory position of each element
    order = np.argsort(held, axis=None)
    at = np.minimum(np.searchsorted(held.reshape(-1)[order], places.reshape(-1)), max(held.size - 1, 0))
    if (held.reshape(-1)[order][at] != places.reshape(-1)).any():
        raise call.error("reads memory that is no element of the tensor it is called on")
    return ops.index_select(x.reshape((-1,)), 0, ops.operand(order[at])).reshape(sizes)


def _memory(call: TorchCall, x: Any) -> tuple[int, tuple[int, ...]]:
    """The storage offset of the call's tensor, and its strides. Raises TorchConversionError."""
    source = call.node.args[0] if call.node.args else None
    seen = example(source) if isinstance(source, Node) else None
    plain = tuple(prod(x.shape[i + 1 :]) for i in range(x.ndim))
    if not isinstance(seen, torch.Tensor) or tuple(seen.shape) != x.shape:
        return 0, plain
    numbers = (seen.storage_offset(), *seen.stride())
    if all(isinstance(n, int) for n in numbers):
        return numbers[0], numbers[1:]
    if not seen.is_contiguous():
        raise call.error(
            "reads memory whose strides depend on sizes: give the sizes as numbers (dynamic=False)"
        )
    return 0, plain


def _places(sizes: Sequence[int], strides: Sequence[int], offset: int) -> np.ndarray[Any, Any]:
    """The memory position of each element of a tensor with these strides."""
    found = np.full(tuple(sizes), offset, np.int64)
    for axis, (n, step) in enumerate(zip(sizes, strides, strict=True)):
        found += (np.arange(n) * step).reshape((-1,) + (1,) * (len(sizes) - axis - 1))
    return found


@converts("unsafe_split", "split", "split_with_sizes", "unsafe_split_with_sizes", "split_copy")
def split(call: TorchCall) -> Any:
    """Parts of an axis, of one size or of several."""
    sizes = call.either("split_size", "split_sizes", "split_size_or_sections", "sizes")
    return ops.split(call.either("input", "tensor"), sizes, call.get("dim", 0))


@converts("unsafe_chunk")
def chunk(call: TorchCall) -> Any:
    """Parts of an axis, by number."""
    return ops.chunk(call["input"], call["chunks"], call.get("dim", 0))


@converts("tensor_split", "hsplit", "vsplit", "dsplit")
def tensor_split(call: TorchCall) -> Any:
    """Parts of an axis, by number or by split positions."""
    places = call.either("indices_or_sections", "sections", "indices", "tensor_indices_or_sections")
    if is_operand(places):
        places = known(places)
        if places is None:
            raise call.error("asks for numbers that are known only when the program runs")
        places = places.tolist()
    more = {"dim": call.get("dim", 0)} if call.name == "tensor_split" else {}
    return getattr(ops, call.name)(call["input"], places, **more)


@converts("numpy_T", "matrix_H", "adjoint", "mT", "mH")
def turned(call: TorchCall) -> Any:
    """The axes in reverse order; the last two of a batch of matrices."""
    return call["input"].T if call.name == "numpy_T" else call["input"].mT


@converts("broadcast_tensors")
def broadcast_tensors(call: TorchCall) -> Any:
    """Tensors broadcast to their common shape."""
    return list(ops.broadcast_tensors(*call["tensors"]))


@converts("broadcast_shapes")
def broadcast_shapes(call: TorchCall) -> Any:
    """The common shape of shapes."""
    shapes = (v for v in call.cells.values() if v is not None)
    listed = [v for given in shapes for v in (given if _are_shapes(given) else (given,))]
    return torch.Size(np.broadcast_shapes(*((s,) if isinstance(s, int) else tuple(s) for s in listed)))


@converts("Size")
def shape(call: TorchCall) -> Any:
    """A shape from numbers."""
    return torch.Size(*call.cells.values())


def _are_shapes(given: Any) -> bool:
    return isinstance(given, (tuple, list)) and any(isinstance(s, (tuple, list)) for s in given)


@converts("fftshift", "ifftshift")
def shifted(call: TorchCall) -> Any:
    """Frequency 0 moved to the middle, and back."""
    return getattr(ops.fft, call.name)(call["input"], call.get("dim"))


@converts("meshgrid")
def meshgrid(call: TorchCall) -> Any:
    """Coordinates of a grid; "ij" by default, as in torch."""
    return list(ops.meshgrid(*_listed(call["tensors"]), indexing=call.get("indexing") or "ij"))


@converts("cartesian_prod")
def cartesian_prod(call: TorchCall) -> Any:
    """Each combination of elements, one per row."""
    return ops.cartesian_prod(*_listed(call["tensors"]))


def _listed(tensors: Any) -> Any:
    """Tensors passed one by one, as functions accept them, or in a list, as in ATen."""
    return tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors


# ---------------------------------------------------------------------------------------------- indexing
@converts("getitem", "__getitem__")
@aliases
def getitem(call: TorchCall) -> Any:
    """x[key] of tensors, a view if the key has no arrays; an entry of a sequence or shape."""
    x, key = call.cells["input"], call["key"]
    if not isinstance(x, Cell):
        return x[key]
    if _is_basic(key):
        return View(x, lambda whole: ops.getitem(whole, key), lambda whole, value: whole.at[key].set(value))
    if parts := _taken_first(key):
        return ops.getitem(ops.getitem(x.read(), parts[0]), parts[1])
    return selected(x.read(), key) or ops.getitem(x.read(), key)


@converts("setitem", "__setitem__")
def setitem(call: TorchCall) -> Any:
    """x[key] = value."""
    x, key, value = call["input"], call["key"], call["value"]
    if is_operand(value) and value.dtype != x.dtype:
        value = ops.cast(value, x.dtype)
    if parts := _taken_first(key):
        first, rest = parts
        call.write("input", x.at[first].set(ops.getitem(x, first).at[rest].set(value)))
        return None
    if is_operand(key) and key.dtype == bool_ and _fits(value, key):
        call.write("input", ops.where(key.reshape(key.shape + (1,) * (x.ndim - key.ndim)), value, x))
        return None
    call.write("input", x.at[key].set(value))
    return None


def _fits(value: Any, mask: Any) -> bool:
    """Whether a single number is written wherever a mask is true: then the count of its elements need not
    be known."""
    return not is_operand(value) or value.ndim == 0


def _taken_first(key: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]] | None:
    """A key with arrays and one-element integer tensors in PyTorch's semantics: the latter are ints, applied before
    the arrays.

    None if there are no such arrays, or no such tensors: a one-element array among arrays counts as one of them.
    """
    entries = key if isinstance(key, tuple) else (key,)
    arrays = [is_operand(k) or isinstance(k, (list, np.ndarray)) for k in entries]
    single = [is_operand(k) and k.ndim == 0 and k.dtype != bool_ for k in entries]
    if not any(single) or arrays == single:
        return None
    first: list[Any] = []
    rest: list[Any] = []
    for k, is_array, is_single in zip(entries, arrays, single, strict=True):
        if is_array and not is_single:
            axes = k.ndim if is_operand(k) and k.dtype == bool_ else 1
            first += [slice(None)] * axes
            rest.append(k)
        else:
            first.append(k)
            if k is Ellipsis:
                rest.append(k)
            elif k is None or isinstance(k, slice):
                rest.append(slice(None))
    return tuple(first), tuple(rest)


def _is_basic(key: Any) -> bool:
    entries = key if isinstance(key, tuple) else (key,)
    return all(
        k is None or k is Ellipsis or (isinstance(k, (slice, int)) and not isinstance(k, bool))
        for k in entries
    )


@converts("nonzero_numpy")
def indices(call: TorchCall) -> Any:
    """torch.nonzero(as_tuple=True): a vector of indices for each axis."""
    return list(ops.nonzero(call["input"], as_tuple=True))


@converts("where")
def where(call: TorchCall) -> Any:
    """Selection between two by a condition; of a condition alone the indices where it holds."""
    if "other" not in call:
        return list(ops.nonzero(call["condition"], as_tuple=True))
    return ops.where(call["condition"], call["input"], call["other"])


@converts("index", "index_copy_out", "_unsafe_index")
def index(call: TorchCall) -> Any:
    """x[i, :, j]: index arrays for some axes, None for full ones."""
    key: Any = tuple(slice(None) if i is None else i for i in call["indices"])
    return selected(call["input"], key) or ops.getitem(call["input"], key)


@converts("index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")
def index_put(call: TorchCall) -> Any:
    """x with values at index arrays."""
    x, values = call["input"], call["values"]
    key: tuple[Any, ...] = tuple(slice(None) if i is None else i for i in call["indices"])
    values = values if values.dtype == x.dtype else ops.cast(values, x.dtype)
    one: Any = key[0] if len(key) == 1 else None
    if is_operand(one) and one.dtype == bool_ and values.ndim == 0 and not call.get("accumulate", False):
        return ops.where(one.reshape(one.shape + (1,) * (x.ndim - one.ndim)), values, x)
    return x.at[key].add(values) if call.get("accumulate", False) else x.at[key].set(values)


# ---------------------------------------------------------------------------------------------- dtypes
@converts("to", "_to_copy", "type", "convert_element_type", "to_dtype")
def to(call: TorchCall) -> Any:
    """In another dtype; the device is decided by the plan."""
    x = call["input"]
    kind = call.get("other") if "other" in call else call.get("dtype")
    if is_operand(kind):
        kind = kind.dtype
    return x if kind is None else ops.cast(x, dtype_of(kind))


@converts("copy_", "copy")
def copy(call: TorchCall) -> Any:
    """The values of another tensor."""
    return ops.broadcast_to(ops.cast(call["src"], call["input"].dtype), call["input"].shape)


@converts("zero_", "fill_", "fill", "zero")
def fill(call: TorchCall) -> Any:
    """The same value everywhere."""
    x, value = call["input"], call.get("value", 0)
    if is_operand(value):
        return ops.broadcast_to(ops.cast(value, x.dtype), x.shape)
    return ops.full_like(x, value)


@converts("fill_diagonal_")
def fill_diagonal(call: TorchCall) -> Any:
    """The same value on the main diagonal; with wrap it repeats below it, after skipping a row each time."""
    x, mask = call["input"], np.zeros(call["input"].shape, np.bool_)
    np.fill_diagonal(mask, True, wrap=call.get("wrap", False))
    return ops.where(mask, call["fill_value"], x)


@converts("put", "put_")
def put(call: TorchCall) -> Any:
    """Elements, in row-major order, overwritten or added to."""
    x, index, source = call["input"], call["index"].reshape((-1,)), call["source"].reshape((-1,))
    flat = x.reshape((-1,)).at[index]
    return (flat.add(source) if call.get("accumulate", False) else flat.set(source)).reshape(x.shape)


@converts("result_type", "promote_types", "can_cast", "finfo", "iinfo", "is_floating_point")
def of_dtypes(call: TorchCall) -> Any:
    """torch's functions of dtypes, on valueless tensors."""
    if call.name == "is_floating_point":
        return call["input"].dtype.is_float
    return getattr(torch, call.name)(*(_like(read(v)) for v in call.cells.values()))


def _like(value: Any) -> Any:
    """A valueless PyTorch tensor of the same shape and dtype."""
    if not is_operand(value):
        return value
    return torch.empty(value.shape, dtype=getattr(torch, str(value.dtype)), device="meta")
