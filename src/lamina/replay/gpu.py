"""The steps of a saved plan for a GPU: kernels as machine code, plans of cuDNN, products of cuBLASLt.

The file contains machine code, which is as trusted as a library; the caller has checked that (`lamina.infer.load`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from lamina.c import cublaslt, cudnn
from lamina.cudnn.handle import handle_of, open_libraries
from lamina.cudnn.plan import ExecutionPlan, VariantPack
from lamina.replay.addresses import Regions
from lamina.replay.errors import PlanFileError
from lamina.replay.operations import operation
from lamina.replay.products import Matrices, multiply
from lamina.runtime import Device, KernelModule, as_stream, usable_cores

Run = Callable[[], None]
#: Binds a step to memory and a stream's handle.
Bind = Callable[[Regions, int], Run]
#: Number of threads that make plans: each has a handle.
_MOST_THREADS = 4


class GpuSteps:
    """Reads the steps of plans for a GPU; code and plans that several steps share are loaded once.

    stored: gives bytes of the file by their place. scratch: 0, plans contain their workspace.
    """

    def __init__(self, device: Device, stored: Callable[[Any], memoryview]) -> None:
        self.device, self._stored, self.scratch = device, stored, 0
        self._modules: dict[tuple[int, ...], KernelModule] = {}
        self._plans: dict[tuple[int, ...], ExecutionPlan] = {}

    def steps(self, data: Sequence[Any]) -> list[Bind]:
        """The binders of several steps; raises what `step` raises.

        Plans of cuDNN are made first, by several threads: one takes milliseconds. Handles are not thread-safe, so
        that each thread has its own; any handle can run a plan.
        """
        texts = dict.fromkeys(tuple(one[1]) for one in data if one[0] == "cudnn")
        new = [text for text in texts if text not in self._plans]
        if len(new) > 1:
            with ThreadPoolExecutor(min(len(new), _MOST_THREADS, usable_cores())) as threads:
                plans = threads.map(self._plan, new)  # in order: the first of several errors is raised
                handle_of(self.device)  # create this thread's handle meanwhile
                self._plans.update(zip(new, plans, strict=True))
        return [self.step(one) for one in data]

    def step(self, data: Sequence[Any]) -> Bind:
        """The binder of a step. Raises PlanFileError, and what libraries raise."""
        kind, *rest = data
        kinds: dict[str, Callable[..., Bind]] = {
            "launch": self._launch,
            "cudnn": self._execute,
            "cublaslt": self._multiply,
            "fill": self._fill,
            "copy": self._copy,
        }
        if kind in ("numpy", "anew"):
            return operation(self.device, kind, rest)
        if kind not in kinds:
            raise PlanFileError(f"a plan for a GPU has no step {kind!r}")
        return kinds[kind](*rest)

    def _launch(
        self, code: Any, name: Any, grid: Any, block: Any, shared: Any, cooperative: Any, values: Any
    ) -> Bind:
        """A kernel launch from machine code in the file."""
        key = tuple(code)
        if key not in self._modules:
            self._modules[key] = KernelModule(bytes(self._stored(code)), self.device)
        kernel = self._modules[key].kernel(name)

        def bind(regions: Regions, stream: int) -> Run:
            arguments = [_argument(v, regions) for v in values]
            queue = as_stream(stream, self.device)
            return kernel.prepare(
                grid, block, *arguments, stream=queue, shared=shared, cooperative=bool(cooperative)
            )

        return bind

    def _plan(self, text: tuple[int, ...]) -> ExecutionPlan:
        """A cuDNN plan from its text in the file."""
        json = bytes(self._stored(text)).decode()
        with self.device.current():
            return ExecutionPlan(None, handle_of(self.device), json=json)

    def _execute(self, text: Any, operands: Any, workspace: Any, nbytes: Any) -> Bind:
        """A cuDNN plan; operands: uid, and an address or the bytes of a scalar."""
        key = tuple(text)
        if key not in self._plans:
            self._plans[key] = self._plan(key)
        plan = self._plans[key]
        if plan.workspace > nbytes:
            raise PlanFileError(
                f"cuDNN's plan takes {plan.workspace} bytes of workspace, {nbytes} were recorded"
            )
        numbers = {
            uid: np.frombuffer(bytes.fromhex(v), np.uint8) for uid, v in operands if isinstance(v, str)
        }

        def bind(regions: Regions, stream: int) -> Run:
            addresses = {
                uid: numbers[uid].ctypes.data if uid in numbers else regions.at(v) for uid, v in operands
            }
            run = plan.bind(
                handle_of(self.device), VariantPack(addresses, regions.at(workspace, plan.workspace)), stream
            )
            return _keeping(run, numbers)

        return bind

    def _multiply(
        self, facts: Any, places: Any, extras: Any, algorithm: Any, workspace: Any, nbytes: Any
    ) -> Bind:
        """A cuBLASLt product."""
        matrices = Matrices(**facts)

        def bind(regions: Regions, stream: int) -> Run:
            first, second, d = (regions.at(p) for p in places)
            bias, aux, residual = (regions.at(p) for p in extras)
            a, b = (second, first) if matrices.swapped else (first, second)
            space = (regions.at(workspace, nbytes), nbytes)
            code = bytes.fromhex(algorithm)
            return multiply(matrices, self.device, (a, b, d), (bias, aux, residual), code, space, stream)

        return bind

    def _fill(self, place: Any, byte: Any, nbytes: Any) -> Bind:
        def bind(regions: Regions, stream: int) -> Run:
            address, queue = regions.at(place, nbytes), as_stream(stream, self.device)
            fill = self.device.platform.fill
            return lambda: fill(address, byte, nbytes, queue)

        return bind

    def _copy(self, to: Any, origin: Any, nbytes: Any) -> Bind:
        def bind(regions: Regions, stream: int) -> Run:
            target, source = regions.at(to, nbytes), regions.at(origin, nbytes)
            queue, copy = as_stream(stream, self.device), self.device.platform.copy
            return lambda: copy(target, source, nbytes, queue)

        return bind


def _argument(data: Any, regions: Regions) -> Any:
    """A kernel's argument in ctypes' form."""
    kind, value = data
    if kind == "at":
        return ctypes.c_void_p(regions.at(value))
    if kind == "bytes":
        raw = bytes.fromhex(value)
        return (ctypes.c_char * len(raw)).from_buffer_copy(raw)
    if kind == "table":
        entries = [int(e[0]) if isinstance(e, list) else regions.at(e) for e in value]
        return (ctypes.c_uint64 * len(entries))(*entries)
    raise PlanFileError(f"a kernel has no argument {kind!r}")


def _keeping(run: Run, kept: object) -> Run:
    """The run, which keeps an object alive."""

    def again(_kept: object = kept) -> None:
        run()

    return again


def gpu(device: Device) -> dict[str, Any]:
    """The properties of a GPU that a plan depends on, beside libraries."""
    machine = device.machine
    return {
        "device": "cuda",
        "gpu": machine.name,
        "target": machine.target,
        "multiprocessors": machine.multiprocessors,
    }


def cuDNN() -> str:
    """The version; "" if it is not available. Opens what its handles need."""
    return _version(cudnn.library) if open_libraries() else ""


def cuBLASLt() -> str:
    """The version; "" if it is not available."""
    return _version(cublaslt.library)


def _version(library: Any) -> str:
    return ".".join(map(str, library.version)) if library.available() else ""
