"""Numbers of the call for which a function is traced, on which its record then depends: how many a mask selects."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from operator import attrgetter
from typing import Any
from weakref import ref

import numpy as np

from lamina.graph.ir.graph import Graph, Node, Value, reachable, tensor_of
from lamina.graph.ir.surroundings import users_frame
from lamina.ops.core import bind, recorder, recording
from lamina.ops.primitives.shape import cat
from lamina.spec import DType
from lamina.spec.policies import policy as use_policy
from lamina.tensors import Tensor, as_tensor


class CallNumbers:
    """What a record takes from the numbers of the arguments for which it is made.

    given: the arguments, and other tensors of which each call reads the current numbers, by the value that stands for
    each. closure: the tensors that the function closes over, likewise. asked: the values that were asked for, and
    their numbers. may_serve_once: whether the record may be of no use for other calls; serves_once: whether it is,
    so that its values are computed for this call, one by one, instead of compiled. finals: called with what computes
    a value, when the call's results are there.
    """

    def __init__(self, closure: Callable[[], Mapping[Value, Tensor]]) -> None:
        self.given: Mapping[Value, Any] = {}
        self.closure = closure
        self.asked: dict[Value, np.ndarray[Any, Any]] = {}
        self.may_serve_once = self.serves_once = False
        self.finals: list[Callable[[Callable[[Value], Tensor]], None]] = []
        self._computed: dict[Value, Tensor] = {}
        # Tensors of the closure with the version that was read; not kept: those that the function makes are dropped.
        self._read: list[tuple[ref[Tensor], int]] = []

    def is_current(self) -> bool:
        """Whether none of the tensors that were read has been written since."""
        return all((x := held()) is None or x.version == version for held, version in self._read)

    def results(self, values: Iterable[Value]) -> list[Tensor]:
        """The numbers of values in this call, each in memory of its own."""
        found: list[Tensor] = []
        with recording(None):
            for value in values:
                y = self._required(value)
                is_held = value.behind.node is None or any(y is x for x in found)
                found.append(y.clone() if is_held else y)
            for done in self.finals:
                done(self._required)
        return found

    def _required(self, value: Value) -> Tensor:
        found = self._now(value)
        if found is None:
            raise TypeError(
                f"{value!r} depends on more than the arguments of the call and what it closes over"
            )
        return found

    def of(self, value: Value, asks: bool = True) -> Tensor | None:
        """The numbers of a value in this call; None if it depends on others than those of arguments and closure.

        asks: whether the record depends on them.
        """
        with recording(None):
            found = self._now(value)
            if found is not None and asks:
                self.asked[value] = np.array(found.numpy())
        return found

    def _now(self, value: Value) -> Tensor | None:
        """A value computed from what earlier ones were computed of, which is kept: code may ask in every step."""
        known = self._computed
        nodes = _not_yet([value], known)
        inputs = {v for v in (value, *(v for node in nodes for v in node.inputs)) if v.node is None}
        closure = self.closure()
        tensors = {**closure, **self.given}
        if not self.given or any(v not in tensors and tensor_of(v) is None for v in inputs):
            return None
        for v in inputs - known.keys():
            held = tensors[v] if v in tensors else tensor_of(v)
            if v in closure:
                self._read.append((ref(closure[v]), closure[v].version))
            # A twin on the same memory: the record drops tensors of the function to which nothing else refers.
            known[v] = copy(as_tensor(held).to(value.device))
        for node in nodes:
            with use_policy(node.policy):
                known |= zip(node.outputs, bind(node.op, *(known[v] for v in node.inputs)), strict=True)
        return known[value]


def numbers_now(value: Any) -> np.ndarray[Any, Any] | None:
    """The numbers of a value in the call that is recorded, which then serves calls with the same; None where it is
    recorded for no call."""
    by = recorder()
    found: Any = None if by is None else by.numbers_now(value)
    with recording(None):
        return found.numpy() if isinstance(found, Tensor) else None


def known_now(value: Any) -> np.ndarray[Any, Any] | None:
    """As `numbers_now`, for a look at them on which the record does not depend."""
    by = recorder()
    found: Any = None if by is None else by.numbers_now(value, asks=False)
    with recording(None):
        return found.numpy() if isinstance(found, Tensor) else None


def _not_yet(values: Iterable[Value], known: Container[Value]) -> list[Node]:
    """The nodes that values depend on, before known ones, in the order of recording."""
    found: set[Node] = set()
    stack = [v for v in values if v not in known]
    while stack:
        node = stack.pop().node
        if node is not None and node not in found:
            found.add(node)
            stack += [v for v in node.inputs if v not in known]
    return sorted(found, key=attrgetter("serial"))


def _by_dtype(
    asked: Mapping[Value, np.ndarray[Any, Any]],
) -> tuple[list[Value], list[np.ndarray[Any, Any]]]:
    """The values of each dtype as one, and their numbers: a result of its own costs each call as much as computing it
    does."""
    groups: dict[DType, list[Value]] = {}
    for value in asked:
        groups.setdefault(value.dtype, []).append(value)
    parts = groups.values()
    joined = [cat([v.reshape((-1,)) for v in part]) if len(part) > 1 else part[0] for part in parts]
    numbers = [
        np.concatenate([asked[v].reshape(-1) for v in part]) if len(part) > 1 else asked[part[0]]
        for part in parts
    ]
    return joined, numbers


def inputs_of(*values: Value) -> list[Value]:
    """The inputs that values depend on, each once."""
    reads = [*values, *(v for node in reachable(values) for v in node.inputs)]
    return list(dict.fromkeys(v for v in reads if v.node is None and tensor_of(v) is None))


def warn_of_no_program(what: str, reason: Exception) -> None:
    """Warn that each op of a call is computed at once, since no program serves other calls."""
    warnings.warn(
        f"{what}: computed op by op in each call, without a program: {reason}", stacklevel=users_frame()
    )


#: From how many programs for arguments of one kind on a warning says why there are so many.
MANY = 16


def warn_of_many(count: int, what: str) -> None:
    """Warn of code that is compiled again for each number of elements that a mask selects, as often as this tells."""
    if count == MANY:
        warnings.warn(
            f"{what}: {count} programs for arguments of the same shapes, one for each number of elements that a mask "
            "selected (x[mask], nonzero): use where or weights, which keep the shape, where the number often changes",
            stacklevel=users_frame(),
        )


def warn_of_values(count: int, what: str, changed: Sequence[str]) -> None:
    """Warn of code that is compiled again for each value of arguments or variables, as often as this tells.

    changed: their names; without any there is no warning.
    """
    if count == MANY and changed:
        warnings.warn(
            f"{what}: {count} programs for arguments of the same shapes, one for each value of {', '.join(changed)}: "
            "a number that changes from call to call is passed as a tensor, lamina.tensor(value), or kept in a "
            "module's buffer; as a number of Python it is a constant of the program",
            stacklevel=users_frame(),
        )


class SameNumbers:
    """Whether a further call has the numbers that a record took from the call for which it was made.

    They are computed from the call's arrays, and from the current values of other tensors. It is true where there are
    any.
    """

    def __init__(
        self,
        numbers: CallNumbers,
        arguments: Sequence[Value],
        compiled: Callable[[Graph], Callable[..., Sequence[Tensor]]],
    ) -> None:
        """arguments: the values that stand for a call's arrays. compiled: makes a program of a graph."""
        asked, self._wanted = _by_dtype(numbers.asked)
        inputs = inputs_of(*numbers.asked)
        places = {v: i for i, v in enumerate(arguments)}
        tensors = {**numbers.closure(), **numbers.given}
        self._reads = [places[v] if v in places else tensors[v] for v in inputs]
        graph = Graph(inputs, asked, "numbers").unmarked()
        self._run = compiled(graph) if self._wanted else None

    def __bool__(self) -> bool:
        """Whether the record depends on numbers."""
        return bool(self._wanted)

    def __call__(self, arrays: Sequence[Any]) -> bool:
        """Whether a call with these arrays has the same numbers."""
        if self._run is None:
            return True
        found = self._run(*[arrays[x] if isinstance(x, int) else x for x in self._reads])
        return all(np.array_equal(y.numpy(), n) for y, n in zip(found, self._wanted, strict=True))
