"""Lamina's graphs as graphs of torch.fx: each op becomes the PyTorch functions given by `functions`.

Traces at several sizes of the free axes are written in parallel, as for ONNX: a number that differs between them
becomes a formula of sizes of available tensors (`convert.sizes`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.fx.proxy import GraphAppendingTracer, Proxy

from lamina.convert.sizes import Dim, counted, expression, filled, repeated, triangle
from lamina.convert.torch.custom_gradient import with_rule
from lamina.convert.torch.functions.pointwise import OPERATORS
from lamina.convert.torch.functions.step import TorchStep, torch_dtype
from lamina.convert.torch.memory import torch_tensor
from lamina.convert.torch.node import TorchConversionError
from lamina.graph import Graph, Node, Value
from lamina.ops.primitives.marker import CustomGradient
from lamina.spec import as_dtype
from lamina.tensors import tensor

Array: TypeAlias = np.ndarray[Any, Any]
#: Size arithmetic on proxies; numbers come first where allowed.
_ARITHMETIC = {"Mul": operator.mul, "Div": operator.floordiv, "Add": operator.add}


class Constants:
    """Tensors that graphs read, deduplicated: by dtype, shape and elements."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._names: dict[Any, str] = {}

    def name(self, array: Any) -> str:
        """The name of the constant with these elements."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._names:
            self._names[key] = f"constant_{len(self.tensors)}"
            self.tensors[self._names[key]] = torch_tensor(tensor(array))
        return self._names[key]


class FxWriter:
    """One graph of torch.fx, whose inputs are states, inputs and constants by name.

    constants: the store of its constants. device: where new tensors are created.
    """

    def __init__(self, constants: Constants) -> None:
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self._placed_as: dict[torch.fx.Node, str] = {}
        self._tracer = GraphAppendingTracer(self.graph)
        self._constants = constants
        self._found: dict[Value, Any] = {}
        self._held: dict[str, Any] = {}
        self._sizes: dict[tuple[int, ...], Any] = {}
        self._free: list[Dim] = []
        self.device: Any = "cpu"

    def placeholder(self, name: str) -> Any:
        """An input of the graph."""
        own = "".join(c if c.isalnum() else "_" for c in name)
        taken = {n.target for n in self._placed_as}
        node = self.graph.placeholder(f"{own}_{len(taken)}" if own in taken else own)
        self._placed_as[node] = name
        return Proxy(node, self._tracer)

    @property
    def names(self) -> list[str]:
        """The names of the graph's inputs, in order."""
        return [self._placed_as[n] for n in self.graph.nodes if n.op == "placeholder"]

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call of a function that would not notice proxies by itself."""
        return self._tracer.create_proxy("call_function", function, args, kwargs)

    def write(self, graphs: Sequence[Graph], inputs: Sequence[Any], free: Sequence[Dim]) -> list[Any]:
        """Write graphs that are equal except for sizes, on their inputs' representations; returns those of the
        outputs.

        Raises TorchConversionError for an op without a PyTorch equivalent.
        """
        self._free = list(free)
        self._found.update(zip(graphs[0].inputs, inputs, strict=True))
        uses = graphs[0].uses()
        for nodes in zip(*(g.nodes for g in graphs), strict=True):
            wanted = tuple(bool(uses[v]) for v in nodes[0].outputs)
            results = self._written(nodes, wanted)
            self._found.update(zip(nodes[0].outputs, results, strict=False))
        return [self._operand(values) for values in zip(*(g.outputs for g in graphs), strict=True)]

    def module(self, outputs: Any) -> torch.fx.GraphModule:
        """The graph with these outputs, nested in tuples, as a module without tensors of its own."""
        self.graph.output(
            torch.fx.node.map_aggregate(outputs, lambda x: x.node if isinstance(x, Proxy) else x)
        )
        self.graph.eliminate_dead_code()
        self.graph.lint()
        return torch.fx.GraphModule(self.root, self.graph)

    # ---- ops
    def _written(self, nodes: tuple[Node, ...], wanted: tuple[bool, ...]) -> list[Any]:
        pairs = list(zip(*(n.inputs for n in nodes), strict=True))
        takes_numbers = type(nodes[0].op) in OPERATORS
        numbers = [_number(values) if takes_numbers else None for values in pairs]
        operands = [self._operand(v) if n is None else n for v, n in zip(pairs, numbers, strict=True)]
        if isinstance(nodes[0].op, CustomGradient):
            return self._custom(nodes, operands)
        near = _varying(operands, [n.inputs for n in nodes])
        step = TorchStep(
            nodes, wanted, lambda n: self._number(n, near), self.call, self._constant, self.device
        )
        return step.written(operands)

    def _custom(self, nodes: tuple[Node, ...], operands: Sequence[Any]) -> list[Any]:
        """Results with a custom gradient: an autograd function around the rule's graph."""
        op: Any = nodes[0].op
        rules: list[Graph] = []
        there: tuple[bool, ...] = ()
        for node in nodes:
            given = [Value(v.spec) for v in (*node.inputs[op.arguments + op.results :], *node.outputs)]
            rule: Any = node.op
            found = list(rule.rule(given[: -op.results], given[-op.results :]))
            rules.append(Graph(given, [g for g in found if g is not None], "rule"))
            there = tuple(g is not None for g in found)
        writer = FxWriter(self._constants)
        stands = [writer.placeholder(f"x{i}") for i in range(len(rules[0].inputs))]
        writer.device = stands[0].device
        gradients = iter(writer.write(rules, stands, _varying(stands, [r.inputs for r in rules])))
        module = writer.module(tuple(next(gradients) if own else None for own in there))
        name = f"rule_{len(self.root._modules)}"
        self.root.add_module(name, module)
        more = tuple(self._placed(n) for n in writer.names[len(stands) :])
        held = self._tracer.create_proxy("get_attr", name, (), {})
        results = self.call(with_rule, held, op.arguments, op.results, tuple(operands), more)
        return [results[i] for i in range(op.results)]

    # ---- operands and constants
    def _operand(self, values: Sequence[Value]) -> Any:
        first = values[0]
        if first not in self._found:
            self._found[first] = self._joined([_array(v) for v in values])
        return self._found[first]

    def _constant(self, array: Any) -> Any:
        return self._placed(self._constants.name(array))

    def _placed(self, name: str) -> Any:
        """The constant of this name, as an input of the graph, before all written nodes."""
        if name not in self._held:
            with self.graph.inserting_after(next(reversed(self._placed_as))):
                self._held[name] = self.placeholder(name)
        return self._held[name]

    def _joined(self, arrays: Sequence[Array]) -> Any:
        """A constant that may differ between traces. Raises TorchConversionError if it cannot be computed."""
        first = arrays[0]
        if all(a.shape == first.shape and a.tobytes() == first.tobytes() for a in arrays[1:]):
            return self._constant(first)
        found = self._computed(arrays)
        if found is None:
            raise TorchConversionError(
                f"to_torch: a constant of shape {first.shape} depends on a free axis, and is neither the same "
                "all along it, nor 0, 1, 2, …, nor a triangle of booleans: compute it from the inputs with ops, or "
                "leave the axis fixed"
            )
        return found

    def _computed(self, arrays: Sequence[Array]) -> Any:
        first = arrays[0]
        made = {"dtype": torch_dtype(as_dtype(first.dtype)), "device": self.device}
        if first.ndim == 0:
            return self._scalar(arrays, made)
        shape = [self._number(tuple(column), ()) for column in zip(*(a.shape for a in arrays), strict=True)]
        if any(n is None for n in shape):
            return None
        if (number := filled(arrays)) is not None:
            return self.call(torch.full, tuple(shape), number.item(), **made)
        if (part := repeated(arrays)) is not None:
            return self._constant(part).expand(tuple(shape))
        if (how := counted(arrays)) is not None:
            steps = self.call(torch.arange, shape[how.axis], **made) * how.step.item() + how.first.item()
            return steps.reshape([-1 if i == how.axis else 1 for i in range(first.ndim)])
        if (corner := triangle(arrays)) is not None:
            ones = self.call(torch.ones, tuple(shape), **made)
            return (torch.triu if corner.upper else torch.tril)(ones, corner.diagonal)
        return None

    def _scalar(self, arrays: Sequence[Array], made: Mapping[str, Any]) -> Any:
        """A number that is a size, or one divided by a size, as it is in each trace."""
        numbers = [float(a) for a in arrays]
        if all(n.is_integer() for n in numbers):
            size = self._number(tuple(map(int, numbers)), ())
            return None if size is None else self.call(torch.full, (), size, **made)
        whole = [round(1 / n) if n else 0 for n in numbers]
        if not all(n and np.asarray(1 / n, a.dtype) == a for n, a in zip(whole, arrays, strict=True)):
            return None
        size = self._number(tuple(whole), ())
        return None if size is None else 1 / self.call(torch.full, (), size, **made)

    # ---- sizes that depend on free axes
    def _number(self, numbers: tuple[int, ...], near: Sequence[Dim]) -> Any:
        """The representation of a number with these values in the traces; None if it is no function of
        known sizes."""
        if len(set(numbers)) == 1:
            return numbers[0]
        if numbers not in self._sizes:
            found = expression(numbers, [*near, *self._free])
            if found is None:
                return None
            self._sizes[numbers] = found.written(
                lambda dim: dim.name.size(dim.axis), lambda op, a, b: _ARITHMETIC[op](a, b)
            )
        return self._sizes[numbers]


def _varying(stands: Sequence[Any], values: Sequence[Sequence[Value]]) -> list[Dim]:
    """The sizes that differ between the traces. stands: the representation of each value, of which each trace has its
    own.
    """
    found = []
    for x, own in zip(stands, zip(*values, strict=True), strict=True):
        columns = enumerate(zip(*(v.shape for v in own), strict=True))
        found += [Dim(x, a, sizes) for a, sizes in columns if isinstance(x, Proxy) and len(set(sizes)) > 1]
    return found


def _number(values: Sequence[Value]) -> Any:
    """The scalar that a constant is in each trace; None if it is not one."""
    if any(v.constant is None or v.shape for v in values):
        return None
    found = {_array(v).item() for v in values}
    return found.pop() if len(found) == 1 else None


def _array(value: Value) -> Any:
    assert value.constant is not None
    return value.constant.numpy()
