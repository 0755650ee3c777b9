"""Own kernels as values: source, launch, and the resulting plan.

Planning touches no device: a plan of own kernels can be made, and its programs compiled for any architecture,
on a machine without a GPU. The kernels are loaded when the plan is bound to addresses.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lamina.backends import Call, NoKernel, Plan, PlanTape, Run
from lamina.ops.core import Array
from lamina.runtime import Buffer, Device, Kernel, Machine, Stream, compile_cubin, compile_kernel
from lamina.runtime.ahead import compilers
from lamina.spec import DType, Layout, Spec

#: The folder of the families; a kernel file is named from here: "conv/direct.cu".
KERNELS = Path(__file__).parents[1]
#: Headers that kernel files share.
INCLUDE = KERNELS / "include"
#: Bytes of a vector access, and its address alignment.
VECTOR = 16
#: Blocks per multiprocessor beyond which kernels that can loop do so: enough to fill it several times over.
LOOPING = 16
WORKSPACE_ALIGNMENT = 256

_C_TYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "f8",
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint8": "u8",
    "bool": "bool",
}
_BITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}


def c_type(dtype: DType) -> str:
    """The element type's name in the kernels."""
    return _C_TYPES[dtype.name]


def bits_type(dtype: DType) -> str:
    """An unsigned type of the same size, for kernels that only copy elements."""
    return _BITS[dtype.itemsize]


def wide_type(dtype: DType) -> str:
    """The type of arithmetic on it."""
    return c_type(dtype.compute)


@cache
def _file(name: str) -> str:
    return (KERNELS / name).read_text()


@dataclass(frozen=True)
class Program:
    """CUDA C++ with one kernel `name`: `text` (constants and functions), then the kernel file `file`.

    stepwise: every operation is rounded separately (no FMA contraction), so that several kernels compute bitwise
        equal values.
    """

    name: str
    file: str = ""
    text: str = ""
    stepwise: bool = False

    @property
    def source(self) -> str:
        """The source for the compiler."""
        body = _file(self.file) if self.file else ""
        return f'#include "common.cuh"\n{self.text}\n{body}'

    @property
    def options(self) -> dict[str, object]:
        """The compiler's options."""
        return {"fma": False} if self.stepwise else {}

    def cubin(self, arch: str) -> bytes:
        """Machine code for an architecture ("sm_90", `Machine.target`); needs no GPU."""
        return compile_cubin(self.source, arch=arch, options=self.options, includes=[INCLUDE], name=self.name)

    def compile_ahead(self, arch: str) -> None:
        """Have a thread compile the machine code that `load` or `cubin` will need."""
        _begun(self, arch)

    def load(self, device: Device) -> Kernel:
        """The kernel, loaded on a device."""
        return _loaded(self, device)


@lru_cache(maxsize=8192)
def _begun(program: Program, arch: str) -> None:
    """Start only once: most programs are launched many times."""
    compilers.begin(partial(program.cubin, arch))


@lru_cache(maxsize=8192)
def _loaded(program: Program, device: Device) -> Kernel:
    """Cached by the program itself: eager ops bind at every call, and must not read the includes again."""
    return compile_kernel(
        program.source, program.name, device=device, options=program.options, includes=[INCLUDE]
    )


def constants(**values: int | str | float) -> str:
    """`#define` lines."""
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def neutral(kind: str, dtype: DType) -> str:
    """The neutral element of sum, prod, max, min or logsumexp, as C source; 0 for others."""
    if kind not in ("max", "min", "logsumexp"):
        return "1" if kind == "prod" else "0"
    if dtype.is_float:
        return "INFINITY_F" if kind == "min" else "(-INFINITY_F)"
    if dtype.kind == "b":
        return "1" if kind == "min" else "0"
    most = 2 ** (8 * dtype.itemsize - (dtype.kind == "i")) - 1
    lowest = f"(-{most}LL - 1)" if dtype.kind == "i" else "0"
    return f"{most}LL" if kind == "min" else lowest


# --------------------------------------------------------------------------------------------------- arguments


@dataclass(frozen=True)
class Place:
    """An address that is known when the plan is bound: of an input, an output or the workspace, plus bytes."""

    kind: str  # "input", "output" or "workspace"
    index: int = 0
    offset: int = 0

    def address(self, call: Call) -> int:
        """The address in a call."""
        if self.kind == "workspace":
            return call.workspace + self.offset
        return (call.inputs if self.kind == "input" else call.outputs)[self.index] + self.offset

    def c(self, call: Call) -> Any:
        """The value in ctypes' form."""
        return ctypes.c_void_p(self.address(call))

    def recorded(self, call: Call, tape: PlanTape) -> list[Any]:
        """As data."""
        return ["at", self.address(call)]


def source(index: int = 0, offset: int = 0) -> Place:
    """The address of an input."""
    return Place("input", index, offset)


def target(index: int = 0, offset: int = 0) -> Place:
    """The address of an output."""
    return Place("output", index, offset)


def scratch(offset: int = 0) -> Place:
    """An address in the workspace."""
    return Place("workspace", 0, offset)


@dataclass(frozen=True, eq=False)
class HostNumber(Place):
    """A scalar on the host, which cuDNN takes by value."""

    _: KW_ONLY
    values: Array

    @classmethod
    def of(cls, value: float) -> HostNumber:
        """A float32 number."""
        return cls("number", values=np.full(4, value, np.float32))

    def address(self, call: Call) -> int:
        """Its address, in every call."""
        return int(self.values.ctypes.data)

    def __reduce__(self) -> tuple[Callable[[float], HostNumber], tuple[float]]:
        return HostNumber.of, (float(self.values[0]),)


@dataclass(frozen=True)
class Number:
    """A number of a C type: "i32", "u32", "i64", "u64", "f32", "f64"."""

    value: float
    type: str

    def c(self, call: Call) -> Any:
        """The value in ctypes' form."""
        return _NUMBERS[self.type](self.value)

    def recorded(self, call: Call, tape: PlanTape) -> list[Any]:
        """As data: the bytes that the kernel gets."""
        return ["bytes", bytes(self.c(call)).hex()]


@dataclass(frozen=True)
class Table:
    """Addresses and integers, 64 bits each, in one parameter passed by value."""

    entries: tuple[Place | int, ...]

    def c(self, call: Call) -> Any:
        """The value in ctypes' form."""
        values = [e.address(call) if isinstance(e, Place) else e for e in self.entries]
        return (ctypes.c_uint64 * len(values))(*values)

    def recorded(self, call: Call, tape: PlanTape) -> list[Any]:
        """As data: addresses, and numbers in lists."""
        return ["table", [e.address(call) if isinstance(e, Place) else [e] for e in self.entries]]


@dataclass(frozen=True, eq=False)
class DeviceTable:
    """Constants of a plan, such as a table of weights: copied to the device once, when the plan is bound."""

    values: np.ndarray[Any, Any]
    _copies: dict[Device, Buffer] = field(default_factory=dict, repr=False)

    def c(self, call: Call) -> Any:
        """The value in ctypes' form: the host address, which a device cannot read (see `on`)."""
        return ctypes.c_void_p(self.values.ctypes.data)

    def recorded(self, call: Call, tape: PlanTape) -> list[Any]:
        """As data: the future address of the numbers."""
        return ["at", tape.keep(self.values)]

    def __reduce__(self) -> tuple[type[DeviceTable], tuple[np.ndarray[Any, Any]]]:
        return DeviceTable, (self.values,)

    def on(self, device: Device) -> Buffer:
        """The copy on a device."""
        if device not in self._copies:
            values = np.ascontiguousarray(self.values)
            buffer = device.allocate(values.nbytes)
            device.platform.copy(buffer.pointer, values.ctypes.data, values.nbytes, device.default_stream)
            device.default_stream.synchronize()
            self._copies[device] = buffer
        return self._copies[device]


_NUMBERS: dict[str, Any] = {
    "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32,
    "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}
Argument = Place | Number | Table | DeviceTable


# ------------------------------------------------------------------------------------------------------- steps


class Queue(Stream):
    """A stream known only by its handle."""

    def __init__(self, device: Device, handle: int) -> None:
        super().__init__(device)
        self.handle = handle


@dataclass(frozen=True)
class Launch:
    """One launch of one program.

    waves: for a grid-stride kernel, the most blocks per multiprocessor along the first axis; 0 for one that needs the
        whole grid.
    """

    program: Program
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[Argument, ...]
    shared: int = 0
    waves: int = 0

    def grid_on(self, machine: Machine) -> tuple[int, ...]:
        """The grid on a machine."""
        most = self.waves * machine.multiprocessors or self.grid[0]
        return (min(self.grid[0], most), *self.grid[1:])

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        values = [a.on(device) if isinstance(a, DeviceTable) else a.c(call) for a in self.arguments]
        queue = Queue(device, call.stream)
        grid = self.grid_on(device.machine) if self.waves else self.grid
        kernel = self.program.load(device)
        return kernel.prepare(grid, self.block, *values, stream=queue, shared=self.shared)

    def recorded(self, device: Device, call: Call, tape: PlanTape) -> list[Any]:
        """As data."""
        grid = self.grid_on(device.machine) if self.waves else self.grid
        values = [a.recorded(call, tape) for a in self.arguments]
        return [_launch(self.program, device, tape, grid, self.block, self.shared, values, cooperative=False)]


@dataclass(frozen=True)
class Together:
    """A cooperative launch, whose blocks wait for each other: all of them must be resident at the same time.

    The kernel takes `first`, the address of `grid[0]` counters (32 bits, zero but for the top bit, and left so), then
    `last`. otherwise: the fallback for devices on which not all blocks are resident at once. counted: whether there
    are counters.
    """

    program: Program
    grid: tuple[int, ...]
    block: tuple[int, ...]
    first: tuple[Argument, ...]
    last: tuple[Argument, ...]
    shared: int = 0
    otherwise: tuple[Bindable, ...] = ()
    counted: bool = True

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        kernel = self.program.load(device)
        if not self._has_room(kernel, device.machine):
            return sequence([step.bind(device, call) for step in self.otherwise])
        counters = [_counters(device).take(self.grid[0])] if self.counted else []
        values = [*(a.c(call) for a in self.first), *counters, *(a.c(call) for a in self.last)]
        queue = Queue(device, call.stream)
        return kernel.prepare(
            self.grid, self.block, *values, stream=queue, shared=self.shared, cooperative=True
        )

    def _has_room(self, kernel: Kernel, machine: Machine) -> bool:
        room = kernel.resident_blocks(prod(self.block), shared=self.shared) * machine.multiprocessors
        return prod(self.grid) <= room

    def recorded(self, device: Device, call: Call, tape: PlanTape) -> list[Any] | None:
        """As data."""
        if device.planned is None and not self._has_room(self.program.load(device), device.machine):
            return recorded_steps(self.otherwise, device, call, tape)
        counters = [["at", tape.counters(self.grid[0])]] if self.counted else []
        first, last = ([a.recorded(call, tape) for a in part] for part in (self.first, self.last))
        values = [*first, *counters, *last]
        return [
            _launch(self.program, device, tape, self.grid, self.block, self.shared, values, cooperative=True)
        ]


class Counters:
    """Zeroed counters on a device for `Together`. Each bound launch has its own as long as it lives, so that
    concurrent launches, including those of captured programs, never share any. Returned counters are reused as late
    as possible.
    """

    COUNT = 1 << 16

    def __init__(self, device: Device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._memory, self._next = device.allocate(0), 0
        self._returned: dict[int, deque[tuple[Buffer, int]]] = {}

    def take(self, count: int) -> Buffer:
        """Take `count` of them, in cache lines of their own."""
        size = round_up(count, 32)
        with self._lock:
            returned = self._returned.setdefault(size, deque())
            held, at = returned.popleft() if returned else self._fresh(size)
        owner = _Taken(held, at, returned)
        return Buffer.borrow(held.pointer + 4 * at, 4 * count, self._device, owner)

    def _fresh(self, size: int) -> tuple[Buffer, int]:
        if self._next + size > self._memory.nbytes // 4:
            nbytes = 4 * max(size, self.COUNT)
            self._memory, self._next = self._device.allocate(nbytes), 0
            self._device.platform.fill(self._memory.pointer, 0, nbytes, self._device.default_stream)
            self._device.synchronize()
        at, self._next = self._next, self._next + size
        return self._memory, at


class _Taken:
    """Returns counters when it is destroyed."""

    def __init__(self, held: Buffer, at: int, returned: deque[tuple[Buffer, int]]) -> None:
        self._place, self._returned = (held, at), returned

    def __del__(self) -> None:
        self._returned.append(self._place)


@cache
def _counters(device: Device) -> Counters:
    return Counters(device)


@dataclass(frozen=True)
class Fill:
    """Set bytes to one value."""

    place: Place
    byte: int
    nbytes: int

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the address."""
        address, queue, fill = self.place.address(call), Queue(device, call.stream), device.platform.fill

        def run() -> None:
            fill(address, self.byte, self.nbytes, queue)

        return run

    def recorded(self, device: Device, call: Call, tape: PlanTape) -> list[Any]:
        """As data."""
        return [["fill", self.place.address(call), self.byte, self.nbytes]]


@dataclass(frozen=True)
class Copy:
    """Copy bytes within the device."""

    to: Place
    origin: Place
    nbytes: int

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        to, origin = self.to.address(call), self.origin.address(call)
        queue, copy = Queue(device, call.stream), device.platform.copy

        def run() -> None:
            copy(to, origin, self.nbytes, queue)

        return run

    def recorded(self, device: Device, call: Call, tape: PlanTape) -> list[Any]:
        """As data."""
        return [["copy", self.to.address(call), self.origin.address(call), self.nbytes]]


@dataclass(frozen=True)
class SubPlan:
    """Another plan as a step, on some of the call's operands; its workspace begins at `offset` of the call's."""

    plan: Plan
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    offset: int = 0

    @property
    def launches(self) -> int:
        """The plan's."""
        return self.plan.launches

    def inner(self, call: Call) -> Call:
        """The inner plan's call within a call."""
        given, made = (tuple(p.address(call) for p in places) for places in (self.inputs, self.outputs))
        return Call(given, made, call.workspace + self.offset, call.stream)

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        return self.plan.bind(self.inner(call))

    def recorded(self, device: Device, call: Call, tape: PlanTape) -> list[Any] | None:
        """As data."""
        return self.plan.recorded(self.inner(call), tape)


def check_join(first: Plan, second: Plan) -> None:
    """Check that `second`, as a `SubPlan` after `first`, reads its first output in the same layout. Raises
    NoKernel."""
    y, x = first.outputs[0], second.inputs[0]
    if not y.same_memory(x):
        raise NoKernel(
            f"{first.label} leaves {y} and {second.label} reads {x}: a graph puts a reorder between"
        )


@dataclass(frozen=True)
class Aligned:
    """No work: rejects addresses unsuitable for 16-byte access, where there are no alternative kernels."""

    def bind(self, device: Device, call: Call) -> Run:
        """Check the addresses. Raises ValueError."""
        misaligned = [hex(a) for a in (*call.inputs, *call.outputs) if a % VECTOR]
        if misaligned:
            raise ValueError(
                f"the kernel takes addresses that are multiples of {VECTOR}, got {', '.join(misaligned)}; "
                "copy the tensor to memory of its own"
            )
        return nothing

    def recorded(self, device: Device, call: Call, tape: PlanTape) -> list[Any]:
        """Nothing: a saved plan's regions are aligned, and so are offsets within them once `bind` took them."""
        self.bind(device, call)
        return []


def recorded_steps(steps: Sequence[Bindable], device: Device, call: Call, tape: PlanTape) -> list[Any] | None:
    """Steps as data; None where one cannot be serialized."""
    found: list[Any] = []
    for step in steps:
        record = getattr(step, "recorded", None)
        part = None if record is None else record(device, call, tape)
        if part is None:
            return None
        found += part
    return found


def _launch(
    program: Program,
    device: Device,
    tape: PlanTape,
    grid: Sequence[int],
    block: Sequence[int],
    shared: int,
    values: list[Any],
    *,
    cooperative: bool,
) -> list[Any]:
    """A launch as data."""
    code = tape.store(program.cubin(device.machine.target))
    return ["launch", code, program.name, list(grid), list(block), shared, cooperative, values]


class Bindable(Protocol):
    """Something that can be bound to addresses and then runs: a launch, a fill, a copy, a library's plan."""

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        ...


def nothing() -> None:
    """The work for an empty tensor: none."""


def sequence(runs: Sequence[Run]) -> Run:
    """All of `runs`, one after the other."""
    runs = [run for run in runs if run is not nothing]
    if not runs:
        return nothing
    if len(runs) == 1:
        return runs[0]
    if len(runs) == 2:
        first, second = runs

        def both() -> None:
            first()
            second()

        return both

    def run() -> None:
        for one in runs:
            one()

    return run


@dataclass(frozen=True)
class Steps:
    """Returns steps that exist already."""

    steps: tuple[Bindable, ...]

    def __call__(self) -> tuple[Bindable, ...]:
        """The steps."""
        return self.steps


@dataclass(frozen=True)
class Launches:
    """The steps of a plan; called with a `Call` it binds them.

    plain: steps that work at any address; used when an address is not a multiple of `VECTOR`.
    """

    device: Device
    steps: tuple[Bindable, ...]
    plain: Callable[[], tuple[Bindable, ...]] | None = None

    @property
    def launches(self) -> int:
        """How many kernels the steps queue: one each, unless a step differs."""
        return sum(getattr(step, "launches", 1) for step in self.steps)

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs to compile."""
        return tuple(step.program for step in self.steps if isinstance(step, Launch | Together))

    @property
    def plain_programs(self) -> tuple[Program, ...]:
        """The programs to compile for unaligned addresses."""
        steps = self.plain() if self.plain else ()
        return tuple(step.program for step in steps if isinstance(step, Launch | Together))

    def chosen(self, call: Call) -> tuple[Bindable, ...]:
        """The steps for a call's addresses."""
        if self.plain is not None and any(p % VECTOR for p in (*call.inputs, *call.outputs)):
            return self.plain()
        return self.steps

    def compile_ahead(self) -> None:
        """Have threads compile the kernels, in their order."""
        for step in self.steps:
            if isinstance(step, Launch | Together):
                step.program.compile_ahead(self.device.machine.target)
            elif isinstance(step, SubPlan):
                step.plan.compile_ahead()

    def __call__(self, call: Call) -> Run:
        """Bind to addresses."""
        return sequence([step.bind(self.device, call) for step in self.chosen(call)])

    def recorded(self, call: Call, tape: PlanTape) -> list[Any] | None:
        """As data, for a call's addresses."""
        return recorded_steps(self.chosen(call), self.device, call, tape)

    def __reduce__(self) -> tuple[type[Launches], tuple[object, ...]]:
        return Launches, (self.device, self.steps, Steps(self.plain()) if self.plain else None)


def kernel_plan(
    device: Device,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    steps: Sequence[Bindable],
    *,
    label: str,
    workspace: int = 0,
    aliases: Mapping[int, int] | None = None,
    plain: Callable[[], tuple[Bindable, ...]] | None = None,
    relaid: Callable[[Layout], Plan | None] | None = None,
) -> Plan:
    """The plan that runs `steps`."""
    return Plan(
        inputs=tuple(spec.fixed for spec in inputs),
        outputs=tuple(spec.fixed for spec in outputs),
        make=Launches(device, tuple(steps), plain),
        workspace=workspace,
        aliases=dict(aliases or {}),
        label=f"kernel {label}",
        relaid=relaid,
    )


def looping(
    program: Program, threads: int, arguments: Sequence[Argument], *, block: int = 256, each: int = 1
) -> Launch:
    """A launch of a grid-stride kernel with this many threads, at least one block.

    each: multiplies the number of blocks beyond which threads loop, so that the last ones end at about the same time.
    """
    blocks = max(1, -(-threads // block))
    return Launch(program, (blocks,), (block,), tuple(arguments), waves=LOOPING * each)


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `value`."""
    return -(-value // multiple) * multiple


def lanes_of(accesses: int, most: int) -> tuple[int, int]:
    """(lanes that share a row of `accesses` accesses, accesses per lane): few idle lanes, and at most `most`
    accesses; among equals the most lanes. Lanes are a power of two up to a warp, and four of them read a cache line.
    (32, more than `most`) where none fit."""
    found = [(lanes, -(-accesses // lanes)) for lanes in (32, 16, 8, 4, 2, 1) if lanes >= min(4, accesses)]
    fitting = [(lanes, turns) for lanes, turns in found if turns <= most]
    return min(fitting, key=lambda pair: pair[0] * pair[1]) if fitting else found[0]
