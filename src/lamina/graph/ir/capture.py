"""Captures: records of functions with their side effects, for a program or, on a tape, while they are computed.

A function reads tensors of its closure and writes to tensors, values and attributes of objects. A capture tells what
the program of a function takes in and gives back, and under which conditions it may be used again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Any
from weakref import ref

import numpy as np

from lamina._tree import flatten, unflatten
from lamina.graph.ir.call_numbers import CallNumbers
from lamina.graph.ir.graph import (
    Graph,
    Node,
    Value,
    computed,
    constant,
    mark,
    reachable,
    strides_within,
    tensor_of,
)
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
from lamina.ops.core import DeviceLike, Op, Operand, UnrecordedWriteError, bind, recorder, recording
from lamina.ops.part import TensorPart
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.collective import Exchange
from lamina.ops.primitives.marker import Alias, Clone, StopGradient, overwritten
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.shape import repeated
from lamina.spec import Spec, current_policy
from lamina.spec.policies import policy as use_policy
from lamina.tensors import Tensor, as_constant


class Capture:
    """Records a function with its side effects: tensors of its closure become inputs, its writes to them outputs.

    tensors: those read or written, in order of first use, by id; inputs: the value that stands for each.
    written: id -> its value after the function. guards: conditions beside the arguments under which the record holds.
    numbers: what the record depends on of the numbers of its call, shared with the traces within.
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
        self._made: dict[int, ref[Operand]] = {}  # tensors that the function makes of numbers, by id
        self._made_inputs: dict[Value, ref[Operand]] = {}  # the values that stand for them
        self._settled: set[int] = set()  # those of them whose numbers the record depends on
        self.feeds: list[tuple[Value, Callable[[], Any]]] = []
        self.finals: list[Callable[[], None]] = []
        self.notes: dict[int, tuple[object, Any]] = {}  # by the owner's id
        self.assigned: dict[tuple[int, str], tuple[Any, Any]] = {}
        self._exchanged: list[Value] = []
        self.numbers: CallNumbers = (
            around.numbers if isinstance(around, Capture) else CallNumbers(self.standing_for)
        )

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
            if self._is_made(x):
                self._made_inputs[self.inputs[id(x)]] = self._made[id(x)]
        return self.inputs[id(x)]

    def makes(self, x: Operand) -> None:
        """A tensor that the function makes, anew in each call: its numbers are known."""
        self._made[id(x)] = ref(x)

    def _is_made(self, x: Operand) -> bool:
        made = self._made.get(id(x))
        return made is not None and made() is x

    def numbers_in(self, x: Operand) -> Operand | None:
        """The tensor that the function made and that an input stands for; the record then depends on its numbers."""
        made = self._made_inputs[x]() if isinstance(x, Value) and x in self._made_inputs else None
        if made is not None:
            self._settled.add(id(made))
        return made

    def numbers_now(self, x: Operand, asks: bool = True) -> Operand | None:
        """The numbers of a value in the call that is recorded, on which the record then depends, if it asks."""
        return self.numbers.of(self.read(x), asks)

    def serves_once(self) -> bool:
        """Serve this call alone, if it may."""
        self.numbers.serves_once |= self.numbers.may_serve_once
        return self.numbers.serves_once

    def numbers_once(self, x: Operand) -> Operand | None:
        """The numbers of a value in the call that is recorded, if nothing but this call is served."""
        return self.numbers.of(self.read(x), asks=False) if self.numbers.serves_once else None

    def standing_for(self) -> dict[Value, Tensor]:
        """The tensors that the function closes over, by the value that stands for each."""
        return {value: self.tensors[key] for key, value in self.inputs.items()}

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

    def write(self, target: Operand, values: Any, within: bool = False) -> None:
        """Overwrite a tensor or a value from now on, converted to its dtype. Raises ShapeError, and TypeError for a
        value that belongs to the caller, unless it need not see what is written: within."""
        made = self.rewritten(target, values)
        part = self._part_of(target) if isinstance(target, Tensor) else target
        if isinstance(part, Value):
            self._overwrite(part, made, within)
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

    def _overwrite(self, target: Value, made: Value, within: bool) -> None:
        """Overwrite the value that this one is a view of, or itself."""
        value = self.holders.get(target, target)
        while value not in self.contents and _is_part(value):
            node = value.node
            assert node is not None
            whole = node.inputs[0]
            made = _put_back(node.op, made, self.read(whole))
            value = self.holders.get(whole, whole)
        self.replace(value, made, within)

    def replace(self, holder: Value, made: Value, within: bool = False) -> None:
        """Overwrite a value that is no view. Raises TypeError unless the function owns it, or within."""
        for key, standing in self.inputs.items():
            if standing is holder:
                self.tensors[key].copy_(made)
                return
        node = holder.node
        if within:
            self.keep(holder, made)
            return
        if node is None or isinstance(node.op, Alias):
            raise TypeError(
                f"copy_: a traced value {holder.spec} that is an argument is its caller's, who does not see what is "
                f"written{_called(holder)}: write a copy, x = x.clone()"
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
        """What a tensor holds after values, broadcast to its shape, are written to it. Raises ShapeError."""
        before, after = self.read(target), self.read(values)
        if after.shape != before.shape:
            after = repeated(after, before.shape, "copy_")
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
        if any(self._outlives(key) for key in self._settled):
            self.guard(_serves_no_more)
        for key in list(self.written):
            tensor = self.tensors.pop(key)
            left, twin = ref(tensor), copy(tensor)
            del tensor
            kept = left()
            if kept is None:
                del self.written[key]
            stays = twin if kept is None else kept
            self.tensors[id(stays)], self.inputs[id(stays)] = stays, self.inputs.pop(key)

    def _outlives(self, key: int) -> bool:
        """Whether a tensor that the function made is kept by others, who may write it: the next call finds it."""
        made = self._made[key]
        if (tensor := self.tensors.pop(key, None)) is None:
            return made() is not None
        twin, value = copy(tensor), self.inputs.pop(key)
        del tensor
        kept = made()
        stays: Any = twin if kept is None else kept
        self.tensors[id(stays)], self.inputs[id(stays)] = stays, value
        if kept is None and key in self.written:
            del self.written[key]
        return kept is not None

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
        """Of tensors that the function made and did not write; others a program reads when it runs."""
        if not self._is_made(x) or id(x) in self.written:
            return False
        self._settled.add(id(x))
        return True

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


class ConstantCapture(Capture):
    """Records a function whose closed-over tensors are constants, on which it computes at once.

    Views of constants are recorded, so that a write to one is seen in the other. computes: whether ops on constants
    alone are computed; else they are recorded as all others.
    """

    def __init__(self, computes: bool = True) -> None:
        super().__init__()
        self.computes = computes

    def standing(self, x: Tensor) -> Value:
        """A tensor of the closure, as a constant: it keeps the memory alive, not the tensor, which the function may
        have made itself (see `leave_behind`)."""
        return Value(x.spec, constant=copy(x))

    def knows(self, x: Operand) -> bool:
        """Whether the values of a tensor are known already: those of unwritten constants."""
        whole: Any = x._part.first() if isinstance(x, Tensor) and x._part is not None else None
        return id(x) not in self.written and (whole is None or self.knows(whole))

    def bind_op(self, op: Op, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Record op if an operand is known only at run time, or if it takes a view, else compute it."""
        if (
            not self.computes
            or op.takes_part
            or any(isinstance(x, Operand) and not (isinstance(x, Tensor) and self.knows(x)) for x in operands)
        ):
            return super().bind_op(op, operands)
        return computed(op, operands)

    def call_op(self, op: Op, operands: Sequence[Any]) -> Any:
        """Record or compute op; its first output."""
        return self.bind_op(op, operands)[0]


_ABSENT = object()


def _called(value: Value) -> str:
    """ " (its name)" for a value that has one."""
    return f" ({value.name})" if value.name else ""


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
    return strides_within(value) is not None


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


def trace(
    fn: Callable[..., Any], *examples: Any, names: Sequence[str] | None = None, fold: bool = True
) -> Graph:
    """Run fn on traced values and return the recorded graph.

    examples: one Spec, tensor or array per argument; only shapes and dtypes are used.
    fn may return a value or a (nested) tuple, list, dict or dataclass of values; the graph's outputs are the flat
    list. It may write in place over values and tensors that it makes itself; it is then run a second time.
    fold: whether ops on constants are computed while it runs; otherwise they are nodes of the graph.
    Raises TypeError if fn returns something that is neither an operand nor an array, or writes over an argument or
    over a tensor that it does not make.
    """
    specs = [x if isinstance(x, Spec) else as_constant(x).spec for x in examples]
    labels = names or [f"x{i}" for i in range(len(specs))]
    inputs = [Value(s, name=n) for s, n in zip(specs, labels, strict=True)]
    label = getattr(fn, "__name__", "graph").strip("<>")
    if not fold:
        return Graph(inputs, _recorded(fn, inputs, label, ConstantCapture(computes=False)), label)
    try:
        result = fn(*inputs)
        outputs = [
            x if isinstance(x, Value) else constant(x) for x in flatten(result, open_dataclasses=True)[0]
        ]
    except UnrecordedWriteError:
        outputs = _recorded(fn, inputs, label, ConstantCapture())
    return Graph(inputs, outputs, label)


def _recorded(
    fn: Callable[..., Any], inputs: Sequence[Value], label: str, capture: ConstantCapture
) -> list[Value]:
    """The outputs of a function, with what it writes in place. Raises TypeError if it writes what outlives the
    call."""
    with recording(capture), capture.attributes_apart(inputs):
        result = fn(*inputs)
        outputs = [capture.read(x) for x in flatten(result, open_dataclasses=True)[0]]
    del result
    capture.leave_behind()
    for key in capture.written:
        raise TypeError(
            f"{label}: writes over a tensor {capture.tensors[key].spec} that it does not make itself, which a graph "
            "cannot do: give it as an argument and return the new values, or use lamina.jit"
        )
    return outputs
