"""The CUDA backend: cuDNN's graph plans for convolutions and products, own kernels for everything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from lamina.backends import Backend, Fusion, Plan
from lamina.backends.cuda.elementwise.fused_elementwise import joins
from lamina.backends.cuda.elementwise.shape import reorder
from lamina.backends.cuda.registry import fusions, kernels
from lamina.c import cublaslt, cudnn
from lamina.cudnn import DeviceProperties, ExecutionPlan, Handle, Scout, handle_of
from lamina.ops.core import Op
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Added to a device's number for the one whose plans a scout makes: their plans are never shared.
_TWIN = 1 << 20


class CudaBackend(Backend):
    """Plans ops for one NVIDIA GPU."""

    name = "cuda"
    reads_parts = True

    def choose(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """The plan for op on inputs of these specs. Raises NoKernel."""
        return kernels.plan(op, specs, self.device, policy)

    def reorder(self, source: Spec, target: Spec) -> Plan:
        """The plan that copies a tensor from one layout to another."""
        return reorder(source, target, self.device)

    def supports(self, op: type[Op]) -> str:
        """The source of the op's kernel, "" when there is none."""
        return kernels.source(op)

    def has_kernel(self, op: type[Op]) -> bool:
        """Whether there is a planning function for the op."""
        return kernels.get(op) is not None

    def joins(self, op: Op, specs: Sequence[Spec]) -> bool:
        """Whether it can be written in C++."""
        return joins(op, specs)

    def fusions(self) -> Sequence[Fusion]:
        """The fusions of all families."""
        return fusions.ordered()

    def remembered_by(self) -> dict[str, Any] | None:
        """The GPU's model and the libraries' versions. Measurements are looked up when a program is read."""
        return None if self.device.planned is not None else planned_by(self.device)

    def forms(self) -> Mapping[type, Callable[[Any], Any]]:
        """Plans of cuDNN by their text."""
        return {ExecutionPlan: _as_text}

    def scouted(self, way: Callable[[Backend], object]) -> AbstractContextManager[object]:
        """cuDNN's plans are made in threads (`cudnn.Scout`), for a device of the same kind without a handle."""

        def go() -> object:
            twin = Device(f"cuda:{_TWIN + self.device.index}", machine=self.device.machine)
            return way(CudaBackend(twin))

        return Scout(go)


def planned_by(device: Device) -> dict[str, Any]:
    """All that the choice of plans for a device depends on."""
    versions = {
        one.title: ".".join(map(str, one.version)) if one.available() else ""
        for one in (cudnn.library, cublaslt.library)
    }
    return {"machine": asdict(device.machine), "device": str(device), **versions}


def _as_text(plan: ExecutionPlan) -> Any:
    target = plan.target
    where = target.device if isinstance(target, Handle) else target
    return _of_text, (plan.json, where.json if isinstance(where, DeviceProperties) else where, plan.workspace)


def _of_text(text: str, where: Device | str, workspace: int) -> ExecutionPlan:
    """The plan for a device, or for a described one. Raises ValueError where it now needs more workspace."""
    if isinstance(where, str):
        plan = ExecutionPlan(None, _properties(where), json=text)
    else:
        with where.current():
            plan = ExecutionPlan(None, handle_of(where), json=text)
    if plan.workspace > workspace:
        raise ValueError(f"the plan took {workspace} bytes of workspace, and takes {plan.workspace} now")
    return plan


@lru_cache(maxsize=16)
def _properties(text: str) -> DeviceProperties:
    return DeviceProperties(json=text)


def backend(device: Device) -> Backend:
    """The backend of a CUDA device. Raises ValueError for another."""
    if device.kind != "cuda":
        raise ValueError(f"the cuda backend runs on cuda, not on {device}")
    return CudaBackend(device)
