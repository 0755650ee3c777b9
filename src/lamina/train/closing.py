"""Tensors that a training step closes over beside the state that it trains."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from copy import copy
from typing import Any
from weakref import ReferenceType, ref

from lamina.graph import Value
from lamina.graph.ir.capture import Capture
from lamina.graph.ir.graph import computed, constant
from lamina.graph.ir.surroundings import changed_variables
from lamina.nn import Parameter
from lamina.ops.core import Op, Operand
from lamina.spec import Spec
from lamina.tensors import Tensor, tensors_version


class StepCapture(Capture):
    """Records computations on parameters, as `lamina.jit` does, and computes those on constants alone immediately.

    The step's own tensors are read as the traced values that represent them, however the loss accesses them:
    `net.parameters()` as well as `net.weight`. Tensors of other modules (a teacher, a loss with buffers) become
    inputs whose current values each step reads, and writes to them become outputs. Other tensors are constants.
    """

    def __init__(self) -> None:
        super().__init__()
        self.own: MutableMapping[int, Any] = {}
        self.parameters: frozenset[int] = frozenset()  # those of `own` that are trained
        self.overwritten: set[int] = set()  # those of `own` that the function wrote
        self._constants: dict[int, tuple[ReferenceType[Tensor], Value]] = {}  # by id
        self._overwritten: list[ReferenceType[Tensor]] = []  # constants that were written

    def read(self, x: Any) -> Value:
        """The current traced value of an operand."""
        if isinstance(x, Tensor):
            if id(x) in self.own:
                found: Value = self.own[id(x)]
                return found
            if not self._is_held(x) and not self._is_within(x):
                return self._constant(x)
        return super().read(x)

    def _constant(self, x: Tensor) -> Value:
        """A tensor as a constant, which keeps alive the tensor's memory, but not the tensor itself."""
        known = self._constants.get(id(x))
        if known is None or known[0]() is not x:
            known = self._constants[id(x)] = ref(x), constant(copy(x))
        return known[1]

    def hold(self, x: Tensor) -> Value:
        """A tensor of another module, as an input."""
        return super().read(x)

    def knows(self, x: Operand) -> bool:
        """Whether the values of a tensor are known already: those of constants."""
        return id(x) not in self.own and not self._is_held(x) and not self._is_within(x)

    def write(self, target: Operand, values: Any, within: bool = False) -> None:
        """Set a module's tensor to other values from now on. Raises TypeError for a tensor that is a constant."""
        if isinstance(target, Tensor) and self.knows(target):
            self._overwritten.append(ref(target))
            self.hold(target)
        if id(target) not in self.own:
            super().write(target, values, within)
        else:
            self._write_own(id(target), self.rewritten(target, values))

    def replace(self, holder: Value, made: Value, within: bool = False) -> None:
        """As in any trace; a value that represents one of the network's tensors is written as that tensor."""
        for key, standing in self.own.items():
            if isinstance(standing, Value) and self.holders.get(standing, standing) is holder:
                self._write_own(key, made)
                return
        super().replace(holder, made, within)

    def _write_own(self, key: int, made: Value) -> None:
        if key in self.parameters:
            raise TypeError(
                "copy_: the parameters of the network that a training step trains are updated by it alone; what "
                "forward updates is a buffer (register_buffer) or a frozen parameter (requires_grad_(False))"
            )
        self.overwritten.add(key)
        standing = self.own[key]
        self.own[key] = self.keep(self.holders.get(standing, standing), made)

    def stands_for(self, x: Operand) -> bool:
        """Whether it is a tensor of the network that is trained."""
        return id(x) in self.own

    def leave_behind(self) -> None:
        """Discard the function's intermediate tensors. Raises TypeError for a constant that was written.

        If the user later writes a constant that is still alive, the program becomes invalid.
        """
        super().leave_behind()
        if constants := [x for known, _ in self._constants.values() if (x := known()) is not None]:
            self.guard(SameValues(constants))
        for written in self._overwritten:
            if (target := written()) is not None:
                raise TypeError(
                    f"copy_: a tensor {target.spec} that a training step closes over is a constant of it: make it a "
                    "buffer of a module (register_buffer)"
                )

    def bind_op(self, op: Op, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Record op if an operand is known only when the step runs, else compute it."""
        read = [
            self.read(x) if isinstance(x, Value) or (isinstance(x, Tensor) and not self.knows(x)) else x
            for x in operands
        ]
        if any(isinstance(x, Value) for x in read):
            return self.noted(Value.bind_op(op, [self.read(x) if isinstance(x, Tensor) else x for x in read]))
        return computed(op, operands)

    def call_op(self, op: Op, operands: Sequence[Any]) -> Any:
        """The first output."""
        return self.bind_op(op, operands)[0]

    def feed(self, spec: Spec, ask: Callable[[], Any]) -> Value:
        """Always raises TypeError: an optimizer's step within a step."""
        raise TypeError(
            "train_step: an optimizer steps within the step of another one; write one function for lamina.jit"
        )

    def _is_held(self, x: Operand) -> bool:
        return isinstance(x, Parameter) or id(x) in self.tensors

    def _is_within(self, x: Operand) -> bool:
        """Whether it is a view of a tensor that is not known."""
        first: Any = x._part.first() if isinstance(x, Tensor) and x._part is not None else None
        return first is not None and not self.knows(first)


class SameValues:
    """A guard: whether none of these tensors has been written since, while any of them are alive."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._seen = tensors_version()
        self._were = [(ref(x), x.version) for x in tensors]

    def __call__(self) -> bool:
        """Whether their values are unchanged."""
        now = tensors_version()
        if now != self._seen:
            alive = [(x, version) for known, version in self._were if (x := known()) is not None]
            if not all(_has_version(x, version) for x, version in alive):
                return False
            self._seen = now
        return True


def _has_version(x: Tensor, version: int) -> bool:
    _ = x.buffer  # updates the version of a view
    return x.version == version


class ClosedOver:
    """The tensors of other modules that a program reads and updates.

    kept: those that stay where they are. given: those that are passed at each call (borrowed memory, other devices).
    inputs: the traced values of both; outputs: the next values of those of `kept` that are updated.
    """

    def __init__(self, capture: StepCapture, device: Any) -> None:
        tensors = list(capture.tensors.values())
        written = [x for x in tensors if id(x) in capture.written]
        stays = [x for x in tensors if not x.buffer.borrowed and x.device == device]
        self.kept = [x for x in tensors if any(x is y for y in (*written, *stays))]
        self.given = [x for x in tensors if not any(x is y for y in self.kept)]
        self.updated = [i for i, x in enumerate(self.kept) if id(x) in capture.written]
        self.inputs = [capture.inputs[id(x)] for x in (*self.kept, *self.given)]
        self.outputs = [capture.written[id(self.kept[i])] for i in self.updated]
        self._guards = tuple(capture.guards)
        self._were = [(x.spec.open, x.device) for x in tensors]
        self._tensors = tensors

    @property
    def changed(self) -> list[str]:
        """The names of the variables that have other values than when it was traced."""
        return changed_variables(self._guards)

    def hold(self) -> bool:
        """Whether a trace made now would be the same."""
        same = all((x.spec.open, x.device) == were for x, were in zip(self._tensors, self._were, strict=True))
        return same and all(guard() for guard in self._guards)
