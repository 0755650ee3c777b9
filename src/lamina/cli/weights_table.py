"""The contents of a weight file as a table; every checksum in it is verified."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from lamina.files.stored import Storage, StoredTensor
from lamina.files.weights import StoredWeights, open_weights
from lamina.runtime import human_bytes


def show_weights(console: Console, file: Path, key: str | None) -> None:
    """Print the tensors of a file. Raises WeightsError if it is damaged, KeyError for a missing key."""
    with open_weights(file, key=key, whole=key is None) as found:
        console.print(_tensors(found))
        for name, text in found.texts.items():
            console.print(f"{name}: {text[:200]}", markup=False)
        nbytes = sum(x.nbytes for x in found.tensors.values())
        console.print(
            f"{file}: {found.format}, {len(found.tensors)} tensors, {human_bytes(nbytes)}", markup=False
        )
        console.print(_checked(found))


def _tensors(found: StoredWeights) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("tensor", "dtype", "shape", "bytes"):
        table.add_column(column, overflow="fold", justify="right" if column == "bytes" else "left")
    shared = _shared(found)
    for name, x in found.tensors.items():
        note = " (shared)" if x.storage in shared else ""
        table.add_row(name, x.kind.torch, " ".join(map(str, x.shape)) or "-", f"{x.nbytes}{note}")
    return table


def _shared(found: StoredWeights) -> set[Storage]:
    """The storages of several tensors."""
    counts = Counter(x.storage for x in found.tensors.values())
    return {storage for storage, count in counts.items() if count > 1}


def _checked(found: StoredWeights) -> str:
    """Reads all storages with a checksum. Raises WeightsError for a mismatch."""
    checked: list[StoredTensor] = [x for x in found.tensors.values() if x.checked]
    for storage in {x.storage for x in checked}:
        storage.read()
    if len(checked) == len(found.tensors):
        return "checksums hold for all tensors"
    return f"checksums hold for {len(checked)} tensors, {len(found.tensors) - len(checked)} have none"
