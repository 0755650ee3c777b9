"""From LLVM assembly to machine code for this processor, by llvmlite; cached in memory and on disk."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from lamina._lazy import lazy
from lamina.runtime import DiskCache, cache_directory, digest

#: Vector width preference of the optimiser: the machine's widest registers.
_ATTRIBUTES = 'attributes #0 = { nounwind "prefer-vector-width"="512" }'
#: Bytes of machine code cached on disk.
_DISK_LIMIT = 64 << 20
#: Incremented when the same assembly would compile to other instructions.
_VERSION = "1"

#: A compiled kernel: the addresses of its parameters, and the range of its outermost loop's steps.
Function = Callable[[int, int, int], None]
_PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

_late = lazy("llvmlite", {"binding": "llvmlite.binding"})
_lock = threading.RLock()
_functions: dict[str, Function] = {}
_engines: list[Any] = []  # they own the code


@lru_cache(maxsize=1)
def available() -> bool:
    """Whether LLVM is installed; nothing is loaded yet."""
    return find_spec("llvmlite") is not None


@lru_cache(maxsize=1)
def _llvm() -> tuple[Any, Any]:
    """llvmlite's binding and the target machine: this processor."""
    llvm = _late("binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return llvm, target.create_target_machine(llvm.get_host_cpu_name(), features, opt=3, jit=True)


def compiled(text: str, name: str = "kernel") -> Function:
    """A function of assembly, compiled once."""
    with _lock:
        found = _functions.get(text)
        if found is None:
            found = _functions[text] = _PROTOTYPE(_load(text, name))
        return found


def _load(text: str, name: str) -> int:
    llvm, machine = _llvm()
    key = digest(_VERSION, repr(llvm.llvm_version_info), llvm.get_host_cpu_name(), _features(), text)
    disk = DiskCache(cache_directory() / "loops", _DISK_LIMIT)
    code = disk.get(key)
    if code is None:
        code = _machine_code(llvm, machine, f"{text}\n{_ATTRIBUTES}")
        disk.put(key, code)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address(name))


@lru_cache(maxsize=1)
def masks_cheaply() -> bool:
    """Whether loads and stores of some elements of a vector cost what those of all do (AVX-512)."""
    return bool(_llvm()[0].get_host_cpu_features().get("avx512f"))


@lru_cache(maxsize=1)
def _features() -> str:
    return str(_llvm()[0].get_host_cpu_features().flatten())


def _machine_code(llvm: Any, machine: Any, text: str) -> bytes:
    module = llvm.parse_assembly(text)
    module.verify()
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization, options.slp_vectorization = True, False
    llvm.create_pass_builder(machine, options).getModulePassManager().run(
        module, llvm.create_pass_builder(machine, options)
    )
    return bytes(machine.emit_object(module))


def define(symbol: str, address: int) -> None:
    """Let compiled code call a function of the process."""
    _llvm()[0].add_symbol(symbol, address)
