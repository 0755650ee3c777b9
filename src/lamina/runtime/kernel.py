"""Own kernels: CUDA C++ compiled at run time by NVRTC, kept on disk, launched.

A kernel's source is compiled to machine code (a cubin) for one architecture, so that the driver need not be
as new as the compiler. Kernels are ``extern "C"``: their name is the name they are found by.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lamina.runtime import _cuda
from lamina.runtime.cache import DiskCache, cache_directory, digest
from lamina.runtime.device import Device
from lamina.runtime.device import device as find_device
from lamina.runtime.errors import CompileError, DeviceError, NoGpuError
from lamina.runtime.memory import Buffer
from lamina.runtime.stream import Stream

_DISK_LIMIT = 512 << 20
_DEFAULT_SHARED = 48 << 10  # more dynamic shared memory than this has to be asked for, per kernel
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_HEADERS = ("*.h", "*.cuh", "*.hpp", "*.inl")

_cubins: dict[str, bytes] = {}
_kernels: dict[tuple[str, str, Device], Kernel] = {}
_lock = threading.RLock()


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

    Compiled once: kept in memory and in ``cache_directory() / "kernels"``, under a key made of the source,
    the headers of `includes`, the defines and options, the architecture and the compiler's version.

    Args:
        source: CUDA C++17.
        arch: real architecture, e.g. "sm_90".
        defines: macros; True stands for 1, False and None leave it undefined.
        options: fields of cuda.core's ProgramOptions, e.g. ``{"use_fast_math": True}``.
        includes: folders searched for ``#include``, beside CUDA's own.
        name: what the source is called in messages.

    Raises:
        CompileError: with the compiler's log. NoGpuError: the compiler is not installed.
    """
    if not arch.startswith("sm_"):
        raise ValueError(f"compile_cubin: arch must be a real architecture such as 'sm_90', got {arch!r}")
    macros, folders = _macros(defines), [str(folder) for folder in includes]
    version = _cuda.open_compiler().version
    key = digest(
        source, arch, repr(version), repr(macros), repr(sorted((options or {}).items())), *_texts(folders)
    )
    with _lock:
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


def _texts(folders: Sequence[str]) -> list[str]:
    """The headers that `folders` hold: a change in one is a new kernel."""
    files = [
        file for folder in folders for pattern in _HEADERS for file in sorted(Path(folder).glob(pattern))
    ]
    return [f"{file.name}\n{file.read_text(errors='replace')}" for file in files]


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


def compile_kernel(
    source: str,
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
        source: CUDA C++17 with an ``extern "C" __global__`` function `name`.
        name: the function.
        device: a CUDA device.
        arch: another architecture than the device's own, e.g. "sm_90a" for Hopper's own instructions.
        defines: macros, as for `compile_cubin`.
        options: compiler options, as for `compile_cubin`.
        includes: include folders, as for `compile_cubin`.

    Raises:
        NoGpuError: `device` is not a CUDA device. CompileError: the source does not compile.
    """
    place = find_device(device)
    if place.kind != "cuda":
        raise NoGpuError(
            f"compile_kernel: {name!r} needs a CUDA device, got {str(place)!r} (is there a GPU?)"
        )
    target = arch or _arch(place)
    cubin = compile_cubin(source, arch=target, defines=defines, options=options, includes=includes, name=name)
    key = (digest(cubin), name, place)
    with _lock:
        if key not in _kernels:
            _kernels[key] = Kernel(cubin, name, place)
        return _kernels[key]


def _arch(device: Device) -> str:
    major, minor = _cuda.open_cuda().core.Device(device.index).compute_capability
    return f"sm_{major}{minor}"


# -------------------------------------------------------------------------------------------------- arguments
Argument = Any  # a Buffer, a ctypes value, a NumPy scalar, an int or a float
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
    """A C value for something that knows its own type, else None."""
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
class Kernel:
    """A compiled kernel, loaded on one device; made by `compile_kernel`."""

    def __init__(self, cubin: bytes, name: str, device: Device) -> None:
        self.name = name
        self.device = device
        device.make_current()
        core = _cuda.open_cuda().core
        self._module = core.ObjectCode.from_cubin(cubin)
        self._kernel = _find(self._module, name, device)
        self.handle = int(getattr(self._kernel, "handle", None) or self._kernel._handle)
        self.parameter_sizes = _parameter_sizes(self._kernel)
        self._shared = _DEFAULT_SHARED

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Argument,
        stream: Stream | None = None,
        shared: int = 0,
    ) -> None:
        """Queue one launch.

        Args:
            grid: blocks in x (, y, z).
            block: threads per block in x (, y, z).
            arguments: as `Arguments` takes them; checked against the kernel's parameters.
            stream: where to queue it (default: the device's default stream).
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
        stream: Stream | None = None,
        shared: int = 0,
    ) -> Callable[[], None]:
        """`launch` with everything bound: calling the result queues the launch with the least host work.

        The result keeps its arguments (buffers too) alive. It reads them once, now.
        """
        where = stream or self.device.default_stream
        if where.device != self.device:
            raise ValueError(f"kernel {self.name}: loaded on {self.device}, but the stream is {where!r}")
        packed = Arguments(self.name, arguments, self.parameter_sizes)
        self._allow_shared(shared)
        driver = _cuda.open_cuda().driver
        function, queue = driver.CUfunction(self.handle), driver.CUstream(where.handle)
        extents = (*_extents("grid", grid), *_extents("block", block))
        bound = (function, *extents, shared, queue, packed.address, 0)
        return _launcher(
            driver.cuLaunchKernel, bound, self.device.platform.make_current, (self, packed, where)
        )

    def _allow_shared(self, shared: int) -> None:
        if shared > self._shared:
            self.device.make_current()
            driver = _cuda.open_cuda().driver
            attribute = driver.CUfunction_attribute(_MAX_DYNAMIC_SHARED)
            handle, number = driver.CUkernel(self.handle), driver.CUdevice(self.device.index)
            _cuda.call("cuKernelSetAttribute", attribute, shared, handle, number)
            self._shared = shared

    def __repr__(self) -> str:
        return f"Kernel({self.name!r}, {self.device}, parameters of {self.parameter_sizes} bytes)"


def _launcher(
    launch: Callable[..., tuple[int]], bound: tuple[Any, ...], make_current: Callable[[], None], kept: object
) -> Callable[[], None]:
    def run(_kept: object = kept) -> None:
        make_current()
        (status,) = launch(*bound)
        if status:
            _cuda.raise_status(int(status), "cuLaunchKernel")

    return run


def _extents(name: str, extents: int | Sequence[int]) -> tuple[int, int, int]:
    given = (extents,) if isinstance(extents, (int, np.integer)) else tuple(extents)
    if not 1 <= len(given) <= 3 or any(extent < 1 for extent in given):
        raise ValueError(f"launch: {name} must be one to three numbers >= 1, got {extents}")
    x, y, z = (*(int(extent) for extent in given), 1, 1)[:3]
    return x, y, z


def _find(module: Any, name: str, device: Device) -> Any:
    try:
        return module.get_kernel(name)
    except Exception as error:  # cuda.core's error classes moved between versions
        raise DeviceError(
            f'no kernel {name!r} for {device} in its source; is it extern "C"? ({error})'
        ) from error


def _parameter_sizes(kernel: Any) -> tuple[int, ...] | None:
    """Bytes of each parameter as the driver knows them (from CUDA 12.4 on), else None."""
    try:
        return tuple(int(info.size) for info in kernel.arguments_info)
    except Exception:  # an older driver or cuda-core
        return None
