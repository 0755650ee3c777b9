"""Each op's samples as models of one op, run by `OnnxGraph` and onnxruntime and compared with the op's NumPy
reference."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import onnx

from lamina.backends.reference import run_reference
from lamina.convert.onnx.export import ExportError, how, to_onnx
from lamina.convert.onnx.export import check as checks
from lamina.convert.onnx.export.writer import FORMS, WRITERS
from lamina.graph import Graph, Node, Value
from lamina.graph.ir.graph import constant
from lamina.ops.core import REGISTRY, Op, Sample
from lamina.ops.primitives.region_pool import RegionMax
from lamina.spec import DType, Spec, as_dtype, current_policy

#: Ops whose operands after the first must be constants when the model is written.
KNOWN = (RegionMax,)
#: Samples of exported ops that ONNX does not support.
LACKING = (
    "gcd", "erfinv", "lgamma", "digamma", "nextafter", "region_max: where windows lie",
)  # fmt: skip
#: How many of an op's samples the quick suite runs, in float32 (or their first type).
EACH = 3


def ops_of(module: ModuleType) -> list[type[Op]]:
    """The ops whose writers or forms are in a module."""
    found = {op for table in (WRITERS, FORMS) for op, f in table.items() if f.__module__ == module.__name__}
    return sorted(found, key=lambda op: op.name)


def samples(op: type[Op]) -> Iterator[tuple[Sample, DType]]:
    """An op's samples in each of their types."""
    for sample in op.samples():
        for dtype in sample.dtypes or sample.op.dtypes:
            yield sample, dtype


def few(module: ModuleType) -> list[Any]:
    """The first samples of each op of a module, in one type each, for the quick suite."""
    found = []
    for op in ops_of(module):
        kept = []
        for sample in op.samples():
            dtypes = sample.dtypes or sample.op.dtypes
            dtype = next((d for d in dtypes if d.name == "float32"), dtypes[0])
            if (
                all(0 not in a.shape for a in sample.args)
                and sum(np.prod(a.shape) for a in sample.args) < 20000
            ):
                kept.append((sample, dtype))
        step = max(1, len(kept) // EACH)
        found += kept[::step][:EACH]
    return found


def verdict(sample: Sample, dtype: DType, opset: int = 20, ran: set[bytes] | None = None) -> list[str]:
    """The fault in the model of one sample: differing results, or a refusal, except for what ONNX lacks.

    ran: the meanings of the sample's models that have been run, to which this one's is added.
    """
    arrays = sample.draw(np.random.default_rng(7), dtype)
    values = [Value(Spec(a.shape, as_dtype(a.dtype)), name=f"x{i}") for i, a in enumerate(arrays)]
    if type(sample.op) in KNOWN:
        values = [values[0], *map(constant, arrays[1:])]
    node = Node(sample.op, values, current_policy())
    graph = Graph([v for v in values if v.is_input], list(node.outputs))
    try:
        model = to_onnx(graph, check=False, opset=opset)
    except ExportError as error:
        return [] if any(word in str(error) for word in LACKING) else [f"refused: {error}"]
    if ran is not None:
        meant = _meaning(model, opset)
        if meant in ran:
            return []
        ran.add(meant)
    wanted = run_reference(sample.op, arrays)
    given = dict(zip([v.name for v in graph.inputs], arrays, strict=False))
    found = []
    for runner in (checks.OwnRunner(model), checks.RuntimeRunner(model)):
        try:
            results = runner.run(given)
        except (ValueError, IndexError) as error:
            found.append(f"{runner.name}: {type(error).__name__}: {error}")
            continue
        if results is None:
            continue
        for i, (a, b) in enumerate(zip(results, wanted, strict=False)):
            if (text := checks.apart(a, b)) is not None:
                found.append(f"{runner.name}: result {i} {text}")
    return [text for text in found if not any(word in text for word in LACKING)]


def _meaning(model: onnx.ModelProto, opset: int) -> bytes:
    """The meaning of a model: nodes and numbers, with the versions of operators of the opset."""
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    for node in nodes:  # the list grows by nested nodes
        nodes += [n for a in node.attribute for graph in (a.g, *a.graphs) for n in graph.node]
    kinds = {n.op_type for n in nodes if not n.domain}
    versions = sorted((kind, onnx.defs.get_schema(kind, opset).since_version) for kind in kinds)
    parts = (model.graph, *model.functions)
    return b"".join(p.SerializeToString(deterministic=True) for p in parts) + repr(versions).encode()


def exported_ops() -> list[type[Op]]:
    """All ops that are not refused, by name."""
    return [op for _, op in sorted(REGISTRY.items()) if how(op) in ("exported", "composed")]
