"""The CUDA kernels on a CPU: compiled as C++ with the threads of a block as fibers (see emulator.h)."""

import ctypes
import hashlib
import mmap
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lamina.backends import Call, Plan
from lamina.backends.cuda.launch.program import (
    INCLUDE,
    Copy,
    Fill,
    Launch,
    Launches,
    Program,
    SubPlan,
    Together,
)
from lamina.ops.core import Array
from lamina.runtime import cache_directory, host_array
from lamina.spec import Spec, pack, unpack

HERE = Path(__file__).parent
#: Bytes around each buffer that no kernel may write.
GUARD = 256


_contrary = ContextVar("contrary", default=False)


@contextmanager
def contrary() -> Iterator[None]:
    """Warps run to the next barrier one by one, the last one first; asynchronous copies arrive late."""
    token = _contrary.set(True)
    try:
        yield
    finally:
        _contrary.reset(token)


def compiled(program: Program) -> Any:
    """The program's functions `launch` and `launch_together`."""
    return _compiled(program, ("-DCONTRARY",) * _contrary.get())


@cache
def _compiled(program: Program, mode: tuple[str, ...]) -> Any:
    text = f'#include "emulator.h"\n{program.source}\nEMULATE({program.name})\n'
    headers = "".join(p.read_text() for p in (*sorted(INCLUDE.glob("*.cuh")), HERE / "emulator.h"))
    key = hashlib.sha256("".join((headers, text, *mode)).encode()).hexdigest()
    library = _folder() / f"{key}.so"
    if not library.exists():
        library.with_suffix(".cpp").write_text(text)  # EXPERIMENT
        include = [f"-I{_precompiled(mode)}", f"-I{HERE}", f"-I{INCLUDE}"]
        _make(library, [*mode, *include, "-shared", "-x", "c++", "-"], text)
    return ctypes.CDLL(str(library))


@cache
def _precompiled(mode: tuple[str, ...]) -> Path:
    """A folder with emulator.h as the compiler has read it, which takes longer than most kernels."""
    header = (HERE / "emulator.h").read_text()
    folder = _folder() / hashlib.sha256("".join((header, *mode)).encode()).hexdigest()
    folder.mkdir(exist_ok=True)
    if not (folder / "emulator.h.gch").exists():
        _make(folder / "emulator.h.gch", [*mode, "-x", "c++-header", str(HERE / "emulator.h")])
    return folder


def _folder() -> Path:
    folder = cache_directory() / "emulated"
    folder.mkdir(exist_ok=True)
    return folder


def _make(file: Path, arguments: list[str], text: str = "") -> None:
    """Let the compiler write a file, beside others that may do the same."""
    made = file.with_suffix(f".{os.getpid()}")
    command = [
        "g++",
        "-std=c++17",
        os.environ.get("EMU_O", "-O0"),
        "-w",
        "-fPIC",
        "-ffp-contract=off",
        "-pthread",
        "-fno-gnu-unique",
    ]
    subprocess.run([*command, *arguments, "-o", str(made)], input=text, text=True, check=True)
    made.rename(file)


class Kernel:
    """What `Program.load` gives on a GPU, on the host: patch it in to run plans with Device("cpu")."""

    def __init__(self, program: Program, device: object = None) -> None:
        self.program = program

    def prepare(self, grid: Any, block: Any, *values: Any, stream: object = None, shared: int = 0) -> Any:
        """A function that runs the kernel."""
        extents = (grid,) if isinstance(grid, int) else tuple(grid)
        sizes = (ctypes.c_uint * 3)(*(*extents, 1, 1)[:3])
        threads = block if isinstance(block, int) else block[0]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
        launch = compiled(self.program).launch

        def run(_kept: object = values) -> None:
            launch(sizes, ctypes.c_uint(threads), pointers)

        return run

    def launch(self, grid: Any, block: Any, *values: Any, stream: object = None) -> None:
        """Run at once."""
        self.prepare(grid, block, *values)()


class Memory:
    """A host buffer, aligned as device memory is, with guard zones."""

    def __init__(self, nbytes: int, fill: int = 0xFF) -> None:
        self.nbytes = nbytes
        self.raw = np.full(nbytes + 2 * GUARD + 256, 0xA5, np.uint8)
        start = self.raw.__array_interface__["data"][0]
        self.offset = -(start + GUARD) % 256 + GUARD
        self.pointer = start + self.offset
        self.bytes = self.raw[self.offset : self.offset + nbytes]
        self.bytes[:] = fill

    def check(self, name: str) -> None:
        """Raise when something was written outside."""
        outside = np.concatenate([self.raw[: self.offset], self.raw[self.offset + self.nbytes :]])
        assert (outside == 0xA5).all(), f"{name}: a kernel wrote outside of it"


class Fenced:
    """Host memory between two pages that nobody may touch; it begins behind the first, or ends before the last.

    An access outside, of reading too, ends the process by SIGSEGV. Addresses are multiples of 16.
    """

    def __init__(self, nbytes: int, *, behind: bool) -> None:
        inside = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, inside + 2 * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + mmap.PAGESIZE
        for fence in (start - mmap.PAGESIZE, start + inside):
            if _C.mprotect(ctypes.c_void_p(fence), ctypes.c_size_t(mmap.PAGESIZE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        self.pointer = start if behind else (start + inside - nbytes) // 16 * 16
        self.bytes = host_array(self.pointer, (nbytes,), np.uint8, owner=self)


_C = ctypes.CDLL(None, use_errno=True)


def run_steps(steps: Sequence[Any], call: Call) -> None:
    """Run launches, fills and copies in order."""
    for step in steps:
        if isinstance(step, Fill):
            ctypes.memset(step.place.address(call), step.byte, step.nbytes)
        elif isinstance(step, Copy):
            ctypes.memmove(step.to.address(call), step.origin.address(call), step.nbytes)
        elif isinstance(step, Launch):
            run_launch(step, call)
        elif isinstance(step, Together):
            run_together(step, call)
        elif isinstance(step, SubPlan) and isinstance(step.plan.make, Launches):
            inner = step.inner(call)
            run_steps(step.plan.make.chosen(inner), inner)
        else:
            step.bind(None, call)()


def run_together(step: Together, call: Call) -> None:
    """One launch of blocks that wait for each other; with counters twice: they must be left as they were found."""
    counters = (ctypes.c_uint32 * step.grid[0])()
    table = [ctypes.c_void_p(ctypes.addressof(counters))] if step.counted else []
    values = [*(a.c(call) for a in step.first), *table, *(a.c(call) for a in step.last)]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    grid = (ctypes.c_uint * 3)(*(*step.grid, 1, 1)[:3])
    for _ in range(1 + step.counted):
        compiled(step.program).launch_together(grid, ctypes.c_uint(step.block[0]), pointers)
        assert all(c & 0x7FFFFFFF == 0 for c in counters)


def run_launch(step: Launch, call: Call) -> None:
    """One launch."""
    values = [a.c(call) for a in step.arguments]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    grid = (ctypes.c_uint * 3)(*(*step.grid, 1, 1)[:3])
    compiled(step.program).launch(grid, ctypes.c_uint(step.block[0]), pointers)


def run_plan(plan: Plan, arrays: Sequence[Array], *, crooked: bool = False) -> tuple[Array, ...]:
    """The outputs of a plan of own kernels. crooked: at addresses that are not aligned to 16 bytes."""
    if plan.view:
        flat = pack(arrays[0], plan.inputs[0].physical)
        return (unpack(flat, plan.outputs[0].physical, plan.outputs[0].shape),)
    assert isinstance(plan.make, Launches)
    shift = [s.dtype.itemsize if crooked else 0 for s in (*plan.inputs, *plan.outputs)]
    inputs = [_laid(a, s, d) for a, s, d in zip(arrays, plan.inputs, shift, strict=False)]
    outputs = [Memory(s.nbytes + d) for s, d in zip(plan.outputs, shift[len(inputs) :], strict=True)]
    scratch = Memory(plan.workspace)
    call = Call(
        tuple(m.pointer + d for m, d in zip(inputs, shift, strict=False)),
        tuple(m.pointer + d for m, d in zip(outputs, shift[len(inputs) :], strict=True)),
        scratch.pointer,
    )
    steps = plan.make.plain() if crooked and plan.make.plain else plan.make.steps
    run_steps(steps, call)
    for i, memory in enumerate((*inputs, *outputs, scratch)):
        memory.check(f"buffer {i} of {plan.label}")
    found = zip(outputs, plan.outputs, shift[len(inputs) :], strict=True)
    return tuple(_read(m, s, d) for m, s, d in found)


def _laid(array: Array, spec: Spec, shift: int) -> Memory:
    assert array.shape == spec.shape
    flat = pack(array, spec.physical)
    memory = Memory(flat.nbytes + shift)
    memory.bytes[shift:] = flat.view(np.uint8).reshape(-1)
    return memory


def _read(memory: Memory, spec: Spec, shift: int) -> Array:
    if spec.numel == 0:
        return np.empty(spec.shape, spec.dtype.numpy)
    flat = memory.bytes[shift:].copy().view(spec.dtype.numpy)
    return unpack(flat, spec.physical, spec.shape)
