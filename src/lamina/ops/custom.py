"""User-defined ops: `CustomOp`, and how other packages ship theirs.

A subclass defines what every op defines (`lamina.ops.core.Op`: fields, `infer`, `vjp`, `reference`, `samples`). That
is enough to run on the CPU, eagerly, in graphs and in training steps. For a GPU it implements one more method; the
first of these that is available is used: `expression` (one line of C for an elementwise op, which then fuses with its
neighbors), `cuda` (kernels in CUDA C++) or `run` (a Python function that fills the outputs, with Triton, CuPy, Numba
or any other library).

A package ships ops as entry points of the group "lamina.ops": `lamina.ops.NAME` is the object that its entry NAME
loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from lamina._lazy import lazy
from lamina.ops.core import REGISTRY, Op
from lamina.spec import Spec

#: The entry point group in which packages ship ops.
GROUP = "lamina.ops"


@dataclass(frozen=True)
class CudaKernel:
    """One launch of a CUDA C++ kernel.

    name: of the `extern "C" __global__` function in `source`. Its parameters are the addresses of the inputs, of the
        outputs, of the scratch memory where `scratch` is not 0, and then `numbers`.
    source: CUDA C++. The element types of the operands are available as `In0`, `In1`, … and `Out0`, `Out1`, …; f16
        and bf16 are structs, which `widen(x)` turns into float and `narrow<T>(v)` into the type T.
    threads: the number of threads needed; the kernel checks its index against it. Or grid: the number of blocks.
    block: threads per block, at most 1024.
    numbers: an int is passed as long long, a float as double, a NumPy number as its own type (numpy.float32: float).
    shared: bytes of dynamic shared memory. scratch: bytes of workspace, shared by the kernels of one op.
    """

    name: str
    source: str
    threads: int | None = None
    grid: tuple[int, ...] | None = None
    block: int | tuple[int, ...] = 256
    numbers: tuple[float | np.number[Any], ...] = ()
    shared: int = 0
    scratch: int = 0

    def __post_init__(self) -> None:
        if (self.threads is None) == (self.grid is None):
            raise TypeError(
                f"CudaKernel {self.name}: give either threads (as many as there are elements) or grid, "
                f"got threads={self.threads}, grid={self.grid}"
            )
        if self.threads is not None and not isinstance(self.block, int):
            raise TypeError(f"CudaKernel {self.name}: with threads block is an int, got {self.block}")

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of blocks along each axis."""
        if self.grid is not None:
            return self.grid
        assert self.threads is not None
        assert isinstance(self.block, int)
        return (max(1, -(-self.threads // self.block)),)


@dataclass(frozen=True)
class CustomOp(Op, abstract=True):
    """Base class of user-defined ops."""

    def expression(self, arguments: Sequence[str], type: str) -> str | None:
        """A C expression for one element of an elementwise op, from the names of its arguments, or None.

        type: the C type of the arithmetic, "f32" (also for half types) or "f64", or an integer type. The result is
        rounded to the output's dtype. Write numbers as `(f32)0.5`, functions as `expf` or, for "f64", `exp`.
        """
        return None

    def cuda(self, *inputs: Spec) -> CudaKernel | Sequence[CudaKernel] | None:
        """The kernels that compute it on a GPU, in launch order, for inputs of these shapes and dtypes.

        All operands are row-major. None where there is no such kernel for these inputs.
        """
        return None

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
        """Fill `outputs` from `inputs`, on the device that they are on.

        On a CPU they are NumPy arrays. On a GPU they support `__dlpack__` and `__cuda_array_interface__`, and all
        work must be queued on `stream` (a CUstream as a number), which may be recording a CUDA graph: an op that
        reads values or allocates memory of another library has `capturable = False` in its class. All are row-major;
        inputs must not be modified.
        """
        raise NotImplementedError(f"{self.name} has no run")

    @property
    def has_run(self) -> bool:
        """Whether there is a Python function for devices."""
        return type(self).run is not CustomOp.run


# ------------------------------------------------------------------------------------------------------- entry points


_library = lazy("importlib", {"metadata": "importlib.metadata"})


def entry_points(*, group: str) -> Iterable[Any]:
    """The entry points of installed packages; imported lazily, as their module imports many others."""
    found: Iterable[Any] = _library("metadata").entry_points(group=group)
    return found


@cache
def _entries() -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def shipped(name: str) -> Any:
    """The object (a function, a class) that entry point `name` of the group "lamina.ops" loads, or None."""
    entry = _entries().get(name)
    return None if entry is None else entry.load()


def shipped_names() -> list[str]:
    """The names shipped by installed packages."""
    return sorted(_entries())


def find_op(name: str) -> type[Op] | None:
    """The class of an op by name: a registered one, otherwise one shipped by an installed package."""
    if name not in REGISTRY:
        shipped(name)
    return REGISTRY.get(name)
