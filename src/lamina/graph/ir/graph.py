"""Values, nodes and graphs: the record of a program that runs on traced values.

A value knows the node that produces it, a node knows its inputs; a graph is a list of inputs, a list of
outputs and everything between them. There is no global graph: traces nest freely, and a graph never contains nodes
that no output needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from math import inf, nextafter
from operator import attrgetter, index
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

import numpy as np

from lamina.graph.ir.picture import picture
from lamina.ops.arguments import DTypeLike
from lamina.ops.core import (
    DeviceLike,
    Op,
    Operand,
    UnrecordedWriteError,
    bind,
    inferred,
    operand,
    recorder,
    recording,
)
from lamina.ops.destination import destination
from lamina.ops.operators import InPlace
from lamina.ops.origin import Origin, current_origin
from lamina.ops.primitives.marker import Clone, Marker, StopGradient
from lamina.ops.primitives.shape import Expand
from lamina.runtime import Device
from lamina.spec import DType, Policy, Shape, Spec, contiguous, current_policy
from lamina.spec.policies import policy as use_policy
from lamina.tensors import Tensor, as_constant, as_tensor

_serial = itertools.count()

T = TypeVar("T")


#: Size in bytes up to which a constant result is kept though it is larger than its inputs.
_LITTLE = 1 << 20
#: The device on which the traced program will run.
_place: ContextVar[Device | None] = ContextVar("lamina_traced_for", default=None)


@contextmanager
def traced_for(device: Device | None) -> Iterator[None]:
    """Within the block traced values report this device; with None, the device of the surrounding block."""
    token = _place.set(device or _place.get())
    try:
        yield
    finally:
        _place.reset(token)


class Value(InPlace["Value"]):
    """A traced value: an input of a graph, a constant, or one output of a node.

    spec: shape and dtype (the layout is chosen when the graph is compiled).
    node, index: the producer and which of its outputs this is; node is None for inputs and constants.
    constant: the tensor, for constants. known: the tensor, if the value is computed already (on an `EagerTape`).
    """

    __slots__ = ("_spec", "constant", "index", "known", "name", "node")
    bind_priority: ClassVar[int] = 2
    records: ClassVar[bool] = True

    def __init__(
        self,
        spec: Spec,
        *,
        node: Node | None = None,
        index: int = 0,
        constant: Tensor | None = None,
        name: str = "",
    ) -> None:
        self._spec = spec.open
        self.node = node
        self.index = index
        self.constant = constant
        self.known: Tensor | None = None
        self.name = name

    @property
    def spec(self) -> Spec:
        """Shape and dtype, layout open."""
        return self._spec

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._spec.dtype

    @property
    def device(self) -> Device:
        """Where the program will run, or where the computed values are; the CPU if neither is known
        (`lamina.trace`)."""
        return self.known.device if self.known is not None else _place.get() or Device("cpu")

    def to(
        self,
        *where: DeviceLike | DTypeLike | Operand | None,
        device: DeviceLike | str | None = None,
        dtype: DTypeLike | None = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Value:
        """Converted to another dtype. A program runs on one device: raises ValueError for a different one."""
        place, kind = destination(where, device, dtype)
        known = self.known is not None or _place.get() is not None
        wanted = place if place is None or isinstance(place, Device) else Device(place)
        if wanted is not None and known and wanted != self.device:
            raise ValueError(
                f"to: a traced value {self.spec} stays on {self.device}, where the whole program runs, got {place}; "
                "name that device where the program is made (lamina.train_step, lamina.jit, Predictor)"
            )
        return self if kind is None or kind == self.dtype else self.cast(kind)

    @property
    def is_input(self) -> bool:
        """Whether the value is an input of a graph."""
        return self.node is None and self.constant is None

    @classmethod
    def bind_op(cls, op: Op, operands: Sequence[Any]) -> tuple[Value, ...]:
        """Record op as a node; tensors, arrays and numbers among the operands become constants."""
        inputs = tuple(x if isinstance(x, Value) else constant(x) for x in operands)
        return Node(op, inputs, current_policy()).outputs

    @property
    def behind(self) -> Value:
        """The value itself, without markers."""
        value = self
        while value.node is not None and isinstance(value.node.op, Marker):
            value = value.node.op.passed(value.node.inputs)[value.index]
        return value

    @property
    def held(self) -> Tensor | None:
        """The tensor, if the value is computed already."""
        return self.known if self.constant is None else self.constant

    def __bool__(self) -> bool:
        return self._read(
            bool,
            "a traced value has no truth value: the program's branches must not depend on data; "
            "use ops.where, or compute the condition outside of the trace",
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        why = f"a traced value {self.spec} has no numbers yet; use lamina.ops inside a trace, not NumPy"
        return self._read(lambda x: x.__array__(*args, **kwargs), why)

    def __setitem__(self, key: Any, values: Any) -> None:
        """Overwrite the elements that a key selects (see `getitem`)."""
        self.copy_(self.at[key].set(values))

    def copy_(self, values: Any, non_blocking: bool = False) -> Value:
        """Overwrite the value from now on, and with it the value that it is a view of, and its own views.

        In the graph each state is a value of its own: nodes recorded before read the old one. Raises ShapeError
        for another shape, TypeError for an argument, which belongs to the caller.
        """
        self._recorder().write(self, values)
        return self

    def _take(self, values: Any) -> Any:
        """Overwrite this value, unseen by the caller if it is an argument."""
        self._recorder().write(self, values, within=True)
        return self

    def _recorder(self) -> Any:
        """The recorder of writes. Raises UnrecordedWriteError if there is none."""
        by = recorder()
        if by is None:
            raise UnrecordedWriteError(
                f"copy_: a value {self.spec} of a finished trace is not written any more; use the result of the "
                "method without the _, or x = x.at[key].set(values)"
            )
        return by

    def clone(self) -> Value:
        """A copy that later writes to this value do not change; gradients flow through."""
        by = recorder()
        return self if by is None else by.call_op(Clone(), [self])  # type: ignore[return-value]

    def contiguous(self) -> Value:
        """Itself; for a view that is not contiguous in its base, a value of its own."""
        lie = strides_within(self)
        rows = contiguous(self.shape).strides
        alone = lie is None or all(n == 1 or a == b for n, a, b in zip(self.shape, lie, rows, strict=True))
        return self if alone else self.clone()

    def _become(self, name: str, made: Any) -> Value:
        raise TypeError(
            f"{name}: a shape is settled when a function is traced; use the result, x = x.{name.removesuffix('_')}(…)"
        )

    def _read(self, take: Callable[[Tensor], T], why: str = "") -> T:
        """What is taken of the tensor. Its numbers are known, whatever is traced around it; raises TypeError if there
        are none before the graph runs."""
        found = self._number(why)
        with recording(None):
            return take(found)

    def _number(self, why: str) -> Tensor:
        by = recorder()
        found = numbers_of(self if by is None else by.read(self))  # type: ignore[arg-type]
        if found is None:
            raise TypeError(
                why
                or f"a traced value {self.spec} has no numbers yet: a Python number (item, float, int, an index, a "
                "format) cannot be made of it; go on with ops, or return it and convert the result"
            )
        return found

    def item(self) -> Any:
        """The value of one element as a Python number, if known. Raises TypeError otherwise."""
        return self._read(Tensor.item)

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers, if known. Raises TypeError otherwise."""
        return self._read(Tensor.tolist)

    def numpy(self, *, force: bool = False) -> Any:
        """The values as an array, if known. Raises TypeError otherwise."""
        return self._read(Tensor.numpy)

    def __float__(self) -> float:
        return self._read(float)

    def __int__(self) -> int:
        return self._read(int)

    def __index__(self) -> int:
        return self._read(index)

    def __format__(self, text: str) -> str:
        return self._read(lambda x: format(x, text)) if text else repr(self)

    def __repr__(self) -> str:
        origin = self.name or (self.node.op.name if self.node else "constant")
        return f"Value({origin}: {self.spec})"


class Node:
    """One application of an op: inputs, outputs, the policy then in force, and the origin.

    serial: nodes run in the order of their serials; a node that replaces another takes over its serial, or the next
    possible one after the producers of its inputs. specs: of the outputs; inferred if not given.
    origin: the module and the line that recorded it; a replacement inherits it.
    """

    __slots__ = ("inputs", "op", "origin", "outputs", "policy", "serial")

    def __init__(
        self,
        op: Op,
        inputs: Sequence[Value],
        policy: Policy,
        serial: float | None = None,
        specs: Sequence[Spec] | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.op = op
        self.origin = (current_origin() if serial is None else Origin()) if origin is None else origin
        self.inputs = tuple(inputs)
        self.policy = policy
        self.serial: float = next(_serial) if serial is None else _behind(self.inputs, serial)
        specs = inferred(op, *(v.spec for v in self.inputs)) if specs is None else specs
        self.outputs = tuple([Value(s, node=self, index=i) for i, s in enumerate(specs)])

    def with_inputs(self, inputs: tuple[Value, ...], op: Op | None = None) -> Node:
        """This node with other inputs (itself if nothing changes), at the same place in the order."""
        others = [(a._spec, b._spec) for a, b in zip(inputs, self.inputs, strict=True) if a is not b]
        if op is None and not others:
            return self
        same = op is None and all(a is b or a == b for a, b in others)
        specs = [v._spec for v in self.outputs] if same else None
        return Node(op or self.op, inputs, self.policy, self.serial, specs, self.origin)

    def __repr__(self) -> str:
        where = f" from {self.origin}" if str(self.origin) else ""
        return f"Node({self.op}, {', '.join(str(v.spec) for v in self.inputs)}{where})"


def _behind(inputs: Iterable[Value], serial: float) -> float:
    """The serial, or the next one after the producers of `inputs` if that is later."""
    last = max([v.node.serial for v in inputs if v.node is not None], default=-inf)
    return serial if last < serial else nextafter(last, inf)


def mark() -> float:
    """A position in the order of recording: nodes made from now on have higher serials."""
    return next(_serial)


def constant(x: Any) -> Value:
    """A constant of the graph from a tensor, an array or a number."""
    held = as_constant(x)
    return Value(held.spec, constant=held)


def strides_within(value: Value) -> Shape | None:
    """The strides of a view in its row-major base, as in torch; None for values that are no views, including
    reshapes that need a copy."""
    taken: list[Node] = []
    while (node := value.node) is not None and (node.op.takes_part or isinstance(node.op, StopGradient)):
        taken.append(node)
        value = node.inputs[0]
    lie: Shape | None = None
    for node in reversed(taken):
        shape = node.inputs[0].shape
        lie = contiguous(shape).strides if lie is None else lie
        lie = lie if isinstance(node.op, StopGradient) else node.op.strides_within(shape, lie)
    return lie


def computed(op: Op, operands: Sequence[Any]) -> tuple[Tensor, ...]:
    """All outputs of op on tensors, arrays and numbers, ignoring this thread's recorder."""
    if isinstance(op, Marker):
        return op.passed([as_tensor(x) for x in operands])
    return Tensor.bind_op(op, operands)


def tensor_of(value: Value) -> Tensor | None:
    """The numbers of a value, (re)computed if only its inputs are known; None if neither is."""
    stack = [value]
    while stack:
        node = stack[-1].node
        if stack[-1].held is not None:
            stack.pop()
        elif node is None:
            return None
        elif missing := [v for v in node.inputs if v.held is None]:
            stack += missing
        else:
            with use_policy(node.policy):
                found = computed(node.op, [v.held for v in node.inputs])
            for made, y in zip(node.outputs, found, strict=True):
                made.known = y
    return value.held


def numbers_of(value: Value) -> Tensor | None:
    """The numbers that a value has in every run: as `tensor_of`, and those computed from tensors that the recorded
    function makes itself and from shapes. None if they depend on other inputs."""
    if (known := tensor_of(value)) is not None:
        return known
    found, stack = dict[Value, Tensor](), [value]
    while stack:
        last, node = stack[-1], stack[-1].node
        if last in found:
            stack.pop()
        elif node is None or last.held is not None:
            if (known := last.held if last.held is not None else _numbers_in(last)) is None:
                return None
            found[last] = known
        elif missing := [v for v in node.inputs if node.op.reads_numbers and v not in found]:
            stack += missing
        else:
            given = [found[v] if node.op.reads_numbers else _stand_in(v) for v in node.inputs]
            with use_policy(node.policy), recording(None):
                found |= dict(zip(node.outputs, computed(node.op, given), strict=True))
    return found[value]


def _numbers_in(value: Value) -> Tensor | None:
    """The tensor of numbers that an input of the recording has in each call."""
    by = recorder()
    return None if by is None else cast("Tensor | None", by.numbers_in(value))


def _stand_in(value: Value) -> Tensor:
    """A tensor of a value's shape and dtype, for ops that read no more."""
    return as_tensor(np.broadcast_to(np.zeros((), value.dtype.numpy), value.shape))


class Use(NamedTuple):
    """A use of a value: the node (None for a graph output) and the operand's position."""

    node: Node | None
    position: int


class Graph:
    """Inputs, outputs, and the nodes between them in the order of recording.

    `str(graph)` is its readable form; `graph(*operands)` runs it on tensors or records it into another trace.
    """

    def __init__(self, inputs: Sequence[Value], outputs: Sequence[Value], name: str = "graph") -> None:
        self.name = name
        self.inputs = list(inputs)
        self.outputs = list(outputs)
        self.nodes = _between(self.inputs, self.outputs, name)

    @property
    def constants(self) -> list[Value]:
        """The constants read by nodes or outputs, each once, in order of first use."""
        seen: dict[Value, None] = {}
        for inputs in (*[node.inputs for node in self.nodes], self.outputs):
            for value in inputs:
                if value.constant is not None:
                    seen[value] = None
        return list(seen)

    def unmarked(self) -> Graph:
        """The graph without markers, which matter only for differentiation."""
        if not any(isinstance(node.op, Marker) for node in self.nodes):
            return self
        made: dict[Value, Value] = {}
        for node in self.nodes:
            inputs = tuple([made.get(v, v) for v in node.inputs])
            passed = isinstance(node.op, Marker) and node.op.passed(inputs)
            made.update(zip(node.outputs, passed or node.with_inputs(inputs).outputs, strict=True))
        return Graph(self.inputs, [made.get(v, v) for v in self.outputs], self.name)

    def unchanging(self, stays: Collection[Value] = ()) -> set[Value]:
        """The values that are the same in every run: constants, `stays`, and all that depends only on these."""
        found = {*self.constants, *stays}
        for node in self.nodes:
            if node.inputs and found.issuperset(node.inputs):
                found.update(node.outputs)
        return found

    def uses(self) -> dict[Value, list[Use]]:
        """The uses of each value."""
        found: dict[Value, list[Use]] = {v: [] for v in self.values()}
        for node in self.nodes:
            for i, value in enumerate(node.inputs):
                found[value].append(Use(node, i))
        for i, value in enumerate(self.outputs):
            found[value].append(Use(None, i))
        return found

    def values(self) -> Iterator[Value]:
        """Inputs, constants, then the outputs of the nodes in order."""
        yield from self.inputs
        yield from self.constants
        for node in self.nodes:
            yield from node.outputs

    def names(self) -> dict[Value, str]:
        """A name for each value: its own if it has one, else %0, %1, …"""
        count = itertools.count()
        taken: set[str] = set()
        names: dict[Value, str] = {}
        for value in self.values():
            name = value.name if value.name and value.name not in taken else str(next(count))
            taken.add(name)
            names[value] = "%" + name
        return names

    def __call__(self, *operands: Any) -> tuple[Any, ...]:
        """Apply the graph to operands: tensors are computed at once, traced values record its nodes."""
        if len(operands) != len(self.inputs):
            raise TypeError(f"{self.name} takes {len(self.inputs)} operands, got {len(operands)}")
        for value, x in zip(self.inputs, operands, strict=True):
            _check_operand(self.name, value, x)
        given = [operand(x) for x in operands]
        where = next((x.device for x in given if isinstance(x, Tensor)), None)
        found: dict[Value, Any] = dict(zip(self.inputs, given, strict=True))
        for value in self.constants:
            found[value] = value.constant.to(where) if value.constant is not None else None
        for node in self.nodes:
            with use_policy(node.policy):
                results = bind(node.op, *(found[v] for v in node.inputs))
            found.update(zip(node.outputs, results, strict=True))
        return tuple(found[v] for v in self.outputs)

    def __str__(self) -> str:
        names = self.names()
        lines = [f"{self.name}("]
        lines += [f"    {names[v]}: {v.spec}," for v in self.inputs]
        lines += ["):"]
        lines += [f"    {names[v]}: {v.spec} = {_constant_text(v)}" for v in self.constants]
        for node in self.nodes:
            made = ", ".join(f"{names[v]}: {v.spec}" for v in node.outputs)
            read = ", ".join(names[v] for v in node.inputs)
            where = f"  # {node.origin.module}" if node.origin.module else ""
            lines.append(f"    {made} = {node.op.name}({read}){_attributes(node.op)}{where}")
        lines.append(f"    return {', '.join(names[v] for v in self.outputs)}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Graph({self.name}: {len(self.inputs)} inputs, {len(self.nodes)} nodes, {len(self.outputs)} outputs)"

    def _repr_html_(self) -> str:
        """For notebooks: a picture, followed by the text."""
        return (
            f"<div><b>{escape(repr(self))}</b><br>{picture(self)}"
            f"<details><summary>text</summary><pre>{escape(str(self))}</pre></details></div>"
        )


def reachable(outputs: Iterable[Value]) -> list[Node]:
    """The nodes that outputs depend on, producers before consumers, in the order of recording."""
    found: dict[Node, None] = {}
    stack = [v.node for v in outputs if v.node]
    while stack:
        node = stack.pop()
        if node not in found:
            found[node] = None
            stack += [v.node for v in node.inputs if v.node]
    return sorted(found, key=attrgetter("serial"))


def is_made_once(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> bool:
    """Whether an op's result on run-invariant operands is computed once and kept: it is no larger than these, or
    small. An expanded value is read from its source.
    """
    if isinstance(op, Expand) or sum(s.nbytes for s in outputs) > _LITTLE:
        return sum(s.numel for s in outputs) <= sum(s.numel for s in inputs)
    return True


def _between(inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> list[Node]:
    nodes = reachable(outputs)
    known = set(inputs)
    for read in (*[node.inputs for node in nodes], outputs):
        for value in read:
            if value.node is None and value.constant is None and value not in known:
                raise ValueError(
                    f"{name} reads {value!r}, which is an input of another trace; pass it as an argument"
                )
    return nodes


def _check_operand(name: str, value: Value, x: Any) -> None:
    shape, dtype = (
        tuple(np.shape(x)) if not hasattr(x, "shape") else tuple(x.shape),
        getattr(x, "dtype", None),
    )
    if shape != value.shape:
        raise ValueError(f"{name}: input {value.name} has shape {value.shape}, got {shape}")
    if isinstance(x, Operand) and dtype != value.dtype:
        raise TypeError(f"{name}: input {value.name} is {value.dtype}, got {dtype}")


def _constant_text(value: Value) -> str:
    assert value.constant is not None
    if value.spec.numel > 8:
        return f"constant <{value.spec.numel} elements>"
    return f"constant {value.constant.numpy().tolist()}"


def _attributes(op: Op) -> str:
    text = str(op)[len(op.name) + 1 : -1]
    return f" {{{text}}}" if text else ""
