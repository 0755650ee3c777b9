"""Floor 4: Tensor, an array on a device. Ops on tensors are planned (once per kind of call) and run at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from copy import copy as shallow_copy
from copy import deepcopy
from functools import lru_cache
from html import escape
from operator import attrgetter
from typing import Any, ClassVar, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from lamina import backends
from lamina._tree import LEAF, Structure, flatten
from lamina.backends import Backend, Call, Plan, Run
from lamina.ops.arguments import DTypeLike, checked, one_by_one, shown
from lamina.ops.core import (
    DeviceLike,
    Op,
    Operand,
    UnrecordedWriteError,
    inferred,
    is_number,
    owned,
    recorder,
    recording,
    register_adopter,
)
from lamina.ops.destination import destination
from lamina.ops.finite import check_results, is_finite
from lamina.ops.operators import InPlace
from lamina.ops.origin import current_origin
from lamina.ops.part import TensorPart
from lamina.ops.primitives.marker import Clone
from lamina.ops.primitives.shape import repeated
from lamina.runtime import Buffer, Device, copy, device, devices, dlpack, fetch, human_bytes, is_array, share
from lamina.runtime.arrays import device_of
from lamina.runtime.memory import lend
from lamina.runtime.transfer import values_of
from lamina.spec import (
    DType,
    Layout,
    Policy,
    Shape,
    ShapeError,
    Spec,
    as_dtype,
    as_shape,
    current_policy,
    unpack,
)
from lamina.spec import contiguous as row_major

CPU = Device("cpu")
_ABSENT: Any = None
#: Elements shown at each end of an axis, and the size from which an axis is abbreviated.
EDGE, SHORTEN = 3, 8


_changes = itertools.count(1)
_changed = 0


def tensors_changed() -> None:
    """Note that the values or the memory of an existing tensor changed."""
    global _changed
    _changed = next(_changes)


def tensors_version() -> int:
    """A number that changes whenever a tensor is overwritten or moved: caches that depend on many tensors compare it
    before checking each. No number occurs twice."""
    return _changed


class SupportsDLPack(Protocol):
    """An array of any library that shares its memory by DLPack."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...


class Tensor(InPlace["Tensor"]):
    """Values of one dtype on one device, in some layout.

    Made by `tensor`, `zeros`, `from_dlpack`, … or as the result of an op. Its identity is stable: training
    updates the values of the tensors that are a network's parameters, and may change their layout in memory.
    """

    __slots__ = ("__weakref__", "_anywhere", "_buffer", "_part", "_spec", "version")
    bind_priority: ClassVar[int] = 1
    #: Whether a module is differentiated with respect to it: true for parameters, never for other tensors.
    requires_grad: bool = False

    def __init__(self, buffer: Buffer, spec: Spec = _ABSENT, *sizes: object) -> None:
        try:
            fixed = spec if spec.layout is not None else spec.fixed
        except AttributeError:  # torch.Tensor(2, 3), torch.Tensor([1, 2])
            given = ", ".join(shown(x) for x in (buffer, spec, *sizes) if x is not _ABSENT)
            raise TypeError(
                f"Tensor({given}): a tensor is made of memory and a Spec; lamina.empty(2, 3) makes one of a shape, "
                "lamina.tensor(values) one of values"
            ) from None
        if buffer.nbytes < fixed.nbytes:
            raise ShapeError(f"tensor: {fixed} takes {fixed.nbytes} bytes, the buffer has {buffer.nbytes}")
        self._buffer = buffer
        self._spec = fixed
        self._anywhere = False  # of host data alone: it follows the other operands
        self._part: TensorPart | None = None  # of a view: the part of another tensor that it is
        self.version = 0  # number of overwrites by `copy_`: caches compare it

    # ---- attributes
    @property
    def spec(self) -> Spec:
        """Shape, dtype and memory layout."""
        return self._spec

    @property
    def shape(self) -> Shape:
        """Sizes, one per axis."""
        return self._spec.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._spec.dtype

    @property
    def buffer(self) -> Buffer:
        """The memory."""
        if self._part is not None:
            self._refresh()
        return self._buffer

    @property
    def device(self) -> Device:
        """The device of the values."""
        return self._buffer.device

    @property
    def nbytes(self) -> int:
        """Bytes in memory, padding of the layout included."""
        return self._spec.nbytes

    @property
    def read_only(self) -> bool:
        """Whether the values may not be overwritten: the memory is foreign and read-only (bytes, files opened for
        reading), or several elements share one address (broadcast views)."""
        return self._buffer.read_only or self._spec.overlaps

    # ---- values
    def numpy(self, *, force: bool = False) -> np.ndarray[Any, Any]:
        """The values as a NumPy array of the same shape (bfloat16 by ml_dtypes). force: as in torch, without effect.

        On the CPU it shares memory unless the layout is blocked (and is writable if the tensor is); from a GPU it
        is a copy, after a synchronization.
        """
        if (by := recorder()) is not None and not by.knows(self):
            raise TypeError(
                f"the values of a tensor {self._spec} are asked for (numpy, item, float, to another device, …) while "
                "the function is traced: pass them as an argument, or compute them outside of the function"
            )
        return self._values()

    def _values(self) -> np.ndarray[Any, Any]:
        if self._spec.is_contiguous:
            place = values_of if self.device.kind == "cuda" else Buffer.array
            return place(self.buffer, self._spec.shape, self._spec.dtype.numpy)
        found = unpack(_flat(self), self._spec.physical, self.shape)
        if self._spec.overlaps:
            found.flags.writeable = False
        return found

    def item(self) -> Any:
        """The value of a tensor with one element, as a Python number. Raises ShapeError for other sizes."""
        if self._spec.numel != 1:
            raise ShapeError(f"item: the tensor has shape {self.shape}; only one element can be an item")
        return self.numpy().item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers."""
        return self.numpy().tolist()

    def to(
        self,
        *where: DeviceLike | DTypeLike | Operand | None,
        device: DeviceLike | str | None = None,
        dtype: DTypeLike | None = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Tensor:
        """The tensor on another device or in another dtype; itself when nothing changes, unless `copy` is asked for.

        where: a device, a dtype, both, or a tensor that has them. non_blocking: accepted for
        torch's sake; the result's consumers wait for it in any case. Raises NoGpuError for a missing GPU.
        """
        place, kind = destination(where, device, dtype)
        found: Tensor = self if kind is None or kind == self.dtype else self.cast(kind)
        target = self.device if place is None else _device(place)
        if target == self.device:
            return tensor(found) if copy and found is self else found
        if recorder() is not None:
            self.numpy()  # raises the error
        return _moved(found, target)

    def is_contiguous(self) -> bool:
        """Whether the elements lie row-major, without gaps."""
        return self._spec.is_contiguous

    def clone(self) -> Any:
        """A copy of the values; gradients flow through."""
        by = recorder()
        found: Any = self if by is None else by.call_op(Clone(), [self])
        return tensor(found) if isinstance(found, Tensor) else found

    def copy_(self, values: Any, non_blocking: bool = False) -> Self:
        """Overwrite the values with those of a tensor or array, broadcast to this shape; dtypes are converted.

        non_blocking: accepted for torch's sake; the result's consumers wait for it in any case.
        Raises ShapeError for a shape that does not broadcast, ValueError for a tensor that is `read_only`.
        """
        if self.read_only:
            why = "several elements share memory" if self._spec.overlaps else "its memory is read-only"
            raise ValueError(f"copy_: {self._spec} cannot be written: {why}; write a copy, lm.tensor(x)")
        if (by := recorder()) is not None:
            by.write(self, values)
            return self
        if isinstance(values, Operand) and values.records:
            raise UnrecordedWriteError(
                f"copy_: traced values {values} are not written to a tensor {self._spec} outside of their trace; "
                "return them from the traced function"
            )
        source = values if isinstance(values, Tensor) else as_tensor(np.asarray(values))
        if source.shape != self.shape:
            source = repeated(source, self.shape, "copy_")
        if source.dtype != self.dtype:
            source = source.to(dtype=self.dtype)
        if self._spec.tag is None:  # gaps between the elements do not belong to this tensor
            relayout(source.to(self.device), self._spec, self._buffer)
        else:
            same = source if source._spec.same_memory(self._spec) else relayout(source, self._spec)
            copy(self._buffer, same._buffer, self._spec.nbytes)
        self.version += 1
        tensors_changed()
        if self._part is not None:
            self._part.note()  # earlier writes to the whole tensor are superseded
            self._part.write(self)
        return self

    def _become(self, name: str, made: Any) -> Self:
        """The same object with the shape of another tensor, which is computed from this one. Raises TypeError."""
        method = name.removesuffix("_")
        if recorder() is not None:
            raise TypeError(
                f"{name}: a shape is settled when a function is traced; use the result, x = x.{method}(…)"
            )
        if self._part is not None:
            raise TypeError(
                f"{name}: {self._spec} is a part of another tensor, whose shape its own follows; use the result, "
                f"x = x.{method}(…)"
            )
        self._buffer, self._spec = made.buffer, made.spec
        self.version += 1
        tensors_changed()
        return self

    def _strides(self) -> tuple[int, ...]:
        layout = self._spec.physical
        if layout.is_blocked:
            raise TypeError(
                f"stride: {self._spec} has a blocked layout, which has no strides; take x.contiguous()"
            )
        return tuple(layout.strides)

    def _refresh(self) -> None:
        """For a view: reload the values if the tensor behind it was written since."""
        part = self._part
        if part is None or not part.is_stale():
            return
        part.note()
        if (found := part.take()) is not None and found._buffer is not self._buffer:
            same = found if found._spec.same_memory(self._spec) else relayout(found, self._spec)
            self._buffer = same._buffer
            self.version += 1
            tensors_changed()

    def move_into(self, buffer: Buffer, spec: Spec) -> None:
        """Move this tensor with its current values to other memory, in another layout."""
        if not isinstance(buffer, Buffer) or not isinstance(spec, Spec):
            raise TypeError(f"move_into: takes a Buffer and a Spec, got {type(buffer)} and {type(spec)}")
        if spec.open != self._spec.open:
            raise ShapeError(f"move_into: {self._spec} cannot become {spec}")
        if (
            buffer.device == self.device
            and not self._spec.same_memory(spec)
            and not _meet(buffer, self.buffer)
        ):
            relayout(self, spec.fixed, buffer)
        else:
            values = self if self._spec.same_memory(spec) else relayout(self, spec.fixed)
            copy(buffer, values.buffer, spec.fixed.nbytes)
        self._buffer, self._spec = buffer, spec.fixed
        tensors_changed()

    def _attributes(self) -> dict[str, Any]:
        """The attributes that a copy takes over besides the values."""
        return getattr(self, "__dict__", {})

    def __copy__(self) -> Self:
        """Another tensor on the same memory; of a view, another view of the same part."""
        made = _remade(type(self), self.buffer, self._spec, self._attributes())
        made._part = shallow_copy(self._part)  # each notices later writes by itself
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A tensor with the same values in memory of its own, on the same device. In a recorded function each call of
        the compiled program gives it the values that this tensor has then."""
        own = self if self._spec.tag is not None else relayout(self, self._spec.open.fixed)
        buffer = self.device.allocate(own.nbytes)
        copy(buffer, own.buffer, own.nbytes)
        made = _remade(type(self), buffer, own._spec, deepcopy(self._attributes(), memo))
        if (by := recorder()) is not None:
            by.write(made, self.detach())
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: the values, row-major, and the device's name. If there is no such device when it is loaded, the
        tensor is on the CPU."""
        values = np.ascontiguousarray(self.numpy()).reshape(self.shape)
        return _unpickled, (type(self), values, str(self.device), self._attributes())

    def contiguous(self) -> Tensor:
        """The tensor row-major, in memory of its own; itself if it and the tensor that it is a view of already are
        so."""
        if recorder() is not None:
            return self
        lies_so = self._spec.is_contiguous and (self._part is None or self._part.lies_row_major(self.shape))
        return self if lies_so else relayout(self, self._spec.open.fixed)

    # ---- other libraries
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CPU if self.device.kind == "cpu" else dlpack.CUDA, self.device.index)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"__dlpack__: the tensor is on {self.device}; move it with .to() first")
        blocked = self._spec.physical.is_blocked
        if blocked and copy is False:
            raise BufferError(f"__dlpack__: {self._spec} has a blocked layout; only a copy can be shared")
        held = self.contiguous() if blocked else self
        if copy and not blocked:
            held = relayout(held, held._spec)
        if held.device.kind == "cuda":
            lend(held.buffer, stream)
        return dlpack.export(
            held.buffer.pointer,
            held.shape,
            held._spec.physical.strides,
            held.dtype.name,
            self.__dlpack_device__(),
            held._buffer,
            max_version=max_version,
            copied=held is not self,
            read_only=held._buffer.read_only,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.device.kind != "cuda":
            raise AttributeError(f"__cuda_array_interface__: the tensor is on {self.device}")
        if self._spec.physical.is_blocked or self.dtype.name in ("bfloat16", "float8_e4m3fn"):
            raise AttributeError(f"__cuda_array_interface__ cannot describe {self._spec}; use DLPack")
        size = self.dtype.itemsize
        return {
            "shape": self.shape,
            "strides": None
            if self._spec.is_contiguous
            else tuple(s * size for s in self._spec.physical.strides),
            "typestr": self.dtype.numpy.str,
            "data": (self.buffer.pointer, self._buffer.read_only),
            "version": 3,
            "stream": self.device.default_stream.handle,
        }

    # ---- Python
    def __setitem__(self, key: Any, values: Any) -> None:
        """Overwrite the elements selected by a key (see `getitem`); `x.at[key].set(values)` leaves x unchanged."""
        if not self._written_in_place(key, values):
            self.copy_(self.at[key].set(values))

    def _written_in_place(self, key: Any, values: Any) -> bool:
        """Write elements in place by NumPy, without copying the others, if the key and the values have the same
        meaning there. Returns whether it did."""
        lies = self.device.kind == "cpu" and self._spec.is_contiguous and self._part is None
        if not lies or self.read_only or recorder() is not None or not _is_of_slices(key):
            return False
        place = self._values()
        given = _fitting(values, place.dtype)
        if given is None:
            return False
        try:
            with np.errstate(all="ignore"):  # as casts do
                place[key] = given
        except (IndexError, ValueError):
            return False  # the op raises a proper error
        self.version += 1
        tensors_changed()
        return True

    def __bool__(self) -> bool:
        if self._spec.numel != 1:
            raise ShapeError(
                f"bool: a tensor of shape {self.shape} has no one truth value: take x.any() or x.all(), or compare "
                "elements by ops.where"
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __format__(self, spec: str) -> str:
        """A tensor of one element is formatted as its number: f"{loss:.3f}". Raises TypeError for other sizes."""
        if not spec:
            return str(self)
        if self.numel() != 1:
            raise TypeError(
                f"a tensor of shape {self.shape} cannot be formatted with {spec!r}: that is for one number, as "
                "x.mean() gives; without a format all values are shown"
            )
        return format(self.item(), spec)

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.dtype.is_float:
            raise TypeError(f"a {self.dtype} tensor cannot be an index")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor of rank 0 has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_values_text(self)}, {self._spec}, {self.device})"

    def _repr_html_(self) -> str:
        """For notebooks: a summary, and the numbers in a collapsible section."""
        head = f"{type(self).__name__} {self._spec} on {self.device}, {human_bytes(self.nbytes)}"
        fold = f"<details open><summary><b>{escape(head)}</b></summary>"
        return f"{fold}<pre>{escape(_values_text(self))}</pre></details>"

    @classmethod
    def bind_op(cls, op: Op, operands: Sequence[Any]) -> tuple[Tensor, ...]:
        """Plan op for these tensors and run it on their device's default stream."""
        tensors = operands
        for x in operands:
            if not isinstance(x, Tensor):
                tensors = [_adopted_by(op, y) for y in operands]
                break
        where = tensors[0]._buffer.device
        for x in tensors:
            if x._part is not None:
                x._refresh()
            if x._buffer.device is not where and x._buffer.device != where:
                tensors = _together(op, tensors)
                where = tensors[0].device
                break
        policy = current_policy()
        found = _eager(where, op, policy, *map(_spec, tensors))(tensors)
        if policy.check_finite and all(is_finite(x._values()) for x in tensors):
            check_results(op, current_origin(), [y._values() for y in found])
        if tensors[0]._anywhere and all(x._anywhere for x in tensors):
            for y in found:
                y._anywhere = True
        if op.takes_part:
            part = TensorPart.of(op, tensors[0])
            if part is None and _meet(found[0]._buffer, tensors[0]._buffer):
                # The elements are its own, though the op's result aliases the operand.
                found = (relayout(found[0], found[0]._spec), *found[1:])
            found[0]._part = part
        return found

    @classmethod
    def call_op(cls, op: Op, operands: Sequence[Any]) -> Tensor:
        """As `bind_op`, for the first output only; the op may skip the others."""
        return cls.bind_op(op.prune((True,)), operands)[0]


#: Convertible to a tensor: arrays of any library, numbers, nested lists of numbers.
TensorLike: TypeAlias = (
    Tensor
    | np.ndarray[Any, Any]
    | np.generic
    | SupportsDLPack
    | float
    | Sequence[float]
    | Sequence[Sequence[float]]
    | Sequence[Sequence[Sequence[float]]]
    | Sequence[Sequence[Sequence[Sequence[float]]]]
)


# ---- creation


@checked
def tensor(data: Any, dtype: DTypeLike | None = None, device: Device | str | None = None) -> Tensor:
    """A tensor with a copy of data: numbers, nested lists, or an array of any library.

    Python floats become float32; other dtypes are kept unless `dtype` asks for another. device: default "cpu".
    Raises TypeError for data that is no array: text, lists of different lengths.
    """
    if not isinstance(data, Tensor | np.generic) and not is_array(data):
        data = _array_of(data)
        if data.dtype == np.float64 and dtype is None:
            data = data.astype(np.float32)
    with recording(recorder() if isinstance(data, Tensor) else None):  # host numbers are converted now
        source = as_tensor(data).to(dtype=dtype)
    with recording(None):  # the bytes are copied now
        rows = source.contiguous()
    target = source.device if device is None else _device(device)
    held = target.allocate(rows.nbytes)
    copy(held, rows.buffer, held.nbytes)
    return owned(Tensor(held, source.spec.open))


def _array_of(data: Any) -> np.ndarray[Any, Any]:
    """Numbers and nested lists of them as an array. Raises TypeError."""
    wanted = f"tensor: data must be numbers, lists of one length nested in each other, or an array, got {shown(data)}"
    try:
        found = np.asarray(data)
    except ValueError as error:
        raise TypeError(f"{wanted}: {error}") from None
    if found.dtype.kind in "OSU":
        raise TypeError(wanted)
    return found


T = TypeVar("T", bound=Tensor)


def _remade(kind: type[T], buffer: Buffer, spec: Spec, attributes: dict[str, Any]) -> T:
    """A tensor of this class, without calling its constructor."""
    made = kind.__new__(kind)
    Tensor.__init__(made, buffer, spec)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def _unpickled(kind: type[T], values: np.ndarray[Any, Any], where: str, attributes: dict[str, Any]) -> T:
    """A pickled tensor: on its device, or on the CPU if there is no such device."""
    wanted = Device(where)
    target = wanted if wanted in devices() else CPU
    held = target.allocate(values.nbytes)
    copy(held, values, values.nbytes)
    return _remade(kind, held, Spec(values.shape, as_dtype(values.dtype)), attributes)


def writable(x: Any) -> Tensor:
    """x as a tensor that may be written: on its own memory, or a copy if that is read-only."""
    found = as_tensor(x)
    if found.read_only:
        return tensor(found)
    found._anywhere = False  # a state stays on its device
    return found


@one_by_one
@checked
def empty(
    *size: int | Sequence[int], dtype: DTypeLike = "float32", device: Device | str | None = None
) -> Tensor:
    """A row-major tensor with arbitrary values; sizes are given as separate arguments or as one sequence."""
    spec = Spec(as_shape(_sizes(size)), as_dtype(dtype))
    return owned(Tensor(_device(device).allocate(spec.nbytes), spec))


@checked
def full(
    size: int | Sequence[int],
    fill_value: complex,
    dtype: DTypeLike | None = None,
    device: Device | str | None = None,
) -> Tensor:
    """A tensor filled with one value; the default dtype follows the value's kind: float32, int64 or bool."""
    kind = np.asarray(fill_value).dtype.kind if dtype is None else ""
    made = empty(size, dtype=dtype or {"b": "bool", "i": "int64", "u": "int64"}.get(kind, "float32"))
    made._values()[...] = fill_value
    with recording(None):
        there = made.to(_device(device))
    return owned(there)


@one_by_one
@checked
def zeros(
    *size: int | Sequence[int], dtype: DTypeLike = "float32", device: Device | str | None = None
) -> Tensor:
    """A tensor of zeros; sizes are given as separate arguments or as one sequence."""
    return full(_sizes(size), 0, dtype, device)


@one_by_one
@checked
def ones(
    *size: int | Sequence[int], dtype: DTypeLike = "float32", device: Device | str | None = None
) -> Tensor:
    """A tensor of ones; sizes are given as separate arguments or as one sequence."""
    return full(_sizes(size), 1, dtype, device)


@checked
def arange(
    start: float,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: DTypeLike | None = None,
    device: Device | str | None = None,
) -> Tensor:
    """Numbers from start (0 if end is omitted) up to but excluding end: int64 for ints, else float32. torch.arange.

    Raises ValueError for a step of 0, or one that leads away from end.
    """
    first, last = (0, start) if end is None else (start, end)
    if step == 0 or (last - first) / step < 0:
        raise ValueError(f"arange: step {step} does not lead from {first} to {last}")
    values = np.arange(first, last, step)
    kind = dtype or ("int64" if values.dtype.kind == "i" else "float32")
    return tensor(values, as_dtype(kind), device)


@checked
def linspace(
    start: Any, end: Any, steps: int, *, dtype: DTypeLike = "float32", device: Device | str | None = None
) -> Tensor:
    """`steps` evenly spaced numbers from start to end, both included; truncated for integer dtypes. torch.linspace.

    start and end are numbers, or tensors with one element.
    """
    return tensor(_spaced("linspace", start, end, steps), as_dtype(dtype), device)


@checked
def logspace(
    start: Any,
    end: Any,
    steps: int,
    base: float = 10.0,
    *,
    dtype: DTypeLike = "float32",
    device: Device | str | None = None,
) -> Tensor:
    """base to the power of `steps` evenly spaced numbers from start to end. torch.logspace."""
    powers = _spaced("logspace", start, end, steps)
    if not as_dtype(dtype).is_float:
        powers = np.trunc(powers)
    with np.errstate(all="ignore"):
        return tensor(np.power(float(base), powers), as_dtype(dtype), device)


def _spaced(what: str, start: Any, end: Any, steps: int) -> np.ndarray[Any, Any]:
    """Evenly spaced numbers. Raises TypeError, ValueError."""
    if steps < 0:
        raise ValueError(f"{what}: steps must be >= 0, got {steps}")
    for name, given in (("start", start), ("end", end)):
        if not is_number(given) and not isinstance(given, Tensor):
            raise TypeError(f"{what}: {name} must be a number or a tensor of one, got {shown(given)}")
    return np.linspace(float(start), float(end), steps)


@checked
def eye(
    n: int, m: int | None = None, *, dtype: DTypeLike = "float32", device: Device | str | None = None
) -> Tensor:
    """An n by m (or n by n) matrix with ones on its diagonal and zeros elsewhere. torch.eye."""
    if n < 0 or (m is not None and m < 0):
        raise ShapeError(f"eye: sizes must be >= 0, got {n} and {m}")
    return tensor(np.eye(n, m, dtype=as_dtype(dtype).numpy), device=device)


@checked
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: DTypeLike = "int64", device: Device | str | None = None
) -> Tensor:
    """[2, K]: the rows and columns of the elements on and below a diagonal. torch.tril_indices."""
    return tensor(np.stack(np.tril_indices(row, min(max(offset, -row), col), col)), as_dtype(dtype), device)


@checked
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: DTypeLike = "int64", device: Device | str | None = None
) -> Tensor:
    """[2, K]: the rows and columns of the elements on and above a diagonal. torch.triu_indices."""
    return tensor(np.stack(np.triu_indices(row, min(max(offset, -row), col), col)), as_dtype(dtype), device)


def _sizes(given: tuple[int | Sequence[int], ...]) -> Any:
    """Sizes given as separate arguments or as one sequence."""
    return given[0] if len(given) == 1 else given


def from_dlpack(x: Any) -> Tensor:
    """A tensor on the memory of another library's array, without a copy.

    Raises TypeError if x does not support DLPack or has a dtype that Lamina does not know.
    """
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: {type(x).__name__} has no __dlpack__")
    return _from_shared(share(x))


def _is_of_slices(key: Any) -> bool:
    """Whether a key has only integers, slices with positive step, `...` and None."""
    parts = key if isinstance(key, tuple) else (key,)
    ahead = (
        not isinstance(p, slice) or p.step is None or (type(p.step) is int and p.step > 0) for p in parts
    )
    return all(ahead) and all(p is None or p is ... or type(p) in (int, slice) for p in parts)


def _fitting(values: Any, dtype: np.dtype[Any]) -> Any:
    """A number, array or CPU tensor if NumPy converts it to the dtype as `to` does; None for others."""
    if isinstance(values, bool | int | float):
        if dtype.kind == "i" and not isinstance(values, float):
            return values if np.iinfo(dtype).min <= values <= np.iinfo(dtype).max else None
        return values if dtype in (np.float32, np.float64) else None
    if isinstance(values, Tensor) and values.device.kind == "cpu":
        values = values.numpy()
    if not isinstance(values, np.ndarray):
        return None
    return values if values.dtype == dtype or (values.dtype.kind == dtype.kind == "f") else None


def as_tensor(x: Any) -> Tensor:
    """x as a tensor, sharing memory where possible: tensors, NumPy arrays, DLPack arrays, numbers, lists.

    A host array that is an operand beside a tensor on another device is moved to that device.
    """
    if isinstance(x, Tensor):
        return x
    found = _adopted(x)
    found._anywhere = found.device == CPU
    return found


def home_of(x: Tensor) -> Device | None:
    """The device on which a tensor was placed; None for one of host data alone (a batch of a loader), which follows
    the other operands."""
    return None if x._anywhere else x.device


def _adopted_by(op: Op, x: Any) -> Tensor:
    """An operand of an op as a tensor. A number is shared, unless the result may be a view of it: `x * 2` asks for
    the same one again and again."""
    if type(x) is np.ndarray and not x.shape and not op.takes_part:
        return _number(x.tobytes(), x.dtype)
    return as_tensor(x)


@lru_cache(maxsize=512)
def _number(data: bytes, dtype: np.dtype[Any]) -> Tensor:
    """A number as an operand; cached by its bytes, as 0.0 equals -0.0, and never written."""
    return as_tensor(np.frombuffer(data, dtype).reshape(()))


def _adopted(x: Any) -> Tensor:
    if isinstance(x, (np.ndarray, np.generic)):
        return _from_numpy(np.asarray(x))
    if hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__"):
        return _from_shared(share(x))
    if isinstance(x, bool | int | float | list | tuple) or hasattr(x, "__array__"):
        array = np.asarray(x)
        return _from_numpy(array.astype(np.float32) if array.dtype == np.float64 else array)
    raise TypeError(
        f"{type(x).__name__} is not an array: give a tensor, an array that speaks DLPack, or numbers"
    )


def flatten_arrays(tree: Any, what: str, *, needed: bool = True) -> tuple[list[Any], Structure]:
    """The arrays in nested tuples, lists and dicts (NumPy arrays unchanged, others as tensors), and the structure.

    A list of (lists of) numbers is an array. Tuples, and lists of arrays, hold several; True and False in them are
    part of the structure, as None is. Raises TypeError for ambiguous containers (a tuple of numbers, a list of
    numbers and arrays), for leaves that are no array, and (needed) if there is none; `what` names the caller.
    """
    if isinstance(tree, Tensor | np.ndarray):
        return [plain_array(tree)], LEAF
    found, structure = flatten(tree, lambda x: _is_numbers(x, what), flags=not isinstance(tree, bool))
    if needed and not found:
        raise TypeError(f"{what}: there is no array in {tree!r}")
    try:
        return [plain_array(x) for x in found], structure
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None


def array_spec(x: Any) -> Spec:
    """Shape and dtype of a tensor, or of an array that is not yet one."""
    return _open_spec(x.shape, x.dtype) if isinstance(x, np.ndarray) else as_tensor(x).spec.open


@lru_cache(maxsize=4096)
def _open_spec(shape: Shape, dtype: np.dtype[Any]) -> Spec:
    return Spec(shape, as_dtype(dtype))


def plain_array(x: Any) -> Any:
    """A NumPy array in native byte order as it is, anything else as a tensor."""
    return x if type(x) is np.ndarray and x.dtype.byteorder != ">" else as_tensor(x)


def _is_numbers(x: Any, what: str) -> bool:
    """Whether a container is an array given as numbers. Raises TypeError if that is ambiguous."""
    if isinstance(x, dict) or hasattr(x, "_fields"):
        return False
    bare = [is_number(e) for e in x]
    if isinstance(x, list):
        if x and all(
            b or (isinstance(e, list) and _is_numbers(e, what)) for b, e in zip(bare, x, strict=True)
        ):
            return True
        unclear = any(bare)
    else:
        unclear = bool(x) and all(bare)
    if unclear:
        raise TypeError(
            f"{what}: {x!r} may be one array or several; give np.asarray(…) for one, a tuple of arrays for several"
        )
    return False


def as_constant(x: Any) -> Tensor:
    """x as a tensor for use as a constant of a graph: small host arrays are copied, so that later writes to
    them do not change the graph."""
    if isinstance(x, Tensor):
        return x
    return as_tensor(np.array(x)) if isinstance(x, np.ndarray | np.generic | int | float) else as_tensor(x)


def _meet(a: Buffer, b: Buffer) -> bool:
    """Whether two pieces of a device's memory overlap."""
    return a.pointer < b.pointer + b.nbytes and b.pointer < a.pointer + a.nbytes


def relayout(x: Tensor, target: Spec, into: Buffer | None = None) -> Tensor:
    """A copy of x in another layout (same shape and dtype), in new memory or that of `into`, on x's device."""
    if x._part is not None:
        x._refresh()
    outputs = None if into is None else (Tensor(into, target),)
    return _reordering(x.device, x._spec, target.fixed)((x,), outputs)[0]


register_adopter(as_tensor)


def _together(op: Op, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Operands on one device: that of the operands with an explicit device. Host arrays and host
    numbers of rank 0 are moved there, as in torch. Raises ValueError for explicit tensors on several devices."""
    placed = [x.device for x in tensors if not (x._anywhere or (not x.shape and x.device == CPU))]
    where = placed[0] if placed else tensors[0].device
    if any(d != where for d in placed):
        on = ", ".join(str(x.device) for x in tensors)
        raise ValueError(f"{op.name}: the operands are on {on}; move them with .to() to one device")
    return [x if x.device == where else _there(x, where) for x in tensors]


def _there(x: Tensor, where: Device) -> Tensor:
    """An operand on another device; when a program is recorded, an error that says why not."""
    return (
        x.to(where) if x.shape or recorder() is not None else _number_on(where, x.numpy().tobytes(), x.dtype)
    )


@lru_cache(maxsize=512)
def _number_on(where: Device, data: bytes, dtype: DType) -> Tensor:
    """A number as an operand on a device; cached as nothing writes it: `x * 2` asks for the same one again and
    again."""
    return _moved(_from_numpy(np.frombuffer(data, dtype.numpy).reshape(())), where)


def _moved(x: Tensor, target: Device) -> Tensor:
    """A copy on another device."""
    buffer = target.allocate(x.nbytes)
    copy(buffer, x.buffer, x.nbytes)
    return Tensor(buffer, x.spec)


def _device(where: Device | str | None) -> Device:
    return CPU if where is None else device(where)


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    if array.dtype.byteorder == ">" or any(s < 0 or s % array.itemsize for s in array.strides):
        array = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))
    spec = _array_spec(array.shape, array.dtype, array.strides)
    place, read_only = array.__array_interface__["data"]
    return Tensor(Buffer.borrow(place, spec.nbytes, CPU, array, read_only=read_only), spec)


@lru_cache(maxsize=4096)
def _array_spec(shape: Shape, dtype: np.dtype[Any], strides: tuple[int, ...]) -> Spec:
    """The spec of a NumPy array; strides in bytes."""
    empty = 0 in shape
    layout = row_major(shape) if empty else Layout(tuple(s // dtype.itemsize for s in strides))
    return Spec(shape, as_dtype(dtype), layout)


def _from_shared(shared: dlpack.Shared) -> Tensor:
    if shared.strides is not None and any(s < 0 for s in shared.strides):
        raise TypeError(f"from_dlpack: negative strides {shared.strides}; make the array contiguous first")
    layout = None if shared.strides is None else Layout(shared.strides)
    spec = Spec(shared.shape, as_dtype(shared.dtype), layout).fixed
    buffer = Buffer.borrow(
        shared.pointer, spec.nbytes, device_of(shared), shared.owner, read_only=shared.read_only
    )
    return Tensor(buffer, spec)


# ---- execution


@lru_cache(maxsize=4096)
def plan_of(backend: Backend, op: Op, specs: tuple[Spec, ...], policy: Policy) -> Plan:
    """The backend's plan, made once for all eager calls and programs. Raises NoKernel."""
    inferred(op, *[s.open for s in specs])  # the passes have asked for it already
    return backend.plan(op, specs, policy)


@lru_cache(maxsize=4096)
def reorder_of(backend: Backend, source: Spec, target: Spec) -> Plan:
    """The backend's plan for a copy into another layout, made once."""
    return backend.reorder(source, target)


@lru_cache(maxsize=4096)
def relaid_of(plan: Plan, layout: Layout) -> Plan | None:
    """The plan with its output in another layout (`Plan.relaid`), made once."""
    return None if plan.relaid is None else plan.relaid(layout)


class _Bound(threading.local):
    """Recently bound plans of each thread: ops in a loop get the same memory again, and binding costs more than a
    lookup.

    Bound plans hold addresses, no memory. Threads do not share them, as a library handle belongs to one thread.
    """

    def __init__(self) -> None:
        self.run_of = lru_cache(maxsize=1024)(EagerCall.bind)


class EagerCall:
    """A plan as eager ops run it, for operands of certain specs: the work common to all calls is done once."""

    __slots__ = ("_outputs", "_stream", "_workspace", "moves", "plan")

    def __init__(self, device: Device, plan: Plan, specs: Sequence[Spec]) -> None:
        self.plan = plan
        self.moves = not all(x.same_memory(s) for x, s in zip(specs, plan.inputs, strict=True))
        self._outputs = [(device.supply(s.fixed.nbytes), s.fixed) for s in plan.outputs]
        self._workspace = device.supply(plan.workspace) if plan.workspace else None
        self._stream = device.default_stream.handle

    def bind(self, inputs: tuple[int, ...], outputs: tuple[int, ...], workspace: int) -> Run:
        """The plan bound to these addresses."""
        return self.plan.bind(Call(inputs, outputs, workspace, self._stream))

    def __call__(
        self, tensors: Sequence[Tensor], outputs: tuple[Tensor, ...] | None = None
    ) -> tuple[Tensor, ...]:
        """Run the plan on tensors of its device; the outputs are in new memory or in that of `outputs`."""
        if self.moves:
            tensors = [
                x if x._spec.same_memory(s) else relayout(x, s)
                for x, s in zip(tensors, self.plan.inputs, strict=True)
            ]
        if outputs is None:
            if self.plan.view:
                return (Tensor(tensors[0]._buffer, self._outputs[0][1]),)
            outputs = tuple([Tensor(supply.take(), s) for supply, s in self._outputs])
        workspace = None if self._workspace is None else self._workspace.take()
        _bound.run_of(
            self,
            tuple(map(_address, tensors)),
            tuple(map(_address, outputs)),
            0 if workspace is None else workspace.pointer,
        )()
        return outputs


_address, _spec = attrgetter("_buffer.pointer"), attrgetter("_spec")
_bound = _Bound()


def run_in_place(op: Op, operands: Sequence[Any]) -> bool:
    """Run an op at once whose results replace operands (`Op.inplace`), in the memory of these.

    The same memory in each call needs no copies, and is bound once. False, and nothing is run, where it cannot be so:
    in a recording, for views, memory that cannot be written or is shared among operands, other devices and layouts,
    and where results are checked.
    """
    tensors = [x for x in operands if isinstance(x, Tensor) and x._part is None]
    policy = current_policy()
    if recorder() is not None or policy.check_finite or len(tensors) < len(operands):
        return False
    where, written = tensors[0]._buffer.device, [tensors[i] for i in op.inplace.values()]
    if any(x.read_only for x in written) or not all(x._buffer.device == where for x in tensors):
        return False
    found = _eager(where, op, policy, *map(_spec, tensors))
    plan = found.plan
    if found.moves or plan.aliases != op.inplace or len(plan.outputs) != len(written):
        return False
    same = all(x._spec.same_memory(plan.outputs[i]) for i, x in zip(op.inplace, written, strict=True))
    others = [(tensors[i], y) for i in op.inplace.values() for j, y in enumerate(tensors) if i != j]
    if not same or any(_meet(x._buffer, y._buffer) for x, y in others):
        return False
    found(tensors, tuple(written))
    for x in written:
        x.version += 1
    tensors_changed()
    return True


@lru_cache(maxsize=4096)
def _eager(where: Device, op: Op, policy: Policy, *specs: Spec) -> EagerCall:
    """How an op runs on tensors of these specs, determined at first use. Raises NoKernel."""
    backend = backends.get(where)
    return EagerCall(backend.device, plan_of(backend, op, specs, policy), specs)


@lru_cache(maxsize=4096)
def _reordering(where: Device, source: Spec, target: Spec) -> EagerCall:
    """How a tensor is copied into another layout."""
    backend = backends.get(where)
    return EagerCall(backend.device, reorder_of(backend, source, target), (source,))


def _flat(x: Tensor) -> np.ndarray[Any, Any]:
    """The bytes of x as a flat host array of its dtype."""
    count = x.nbytes // x.dtype.itemsize
    if x.device.kind == "cpu":
        return x.buffer.array((count,), x.dtype.numpy)
    return values_of(x.buffer, (count,), x.dtype.numpy)


def _values_text(x: Tensor) -> str:
    """The values, long axes abbreviated, and on the CPU their range; of a large GPU tensor only the ends are
    copied."""
    far = x.device.kind != "cpu" and x.spec.numel > SHORTEN**2
    values = _ends(x.contiguous() if x.spec.physical.is_blocked else x) if far else x._values()
    text = np.array2string(
        values.astype(np.float64) if x.dtype.is_float else values,
        precision=4,
        separator=", ",
        threshold=0 if far else SHORTEN**2,
        edgeitems=EDGE,
        prefix="Tensor(",
    )
    if x.spec.numel > SHORTEN**2 and x.dtype.is_float and not far:
        wide = values.astype(np.float64)
        finite = wide[np.isfinite(wide)]
        bad = wide.size - finite.size
        limits = f"{finite.min():.4g} … {finite.max():.4g}" if finite.size else "no finite value"
        text += f",\n       {limits}" + (f", {bad} not finite" if bad else "")
    return text


def _ends(x: Tensor) -> np.ndarray[Any, Any]:
    """The ends of each axis, with one element between them."""
    return fetch(x.buffer, x.shape, x.dtype.name, x.spec.physical.strides, EDGE)
