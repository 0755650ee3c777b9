"""`OnnxGraph`: an interpreter that runs the nodes of a model in order, on any kind of operands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import onnx

from lamina import ops
from lamina.convert.onnx.body import Body, OnnxStep, body_of_function, body_of_graph, domain
from lamina.convert.onnx.folding import Folding
from lamina.convert.onnx.node import (
    HANDLERS,
    Absent,
    Mode,
    OnnxError,
    OnnxNode,
    OnnxSequence,
    OnnxTexts,
    is_text,
)
from lamina.convert.onnx.proto import External
from lamina.graph import Graph, constant, trace
from lamina.graph.ir.graph import Value
from lamina.ops.arguments import Checked, checked
from lamina.ops.core import recorder, recording
from lamina.ops.origin import Origin, current_origin, origin_is
from lamina.spec import Spec
from lamina.tensors import Tensor

#: The maximum numbers of nodes of subgraphs and functions, and of their runs, in one call: loops are unrolled,
#: functions inlined.
MOST_STEPS = 50_000
#: The maximum nesting of functions and subgraphs.
MOST_DEPTH = 64


class OnnxGraph(Checked):
    """A model: call it with its inputs by name, get its outputs by name.

    model: an onnx.ModelProto. Its initializers become tensors; an input of the same name replaces one.
    external: reads tensors that are stored in other files. Raises OnnxError for a model without a graph, and for
    element types that Lamina lacks; when called, for unsupported operators (`unknown_operators` lists them
    beforehand).
    """

    def __init__(self, model: onnx.ModelProto, external: External | None = None) -> None:
        self.body = body_of_graph(model.graph, external)
        self.functions = {
            (domain(f.domain), f.name): (body_of_function(f, external), _versions(f.opset_import))
            for f in model.functions
        }
        self.opsets = _versions(model.opset_import)
        self.initializers: dict[str, Any] = dict(self.body.initializers)
        self.inputs = tuple(n for n in self.body.inputs if n not in self.initializers)
        # Before version 4 of the format every initializer had to be among the inputs.
        optional = self.body.inputs if model.ir_version >= 4 else ()
        self.defaults = tuple(n for n in optional if n in self.initializers)
        self.outputs = self.body.outputs

    def unknown_operators(self) -> list[str]:
        """The operators of the graph, its subgraphs and functions that have no handler, each once, sorted; those of a
        domain other than ONNX's own as domain.operator."""
        known = HANDLERS | self.functions
        bodies = [self.body, *(body for body, _ in self.functions.values())]
        return sorted(
            {".".join(filter(None, s.key)) for b in bodies for s in _all_steps(b) if s.key not in known}
        )

    def __call__(
        self, inputs: Mapping[str, Any], *, weights: Mapping[str, Any] | None = None, mode: Mode | None = None
    ) -> dict[str, Any]:
        """The outputs by name.

        weights: replacements of initializers. mode: training or inference; by default as the nodes say.
        Raises OnnxError for an input that is missing or unknown, and the errors of handlers.
        """
        if missing := [n for n in self.inputs if n not in inputs]:
            raise OnnxError(f"the graph's inputs {missing} are not given; given are {list(inputs)}")
        if unknown := [n for n in inputs if n not in self.body.inputs]:
            raise OnnxError(f"{unknown} are no inputs of the graph, which has {sorted(self.body.inputs)}")
        values = {**self.initializers, **(weights or {})}
        values |= {n: _standing(x) for n, x in inputs.items()}
        found = _Call(self, mode or Mode()).run(self.body, values, self.opsets, {})
        return dict(zip(self.outputs, found, strict=True))

    @checked
    def trace(self, inputs: Mapping[str, Any]) -> Graph:
        """Record a graph of ops: inputs given as a `Spec` become its inputs, in that order; arrays and tensors are
        constants.
        """
        specs = {n: s for n, s in inputs.items() if isinstance(s, Spec)}
        constants = {n: x for n, x in inputs.items() if n not in specs}

        def program(*values: Any) -> list[Any]:
            found = self(constants | dict(zip(specs, values, strict=True)))
            return [found[n] for n in self.outputs]

        return trace(program, *specs.values(), names=list(specs))


class _Call:
    """One run of a graph, with counts against the limits."""

    def __init__(self, graph: OnnxGraph, mode: Mode) -> None:
        self.functions, self.mode = graph.functions, mode
        self.steps = self.depth = 0
        self.around = current_origin()

    def run(
        self, body: Body, values: dict[str, Any], opsets: Mapping[str, int], given: Mapping[str, Any]
    ) -> list[Any]:
        """The outputs of a body's nodes over named values, which it extends. given: a function's attributes."""
        with self._within():
            for step in body.steps:
                self._count(self.depth > 1)
                self._run_step(step, body, values, opsets, given)
        if missing := [n for n in body.outputs if n not in values]:
            raise OnnxError(f"no node makes the outputs {missing}")
        return [values[n] for n in body.outputs]

    @contextmanager
    def _within(self) -> Iterator[None]:
        self._count(True)
        self.depth += 1
        if self.depth > MOST_DEPTH:
            raise OnnxError(f"functions and subgraphs lie more than {MOST_DEPTH} deep in one another")
        try:
            yield
        finally:  # a branch that fails may be left out
            self.depth -= 1

    def _count(self, repeated: bool) -> None:
        """Count one more node; those of the graph itself are bounded by the file."""
        self.steps += repeated
        if self.steps > MOST_STEPS:
            raise OnnxError(f"loops and functions take more than {MOST_STEPS} nodes in one call")

    def _run_step(
        self,
        step: OnnxStep,
        body: Body,
        values: dict[str, Any],
        opsets: Mapping[str, int],
        given: Mapping[str, Any],
    ) -> None:
        """Run one node, adding its outputs to the values."""
        if missing := [n for n in step.inputs if n and n not in values]:
            raise OnnxError(f"{step}: no node before it makes its inputs {missing}")
        operands = tuple(values[n] if n else None for n in step.inputs)
        attributes = {**step.attributes, **{n: given[r] for n, r in step.references.items() if r in given}}
        if step.key in self.functions:
            found: Sequence[Any] = self._call(step, operands, attributes, opsets)
        else:
            found = self._apply(step, body, operands, attributes, values, opsets, given)
        for name, value in zip(step.outputs, found, strict=False):
            if name and value is not None:
                values[name] = value

    def _apply(
        self,
        step: OnnxStep,
        around: Body,
        operands: tuple[Any, ...],
        attributes: Mapping[str, Any],
        values: Mapping[str, Any],
        opsets: Mapping[str, int],
        given: Mapping[str, Any],
    ) -> Sequence[Any]:
        handler = HANDLERS.get(step.key)
        if handler is None:
            where = f" of the domain {step.domain}" if step.domain else ""
            raise OnnxError(f"{step}: the operator{where} has no handler")

        def run_body(body: Body, inputs: Sequence[Any]) -> list[Any]:
            if len(body.inputs) != len(inputs):
                raise OnnxError(f"{step}: its subgraph takes {len(body.inputs)} inputs, not {len(inputs)}")
            own = {**values, **body.initializers, **dict(zip(body.inputs, inputs, strict=True))}
            return self.run(body, own, opsets, given)

        folds = not step.bodies and all(x is None or isinstance(x, Tensor) for x in operands)
        if not folds and recorder() is not None:
            operands = tuple(constant(x) if isinstance(x, Tensor) else x for x in operands)
        node = OnnxNode(
            step.operator, step.name, opsets.get(step.domain, 1), attributes, operands, step.inputs, step.outputs,
            run_body, self.mode, values, step.declared, around.makers,
        )  # fmt: skip
        with _typed(step), origin_is(self._origin(step)):
            if not folds:
                return _as_outputs(handler(node))
            with recording(Folding()):
                return _as_outputs(handler(node))

    def _origin(self, step: OnnxStep) -> Origin:
        """The origin of a node's ops: its name in the model, or that of its first output."""
        name = step.name or next(filter(None, step.outputs), step.operator)
        return self.around._replace(module=".".join(filter(None, (self.around.module, name))))

    def _call(
        self,
        step: OnnxStep,
        operands: tuple[Any, ...],
        attributes: Mapping[str, Any],
        opsets: Mapping[str, int],
    ) -> list[Any]:
        """The outputs of one of the model's own functions, whose nodes may refer to the caller's attributes."""
        body, own = self.functions[step.key]
        values = dict.fromkeys(body.inputs) | dict(zip(body.inputs, operands, strict=False))
        return self.run(body, values, {**opsets, **own}, {**body.attributes, **attributes})


def _versions(imports: Any) -> dict[str, int]:
    return {domain(o.domain): o.version for o in imports}


def _all_steps(body: Body) -> Iterator[OnnxStep]:
    """The nodes of a body and of the subgraphs within it."""
    for step in body.steps:
        yield step
        for inner in step.bodies:
            yield from _all_steps(inner)


def _standing(x: Any) -> Any:
    """An input as an operand; if a function is recorded as a whole, the traced value of a closed-over tensor."""
    if isinstance(x, list):
        return OnnxSequence(_standing(y) for y in x)
    if x is None or isinstance(x, Absent | OnnxTexts):
        return Absent() if x is None else x
    if is_text(x):
        return OnnxTexts.of([str(word) for word in x.reshape(-1)], x.shape)
    found, by = ops.operand(x), recorder()
    return found if by is None or isinstance(found, Value) else by.read(found)


def _as_outputs(found: Any) -> Sequence[Any]:
    several = isinstance(found, (tuple, list)) and not isinstance(found, OnnxSequence)
    return found if several else (found,)


@contextmanager
def _typed(step: OnnxStep) -> Iterator[None]:
    """Errors caused by invalid values in a file become an OnnxError with the node; errors of ops get a note."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if not str(error).startswith(step.operator):
            error.add_note(f"in {step}")
        raise
    except (
        LookupError,
        ArithmeticError,
        AttributeError,
        AssertionError,
        RecursionError,
        MemoryError,
    ) as error:
        raise OnnxError(f"{step}: {type(error).__name__}: {error}") from error
