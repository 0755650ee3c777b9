"""The steps of a saved plan for a CPU."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from typing import Any

from lamina import onednn
from lamina.c import dnnl
from lamina.onednn import ARG, Memory, MemoryDesc, Primitive, post_op_argument, scale_argument
from lamina.onednn.attributes import Binary
from lamina.onednn.recipe import decode, decode_desc
from lamina.replay.addresses import SCRATCH, Regions, virtual
from lamina.replay.errors import OtherMachineError, PlanFileError
from lamina.replay.guards import GUARDS
from lamina.replay.operations import operation
from lamina.runtime import Device, host_array
from lamina.spec import as_dtype

Run = Callable[[], None]
#: Binds a step to memory, and on a GPU to a stream's handle.
Bind = Callable[[Regions, int], Run]

_ARGUMENTS = [getattr(ARG, name) for name in ARG.__all__ if name not in ("SCRATCHPAD", "MULTIPLE_SRC")]


class HostSteps:
    """Reads the steps of plans for the CPU; primitives that several steps share are made once.

    scratch: bytes of scratchpad that the steps so far need beyond the plan's own.
    """

    def __init__(self, device: Device) -> None:
        self.device, self.scratch = device, 0
        self._made: dict[str, Made] = {}

    def step(self, data: Sequence[Any]) -> Bind:
        """The binder of a step. Raises PlanFileError, and what libraries raise."""
        kind, *rest = data
        if kind == "onednn":
            return self._primitive(*rest)
        if kind == "guard":
            return self._guard(*rest)
        if kind in ("numpy", "anew"):
            return operation(self.device, kind, rest)
        raise PlanFileError(f"a plan for the CPU has no step {kind!r}")

    def _primitive(self, recipe: Any, name: Any, operands: Any, scratch: Any, room: Any) -> Bind:
        """A oneDNN primitive: its recipe, its kernel's name, operands as (argument, layout, address), scratchpad."""
        key = json.dumps(recipe)
        if key not in self._made:
            self._made[key] = Made(Primitive(decode(recipe)))
        found = self._made[key]
        made = found.primitive.desc
        if made.implementation != name:
            raise OtherMachineError(f"oneDNN runs {made.implementation} where the plan says {name}")
        if made.scratchpad.nbytes > room:
            self.scratch, scratch = max(self.scratch, made.scratchpad.nbytes), virtual(SCRATCH)
        places = [(int(a), found.desc(int(a), layout), address) for a, layout, address in operands]
        missing = found.arguments - {a for a, _, _ in places}
        if missing:
            raise PlanFileError(f"oneDNN's {made.context} lacks the arguments {sorted(missing)}")

        def bind(regions: Regions, stream: int) -> Run:
            memories = {a: Memory(desc, regions.at(address, desc.nbytes)) for a, desc, address in places}
            if made.scratchpad.nbytes:
                memories[ARG.SCRATCHPAD] = Memory(
                    made.scratchpad, regions.at(scratch, made.scratchpad.nbytes)
                )
            return found.primitive.bind(memories)

        return bind

    def _guard(self, name: Any, operands: Any, fast: Any, slow: Any) -> Bind:
        """Steps that run if operands, as (address, elements, dtype), pass a guard, else a fallback."""
        allowed = GUARDS[name]
        quick, careful = self.sequence(fast), Once(lambda: self.step(slow))
        arrays = [(address, int(count), as_dtype(dtype)) for address, count, dtype in operands]

        def bind(regions: Regions, stream: int) -> Run:
            first, second = quick(regions, stream), Once(lambda: careful()(regions, stream))
            read = [
                host_array(regions.at(a, count * d.itemsize), (count,), d.numpy) for a, count, d in arrays
            ]

            def run() -> None:
                if all(allowed(x) for x in read):
                    first()
                else:
                    second()()

            return run

        return bind

    def steps(self, data: Sequence[Any]) -> list[Bind]:
        """The binders of several steps."""
        return [self.step(one) for one in data]

    def sequence(self, steps: Any) -> Bind:
        """Several steps as one."""
        made = self.steps(steps)

        def bind(regions: Regions, stream: int) -> Run:
            runs = [one(regions, stream) for one in made]

            def run() -> None:
                for one in runs:
                    one()

            return runs[0] if len(runs) == 1 else run

        return bind


class Once:
    """A lazily created value."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._found = make, list[Any]()

    def __call__(self) -> Any:
        """The value."""
        if not self._found:
            self._found.append(self._make())
        return self._found[0]


class Made:
    """A primitive, and the memory descriptors of its arguments."""

    def __init__(self, primitive: Primitive) -> None:
        self.primitive, made = primitive, primitive.desc
        binary = (i for i, op in enumerate(made.post_ops) if isinstance(op, Binary))
        sources = range(len(made.recipe.sources or ()))
        possible = [*_ARGUMENTS, *map(post_op_argument, binary), *(ARG.MULTIPLE_SRC + i for i in sources)]
        self._descs = {a: desc for a in possible if (desc := made.argument(a)).ndim}
        scales = {scale_argument(a) for a in made.recipe.attributes.scales}
        self.arguments = self._descs.keys() | scales

    def desc(self, argument: int, layout: Any) -> MemoryDesc:
        """The descriptor of an operand: the primitive's own, or the plan's where that has none."""
        found = self._descs.get(argument) or decode_desc(layout)
        if found is None or not found.ndim:
            raise PlanFileError(f"oneDNN's {self.primitive.desc.context} has no argument {argument}")
        return found


def cpu(device: Device) -> dict[str, Any]:
    """The properties of a CPU that a plan depends on, beside libraries."""
    return {"device": "cpu", "processor": platform.machine()}


def oneDNN() -> str:
    """The version and the instruction set in use; "" if it is not available."""
    if not onednn.available():
        return ""
    version, isa = ".".join(map(str, dnnl.library.version)), dnnl.dnnl_get_effective_cpu_isa()
    return f"{version} {dnnl.dnnl_cpu_isa_t(isa).name.removeprefix('dnnl_cpu_isa_')}"
