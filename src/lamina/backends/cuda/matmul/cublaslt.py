"""Products by cuBLASLt, where it is installed: its best algorithms compete with cuDNN's engines.

cuBLASLt reads matrices column by column. A row-major C [M, N] is a column-major C^T [N, M] = B^T A^T, so that the
operands change places, and a bias along N lies along the rows, as its epilogues want it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache

from lamina.backends import Call, Run
from lamina.backends.cuda.cudnn_graphs.epilogue import Vector
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import VECTOR, Aligned, Bindable, Place, source
from lamina.backends.cuda.select.formulations import Formulation
from lamina.backends.cuda.select.target import target_of
from lamina.c import cublaslt as c
from lamina.cudnn import Handle
from lamina.runtime import Device
from lamina.spec import DType, Policy

#: Algorithms of one product that compete.
_MOST = 6
#: Bytes of workspace that algorithms may take where the policy names no limit: what NVIDIA advises for Hopper.
_WORKSPACE = 32 << 20
#: cublasLtReductionScheme_t, how sums split over blocks come together: in place (1), which is in any order, or
#: through the workspace in the arithmetic's type (2); never in the result's.
_REPEATABLE, _EXACT = 2, 1 | 2


@dataclass(frozen=True)
class Matrices:
    """What cuBLASLt is asked: D [rows, columns] = A B + residual and an epilogue, everything column-major.

    swapped: A here is the product's second operand. a_transposed, b_transposed: the operand lies as its transpose.
    """

    batch: int
    rows: int
    columns: int
    inner: int
    a_transposed: bool
    b_transposed: bool
    swapped: bool
    data_type: str
    compute: str
    epilogue: str
    residual: bool

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of A, B, C and D as they lie."""
        a, b, d = (self.rows, self.inner), (self.inner, self.columns), (self.rows, self.columns)
        return (a[::-1] if self.a_transposed else a), (b[::-1] if self.b_transposed else b), d, d

    def layouts(self) -> list[int]:
        """A cublasLtMatrixLayout_t of each."""
        made = []
        for rows, columns in self.shapes:
            layout = c.cublasLtMatrixLayoutCreate(c.DATA_TYPES[self.data_type], rows, columns, rows)
            if self.batch > 1:
                c.cublasLtMatrixLayoutSetAttribute(layout, "batch_count", self.batch)
                c.cublasLtMatrixLayoutSetAttribute(layout, "strided_batch_offset", rows * columns)
            made.append(layout)
        return made

    @property
    def has_bias(self) -> bool:
        """Whether the epilogue reads or writes a vector along the rows of D."""
        return self.epilogue.endswith(("bias", "bgrad"))

    @property
    def has_aux(self) -> bool:
        """Whether the epilogue writes or reads the input of the activation beside D."""
        return "aux" in self.epilogue or self.epilogue.startswith("d")

    def description(self, bias: int, aux: int) -> int:
        """The cublasLtMatmulDesc_t; bias: the address of that vector, aux: of the activation's input; 0 for none."""
        made = c.cublasLtMatmulDescCreate(c.COMPUTE[self.compute], c.SCALE[self.compute])
        c.cublasLtMatmulDescSetAttribute(made, "transa", c.OP_T if self.a_transposed else c.OP_N)
        c.cublasLtMatmulDescSetAttribute(made, "transb", c.OP_T if self.b_transposed else c.OP_N)
        c.cublasLtMatmulDescSetAttribute(made, "epilogue", c.EPILOGUES[self.epilogue])
        if bias:
            c.cublasLtMatmulDescSetAttribute(made, "bias_pointer", bias)
        if aux:
            c.cublasLtMatmulDescSetAttribute(made, "epilogue_aux_pointer", aux)
            c.cublasLtMatmulDescSetAttribute(made, "epilogue_aux_ld", self.rows)
        return made


class _Descriptors:
    """The descriptors of one product, freed with this object."""

    def __init__(self, matrices: Matrices, bias: int, aux: int) -> None:
        self.layouts = matrices.layouts()
        self.description = matrices.description(bias, aux)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if _ending():
            return  # the modules that the calls need may be gone
        for layout in self.layouts:
            c.cublasLtMatrixLayoutDestroy(layout)
        c.cublasLtMatmulDescDestroy(self.description)


@cache
def _present() -> bool:
    """Whether the library is there: looked for once."""
    return c.library.available()


@cache
def _handle(device: Device) -> int:
    """The device's cublasLtHandle_t: it holds no stream, so that all threads share it."""
    with device.current():
        return c.cublasLtCreate()


@dataclass(frozen=True)
class Extras:
    """Where an epilogue's operands lie.

    bias: a vector along N, which "…bgrad" writes. residual: what is added to the product. aux: the activation's
    input, as D lies, which "…aux" writes and the gradients "d…" read.
    """

    bias: Place | None = None
    residual: Place | None = None
    aux: Place | None = None


@dataclass(frozen=True)
class Multiply:
    """One run of one algorithm. places: of A, B and D of the product; extras: of its epilogue's operands."""

    matrices: Matrices
    places: tuple[Place, Place, Place]
    algorithm: bytes
    workspace: int
    extras: Extras
    offset: int = 0

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        first, second, d = (place.address(call) for place in self.places)
        a, b = (second, first) if self.matrices.swapped else (first, second)
        bias, aux, residual = (
            place.address(call) if place else 0
            for place in (self.extras.bias, self.extras.aux, self.extras.residual)
        )
        made = _Descriptors(self.matrices, bias, aux)
        number = ctypes.c_double if self.matrices.compute == "float64" else ctypes.c_float
        alpha, beta = number(1), number(1 if residual else 0)
        a_layout, b_layout, c_layout, d_layout = made.layouts
        arguments = (
            *(_handle(device), made.description, ctypes.byref(alpha), a, a_layout, b, b_layout),
            *(ctypes.byref(beta), residual or d, c_layout, d, d_layout),
            ctypes.byref(c.Algorithm.from_buffer_copy(self.algorithm)),
            *(call.workspace + self.offset if self.workspace else 0, self.workspace, call.stream),
        )
        multiply = c.library.symbols.cublasLtMatmul
        enter, leave = device.platform.enter, device.platform.leave

        def run(_kept: object = made) -> None:
            before = enter()
            try:
                status = multiply(*arguments)
            finally:
                if before:
                    leave(before)
            if status:
                raise c.CublasError(status, "cublasLtMatmul", "", str(self.matrices))

        return run


def matrices(p: Product, dtype: DType, vector: Vector, *, tf32: bool) -> Matrices | None:
    """A product as cuBLASLt sees it, or None where its epilogues have no such steps."""
    if vector.upper != float("inf") or (p.c_transposed and vector.bias is not None):
        return None
    swapped = (p.n, p.m, p.k, p.b_transposed, p.a_transposed, True)
    sides = (
        (p.m, p.n, p.k, False, False, False) if p.c_transposed else swapped
    )  # turned ones lie column by column
    parts = [vector.activation, "bias" if vector.bias is not None else ""]
    compute = "tf32" if dtype.name == "float32" and tf32 else dtype.compute.name
    epilogue = "_".join(filter(None, parts))
    return Matrices(p.batch, *sides, dtype.name, compute, epilogue, vector.residual is not None)


def cublaslt_formulations(
    p: Product,
    dtype: DType,
    places: tuple[Place, Place, Place],
    device: Device | None,
    policy: Policy,
    vector: Vector | None,
    *,
    before: tuple[Bindable, ...] = (),
    after: tuple[Bindable, ...] = (),
    offset: int = 0,
) -> list[Formulation]:
    """The library's best algorithms for a product, none where there is no library, GPU or such epilogue.

    Args:
        places: where A, B and C lie.
        vector: the epilogue; None stands for one that cuBLASLt does not have.
        before, after: kernels around the product. offset: bytes of workspace that they take.
    """
    asked = None if vector is None else matrices(p, dtype, vector, tf32=policy.tf32)
    if vector is None or asked is None or device is None or not _multiplies(device, dtype):
        return []
    extras = Extras(*(None if i is None else source(i) for i in (vector.bias, vector.residual)))
    return _formulations(asked, places, extras, device, policy, before, after, offset)


def cublaslt_aux_formulations(
    p: Product,
    dtype: DType,
    places: tuple[Place, Place, Place],
    device: Device,
    policy: Policy,
    epilogue: str,
    extras: Extras,
) -> list[Formulation]:
    """The same with an epilogue by name ("gelu_aux_bias", "dgelu_bgrad") that writes or reads more than C."""
    asked = matrices(p, dtype, Vector(), tf32=policy.tf32)
    if asked is None or p.c_transposed or not _multiplies(device, dtype):
        return []
    return _formulations(replace(asked, epilogue=epilogue), places, extras, device, policy)


def _multiplies(device: Device, dtype: DType) -> bool:
    """Whether there is a GPU, and the library, and it knows the type."""
    return dtype.name in c.DATA_TYPES and isinstance(target_of(device), Handle) and _present()


def _formulations(
    asked: Matrices,
    places: tuple[Place, Place, Place],
    extras: Extras,
    device: Device,
    policy: Policy,
    before: tuple[Bindable, ...] = (),
    after: tuple[Bindable, ...] = (),
    offset: int = 0,
) -> list[Formulation]:
    """A formulation for each of the best algorithms."""
    limit = _WORKSPACE if policy.workspace_limit is None else max(0, policy.workspace_limit - offset)
    version = ".".join(map(str, c.library.version))
    schemes = _REPEATABLE if policy.deterministic else _EXACT
    found = _algorithms(asked, device, min(limit, _WORKSPACE), schemes)
    formulations = []
    for number, (algorithm, workspace) in enumerate(found):
        step = Multiply(asked, places, algorithm, workspace, extras, offset)
        steps = (Aligned(), *before, step, *after)
        formulations.append(Formulation(f"blas{version}:{number}", steps=steps, scratch=offset + workspace))
    return formulations


def _algorithms(asked: Matrices, device: Device, limit: int, schemes: int) -> list[tuple[bytes, int]]:
    """(algorithm, bytes of workspace), best first; none where the library cannot compute it."""
    with device.current(), suppress(c.CublasError):
        address = 256  # any aligned one: it is not read
        made = _Descriptors(asked, address * asked.has_bias, address * asked.has_aux)
        preference = c.cublasLtMatmulPreferenceCreate()
        try:
            c.cublasLtMatmulPreferenceSetAttribute(preference, "max_workspace_bytes", limit)
            c.cublasLtMatmulPreferenceSetAttribute(preference, "reduction_scheme_mask", schemes)
            for name in "abcd":
                c.cublasLtMatmulPreferenceSetAttribute(preference, f"min_alignment_{name}_bytes", VECTOR)
            found = c.cublasLtMatmulAlgoGetHeuristic(
                _handle(device), made.description, made.layouts, preference, _MOST
            )
        finally:
            c.cublasLtMatmulPreferenceDestroy(preference)
        return [(bytes(one.algorithm), int(one.workspace)) for one in found]
    return []
