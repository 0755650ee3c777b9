"""Constant folding while a graph is recorded, within a bound on the results' size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lamina import ops
from lamina.convert.onnx.node import OnnxError, require_bounded
from lamina.ops.core import DeviceLike, Op, Operand, bind, call, recorder, recording
from lamina.spec import Spec


class Folding:
    """Within `recording`, ops compute immediately; a result of more than `MOST_BYTES` is refused before it is
    computed.
    """

    lasts = False

    def __init__(self) -> None:
        self._around = recorder()

    def bind_op(self, op: Op, operands: Sequence[Any]) -> tuple[Operand, ...]:
        """All outputs."""
        given = self._bounded(op, operands)
        with recording(None):
            return bind(op, *given)

    def call_op(self, op: Op, operands: Sequence[Any]) -> Operand:
        """The first output."""
        given = self._bounded(op, operands)
        with recording(None):
            found: Operand = call(op, *given)
            return found

    def _bounded(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        given = [ops.operand(x) for x in operands]
        require_bounded(op.name, sum(s.nbytes for s in op.infer(*(x.spec for x in given))))
        return given

    def read(self, x: Any) -> Operand:
        """Itself."""
        found: Operand = ops.operand(x)
        return found

    def makes(self, x: Operand) -> None:
        """No effect: all values are known."""

    def numbers_in(self, x: Operand) -> Operand | None:
        """Itself."""
        return x

    def numbers_now(self, x: Operand, asks: bool = True) -> Operand | None:
        """Itself."""
        return x

    def serves_once(self) -> bool:
        """Never."""
        return False

    def numbers_once(self, x: Operand) -> Operand | None:
        """None: it serves no call."""
        return None

    def knows(self, x: Operand) -> bool:
        """Always."""
        return True

    def assigns(self, holder: Any, name: str) -> None:
        """No effect: results are constants."""

    def placed(self, x: Operand, beside: Operand | DeviceLike | str) -> Operand:
        """Unchanged: constants of a model are made on the host."""
        return x

    def stands_for(self, x: Operand) -> bool:
        """Never: values are the tensors themselves."""
        return False

    def guard(self, holds: Callable[[], bool]) -> None:
        """No effect: constants stay valid."""

    def write(self, target: Operand, values: Any, within: bool = False) -> None:
        """A state (running statistics, a generator's) is written through the enclosing recorder."""
        with recording(self._around):
            target.copy_(values)  # type: ignore[attr-defined]

    def feed(self, spec: Spec, ask: Callable[[], Any]) -> Operand:
        """Its current value."""
        return self.read(ask())

    def finally_(self, done: Callable[[], None]) -> int:
        """Raises OnnxError: there are no later calls."""
        raise OnnxError("nothing can be done after each call of a constant")

    def note(self, owner: object, make: Callable[[], Any]) -> Any:
        """Nothing is cached: it is made anew."""
        return make()
