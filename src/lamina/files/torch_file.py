"""Files of `torch.save`, read without torch and without running their pickle.

Two formats: a zip archive whose `data.pkl` is the tree and whose `data/KEY` are the storages (since PyTorch 1.6), and
the older one, a few pickles followed by the storages. The allowed contents of the pickle are listed here: containers,
strings, numbers, tensors and their storages, dtypes, sizes, devices. PyTorch's documentation ("Serialization
semantics") describes both.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lamina.files.element_types import BY_STORAGE, BY_TORCH, ElementType, as_held
from lamina.files.pickle_data import Function, PickleError, read_pickle
from lamina.files.source import Source, WeightsError
from lamina.files.stored import Storage, StoredTensor
from lamina.files.zip_archive import MAGIC, Member, members
from lamina.spec import DTypeError, as_dtype

Array = np.ndarray[Any, Any]

#: The maximum size of a pickle in bytes: it holds names and shapes, not values.
_LONGEST_PICKLE = 64 << 20
_MOST_AXES = 64
_DEEPEST = 200
#: The beginning of the older format, as a pickle.
_OLD_MAGIC = 0x1950A86A20F9469CFC6C
_OLD_PROTOCOL = 1001
_UNTYPED = BY_TORCH["uint8"]
_PARAMETER, _TENSOR = "torch.nn.parameter.Parameter", "torch.Tensor"


def load_torch(path: str | Path) -> Any:
    """The content of a `torch.save` file: its dicts, lists, tuples, strings and numbers, with tensors on the CPU.

    Parameters are tensors, an OrderedDict is a dict, torch's dtypes become Lamina's, or NumPy's if Lamina lacks the
    type, devices become strings. Tensors that shared a storage share memory; strides are kept. Element types that
    Lamina lacks become wider ones (`lamina.load_weights`).

    The pickle in the file is read as data: nothing in it is run. Raises WeightsError for a file that is damaged or
    holds anything else (the message names it), OSError when it cannot be read.
    """
    known: dict[Storage, Array] = {}
    with Source(path) as source:
        return mapped(scan_torch(source), lambda name, found: as_held(name, found.read(known)))


def is_torch(source: Source) -> bool:
    """Whether a file begins like one of `torch.save`."""
    start = source.read(0, min(source.size, 9)).tobytes()
    return start.startswith(MAGIC) or (
        start.startswith(b"\x80") and start[8:] != b"{"
    )  # a header of 128 bytes


def scan_torch(source: Source) -> Any:
    """The result of `load_torch`, with a `StoredTensor` for each tensor. Raises WeightsError, OSError."""
    start = source.read(0, min(source.size, 4)).tobytes()
    try:
        if start == MAGIC:
            return _zipped(source)
        if start[:1] == b"\x80":
            return _old(source)
    except PickleError as error:
        raise WeightsError(
            f"{source.path}: its pickle is not that of weights: {error}; save a state_dict()"
        ) from None
    raise WeightsError(f"{source.path}: not a file of torch.save")


def mapped(tree: Any, change: Callable[[str, StoredTensor], Any]) -> Any:
    """The tree with each tensor replaced, given its dotted name; shared objects are replaced once.

    Raises WeightsError for trees that are nested too deeply, or contain themselves.
    """
    return _mapped(tree, change, "", {}, 0)


def _mapped(
    tree: Any, change: Callable[[str, StoredTensor], Any], name: str, known: dict[int, Any], depth: int
) -> Any:
    if not isinstance(tree, StoredTensor | dict | list | tuple):
        return tree
    if id(tree) in known:
        return known[id(tree)]
    if depth > _DEEPEST:
        raise WeightsError(f"{name[:100]}…: nested more than {_DEEPEST} times")
    result: Any
    if isinstance(tree, StoredTensor):
        result = change(name, tree)
    else:
        keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
        values = [_mapped(tree[k], change, _joined(name, k), known, depth + 1) for k in keys]
        result = dict(zip(keys, values, strict=True)) if isinstance(tree, dict) else type(tree)(values)
    known[id(tree)] = result
    return result


def _joined(name: str, key: Any) -> str:
    text = str(key) if not isinstance(key, str) else key
    return f"{name}.{text}"[-500:] if name else text[:500]


# ------------------------------------------------------------------------------------------------------ the contents


@dataclass(frozen=True)
class _Names:
    """The objects for names in the pickle; the tensors that are made lie in the storages of one file."""

    source: Source
    big_endian: bool = False

    def table(self) -> dict[tuple[str, str], Any]:
        rebuild = "torch._utils"
        functions: dict[tuple[str, str], Callable[..., Any]] = {
            (rebuild, "_rebuild_tensor"): self.tensor,
            (rebuild, "_rebuild_tensor_v2"): self.tensor,
            (rebuild, "_rebuild_tensor_v3"): self.typed_tensor,
            (rebuild, "_rebuild_parameter"): _first,
            (rebuild, "_rebuild_parameter_with_state"): _first,
            ("torch._tensor", "_rebuild_from_type_v2"): self.with_attributes,
            ("torch", "Size"): _size,
            ("torch", "device"): _device,
            ("collections", "OrderedDict"): _dict,
            ("_codecs", "encode"): _encoded,
        }
        for module in ("builtins", "__builtin__"):
            functions[module, "set"] = _set
            functions[module, "complex"] = _complex
        table = {key: Function(".".join(key), call) for key, call in functions.items()}
        return {**_VALUES, **table}

    def tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> StoredTensor:
        """rest: whether it has a gradient, hooks, and further state of torch's (lazy conjugation)."""
        return self._made(storage, storage.kind, offset, shape, strides, rest[2] if len(rest) > 2 else None)

    def typed_tensor(
        self,
        storage: Any,
        offset: Any,
        shape: Any,
        strides: Any,
        _gradient: Any,
        _hooks: Any,
        kind: Any,
        more: Any = None,
    ) -> StoredTensor:
        return self._made(storage, kind, offset, shape, strides, more)

    def with_attributes(self, function: Any, kind: Any, arguments: Any, _state: Any) -> Any:
        if (
            type(function) is not Function
            or kind not in (_PARAMETER, _TENSOR)
            or type(arguments) is not tuple
        ):
            raise PickleError(f"a tensor of the class {str(kind)[:100]}")
        return function.call(*arguments)

    def _made(
        self, storage: Any, kind: Any, offset: Any, shape: Any, strides: Any, more: Any
    ) -> StoredTensor:
        if type(storage) is not _TypedStorage or type(kind) is not ElementType:
            raise PickleError("a tensor without a storage or element type")
        numbers = (offset, *shape, *strides)
        if len(shape) != len(strides) or len(shape) > _MOST_AXES or any(type(n) is not int for n in numbers):
            raise PickleError(f"a tensor of shape {str(shape)[:200]} with strides {str(strides)[:200]}")
        if more:
            raise PickleError(
                "a tensor whose conjugation waits; resolve_conj() makes it one that can be kept"
            )
        found = StoredTensor(storage.bytes, kind, tuple(shape), tuple(strides), offset, self.big_endian)
        if not found.inside() or found.nbytes > self.source.size:
            raise PickleError(
                f"a tensor of shape {shape} with strides {strides} from {offset} on is not in its storage "
                f"of {storage.bytes.nbytes} bytes"
            )
        return found


@dataclass(frozen=True)
class _TypedStorage:
    """A storage as the pickle names it: its bytes, and the type of its elements."""

    bytes: Storage
    kind: ElementType = field(default=_UNTYPED)


#: Types of storages; `UntypedStorage` counts bytes.
_VALUES: dict[tuple[str, str], Any] = {
    **{("torch", name): kind for name, kind in BY_STORAGE.items()},
    **{("torch.cuda", name): kind for name, kind in BY_STORAGE.items()},
    **{("torch", name): kind for name, kind in BY_TORCH.items()},
    ("torch.storage", "UntypedStorage"): _UNTYPED,
    ("torch.nn.parameter", "Parameter"): _PARAMETER,
    ("torch", "Tensor"): _TENSOR,
}


def _first(value: Any, *_: Any) -> Any:
    if type(value) is not StoredTensor:
        raise PickleError(f"a parameter of a {type(value).__name__}")
    return value


def _size(shape: Any = ()) -> tuple[Any, ...]:
    return tuple(shape)


def _device(kind: Any, index: Any = None) -> str:
    return str(kind)[:100] if index is None else f"{str(kind)[:100]}:{int(index)}"


def _dict(*arguments: Any) -> dict[Any, Any]:
    if arguments not in ((), ([],)):
        raise PickleError("an OrderedDict that is made of a list")
    return {}


def _set(values: Any = ()) -> set[Any]:
    if any(type(v) not in (str, int, float, bool, type(None)) for v in values):
        raise PickleError("a set of other things than texts and numbers")
    if any(type(v) is int and v.bit_length() > 64 for v in values):
        raise PickleError("a set of whole numbers of more than 64 bits")
    return set(values)


def _complex(real: float, imaginary: float) -> complex:
    return complex(real, imaginary)


def _encoded(text: Any, encoding: Any) -> bytes:
    """Protocol 2's encoding of bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise PickleError(f"the encoding {str(encoding)[:100]}")
    return str(text).encode("latin-1")


def _values_of(tree: Any, depth: int = 0, known: dict[int, Any] | None = None) -> Any:
    """The tree in its final form: without functions and storages, types as Lamina's or NumPy's."""
    known = {} if known is None else known
    if isinstance(tree, ElementType):
        return _dtype(tree)
    if type(tree) is _TypedStorage or type(tree) is Function:
        raise PickleError("a bare storage or function; only tensors are read")
    if type(tree) not in (dict, list, tuple):
        return tree
    if depth > _DEEPEST:
        raise PickleError(f"nested more than {_DEEPEST} times")
    if id(tree) not in known:
        if isinstance(tree, dict):
            found: Any = {k: _values_of(v, depth + 1, known) for k, v in tree.items()}
        else:
            found = type(tree)([_values_of(v, depth + 1, known) for v in tree])
        known[id(tree)] = found
    return known[id(tree)]


def _dtype(kind: ElementType) -> Any:
    try:
        return as_dtype(kind.numpy)
    except DTypeError:
        return kind.numpy


# --------------------------------------------------------------------------------------------------- the zip archive


def _zipped(source: Source) -> Any:
    found = members(source)
    root = next((n.removesuffix("data.pkl") for n in found if n.split("/")[1:] == ["data.pkl"]), None)
    if root is None:
        arrays = all(n.endswith(".npy") for n in found)
        hint = "; of NumPy's arrays: net.load_state_dict(dict(numpy.load(path)))" if found and arrays else ""
        raise WeightsError(
            f"{source.path}: a zip archive without data.pkl, which torch.save did not write{hint}"
        )
    unchecked = all(m.crc == 0 for m in found.values())  # torch.serialization.set_crc32_options(False)
    order = _content(source, found, root + "byteorder", unchecked, 16) or b"little"
    if order not in (b"little", b"big"):
        raise WeightsError(f"{source.path}: the byte order {order!r}")
    pickle = _content(source, found, root + "data.pkl", unchecked, _LONGEST_PICKLE)
    kept = _Zipped(source, found, root + "data/", unchecked)
    table = _Names(source, order == b"big").table()
    tree = read_pickle(io.BytesIO(pickle), table, kept.storage, source.size)
    return _values_of(tree)


def _content(source: Source, found: Mapping[str, Member], name: str, unchecked: bool, longest: int) -> bytes:
    """A small member, checked; empty if it is missing."""
    if name not in found:
        return b""
    member = found[name]
    if member.nbytes > longest:
        raise WeightsError(f"{source.path}: {name} has {member.nbytes} bytes, more than {longest}")
    crc = None if unchecked else member.crc
    return Storage(source, name, member.offset, member.nbytes, crc=crc).read().tobytes()


@dataclass(frozen=True)
class _Zipped:
    """Storages of an archive."""

    source: Source
    members: Mapping[str, Member]
    folder: str
    unchecked: bool

    def storage(self, reference: Any) -> _TypedStorage:
        """The storage for ("storage", type, key, device, elements)."""
        kind, key, count = _reference(reference)
        member = self.members.get(self.folder + key)
        if member is None:
            raise PickleError(f"the storage {key[:100]!r} is missing")
        nbytes = count * kind.numpy.itemsize
        if nbytes > member.nbytes:
            raise PickleError(f"the storage {key!r} should have {nbytes} bytes, and has {member.nbytes}")
        crc = None if self.unchecked else member.crc
        return _TypedStorage(
            Storage(self.source, f"storage {key!r}", member.offset, member.nbytes, crc=crc), kind
        )


def _reference(reference: Any) -> tuple[ElementType, str, int]:
    """Type, key and number of elements of a storage. Raises PickleError."""
    if type(reference) is not tuple or len(reference) not in (5, 6) or reference[0] != "storage":
        raise PickleError("a persistent id that is no storage")
    _, kind, key, _device, count, *view = reference
    if type(kind) is not ElementType or type(key) is not str or type(count) is not int or count < 0:
        raise PickleError(f"the storage {str(key)[:100]!r} has no type or size")
    if view and view[0] is not None:
        raise PickleError(f"the storage {key[:100]!r} is a view of another one, as PyTorch 0.1 wrote them")
    return kind, key, count


# --------------------------------------------------------------------------------------------------- the older format


def _old(source: Source) -> Any:
    """Pickles one after another: a magic number, the protocol, the machine, the tree, the keys; then the storages."""
    file = io.BytesIO(source.read(0, min(source.size, _LONGEST_PICKLE)).tobytes())
    kept = _Behind(source)
    if read_pickle(file, {}, kept.refused, 0) != _OLD_MAGIC:
        raise WeightsError(f"{source.path}: a pickle, but not one of torch.save")
    if read_pickle(file, {}, kept.refused, 0) != _OLD_PROTOCOL:
        raise WeightsError(f"{source.path}: an unknown version of the format")
    machine = read_pickle(file, {}, kept.refused, 0)
    big_endian = isinstance(machine, dict) and machine.get("little_endian") is False
    tree = read_pickle(file, _Names(source, big_endian).table(), kept.storage, source.size)
    keys = read_pickle(file, {}, kept.refused, source.size)
    places = kept.places(keys, file.tell(), big_endian)
    return mapped(_values_of(tree), lambda _, x: _placed(x, places))


def _placed(found: StoredTensor, places: Mapping[str, int]) -> StoredTensor:
    offset = places.get(found.storage.label)
    if offset is None:
        raise PickleError(f"{found.storage.label} is missing")
    return replace(found, storage=replace(found.storage, offset=offset))


class _Behind:
    """Storages that follow the pickles, in the order of a list that comes after the tree."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.sizes: dict[str, tuple[int, int]] = {}  # elements, and bytes per element

    def refused(self, _reference: Any) -> Any:
        raise PickleError("a storage outside of the tree")

    def storage(self, reference: Any) -> _TypedStorage:
        kind, key, count = _reference(reference)
        label = f"storage {key!r}"
        size = (count, kind.numpy.itemsize)
        if self.sizes.setdefault(label, size) != size:
            raise PickleError(f"{label} has two sizes")
        return _TypedStorage(Storage(self.source, label, 0, count * size[1]), kind)

    def places(self, keys: Any, at: int, big_endian: bool) -> dict[str, int]:
        """The offset of each storage's bytes: they are preceded by its number of elements, in 8 bytes."""
        found: dict[str, int] = {}
        if type(keys) is not list:
            raise PickleError("no list of storages")
        for key in keys:
            label = f"storage {key!r}"
            count = int.from_bytes(self.source.read(at, 8).tobytes(), "big" if big_endian else "little")
            expected, item = self.sizes.get(label, (-1, 0))
            if count != expected or label in found or at + 8 + count * item > self.source.size:
                raise PickleError(
                    f"{label[:100]} has {count} elements, not {expected}, or ends behind the file"
                )
            found[label] = at + 8
            at += 8 + count * item
        return found
