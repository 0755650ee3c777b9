"""Floor 4: tensors in safetensors files: names, shapes, dtypes and bytes, and nothing that could run.

Every dtype goes both ways, bfloat16 too. A file is put in place at once (`runtime.write_atomically`), so a crash
leaves the old one. The writer adds a SHA-256 per tensor and one of the header; the reader checks them
where they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from lamina.runtime import write_atomically
from lamina.spec import DType, as_dtype
from lamina.tensors import Tensor, as_tensor

Array = np.ndarray[Any, Any]

#: Names of dtypes in the file.
_CODES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_NAMES = {as_dtype(name): code for code, name in _CODES.items()}
_DIGEST = "sha256:"
_SEAL = "sha256"  # of the header without this entry


class WeightsError(ValueError):
    """A file that is no sound safetensors, or was changed since; the message names file and tensor."""


def save_safetensors(state: Any, path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write tensors and arrays by name, or the state_dict of a module, to a file. Raises OSError.

    path: written as `runtime.write_atomically` does: through links, into pipes directly, otherwise at once.
    metadata: more texts to keep in the file's header.
    """
    named: Mapping[str, Any] = state.state_dict() if hasattr(state, "state_dict") else state
    arrays = {name: _host(value) for name, value in named.items()}
    digests = {_DIGEST + name: hashlib.sha256(_bytes(array)).hexdigest() for name, array in arrays.items()}
    header = _header(arrays, {**(metadata or {}), **digests})
    write_atomically(path, [header, *map(_bytes, arrays.values())])


def load_safetensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU. Raises WeightsError, or OSError when it cannot be read."""
    return read_safetensors(path)[0]


def read_safetensors(path: str | Path, *, sealed: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file and the texts in its header. Raises WeightsError or OSError.

    sealed: refuse a file without the digest of its header, which only files of other programs lack.
    """
    data = Path(path).read_bytes()
    try:
        entries = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
        metadata, seal, expected = _metadata(data)
    except (safetensors.SafetensorError, ValueError) as error:
        raise WeightsError(f"{path}: not a sound safetensors file ({error})") from error
    if seal != expected and (sealed or seal is not None):
        raise WeightsError(f"{path}: the header was changed after it was written")
    for name, facts in entries:
        digest = metadata.get(_DIGEST + name)
        if digest is not None and hashlib.sha256(facts["data"]).hexdigest() != digest:
            raise WeightsError(f"{path}: the content of tensor {name!r} was changed after it was written")
    texts = {k: v for k, v in metadata.items() if not k.startswith(_DIGEST)}
    return {name: _tensor(path, name, facts) for name, facts in entries}, texts


def _host(value: Any) -> Array:
    """The values as a row-major NumPy array."""
    values = as_tensor(value).numpy()
    return np.ascontiguousarray(values).reshape(values.shape)  # the former makes scalars one-dimensional


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _header(arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """Length (8 bytes, little-endian), then JSON: per tensor its dtype, shape and place in the data."""
    facts: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in arrays.items():
        place = [offset, offset + array.nbytes]
        facts[name] = {
            "dtype": _NAMES[as_dtype(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": place,
        }
        offset += array.nbytes
    facts["__metadata__"][_SEAL] = _seal(facts)
    text = json.dumps(facts, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data starts at a multiple of 8
    return len(text).to_bytes(8, "little") + text


def _tensor(path: str | Path, name: str, facts: Mapping[str, Any]) -> Tensor:
    if facts["dtype"] not in _CODES:
        raise WeightsError(f"{path}: tensor {name!r} has dtype {facts['dtype']}, which Lamina does not know")
    kind: DType = as_dtype(_CODES[facts["dtype"]])
    return as_tensor(np.frombuffer(facts["data"], kind.numpy).reshape(facts["shape"]))


def _metadata(data: bytes) -> tuple[dict[str, str], str | None, str]:
    """The texts in the header, its seal, and what the seal should be.

    The library has checked the header, but does not hand it out.
    """
    size = int.from_bytes(data[:8], "little")
    facts = json.loads(data[8 : 8 + size])
    texts = facts.setdefault("__metadata__", {})
    seal = texts.pop(_SEAL, None)
    return texts, seal, _seal(facts)


def _seal(facts: Mapping[str, Any]) -> str:
    """The digest of a header: of its JSON with sorted keys."""
    text = json.dumps(facts, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
