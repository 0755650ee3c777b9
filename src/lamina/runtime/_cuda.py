"""Loads CUDA on first use, and never before.

The driver is looked for with ctypes alone (`probe`); only if it responds are NVIDIA's bindings imported
(`open_cuda`). The kernel compiler needs no driver and is loaded separately (`open_compiler`), by ``cuda.core``, whose
import costs 0.2 s: code that only runs cached kernels does without it. This is the one module of the runtime
that imports inside functions.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, cast

from lamina.runtime.errors import DeviceError, NoGpuError
from lamina.runtime.shared_lock import swift_turns

DRIVER = "libcuda.so.1"
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
NOT_READY = 600  # CUDA_ERROR_NOT_READY
PEER_ACCESS_ALREADY_ENABLED = 704
#: The error text in a child forked after CUDA was opened.
_FORKED = (
    "CUDA cannot be used in a process that was forked after its parent had opened it: start the process with spawn, "
    "multiprocessing.get_context('spawn')"
)
_TOOLKIT_HEADERS = "/usr/local/cuda/include"
# After these the context is lost: every later call on it fails as well.
_FATAL = frozenset({700, 702, 709, 710, 714, 715, 716, 717, 718, 719})


@dataclass(frozen=True, slots=True)
class Driver:
    """The result of looking for the driver; ``count`` is 0 if no GPU can be used."""

    count: int
    version: int  # 13000 for CUDA 13.0; 0 if unknown
    path: str  # where the library was loaded from; "" if it was not
    reason: str  # why there is no usable GPU; "" if there is one


@dataclass(frozen=True, slots=True)
class Cuda:
    """The loaded driver: cuda.bindings.driver, and the library itself (ctypes)."""

    driver: Any
    library: ctypes.CDLL


@dataclass(frozen=True, slots=True)
class Compiler:
    """NVRTC as exposed by cuda.core, and the version of the library behind it."""

    core: Any
    version: tuple[int, int]


def loaded_path(soname: str) -> str:
    """Path of a shared library that this process has mapped already, else ""."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return ""
    stem = soname.split(".so")[0] + ".so"
    for line in maps.splitlines():
        path = line.split(maxsplit=5)[-1]
        if path.startswith("/") and path.rsplit("/", 1)[-1].startswith(stem):
            return path
    return ""


@lru_cache(maxsize=1)
def probe() -> Driver:
    """Look for a driver with a usable GPU; never raises, imports nothing.

    A library that loads but whose ``cuInit`` fails (no device, none visible, a stub) counts as no GPU.
    """
    try:
        library = ctypes.CDLL(DRIVER)
    except OSError as error:
        return Driver(0, 0, "", f"no NVIDIA driver: {DRIVER} does not load ({error})")
    path = loaded_path(DRIVER) or DRIVER
    try:
        return _ask(library, path)
    except AttributeError as error:
        return Driver(0, 0, path, f"{path} is no CUDA driver ({error})")


def _ask(library: ctypes.CDLL, path: str) -> Driver:
    status = library.cuInit(0)
    if status != 0:
        return Driver(0, 0, path, f"{path} was loaded but cuInit answered {_status_name(library, status)}")
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(version))
    status = library.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 or count.value == 0:
        return Driver(
            0, version.value, path, f"{path} was loaded but shows no device (check CUDA_VISIBLE_DEVICES)"
        )
    return Driver(count.value, version.value, path, "")


def _status_name(library: ctypes.CDLL, status: int) -> str:
    text = ctypes.c_char_p()
    try:
        library.cuGetErrorName(status, ctypes.byref(text))
    except AttributeError:
        return f"error {status}"
    return f"{text.value.decode()} ({status})" if text.value else f"error {status}"


@lru_cache(maxsize=1)
def open_cuda() -> Cuda:
    """Import the driver's bindings on a machine with a usable GPU.

    Raises:
        NoGpuError: no driver, no visible device, or the CUDA packages are not installed.
    """
    state = probe()
    if _lost:
        refuse_forked()
    if state.count == 0:
        raise NoGpuError(f"no usable GPU: {state.reason}", (DRIVER, "cuInit", "cuDeviceGetCount"))
    try:
        driver = _import_driver()
    except ImportError as error:
        raise NoGpuError(
            f"a GPU is present ({state.path}) but cuda-bindings cannot be imported ({error}); "
            "install it: pip install 'lamina[cu13]'",
            (DRIVER, "cuda.bindings"),
        ) from error
    return Cuda(driver, ctypes.CDLL(DRIVER))


def open_beside() -> threading.Event:
    """Open the driver and the first device's context in a thread, concurrently with the caller's other work.

    Each takes tenths of a second without the GIL, about as long as the imports that the caller needs. The context
    stays open until the process ends. Failures here occur again, with their reason, when the device is used.

    The event is set once the thread no longer needs the GIL. Callers about to hold it for long, as opening a large
    library does, wait for the event first, or the driver would wait for the library.
    """
    under_way = threading.Event()
    threading.Thread(target=_open_context, args=(under_way,), daemon=True).start()
    return under_way


def import_beside() -> None:
    """Import the driver's bindings after `open_beside`, without waiting for its thread. If they are not
    installed, the device reports it when it is used."""
    with suppress(ImportError):
        _import_driver()


def _open_context(under_way: threading.Event) -> None:
    try:
        _load_unlocked(DRIVER)
        with swift_turns():  # every driver call releases the GIL
            if not probe().count:
                return
            library, context, device = ctypes.CDLL(DRIVER), ctypes.c_void_p(), ctypes.c_int()
            if library.cuDeviceGet(ctypes.byref(device), 0):
                return
        under_way.set()
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    finally:
        under_way.set()


def _load_unlocked(name: str) -> None:
    """Load a library while other threads go on: C's dlopen does not hold the GIL, as ctypes.CDLL does. Failures
    here occur again, with their reason, at the later load."""
    load = ctypes.CDLL(None).dlopen
    load.argtypes, load.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
    load(name.encode(), os.RTLD_NOW)


#: Filled in a child that was forked after `probe` had initialized the driver, which refuses to work there.
_lost: list[int] = []


def _after_fork() -> None:
    if probe.cache_info().currsize and probe().count:
        _lost.append(os.getpid())
        for opened in (open_cuda, direct):
            opened.cache_clear()


os.register_at_fork(after_in_child=_after_fork)


def refuse_forked(*_arguments: object) -> Any:
    """Raise the DeviceError of a child that was forked after CUDA had been opened."""
    raise DeviceError(_FORKED)


#: Without it, a thread that asks while another one imports would get the unfinished module.
_importing = threading.RLock()


def _import_core() -> Any:
    with _importing:
        core = importlib.import_module("cuda.core")
    # Before 1.0 these names were one package deeper.
    return core if hasattr(core, "Device") else importlib.import_module("cuda.core.experimental")


def _import_driver() -> Any:
    with _importing:
        return importlib.import_module("cuda.bindings.driver")


@lru_cache(maxsize=1)
def open_compiler() -> Compiler:
    """Import the kernel compiler; works without a driver and without a GPU.

    Raises:
        NoGpuError: cuda-core or NVRTC is not installed.
    """
    version = open_nvrtc()
    try:
        return Compiler(_import_core(), version)
    except ImportError as error:
        raise _no_compiler(error) from error


@lru_cache(maxsize=1)
def open_nvrtc() -> tuple[int, int]:
    """Load NVRTC, found by NVIDIA's pathfinder, and return its version. Compiles nothing.

    Raises:
        NoGpuError: NVRTC is not installed.
    """
    try:
        status, major, minor = importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except Exception as error:  # pathfinder raises its own types for a missing libnvrtc
        raise _no_compiler(error) from error
    if int(status) != 0:
        raise DeviceError(f"nvrtcVersion failed with {status!r}", code=int(status), call="nvrtcVersion")
    return int(major), int(minor)


def _no_compiler(error: Exception) -> NoGpuError:
    return NoGpuError(
        f"the kernel compiler NVRTC cannot be opened ({error}); install it: pip install 'lamina[cu13]'",
        ("cuda.core", "cuda.bindings.nvrtc", "libnvrtc"),
    )


@lru_cache(maxsize=1)
def header_options() -> dict[str, Any]:
    """The compiler options for finding cuda_fp16.h and the like.

    From a CUDA package or toolkit if there is one, else the headers bundled with newer NVRTC libraries.
    """
    try:
        folder = importlib.import_module("cuda.pathfinder").find_nvidia_header_directory("cudart")
    except Exception:  # absent, or too old for this query
        folder = _TOOLKIT_HEADERS if Path(_TOOLKIT_HEADERS, "cuda_fp16.h").exists() else None
    if folder:
        return {"include_path": [str(folder)]}
    known = hasattr(open_compiler().core.ProgramOptions(arch="sm_90"), "use_bundled_headers")
    return {"use_bundled_headers": True} if known else {}


@cache
def direct(name: str) -> Callable[..., int]:
    """A function of the driver itself by ctypes, which returns its status: for latency-critical calls.

    cuda.bindings creates an enum and a tuple for each call.
    """
    function = getattr(open_cuda().library, name)
    function.argtypes, function.restype = _ARGUMENTS[name], ctypes.c_int
    return cast("Callable[..., int]", function)


class CopyParams(ctypes.Structure):
    """CUDA_MEMCPY3D: the parameters of a graph's copy node."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("srcXInBytes", "srcY", "srcZ", "srcLOD")),
        ("srcMemoryType", ctypes.c_uint),
        *((name, ctypes.c_size_t) for name in ("srcHost", "srcDevice", "srcArray", "reserved0")),
        *((name, ctypes.c_size_t) for name in ("srcPitch", "srcHeight")),
        *((name, ctypes.c_size_t) for name in ("dstXInBytes", "dstY", "dstZ", "dstLOD")),
        ("dstMemoryType", ctypes.c_uint),
        *((name, ctypes.c_size_t) for name in ("dstHost", "dstDevice", "dstArray", "reserved1")),
        *((name, ctypes.c_size_t) for name in ("dstPitch", "dstHeight", "WidthInBytes", "Height", "Depth")),
    )

    def address(self, side: str) -> int:
        """The start address of a side, "src" or "dst"."""
        return int(getattr(self, side + self._place(side)) + getattr(self, f"{side}XInBytes"))

    def set_address(self, side: str, address: int) -> None:
        """Change the start address of a side."""
        setattr(self, f"{side}XInBytes", 0)
        setattr(self, side + self._place(side), address)

    def _place(self, side: str) -> str:
        return "Host" if getattr(self, f"{side}MemoryType") == _HOST_MEMORY else "Device"


_HOST_MEMORY = 1  # CU_MEMORYTYPE_HOST
_ADDRESS = ctypes.c_void_p
#: Parameter types of the driver functions that are called directly.
_ARGUMENTS: dict[str, list[Any]] = {
    "cuGraphLaunch": [_ADDRESS, _ADDRESS],  # the executable graph, the stream
    "cuGraphNodeGetType": [_ADDRESS, ctypes.POINTER(ctypes.c_int)],
    "cuGraphMemcpyNodeGetParams": [_ADDRESS, ctypes.POINTER(CopyParams)],
    "cuGraphExecMemcpyNodeSetParams": [_ADDRESS, _ADDRESS, ctypes.POINTER(CopyParams), _ADDRESS],
    "cuStreamSynchronize": [_ADDRESS],
    "cuStreamWaitEvent": [_ADDRESS, _ADDRESS, ctypes.c_uint],  # the stream, the event, flags
    "cuEventRecord": [_ADDRESS, _ADDRESS],  # the event, the stream
    "cuEventQuery": [_ADDRESS],
}


def call(name: str, *arguments: Any) -> Any:
    """Call the driver function `name`; return its result (None, one value, or a tuple).

    Raises:
        DeviceError: the driver returned an error; MemoryError: it is out of memory.
    """
    status, *results = getattr(open_cuda().driver, name)(*arguments)
    if int(status) != 0:
        raise_status(int(status), name)
    return None if not results else results[0] if len(results) == 1 else tuple(results)


def destroy(name: str, handle: Any, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
    """For finalizers: destroy a driver object by the driver function `name`; never raises.

    At the end of the process, and in a forked child, the driver and its objects are gone.
    """
    if not _ending() and not _lost:
        with suppress(Exception):
            call(name, handle)


def raise_status(status: int, call_name: str) -> None:
    """Raise the exception for a driver status (not 0) returned by `call_name`."""
    if status == OUT_OF_MEMORY:
        raise MemoryError(f"{call_name}: CUDA_ERROR_OUT_OF_MEMORY")
    name, text = error_text(status)
    advice = " The GPU context is lost: restart the process." if status in _FATAL else ""
    raise DeviceError(
        f"{call_name} failed with {name} ({status}): {text}.{advice}", code=status, name=name, call=call_name
    )


def error_text(status: int) -> tuple[str, str]:
    """Name and description of a driver status, from the driver."""
    library = open_cuda().library
    answers = []
    for function in (library.cuGetErrorName, library.cuGetErrorString):
        text = ctypes.c_char_p()
        function(status, ctypes.byref(text))
        answers.append(text.value.decode() if text.value else "unknown error")
    return answers[0], answers[1]
