"""The self-check: a model's outputs compared with those of the graph that it was written from."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from lamina import ops
from lamina._lazy import lazy
from lamina.convert.onnx.export.writer import ExportError
from lamina.convert.onnx.graph import OnnxGraph
from lamina.convert.onnx.node import OnnxError
from lamina.graph import Graph, Node
from lamina.ops.core import bind
from lamina.spec import DTypeError, Spec, float64
from lamina.spec.policies import policy as use_policy
from lamina.tensors import Tensor

Array = np.ndarray[Any, Any]
_log = logging.getLogger("lamina.convert")
_runtime = lazy(__name__, {"InferenceSession": "onnxruntime", "SessionOptions": "onnxruntime"})

#: Tolerances relative to the largest result: for types of 32 bits and more, and for half types.
TOLERANCE, COARSE = 1e-4, 3e-2
#: onnxruntime's messages for models that it has no kernel for: not the model's fault.
_NO_KERNEL = (
    "NOT_IMPLEMENTED",
    "Could not find an implementation",
    "is not a registered function",
    "does not support double",
    "data type is not supported",
)


#: Types of arrays that onnxruntime does not accept.
_NOT_NUMPY = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN)


class CheckError(ValueError):
    """An exported model computes something other than its source; names op and module."""


def checked_model(
    model: onnx.ModelProto,
    graphs: Sequence[Graph],
    held: Mapping[str, Tensor],
    written: Path | None,
    steps: Sequence[tuple[Node, tuple[str | None, ...]]],
    examples: Sequence[Array | None],
) -> None:
    """Check a model and run it. Raises CheckError, ExportError for types that an operator does not take, and
    the errors of onnx's checker.

    graphs: at the examples' sizes, then at others. held: the weights, the graphs' first inputs. written: the file of
    a model with external weights. steps: each op with the names of its results. examples: of the inputs,
    if they are arrays.
    """
    try:
        onnx.checker.check_model(model if written is None else str(written), full_check=True)
    except onnx.shape_inference.InferenceError as error:
        raise ExportError(
            f"to_onnx: opset {model.opset_import[0].version} does not take this program: {error}; give a later opset "
            "(22 has convolutions in bfloat16), or compute in another type"
        ) from error
    runners: list[OwnRunner | RuntimeRunner] = [OwnRunner(model)]
    if importlib.util.find_spec("onnxruntime") is not None:
        runners.append(RuntimeRunner(model, written))
    names = [v.name for v in model.graph.input]
    for graph in (graphs[0], *graphs[-1:][: len(graphs) - 1]):
        specs = [v.spec for v in graph.inputs[len(held) :]]
        values = [drawn(s, i, x) for i, (s, x) in enumerate(zip(specs, examples, strict=True))]
        given = dict(zip(names, values, strict=True))
        wanted = [y.numpy() for y in graph(*held.values(), *map(ops.operand, given.values()))]
        for runner in runners:
            found = runner.run(given)
            if found is None:
                continue
            for i, (value, a, b) in enumerate(zip(model.graph.output, found, wanted, strict=True)):
                if (text := apart(a, b, runner.rounding)) is not None and not _rounded(
                    graph, held, given, i, a, b
                ):
                    where = _where(runner, model, graph, held, given, steps) if graph is graphs[0] else ""
                    raise CheckError(f"{runner.name}: output {value.name!r} {text}{where}")


def drawn(spec: Spec, seed: int = 0, example: Array | None = None) -> Array:
    """An example's values if they differ from each other (they may have a meaning: indices, boxes), repeated
    or cropped; else normally distributed floats, zeros and ones."""
    rng = np.random.default_rng(seed)
    if example is not None and example.size and (example != example.reshape(-1)[0]).any():
        return np.resize(example, spec.shape).astype(spec.dtype.numpy)
    if spec.dtype.is_float:
        return rng.standard_normal(spec.shape).astype(spec.dtype.numpy)
    return rng.integers(0, 2, spec.shape).astype(spec.dtype.numpy)


def apart(found: Array, wanted: Array, rounding: float = 0.0) -> str | None:
    """The difference between two results as text; None if they agree. rounding: a difference that never counts."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"is {found.dtype}{list(found.shape)}, not {wanted.dtype}{list(wanted.shape)}"
    if not wanted.size or found.tobytes() == wanted.tobytes():
        return None
    limit = TOLERANCE if wanted.dtype.kind in "iub" or wanted.dtype.itemsize >= 4 else COARSE
    a, b = (x.astype(float64.numpy) for x in (found, wanted))
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "is infinite or NaN at other places"
    scale = np.abs(b[finite]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        off = np.abs(a[finite] - b[finite]).max(initial=0.0)
    if off <= max(limit * scale, rounding) or off < 1e-30:
        return None
    return f"differs by {off:.3g} where the largest is {scale:.3g}"


def _rounded(
    graph: Graph,
    held: Mapping[str, Tensor],
    given: Mapping[str, Array],
    number: int,
    found: Array,
    wanted: Array,
) -> bool:
    """Whether the network's own output changes as much under rounding of weights and inputs: a sum of canceling
    terms (the mean of a centered norm) consists of rounding errors alone."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype or wanted.dtype.kind != "f":
        return False
    if not (np.isfinite(found).all() and np.isfinite(wanted).all()):
        return False
    rng = np.random.default_rng(0)

    def moved(x: Array) -> Array:
        if x.dtype.kind != "f":
            return x
        step = float(np.finfo(x.dtype).eps)
        return np.asarray(x * (1 + step * rng.choice([-1.0, 1.0], x.shape)), x.dtype)

    def off(x: Array) -> float:
        return float(np.abs(x.astype(np.float64) - wanted.astype(np.float64)).max(initial=0.0))

    reach = 0.0
    for _ in range(3):
        values = [moved(x) for x in (*(np.asarray(t.numpy()) for t in held.values()), *given.values())]
        reach = max(reach, off(graph(*map(ops.operand, values))[number].numpy()))
    return off(found) <= 4 * reach


class OwnRunner:
    """`OnnxGraph`."""

    name = "OnnxGraph"
    rounding = 0.0

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model

    def run(self, given: Mapping[str, Array]) -> list[Array] | None:
        """The outputs; None if it lacks a handler for an operator, or an op for a type."""
        try:
            found = OnnxGraph(self.model)({n: ops.operand(x) for n, x in given.items()})
        except (OnnxError, DTypeError) as error:
            _log.info("to_onnx: not checked by OnnxGraph: %s", error)
            return None
        return [np.asarray(found[v.name].numpy()) for v in self.model.graph.output]


class RuntimeRunner:
    """onnxruntime on the CPU."""

    name = "onnxruntime"
    #: Its sigmoid, tanh and erf are off by this much of their largest value, 1, however small a result is.
    rounding = 2.5e-7

    def __init__(self, model: onnx.ModelProto, path: Path | None = None) -> None:
        self.model, self.path = model, path

    def run(self, given: Mapping[str, Array]) -> list[Array] | None:
        """The outputs; None if it has no kernel for an operator's types, or NumPy lacks the types."""
        if any(
            v.type.tensor_type.elem_type in _NOT_NUMPY
            for v in (*self.model.graph.input, *self.model.graph.output)
        ):
            return None
        options = _runtime("SessionOptions")()
        options.log_severity_level = 4
        source = str(self.path) if self.path else self.model.SerializeToString()
        try:
            session = _runtime("InferenceSession")(source, options, providers=["CPUExecutionProvider"])
            return [np.asarray(y) for y in session.run(None, dict(given))]
        except Exception as error:  # onnxruntime's own classes, one for each status
            if any(word in str(error) for word in _NO_KERNEL):
                _log.info("to_onnx: not checked by onnxruntime: %s", error)
                return None
            raise CheckError(f"onnxruntime does not run the model: {error}") from error


def _where(
    runner: Any,
    model: onnx.ModelProto,
    graph: Graph,
    held: Mapping[str, Tensor],
    given: Mapping[str, Array],
    steps: Sequence[tuple[Node, tuple[str | None, ...]]],
) -> str:
    """The first op whose result differs, as text; "" if none does by itself."""
    inner = onnx.ModelProto()
    inner.CopyFrom(model)
    known = {v.name for v in model.graph.output}
    named = {n: v.spec for node, names in steps for n, v in zip(names, node.outputs, strict=False) if n}
    inner.graph.output.extend(onnx.ValueInfoProto(name=n) for n in named if n not in known)
    found = type(runner)(inner).run(given)
    if found is None:
        return ""
    results = dict(zip([v.name for v in inner.graph.output], found, strict=True))
    values: dict[Any, Any] = dict(
        zip(graph.inputs, [*held.values(), *map(ops.operand, given.values())], strict=True)
    )
    for node, names in steps:
        with use_policy(node.policy):
            made = bind(node.op, *(values.get(v, v.constant) for v in node.inputs))
        values.update(zip(node.outputs, made, strict=True))
        for name, y in zip(names, made, strict=False):
            if name and (text := apart(results[name], y.numpy(), runner.rounding)) is not None:
                module = f" of module {node.origin.module!r}" if node.origin.module else ""
                return f"; the first op that differs is {node.op}{module}: it {text}"
    return ""
