"""Conversion of the parts of ONNX files: element types, tensors, attributes. Sizes declared by a file are checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import OnnxError, OnnxTexts, require_bounded
from lamina.spec import DType, DTypeError, as_dtype

try:
    import onnx
    from onnx import helper
except ImportError as error:
    raise ImportError(
        "lamina.convert.onnx reads models with the package onnx: pip install 'lamina[onnx]'"
    ) from error

#: ONNX's names of element types that differ from Lamina's.
RENAMED = {"float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn"}
#: The field that holds a type's values if they are not raw bytes; int32_data for all others.
_FIELDS = {"float32": "float_data", "float64": "double_data", "int64": "int64_data"}
#: Reads the bytes of an external tensor.
External = Callable[[onnx.TensorProto, int], Any]


def type_name(code: int) -> str:
    """ONNX's name of an element type, in lower case; the number if it has none."""
    try:
        return str(onnx.TensorProto.DataType.Name(code)).lower()
    except ValueError:
        return str(code)


def dtype_of(code: int) -> DType:
    """The element type of a TensorProto.DataType. Raises OnnxError for unsupported ones."""
    name = type_name(code)
    try:
        return as_dtype(RENAMED.get(name, name))
    except (DTypeError, ValueError, TypeError):
        raise OnnxError(f"element type {name} of ONNX has no counterpart in Lamina") from None


def texts(proto: onnx.TensorProto) -> OnnxTexts:
    """Strings of an initializer or a constant. Raises OnnxError for sizes that do not match them."""
    words, shape = [word.decode("utf-8", "replace") for word in proto.string_data], tuple(proto.dims)
    if any(n < 0 for n in shape) or len(shape) > 64 or prod(shape) != len(words):
        raise OnnxError(
            f"tensor {proto.name!r} of {len(words)} strings has no sound sizes: {list(shape)[:64]}"
        )
    return OnnxTexts.of(words, shape)


def tensor(proto: onnx.TensorProto, external: External | None = None) -> Any:
    """An initializer or a constant: a tensor, or strings.

    external: reads the bytes of external tensors. Raises OnnxError for types that Lamina lacks,
    for sizes that are negative or do not match the data, and for external data without `external`.
    """
    if proto.data_type == onnx.TensorProto.STRING:
        return texts(proto)
    dtype, shape = dtype_of(proto.data_type), shape_of(proto)
    count = prod(shape)
    if proto.data_location == onnx.TensorProto.EXTERNAL:
        found = np.frombuffer(external_bytes(proto, external), dtype.numpy)
    elif proto.HasField("raw_data"):
        require_count(proto, len(proto.raw_data), count * dtype.itemsize, "bytes")
        found = np.frombuffer(proto.raw_data, dtype.numpy)
    else:
        found = _listed(proto, dtype, count)
    return ops.operand(np.array(found.reshape(shape), order="C", copy=True))


def dense(proto: onnx.SparseTensorProto, external: External | None = None) -> onnx.TensorProto:
    """A sparse tensor as a dense one. Raises OnnxError for sizes, indices or values that do not match."""
    name, shape = proto.values.name, tuple(proto.dims)
    if any(n < 0 for n in shape) or len(shape) > 64:
        raise OnnxError(f"sparse tensor {name!r} has no sound sizes: {list(shape)[:64]}")
    values, places = (np.asarray(tensor(t, external).numpy()) for t in (proto.values, proto.indices))
    require_bounded(f"sparse tensor {name!r}", prod(shape) * values.itemsize)
    if places.ndim == 2 and places.shape[1] == len(shape):
        inside = bool((places >= 0).all() and (places < np.array(shape, np.int64)).all())
        places = np.ravel_multi_index(tuple(places.T), shape) if inside else np.full(len(places), -1)
    sound = places.ndim == 1 and places.shape == values.shape and places.dtype.kind == "i"
    if not sound or ((places < 0) | (places >= prod(shape))).any():
        raise OnnxError(
            f"sparse tensor {name!r} of shape {list(shape)} has values outside of it, or no place for each"
        )
    filled = np.zeros(prod(shape), values.dtype)
    filled[places] = values
    code = proto.values.data_type
    return onnx.TensorProto(name=name, dims=shape, data_type=code, raw_data=filled.tobytes())


def external_bytes(proto: onnx.TensorProto, external: External | None, bits: int | None = None) -> Any:
    """The bytes of an external tensor; bits: how many an element takes, by default those of its dtype.

    Raises OnnxError without a reader of external data, and the errors of `external`.
    """
    if external is None:
        raise OnnxError(f"tensor {proto.name!r} is kept in another file; load the model with onnx.load(path)")
    bits = bits or 8 * dtype_of(proto.data_type).itemsize
    return external(proto, -(-prod(shape_of(proto)) * bits // 8))


def shape_of(proto: onnx.TensorProto) -> tuple[int, ...]:
    """A tensor's sizes. Raises OnnxError for negative ones, for more than 64, and for a part of a tensor."""
    shape = tuple(proto.dims)
    if any(n < 0 for n in shape) or len(shape) > 64 or proto.HasField("segment"):
        raise OnnxError(f"tensor {proto.name!r} has no sound sizes: {list(shape)[:64]}")
    return shape


def _listed(proto: onnx.TensorProto, dtype: DType, count: int) -> Any:
    """Values stored in a list field; half types are stored there as their bits."""
    field = _FIELDS.get(dtype.name)
    if field is not None:
        return listed(proto, field, count, dtype.numpy)
    wide = listed(proto, "int32_data", count, np.int32)
    if dtype.is_float:
        return wide.astype(np.uint16 if dtype.itemsize == 2 else np.uint8).view(dtype.numpy)
    return wide.astype(dtype.numpy)


def listed(proto: onnx.TensorProto, field: str, count: int, kind: Any) -> Any:
    """The values of a list field. Raises OnnxError unless there are `count`."""
    numbers = getattr(proto, field)
    require_count(proto, len(numbers), count, "numbers")
    return np.fromiter(numbers, kind, count)


def require_count(proto: onnx.TensorProto, found: int, wanted: int, what: str) -> None:
    """Raises OnnxError if a tensor's data does not match its sizes."""
    if found != wanted:
        shape = list(proto.dims)
        raise OnnxError(
            f"tensor {proto.name!r} of shape {shape} needs {wanted} {what}, the file has {found}: it is damaged"
        )


def attribute(proto: onnx.AttributeProto) -> Any:
    """An attribute as a Python value: numbers, text, lists of them, tensors; graphs are returned as they are.

    Raises OnnxError for one without a valid type.
    """
    if proto.type == onnx.AttributeProto.TENSOR:
        return tensor(proto.t)
    try:
        value = helper.get_attribute_value(proto)
    except (ValueError, TypeError, AttributeError) as error:
        raise OnnxError(f"attribute {proto.name!r}: {error}") from error
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Sequence) and value and isinstance(value[0], bytes):
        return [v.decode("utf-8", "replace") for v in value]
    return value
