"""Tensors in safetensors files: names, shapes, dtypes and bytes, and nothing executable.

All dtypes can be written and read, including bfloat16 and the 8-bit ones. A file is replaced atomically
(`runtime.write_atomically`), so a crash leaves the old one. The writer adds a SHA-256 per tensor and one of the
header; the reader checks them if present. Format: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lamina._json import parse_json
from lamina.files.element_types import BY_CODE, BY_NUMPY, as_held
from lamina.files.source import Source, WeightsError
from lamina.files.stored import StoredTensor
from lamina.runtime import write_atomically
from lamina.tensors import Tensor, as_tensor

Array = np.ndarray[Any, Any]

_DIGEST = "sha256:"
_SEAL = "sha256"  # of the header without this entry
#: The longest header that the format allows.
_LONGEST_HEADER = 100_000_000
#: The maximum number of axes of an array.
_MOST_AXES = 64


class Contents(NamedTuple):
    """The content of a file's header: its tensors by name, its texts, and the header's SHA-256, "" if it has none."""

    tensors: dict[str, StoredTensor]
    texts: dict[str, str]
    seal: str


def save_safetensors(state: Any, path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and arrays by name, or the state_dict of a module, to a file. Raises OSError.

    path: written as by `runtime.write_atomically`: through links, into pipes directly, otherwise atomically.
    metadata: further texts for the file's header.
    Raises TypeError for anything but a module or a mapping of names to arrays.
    """
    write_atomically(path, safetensors_parts(state, metadata))


def safetensors_parts(state: Any, metadata: Mapping[str, str] | None = None) -> list[bytes | memoryview]:
    """The bytes that `save_safetensors` writes, piece by piece."""
    arrays = {name: _named_array(name, value) for name, value in named_values(state).items()}
    digests = {_DIGEST + name: hashlib.sha256(_bytes(array)).hexdigest() for name, array in arrays.items()}
    return [_header(arrays, {**(metadata or {}), **digests}), *map(_bytes, arrays.values())]


def named_values(state: Any) -> Mapping[str, Any]:
    """The values by name of a mapping, or of a module. Raises TypeError for anything else."""
    named: Mapping[str, Any] = state.state_dict() if hasattr(state, "state_dict") else state
    if not isinstance(named, Mapping) or not all(isinstance(name, str) for name in named):
        raise TypeError(
            f"weights: state must be a module or a mapping of names to arrays, got {type(state).__name__}"
        )
    return named


def host_array(value: Any) -> Array:
    """The values as a row-major NumPy array, of any file element type."""
    known = isinstance(value, np.ndarray) and value.dtype in BY_NUMPY and value.dtype.isnative
    values = value if known else as_tensor(value).numpy()
    return np.ascontiguousarray(values).reshape(values.shape)  # the former makes scalars one-dimensional


def _named_array(name: str, value: Any) -> Array:
    """`host_array`, with the entry's name in errors. Raises TypeError, ValueError for the name reserved
    by headers."""
    if name == "__metadata__":
        raise ValueError(
            "weights: '__metadata__' is not a tensor's name in safetensors files: it holds their texts"
        )
    try:
        return host_array(value)
    except TypeError as error:
        raise TypeError(f"weights: {name}: {error}") from error


def load_safetensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU. Raises WeightsError, or OSError when it cannot be read."""
    return read_safetensors(path)[0]


def read_safetensors(path: str | Path, *, sealed: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file and the texts in its header. Raises WeightsError or OSError.

    sealed: refuse a file without the digest of its header, which only files written by other programs lack.
    """
    with Source(path) as source:
        return _read_all(source, sealed)


def parse_safetensors(
    data: bytes, path: str | Path, *, sealed: bool = False
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """As `read_safetensors`, from a file's content; path: its name in errors."""
    return _read_all(Source(path, data), sealed)


def _read_all(source: Source, sealed: bool) -> tuple[dict[str, Tensor], dict[str, str]]:
    contents = scan_safetensors(source, sealed=sealed)
    return {name: as_held(name, found.read()) for name, found in contents.tensors.items()}, contents.texts


def scan_safetensors(source: Source, *, sealed: bool = False) -> Contents:
    """The entries of a file, without their values. Raises WeightsError."""
    try:
        facts, start = _facts(source)
        texts = facts.pop("__metadata__", {})
        if not isinstance(texts, dict) or not all(isinstance(t, str) for t in texts.values()):
            raise ValueError("__metadata__ is no mapping of texts")
        seal = texts.pop(_SEAL, None)
        if (seal is not None or sealed) and seal != _seal({**facts, "__metadata__": texts}):
            raise WeightsError(f"{source.path}: the header was changed after it was written")
        digests = {k[len(_DIGEST) :]: v for k, v in texts.items() if k.startswith(_DIGEST)}
        found = {name: _stored(source, name, f, start, digests.get(name)) for name, f in facts.items()}
        _check_places(facts, source.size - start)
    except WeightsError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise WeightsError(f"{source.path}: not a sound safetensors file ({error})") from error
    own = {k: v for k, v in texts.items() if not k.startswith(_DIGEST)}
    return Contents(found, own, seal or "")


def _instead(source: Source) -> str:
    """What a file is that a failed download left in place of weights; "" if it is none of those."""
    start = source.read(0, min(source.size, 40)).tobytes().lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS: fetch the file itself by `git lfs pull`"
    return "it is a web page, not the file" if start.startswith((b"<!doctype", b"<html")) else ""


def _facts(source: Source) -> tuple[dict[str, Any], int]:
    """The header, and the offset of the data."""
    if source.size < 8:
        raise ValueError(f"{source.size} bytes are too few")
    length = int.from_bytes(source.read(0, 8).tobytes(), "little")
    if length > min(_LONGEST_HEADER, source.size - 8):
        raise ValueError(_instead(source) or f"a header of {length} bytes in a file of {source.size}")
    facts = parse_json(source.read(8, length).tobytes())
    if not isinstance(facts, dict):
        raise ValueError("the header is no object")
    return facts, 8 + length


def _stored(source: Source, name: str, facts: Any, start: int, digest: str | None) -> StoredTensor:
    """One tensor of the header, whose shape must match its number of bytes."""
    first, last = facts["data_offsets"]
    shape = tuple(facts["shape"])
    kind = BY_CODE.get(facts["dtype"])
    if kind is None:
        raise WeightsError(
            f"{source.path}: tensor {name!r} has dtype {facts['dtype']}, which Lamina does not know"
        )
    if len(shape) > _MOST_AXES or any(type(n) is not int or n < 0 for n in (first, last, *shape)):
        raise ValueError(f"tensor {name!r} has shape {str(shape)[:200]} at {first!r}:{last!r}")
    found = StoredTensor.whole(source, name, kind, shape, start + first, digest=digest)
    if found.nbytes != last - first:
        raise ValueError(f"tensor {name!r} of {found.nbytes} bytes has {last - first}")
    return found


def _check_places(facts: Mapping[str, Any], nbytes: int) -> None:
    """Raises ValueError unless the tensors cover the data, one after another."""
    end = 0
    for first, last in sorted(f["data_offsets"] for f in facts.values()):
        if first != end:
            raise ValueError(f"between tensors {first - end} bytes lie, or belong to two of them")
        end = last
    if end != nbytes:
        raise ValueError(f"the tensors have {end} bytes, the file {nbytes}")


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _header(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Length (8 bytes, little-endian), then JSON: per tensor its dtype, shape and offsets in the data."""
    facts: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in arrays.items():
        facts[name] = {
            "dtype": _code(name, array),
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    facts["__metadata__"][_SEAL] = _seal(facts)
    text = json.dumps(facts, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data starts at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def _code(name: str, array: Array) -> str:
    code = BY_NUMPY[array.dtype].code
    if not code:
        raise WeightsError(f"tensor {name!r} is {array.dtype}, which safetensors files do not have")
    return code


def _seal(facts: Mapping[str, Any]) -> str:
    """The digest of a header: of its JSON with sorted keys."""
    text = json.dumps(facts, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
