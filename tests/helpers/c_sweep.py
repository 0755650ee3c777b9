"""Call every cuDNN function once without a GPU, each in a forked child; print {function: outcome} as JSON.

Handles are null. Descriptors are null too, but for the few functions that would read a null descriptor: those get
created ones. So every call ends in a result, a status, or a refusal of the binding, never in a crash.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Container
from typing import Any

from codegen.model import Function, Library, Parameter
from lamina.c import cudnn
from lamina.c._library import MissingSymbol
from lamina.c.errors import CudnnError

READS_NULL = frozenset(Library("cudnn").overrides["required"])
INTEGERS = {"int", "int32_t", "unsigned int", "uint32_t", "int64_t", "size_t", "unsigned long long"}


def created(base: str) -> Any:
    """A new object of a C type (cudnnTensorDescriptor_t, cudnnFusedOpsPlan_t ...); None if nothing creates it."""
    create = getattr(cudnn, base.removesuffix("_t").replace("cudnn", "cudnnCreate", 1), None)
    if create is None:
        return None
    descriptor = create(0) if "FusedOps" in base else create()
    if base == "cudnnTensorDescriptor_t":
        cudnn.cudnnSetTensor4dDescriptor(descriptor, 0, 0, 1, 2, 3, 4)
    return descriptor


def argument(function: Function, parameter: Parameter, enums: Container[str]) -> Any:
    base, careful = parameter.type.base, function.name in READS_NULL
    if parameter.role == "scaling":
        return 0.0
    if parameter.role == "array":
        return [1] * 8 if careful else None
    if parameter.role != "value":
        return None
    if base in ("float", "double"):
        return 0.0
    if base in INTEGERS or base in enums:
        return 0
    return created(base) if careful else None


def outcome(function: Function, enums: Container[str]) -> str:
    call = getattr(cudnn, function.name)
    names = inspect.signature(call).parameters
    arguments = [argument(function, p, enums) for p in function.parameters if p.name in names]
    try:
        call(*arguments)
    except CudnnError as error:
        return error.code
    except MissingSymbol as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "returned"


def in_child(function: Function, enums: Container[str]) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.write(write, outcome(function, enums).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"crashed ({status})"


def main() -> None:
    library = Library("cudnn")
    cudnn.library.open()
    print(json.dumps({f.name: in_child(f, library.enums) for f in library.functions}))


if __name__ == "__main__":
    main()
