"""Graphs in files: a safetensors file whose tensors are the constants and whose metadata is the graph as JSON.

Reading runs no code from the file: ops are looked up by name among the registered ones and those of installed
packages, their fields are checked, every shape is inferred anew, and sizes are bounded by the file's own size.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from lamina._json import parse_json
from lamina.files import WeightsError, parse_safetensors, safetensors_parts
from lamina.graph.ir.graph import Graph, Node, Value
from lamina.ops.arguments import checked
from lamina.ops.core import Op
from lamina.ops.custom import find_op
from lamina.ops.origin import Origin
from lamina.runtime import write_atomically
from lamina.spec import DType, Policy, Spec, as_dtype
from lamina.tensors import Tensor

FORMAT = "lamina-graph-1"
#: Nodes that a file may hold: each needs a kilobyte or two of memory, however few bytes it has in the file.
NODE_LIMIT = 100_000


class GraphFileError(ValueError):
    """A file that is not a graph, or is damaged; the message names the file and what is wrong."""


@checked
def save(graph: Graph, path: str | Path) -> None:
    """Write graph to a file atomically: its constants as tensors, its nodes as JSON in the metadata."""
    write_atomically(path, graph_parts(graph))


def graph_parts(graph: Graph) -> list[bytes | memoryview]:
    """The pieces that `save` writes, in order."""
    graph = graph.unmarked()
    constants = graph.constants
    index = {v: f"c{i}" for i, v in enumerate(constants)}
    index |= {v: f"i{i}" for i, v in enumerate(graph.inputs)}
    nodes = []
    for n, node in enumerate(graph.nodes):
        index |= {v: f"n{n}.{k}" for k, v in enumerate(node.outputs)}
        policy = dataclasses.asdict(node.policy) if node.policy != Policy() else None
        inputs = [index[v] for v in node.inputs]
        nodes.append([node.op.name, encode_op(node.op), inputs, policy, node.origin.module])
    text = {
        "name": graph.name,
        "inputs": [[v.name, list(v.shape), v.dtype.name] for v in graph.inputs],
        "outputs": [index[v] for v in graph.outputs],
        "nodes": nodes,
    }
    tensors = {index[v]: v.constant for v in constants}
    return safetensors_parts(tensors, {"format": FORMAT, "graph": json.dumps(text)})


def load(path: str | Path) -> Graph:
    """Read a graph written by `save`. Raises GraphFileError for anything else, OSError if it cannot be read."""
    return parse(Path(path).read_bytes(), path)


def parse(data: bytes, path: str | Path) -> Graph:
    """As `load`, for a file's content; path: the name used in errors."""
    try:
        tensors, metadata = parse_safetensors(data, path)
    except WeightsError as error:
        raise GraphFileError(str(error)) from error
    try:
        if metadata.get("format") != FORMAT:
            raise GraphFileError(f"the format is {metadata.get('format')!r}, not {FORMAT!r}")
        return _decode(parse_json(metadata["graph"]), tensors)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise GraphFileError(f"{path}: not a sound graph: {type(error).__name__}: {error}") from error


def encode_op(op: Op) -> dict[str, Any]:
    """The fields of an op as JSON values."""
    return {f.name: _encode(getattr(op, f.name)) for f in dataclasses.fields(op)}


def decode_op(name: str, values: Mapping[str, Any]) -> Op:
    """The op of this name with these fields, each checked against its declared type.

    A field with a default may be missing: the op did not have it when the file was written.
    """
    op_class = find_op(name)
    if op_class is None:
        raise GraphFileError(f"unknown op {name!r}: import the module that defines it first")
    hints = _declared(op_class)  # type: ignore[arg-type]  # mypy takes the hash of instances for the class'
    known = {f.name for f in dataclasses.fields(op_class)}
    needed = {f.name for f in dataclasses.fields(op_class) if f.default is dataclasses.MISSING}
    if not needed <= set(values) <= known:
        raise GraphFileError(f"{name} has fields {sorted(known)}, the file gives {sorted(values)}")
    return op_class(**{k: _conform(_decode_value(v), hints[k], f"{name}.{k}") for k, v in values.items()})


@lru_cache(maxsize=1024)
def _declared(kind: type) -> dict[str, Any]:
    """The types of a class' fields; cached, as the lookup takes longer than decoding an op."""
    return typing.get_type_hints(kind)


def _encode(value: Any) -> Any:
    if isinstance(value, Op):
        return {"op": value.name, "fields": encode_op(value)}
    if isinstance(value, DType):
        return {"dtype": value.name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            "value": type(value).__name__,
            "fields": {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)},
        }
    if isinstance(value, tuple):
        return [_encode(v) for v in value]
    if isinstance(value, float):
        return {"float": value.hex()}
    return value


def _decode_value(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode_value(v) for v in value)
    if not isinstance(value, dict):
        return value
    if "op" in value:
        return decode_op(value["op"], value["fields"])
    if "dtype" in value:
        return as_dtype(value["dtype"])
    if "float" in value:
        return float.fromhex(value["float"])
    return types.SimpleNamespace(
        name=value["value"], fields={k: _decode_value(v) for k, v in value["fields"].items()}
    )


def _conform(value: Any, kind: Any, where: str) -> Any:
    """value converted to the declared type of an op's field, or GraphFileError."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _conform_union(value, arguments, where)
    if origin is typing.Literal:
        return _require(value in arguments, value, kind, where)
    if origin is tuple and isinstance(value, tuple):
        return _conform_tuple(value, arguments, where)
    if isinstance(value, types.SimpleNamespace):
        _require(isinstance(kind, type) and dataclasses.is_dataclass(kind), value, kind, where)
        _require(kind.__name__ == value.name, value, kind, where)
        hints = _declared(kind)
        _require(set(value.fields) <= set(hints), value, kind, where)
        return kind(**{k: _conform(v, hints[k], f"{where}.{k}") for k, v in value.fields.items()})
    if kind is float and type(value) is int:
        return float(value)
    _require(isinstance(kind, type) and isinstance(value, kind), value, kind, where)
    _require(kind is bool or not isinstance(value, bool), value, kind, where)
    return value


def _conform_union(value: Any, kinds: tuple[Any, ...], where: str) -> Any:
    for kind in kinds:
        try:
            return _conform(value, kind, where)
        except GraphFileError:
            continue
    raise GraphFileError(f"{where}: {value!r} is not {' or '.join(map(str, kinds))}")


def _conform_tuple(value: tuple[Any, ...], kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_conform(v, kinds[0], where) for v in value)
    _require(len(value) == len(kinds), value, kinds, where)
    return tuple(_conform(v, k, where) for v, k in zip(value, kinds, strict=True))


def _require(condition: bool, value: Any, kind: Any, where: str) -> Any:
    if not condition:
        raise GraphFileError(f"{where}: {value!r} is not {getattr(kind, '__name__', kind)}")
    return value


def _decode(text: Any, tensors: Mapping[str, Tensor]) -> Graph:
    if len(text["nodes"]) > NODE_LIMIT:
        raise GraphFileError(f"{len(text['nodes'])} nodes are more than {NODE_LIMIT}")
    values: dict[str, Value] = {}
    inputs = []
    for i, (name, shape, dtype) in enumerate(text["inputs"]):
        values[f"i{i}"] = value = Value(Spec(tuple(shape), as_dtype(dtype)), name=str(name))
        inputs.append(value)
    values |= {key: Value(x.spec, constant=x) for key, x in tensors.items()}
    for n, (name, fields, sources, policy, *module) in enumerate(text["nodes"]):
        op = decode_op(name, fields)
        if op.arity not in (None, len(sources)):
            raise GraphFileError(f"node {n}: {name} got {len(sources)} inputs")
        origin = Origin(str(module[0]) if module else "")
        given = [values[s] for s in sources]
        node = Node(op, given, Policy(**policy) if policy else Policy(), origin=origin)
        values |= {f"n{n}.{k}": v for k, v in enumerate(node.outputs)}
    return Graph(inputs, [values[o] for o in text["outputs"]], str(text["name"]))
