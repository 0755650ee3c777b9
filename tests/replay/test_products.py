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
    platform = SimpleNamespace(
        enter=lambda: context.append("enter") or "before",
        leave=context.append,
        wait_for_ends=lambda stream: context.append(f"wait on {stream}"),
    )
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
    assert run(library, monkeypatch, residual, compute) == ["enter", "wait on 41", "before"]
    ((*given, _, workspace, size, stream),) = library.called
    assert given == ["handle", "description", 1.0, 11, "a", 12, "b", beta, c, "c", 13, "d"]
    assert (workspace, size, stream, library.numbers) == (31, 32, 41, numbers)


def test_what_the_library_refuses_is_an_error_and_the_context_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(products.c.CublasError, match="cublasLtMatmul"):
        run(Library(status=7), monkeypatch, 0)


class Calls:
    """cublasLt's functions that make, describe and destroy: what they were called with; each object is a number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[Any, ...]] = []
        ways = ("Create", "Destroy", "SetAttribute")
        names = [f"cublasLtMat{what}{how}" for what in ("rixLayout", "mulDesc") for how in ways]
        for name in names:
            monkeypatch.setattr(products.c, name, self.of(name.removeprefix("cublasLt")))

    def of(self, name: str) -> Any:
        def call(*given: Any) -> int:
            self.done.append((name, *given))
            return len(self.done)

        return call


@pytest.mark.parametrize("batch", [1, 2])
def test_how_matrices_are_described(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, kind = Calls(monkeypatch), products.c.DATA_TYPES["bfloat16"]
    made = Matrices(batch, 3, 4, 5, True, False, False, "bfloat16", "float32", "", False).layouts()
    assert [call for call in calls.done if call[0].endswith("Create")] == [
        ("MatrixLayoutCreate", kind, rows, columns, rows)
        for rows, columns in ((5, 3), (5, 4), (3, 4), (3, 4))
    ]
    several = [call[1:] for call in calls.done if call[0].endswith("SetAttribute")]
    wanted = [
        (layout, name, value)
        for layout, size in zip(made, (15, 20, 12, 12), strict=True)
        for name, value in (("batch_count", 2), ("strided_batch_offset", size))
    ]
    assert several == (wanted if batch > 1 else [])


@pytest.mark.parametrize(("bias", "aux"), [(0, 0), (21, 0), (0, 22), (21, 22)])
@pytest.mark.parametrize("turned", [False, True])
def test_how_a_product_is_described(
    bias: int, aux: int, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, c = Calls(monkeypatch), products.c
    found = Matrices(1, 3, 4, 5, turned, not turned, False, "bfloat16", "float32", "gelu_aux_bias", False)
    held = products.Descriptors(found, bias, aux)
    made = held.description
    described = [call for call in calls.done if call[0].startswith("MatmulDesc")]
    assert described == [
        ("MatmulDescCreate", c.COMPUTE["float32"], c.SCALE["float32"]),
        ("MatmulDescSetAttribute", made, "transa", c.OP_T if turned else c.OP_N),
        ("MatmulDescSetAttribute", made, "transb", c.OP_N if turned else c.OP_T),
        ("MatmulDescSetAttribute", made, "epilogue", c.EPILOGUES["gelu_aux_bias"]),
        *([("MatmulDescSetAttribute", made, "bias_pointer", bias)] if bias else []),
        *([("MatmulDescSetAttribute", made, "epilogue_aux_pointer", aux)] if aux else []),
        *([("MatmulDescSetAttribute", made, "epilogue_aux_ld", 3)] if aux else []),
    ]
    layouts, calls.done = held.layouts, []
    del held
    assert calls.done == [*(("MatrixLayoutDestroy", x) for x in layouts), ("MatmulDescDestroy", made)]
