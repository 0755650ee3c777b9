"""A graph of torch.fx as a graph of Lamina's ops, with the gradients that PyTorch's autograd will request."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lamina import ops
from lamina.convert.torch.interpreter import FxProgram
from lamina.convert.torch.memory import spec_of
from lamina.graph import Graph, Value, constant
from lamina.graph.ir.autodiff import gradients_or_none
from lamina.graph.ir.capture import Capture
from lamina.graph.ir.graph import reachable
from lamina.graph.passes.idioms import with_idioms
from lamina.nn.random import default_generator
from lamina.ops.core import recording
from lamina.ops.primitives.marker import CustomGradient, StopGradient
from lamina.tensors import Tensor


@dataclass(frozen=True)
class RecordedGraph:
    """A graph of both passes, and the meaning of its inputs and outputs in PyTorch.

    graph: inputs: the tensors among the arguments, possibly a random generator's state, the incoming gradients.
        Outputs: results, new values of written arguments, gradients.
    random: the number of generator states among the inputs (0 or 1). results: how many results are tensors.
    written: the indices of the written arguments. arriving: the results with an incoming gradient, in order.
    wanted: the arguments with an outgoing gradient, in order: those that need one and on which such a result depends.
    """

    graph: Graph
    tensors: int
    random: int
    results: int
    written: tuple[int, ...]
    arriving: tuple[int, ...]
    wanted: tuple[int, ...]

    @property
    def early(self) -> int:
        """The number of the forward pass's outputs."""
        return self.results + len(self.written)

    @property
    def overwritten(self) -> list[int]:
        """The written arguments whose old values the gradients depend on."""
        nodes, read = reachable(self.graph.outputs[self.early :]), set(self.graph.outputs[self.early :])
        used = read.union(*(n.inputs for n in nodes))
        for node in nodes:
            for i, v in enumerate(node.inputs):
                only = node.op.alone.get(i)
                if only is None or node.outputs[only] in used:
                    read.add(v)
        return [i for i in self.written if self.graph.inputs[i] in read]

    def unmoved(self, missing: Collection[int]) -> set[int]:
        """The numbers of the outgoing gradients that depend on no incoming gradient, except the `missing` ones."""
        found = {self.graph.inputs[i] for k, i in enumerate(self.late) if k not in missing}
        leaving = self.graph.outputs[self.early :]
        for node in reachable(leaving):
            if any(v in found for v in node.inputs):
                found.update(node.outputs)
        return {k for k, v in enumerate(leaving) if v not in found}

    @property
    def late(self) -> range:
        """The inputs that only the backward pass has."""
        return range(self.tensors + self.random, len(self.graph.inputs))


def record(
    program: FxProgram,
    args: Sequence[Any],
    results: Sequence[int],
    needs_gradient: Sequence[bool],
) -> RecordedGraph:
    """Record a program for arguments of these shapes, dtypes and numbers, and differentiate it.

    args: PyTorch's tensors, of which only shape and dtype are used, and numbers; the attributes of the graph's module
        come last. results: which of the graph's outputs to return. needs_gradient: whether each tensor among the
        arguments needs one; results that depend on these have an incoming gradient.

    Raises TorchConversionError, and the errors of ops for unsupported operands.
    """
    places = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor)]
    values = {i: Value(spec_of(args[i]), name=f"input{i}") for i in places}
    given = [values.get(i, x) for i, x in enumerate(args)]
    plain = len(program.inputs)
    capture = _GraphCapture()
    with recording(capture):
        found = program(*given[:plain], attributes=dict(zip(program.attributes, given[plain:], strict=True)))
        every = _flat(found.outputs)
        outputs = [capture.read(every[i]) for i in results]
    names = [*program.inputs, *program.attributes]
    changed = {names.index(n): capture.read(v) for n, v in found.changed.items()}
    written = {i: v for i, v in changed.items() if v is not values[i]}
    states, outputs = _states(capture), [y if isinstance(y, Value) else constant(y) for y in outputs]
    made = with_idioms([*outputs, *written.values()])  # their gradients keep and move less data
    outputs, written = made[: len(outputs)], dict(zip(written, made[len(outputs) :], strict=True))
    wrt = [values[i] for i, needs in zip(places, needs_gradient, strict=True) if needs]
    arriving, pulled, grads = _pulled_back(outputs, wrt)
    wanted = tuple(n for n, i in enumerate(places) if pulled.get(values[i]) is not None)
    inputs = [*values.values(), *states, *(grads if wanted else [])]
    leaving = [pulled[values[places[n]]] for n in wanted]
    own = [v for v in (*outputs, *written.values(), *leaving) if v is not None]
    order = {i: n for n, i in enumerate(places)}
    return RecordedGraph(
        Graph(inputs, own, "torch"),
        len(places),
        len(states),
        len(outputs),
        tuple(order[i] for i in written),
        tuple(arriving) if wanted else (),
        wanted,
    )


def derivative(recorded: RecordedGraph, needs_gradient: Sequence[bool]) -> RecordedGraph:
    """The backward pass of a recorded graph as a graph with its own backward pass.

    Its arguments are the graph's tensors and the random generator's state, as the forward pass found them, and the
    incoming gradients; its results the outgoing gradients. needs_gradient: whether each of the incoming gradients
    needs one; of the tensors those do that had one.

    Raises the errors of ops without a second derivative.
    """
    graph = recorded.graph
    inputs, outputs = list(graph.inputs), list(graph.outputs[recorded.early :])
    wrt = [inputs[n] for n in recorded.wanted]
    wrt += [inputs[n] for n, needs in zip(recorded.late, needs_gradient, strict=True) if needs]
    return _differentiated(inputs, outputs, wrt)


def _differentiated(inputs: list[Value], outputs: list[Value], wrt: list[Value]) -> RecordedGraph:
    """The graph of outputs that are all results of inputs that are all arguments, and its gradients."""
    arriving, pulled, grads = _pulled_back(outputs, wrt)
    found = [pulled.get(x) for x in inputs]
    wanted = tuple(n for n, g in enumerate(found) if g is not None)
    leaving = [g for g in found if g is not None]
    return RecordedGraph(
        Graph([*inputs, *(grads if wanted else [])], [*outputs, *leaving], "torch"),
        len(inputs),
        0,
        len(outputs),
        (),
        tuple(arriving) if wanted else (),
        wanted,
    )


def _pulled_back(
    outputs: Sequence[Value], wrt: Sequence[Value]
) -> tuple[list[int], dict[Value, Value | None], list[Value]]:
    """(the outputs with an incoming gradient, the outgoing gradients by their arguments, the incoming ones).

    Inputs on which outputs depend only piecewise constantly (by rounding, the sign) have a gradient of zeros.
    """
    dependent = _dependent(outputs, wrt)
    arriving = [i for i, y in enumerate(outputs) if y in dependent]
    grads = [Value(outputs[i].spec, name=f"gradient{i}") for i in arriving]
    if not (wrt and arriving):
        return arriving, {}, grads
    made = dict(zip(wrt, gradients_or_none([outputs[i] for i in arriving], wrt, grads), strict=True))
    if any(g is None for g in made.values()):
        read = _read_by([outputs[i] for i in arriving])
        made = {x: ops.zeros_like(x) if g is None and x in read else g for x, g in made.items()}
    return arriving, made, grads


class _GraphCapture(Capture):
    """Tensors become constants of the graph, whose values may be read, except the generator's state."""

    def standing(self, x: Tensor) -> Value:
        """The traced value of a tensor at its first use."""
        return super().standing(x) if x is default_generator.state else Value(x.spec, constant=x)


def _states(capture: Capture) -> list[Value]:
    """The traced value of the random generator's state, if used."""
    found = capture.inputs.get(id(default_generator.state))
    return [] if found is None else [found]


def _flat(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _read_by(outputs: Sequence[Value]) -> set[Value]:
    """The floats from which the outputs are computed, not traversing declared constants and custom gradients."""
    found = set(outputs)
    for node in reversed(reachable(outputs)):
        if not isinstance(node.op, (StopGradient, CustomGradient)) and any(y in found for y in node.outputs):
            found |= {x for x in node.inputs if x.dtype.is_float}
    return found


def _dependent(outputs: Sequence[Value], wrt: Sequence[Value]) -> set[Value]:
    """The floats that depend on `wrt`, not traversing declared constants."""
    found = set(wrt)
    for node in reachable(outputs):
        if not isinstance(node.op, StopGradient) and any(v in found for v in node.inputs):
            found |= {y for y in node.outputs if y.dtype.is_float}
    return found
