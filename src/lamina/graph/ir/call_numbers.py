"""Numbers of the call for which a function is traced, on which its record then depends: how many a mask selects."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lamina.graph.ir.graph import Graph, Value, reachable, tensor_of
from lamina.graph.ir.surroundings import users_frame
from lamina.ops.core import recorder, recording
from lamina.ops.primitives.shape import cat
from lamina.spec import DType
from lamina.tensors import Tensor, as_tensor


class CallNumbers:
    """What a record takes from the numbers of the arguments for which it is made.

    given: the arguments, and other tensors of which each call reads the current numbers, by the value that stands for
    each. closure: the tensors that the function closes over, likewise. asked: the values that were asked for, and
    their numbers.
    """

    def __init__(self, closure: Callable[[], Mapping[Value, Tensor]]) -> None:
        self.given: Mapping[Value, Any] = {}
        self.closure = closure
        self.asked: dict[Value, np.ndarray[Any, Any]] = {}

    def of(self, value: Value) -> Tensor | None:
        """The numbers of a value in this call; None if it depends on others than those of arguments and closure."""
        inputs = inputs_of(value)
        tensors = {**self.closure(), **self.given}
        if not self.given or any(v not in tensors for v in inputs):
            return None
        with recording(None):
            operands = [as_tensor(tensors[v]).to(value.device) for v in inputs]
            found: Tensor = Graph(inputs, [value])(*operands)[0]
            self.asked[value] = np.array(found.numpy())
        return found


def numbers_now(value: Any) -> np.ndarray[Any, Any] | None:
    """The numbers of a value in the call that is recorded, which then serves calls with the same; None where it is
    recorded for no call."""
    by = recorder()
    found: Any = None if by is None else by.numbers_now(value)
    with recording(None):
        return found.numpy() if isinstance(found, Tensor) else None


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
