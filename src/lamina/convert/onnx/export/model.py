"""`to_onnx`: a network, a function or a graph as an ONNX model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from lamina import _tree
from lamina._version import __version__
from lamina.convert.free_axes import Free, FreeAxes
from lamina.convert.onnx.export.check import checked_model
from lamina.convert.onnx.export.writer import (
    ExportError,
    ModelWriter,
    UnknownSizeError,
    code_of,
    tensor_proto,
)
from lamina.convert.sizes import difference, free_shape
from lamina.graph import Graph, Value, trace
from lamina.graph.passes.canonicalize import (
    common_subexpressions,
    drop_identities,
    fold_constants,
    prune_outputs,
)
from lamina.nn import Module
from lamina.nn.module import evaluating
from lamina.nn.parameter import check_unwritten, standing_in
from lamina.ops.arguments import checked
from lamina.ops.core import operand
from lamina.runtime import check_writable
from lamina.spec import Spec
from lamina.tensors import Tensor, array_spec

OPSETS = range(17, 24)
#: The size limit of a protobuf message; larger models keep their weights in a file beside them.
LIMIT = 2**31 - 2**24


@checked
def to_onnx(
    net: Module | Graph | Callable[..., Any],
    *examples: Any,
    path: str | Path | None = None,
    opset: int = 20,
    dynamic: Free | None = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    external_data: bool | None = None,
    metadata: Mapping[str, str] | None = None,
    check: bool = True,
) -> onnx.ModelProto:
    """A network (in inference mode), a function of operands, or a graph as a model of standard ONNX operators.

    examples: one for each argument: a Spec, a tensor or an array, or nested tuples, lists and dicts of them; only
    shapes and dtypes are used. A `Graph` needs none: its inputs are the model's.
    path: where the model is written, atomically. opset: the version of the operators, 17 to 23.
    dynamic: axes whose size is free when the model runs: "batch" for the first axis of every input, or for each
    input's name its axes with their names, {"x": {0: "batch", 1: "time"}}; axes of one name have one size. The
    network is traced at other sizes of them too; computations on sizes become operators of the model.
    input_names, output_names: by default those of the function's arguments, in Python's notation, and "output".
    external_data: keep the weights in a file `<path>.data` beside the model; by default where they exceed what one
    file can hold, 2 GB.
    metadata: custom texts for the model's `metadata_props`.
    check: run onnx's checker, then the model by `OnnxGraph`, and by onnxruntime where that is installed, on the
    examples (on random numbers if these are specs, or all equal) and, with free axes, on others of other shapes;
    CheckError where outputs differ from the network's by more than 1e-4 of the largest.

    The weights have their state_dict names, and are bit-identical. Raises ExportError for an op without an ONNX
    equivalent, naming it and its module; ValueError for another opset or unknown names; OSError.
    """
    if opset not in OPSETS:
        raise ValueError(f"to_onnx: opset must be {OPSETS[0]} to {OPSETS[-1]}, got {opset}")
    if path is not None:
        check_writable(Path(path))
    program = _Exportable.of(net, examples, input_names)
    if dynamic is not None and not program.resizable:
        raise ValueError("to_onnx: a Graph has fixed sizes; give the module or function for free axes")
    axes = FreeAxes.of("to_onnx", dict(zip(program.inputs, program.specs, strict=True)), dynamic)
    exported = _exported_or_computed(program, axes, opset, output_names)
    onnx.helper.set_model_props(exported.model, dict(metadata or {}))
    written = _save(exported.model, path, external_data)
    if check:
        checked_model(
            exported.model, exported.graphs, program.held, written, exported.steps, program.examples
        )
    return exported.model


@dataclass(frozen=True)
class Exported:
    """A model, the graphs at the examples' and at other sizes, and the model's values that hold the ops' results."""

    model: onnx.ModelProto
    graphs: list[Graph]
    steps: Any


@dataclass(frozen=True)
class _Exportable:
    """The traced function: specs of the inputs, and whether ops on constants are folded -> the graph, whose first
    inputs are the weights, and the output names.

    held: the weights. examples: arrays of the inputs, if given. resizable: whether it can be traced again.
    """

    name: str
    held: Mapping[str, Tensor]
    inputs: list[str]
    specs: list[Spec]
    traced: Callable[[Sequence[Spec], bool], tuple[Graph, list[str]]]
    examples: list[Any]
    resizable: bool = True

    @classmethod
    def of(cls, net: Any, examples: Sequence[Any], names: Sequence[str] | None) -> _Exportable:
        """Raises TypeError and ValueError for untraceable arguments."""
        if isinstance(net, Graph):
            return cls._of_graph(net, examples, names)
        if not callable(net):
            raise TypeError(f"to_onnx: takes a module, a graph or a function, got {type(net).__name__}")
        leaves, structure = _tree.flatten(tuple(examples))
        specs = [x if isinstance(x, Spec) else array_spec(operand(x, "to_onnx")) for x in leaves]
        found = _named("input_names", names, [_plain(n, "input") for n in _tree.names(structure, "")])
        is_net = isinstance(net, Module)
        weights = {**dict(net.named_parameters()), **dict(net.named_buffers())} if is_net else {}
        held = {_unlike(n, found): x for n, x in weights.items()}

        def traced(sizes: Sequence[Spec], fold: bool) -> tuple[Graph, list[str]]:
            made: list[_tree.Structure] = []

            def forward(*values: Any) -> Any:
                states = {id(x): v for x, v in zip(held.values(), values, strict=False)}
                arguments = _tree.unflatten(structure, values[len(held) :])
                with standing_in(states) as after:
                    results, shape = _tree.flatten(net(*arguments))
                    check_unwritten("to_onnx", {id(x): n for n, x in held.items()}, states, after)
                made.append(shape)
                return [operand(y) for y in results]

            given = [x.spec.open for x in held.values()] + list(sizes)
            labels = [*held, *found]
            if is_net:
                with evaluating(net):
                    graph = trace(forward, *given, names=labels, fold=fold)
            else:
                graph = trace(forward, *given, names=labels, fold=fold)
            return graph, [_plain(n, "output") for n in _tree.names(made[0], "")]

        label = type(net).__name__ if is_net else getattr(net, "__name__", "graph").strip("<>")
        arrays = [None if isinstance(x, Spec) else operand(x).numpy() for x in leaves]
        return cls(label, held, found, [s.open for s in specs], traced, arrays)

    @classmethod
    def _of_graph(cls, graph: Graph, examples: Sequence[Any], names: Sequence[str] | None) -> _Exportable:
        if examples:
            raise TypeError("to_onnx: a Graph has inputs of its own, give no examples")
        own = [v.name or f"input_{i}" for i, v in enumerate(graph.inputs)]
        outputs = [v.name or _plain(f"[{i}]", "output") for i, v in enumerate(graph.outputs)]
        outputs = outputs if len(outputs) > 1 else ["output"]
        found = _named("input_names", names, own)
        specs = [v.spec for v in graph.inputs]
        return cls(graph.name, {}, found, specs, lambda *_: (graph, outputs), [None] * len(specs), False)


def _plain(name: str, root: str) -> str:
    """[0]['mask'] as root_0_mask; the only leaf is root."""
    words = "".join(c if c.isalnum() else " " for c in name).split()
    return "_".join([root, *words])


def _unlike(name: str, taken: Sequence[str]) -> str:
    """The name of a weight, changed if an input has it."""
    return f"weight.{name}" if name in taken else name


def _named(what: str, given: Sequence[str] | None, own: Sequence[str]) -> list[str]:
    names = list(own if given is None else given)
    if len(names) != len(own):
        raise ValueError(f"to_onnx: {what} must be {len(own)} names, for {', '.join(own)}; got {names}")
    if len(set(names)) != len(names):
        raise ValueError(f"to_onnx: {what} must differ from each other, got {names}")
    return names


# ---- free axes


def _alike(graphs: Sequence[Graph]) -> list[Graph]:
    """Without markers and dead nodes; also canonicalized, if that keeps the traces alike."""
    bare = [prune_outputs(g.unmarked()) for g in graphs]
    tidy = [prune_outputs(common_subexpressions(fold_constants(drop_identities(g)))) for g in bare]
    return bare if difference(tidy) else tidy


def _unfolded(graphs: Sequence[Graph]) -> list[Graph]:
    """Without markers and dead nodes, with the ops on constants."""
    bare = [prune_outputs(drop_identities(g.unmarked())) for g in graphs]
    tidy = [prune_outputs(common_subexpressions(g)) for g in bare]
    return bare if difference(tidy) else tidy


# ---- the model


def _exported_or_computed(
    program: _Exportable, axes: FreeAxes, opset: int, output_names: Sequence[str] | None
) -> Exported:
    """The model with constants folded. If sizes or constants depend on free axes in a way that no formula gives
    (rounded halves, tables of sines, clipped distances), from more traces, and with the ops that compute them."""
    problem: Exception | None = None
    for dense, fold in product((False, True), (True, False)):
        try:
            return _exported(program, axes, opset, output_names, fold, dense)
        except (ExportError, TypeError, ValueError) as error:
            if problem is None and not isinstance(error, UnknownSizeError):
                raise
            problem = problem or error
    assert problem is not None
    raise problem


def _exported(
    program: _Exportable,
    axes: FreeAxes,
    opset: int,
    output_names: Sequence[str] | None,
    fold: bool,
    dense: bool,
) -> Exported:
    own: list[str] = []

    def traced(specs: Sequence[Spec]) -> Graph:
        graph, own[:] = program.traced(specs, fold)
        return graph

    graphs = axes.traces(program.name, traced, _alike if fold else _unfolded, ExportError, dense)
    outputs = _named("output_names", output_names, own)
    writer = ModelWriter(opset)
    for name, value in program.held.items():
        writer.initializer(name, value.numpy())
    for name in (*program.inputs, *outputs):
        if writer.claim(name) != name:
            raise ValueError(f"to_onnx: the name {name!r} is that of two inputs, outputs or weights")
    count = len(program.held)
    labels = {}
    for i, name in enumerate(program.inputs):
        dims = axes.dims(name, name, [g.inputs[count + i].shape for g in graphs])
        writer.free += dims
        labels.update({d.sizes: axes.of_input(name)[d.axis] for d in dims})
    made = writer.write(graphs, [*program.held, *program.inputs])
    _rename(writer, made, outputs)
    _drop_unread(writer, outputs)
    model = _model(program, writer, graphs, outputs, labels)
    return Exported(model, graphs, writer.written)


def _rename(writer: ModelWriter, made: Sequence[str], outputs: Sequence[str]) -> None:
    """Give the results that are outputs the outputs' names; inputs, weights and outputs with two names are copied."""
    own = {o for n in writer.nodes for o in n.output}
    renamed: dict[str, str] = {}
    for value, name in zip(made, outputs, strict=True):
        if value in own and value not in renamed:
            renamed[value] = name
    for node in writer.nodes:
        for names in (node.input, node.output):
            names[:] = [renamed.get(n, n) for n in names]
    for value, name in zip(made, outputs, strict=True):
        if renamed.get(value) != name:
            writer.nodes.append(
                helper.make_node("Identity", [renamed.get(value, value)], [name], f"output/{name}")
            )
    writer.written[:] = [
        (node, tuple(None if n is None else renamed.get(n, n) for n in names))
        for node, names in writer.written
    ]


def _drop_unread(writer: ModelWriter, outputs: Sequence[str]) -> None:
    """Remove nodes that no output depends on."""
    read, kept = set(outputs), []
    for node in reversed(writer.nodes):
        if read.intersection(node.output):
            kept.append(node)
            read.update(node.input)
    writer.nodes[:] = kept[::-1]
    there = {o for n in kept for o in n.output}
    writer.written[:] = [
        (node, tuple(n if n in there else None for n in names)) for node, names in writer.written
    ]


def _model(
    program: _Exportable,
    writer: ModelWriter,
    graphs: Sequence[Graph],
    outputs: Sequence[str],
    labels: Mapping[tuple[int, ...], str],
) -> onnx.ModelProto:
    def info(name: str, values: Sequence[Value]) -> onnx.ValueInfoProto:
        shape = free_shape([v.shape for v in values], labels)
        return helper.make_tensor_value_info(name, code_of(values[0].dtype), shape)

    count = len(program.held)
    inputs = list(zip(*(g.inputs[count:] for g in graphs), strict=True))
    results = list(zip(*(g.outputs for g in graphs), strict=True))
    read = {i for n in writer.nodes for i in n.input}
    kept = {n: a for n, a in writer.initializers.items() if n in read or n in program.held}
    graph = helper.make_graph(
        writer.nodes,
        program.name,
        [info(n, v) for n, v in zip(program.inputs, inputs, strict=True)],
        [info(n, v) for n, v in zip(outputs, results, strict=True)],
        [tensor_proto(n, a) for n, a in kept.items()],
    )
    opsets = [helper.make_opsetid("", writer.opset)]
    return helper.make_model(
        graph,
        opset_imports=opsets,
        ir_version=helper.find_min_ir_version_for(opsets),
        producer_name="lamina",
        producer_version=__version__,
    )


def _save(model: onnx.ModelProto, path: str | Path | None, external: bool | None) -> Path | None:
    """Write the model; returns the path if its weights are in another file, so that it can only be read
    from there."""
    large = sum(len(t.raw_data) for t in model.graph.initializer) > LIMIT
    if path is None:
        if large or external:
            raise ValueError("to_onnx: weights in a file of their own need path=, where the model is written")
        return None
    target = Path(path)
    if not (large if external is None else external):
        onnx.save_model(model, str(target))
        return None
    data = target.with_name(target.name + ".data")
    data.unlink(missing_ok=True)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save_model(copy, str(target), save_as_external_data=True, location=data.name, size_threshold=1024)
    return target
