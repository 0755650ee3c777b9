"""lamina.c.cublaslt without a GPU: structures, errors, and descriptors where the library is installed."""

import ctypes
import re
from pathlib import Path

import pytest

from lamina.c import cublaslt as c
from lamina.c._library import wheel_file


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


def _header(name: str) -> str:
    """The text of one of cuBLAS' headers, of the wheel."""
    file = wheel_file("nvidia-cublas", re.escape(name)) or wheel_file("nvidia-cublas-cu12", re.escape(name))
    if file is None:
        pytest.skip(f"needs {name}")
    return Path(file).read_text()


def _enumerators(name: str, prefix: str) -> dict[str, int]:
    """The numbers of a header's enumerators that begin so, by the rest of their names in lower case."""
    found = re.findall(rf"^ +{prefix}(\w+) = (\d+)\b", _header(name), re.MULTILINE)
    return {key.lower(): int(number) for key, number in found}


def test_every_status_has_its_name() -> None:
    numbers = _enumerators("cublas_api.h", "CUBLAS_STATUS_")
    assert numbers.pop("success") == 0
    for key, number in numbers.items():
        assert c.CublasError(number, "f").code == f"CUBLAS_STATUS_{key.upper()}"
    assert len(c.CublasError.names) == len(numbers)
    assert str(c.CublasError(99, "f")) == "f() returned status 99 (99)"


def test_numbers_are_the_headers() -> None:
    for prefix, table in (
        ("CUBLASLT_MATMUL_DESC_", c._DESCRIPTION),
        ("CUBLASLT_MATRIX_LAYOUT_", c._LAYOUT),
        ("CUBLASLT_MATMUL_PREF_", c._PREFERENCE),
    ):
        numbers = _enumerators("cublasLt.h", prefix)
        assert {key: number for key, (number, _) in table.items()} == {key: numbers[key] for key in table}
    compute = _enumerators("cublas_api.h", "CUBLAS_COMPUTE_")
    assert {
        "float32": compute["32f"],
        "float64": compute["64f"],
        "tf32": compute["32f_fast_tf32"],
    } == c.COMPUTE
    turned = _enumerators("cublas_api.h", "CUBLAS_OP_")
    assert (turned["n"], turned["t"]) == (c.OP_N, c.OP_T)


def test_parameters_are_called_as_in_the_header() -> None:
    header = _header("cublasLt.h")
    for name, signature in c._SIGNATURES.items():
        declared = re.search(rf"^cublasStatus_t CUBLASWINAPI {name}\(([^;]*)\);", header, re.MULTILINE)
        assert declared is not None, name
        text = re.sub(r"//.*|/\*.*?\*/", "", declared[1])
        names = [re.findall(r"\w+", parameter)[-1] for parameter in text.split(",")]
        assert [entry.partition("=")[0] for entry in signature.split()[1:]] == names, name


@pytest.mark.skipif(not c.library.available(), reason="needs cuBLASLt")
def test_every_attribute_has_the_size_that_the_library_takes() -> None:
    """It refuses a value of another size, and one that is not there."""
    description = c.cublasLtMatmulDescCreate(c.COMPUTE["float32"], c.SCALE["float32"])
    layout = c.cublasLtMatrixLayoutCreate(c.DATA_TYPES["float32"], 8, 16, 8)
    preference = c.cublasLtMatmulPreferenceCreate()
    for setter, owner, table in (
        (c.cublasLtMatmulDescSetAttribute, description, c._DESCRIPTION),
        (c.cublasLtMatrixLayoutSetAttribute, layout, c._LAYOUT),
        (c.cublasLtMatmulPreferenceSetAttribute, preference, c._PREFERENCE),
    ):
        for name, (number, kind) in table.items():
            setter(owner, name, 1)
            value = (ctypes.c_char * (ctypes.sizeof(kind) - 1))()
            with pytest.raises(c.CublasError, match=r"CUBLAS_STATUS_INVALID_VALUE \(7\)"):
                c._call(setter.__name__, owner, number, ctypes.byref(value), len(value))
        with pytest.raises(KeyError, match="colour"):
            setter(owner, "colour", 1)
    c.cublasLtMatmulPreferenceDestroy(preference)
    c.cublasLtMatrixLayoutDestroy(layout)
    c.cublasLtMatmulDescDestroy(description)


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
