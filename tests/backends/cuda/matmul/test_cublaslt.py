"""Products by cuBLASLt: where its operands, an epilogue's and the workspace lie, as it is called and as data."""

from dataclasses import replace
from typing import Any

import pytest

from lamina.backends import Call
from lamina.backends.cuda.cudnn_graphs.epilogue import Vector
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import Aligned, Fill, scratch, source, target
from lamina.backends.cuda.matmul import cublaslt
from lamina.backends.cuda.matmul.cublaslt import Extras, Multiply, matrices
from lamina.c import cublaslt as c
from lamina.spec import DType, Policy, bfloat16, float32, float64
from tests.helpers.planned import H200

CALL = Call((1000, 2000, 3000), (4000, 5000), 6000, 7)
PLACES = (source(0), source(1), target(0))
ROWS = Product(2, 4, 5, 6, False, True)
NONE = Extras()


def product(p: Product = ROWS, extras: Extras = NONE, workspace: int = 0, offset: int = 0) -> Multiply:
    asked = matrices(p, bfloat16, Vector(), tf32=False)
    assert asked is not None
    return Multiply(asked, PLACES, b"\x01\x02", workspace, extras, offset)


def told(made: Multiply, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    """What `multiply` is given behind the matrices and the device."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cublaslt, "multiply", lambda *given: calls.append(given))
    made.bind(H200, CALL)
    ((asked, device, *rest),) = calls
    assert (asked, device) == (made.matrices, H200)
    return tuple(rest)


@pytest.mark.parametrize("workspace", [0, 300])
@pytest.mark.parametrize("offset", [0, 256])
def test_a_workspace_lies_behind_what_kernels_around_take(
    workspace: int, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An algorithm without one is given no address."""
    made = product(workspace=workspace, offset=offset)
    place = (6000 + offset if workspace else 0, workspace)
    *_, algorithm, given, stream = told(made, monkeypatch)
    assert (algorithm, given, stream) == (b"\x01\x02", place, 7)
    ((*_, hexed, address, nbytes),) = made.recorded(H200, CALL, None)  # type: ignore[arg-type]
    assert (hexed, address, nbytes) == ("0102", *place)


@pytest.mark.parametrize("p", [ROWS, Product(1, 4, 5, 6, True, True)], ids=["rows", "columns"])
def test_operands_change_places_where_the_result_lies_in_rows(
    p: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only in the call: as data they stand as the product names them."""
    made = product(p)
    assert made.matrices.swapped == (not p.c_transposed)
    operands, *_ = told(made, monkeypatch)
    assert operands == ((1000, 2000, 4000) if p.c_transposed else (2000, 1000, 4000))
    ((kind, facts, places, *_),) = made.recorded(H200, CALL, None)  # type: ignore[arg-type]
    assert (kind, places) == ("cublaslt", [1000, 2000, 4000])
    assert type(made.matrices)(**facts) == made.matrices


@pytest.mark.parametrize(
    ("extras", "addresses"),
    [
        (NONE, (0, 0, 0)),
        (Extras(bias=source(2)), (3000, 0, 0)),
        (Extras(aux=target(1)), (0, 5000, 0)),
        (Extras(residual=source(2)), (0, 0, 3000)),
        (Extras(target(1), source(1), source(2)), (5000, 3000, 2000)),
    ],
)
def test_an_epilogues_operands_are_given_where_there_are_any(
    extras: Extras, addresses: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = product(extras=extras)
    assert told(made, monkeypatch)[1] == addresses
    ((_, _, _, given, *_),) = made.recorded(H200, CALL, None)  # type: ignore[arg-type]
    assert tuple(given) == addresses


@pytest.mark.parametrize(
    ("dtype", "tf32", "compute"),
    [
        (float32, False, "float32"),
        (float32, True, "tf32"),
        (bfloat16, True, "float32"),
        (float64, True, "float64"),
    ],
)
def test_only_float32_is_rounded_to_tf32(dtype: DType, tf32: bool, compute: str) -> None:
    asked = matrices(ROWS, dtype, Vector(), tf32=tf32)
    assert asked is not None
    assert (asked.data_type, asked.compute) == (dtype.name, compute)


@pytest.fixture
def algorithms(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A library with two algorithms, the first without a workspace; what it was asked."""
    asked: list[tuple[Any, ...]] = []

    def found(*given: Any) -> list[tuple[bytes, int]]:
        asked.append(given)
        return [(b"a", 0), (b"b", 40)]

    monkeypatch.setattr(cublaslt, "_multiplies", lambda device, dtype: True)
    monkeypatch.setattr(cublaslt, "_algorithms", found)
    monkeypatch.setattr(c, "library", type("Library", (), {"version": (12, 9, 1)}))
    return asked


def test_every_algorithm_is_a_formulation(algorithms: list[tuple[Any, ...]]) -> None:
    """Between the kernels around the product, which take the start of the workspace."""
    before, after = Fill(scratch(), 0, 16), Fill(target(), 0, 16)
    vector = Vector(bias=2, residual=1)
    found = cublaslt.cublaslt_formulations(
        ROWS, bfloat16, PLACES, H200, Policy(), vector, before=(before,), after=(after,), offset=256
    )
    assert [(f.name, f.scratch) for f in found] == [("blas12.9.1:0", 256), ("blas12.9.1:1", 296)]
    asked = matrices(ROWS, bfloat16, vector, tf32=False)
    assert asked is not None
    for formulation, (algorithm, workspace) in zip(found, [(b"a", 0), (b"b", 40)], strict=True):
        extras = Extras(source(2), source(1))
        made = Multiply(asked, PLACES, algorithm, workspace, extras, 256)
        assert formulation.steps == (Aligned(), before, made, after)
    assert cublaslt.cublaslt_formulations(ROWS, bfloat16, PLACES, H200, Policy(), None) == []
    assert cublaslt.cublaslt_formulations(ROWS, bfloat16, PLACES, None, Policy(), vector) == []


def test_epilogues_by_name_want_a_result_in_rows(algorithms: list[tuple[Any, ...]]) -> None:
    extras = Extras(source(2), aux=target(1))
    found = cublaslt.cublaslt_aux_formulations(
        ROWS, bfloat16, PLACES, H200, Policy(), "gelu_aux_bias", extras
    )
    plain = matrices(ROWS, bfloat16, Vector(), tf32=False)
    assert plain is not None
    (_, first), (_, second) = (f.steps for f in found)
    assert first == Multiply(replace(plain, epilogue="gelu_aux_bias"), PLACES, b"a", 0, extras)
    assert second == replace(first, algorithm=b"b", workspace=40)
    columns = Product(1, 4, 5, 6, True, True)
    assert not cublaslt.cublaslt_aux_formulations(
        columns, bfloat16, PLACES, H200, Policy(), "gelu_aux_bias", extras
    )


@pytest.mark.parametrize(
    ("limit", "offset", "left"),
    [(None, 0, 32 << 20), (None, 256, 32 << 20), (1000, 256, 744), (100, 256, 0), (64 << 20, 0, 32 << 20)],
)
def test_algorithms_keep_the_workspace_limit(
    limit: int | None, offset: int, left: int, algorithms: list[tuple[Any, ...]]
) -> None:
    policy = Policy(workspace_limit=limit)
    cublaslt.cublaslt_formulations(ROWS, bfloat16, PLACES, H200, policy, Vector(), offset=offset)
    ((_, device, asked, _),) = algorithms
    assert (device, asked) == (H200, left)


@pytest.mark.parametrize("deterministic", [False, True])
def test_sums_in_any_order_are_for_who_allows_them(
    deterministic: bool, algorithms: list[tuple[Any, ...]]
) -> None:
    """Of NVIDIA's cublasLtReductionScheme_t: in place 1, in the arithmetic's type 2; never 4, in the result's."""
    policy = Policy(deterministic=deterministic)
    cublaslt.cublaslt_formulations(ROWS, bfloat16, PLACES, H200, policy, Vector())
    assert algorithms[0][3] == (2 if deterministic else 3)
