"""The contents of an ONNX model as tables: its inputs and outputs, its tensors, its operators."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from lamina import convert


def show_model(console: Console, file: Path) -> None:
    """Print the parts of a model. Raises OnnxError if it is not one, OSError if it cannot be read."""
    found = convert.contents_of_onnx(file)
    for what, values in (("input", found.inputs), ("output", found.outputs)):
        for name, kind in values.items():
            console.print(f"{what} {name}: {kind}", markup=False)
    tensors = _table("tensor", "type", "shape")
    for name, (kind, shape) in found.tensors.items():
        tensors.add_row(name, kind, " ".join(map(str, shape)) or "-")
    operators = _table("operator", "nodes", "")
    for name, count in found.operators.items():
        operators.add_row(name, str(count), "without a handler" if name in found.unknown else "")
    console.print(tensors, operators)
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
    nodes = sum(found.operators.values())
    console.print(f"{file}: ONNX ({opsets}), {nodes} nodes, {len(found.tensors)} tensors", markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
