"""The model being written: names, initializers, nodes; and the tables of export functions.

An op is handled in one of three ways, each registered in the module of its family:

    @exports(Conv)             a function of an `OpExport`: adds ONNX operators, returns the names of the results
    @composes(RmsNorm)         a function of (op, *values): returns the same results by other ops
    refuses({CtcLoss: "..."})  why it cannot be written

Other ops are written by their own decomposition (`Op.composed`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lamina.convert.sizes import (
    Dim,
    Power,
    band,
    counted,
    ends,
    expression,
    filled,
    grid,
    powers,
    repeated,
    two_values,
)
from lamina.graph import Graph, Node, Value
from lamina.ops.core import Op
from lamina.spec import DType, Shape, Spec
from lamina.spec.policies import policy as use_policy
from lamina.tensors import Tensor

Array = np.ndarray[Any, Any]
#: Names of the results; None for an unwritten one.
Written = str | Sequence[str | None]
Writer = Callable[["OpExport"], Written]
#: (op, *values) -> its results by other ops; unneeded trailing ones may be left out.
Form = Callable[..., Any]
W = TypeVar("W", bound=Callable[..., Any])

WRITERS: dict[type[Op], Writer] = {}
FORMS: dict[type[Op], Form] = {}
REFUSED: dict[type[Op], str] = {}

#: Lamina's element types whose TensorProto.DataType name is not simply their name in capitals.
_CODES = {"float32": "FLOAT", "float64": "DOUBLE", "float8_e4m3fn": "FLOAT8E4M3FN"}
#: Equal constants of at most this many elements are shared.
_SHARED = 1 << 12
#: The end of any axis, for Slice.
END = 2**63 - 1


class ExportError(ValueError):
    """A part of a graph that an ONNX model cannot express; names the op and the module that recorded it."""


class UnknownSizeError(ExportError):
    """A number or a constant that depends on a free axis in a way that no formula of sizes gives."""


def exports(*ops: type[Op]) -> Callable[[W], W]:
    """Registers the decorated function, of an `OpExport`, as the writer of these ops."""
    return lambda writer: _enter(WRITERS, ops, writer)


def composes(*ops: type[Op]) -> Callable[[W], W]:
    """Registers the decorated function (op, *values), which returns the results of these ops by other ops."""
    return lambda form: _enter(FORMS, ops, form)


def refuses(reasons: Mapping[type[Op], str]) -> None:
    """Register ops that cannot be written, including all that derive from them, with the reason."""
    REFUSED.update(reasons)


def _enter(table: dict[type[Op], Any], ops: Iterable[type[Op]], function: W) -> W:
    table.update(dict.fromkeys(ops, function))
    return function


def refusal(op: type[Op]) -> str | None:
    """The reason why the op, or one that it derives from, cannot be written."""
    return next((REFUSED[base] for base in op.__mro__ if base in REFUSED), None)


def how(op: type[Op]) -> str:
    """ "exported", "composed", or why the op is refused."""
    if op in WRITERS:
        return "exported"
    if op in FORMS:
        return "composed"
    if (reason := refusal(op)) is not None:
        return reason
    if op.composed is not Op.composed:
        return "composed"
    return "it belongs to training, which a model of ONNX does not hold"


def code_of(dtype: DType) -> int:
    """The TensorProto.DataType of an element type."""
    return int(TensorProto.DataType.Value(_CODES.get(dtype.name, dtype.name.upper())))


class ModelWriter:
    """Nodes and initializers, in the order of writing; names are unique.

    opset: the version of ONNX's own operators. free: the free axes of the model's inputs.
    written: for each op of the graph that has results in the model, its node and their names.
    """

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, Array] = {}
        self.free: list[Dim] = []
        self.written: list[tuple[Node, tuple[str | None, ...]]] = []
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}
        self._shared: dict[Any, str] = {}
        self._sizes: dict[tuple[int, ...], str] = {}
        self._constants: dict[Value, str] = {}

    # ---- names and constants
    def claim(self, name: str) -> str:
        """The name, with a numeric suffix if it is taken."""
        found = name
        while found in self._taken:
            self._counts[name] = self._counts.get(name, 0) + 1
            found = f"{name}_{self._counts[name]}"
        self._taken.add(found)
        return found

    def initializer(self, name: str, array: Array) -> str:
        """Add an array under its own name."""
        self.initializers[self.claim(name)] = array
        return name

    def constant(self, array: Any, hint: str = "constant") -> str:
        """The name of an initializer with these elements."""
        array = np.asarray(array)
        key = (array.shape, str(array.dtype), array.tobytes()) if array.size <= _SHARED else None
        if key is not None and key in self._shared:
            return self._shared[key]
        name = self.claim(hint)
        self.initializers[name] = array
        if key is not None:
            self._shared[key] = name
        return name

    def add(
        self,
        operator: str,
        inputs: Sequence[str],
        count: int = 1,
        hint: str = "",
        scope: str = "",
        **attributes: Any,
    ) -> tuple[str, ...]:
        """Add a node and return the names of its outputs. Attributes that are None are left out."""
        outputs = tuple(self.claim(hint or operator.lower()) for _ in range(count))
        given = {k: v for k, v in attributes.items() if v is not None}
        name = self.claim(f"{scope}/{operator}" if scope else operator)
        self.nodes.append(helper.make_node(operator, list(inputs), list(outputs), name, **given))
        return outputs

    # ---- sizes that depend on free axes
    def size(self, numbers: tuple[int, ...], near: Sequence[Dim]) -> str | None:
        """The name of an int64[1] with these values in the traces; None if they are no function of known sizes."""
        if len(set(numbers)) == 1:
            return self.constant(np.array([numbers[0]], np.int64))
        if numbers not in self._sizes:
            found = expression(numbers, [*near, *self.free])
            if found is None:
                return None
            self._sizes[numbers] = found.written(self._dim, self._arithmetic)
        return self._sizes[numbers]

    def _dim(self, dim: Dim) -> str:
        return self.add("Shape", [dim.name], start=dim.axis, end=dim.axis + 1, hint="size")[0]

    def _arithmetic(self, operator: str, a: str, b: str | int) -> str:
        other = self.constant(np.array([b], np.int64)) if isinstance(b, int) else b
        return self.add(operator, [a, other], hint="size")[0]

    # ---- graphs
    def write(self, graphs: Sequence[Graph], names: Sequence[str], scope: str | None = None) -> list[str]:
        """Write graphs that are equal except for sizes, on values of these names; returns the names of the outputs.

        scope: the module recorded for all nodes; by default each one's own.
        """
        found = dict(zip(graphs[0].inputs, names, strict=True))
        uses = graphs[0].uses()
        for nodes in zip(*(g.nodes for g in graphs), strict=True):
            inputs = [self._operand(found, values) for values in zip(*(n.inputs for n in nodes), strict=True)]
            wanted = tuple(bool(uses[v]) for v in nodes[0].outputs)
            step = OpExport(
                self, nodes, tuple(inputs), wanted, nodes[0].origin.module if scope is None else scope
            )
            results = step.written()
            found.update({v: r for v, r in zip(nodes[0].outputs, results, strict=False) if r is not None})
            if scope is None:
                self.written.append((nodes[0], tuple(results)))
        return [self._operand(found, values) for values in zip(*(g.outputs for g in graphs), strict=True)]

    def _operand(self, found: Mapping[Value, str], values: Sequence[Value]) -> str:
        first = values[0]
        if first in found:
            return found[first]
        if first not in self._constants:
            self._constants[first] = self._constant([_array(v) for v in values])
        return self._constants[first]

    def _constant(self, arrays: Sequence[Array]) -> str:
        first = arrays[0]
        if all(a.shape == first.shape and a.tobytes() == first.tobytes() for a in arrays[1:]):
            return self.constant(first)
        found = self._computed(arrays)
        if found is None:
            raise UnknownSizeError(
                f"a constant of shape {first.shape} depends on a free axis, and is no number, range, grid, band of "
                "diagonals, or repeated part that sizes give: compute it from the inputs with ops, or leave the axis "
                "fixed"
            )
        return found

    def _computed(self, arrays: Sequence[Array]) -> str | None:
        """A constant that sizes give, by the first formula that fits; None if there is none."""
        if not arrays[0].ndim:
            return self._power(arrays)
        ways = (
            self._filled,
            self._repeated,
            self._counted,
            self._grid,
            self._band,
            self._two_values,
            self._ends,
        )
        return next((found for way in ways if (found := way(arrays)) is not None), None)

    def shape(self, shapes: Sequence[Shape], near: Sequence[Dim] = ()) -> str | None:
        """The name of an int64[rank] with these sizes in each trace; None if one is no function of known sizes."""
        columns = list(zip(*shapes, strict=True))
        if all(len(set(c)) == 1 for c in columns):
            return self.constant(np.array(shapes[0], np.int64))
        parts = [self.size(c, near) for c in columns]
        if any(p is None for p in parts):
            return None
        return self.add("Concat", [p for p in parts if p], axis=0, hint="shape")[0]

    def _filled(self, arrays: Sequence[Array]) -> str | None:
        """One number everywhere."""
        number = filled(arrays)
        shape = None if number is None else self.shape([a.shape for a in arrays])
        return shape and self.add("Expand", [self.constant(number), shape])[0]

    def _repeated(self, arrays: Sequence[Array]) -> str | None:
        """A part repeated along free axes."""
        part = repeated(arrays) if arrays[0].ndim else None
        shape = None if part is None else self.shape([a.shape for a in arrays])
        return shape and self.add("Expand", [self.constant(part), shape])[0]

    def _counted(self, arrays: Sequence[Array]) -> str | None:
        """first, first + step, … along one axis."""
        how, first = counted(arrays), arrays[0]
        size = None if how is None else self.size(tuple(a.size for a in arrays), ())
        if how is None or size is None:
            return None
        found = self._range(size)
        if first.dtype != np.int64:
            found = self.add("Cast", [found], to=helper.np_dtype_to_tensor_dtype(first.dtype))[0]
        if how.step != 1:
            found = self.add("Mul", [found, self.constant(np.asarray(how.step, first.dtype))])[0]
        if how.first != 0:
            found = self.add("Add", [found, self.constant(np.asarray(how.first, first.dtype))])[0]
        shape = np.array([-1 if i == how.axis else 1 for i in range(first.ndim)], np.int64)
        return found if first.ndim == 1 else self.add("Reshape", [found, self.constant(shape)])[0]

    def _range(self, size: str) -> str:
        """0, 1, … of an int64[1]."""
        end = self.add("Squeeze", [size], hint="size")[0]
        zero, one = (self.constant(np.array(n, np.int64)) for n in (0, 1))
        return self.add("Range", [zero, end, one])[0]

    def _power(self, arrays: Sequence[Array]) -> str | None:
        """A scalar: a size, a fraction of it, a reciprocal or a root."""
        for how in powers(arrays):
            if (size := self.size(how.numbers, ())) is not None:
                return self._powered(how, self.add("Squeeze", [size], hint="size")[0], arrays[0].dtype)
        return None

    def _powered(self, how: Power, found: str, dtype: np.dtype[Any]) -> str:
        """(a whole number / divisor) ** exponent + offset, in float32 for smaller types."""
        if dtype.kind in "iu":
            return self._cast(found, dtype)
        wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
        found = self._cast(found, wide)
        for operator, number, nothing in (
            ("Div", how.divisor, 1),
            ("Pow", how.exponent, 1),
            ("Add", how.offset, 0),
        ):
            if number != nothing:
                found = self.add(operator, [found, self.constant(np.asarray(number, wide))])[0]
        return found if dtype == wide else self._cast(found, dtype)

    def _cast(self, found: str, dtype: np.dtype[Any]) -> str:
        if dtype == np.int64:
            return found
        return self.add("Cast", [found], to=helper.np_dtype_to_tensor_dtype(dtype))[0]

    def _grid(self, arrays: Sequence[Array]) -> str | None:
        """Arithmetic progressions along several axes, or with steps that depend on sizes."""
        how, rank = grid(arrays), arrays[0].ndim
        shape = None if how is None else self.shape([a.shape for a in arrays])
        if how is None or shape is None:
            return None
        found = self._number(how.first)
        for axis, step in enumerate(how.steps):
            if step is None or found is None:
                continue
            size, rate = self.size(tuple(a.shape[axis] for a in arrays), ()), self._number(step)
            if size is None or rate is None:
                return None
            places = self._cast(self._range(size), arrays[0].dtype)
            lie = self.constant(np.array([-1 if i == axis else 1 for i in range(rank)], np.int64))
            part = self.add("Mul", [self.add("Reshape", [places, lie])[0], rate])[0]
            found = self.add("Add", [found, part])[0]
        return found and self.add("Expand", [found, shape])[0]

    def _number(self, arrays: Sequence[Array]) -> str | None:
        """A scalar that may depend on sizes."""
        same = all(a == arrays[0] for a in arrays)
        return self.constant(arrays[0]) if same else self._power(arrays)

    def _band(self, arrays: Sequence[Array]) -> str | None:
        """Booleans that are true (or false) on a band of diagonals of the last two axes."""
        how, inverse = band(arrays), False
        if how is None:
            how, inverse = band([~a for a in arrays] if arrays[0].dtype == np.bool_ else arrays), True
        shape = None if how is None else self.shape([a.shape for a in arrays])
        if how is None or shape is None:
            return None
        found = self.add("Expand", [self.constant(np.array(True)), shape])[0]
        for bound, upper in ((how.low, 1), (how.high, 0)):
            if bound is not None:
                found = self.add("Trilu", [found, self.constant(np.array(bound, np.int64))], upper=upper)[0]
        return self.add("Not", [found])[0] if inverse else found

    def _two_values(self, arrays: Sequence[Array]) -> str | None:
        """Two numbers, where a mask is true and elsewhere."""
        how = two_values(arrays)
        mask = None if how is None else self._computed(how.masks)
        if how is None or mask is None:
            return None
        return self.add("Where", [mask, self.constant(how.there), self.constant(how.elsewhere)])[0]

    def _ends(self, arrays: Sequence[Array]) -> str | None:
        """A slice that is repeated, with other ones at the ends."""
        how = ends(arrays)
        if how is None:
            return None
        fixed = how.head.shape[how.axis] + how.tail.shape[how.axis]
        shapes = [(*a.shape[: how.axis], a.shape[how.axis] - fixed, *a.shape[how.axis + 1 :]) for a in arrays]
        if (shape := self.shape(shapes)) is None:
            return None
        parts = [self.add("Expand", [self.constant(how.middle), shape])[0]]
        if how.head.size:
            parts.insert(0, self.constant(how.head))
        if how.tail.size:
            parts.append(self.constant(how.tail))
        return self.add("Concat", parts, axis=how.axis)[0]


def _array(value: Value) -> Array:
    assert value.constant is not None
    return np.asarray(value.constant.numpy())


@dataclass(eq=False)
class OpExport:
    """One op that is being written.

    nodes: its node in each trace, the first at the examples' sizes. inputs: the names of its operands.
    wanted: which of its results are read. scope: the path of the module that recorded it.
    """

    writer: ModelWriter
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    wanted: tuple[bool, ...]
    scope: str
    #: Whether the writer accessed values that differ between the traces.
    sized: bool = field(default=False)

    @property
    def op(self) -> Any:
        """The op, at the examples' sizes."""
        return self.nodes[0].op

    @property
    def specs(self) -> tuple[Spec, ...]:
        """Its operands."""
        return tuple(v.spec for v in self.nodes[0].inputs)

    @property
    def results(self) -> tuple[Spec, ...]:
        """Its results."""
        return tuple(v.spec for v in self.nodes[0].outputs)

    @property
    def opset(self) -> int:
        """The version of ONNX's operators."""
        return self.writer.opset

    @property
    def dtype(self) -> DType:
        """The element type of the first operand."""
        return self.specs[0].dtype

    def error(self, text: str) -> ExportError:
        """The exception to raise: the text prefixed with the op and its module."""
        where = f" of module {self.scope!r}" if self.scope else ""
        return ExportError(f"{self.op}{where}: {text}")

    # ---- writing
    def written(self) -> list[str | None]:
        """Write the op; returns the names of its results. Raises ExportError."""
        kind = type(self.op)
        if kind in WRITERS:
            found = WRITERS[kind](self)
            if not self.sized and any(n.op != self.op for n in self.nodes[1:]):
                raise self.error("its attributes depend on a free axis: give the axis a fixed size")
        elif (reason := refusal(kind)) is not None:
            raise self.error(f"ONNX has no counterpart: {reason}")
        else:
            found = self.composed(FORMS.get(kind, kind.composed))
        return [found] if isinstance(found, str) else list(found)

    def composed(self, form: Form) -> list[str]:
        """The results by other ops, which are written in its place."""
        graphs = []
        for node in self.nodes:
            values = [v if v.constant is not None else Value(v.spec) for v in node.inputs]
            with use_policy(node.policy):
                found = form(node.op, *values)
            if found is None:
                raise self.error(f"ONNX has no counterpart: {how(type(node.op))}")
            found = list(found) if isinstance(found, (tuple, list)) else [found]
            inputs = [v for v in values if v.constant is None]
            results = [v if isinstance(v, Value) else _value(v) for v in found]
            graphs.append(Graph(inputs, results, node.op.name).unmarked())
        if len({len(g.nodes) for g in graphs}) > 1:
            raise self.error(
                "it is composed of other ops for each size of a free axis: give the axis a fixed size"
            )
        names = [n for n, v in zip(self.inputs, self.nodes[0].inputs, strict=True) if v.constant is None]
        return self.writer.write(graphs, names, self.scope)

    def add(self, operator: str, *inputs: str | None, **attributes: Any) -> str:
        """Add a node with one output; inputs that are None are left out."""
        return self.add_several(operator, 1, *inputs, **attributes)[0]

    def add_several(
        self, operator: str, count: int, *inputs: str | None, **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with several outputs."""
        given = [i or "" for i in inputs]
        while given and not given[-1]:
            given.pop()
        return self.writer.add(operator, given, count, self.op.name, self.scope, **attributes)

    def constant(self, values: Any, dtype: DType | None = None) -> str:
        """An initializer of numbers, by default in the first operand's type."""
        return self.writer.constant(np.asarray(values).astype((dtype or self.dtype).numpy))

    def ints(self, *values: int) -> str:
        """An initializer int64[n]."""
        return self.writer.constant(np.array(values, np.int64))

    def cast(self, name: str, dtype: DType) -> str:
        """The value in another type."""
        return self.add("Cast", name, to=code_of(dtype))

    def reshaped(self, name: str, *sizes: int) -> str:
        """The value in another shape: -1 is inferred, 0 keeps the input's size."""
        return self.add("Reshape", name, self.ints(*sizes))

    # ---- sizes that depend on free axes
    @property
    def near(self) -> list[Dim]:
        """The sizes of the operands that depend on free axes."""
        found = []
        for i, name in enumerate(self.inputs):
            shapes = [n.inputs[i].shape for n in self.nodes]
            found += [Dim(name, a, s) for a, s in enumerate(zip(*shapes, strict=True)) if len(set(s)) > 1]
        return found

    def varies(self, get: Callable[[Any], Any]) -> bool:
        """Whether any part of the node depends on a free axis."""
        return any(get(n) != get(self.nodes[0]) for n in self.nodes[1:])

    def sizes(self, get: Callable[[Any], Sequence[int]]) -> str:
        """An int64[n] of numbers that may depend on free axes. Raises ExportError if they cannot be computed from
        known sizes.
        """
        self.sized = True
        numbers = [tuple(get(n)) for n in self.nodes]
        found = self.writer.shape(numbers, self.near)
        if found is None:
            text = f"{numbers[0]} is no known function of a free axis: give the axis a fixed size"
            raise UnknownSizeError(str(self.error(text)))
        return found


def _value(x: Any) -> Value:
    if not isinstance(x, Tensor):
        raise TypeError(f"a form of an op gives values, got {type(x).__name__}")
    return Value(x.spec, constant=x)


def tensor_proto(name: str, array: Array) -> onnx.TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
