"""The machine: devices, streams, memory, kernels.

Built on NVIDIA's driver and kernel compiler, which are opened on first need. On a machine without a GPU everything
here works on the CPU.
"""

from lamina._lazy import listing
from lamina.runtime._cuda import import_beside, open_beside, open_nvrtc
from lamina.runtime.arrays import as_buffer, is_array, share
from lamina.runtime.atomic_file import check_writable, write_atomically
from lamina.runtime.cache import DiskCache, cache_directory, digest, distrust, make_private, open_private
from lamina.runtime.compute_device import Device, device, devices, managed, pinned
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
from lamina.runtime.memory import Arena, Buffer, Statistics, host_array, parse_bytes
from lamina.runtime.platforms import MemoryInfo, usable_cores
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
__dir__ = listing(__all__)
