"""oneDNN kernels that lose NaN or an infinity: they run where their operand holds none, else NumPy does.

Its max-pooling skips NaN and gives the lowest finite number for -inf, its softmax gives 0 for NaN and for +inf, its
exp gives inf for NaN, its gradient of relu multiplies by 0 where it should give 0. One pass over the operand, for its
least or largest element, detects all of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lamina.backends import Call, Meaning, Plan, PlanTape, Run
from lamina.backends.reference import by_numpy
from lamina.ops.core import Array, Op
from lamina.runtime import host_array
from lamina.spec import Spec
from lamina.spec.layout import physical_elements

#: Whether a kernel may run on an operand; looks at its least or largest element.
Allowed = Callable[[Array], bool]


def guarded(plan: Plan, op: Op, allowed: Allowed, first: int = 0) -> Plan:
    """The plan of `op`, whose inputs from the `first` on are checked in each run: where one is not `allowed`, NumPy
    computes the op."""
    return replace(plan, make=Guarded(plan, op, allowed, first))


@dataclass(frozen=True, eq=False)
class Guarded:
    """A plan that runs where its inputs are allowed, and NumPy elsewhere."""

    plan: Plan
    op: Op
    allowed: Allowed
    first: int

    def __call__(self, call: Call) -> Run:
        """Bind to addresses."""
        plan, allowed = self.plan, self.allowed
        fast, slow = plan.bind(call), by_numpy(self.op, plan.inputs, plan.outputs, call)
        read = [
            host_array(address, (count,), spec.dtype.numpy) for address, count, spec in self._watched(call)
        ]

        def run() -> None:
            for x in read:
                if not allowed(x):
                    return slow()
            return fast()

        return run

    def _watched(self, call: Call) -> list[tuple[int, int, Spec]]:
        """For each checked input its address, the number of elements there with padding, and the spec."""
        specs = self.plan.inputs[self.first :]
        counts = [physical_elements(spec.physical, spec.shape) for spec in specs]
        return list(zip(call.inputs[self.first :], counts, specs, strict=True))

    def recorded(self, call: Call, tape: PlanTape) -> list[Any] | None:
        """As data; the fallback is the whole op, planned when it is needed."""
        fast = self.plan.recorded(call, tape)
        if fast is None:
            return None
        operands = [[address, count, spec.dtype.name] for address, count, spec in self._watched(call)]
        slow = Meaning(self.op, self.plan.inputs, self.plan.outputs, call)
        return [["guard", self.allowed.__name__, operands, fast, slow]]
