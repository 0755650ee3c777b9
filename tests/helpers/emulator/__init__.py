"""The CUDA kernels on a CPU: compiled as C++ with the threads of a block as fibers (see emulator.h)."""

import ctypes
import hashlib
import mmap
import os
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
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
#: Guard bytes around each buffer, which no kernel may write.
GUARD = 256
#: A GCC sanitizer for compiling kernels: "undefined" or "address" (`make sanitize`).
SANITIZER = os.environ.get("LAMINA_TEST_SANITIZER", "")
#: Code by -O0 takes twice the time, and -O1 takes a fifth longer to compile. From -O2 on, GCC 12 drops the
#: rounding of `(double)(float)x` when vectorizing two of them: these levels need -fno-tree-slp-vectorize.
OPTIONS = ["-std=c++17", "-Og", "-w", "-fPIC", "-ffp-contract=off", "-pthread", "-fno-gnu-unique"]
#: Some compilers check jumps by default (_FORTIFY_SOURCE) and mistake one between fibers for a corrupted stack.
OPTIONS += ["-U_FORTIFY_SOURCE"]
if SANITIZER:
    OPTIONS += ["-g1", f"-fsanitize={SANITIZER}", "-fno-sanitize-recover=all"]
#: Kernels see only C headers, and resolve calls in the runtime and the libraries linked with it.
_KERNEL = ["-nostdinc++", f"-I{HERE}", f"-I{INCLUDE}"]
_LINKED = ["-shared", "-nostdlib"]


_contrary = ContextVar("contrary", default=False)


@contextmanager
def contrary() -> Iterator[None]:
    """Warps run to the next barrier one by one, the last one first; asynchronous copies arrive late."""
    token = _contrary.set(True)
    try:
        yield
    finally:
        _contrary.reset(token)


#: Kernel files whose numeric macros may be variables, except these: then one program serves all shapes.
_SIZED = {"conv/direct.cu": (), "conv/fast_fir.cu": ("V",)}
_INCLUDED = re.compile(r'^\s*#include "([^"]+)"', re.MULTILINE)
_NUMBER = re.compile(r"^#define (\w+) (-?\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Compiled:
    """A program for the host, and the numbers for one of its shapes."""

    library: Any
    numbers: tuple[int, ...] = ()

    def launch(self, grid: Any, threads: Any, pointers: Any) -> None:
        """Run all blocks, one after the other."""
        self._run(self.library.launch, grid, threads, pointers)

    def launch_together(self, grid: Any, threads: Any, pointers: Any) -> None:
        """Run all blocks at the same time."""
        self._run(self.library.launch_together, grid, threads, pointers)

    def _run(self, function: Any, *arguments: Any) -> None:
        with _running if self.numbers else nullcontext():
            if self.numbers:
                self.library.set_numbers((ctypes.c_longlong * len(self.numbers))(*self.numbers))
            function(*arguments)


_running = threading.Lock()


def compiled(program: Program) -> Compiled:
    """The program, compiled for the host."""
    text, numbers = _with_variables(program)
    return Compiled(_compiled(text, ("-DCONTRARY",) * _contrary.get()), numbers)


@cache
def _with_variables(program: Program) -> tuple[str, tuple[int, ...]]:
    """The compiler's input, and the numbers to set before a launch."""
    source, names = program.source, dict[str, int]()
    if getattr(program, "file", "") in _SIZED:
        asked = " ".join(line for line in source.splitlines() if line.lstrip().startswith("#if"))
        fixed = {*re.findall(r"\w+", asked), *_SIZED[program.file]}
        names = {name: int(value) for name, value in _NUMBER.findall(program.text) if name not in fixed}
        variables = {
            name: f"static long long number_{name};\n#define {name} ((int)number_{name})" for name in names
        }
        source = _NUMBER.sub(lambda m: variables.get(m[1], m[0]), source)
    setting = " ".join(f"number_{name} = v[{i}];" for i, name in enumerate(names))
    setter = f'extern "C" void set_numbers(const long long *v) {{ {setting} }}\n'
    text = f'#include "emulator.h"\n{source}\n{setter}EMULATE({program.name})\n'
    return text, tuple(names.values())


@cache
def _compiled(text: str, mode: tuple[str, ...]) -> Any:
    runtime = _runtime(mode)
    library = _folder() / f"{_digest(text, *_headers(text), runtime.name, *mode)}.so"
    if not library.exists():
        given = ["-x", "c++", "-", "-x", "none", str(runtime), "-lgcc"]
        _make(library, [*mode, f"-I{_precompiled(mode)}", *_KERNEL, *_LINKED, *given], text)
    return ctypes.CDLL(str(library))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join((*texts, *OPTIONS, *_LINKED)).encode()).hexdigest()


def _headers(text: str) -> Iterator[str]:
    """The text of each header that a text includes, directly or through others."""
    seen, left = set[str](), _INCLUDED.findall(text)
    while left:
        name = left.pop()
        file = next((folder / name for folder in (HERE, INCLUDE) if (folder / name).exists()), None)
        if name not in seen and file is not None:
            seen.add(name)
            yield _text_of(file)
            left += _INCLUDED.findall(_text_of(file))


@cache
def _text_of(file: Path) -> str:
    return file.read_text()


@cache
def _runtime(mode: tuple[str, ...]) -> Path:
    """Fibers, barriers and launches, compiled once for all kernels."""
    text = _text_of(HERE / "runtime.cpp")
    library = _folder() / f"runtime-{_digest(text, *_headers(text), *mode)}.so"
    if not library.exists():
        _make(library, [*mode, f"-I{HERE}", "-shared", "-x", "c++", "-"], text)
    return library


@cache
def _precompiled(mode: tuple[str, ...]) -> Path:
    """A folder with emulator.h precompiled, as it takes as long as a kernel."""
    text = _text_of(HERE / "emulator.h")
    folder = _folder() / _digest(text, *_headers(text), *mode)
    folder.mkdir(exist_ok=True)
    if not (folder / "emulator.h.gch").exists():
        _make(folder / "emulator.h.gch", [*mode, *_KERNEL, "-x", "c++-header", str(HERE / "emulator.h")])
    return folder


def _folder() -> Path:
    folder = cache_directory() / "emulated"
    folder.mkdir(exist_ok=True)
    return folder


def _make(file: Path, arguments: list[str], text: str = "") -> None:
    """Let the compiler write a file, safely beside concurrent processes."""
    made = file.with_suffix(f".{os.getpid()}")
    subprocess.run(["g++", *OPTIONS, *arguments, "-o", str(made)], input=text, text=True, check=True)
    made.rename(file)


class Kernel:
    """The host counterpart of the result of `Program.load`: patch it in to run plans with Device("cpu")."""

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
    """A host buffer, aligned like device memory, with guard zones."""

    def __init__(self, nbytes: int, fill: int = 0xFF) -> None:
        self.nbytes = nbytes
        self.raw = np.full(nbytes + 2 * GUARD + 256, 0xA5, np.uint8)
        start = self.raw.__array_interface__["data"][0]
        self.offset = -(start + GUARD) % 256 + GUARD
        self.pointer = start + self.offset
        self.bytes = self.raw[self.offset : self.offset + nbytes]
        self.bytes[:] = fill

    def check(self, name: str) -> None:
        """Raise if something was written outside."""
        outside = np.concatenate([self.raw[: self.offset], self.raw[self.offset + self.nbytes :]])
        assert (outside == 0xA5).all(), f"{name}: a kernel wrote outside of it"


class Fenced:
    """Host memory between two guard pages; it begins right after the first, or ends right before the last.

    An access outside, including reads, ends the process by SIGSEGV. Addresses are multiples of 16.
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
    """One launch of blocks that wait for each other; with counters twice, as they must be left unchanged."""
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


def run_plan(plan: Plan, arrays: Sequence[Array], *, misaligned: bool = False) -> tuple[Array, ...]:
    """The outputs of a plan of Lamina's kernels. misaligned: at addresses that are not aligned to 16 bytes."""
    if plan.view:
        flat = pack(arrays[0], plan.inputs[0].physical)
        return (unpack(flat, plan.outputs[0].physical, plan.outputs[0].shape),)
    assert isinstance(plan.make, Launches)
    shift = [s.dtype.itemsize if misaligned else 0 for s in (*plan.inputs, *plan.outputs)]
    inputs = [_laid(a, s, d) for a, s, d in zip(arrays, plan.inputs, shift, strict=False)]
    outputs = [Memory(s.nbytes + d) for s, d in zip(plan.outputs, shift[len(inputs) :], strict=True)]
    scratch = Memory(plan.workspace)
    call = Call(
        tuple(m.pointer + d for m, d in zip(inputs, shift, strict=False)),
        tuple(m.pointer + d for m, d in zip(outputs, shift[len(inputs) :], strict=True)),
        scratch.pointer,
    )
    steps = plan.make.plain() if misaligned and plan.make.plain else plan.make.steps
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
