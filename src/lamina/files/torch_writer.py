"""Writes files for `torch.load`, without torch: a zip archive of a pickle (data alone) and the storages."""

from __future__ import annotations

import ctypes
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lamina.files.element_types import BY_NUMPY, ElementType
from lamina.files.safetensors_file import named_values
from lamina.files.source import WeightsError
from lamina.ops.arguments import checked
from lamina.runtime import write_atomically
from lamina.spec import DType
from lamina.tensors import Tensor, as_tensor

Array = np.ndarray[Any, Any]

_ROOT = "archive/"
#: Alignment of storages, as torch's.
_ALIGNMENT = 64
_DEEPEST = 200
_UTF8 = 0x800
_FULL = 0xFFFFFFFF


@checked
def save_torch(state: Any, path: str | Path) -> None:
    """Write a file that `torch.load(path)` reads bit-equal, by name, weights_only or not.

    state: a module (its state_dict), or dicts, lists and tuples of tensors, arrays, texts, bytes, numbers, dtypes and
        None.
    Tensors of one type whose memory overlaps share a storage, and transposed ones stay so; those with gaps between
    their elements are copied. path: replaced atomically (`runtime.write_atomically`). Raises TypeError for anything
    else, OSError.
    """
    tree = _with_arrays(named_values(state) if hasattr(state, "state_dict") else state, 0)
    pickle = _Pickle(_storages(_arrays(tree)))
    pickle.write(tree)
    members: list[tuple[str, bytes | memoryview]] = [("data.pkl", pickle.finished())]
    members += [(".format_version", b"1")]
    members += [(".storage_alignment", str(_ALIGNMENT).encode()), ("byteorder", b"little")]
    members += [(f"data/{i}", s.bytes()) for i, s in enumerate(pickle.storages)]
    members += [("version", b"3\n")]
    write_atomically(path, _archive(members))


def _with_arrays(tree: Any, depth: int) -> Any:
    """The tree, with arrays for tensors. Each tensor becomes one array, however often it occurs."""
    if depth > _DEEPEST:
        raise TypeError(f"save_torch: nested more than {_DEEPEST} times")
    if isinstance(tree, dict):
        return {k: _with_arrays(v, depth + 1) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        kind = list if isinstance(tree, list) else tuple
        return kind([_with_arrays(v, depth + 1) for v in tree])
    return tree if isinstance(tree, _PLAIN) else _array(tree)


def _arrays(tree: Any) -> Iterator[Array]:
    """The arrays of a tree."""
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _arrays(value)


_PLAIN = (str, bytes, int, float, bool, type(None), DType)


def _array(value: Any) -> Array:
    """A dense array, in any order of axes."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        try:
            value = (value if isinstance(value, Tensor) else as_tensor(value)).numpy()
        except TypeError as error:
            raise TypeError(f"save_torch: {error}") from None
    if value.dtype not in BY_NUMPY:
        raise WeightsError(f"save_torch: torch has no element type {value.dtype}")
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    low, high = np.lib.array_utils.byte_bounds(value)
    dense = high - low == value.nbytes and all(s >= 0 for s in value.strides)
    found: Array = value if dense or not value.size else value.copy(order="C")
    return found


# --------------------------------------------------------------------------------------------------------- the pickle


class _Storage:
    """Memory that is written as one storage: that of an array, and of those of its type that overlap it."""

    def __init__(self, array: Array) -> None:
        self.low, self.high = np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)

    def takes(self, array: Array) -> bool:
        """Add an array that begins no earlier, if its elements overlap and align with the present ones; whether it
        was added.
        """
        low, high = np.lib.array_utils.byte_bounds(array)
        if low >= self.high or (low - self.low) % array.itemsize:
            return False
        self.high = max(self.high, high)
        return True

    def bytes(self) -> memoryview:
        return memoryview((ctypes.c_char * (self.high - self.low)).from_address(self.low)).cast("B")


def _storages(arrays: Iterable[Array]) -> dict[int, _Storage]:
    """The storage that each array lies in, by the array's id."""
    found: dict[int, _Storage] = {}
    last: dict[ElementType, _Storage] = {}
    for array in sorted(arrays, key=lambda a: np.lib.array_utils.byte_bounds(a)[0]):
        kind = BY_NUMPY[array.dtype]
        if not array.size:
            found[id(array)] = _Storage(array)
            continue
        if kind not in last or not last[kind].takes(array):
            last[kind] = _Storage(array)
        found[id(array)] = last[kind]
    return found


class _Pickle:
    """A pickle of protocol 2 that is being written; storages: with their numbers, in the order of their tensors."""

    def __init__(self, places: Mapping[int, _Storage]) -> None:
        self.parts: list[bytes] = [b"\x80\x02"]
        self.storages: dict[_Storage, int] = {}
        self._places = places

    def finished(self) -> bytes:
        return b"".join([*self.parts, b"."])

    def write(self, value: Any) -> None:
        """Any value of the tree."""
        if isinstance(value, np.ndarray):
            self._tensor(value)
        elif isinstance(value, dict):
            self._container(b"}(", [x for pair in value.items() for x in pair], b"u")
        elif isinstance(value, list):
            self._container(b"](", value, b"e")
        elif isinstance(value, tuple):
            self._container(b"(", value, b"t")
        elif isinstance(value, DType):
            self._name("torch", BY_NUMPY[value.numpy].torch)
        else:
            self.parts.append(_ENCODED[next(k for k in _ENCODED if isinstance(value, k))](value))

    def _container(self, begin: bytes, items: Sequence[Any], end: bytes) -> None:
        self.parts.append(begin)
        for item in items:
            self.write(item)
        self.parts.append(end)

    def _name(self, module: str, name: str) -> None:
        self.parts.append(f"c{module}\n{name}\n".encode())

    def _tensor(self, array: Array) -> None:
        """A call of torch's function for (storage, offset, shape, strides, gradient, hooks[, dtype])."""
        kind, item = BY_NUMPY[array.dtype], array.itemsize
        storage = self._places[id(array)]
        index = self.storages.setdefault(storage, len(self.storages))
        nbytes = storage.high - storage.low
        low = np.lib.array_utils.byte_bounds(array)[0] if array.size else storage.low
        self._name("torch._utils", "_rebuild_tensor_v2" if kind.storage else "_rebuild_tensor_v3")
        self.parts.append(b"((")
        self.write("storage")
        self._name(*(("torch", kind.storage) if kind.storage else ("torch.storage", "UntypedStorage")))
        for value in (str(index), "cpu", nbytes // item if kind.storage else nbytes):
            self.write(value)
        self.parts.append(b"tQ")
        self.write((low - storage.low) // item)
        self.write(array.shape)
        self.write(tuple(s // item for s in array.strides))
        self.parts.append(b"\x89ccollections\nOrderedDict\n)R")
        if not kind.storage:
            self._name("torch", kind.torch)
        self.parts.append(b"tR")


def _whole_number(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return b"J" + struct.pack("<i", value)
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8b" + struct.pack("<i", len(data)) + data


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


#: Opcodes of plain values; bool comes before int, its base class.
_ENCODED: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    bool: lambda v: b"\x88" if v else b"\x89",
    int: _whole_number,
    float: lambda v: b"G" + struct.pack(">d", v),
    str: _text,
    bytes: lambda v: b"c_codecs\nencode\n(" + _text(v.decode("latin-1")) + _text("latin1") + b"tR",
}


# -------------------------------------------------------------------------------------------------------- the archive


class _Written(NamedTuple):
    """The directory entry of a member."""

    name: bytes
    nbytes: int
    crc: int
    header: int


def _archive(members: Sequence[tuple[str, bytes | memoryview]]) -> Iterator[bytes | memoryview]:
    """A zip archive in pieces: nothing is compressed, and every member begins at a multiple of 64."""
    entries, at = [], 0
    for name, data in members:
        entry = _Written((_ROOT + name).encode(), len(data), zlib.crc32(data), at)
        head = _local(entry)
        yield head
        yield data
        entries.append(entry)
        at += len(head) + len(data)
    directory = b"".join(map(_central, entries))
    yield directory
    yield _end(len(entries), len(directory), at)


def _local(entry: _Written) -> bytes:
    size = min(entry.nbytes, _FULL)
    wide = struct.pack("<2H2Q", 1, 16, entry.nbytes, entry.nbytes) if size == _FULL else b""
    filled = entry.header + 30 + len(entry.name) + len(wide) + 4
    extra = wide + b"FB" + struct.pack("<H", -filled % _ALIGNMENT) + b"Z" * (-filled % _ALIGNMENT)
    fixed = struct.pack("<4s5H3I2H", b"PK\x03\x04", 45 if wide else 20, _UTF8, 0, 0, 0x21,
                        entry.crc, size, size, len(entry.name), len(extra))  # fmt: skip
    return fixed + entry.name + extra


def _central(entry: _Written) -> bytes:
    size, header = min(entry.nbytes, _FULL), min(entry.header, _FULL)
    wide = struct.pack("<2Q", entry.nbytes, entry.nbytes) if size == _FULL else b""
    wide += struct.pack("<Q", entry.header) if header == _FULL else b""
    extra = struct.pack("<2H", 1, len(wide)) + wide if wide else b""
    fixed = struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 45, 45 if wide else 20, _UTF8, 0, 0, 0x21,
                        entry.crc, size, size, len(entry.name), len(extra), 0, 0, 0, 0, header)  # fmt: skip
    return fixed + entry.name + extra


def _end(count: int, nbytes: int, start: int) -> bytes:
    wide = b""
    if count >= 0xFFFF or start + nbytes >= _FULL:
        wide = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, nbytes, start)
        wide += struct.pack("<4sIQI", b"PK\x06\x07", 0, start + nbytes, 1)
    few, short, first = min(count, 0xFFFF), min(nbytes, _FULL), min(start, _FULL)
    return wide + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, few, few, short, first, 0)
