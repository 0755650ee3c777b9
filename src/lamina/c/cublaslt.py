"""The dozen functions of cuBLASLt needed for matrix products: an optional library, opened at the first call.

Numbers are those of cublasLt.h and library_types.h (cuBLAS 11 to 13, https://docs.nvidia.com/cuda/cublas). A function
whose C counterpart returns a status raises CublasError instead; values that C writes through pointers are returned.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterable, Mapping, Sequence
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p
from typing import Any, ClassVar, Final

from lamina.c._library import Library, Version, shared_object, wheel_file
from lamina.c._status import StatusError

__all__ = [
    "COMPUTE",
    "DATA_TYPES",
    "EPILOGUES",
    "OP_N",
    "OP_T",
    "SCALE",
    "Algorithm",
    "CublasError",
    "HeuristicResult",
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
    "library",
]

# cudaDataType
DATA_TYPES: Final[Mapping[str, int]] = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
#: cublasComputeType_t by the type of the accumulator.
COMPUTE: Final[Mapping[str, int]] = {"float32": 68, "float64": 70, "tf32": 77}
#: cudaDataType of alpha and beta, by the same names.
SCALE: Final[Mapping[str, int]] = {"float32": 0, "float64": 1, "tf32": 0}
OP_N: Final = 0
OP_T: Final = 1
#: cublasLtEpilogue_t; "gelu" is the tanh approximation. "bgrada" and "bgradb" sum an operand over the product's inner
#: axis, "drelu" reads a bit mask and "dgelu" the input of the activation from the auxiliary pointer.
EPILOGUES: Final[Mapping[str, int]] = {
    "": 1,
    "relu": 2,
    "relu_aux": 2 | 128,
    "bias": 4,
    "relu_bias": 2 | 4,
    "relu_aux_bias": 2 | 4 | 128,
    "drelu": 8 | 128,
    "drelu_bgrad": 8 | 16 | 128,
    "gelu": 32,
    "gelu_aux": 32 | 128,
    "gelu_bias": 32 | 4,
    "gelu_aux_bias": 32 | 4 | 128,
    "dgelu": 64 | 128,
    "dgelu_bgrad": 64 | 16 | 128,
    "bgrada": 256,
    "bgradb": 512,
}

# cublasLtMatmulDescAttributes_t: name -> number and C type
_DESCRIPTION: Final[Mapping[str, tuple[int, Any]]] = {
    "transa": (3, c_int),
    "transb": (4, c_int),
    "epilogue": (7, c_int),
    "bias_pointer": (8, c_void_p),
    "bias_batch_stride": (10, ctypes.c_int64),
    "epilogue_aux_pointer": (11, c_void_p),
    "epilogue_aux_ld": (12, ctypes.c_int64),
    "bias_data_type": (26, c_int),
}
# cublasLtMatrixLayoutAttribute_t
_LAYOUT: Final[Mapping[str, tuple[int, Any]]] = {
    "batch_count": (5, c_int),
    "strided_batch_offset": (6, ctypes.c_int64),
}
# cublasLtMatmulPreferenceAttributes_t
_PREFERENCE: Final[Mapping[str, tuple[int, Any]]] = {
    "max_workspace_bytes": (1, c_uint64),
    "reduction_scheme_mask": (3, ctypes.c_uint32),
    **{f"min_alignment_{name}_bytes": (5 + i, ctypes.c_uint32) for i, name in enumerate("abcd")},
}


class CublasError(StatusError):
    """A cuBLASLt call failed."""

    names: ClassVar[Mapping[int, str]] = {
        1: "CUBLAS_STATUS_NOT_INITIALIZED",
        3: "CUBLAS_STATUS_ALLOC_FAILED",
        7: "CUBLAS_STATUS_INVALID_VALUE",
        8: "CUBLAS_STATUS_ARCH_MISMATCH",
        11: "CUBLAS_STATUS_MAPPING_ERROR",
        13: "CUBLAS_STATUS_EXECUTION_FAILED",
        14: "CUBLAS_STATUS_INTERNAL_ERROR",
        15: "CUBLAS_STATUS_NOT_SUPPORTED",
        16: "CUBLAS_STATUS_LICENSE_ERROR",
    }


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque, plain memory that may be stored and copied within one version of the library."""

    _fields_: ClassVar = [("data", c_uint64 * 8)]


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, its workspace in bytes, and the wave count on the GPU."""

    _fields_: ClassVar = [
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    ]


def _pathfinder() -> str | None:
    """NVIDIA's cuda-pathfinder (wheels, conda, CUDA_HOME, the loader); it opens the library too."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
    except ImportError:
        return None
    return str(pathfinder.load_nvidia_dynamic_lib("cublasLt").abs_path)


def _wheel() -> str | None:
    pattern = r"libcublasLt\.so\.\d+|cublasLt64_\d+\.dll"
    return wheel_file("nvidia-cublas", pattern) or wheel_file("nvidia-cublas-cu12", pattern)


class CublasLt(Library):
    """libcublasLt: an already loaded one, else `LAMINA_CUBLASLT`, the wheels, the platform's."""

    def read_version(self, library: ctypes.CDLL) -> Version:
        """From `cublasLtGetVersion`: 130100 is 13.1.0."""
        function = library["cublasLtGetVersion"]
        function.restype, function.argtypes = c_size_t, []
        number = int(function())
        return number // 10000, number % 10000 // 100, number % 100

    def exception(self, status: int, function: str, arguments: str, hints: Iterable[str]) -> CublasError:
        """A CublasError."""
        return CublasError(status, function, "; ".join(hints), arguments)


_SIGNATURES: Final[Mapping[str, str]] = {
    "cublasLtCreate": "i: lightHandle=out",
    "cublasLtDestroy": "i: lightHandle=p",
    "cublasLtMatmulDescCreate": "i: matmulDesc=out computeType=i scaleType=i",
    "cublasLtMatmulDescDestroy": "i: matmulDesc=p",
    "cublasLtMatmulDescSetAttribute": "i: matmulDesc=p attr=i buf=out sizeInBytes=N",
    "cublasLtMatrixLayoutCreate": "i: matLayout=out type=i rows=Q cols=Q ld=q",
    "cublasLtMatrixLayoutDestroy": "i: matLayout=p",
    "cublasLtMatrixLayoutSetAttribute": "i: matLayout=p attr=i buf=out sizeInBytes=N",
    "cublasLtMatmulPreferenceCreate": "i: pref=out",
    "cublasLtMatmulPreferenceDestroy": "i: pref=p",
    "cublasLtMatmulPreferenceSetAttribute": "i: pref=p attr=i buf=out sizeInBytes=N",
    "cublasLtMatmulAlgoGetHeuristic": "i: lightHandle=p operationDesc=p Adesc=p Bdesc=p Cdesc=p Ddesc=p "
    "preference=p requestedAlgoCount=i heuristicResultsArray=out returnAlgoCount=out",
    "cublasLtMatmul": "i: lightHandle=p computeDesc=p alpha=out A=p Adesc=p B=p Bdesc=p beta=out C=p Cdesc=p "
    "D=p Ddesc=p algo=out workspace=p workspaceSizeInBytes=N stream=p",
}

library: Final = CublasLt(
    "cuBLASLt",
    environment="LAMINA_CUBLASLT",
    pattern=r"libcublasLt\.so(\.\d+)*|cublasLt64_\d+\.dll",
    names=(*shared_object("cublasLt", 13), *shared_object("cublasLt", 12)),
    finders={"cuda.pathfinder": _pathfinder, "nvidia-cublas wheel": _wheel},
    supported=((11, 0, 0), (14, 0, 0)),
    header=(13, 1, 0),
    since={},
    signatures=_SIGNATURES,
    enums={},
)


def _call(name: str, *values: Any) -> None:
    """One call; every function here returns a status."""
    status = getattr(library.symbols, name)(*values)
    if status:
        names = (entry.partition("=")[0] for entry in _SIGNATURES[name].partition(":")[2].split())
        raise library.failure(status, name, dict(zip(names, values, strict=True)))


def _made(name: str, *values: Any) -> int:
    """The handle that a function writes through its first parameter."""
    made = c_void_p()
    _call(name, byref(made), *values)
    return made.value or 0


def _set(name: str, owner: int, attribute: tuple[int, Any], value: int) -> None:
    number, kind = attribute
    held = kind(value)
    _call(name, owner, number, byref(held), ctypes.sizeof(held))


def cublasLtCreate() -> int:
    """A cublasLtHandle_t on the current device; threads may share it."""
    return _made("cublasLtCreate")


def cublasLtDestroy(handle: int) -> None:
    """Free a handle."""
    _call("cublasLtDestroy", handle)


def cublasLtMatmulDescCreate(compute: int, scale: int) -> int:
    """A cublasLtMatmulDesc_t: sums of type `compute` (COMPUTE), alpha and beta of type `scale` (SCALE)."""
    return _made("cublasLtMatmulDescCreate", compute, scale)


def cublasLtMatmulDescDestroy(description: int) -> None:
    """Free a description."""
    _call("cublasLtMatmulDescDestroy", description)


def cublasLtMatmulDescSetAttribute(description: int, name: str, value: int) -> None:
    """Set "transa", "transb", "epilogue", "bias_pointer", … by name. Raises KeyError, CublasError."""
    _set("cublasLtMatmulDescSetAttribute", description, _DESCRIPTION[name], value)


def cublasLtMatrixLayoutCreate(data_type: int, rows: int, columns: int, leading: int) -> int:
    """A cublasLtMatrixLayout_t: column-major, `leading` elements from one column to the next."""
    return _made("cublasLtMatrixLayoutCreate", data_type, rows, columns, leading)


def cublasLtMatrixLayoutDestroy(layout: int) -> None:
    """Free a layout."""
    _call("cublasLtMatrixLayoutDestroy", layout)


def cublasLtMatrixLayoutSetAttribute(layout: int, name: str, value: int) -> None:
    """Set "batch_count" or "strided_batch_offset" (elements). Raises KeyError, CublasError."""
    _set("cublasLtMatrixLayoutSetAttribute", layout, _LAYOUT[name], value)


def cublasLtMatmulPreferenceCreate() -> int:
    """A cublasLtMatmulPreference_t."""
    return _made("cublasLtMatmulPreferenceCreate")


def cublasLtMatmulPreferenceDestroy(preference: int) -> None:
    """Free a preference."""
    _call("cublasLtMatmulPreferenceDestroy", preference)


def cublasLtMatmulPreferenceSetAttribute(preference: int, name: str, value: int) -> None:
    """Set "max_workspace_bytes", "min_alignment_a_bytes" (b, c, d), … by name. Raises KeyError, CublasError."""
    _set("cublasLtMatmulPreferenceSetAttribute", preference, _PREFERENCE[name], value)


def cublasLtMatmulAlgoGetHeuristic(
    handle: int, description: int, layouts: Sequence[int], preference: int, count: int
) -> list[HeuristicResult]:
    """At most `count` algorithms, best first; layouts: of A, B, C and D.

    Raises CublasError; CUBLAS_STATUS_NOT_SUPPORTED if no algorithm computes the product.
    """
    found, returned = (HeuristicResult * count)(), c_int()
    _call(
        "cublasLtMatmulAlgoGetHeuristic",
        *(handle, description, *layouts, preference, count, found, byref(returned)),
    )
    return [one for one in found[: returned.value] if one.state == 0]


def cublasLtMatmul(
    handle: int,
    description: int,
    scaling: tuple[float, float],
    addresses: Sequence[int],
    layouts: Sequence[int],
    algorithm: Algorithm,
    workspace: tuple[int, int],
    stream: int,
    *,
    double: bool = False,
) -> None:
    """D = epilogue(alpha op(A) op(B) + beta C), queued on a stream. Raises CublasError.

    Args:
        scaling: alpha and beta, numbers of the description's scale type (double: float64).
        addresses, layouts: of A, B, C and D.
        workspace: address and bytes.
        stream: a cudaStream_t.
    """
    kind = ctypes.c_double if double else c_float
    alpha, beta = (byref(kind(v)) for v in scaling)
    (a, b, c, d), (a_layout, b_layout, c_layout, d_layout) = addresses, layouts
    operands = (alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout)
    _call("cublasLtMatmul", handle, description, *operands, byref(algorithm), *workspace, stream)
