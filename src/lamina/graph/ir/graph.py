"""Values, nodes and graphs: the record of a program that runs on traced values.

A value knows the node that produces it, a node knows its inputs; a graph is a list of inputs, a list of
outputs and everything between them. There is no global graph: traces nest freely, and a graph never contains nodes
that no output needs.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from html import escape
from math import inf, nextafter
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple
from weakref import ref

import numpy as np

from lamina._tree import flatten, unflatten
from lamina.graph.ir.picture import picture
from lamina.graph.ir.surroundings import (
    PLAIN,
    SettledGuard,
    is_advanced,
    is_carried,
    is_flag,
    is_kept,
    is_number,
    users_frame,
)
from lamina.ops.arguments import DTypeLike
from lamina.ops.core import DeviceLike, Op, Operand, bind, inferred, operand, recorder
from lamina.ops.destination import destination
from lamina.ops.operators import InPlace
from lamina.ops.origin import Origin, current_origin
from lamina.ops.part import TensorPart
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.collective import Exchange
from lamina.ops.primitives.marker import Alias, Clone, Marker, StopGradient, overwritten
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.shape import Expand
from lamina.runtime import Device
from lamina.spec import DType, Policy, Shape, ShapeError, Spec, contiguous, current_policy
from lamina.spec.policies import policy as use_policy
from lamina.tensors import Tensor, as_constant, as_tensor

_serial = itertools.count()


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
        return bool(
            self._number(
                "a traced value has no truth value: the program's branches must not depend on data; "
                "use ops.where, or compute the condition outside of the trace"
            )
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        why = f"a traced value {self.spec} has no numbers yet; use lamina.ops inside a trace, not NumPy"
        return self._number(why).__array__(*args, **kwargs)

    def __setitem__(self, key: Any, values: Any) -> None:
        """Overwrite the elements that a key selects (see `getitem`)."""
        self.copy_(self.at[key].set(values))

    def copy_(self, values: Any, non_blocking: bool = False) -> Value:
        """Overwrite the value from now on, and with it the value that it is a view of, and its own views.

        In the graph each state is a value of its own: nodes recorded before read the old one. Raises ShapeError
        for another shape, TypeError for an argument, which belongs to the caller, and within `lamina.trace`.
        """
        by = recorder()
        if by is None:
            raise TypeError(
                f"copy_: a value {self.spec} of lamina.trace is never written; use the result of the method without "
                "the _, or x = x.at[key].set(values), or lamina.jit"
            )
        by.write(self, values)
        return self

    def clone(self) -> Value:
        """A copy that later writes to this value do not change; gradients flow through."""
        by = recorder()
        return self if by is None else by.call_op(Clone(), [self])  # type: ignore[return-value]

    def contiguous(self) -> Value:
        """Itself; for a view that is not contiguous in its base, a value of its own."""
        lie = _strides_within(self)
        rows = contiguous(self.shape).strides
        alone = lie is None or all(n == 1 or a == b for n, a, b in zip(self.shape, lie, rows, strict=True))
        return self if alone else self.clone()

    def _become(self, name: str, made: Any) -> Value:
        raise TypeError(
            f"{name}: a shape is settled when a function is traced; use the result, x = x.{name.removesuffix('_')}(…)"
        )

    def _number(self, why: str = "") -> Tensor:
        """The tensor. Raises TypeError if there are no numbers before the graph runs."""
        by = recorder()
        found = tensor_of(self if by is None else by.read(self))  # type: ignore[arg-type]
        if found is None:
            raise TypeError(
                why
                or f"a traced value {self.spec} has no numbers yet: a Python number (item, float, int, an index, a "
                "format) cannot be made of it; go on with ops, or return it and convert the result"
            )
        return found

    def item(self) -> Any:
        """The value of one element as a Python number, if known. Raises TypeError otherwise."""
        return self._number().item()

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers, if known. Raises TypeError otherwise."""
        return self._number().tolist()

    def numpy(self) -> Any:
        """The values as an array, if known. Raises TypeError otherwise."""
        return self._number().numpy()

    def __float__(self) -> float:
        return float(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __index__(self) -> int:
        return self._number().__index__()

    def __format__(self, text: str) -> str:
        return format(self._number(), text) if text else repr(self)

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


class Capture:
    """Records a function with its side effects: tensors of its closure become inputs, its writes to them outputs.

    tensors: those read or written, in order of first use, by id; inputs: the value that stands for each.
    written: id -> its value after the function. guards: conditions beside the arguments under which the record holds.
    feeds: inputs that each call requests anew. finals: called at the end of each call.
    contents: the current values of overwritten values; holders: the inverse. Both start with the surrounding trace's.
    assigned: previous attributes of objects that the function assigned, by the object's id and the name.
    """

    lasts = True

    def __init__(self) -> None:
        self.tensors: dict[int, Tensor] = {}
        self.inputs: dict[int, Value] = {}
        self.written: dict[int, Value] = {}
        around = recorder()
        self.contents: dict[Value, Value] = dict(around.contents) if isinstance(around, Capture) else {}
        self.holders: dict[Value, Value] = dict(around.holders) if isinstance(around, Capture) else {}
        self.start = mark()
        self.guards: list[Callable[[], bool]] = []
        self.feeds: list[tuple[Value, Callable[[], Any]]] = []
        self.finals: list[Callable[[], None]] = []
        self.notes: dict[int, tuple[object, Any]] = {}  # by the owner's id
        self.assigned: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._exchanged: list[Value] = []

    def read(self, x: Any) -> Value:
        """The current value of an operand."""
        if isinstance(x, Value):
            return self._now(x) if self.contents else x
        if not isinstance(x, Tensor):
            return constant(x)
        if (part := self._part_of(x)) is not None:
            return part
        if id(x) in self.written:
            return self.written[id(x)]
        if id(x) not in self.inputs:
            self.tensors[id(x)] = x
            self.inputs[id(x)] = self.standing(x)
        return self.inputs[id(x)]

    def _part_of(self, x: Tensor) -> Value | None:
        """For a view of an existing tensor: the view of its current value. A write to either is seen in both."""
        return None if x._part is None or id(x) in self.inputs else self._taken(x._part)

    def _taken(self, part: TensorPart) -> Value | None:
        whole, parts = part.nearest()
        if whole is None:
            return None
        self.guard(parts[0].is_there)
        value = self.read(whole)
        for taken in parts:
            value = self.bind_op(taken.op, (value,))[0]
        return value

    def standing(self, x: Tensor) -> Value:
        """The value for a tensor at its first use."""
        return Value(x.spec, name=f"held{len(self.inputs)}")

    def write(self, target: Operand, values: Any) -> None:
        """Overwrite a tensor or a value from now on, converted to its dtype. Raises ShapeError, and
        TypeError for a value that belongs to the caller."""
        made = self.rewritten(target, values)
        part = self._part_of(target) if isinstance(target, Tensor) else target
        if isinstance(part, Value):
            self._overwrite(part, made)
        else:
            self.written[id(target)] = self.keep(self.inputs[id(target)], made)

    def _now(self, x: Value) -> Value:
        """The current value: with writes to it, or to the value that it is a view of, since it was recorded."""
        parts: list[Node] = []
        value = x
        while value not in self.contents:
            holder = self.holders.get(value)
            if holder is not None:
                if self.contents[holder] is value:
                    return x
                value = holder
            elif (node := value.node) is not None and _is_part(value):
                parts.append(node)
                value = node.inputs[0]
            else:
                return x
        found = self.contents[value]
        for node in reversed(parts):
            with use_policy(node.policy):
                found = self.bind_op(node.op, (found,))[0]
        return found

    def _overwrite(self, target: Value, made: Value) -> None:
        """Overwrite the value that this one is a view of, or itself."""
        value = self.holders.get(target, target)
        while value not in self.contents and _is_part(value):
            node = value.node
            assert node is not None
            whole = node.inputs[0]
            made = _put_back(node.op, made, self.read(whole))
            value = self.holders.get(whole, whole)
        self.replace(value, made)

    def replace(self, holder: Value, made: Value) -> None:
        """Overwrite a value that is no view. Raises TypeError unless the function owns it."""
        for key, standing in self.inputs.items():
            if standing is holder:
                self.tensors[key].copy_(made)
                return
        node = holder.node
        if node is None or isinstance(node.op, Alias):
            raise TypeError(
                f"copy_: a traced value {holder.spec} that is an argument is its caller's, who does not see what is "
                "written: write a copy, x = x.clone()"
            )
        if node.serial < self.start:
            raise TypeError(
                f"copy_: a value {holder.spec} of a surrounding trace is not written within vmap: give the new "
                "values as a result"
            )
        self.keep(holder, made)

    def keep(self, holder: Value, made: Value) -> Value:
        """Replace the contents of a value. The new contents get an identity of their own: they may be in use
        elsewhere too."""
        found = self.contents[holder] = self.bind_op(Clone(), (made,))[0]
        self.holders[found] = holder
        return found

    def rewritten(self, target: Operand, values: Any) -> Value:
        """What a tensor holds after values are written to it. Raises ShapeError."""
        before, after = self.read(target), self.read(values)
        if after.shape != before.shape:
            raise ShapeError(f"copy_: cannot write shape {after.shape} into a tensor of shape {before.shape}")
        return after if after.dtype == before.dtype else bind(Cast(before.dtype), after)[0]

    @contextmanager
    def as_recorded(self) -> Iterator[None]:
        """Within the block values are as recorded, regardless of later writes."""
        held = self.contents, self.holders
        self.contents, self.holders = {}, {}
        try:
            yield
        finally:
            self.contents, self.holders = held

    def stands_for(self, x: Operand) -> bool:
        """Never: modules are read through the tensors that they hold."""
        return False

    def leave_behind(self) -> None:
        """Forget writes to tensors without other references: the function made them, and makes them anew in the next
        call; also drop from the guards what the function changed itself. Call it after the function has returned and
        its results are read and released."""
        for holds in self.guards:
            if isinstance(holds, SettledGuard):
                holds.settle()
        for key in list(self.written):
            tensor = self.tensors.pop(key)
            left, twin = ref(tensor), copy(tensor)
            del tensor
            kept = left()
            if kept is None:
                del self.written[key]
            stays = twin if kept is None else kept
            self.tensors[id(stays)], self.inputs[id(stays)] = stays, self.inputs.pop(key)

    def noted(self, found: tuple[Value, ...]) -> tuple[Value, ...]:
        """The outputs of an op that the function calls; outputs of exchanges between ranks are remembered."""
        if found[0].node is not None and isinstance(found[0].node.op, Exchange):
            self._exchanged.append(found[0])
        return found

    def exchanged(self, outputs: Iterable[Value]) -> list[Value]:
        """Exchanges of the function that none of these outputs reads. They must run all the same, as in eager mode:
        another participating rank may read them."""
        if not self._exchanged:
            return []
        read = set(reachable(outputs))
        return [value for value in self._exchanged if value.node not in read]

    def assigns(self, holder: Any, name: str) -> None:
        """Called before an attribute is assigned (see `attributes_apart`)."""
        self.assigned.setdefault((id(holder), name), (holder, vars(holder).get(name, _ABSENT)))

    @contextmanager
    def attributes_apart(self, arguments: Iterable[Value]) -> Iterator[None]:
        """After the block, objects that cache traced values for later calls (tables, masks) have their previous
        attributes: each trace makes its own. Attributes assigned only for others to read stay. Warns of state carried
        from call to call: results of the arguments that a later call reads, and counts. A switched flag is
        carried: the record serves one call, and the next one is traced with the new flag. If the block raises, flags
        and numbers are restored.
        """
        given, assigned = set(arguments), self.assigned
        try:
            yield
            for (_, name), (holder, before) in assigned.items():
                self._carry(given, holder, name, before)
        except BaseException:
            for (_, name), (holder, before) in assigned.items():
                if isinstance(before, PLAIN):
                    vars(holder)[name] = before
            raise
        finally:
            made = [(holder, name, before) for (_, name), (holder, before) in assigned.items()]
            keep = {id(x) for x, name, _ in made if is_kept(type(x), name) and _values_in(x, name)}
            for holder, name, before in made:
                if id(holder) in keep and before is _ABSENT:
                    vars(holder).pop(name, None)
                elif id(holder) in keep:
                    vars(holder)[name] = before
                elif _is_switched(holder, name, before):
                    self.guard(_serves_no_more)
            assigned.clear()

    def _carry(self, given: set[Value], holder: Any, name: str, before: Any) -> None:
        """Warn of an assigned attribute that a later call reads but a compiled call does not keep."""
        kind, now = type(holder), vars(holder).get(name)
        counts = (
            self.lasts and is_number(before) and is_number(now) and now != before and is_advanced(kind, name)
        )
        if counts or (is_carried(kind, name) and _is_made_of(given, _values_in(holder, name))):
            what = f"it stays {now}" if counts else "each reads what it held when it was traced"
            warnings.warn(
                f"{kind.__name__}.{name} is carried from call to call, which compiled calls do not do: {what}; make "
                "it a buffer that is written (register_buffer, copy_), or an argument and a result",
                stacklevel=users_frame() - 1,
            )

    def guard(self, holds: Callable[[], bool]) -> None:
        """The record is valid only as long as this returns True."""
        if holds not in self.guards:
            self.guards.append(holds)

    def knows(self, x: Operand) -> bool:
        """Never: a program reads tensors when it runs."""
        return False

    def placed(self, x: Operand, beside: Operand | DeviceLike | str) -> Operand:
        """Unchanged: a program moves it to its device."""
        return x

    def feed(self, spec: Spec, ask: Callable[[], Any]) -> Value:
        """An input that each call requests."""
        self.feeds.append((Value(spec, name=f"fed{len(self.feeds)}"), ask))
        return self.feeds[-1][0]

    def finally_(self, done: Callable[[], None]) -> int:
        """Call this at the end of each call; returns how often it was registered before."""
        self.finals.append(done)
        return self.finals.count(done) - 1

    def note(self, owner: object, make: Callable[[], Any]) -> Any:
        """State of an owner for the duration of the trace."""
        if id(owner) not in self.notes:
            self.notes[id(owner)] = owner, make()
        return self.notes[id(owner)][1]

    def bind_op(self, op: Op, operands: Sequence[Any]) -> tuple[Value, ...]:
        """Record op as a node."""
        return self.noted(Value.bind_op(op, [self.read(x) for x in operands]))

    def call_op(self, op: Op, operands: Sequence[Any]) -> Value:
        """Record op as a node; its first output."""
        return self.bind_op(op, operands)[0]


_ABSENT = object()


def _is_switched(holder: Any, name: str, before: Any) -> bool:
    """Whether a function changed a flag that functions of its class read: a string, an enum member, True, None."""
    now = vars(holder).get(name, _ABSENT)
    return is_flag(before) and is_flag(now) and now != before and is_kept(type(holder), name)


def _serves_no_more() -> bool:
    """A guard of a record that was valid for one call only."""
    return False


def _values_in(holder: Any, name: str) -> list[Value]:
    """The traced values in an attribute of an object."""
    return [x for x in flatten(vars(holder).get(name), open_dataclasses=True)[0] if isinstance(x, Value)]


def _is_made_of(given: set[Value], values: Sequence[Value]) -> bool:
    """Whether values depend on one of the given values."""
    seen, stack = set[Value](), list(values)
    while stack:
        if (x := stack.pop()) in given:
            return True
        if x not in seen:
            seen.add(x)
            stack += () if x.node is None else x.node.inputs
    return False


def _is_part(value: Value) -> bool:
    """Whether a value is a view: writes to it are writes to its base."""
    return _strides_within(value) is not None


def _strides_within(value: Value) -> Shape | None:
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


def _put_back(op: Op, made: Value, whole: Value) -> Value:
    """The value of the base after `made` is written over the view that an op takes of it."""
    if not made.spec.numel:
        return whole
    if isinstance(op, StopGradient):
        after: Value = overwritten(whole, made)
        return after
    found: Value = op.vjp((made,), (whole.spec,), ())[0]
    if made.spec.numel == whole.spec.numel:
        return found
    place = op.vjp((constant(np.ones(made.shape, np.bool_)),), (whole.spec,), ())[0]
    found = where(place, found, whole)
    return found


@contextmanager
def as_recorded() -> Iterator[None]:
    """Within the block values are as recorded (see `Capture.as_recorded`)."""
    by = recorder()
    if not isinstance(by, Capture) or not by.contents:
        yield
        return
    with by.as_recorded():
        yield


class EagerTape(Capture):
    """Computes at once and records: programs may look at numbers, and be differentiated afterwards.

    Writes to tensors take effect at `commit`: a program that fails has changed nothing.
    """

    lasts = False

    def __init__(self) -> None:
        super().__init__()
        self.forgotten: set[Value] = set()

    def standing(self, x: Tensor) -> Value:
        """The tensor as a constant."""
        return Value(x.spec, constant=x)

    def forget(self, values: Iterable[Value]) -> None:
        """Release the tensors of values: they are recomputed when read again."""
        for value in values:
            value.known = None
            self.forgotten.add(value)

    def held(self, x: Any) -> Any:
        """The computed operand; None for a value that is not known."""
        if not isinstance(x, Value):
            return x
        return tensor_of(x) if self.forgotten and x in self.forgotten else x.held

    def guard(self, holds: Callable[[], bool]) -> None:
        """Ignored: a tape serves once."""

    def feed(self, spec: Spec, ask: Callable[[], Any]) -> Value:
        """Its current value."""
        return constant(ask())

    def knows(self, x: Operand) -> bool:
        """Whether it still holds its current value: new values of written tensors are elsewhere until `commit`."""
        return id(x) not in self.written

    def placed(self, x: Operand, beside: Operand | DeviceLike | str) -> Operand:
        """A constant on the other device, if the numbers of both are known."""
        held = self.held(self.read(x))
        there = self.held(self.read(beside)) if isinstance(beside, Operand) else beside
        if held is None or there is None:
            return x
        return held.to(there.device if isinstance(there, Tensor) else there)  # type: ignore[no-any-return]

    def bind_op(self, op: Op, operands: Sequence[Any]) -> tuple[Value, ...]:
        """Compute op, and record it as a node; with unknown operands it is only recorded."""
        read = [self.read(x) if isinstance(x, Operand) else x for x in operands]
        held = [self.held(x) for x in read]
        if any(x is None for x in held):
            return Value.bind_op(op, read)
        found = computed(op, held)
        inputs = [x if isinstance(x, Value) else constant(as_constant(x).to(found[0].device)) for x in read]
        node = Node(op, inputs, current_policy(), specs=[y._spec for y in found])
        for value, y in zip(node.outputs, found, strict=True):
            value.known = y
        return node.outputs

    def commit(self) -> None:
        """Perform the writes. Raises TypeError for values that are not known: they belong to another trace."""
        for key, value in self.written.items():
            target = self.tensors[key]
            if (found := tensor_of(value)) is None:
                raise TypeError(
                    f"a tensor {target.spec} cannot be updated by {value!r}, which has no numbers yet: pass the "
                    "tensor to the outer trace as an argument (nn.functional_call), or trace with lamina.jit"
                )
            target.copy_(found)
        for (_, name), (holder, _) in self.assigned.items():
            if _values_in(holder, name):  # cached values are replaced by their numbers
                vars(holder)[name] = _in_tensors(vars(holder)[name])
        for done in self.finals:
            done()


def _in_tensors(kept: Any) -> Any:
    """A container of values, with tensors in place of the known ones."""
    leaves, structure = flatten(kept, open_dataclasses=True)
    found = [tensor_of(x) if isinstance(x, Value) else x for x in leaves]
    return unflatten(structure, [x if y is None else y for x, y in zip(leaves, found, strict=True)])


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


def trace(fn: Callable[..., Any], *examples: Any, names: Sequence[str] | None = None) -> Graph:
    """Run fn on traced values and return the recorded graph.

    examples: one Spec, tensor or array per argument; only shapes and dtypes are used.
    fn may return a value or a (nested) tuple, list, dict or dataclass of values; the graph's outputs are the flat
    list.
    Raises TypeError if fn returns something that is neither an operand nor an array.
    """
    specs = [x if isinstance(x, Spec) else as_constant(x).spec for x in examples]
    labels = names or [f"x{i}" for i in range(len(specs))]
    inputs = [Value(s, name=n) for s, n in zip(specs, labels, strict=True)]
    result = fn(*inputs)
    outputs = [x if isinstance(x, Value) else constant(x) for x in flatten(result, open_dataclasses=True)[0]]
    return Graph(inputs, outputs, getattr(fn, "__name__", "graph").strip("<>"))


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
