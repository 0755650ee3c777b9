"""Floor 3: the only place where op cards and libraries meet.

A backend turns (op, input specs) into a Plan once, and the plan runs many times:

    plan = backend.plan(op, specs, policy)       choose the kernel, the layouts and the workspace
    run = plan.bind(Call(inputs, outputs, workspace, stream))     fix the addresses
    run()                                                         compute

Input specs whose layout is None are open: the plan names the layout that it wants. Others say how the
tensor lies in memory now; a plan may still ask for another layout in `plan.inputs`, and whoever executes
it puts a `backend.reorder` plan in between. The order in the executor is infer, plan, place memory, run.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar

from lamina.ops.core import Op
from lamina.runtime import Device
from lamina.spec import Policy, Spec

Run = Callable[[], None]


class NoKernel(NotImplementedError):
    """The backend has no kernel for the op with these specs; the message names op, specs and the reason."""


class Call(NamedTuple):
    """Addresses for one plan: bytes at inputs[i] lie as plan.inputs[i] says. `stream` is a handle, 0 on hosts."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace: int = 0
    stream: int = 0


@dataclass(frozen=True, eq=False)
class Plan:
    """A kernel chosen for an op: specs as they must lie in memory, bytes of workspace, and how to bind it.

    Two plans are equal when they are one object, so that what is made of a plan can be kept by it.

    inputs, outputs: specs with layouts named.
    make: binds addresses and gives the function that runs. It may be called many times.
    workspace: bytes of scratch memory that `Call.workspace` must point to (256-byte aligned).
    aliases: output index -> input index; the output may lie where that input lay, if the input is dead after.
    view: output 0 *is* input 0 (a reshape): no memory, no work.
    label: what runs, for `lamina plan`: "cudnn conv eng=…", "onednn jit:avx512_core", "kernel max_pool".
    """

    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]
    make: Callable[[Call], Run]
    workspace: int = 0
    aliases: Mapping[int, int] = field(default_factory=dict)
    view: bool = False
    label: str = ""

    def bind(self, call: Call) -> Run:
        """Fix the addresses; the returned function computes (or queues the work on the call's stream)."""
        return self.make(call)


Kernel = Callable[..., Plan]  # (op, specs, device, policy) -> Plan
K = TypeVar("K", bound=Kernel)


class Backend(ABC):
    """Plans ops for one device. `kernels` maps op classes to planning functions."""

    name: str

    def __init__(self, device: Device) -> None:
        self.device = device

    @abstractmethod
    def plan(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """The plan for op on inputs of these specs. Raises NoKernel."""

    @abstractmethod
    def reorder(self, source: Spec, target: Spec) -> Plan:
        """The plan that copies a tensor from one layout to another (same shape and dtype)."""

    @abstractmethod
    def supports(self, op: type[Op]) -> str:
        """Where the op's kernel comes from ("onednn", "numpy", "cudnn", "kernel", …), "" when there is none."""


class Kernels:
    """A backend's table of planning functions, filled by its modules: `@kernels(Conv, source="onednn")`.

    A planning function has the signature (op, specs, device, policy) -> Plan and raises NoKernel when the
    op or the specs are outside what it covers.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self._table: dict[type[Op], tuple[Kernel, str]] = {}

    def __call__(self, *ops: type[Op], source: str) -> Callable[[K], K]:
        """Register the decorated function for these op classes."""

        def register(kernel: K) -> K:
            for op in ops:
                self._table[op] = (kernel, source)
            return kernel

        return register

    def get(self, op: type[Op]) -> Kernel | None:
        """The planning function of an op class."""
        found = self._table.get(op)
        return found[0] if found else None

    def source(self, op: type[Op]) -> str:
        """Where the kernel comes from, "" when there is none."""
        found = self._table.get(op)
        return found[1] if found else ""

    def plan(self, op: Op, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
        """Look the op up and plan it. Raises NoKernel with the op's name when there is no entry."""
        kernel = self.get(type(op))
        if kernel is None:
            raise NoKernel(f"{self.backend} has no kernel for {op.name} ({', '.join(map(str, specs))})")
        return kernel(op, tuple(specs), device, policy)


@cache
def get(device: Device, name: str | None = None) -> Backend:
    """The backend of a device: "cuda" on GPUs, "cpu" on hosts, or the one named ("reference", "null").

    Raises ValueError for an unknown name.
    """
    name = name or device.kind
    if name not in NAMES:
        raise ValueError(f"unknown backend {name!r}; known: {', '.join(NAMES)}")
    backend: Backend = importlib.import_module(f"lamina.backends.{name}").backend(device)
    return backend


NAMES = ("cpu", "cuda", "reference", "null")
