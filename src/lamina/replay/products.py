"""Products by cuBLASLt at given addresses."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass

from lamina.c import cublaslt as c
from lamina.runtime import Device, library_state
from lamina.runtime.uncopied import Uncopied


@dataclass(frozen=True)
class Matrices:
    """A cuBLASLt problem: D [rows, columns] = A B + residual and an epilogue, everything column-major.

    swapped: A here is the product's second operand. a_transposed, b_transposed: the operand is stored as its
        transpose.
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
        """Rows and columns of the stored A, B, C and D."""
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


class Descriptors(Uncopied):
    """The descriptors of one product, freed with this object."""

    def __init__(self, matrices: Matrices, bias: int, aux: int) -> None:
        self.layouts = matrices.layouts()
        self.description = matrices.description(bias, aux)

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if _ending():
            return  # at shutdown the modules for the calls may be gone
        for layout in self.layouts:
            c.cublasLtMatrixLayoutDestroy(layout)
        c.cublasLtMatmulDescDestroy(self.description)


class LightHandle(Uncopied):
    """A cublasLtHandle_t on one device, freed with this object."""

    def __init__(self, device: Device) -> None:
        self.device = device
        with device.current():
            self.address = c.cublasLtCreate()

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "address") and not _ending():
            with self.device.current():
                c.cublasLtDestroy(self.address)


def handle_on(device: Device) -> LightHandle:
    """The handle of this thread, or of its current `runtime.LibraryState`, on a device."""
    held, key = library_state().held, (LightHandle, device)
    found: LightHandle | None = held.get(key)
    if found is None:
        found = held[key] = LightHandle(device)
    return found


def multiply(
    matrices: Matrices,
    device: Device,
    operands: tuple[int, int, int],
    extras: tuple[int, int, int],
    algorithm: bytes,
    workspace: tuple[int, int],
    stream: int,
) -> Callable[[], None]:
    """A run of one algorithm at given addresses.

    operands: of A, B and D in cuBLASLt's sense. extras: of bias, activation's input, residual (0: none).
    workspace: its address and bytes. Raises (when called) CublasError.
    """
    a, b, d = operands
    bias, aux, residual = extras
    made = Descriptors(matrices, bias, aux)
    number = ctypes.c_double if matrices.compute == "float64" else ctypes.c_float
    alpha, beta = number(1), number(1 if residual else 0)
    a_layout, b_layout, c_layout, d_layout = made.layouts
    handle = handle_on(device)
    arguments = (
        *(handle.address, made.description, ctypes.byref(alpha), a, a_layout, b, b_layout),
        *(ctypes.byref(beta), residual or d, c_layout, d, d_layout),
        ctypes.byref(c.Algorithm.from_buffer_copy(algorithm)),
        *(*workspace, stream),
    )
    function = c.library.symbols.cublasLtMatmul
    platform = device.platform
    enter, leave, wait_for_ends = platform.enter, platform.leave, platform.wait_for_ends

    def run(_kept: object = (made, handle)) -> None:
        before = enter()
        try:
            wait_for_ends(stream)
            status = function(*arguments)
        finally:
            if before:
                leave(before)
        if status:
            raise c.CublasError(status, "cublasLtMatmul", "", str(matrices))

    return run
