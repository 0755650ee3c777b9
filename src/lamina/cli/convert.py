"""Convert a file of weights into another format: safetensors, PyTorch's .pt, ONNX; nothing in it is run.

lamina convert resnet50.pth resnet50.safetensors
lamina convert checkpoint.ckpt weights.pt --key state_dict --prefix module.
lamina convert vit.safetensors vit-torchvision.safetensors --names timm
lamina convert net.onnx net.safetensors                weights by name, and the model in the file's header
lamina convert net.safetensors back.onnx               the model with the weights that the file has now
lamina convert model.safetensors.index.json small.safetensors --shard-size '2 GiB'
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from lamina import convert
from lamina.convert.names import CONVENTIONS
from lamina.files.stored import Storage
from lamina.files.weights import joined, open_weights, renamed, save_weights
from lamina.runtime import human_bytes

Array = np.ndarray[Any, Any]


class FileWeights(NamedTuple):
    """The weights of a file: arrays in the file's types, and its texts."""

    arrays: dict[str, Array]
    texts: dict[str, str]


Reader = Callable[[Path, argparse.Namespace], FileWeights]
Writer = Callable[[FileWeights, Path, argparse.Namespace], list[Path]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("source", type=Path, metavar="IN", help=f"a file: {', '.join(READERS)}")
    add("target", type=Path, metavar="OUT", help=f"the file to write: {', '.join(WRITERS)}")
    add("--key", help="where the weights are in a checkpoint, such as state_dict")
    add("--prefix", default="", help="take this away from the beginning of names, such as module.")
    add("--names", choices=CONVENTIONS, help="the names are this library's; give them torchvision's")
    add("--shard-size", metavar="SIZE", help="the most bytes of one file, such as '5 GiB' (safetensors)")


def run(options: argparse.Namespace) -> None:
    """Read, rename, write."""
    read, write = _of(READERS, options.source, "IN"), _of(WRITERS, options.target, "OUT")
    found = read(options.source, options)
    rules = CONVENTIONS[options.names] if options.names else None
    arrays = joined(renamed(found.arrays, prefix=options.prefix, rename=rules), str(options.source))
    written = write(FileWeights(arrays, found.texts), options.target, options)
    nbytes = human_bytes(sum(a.nbytes for a in arrays.values()))
    names = ", ".join(f.name for f in written)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(f"{options.source.name}: {len(arrays)} tensors, {nbytes}, written to {names}")


def _of(table: Mapping[str, Any], file: Path, what: str) -> Any:
    """The longest extension of a file's name that is in the table. Raises ValueError."""
    for start in range(len(file.suffixes)):
        ending = "".join(file.suffixes[start:])
        if ending in table:
            return table[ending]
    raise ValueError(f"{what}: {file.name!r} ends in none of {', '.join(table)}")


def _read_weights(file: Path, options: argparse.Namespace) -> FileWeights:
    """Every format that can be detected by its content."""
    known: dict[Storage, Array] = {}
    with open_weights(file, key=options.key) as found:
        return FileWeights({name: x.read(known) for name, x in found.tensors.items()}, found.texts)


def _write_safetensors(found: FileWeights, file: Path, options: argparse.Namespace) -> list[Path]:
    return save_weights(found.arrays, file, metadata=found.texts, shard_bytes=options.shard_size)


def _write_torch(found: FileWeights, file: Path, options: argparse.Namespace) -> list[Path]:
    if options.shard_size:
        raise ValueError("--shard-size: only safetensors files come in shards")
    return save_weights(found.arrays, file)


def _read_onnx(file: Path, options: argparse.Namespace) -> FileWeights:
    """The weights of a model; the model itself is in the texts."""
    if options.key is not None:
        raise ValueError("--key: an ONNX model has nothing but its weights")
    net = convert.from_onnx(file)
    return FileWeights({n: x.numpy() for n, x in net.state_dict().items()}, convert.texts_of_onnx(net))


def _write_onnx(found: FileWeights, file: Path, options: argparse.Namespace) -> list[Path]:
    """The model in the texts, with these weights."""
    if options.shard_size:
        raise ValueError("--shard-size: only safetensors files come in shards")
    convert.onnx_of_weights(found.arrays, found.texts, options.source).to_onnx(file)
    return [file]


_TORCH = (".pt", ".pth", ".bin", ".ckpt")
#: Readers and writers of files, by file name extension.
READERS: dict[str, Reader] = {
    **dict.fromkeys((".safetensors", ".index.json", *_TORCH), _read_weights),
    ".onnx": _read_onnx,
}
WRITERS: dict[str, Writer] = {
    ".safetensors": _write_safetensors,
    **dict.fromkeys(_TORCH, _write_torch),
    ".onnx": _write_onnx,
}
