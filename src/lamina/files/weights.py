"""Weights from the files of any library: located, read, renamed, and written, whole or sharded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lamina._json import parse_json
from lamina.files.element_types import as_held
from lamina.files.safetensors_file import (
    Contents,
    host_array,
    named_values,
    safetensors_parts,
    scan_safetensors,
)
from lamina.files.source import Source, WeightsError
from lamina.files.stored import Storage, StoredTensor
from lamina.files.torch_file import is_torch, scan_torch
from lamina.files.torch_writer import save_torch
from lamina.ops.arguments import checked, shown
from lamina.runtime import write_atomically
from lamina.runtime.arena import parse_bytes
from lamina.tensors import Tensor

Array = np.ndarray[Any, Any]
#: Regular expressions for names, and replacements of their matches; None leaves the tensor out.
Renames = Mapping[str, str | None]

_INDEX = ".index.json"
#: The beginning of a NumPy array file.
_NUMPY = b"\x93NUMPY"
_SAFETENSORS, _TORCH = ".safetensors", (".pt", ".pth", ".bin", ".ckpt")
#: Rules, or a function that returns them for the names of a file.
Renaming = Renames | Callable[[Iterable[str]], Renames]

_PART = re.compile(r"(?P<name>.*)#(?P<number>\d+)")
_SHAPED = re.compile(r"(?P<name>.*)\[(?P<shape>-?\d+(?:,-?\d+)*)\]")


class StoredWeights(NamedTuple):
    """The tensors of a file by name, its texts, and its kind: "safetensors", "torch" or "shards"."""

    tensors: dict[str, StoredTensor]
    texts: dict[str, str]
    format: str


#: The kind that `lamina.train.save_checkpoint` records in its files.
CHECKPOINT = "lamina checkpoint 1"


@checked
def load_weights(
    path: str | Path, *, key: str | None = None, prefix: str = "", rename: Renaming | None = None
) -> dict[str, Tensor]:
    """The weights in a file by name, on the CPU; `Module.load_state_dict` takes them.

    The kind of file is detected by its content: safetensors, an index of shards (`*.index.json`, its shards beside
    it), or a `torch.save` file (`.pt`, `.pth`, `.bin`), whose pickle is read as data: nothing in it is run. For a
    training step's checkpoint the result is the network's `state_dict`. Every dtype of these formats is read; one
    that Lamina lacks becomes the narrowest that holds its values (float8_e5m2: float16; unsigned integers: wider
    ones), complex numbers become pairs (…, 2).

    Args:
        path: the file.
        key: the location of the weights in a larger checkpoint, such as "state_dict" or "model.ema", in one of
            Lamina's "averaged" or the name of a network; needed only if several parts of it hold tensors.
        prefix: removed from names that begin with it, such as "module.".
        rename: regular expressions and replacements as `re.sub` takes them, applied to each name in their order; None
            leaves the tensor out. Tensors renamed to "name#0", "name#1", … are concatenated along their first axis,
            in that order; one renamed to "name[-1,1,1]" gets that shape, where -1 is inferred and 0 keeps the axis'
            size. A function returns such rules for the present names: `lamina.convert.timm_names`,
            `lamina.convert.hugging_face_names`.

    Raises WeightsError for a file that is damaged, was changed since it was written (if it has checksums), or holds
    anything other than weights, KeyError for a missing key, DTypeError for uint64 beyond int64, OSError.
    """
    with open_weights(path, key=key) as found:
        names = renamed(found.tensors, prefix=prefix, rename=rename)
        known: dict[Storage, Array] = {}
        arrays = {name: x.read(known) for name, x in names.items()}
        return {name: as_held(name, array) for name, array in joined(arrays, str(path)).items()}


def read_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """As `load_weights`, with the texts in a safetensors file's header."""
    with open_weights(path) as found:
        known: dict[Storage, Array] = {}
        return {name: as_held(name, x.read(known)) for name, x in found.tensors.items()}, found.texts


@contextmanager
def open_weights(path: str | Path, *, key: str | None = None, whole: bool = False) -> Iterator[StoredWeights]:
    """Opens a file of weights within the block, without its values. whole: all parts of a training checkpoint, not
    only the network's. Raises as `load_weights`."""
    with ExitStack() as opened:
        yield _scanned(opened.enter_context(Source(path)), key, opened, whole)


def _scanned_safetensors(source: Source) -> Contents:
    """The contents of a file that is not torch's. The error for one of another name says that it is neither kind."""
    try:
        return scan_safetensors(source)
    except WeightsError as error:
        if source.path.endswith(_SAFETENSORS) or error.__cause__ is None:
            raise
        raise WeightsError(
            f"{source.path}: holds no weights: it is neither of torch.save nor safetensors ({error.__cause__})"
        ) from error


def _scanned(source: Source, key: str | None, opened: ExitStack, whole: bool) -> StoredWeights:
    if source.path.endswith(_INDEX):
        return _of_index(source, opened)
    if is_torch(source):
        return StoredWeights(_picked(scan_torch(source), key, source.path), {}, "torch")
    if source.read(0, min(source.size, len(_NUMPY))).tobytes() == _NUMPY:
        raise WeightsError(f"{source.path}: an array of NumPy's, without a name: lm.tensor(numpy.load(path))")
    contents = _scanned_safetensors(source)
    tensors = contents.tensors
    if not whole and contents.texts.get("format") == CHECKPOINT:
        tensors = _of_run(tensors, key, source.path)
    else:
        _no_key(key, source.path)
    return StoredWeights(tensors, contents.texts, "safetensors")


def _no_key(key: str | None, path: str) -> None:
    if key is not None:
        raise KeyError(f"{path}: key={key!r}: there is nothing but weights in this file; leave it out")


# ------------------------------------------------------------------------------------------------------ finding them


def _picked(tree: Any, key: str | None, path: str) -> dict[str, StoredTensor]:
    """The tensors of one mapping in a checkpoint."""
    if key is not None:
        return _tensors_in(_under(tree, key, path), f"{path}: {key}")
    holders = {".".join(k): t for k, t in _mappings(tree)}
    if not holders:
        raise WeightsError(f"{path}: no mapping of names to tensors in it")
    if len(holders) > 1:
        listed = ", ".join(repr(k) if k else "the file itself ('')" for k in list(holders)[:20])
        raise KeyError(f"{path}: several parts hold tensors; name one by key=: {listed}")
    return _tensors_in(next(iter(holders.values())), path)


def _of_run(tensors: Mapping[str, StoredTensor], key: str | None, path: str) -> dict[str, StoredTensor]:
    """The tensors of one part of a training checkpoint, named "part/name"; by default the network's."""
    parts: dict[str, Any] = {}
    for name, x in tensors.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = x
    if key is None and "parameters" in parts:
        return {**parts["parameters"], **parts.get("buffers", {})}
    parts.pop("random", None)
    return _picked(parts, key, path)


def _mappings(tree: Any) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """The mappings that hold tensors under names: the tree itself, or those in it, two levels deep."""
    level: list[tuple[tuple[str, ...], Any]] = [((), tree)]
    for _ in range(3):
        level = [(k, t) for k, t in level if isinstance(t, dict)]
        yield from (
            (k, t)
            for k, t in level
            if any(isinstance(v, StoredTensor) and isinstance(n, str) for n, v in t.items())
        )
        level = [((*k, n), v) for k, t in level for n, v in t.items() if isinstance(n, str)]


def _under(tree: Any, key: str, path: str) -> Any:
    """The value at a dotted key; the tree itself for ""."""
    for part in key.split(".") if key else ():
        if not isinstance(tree, dict) or part not in tree:
            known = ", ".join(map(repr, list(tree)[:20])) if isinstance(tree, dict) else type(tree).__name__
            raise KeyError(f"{path}: there is no key={key!r}: no {part!r} in {known}")
        tree = tree[part]
    return tree


def _tensors_in(tree: Any, where: str) -> dict[str, StoredTensor]:
    found = {k: v for k, v in tree.items() if isinstance(v, StoredTensor)} if isinstance(tree, dict) else {}
    if not found or not all(isinstance(k, str) for k in found):
        raise WeightsError(f"{where}: a {type(tree).__name__}, not a mapping of names to tensors")
    return found


def _of_index(source: Source, opened: ExitStack) -> StoredWeights:
    """The tensors that an index lists, in the shards beside it."""
    try:
        text = source.read(0, source.size).tobytes()
        index = parse_json(text)
        places, facts = dict(index["weight_map"]), index.get("metadata") or {}
        if not all(isinstance(file, str) for file in places.values()):
            raise TypeError("names of files are texts")
        seals = dict(facts.get("sha256") or {}) if isinstance(facts, dict) else {}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{source.path}: not a sound index of shards ({error!r})") from error
    shards = {
        file: _scanned(opened.enter_context(_shard(source, file, seals)), None, opened, True)
        for file in dict.fromkeys(places.values())
    }
    wrong = [name for name, file in places.items() if name not in shards[file].tensors]
    if wrong:
        raise WeightsError(f"{source.path}: {wrong[0]!r} is not in {places[wrong[0]]!r}")
    texts = {k: v for k, v in facts.items() if isinstance(v, str)} if isinstance(facts, dict) else {}
    return StoredWeights({name: shards[file].tensors[name] for name, file in places.items()}, texts, "shards")


def _shard(index: Source, file: str, seals: Mapping[str, Any]) -> Source:
    """A shard beside its index. Raises WeightsError for a name that leads elsewhere."""
    if Path(file).name != file or file in ("", ".", "..") or "\\" in file or "\x00" in file:
        raise WeightsError(f"{index.path}: {str(file)[:200]!r} is not the name of a file beside it")
    if file.endswith(_INDEX):
        raise WeightsError(f"{index.path}: {file!r} is an index, not a shard")
    source = Source(Path(index.path).parent / file)
    if file in seals and seals[file] != _seal_of(source):
        source.close()
        raise WeightsError(f"{source.path}: not the shard that {index.path} was written with")
    return source


def _seal_of(source: Source) -> str:
    """The SHA-256 of a shard's header, which holds those of its tensors."""
    return "" if is_torch(source) else scan_safetensors(source).seal


# -------------------------------------------------------------------------------------------------------- other names


def renamed(
    tensors: Mapping[str, Any], *, prefix: str = "", rename: Renaming | None = None
) -> dict[str, Any]:
    """The same values under other names, as `load_weights` returns them. Raises WeightsError where two
    names collide."""
    table = rename([n.removeprefix(prefix) for n in tensors]) if callable(rename) else rename or {}
    rules = [(re.compile(pattern), new) for pattern, new in table.items()]
    found: dict[str, Any] = {}
    before: dict[str, str] = {}
    for name, value in tensors.items():
        new = _renamed(name.removeprefix(prefix), rules)
        if new is None:
            continue
        if new in found:
            raise WeightsError(f"{before[new]!r} and {name!r} would both be named {new!r}")
        found[new], before[new] = value, name
    return found


def _renamed(name: str, rules: list[tuple[re.Pattern[str], str | None]]) -> str | None:
    for pattern, new in rules:
        if new is None:
            if pattern.search(name):
                return None
        else:
            name = pattern.sub(new, name)
    return name


def _shaped(named: tuple[str, Array]) -> tuple[str, Array]:
    """A name without its shape suffix, and the array of that shape. Raises ValueError."""
    name, array = named
    if match := _SHAPED.fullmatch(name):
        sizes = [int(n) for n in match["shape"].split(",")]
        return match["name"], array.reshape([n or array.shape[i] for i, n in enumerate(sizes)])
    return name, array


def joined(arrays: Mapping[str, Array], where: str = "weights") -> dict[str, Array]:
    """The arrays, shaped by "name[0,-1]" suffixes, and those of "name#0", "name#1", … concatenated along the first
    axis.
    """
    parts: dict[str, dict[int, Array]] = {}
    found: dict[str, Any] = {}
    for name, array in map(_shaped, arrays.items()):
        if match := _PART.fullmatch(name):
            found[match["name"]] = None  # its place among the names
            parts.setdefault(match["name"], {})[int(match["number"])] = array
        else:
            found[name] = array
    for name, numbered in parts.items():
        if sorted(numbered) != list(range(len(numbered))):
            raise WeightsError(f"{where}: of {name!r} there are only the parts {sorted(numbered)}")
        found[name] = np.concatenate([numbered[i] for i in sorted(numbered)])
    return found


# ------------------------------------------------------------------------------------------------------------ writing


def save_weights(
    state: Any,
    path: str | Path,
    *,
    metadata: Mapping[str, str] | None = None,
    shard_bytes: int | str | None = None,
) -> list[Path]:
    """Write tensors by name, or the state_dict of a module, to one or several files; returns the paths written.

    Args:
        state: a module, or a mapping of tensors and arrays.
        path: its extension selects the format: ".safetensors", or ".pt", ".pth", ".bin", ".ckpt" for `torch.load`.
        metadata: texts to keep beside them (safetensors).
        shard_bytes: the maximum bytes of tensors in one file, as a number or text such as "5 GiB" (safetensors).
            Beyond that, files NAME-00001-of-0000N.safetensors, … are written, and an index of their tensors,
            NAME.safetensors.index.json, which `load_weights` reads. A single tensor above the limit has its own file.

    Each file is replaced atomically, the index last. Raises ValueError for another extension, WeightsError for a
    dtype that the format lacks, OSError.
    """
    if not isinstance(path, str | Path):
        raise TypeError(f"save_weights: takes what to save, then the path, got {shown(path)} as path")
    file = Path(path)
    if file.suffix in _TORCH:
        if metadata or shard_bytes:
            raise ValueError(
                f"save_weights: {file.suffix} files have no metadata and shards; use .safetensors"
            )
        save_torch(state, file)
        return [file]
    if file.suffix != _SAFETENSORS:
        known = ", ".join((_SAFETENSORS, *_TORCH))
        raise ValueError(f"save_weights: {str(path)!r} ends in none of {known}")
    limit = parse_bytes(shard_bytes) if isinstance(shard_bytes, str) else shard_bytes
    groups = _groups(named_values(state), limit)
    if len(groups) == 1:
        write_atomically(file, safetensors_parts(groups[0], metadata))
        return [file]
    return _write_shards(groups, file, dict(metadata or {}))


def _groups(named: Mapping[str, Any], shard_bytes: int | None) -> list[dict[str, Any]]:
    """The tensors of each file, in their order."""
    if shard_bytes is None:
        return [dict(named)]
    if shard_bytes < 1:
        raise ValueError(f"save_weights: shard_bytes={shard_bytes} is less than 1")
    groups: list[dict[str, Any]] = [{}]
    filled = 0
    for name, value in named.items():
        nbytes = host_array(value).nbytes
        if groups[-1] and filled + nbytes > shard_bytes:
            groups.append({})
            filled = 0
        groups[-1][name] = value
        filled += nbytes
    return groups


def _write_shards(groups: list[dict[str, Any]], file: Path, metadata: dict[str, str]) -> list[Path]:
    written: list[Path] = []
    places: dict[str, str] = {}
    seals: dict[str, str] = {}
    total = 0
    for number, group in enumerate(groups, 1):
        shard = file.with_name(f"{file.stem}-{number:05d}-of-{len(groups):05d}{_SAFETENSORS}")
        parts = safetensors_parts(group, metadata)
        write_atomically(shard, parts)
        written.append(shard)
        seals[shard.name] = scan_safetensors(Source(shard)).seal
        places |= dict.fromkeys(group, shard.name)
        total += sum(len(p) for p in parts[1:])
    facts = {**metadata, "total_size": total, "sha256": seals}
    index = file.with_name(file.name + _INDEX)
    text = json.dumps({"metadata": facts, "weight_map": places}, indent=1).encode()
    write_atomically(index, [text])
    return [*written, index]
