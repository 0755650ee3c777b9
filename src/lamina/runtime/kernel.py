"""Lamina's kernels: CUDA C++ compiled at run time by NVRTC, cached on disk, launched.

A kernel's source is compiled to machine code (a cubin) for one architecture, so that the driver need not be
as new as the compiler. Kernels are ``extern "C"``, so that they are found by their plain names.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lamina.runtime import _cuda
from lamina.runtime.arrays import device_of, is_array, share
from lamina.runtime.cache import DiskCache, cache_directory, digest
from lamina.runtime.compute_device import Device
from lamina.runtime.compute_device import device as find_device
from lamina.runtime.errors import CompileError, DeviceError, NoGpuError
from lamina.runtime.fork import renew_after_fork
from lamina.runtime.memory import Buffer
from lamina.runtime.platforms import Platform
from lamina.runtime.stream import Stream, StreamLike, as_stream
from lamina.runtime.uncopied import Uncopied

_DISK_LIMIT = 512 << 20
_DEFAULT_SHARED = 48 << 10  # more dynamic shared memory than this must be requested per kernel
_MAX_THREADS = 1024  # per block, on every GPU supported by cuDNN 9
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_HEADERS = (".h", ".cuh", ".hpp", ".inl")

_cubins: dict[str, bytes] = {}
_modules: dict[tuple[str, Device], KernelModule] = {}
_GRID_LIMITS = (2**31 - 1, 65535, 65535)
_lock = threading.RLock()


class _Turns:
    """A lock per kernel: different kernels compile concurrently, each one once."""

    def __init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, where no thread compiles."""
        self._locks: dict[str, threading.Lock] = {}

    def of(self, key: str) -> threading.Lock:
        """The lock of a kernel."""
        return self._locks.setdefault(key, threading.Lock())


_turns = _Turns()


# -------------------------------------------------------------------------------------------------- compiling
def compile_cubin(
    source: str,
    *,
    arch: str = "sm_90",
    defines: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    includes: Iterable[str | Path] = (),
    name: str = "kernel",
) -> bytes:
    """Machine code of CUDA C++ `source` for one architecture. Needs no GPU and no driver.

    Several threads may compile at a time. The result is cached in memory and in ``cache_directory() / "kernels"``,
    keyed by the source, the headers of `includes`, the defines and options, the architecture and the
    compiler's version.

    Args:
        source: CUDA C++17.
        arch: real architecture, e.g. "sm_90".
        defines: macros; True means 1, False and None leave it undefined.
        options: fields of cuda.core's ProgramOptions, e.g. ``{"use_fast_math": True}``.
        includes: folders searched for ``#include``, besides CUDA's own.
        name: the name of the source in messages.

    Raises:
        CompileError: with the compiler's log. NoGpuError: the compiler is not installed.
    """
    if not arch.startswith("sm_"):
        raise ValueError(f"compile_cubin: arch must be a real architecture such as 'sm_90', got {arch!r}")
    macros, folders = _macros(defines), [str(folder) for folder in includes]
    version = _cuda.open_nvrtc()  # cached kernels need no more of the compiler
    headers = [_headers(folder, _state_of(folder)) for folder in folders]
    key = digest(source, arch, repr(version), repr(macros), repr(sorted((options or {}).items())), *headers)
    with _turns.of(key):
        if key not in _cubins:
            _cubins[key] = _from_disk(
                key, lambda: _compile(source, arch, macros, options or {}, folders, name)
            )
        return _cubins[key]


def _from_disk(key: str, make: Callable[[], bytes]) -> bytes:
    disk = DiskCache(cache_directory() / "kernels", _DISK_LIMIT)
    found = disk.get(key)
    if found is None:
        found = make()
        disk.put(key, found)
    return found


def _macros(defines: Mapping[str, object] | None) -> list[tuple[str, str]]:
    given = {
        name: value for name, value in (defines or {}).items() if value is not None and value is not False
    }
    return sorted((name, "1" if value is True else str(value)) for name, value in given.items())


def _state_of(folder: str) -> tuple[tuple[str, int, int], ...]:
    """The headers in a folder, with their sizes and modification times."""
    try:
        with os.scandir(folder) as entries:
            found = [(e.name, e.stat()) for e in entries if e.name.endswith(_HEADERS) and e.is_file()]
    except OSError:
        return ()
    return tuple(sorted((name, status.st_size, status.st_mtime_ns) for name, status in found))


@lru_cache(maxsize=64)
def _headers(folder: str, state: tuple[tuple[str, int, int], ...]) -> str:
    """A digest of these headers: a change in one gives a new kernel."""
    return digest(*(f"{name}\n{Path(folder, name).read_text(errors='replace')}" for name, _, _ in state))


def _compile(
    source: str,
    arch: str,
    macros: list[tuple[str, str]],
    options: Mapping[str, object],
    folders: Sequence[str],
    name: str,
) -> bytes:
    core = _cuda.open_compiler().core
    headers = _cuda.header_options()
    chosen: dict[str, object] = {"arch": arch, "std": "c++17", "name": f"{name}.cu", **headers, **options}
    if macros:
        chosen["define_macro"] = macros
    if folders:
        chosen["include_path"] = [*folders, *headers.get("include_path", ())]
    try:
        code = core.Program(source, "c++", core.ProgramOptions(**chosen)).compile("cubin").code
    except Exception as error:  # cuda.core's error classes moved between versions
        raise CompileError(name, arch, str(error), source) from error
    return bytes(code)


def compile_module(
    source: str | Path,
    *,
    device: Device | str | None = "auto",
    arch: str | None = None,
    defines: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    includes: Iterable[str | Path] = (),
    name: str = "module",
) -> KernelModule:
    """CUDA C++ `source` compiled for `device` and loaded there, once: its kernels and its global variables.

    Args:
        source: CUDA C++17 text, or the Path of a file with it; the file's folder is searched for includes too.
        device: a CUDA device.
        arch: another architecture than the device's own (`Machine.target`).
        defines: macros, as for `compile_cubin`.
        options: compiler options, as for `compile_cubin`.
        includes: include folders, as for `compile_cubin`.
        name: the name of the source in messages.

    Raises:
        NoGpuError: `device` is not a CUDA device. CompileError: the source does not compile.
        OSError: the file cannot be read.
    """
    place = find_device(device)
    if place.kind != "cuda":
        raise NoGpuError(f"compile: {name!r} needs a CUDA device, got {str(place)!r} (is there a GPU?)")
    folders = list(includes)
    if isinstance(source, Path):
        name, text = source.stem, source.read_text(encoding="utf-8")
        folders.append(source.parent)
    else:
        text = source
    target = arch or place.machine.target
    cubin = compile_cubin(text, arch=target, defines=defines, options=options, includes=folders, name=name)
    key = (digest(cubin), place)
    with _lock:
        if key not in _modules:
            _modules[key] = KernelModule(cubin, place)
        return _modules[key]


def compile_kernel(
    source: str | Path,
    name: str,
    *,
    device: Device | str | None = "auto",
    arch: str | None = None,
    defines: Mapping[str, object] | None = None,
    options: Mapping[str, object] | None = None,
    includes: Iterable[str | Path] = (),
) -> Kernel:
    """The kernel `name` of CUDA C++ `source`, compiled for `device` and loaded there, once.

    Args:
        source: CUDA C++17 with an ``extern "C" __global__`` function `name`, or the Path of a file with it.
        name: the function.
        device: a CUDA device.
        arch: another architecture than the device's own (`Machine.target`).
        defines: macros, as for `compile_cubin`.
        options: compiler options, as for `compile_cubin`.
        includes: include folders, as for `compile_cubin`.

    Raises:
        NoGpuError: `device` is not a CUDA device. CompileError: the source does not compile.
    """
    module = compile_module(
        source,
        device=device,
        arch=arch,
        defines=defines,
        options=options,
        includes=includes,
        name=name,
    )
    return module.kernel(name)


# -------------------------------------------------------------------------------------------------- arguments
Argument = Any  # a Buffer, an array on the device, a ctypes value, a NumPy scalar, an int or a float
_INTEGERS = {1: ctypes.c_int8, 2: ctypes.c_int16, 4: ctypes.c_int32, 8: ctypes.c_int64}
_FLOATS = {4: ctypes.c_float, 8: ctypes.c_double}


class Arguments:
    """Kernel arguments laid out for the driver; `address` is its array of pointers to them.

    Args:
        name: the kernel, for messages.
        values: a Buffer (its address), a ctypes value or NumPy scalar (as it is), None (a null pointer), or a
            bare int or float, which takes the parameter's size.
        sizes: bytes of each parameter, or None if the driver cannot tell; then a bare int is an address and a
            bare float is refused.
    """

    __slots__ = ("_array", "_cells", "address", "buffers")

    def __init__(self, name: str, values: Sequence[Argument], sizes: Sequence[int] | None) -> None:
        if sizes is not None and len(sizes) != len(values):
            raise TypeError(f"kernel {name}: takes {len(sizes)} arguments, got {len(values)}")
        expected: Sequence[int | None] = sizes if sizes is not None else [None] * len(values)
        pairs = zip(values, expected, strict=True)
        self._cells = [_cell(name, place, value, size) for place, (value, size) in enumerate(pairs)]
        self._array = (ctypes.c_void_p * max(1, len(values)))(
            *(ctypes.addressof(cell) for cell in self._cells)
        )
        self.buffers = [value for value in values if isinstance(value, Buffer)]
        self.address = ctypes.addressof(self._array)

    def contents(self) -> list[bytes]:
        """The bytes that each parameter will receive."""
        return [bytes(cell) for cell in self._cells]


def _cell(name: str, place: int, value: Argument, size: int | None) -> Any:
    cell = (
        _typed(value)
        if not isinstance(value, (int, float)) or isinstance(value, np.generic)
        else _bare(value, size)
    )
    if cell is None:
        kind = type(value).__name__
        raise TypeError(
            f"kernel {name}: argument {place} is a {kind}; give a Buffer, a ctypes value or a NumPy scalar"
            + ("" if size is None else f" of {size} bytes")
        )
    if size is not None and ctypes.sizeof(cell) != size:
        raise TypeError(
            f"kernel {name}: argument {place} has {ctypes.sizeof(cell)} bytes, the parameter has {size}"
        )
    return cell


def _typed(value: Argument) -> Any:
    """A C value for an argument that knows its own type, else None."""
    if value is None:
        return ctypes.c_void_p(0)
    if isinstance(value, Buffer):
        return ctypes.c_void_p(value.pointer)
    if isinstance(value, np.generic):
        data = value.tobytes()
        return (ctypes.c_char * len(data)).from_buffer_copy(data)
    simple = isinstance(value, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array))
    return value if simple else None


def _bare(value: float, size: int | None) -> Any:
    """A C value for a Python number, of the parameter's size."""
    if isinstance(value, float):
        kind = _FLOATS.get(size or 0)
        return None if kind is None else kind(value)
    integer = _INTEGERS.get(8 if size is None else size)
    return None if integer is None else _integer(integer, int(value))


def _integer(kind: Any, value: int) -> Any:
    bits = 8 * ctypes.sizeof(kind)
    if not -(1 << (bits - 1)) <= value < (1 << bits):
        raise OverflowError(f"{value} does not fit the kernel's parameter of {bits} bits")
    return kind(value)  # ctypes wraps: the upper half of an unsigned parameter has the same bits


# -------------------------------------------------------------------------------------------------- launching
class _LoadedCode(Uncopied):
    """Machine code loaded for the current device (a CUlibrary); kernels keep it alive, and it is unloaded with it."""

    def __init__(self, cubin: bytes) -> None:
        self.library = _cuda.call("cuLibraryLoadData", cubin, [], [], 0, [], [], 0)

    def __del__(self, _destroy: Callable[[str, Any], None] = _cuda.destroy) -> None:
        if hasattr(self, "library"):
            _destroy("cuLibraryUnload", self.library)


class KernelModule(Uncopied):
    """Compiled code loaded on one device: kernels by name, global variables as memory.

    Made by `compile_module`, or from a cubin of `compile_cubin`. Its memory and kernels live as long as they
    are used.
    """

    def __init__(self, cubin: bytes, device: Device) -> None:
        self.device = device
        with device.current():
            self._code = _LoadedCode(cubin)
        self._kernels: dict[str, Kernel] = {}

    def kernel(self, name: str) -> Kernel:
        """The ``extern "C" __global__`` function `name`. DeviceError if there is none."""
        with _lock:
            if name not in self._kernels:
                self._kernels[name] = Kernel(self._code, name, self.device)
            return self._kernels[name]

    def variable(self, name: str) -> Buffer:
        """The memory of the ``extern "C"`` variable `name` (``__constant__`` or ``__device__``).

        `copy` sets and reads it: ``copy(module.variable("scale"), np.float32(2))``. DeviceError if there is
        none.
        """
        with self.device.current():
            try:
                pointer, nbytes = _cuda.call("cuLibraryGetGlobal", self._code.library, name.encode())
            except DeviceError as error:
                raise DeviceError(
                    f'no variable {name!r} for {self.device} in its source; is it extern "C"? ({error})',
                    code=error.code,
                    name=error.name,
                    call=error.call,
                ) from error
        return Buffer.borrow(int(pointer), int(nbytes), self.device, self)

    def __repr__(self) -> str:
        return f"Module({self.device}, kernels used: {', '.join(sorted(self._kernels)) or 'none'})"


class LaunchShape(NamedTuple):
    """Blocks of a launch and threads of a block, as taken by `Kernel.launch`."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]


def launch_shape(extents: int | Sequence[int], block: int | Sequence[int] = 256) -> LaunchShape:
    """The launch with one thread for each of `extents` elements (in x, y, z): ceil(extent / block) blocks.

    Args:
        extents: one to three numbers >= 1, x first.
        block: threads per block, likewise; missing axes count 1.

    Raises:
        ValueError: no extents, or more blocks than a grid has (2^31 - 1, 65535, 65535) or threads than a
            block has (1024): let each thread process several elements.

    >>> launch_shape(1000)
    LaunchShape(grid=(4, 1, 1), block=(256, 1, 1))
    """
    elements, threads = _extents("extents", extents), _extents("block", block)
    grid = tuple(-(-extent // size) for extent, size in zip(elements, threads, strict=True))
    if any(blocks > limit for blocks, limit in zip(grid, _GRID_LIMITS, strict=True)):
        raise ValueError(
            f"launch_shape: {elements} elements take {grid} blocks, the limits are {_GRID_LIMITS}"
        )
    if (count := threads[0] * threads[1] * threads[2]) > _MAX_THREADS:
        raise ValueError(f"launch_shape: block {threads} has {count} threads, the limit is {_MAX_THREADS}")
    return LaunchShape((grid[0], grid[1], grid[2]), threads)


class Kernel(Uncopied):
    """A compiled kernel, loaded on one device; made by `compile_kernel` or `KernelModule.kernel`."""

    def __init__(self, code: _LoadedCode, name: str, device: Device) -> None:
        self.name = name
        self.device = device
        self._code = code
        with device.current():
            kernel = _find(code, name, device)
            self.parameter_sizes = _parameter_sizes(kernel)
        self.handle = int(kernel)
        self._shared = _DEFAULT_SHARED

    def suggest(self, count: int, *, shared: int = 0, limit: int = 0) -> LaunchShape:
        """The launch for `count` elements, one or more per thread, with the block size of the highest occupancy.

        The block size comes from cuOccupancyMaxPotentialBlockSize. The grid has no more blocks than are
        resident at once, so the kernel needs a grid-stride loop.

        Args:
            count: elements.
            shared: bytes of dynamic shared memory per block.
            limit: the most threads that a block may have (0: the device's limit).
        """
        if count < 1:
            raise ValueError(f"kernel {self.name}: count must be at least 1, got {count}")
        with self.device.current():
            found = _cuda.call("cuOccupancyMaxPotentialBlockSize", self._function(), None, shared, limit)
        most, block = map(int, found)
        return LaunchShape((max(1, min(-(-count // block), most)), 1, 1), (block, 1, 1))

    def resident_blocks(self, block: int, *, shared: int = 0) -> int:
        """How many blocks of `block` threads one multiprocessor runs at once (0: the block does not fit)."""
        try:
            self._allow_shared(shared)
        except DeviceError:
            return 0
        with self.device.current():
            ask = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
            return int(_cuda.call(ask, self._function(), block, shared))

    def _function(self) -> Any:
        """The kernel's handle for the driver's older functions."""
        return _cuda.open_cuda().driver.CUfunction(self.handle)

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Argument,
        stream: StreamLike | None = None,
        shared: int = 0,
    ) -> None:
        """Launch the kernel asynchronously.

        Args:
            grid: blocks in x (, y, z).
            block: threads per block in x (, y, z).
            arguments: as `Arguments` takes them, and arrays of other libraries on the device (their address;
                the stream waits for their values); checked against the kernel's parameters.
            stream: where to queue it, of this or another library (default: the device's default stream).
            shared: bytes of dynamic shared memory.

        Raises:
            TypeError: wrong number, size or kind of arguments. ValueError: a bad grid or block.
            DeviceError: the driver refuses the launch.
        """
        self.prepare(grid, block, *arguments, stream=stream, shared=shared)()

    def prepare(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Argument,
        stream: StreamLike | None = None,
        shared: int = 0,
        cooperative: bool = False,
    ) -> Callable[[], None]:
        """`launch` with everything bound: calling the result launches with the least host overhead.

        The result keeps its arguments (buffers too) alive. It reads them once, now. cooperative: all blocks are
        resident at the same time, so that they may wait for each other (cuLaunchCooperativeKernel); the launch is
        refused if there is no room for all of them (`resident_blocks`).
        """
        where = as_stream(stream, self.device)
        if where.device != self.device:
            raise ValueError(f"kernel {self.name}: loaded on {self.device}, but the stream is {where!r}")
        values = [self._adopted(place, value, where) for place, value in enumerate(arguments)]
        packed = Arguments(self.name, values, self.parameter_sizes)
        self._allow_shared(shared)
        driver = _cuda.open_cuda().driver
        function, queue = self._function(), driver.CUstream(where.handle)
        extents = (*_extents("grid", grid), *_extents("block", block))
        bound = (function, *extents, shared, queue, packed.address)
        kept = (self, packed, where)
        if cooperative:
            return _launcher(driver.cuLaunchCooperativeKernel, bound, self.device.platform, kept)
        return _launcher(driver.cuLaunchKernel, (*bound, 0), self.device.platform, kept)

    def _adopted(self, place: int, value: Argument, stream: Stream) -> Argument:
        """`value`, or a buffer on the memory of another library's array."""
        if isinstance(value, Buffer | np.ndarray | np.generic) or not is_array(value):
            return value
        shared = share(value, stream, write=True)
        if device_of(shared) != self.device:
            raise ValueError(
                f"kernel {self.name}: argument {place} is on {device_of(shared)}, the kernel on {self.device}"
            )
        return Buffer.borrow(shared.pointer, 0, self.device, shared.owner)

    def _allow_shared(self, shared: int) -> None:
        if shared > self._shared:
            driver = _cuda.open_cuda().driver
            attribute = driver.CUfunction_attribute(_MAX_DYNAMIC_SHARED)
            handle, number = driver.CUkernel(self.handle), driver.CUdevice(self.device.index)
            with self.device.current():
                _cuda.call("cuKernelSetAttribute", attribute, shared, handle, number)
            self._shared = shared

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, {self.device}, parameters of {self.parameter_sizes} bytes)"


def _launcher(
    launch: Callable[..., tuple[int]], bound: tuple[Any, ...], platform: Platform, kept: object
) -> Callable[[], None]:
    enter, leave = platform.enter, platform.leave

    def run(_kept: object = kept) -> None:
        before = enter()
        (status,) = launch(*bound)
        if before:
            leave(before)
        if status:
            _cuda.raise_status(int(status), launch.__name__)

    return run


def _extents(name: str, extents: int | Sequence[int]) -> tuple[int, int, int]:
    given = (extents,) if isinstance(extents, (int, np.integer)) else tuple(extents)
    if not 1 <= len(given) <= 3 or any(extent < 1 for extent in given):
        raise ValueError(f"launch: {name} must be one to three numbers >= 1, got {extents}")
    x, y, z = (*(int(extent) for extent in given), 1, 1)[:3]
    return x, y, z


def _find(code: _LoadedCode, name: str, device: Device) -> Any:
    """The CUkernel."""
    try:
        return _cuda.call("cuLibraryGetKernel", code.library, name.encode())
    except DeviceError as error:
        raise DeviceError(
            f'no kernel {name!r} for {device} in its source; is it extern "C"? ({error})',
            code=error.code,
            name=error.name,
            call=error.call,
        ) from error


def _parameter_sizes(kernel: Any) -> tuple[int, ...] | None:
    """Bytes of each parameter from the driver, None if it is older than CUDA 12.4."""
    if _cuda.probe().version < 12040:
        return None
    driver, sizes = _cuda.open_cuda().driver, list[int]()
    while True:  # until the driver reports no such parameter
        status, *found = driver.cuKernelGetParamInfo(kernel, len(sizes))
        if int(status):
            return tuple(sizes)
        sizes.append(int(found[1]))
