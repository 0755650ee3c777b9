"""A backend with the fusions of a GPU, whose plans are chosen by a test."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from lamina.backends import Backend, Fusion, NoKernel, Plan
from lamina.backends.cuda import backend as cuda_backend
from lamina.ops.core import Op
from lamina.runtime import Device
from lamina.spec import Policy, Spec
from tests.helpers.planned import H200

CUDA = cuda_backend(H200)
#: The kind of an op's plan: "fused", "unfused" (the parts are as fast) or "" (there is none).
Verdict = Callable[[Op, Sequence[Spec]], str]


class StandIn(Backend):
    """Has the fusions and kernels of the CUDA backend; `asked` records the requested plans."""

    name = "stand-in"

    def __init__(self, verdict: str | Verdict = "fused", fusions: Sequence[Fusion] | None = None) -> None:
        super().__init__(Device("cpu"))
        self.verdict: Verdict = verdict if callable(verdict) else lambda op, specs: verdict
        self.found = CUDA.fusions() if fusions is None else fusions
        self.asked: list[tuple[Op, Policy]] = []

    def choose(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        self.asked.append((op, policy))
        said = self.verdict(op, specs)
        if not said:
            raise NoKernel("nothing\nfor it")
        inputs, outputs = tuple(s.fixed for s in specs), tuple(s.fixed for s in op.infer(*specs))
        plan = Plan(inputs, outputs, lambda call: lambda: None, label=f"stand-in {op.name}", seconds=1e-6)
        return plan if said == "fused" else replace(plan, parts=(plan, plan))

    def reorder(self, source: Spec, target: Spec) -> Plan:
        raise AssertionError("passes ask for plans of ops alone")

    def supports(self, op: type[Op]) -> str:
        return CUDA.supports(op)

    def has_kernel(self, op: type[Op]) -> bool:
        return CUDA.has_kernel(op)

    def fusions(self) -> Sequence[Fusion]:
        return self.found
