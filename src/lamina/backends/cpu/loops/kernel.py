"""A kernel with its operands: bound to memory, and run on oneDNN's threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lamina._cached import cached_property
from lamina.backends import Call, Run
from lamina.backends.cpu.library import Held, Location
from lamina.backends.cpu.loops import compiler
from lamina.backends.quiet import sequence
from lamina.c import dnnl
from lamina.onednn.threads import SHARED

#: Each thread of an OpenMP team runs its part of {kernel, arguments, steps}.
_TEAM = """
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare void @GOMP_parallel(ptr, ptr, i32, i32)
define internal void @part(ptr %task) {
  %kernel = load ptr, ptr %task
  %second = getelementptr i64, ptr %task, i64 1
  %arguments = load ptr, ptr %second
  %third = getelementptr i64, ptr %task, i64 2
  %steps = load i64, ptr %third
  %me = call i32 @omp_get_thread_num()
  %all = call i32 @omp_get_num_threads()
  %i = sext i32 %me to i64
  %n = sext i32 %all to i64
  %before = mul i64 %steps, %i
  %first = sdiv i64 %before, %n
  %after = add i64 %before, %steps
  %last = sdiv i64 %after, %n
  call void %kernel(ptr %arguments, i64 %first, i64 %last)
  ret void
}
define void @team(ptr %task, i64 %a, i64 %b) {
  call void @GOMP_parallel(ptr @part, ptr %task, i32 0, i32 0)
  ret void
}
"""
_OPENMP = ("omp_get_thread_num", "omp_get_num_threads", "GOMP_parallel")


@lru_cache(maxsize=1)
def _team() -> compiler.Function | None:
    """A function that runs a task on the threads of oneDNN's OpenMP library; None where there is none."""
    if not dnnl.library.available():
        return None
    found = [getattr(dnnl.library.open(), name, None) for name in _OPENMP]
    for name, symbol in zip(_OPENMP, found, strict=True):
        if symbol is None:
            return None
        compiler.define(name, ctypes.cast(symbol, ctypes.c_void_p).value or 0)
    return compiler.compiled(_TEAM, "team")


@dataclass(frozen=True, eq=False)
class LoopKernel:
    """Assembly, its parameters, and the number of steps of its outermost loop.

    text: writes the assembly; called at the first bind. parameters: places of arrays, and numbers. work: total
        elements read and written. refused: binds the fallback for when the kernel sets its flag, which is then the
        last parameter: an array of one int64, initially 0.
    """

    text: Callable[[], str]
    parameters: Sequence[Location | Held | int]
    steps: int
    work: int
    refused: Callable[[Call], Run] | None = None

    @cached_property
    def function(self) -> compiler.Function:
        """The machine code."""
        return compiler.compiled(self.text())

    def __call__(self, call: Call) -> Run:
        """Bind to addresses."""
        words = [p if isinstance(p, int) else p.address(call) for p in self.parameters]
        flag = (ctypes.c_int64 * 1)()
        if self.refused is not None:
            words.append(ctypes.addressof(flag))
        run = self._runner((ctypes.c_int64 * len(words))(*words))
        return run if self.refused is None else _watched(run, flag, self.refused(call))

    def _runner(self, arguments: Any) -> Run:
        function, steps, address = self.function, self.steps, ctypes.addressof(arguments)
        team = _team() if self.work >= SHARED and steps > 1 else None
        task: Any = None
        if team is not None:
            task = (ctypes.c_int64 * 3)(ctypes.cast(function, ctypes.c_void_p).value or 0, address, steps)  # type: ignore[arg-type]
            function, address, steps = team, ctypes.addressof(task), 0

        def run(held: Any = (arguments, task)) -> None:
            function(address, 0, steps)

        return run


def _watched(run: Run, flag: Any, refused: Run) -> Run:
    """The kernel, followed by the fallback if it set its flag."""

    def checked() -> None:
        flag[0] = 0
        run()
        if flag[0]:
            refused()

    return checked


@dataclass(frozen=True, eq=False)
class InOrder:
    """Kernels one after the other."""

    kernels: Sequence[LoopKernel]

    def __call__(self, call: Call) -> Run:
        """Bind to addresses."""
        return sequence([kernel(call) for kernel in self.kernels])
