"""lamina.c.cublaslt without a GPU: structures, errors, and descriptors where the library is installed."""

import ctypes

import pytest

from lamina.c import cublaslt as c


def test_structures_are_as_large_as_in_c() -> None:
    assert ctypes.sizeof(c.Algorithm) == 64
    assert ctypes.sizeof(c.HeuristicResult) == 96


def test_an_epilogue_is_the_bits_of_its_parts() -> None:
    """As in cublasLt.h."""
    bits = {
        "relu": 2,
        "bias": 4,
        "drelu": 8,
        "bgrad": 16,
        "gelu": 32,
        "dgelu": 64,
        "aux": 128,
        "bgrada": 256,
        "bgradb": 512,
    }
    for name, number in c.EPILOGUES.items():
        parts = [bits[part] for part in name.split("_") if part]
        reads = 128 if name.startswith("d") else 0  # a gradient reads the auxiliary pointer
        assert number == (sum(parts) | reads or 1), name


def test_every_signature_has_a_function() -> None:
    assert {name for name in c.__all__ if name.startswith("cublasLt")} == set(c.library.signatures)


def test_an_error_names_function_and_status() -> None:
    error = c.library.failure(7, "cublasLtMatrixLayoutCreate", {"type": 14, "rows": 3})
    assert str(error) == (
        "cublasLtMatrixLayoutCreate(type=14, rows=3) returned CUBLAS_STATUS_INVALID_VALUE (7)"
    )
    assert isinstance(error, c.CublasError)


@pytest.mark.skipif(not c.library.available(), reason="needs cuBLASLt")
def test_descriptors() -> None:
    """Descriptors live on the host: they are made and set without a GPU."""
    assert c.library.version >= (11, 0, 0)
    description = c.cublasLtMatmulDescCreate(c.COMPUTE["float32"], c.SCALE["float32"])
    c.cublasLtMatmulDescSetAttribute(description, "transa", c.OP_T)
    c.cublasLtMatmulDescSetAttribute(description, "epilogue", c.EPILOGUES["relu_bias"])
    layout = c.cublasLtMatrixLayoutCreate(c.DATA_TYPES["bfloat16"], 8, 16, 8)
    c.cublasLtMatrixLayoutSetAttribute(layout, "batch_count", 3)
    preference = c.cublasLtMatmulPreferenceCreate()
    c.cublasLtMatmulPreferenceSetAttribute(preference, "max_workspace_bytes", 1 << 20)
    with pytest.raises(KeyError, match="colour"):
        c.cublasLtMatrixLayoutSetAttribute(layout, "colour", 1)
    with pytest.raises(c.CublasError, match="cublasLtMatmulDescSetAttribute"):
        c._call("cublasLtMatmulDescSetAttribute", description, 9999, None, 4)
    c.cublasLtMatmulPreferenceDestroy(preference)
    c.cublasLtMatrixLayoutDestroy(layout)
    c.cublasLtMatmulDescDestroy(description)
