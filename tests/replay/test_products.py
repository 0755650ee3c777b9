"""Products as cuBLASLt sees them: shapes as they lie, and what epilogues read or write."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.replay import products
from lamina.replay.products import Matrices


def matrices(a: bool = False, b: bool = False, epilogue: str = "") -> Matrices:
    return Matrices(2, 3, 4, 5, a, b, False, "bfloat16", "float32", epilogue, False)


def test_shapes_as_they_lie() -> None:
    assert matrices().shapes == ((3, 5), (5, 4), (3, 4), (3, 4))
    assert matrices(a=True, b=True).shapes == ((5, 3), (4, 5), (3, 4), (3, 4))


@pytest.mark.parametrize(
    ("epilogue", "bias", "aux"),
    [
        ("", False, False),
        ("relu_bias", True, False),
        ("gelu_aux_bias", True, True),
        ("dgelu_bgrad", True, True),
    ],
)
def test_what_an_epilogue_takes(epilogue: str, bias: bool, aux: bool) -> None:
    found = matrices(epilogue=epilogue)
    assert (found.has_bias, found.has_aux) == (bias, aux)


class Library:
    """cublasLtMatmul as it is called: its arguments, those by reference as numbers; it answers with a status."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.called = status, list[tuple[Any, ...]]()
        self.symbols = SimpleNamespace(cublasLtMatmul=self.multiply)

    def multiply(self, *given: Any) -> int:
        self.called.append(
            tuple(x._obj.value if hasattr(x, "_obj") and hasattr(x._obj, "value") else x for x in given)
        )
        self.numbers = type(given[2]._obj)
        return self.status


def run(
    library: Library, monkeypatch: pytest.MonkeyPatch, residual: int, compute: str = "float32"
) -> list[str]:
    """One product of A at 11, B at 12 and D at 13; what was done with the device's context."""
    made: list[Any] = []
    context: list[str] = []

    def descriptors(found: Matrices, bias: int, aux: int) -> Any:
        made.append((bias, aux))
        return SimpleNamespace(description="description", layouts=("a", "b", "c", "d"))

    monkeypatch.setattr(products, "Descriptors", descriptors)
    monkeypatch.setattr(products, "handle_on", lambda device: SimpleNamespace(address="handle"))
    monkeypatch.setattr(products.c, "library", library)
    platform = SimpleNamespace(enter=lambda: context.append("enter") or "before", leave=context.append)
    device: Any = SimpleNamespace(platform=platform)
    found = Matrices(1, 2, 3, 4, False, False, False, compute, compute, "", False)
    algorithm = bytes(ctypes.sizeof(products.c.Algorithm))
    call = products.multiply(found, device, (11, 12, 13), (21, 22, residual), algorithm, (31, 32), 41)
    assert (made, context, library.called) == ([(21, 22)], [], [])  # nothing runs before it is called
    call()
    return context


@pytest.mark.parametrize(("residual", "beta", "c"), [(0, 0.0, 13), (23, 1.0, 23)])
@pytest.mark.parametrize(("compute", "numbers"), [("float32", ctypes.c_float), ("float64", ctypes.c_double)])
def test_a_product_is_called_with_what_it_reads_and_adds(
    residual: int, beta: float, c: int, compute: str, numbers: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Library()
    assert run(library, monkeypatch, residual, compute) == ["enter", "before"]
    ((*given, _, workspace, size, stream),) = library.called
    assert given == ["handle", "description", 1.0, 11, "a", 12, "b", beta, c, "c", 13, "d"]
    assert (workspace, size, stream, library.numbers) == (31, 32, 41, numbers)


def test_what_the_library_refuses_is_an_error_and_the_context_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(products.c.CublasError, match="cublasLtMatmul"):
        run(Library(status=7), monkeypatch, 0)
