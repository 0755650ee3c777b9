"""The machine: devices, streams, memory, kernels.

Built on NVIDIA's driver and kernel compiler, which are loaded on first use. Without a GPU everything here works on
the CPU.

A name's module is imported when the name is first used.
"""

from typing import TYPE_CHECKING

from lamina._lazy import lazy, listing

if TYPE_CHECKING:
    from lamina.runtime._cuda import import_beside, open_beside, open_nvrtc
    from lamina.runtime.arena import Arena, Statistics, parse_bytes
    from lamina.runtime.arrays import as_buffer, is_array, share
    from lamina.runtime.atomic_file import check_writable, write_atomically
    from lamina.runtime.cache import DiskCache, cache_directory, digest, distrust, make_private, open_private
    from lamina.runtime.compute_device import Device, device, devices, managed, pinned
    from lamina.runtime.cores import usable_cores
    from lamina.runtime.errors import (
        CaptureInvalidated,
        CompileError,
        DeviceError,
        NoGpuError,
        OutOfMemoryError,
        human_bytes,
    )
    from lamina.runtime.file import DeviceFile
    from lamina.runtime.fork import renew_after_fork
    from lamina.runtime.kernel import (
        Kernel,
        KernelModule,
        LaunchShape,
        compile_cubin,
        compile_kernel,
        compile_module,
        launch_shape,
    )
    from lamina.runtime.library_handles import LibraryState, library_state
    from lamina.runtime.machine import Machine
    from lamina.runtime.memory import Buffer, host_array
    from lamina.runtime.platforms import MemoryInfo
    from lamina.runtime.printing import fetch, show
    from lamina.runtime.random import DeviceGenerator
    from lamina.runtime.shared_libraries import Library, libraries
    from lamina.runtime.stream import (
        CapturedCopy,
        CapturedGraph,
        CudaStream,
        Event,
        Stream,
        as_stream,
        early_starts,
        no_capture,
        retry_capture,
        stream_address,
    )
    from lamina.runtime.transfer import copy, copy_2d, copy_3d, from_host, memset, memset_2d, move, to_host
    from lamina.runtime.worker import Worker
    from lamina.runtime.workspace import Workspaces

__all__ = [
    "Arena",
    "Buffer",
    "CaptureInvalidated",
    "CapturedCopy",
    "CapturedGraph",
    "CompileError",
    "CudaStream",
    "Device",
    "DeviceError",
    "DeviceFile",
    "DeviceGenerator",
    "DiskCache",
    "Event",
    "Kernel",
    "KernelModule",
    "LaunchShape",
    "Library",
    "LibraryState",
    "Machine",
    "MemoryInfo",
    "NoGpuError",
    "OutOfMemoryError",
    "Statistics",
    "Stream",
    "Worker",
    "Workspaces",
    "as_buffer",
    "as_stream",
    "cache_directory",
    "check_writable",
    "compile_cubin",
    "compile_kernel",
    "compile_module",
    "copy",
    "copy_2d",
    "copy_3d",
    "device",
    "devices",
    "digest",
    "distrust",
    "early_starts",
    "fetch",
    "from_host",
    "host_array",
    "human_bytes",
    "import_beside",
    "is_array",
    "launch_shape",
    "libraries",
    "library_state",
    "make_private",
    "managed",
    "memset",
    "memset_2d",
    "move",
    "no_capture",
    "open_beside",
    "open_nvrtc",
    "open_private",
    "parse_bytes",
    "pinned",
    "renew_after_fork",
    "retry_capture",
    "share",
    "show",
    "stream_address",
    "to_host",
    "usable_cores",
    "write_atomically",
]
__getattr__ = lazy(
    __name__,
    {
        "Arena": "lamina.runtime.arena",
        "Buffer": "lamina.runtime.memory",
        "CaptureInvalidated": "lamina.runtime.errors",
        "CapturedCopy": "lamina.runtime.stream",
        "CapturedGraph": "lamina.runtime.stream",
        "CompileError": "lamina.runtime.errors",
        "CudaStream": "lamina.runtime.stream",
        "Device": "lamina.runtime.compute_device",
        "DeviceError": "lamina.runtime.errors",
        "DeviceFile": "lamina.runtime.file",
        "DeviceGenerator": "lamina.runtime.random",
        "DiskCache": "lamina.runtime.cache",
        "Event": "lamina.runtime.stream",
        "Kernel": "lamina.runtime.kernel",
        "KernelModule": "lamina.runtime.kernel",
        "LaunchShape": "lamina.runtime.kernel",
        "Library": "lamina.runtime.shared_libraries",
        "LibraryState": "lamina.runtime.library_handles",
        "Machine": "lamina.runtime.machine",
        "MemoryInfo": "lamina.runtime.platforms",
        "NoGpuError": "lamina.runtime.errors",
        "OutOfMemoryError": "lamina.runtime.errors",
        "Statistics": "lamina.runtime.arena",
        "Stream": "lamina.runtime.stream",
        "Worker": "lamina.runtime.worker",
        "Workspaces": "lamina.runtime.workspace",
        "as_buffer": "lamina.runtime.arrays",
        "as_stream": "lamina.runtime.stream",
        "cache_directory": "lamina.runtime.cache",
        "check_writable": "lamina.runtime.atomic_file",
        "compile_cubin": "lamina.runtime.kernel",
        "compile_kernel": "lamina.runtime.kernel",
        "compile_module": "lamina.runtime.kernel",
        "copy": "lamina.runtime.transfer",
        "copy_2d": "lamina.runtime.transfer",
        "copy_3d": "lamina.runtime.transfer",
        "device": "lamina.runtime.compute_device",
        "devices": "lamina.runtime.compute_device",
        "digest": "lamina.runtime.cache",
        "distrust": "lamina.runtime.cache",
        "early_starts": "lamina.runtime.stream",
        "fetch": "lamina.runtime.printing",
        "from_host": "lamina.runtime.transfer",
        "host_array": "lamina.runtime.memory",
        "human_bytes": "lamina.runtime.errors",
        "import_beside": "lamina.runtime._cuda",
        "is_array": "lamina.runtime.arrays",
        "launch_shape": "lamina.runtime.kernel",
        "libraries": "lamina.runtime.shared_libraries",
        "library_state": "lamina.runtime.library_handles",
        "make_private": "lamina.runtime.cache",
        "managed": "lamina.runtime.compute_device",
        "memset": "lamina.runtime.transfer",
        "memset_2d": "lamina.runtime.transfer",
        "move": "lamina.runtime.transfer",
        "no_capture": "lamina.runtime.stream",
        "open_beside": "lamina.runtime._cuda",
        "open_nvrtc": "lamina.runtime._cuda",
        "open_private": "lamina.runtime.cache",
        "parse_bytes": "lamina.runtime.arena",
        "pinned": "lamina.runtime.compute_device",
        "renew_after_fork": "lamina.runtime.fork",
        "retry_capture": "lamina.runtime.stream",
        "share": "lamina.runtime.arrays",
        "show": "lamina.runtime.printing",
        "stream_address": "lamina.runtime.stream",
        "to_host": "lamina.runtime.transfer",
        "usable_cores": "lamina.runtime.cores",
        "write_atomically": "lamina.runtime.atomic_file",
    },
)
__dir__ = listing(__all__)
