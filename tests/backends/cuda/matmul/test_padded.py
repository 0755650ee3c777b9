"""Products with rows that are no multiple of 16 bytes: the copies on a CPU, the whole of it, what comes first."""

import itertools
import shutil

import numpy as np
import pytest

from lamina.backends import Call
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import VECTOR, Place, source, target
from lamina.backends.cuda.matmul import padded as room
from lamina.backends.cuda.matmul.matmul import matmul_plan, matmul_problem
from lamina.backends.cuda.matmul.padded import padded, repack, with_whole_rows
from lamina.backends.reference import run_reference
from lamina.ops.core import Array
from lamina.ops.primitives import Add, Fused, Matmul, Relu
from lamina.spec import (
    DType,
    Layout,
    Policy,
    Spec,
    bfloat16,
    contiguous,
    float16,
    float32,
    float64,
    pack,
    unpack,
)
from tests.helpers import emulator
from tests.helpers.eager import apart
from tests.helpers.planned import H200

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
DEFAULT = Policy()
TRANSPOSED = list(itertools.product((False, True), repeat=2))


def specs(p: Product, dtype: DType) -> tuple[Spec, Spec, Spec]:
    """A, B and C as they lie: logically [batch, M, K], [batch, K, N], [batch, M, N]."""
    lead = (p.batch,) if p.batch > 1 else ()
    sized = (((p.m, p.k), p.a_strides), ((p.k, p.n), p.b_strides), ((p.m, p.n), p.c_strides))
    a, b, c = (Spec((*lead, *size), dtype, Layout(s if lead else s[1:])) for size, s in sized)
    return a, b, c


@emulated
@pytest.mark.parametrize("dtype", [bfloat16, float32, float64])
@pytest.mark.parametrize(
    ("batch", "own", "wide"),
    [
        (1, (5, 37), (5, 40)),
        (1, (5, 40), (5, 37)),
        (3, (7, 29), (8, 32)),
        (3, (8, 32), (7, 29)),
        (2, (3, 1), (3, 8)),
        (2, (3, 8), (3, 1)),
        (1, (1, 3), (8, 8)),
        (2, (9, 3), (5, 11)),
        (1, (70, 129), (72, 136)),
    ],
)
def test_copies(batch: int, own: tuple[int, int], wide: tuple[int, int], dtype: DType) -> None:
    """Zeros beside what there is; nothing is read or written outside."""
    x = np.random.default_rng(0).standard_normal((batch, *own)).astype(dtype.numpy)
    x.flat[x.size // 2], x.flat[-1] = np.nan, np.inf
    rows, columns = (min(pair) for pair in zip(own, wide, strict=True))
    wanted = np.zeros((batch, *wide), x.dtype)
    wanted[:, :rows, :columns] = x[:, :rows, :columns]
    launch = repack(batch, own, wide, dtype, source(), target())
    for behind in (True, False):
        given = emulator.Fenced(-(-x.nbytes // 16) * 16, behind=behind)
        given.bytes[:] = 0xFF
        given.bytes[: x.nbytes] = x.view(np.uint8).reshape(-1)
        out = emulator.Memory(wanted.nbytes)
        emulator.run_steps((launch,), Call((given.pointer,), (out.pointer,), 0))
        out.check("repack")
        np.testing.assert_array_equal(out.bytes, wanted.view(np.uint8).reshape(-1))


def multiplied(
    p: Product,
    dtype: DType,
    monkeypatch: pytest.MonkeyPatch,
    epilogue: Epilogue = NONE,
    bad: tuple[int, float] | None = None,
) -> None:
    """The copies on the emulator around NumPy's product, against float64.

    bad: of which operand an element is what.
    """
    monkeypatch.setattr(room, "_SMALL", 0.0)
    monkeypatch.setattr(room, "_SLOWDOWN", 1e9)
    a, b, c = specs(p, dtype)
    found = padded(p, c, epilogue, H200.machine)
    assert found is not None
    q = found.product
    given = (a, b, *epilogue.arranged(c.shape, c.physical))
    rng = np.random.default_rng(1)
    arrays: list[Array] = [rng.standard_normal(s.shape).astype(s.dtype.numpy) for s in given]
    if bad is not None:
        arrays[bad[0]].flat[-1] = bad[1]
    held = [emulator.Memory(s.nbytes) for s in (*given, c)]
    for memory, array, spec in zip(held, arrays, given, strict=False):
        memory.bytes[:] = pack(array, spec.physical).view(np.uint8).reshape(-1)
    space = emulator.Memory(found.scratch)
    *inputs, out = [m.pointer for m in held]
    call = Call(tuple(inputs), (out,), space.pointer)
    emulator.run_steps(found.before, call)
    x, y, z = (
        view(place, spec, held, space) for place, spec in zip(found.places, specs(q, dtype), strict=True)
    )
    with np.errstate(all="ignore"):
        z[...] = (x.astype(np.float64) @ y.astype(np.float64)).astype(dtype.numpy)
    emulator.run_steps(found.after, call)
    for memory in (*held, space):
        memory.check("padded")
    result = unpack(held[-1].bytes.view(dtype.numpy), c.physical, c.shape)
    op = Fused((Matmul(), *epilogue.steps)) if epilogue.steps else Matmul()
    wanted = run_reference(op, arrays, float64)[0]
    np.testing.assert_array_equal(np.isnan(result.astype(np.float64)), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(result.astype(np.float64)), np.isinf(wanted))
    finite = np.isfinite(wanted)
    wrong = apart(np.where(finite, result, 0).astype(dtype.numpy), np.where(finite, wanted, 0), dtype, 2)
    assert not wrong, wrong


def view(place: Place, spec: Spec, held: list[emulator.Memory], space: emulator.Memory) -> Array:
    """A matrix as the product sees it."""
    index = {"input": place.index, "output": -1}.get(place.kind)
    memory = space if index is None else held[index]
    values = memory.bytes[place.offset :][: spec.nbytes].view(spec.dtype.numpy)
    strides = tuple(s * spec.dtype.itemsize for s in spec.physical.strides)
    return np.lib.stride_tricks.as_strided(values, spec.shape, strides)


SIZES = [(1, 24, 37, 16), (1, 37, 24, 16), (1, 16, 24, 37), (3, 19, 21, 23), (1, 1, 8, 9)]


@emulated
@pytest.mark.feature("B012")
@pytest.mark.parametrize("transposed", TRANSPOSED)
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32])
@pytest.mark.parametrize("sizes", SIZES)
def test_values(
    sizes: tuple[int, int, int, int],
    dtype: DType,
    transposed: tuple[bool, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    p = Product(*sizes, *transposed)
    if with_whole_rows(p, dtype) != p:
        multiplied(p, dtype, monkeypatch)


@emulated
@pytest.mark.parametrize("transposed", TRANSPOSED)
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_reaches_no_more_than_it_should(
    operand: int, bad: float, transposed: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last element of an operand, which the padding follows, in all of its row or column and nowhere else."""
    multiplied(Product(1, 19, 21, 23, *transposed), bfloat16, monkeypatch, bad=(operand, bad))


@emulated
@pytest.mark.parametrize("transposed", TRANSPOSED)
def test_steps_on_the_way_back(transposed: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The added operand of a weight's gradient that is summed; a bias and an activation."""
    p = Product(1, 19, 21, 23, *transposed)
    whole, bias = Spec((19, 21), bfloat16), Spec((21,), bfloat16)
    multiplied(p, bfloat16, monkeypatch, Epilogue((Add(),), (whole,), 2))
    multiplied(p, bfloat16, monkeypatch, Epilogue((Add(), Relu()), (bias,), 2))


def test_steps_stay_with_the_product_where_the_result_is_as_it_was() -> None:
    p = Product(1, 1024, 1024, 1001, False, False)
    epilogue = Epilogue((Add(),), (Spec((1024,), bfloat16),), 2)
    found = padded(p, specs(p, bfloat16)[2], epilogue, H200.machine)
    assert found is not None
    assert found.epilogue == epilogue
    assert not found.after
    assert found.places[2] == target()


@pytest.mark.parametrize("dtype", [bfloat16, float32])
@pytest.mark.parametrize("transposed", TRANSPOSED)
def test_rows_are_whole_chunks(transposed: tuple[bool, bool], dtype: DType) -> None:
    """Sizes that are no row's length stay."""
    chunk = VECTOR // dtype.itemsize
    for m, n, k in itertools.product((16, 17), repeat=3):
        p = Product(1, m, n, k, *transposed)
        q = with_whole_rows(p, dtype)
        for one in (p.m, p.n, p.k), (q.m, q.n, q.k):
            assert all(size in (16, 17, 16 + chunk) for size in one)
        rows = [max(s for s in strides[1:] if s != 1) for strides in (q.a_strides, q.b_strides, q.c_strides)]
        assert not any(row % chunk for row in rows)
        if not any(row % chunk for s in (p.a_strides, p.b_strides, p.c_strides) for row in s[1:] if row != 1):
            assert q == p


def names(p: Product, dtype: DType, policy: Policy = DEFAULT, epilogue: Epilogue = NONE) -> list[str]:
    return [w.name for w in matmul_problem(p, *specs(p, dtype), epilogue, policy, H200).formulations]


#: The head of a language model with an odd vocabulary, and its gradients for the rows and the weight.
VOCABULARY = [
    Product(1, 8192, 50257, 768, False, True),
    Product(1, 8192, 768, 50257, False, False),
    Product(1, 50257, 768, 8192, True, False),
]


@pytest.mark.parametrize("p", VOCABULARY, ids=str)
def test_what_comes_first(p: Product) -> None:
    for dtype in (bfloat16, float16):
        assert names(p, dtype)[:2] == ["padded-conv", "padded-matmul"]
    assert names(p, float32, Policy(tf32=True))[0] == "padded-conv"
    assert not any(name.startswith("padded") for name in names(p, float32, Policy(tf32=False)))
    assert not any(name.startswith("padded") for name in names(p, float64))
    op = Matmul(p.a_transposed, p.b_transposed)
    shapes = ((p.k, p.m) if p.a_transposed else (p.m, p.k)), ((p.n, p.k) if p.b_transposed else (p.k, p.n))
    given = [Spec(s, bfloat16, contiguous(s)) for s in shapes]
    assert " padded-" in matmul_plan(op, given, NONE, H200, Policy()).label
    small = matmul_plan(op, given, NONE, H200, Policy(workspace_limit=1 << 26))
    assert " padded-" not in small.label
    assert small.workspace <= 1 << 26


def test_the_added_operand_of_a_tied_weight() -> None:
    p = VOCABULARY[2]
    epilogue = Epilogue((Add(),), (Spec((50257, 768), bfloat16),), 2)
    assert names(p, bfloat16, epilogue=epilogue)[0].startswith("padded-")


def test_what_does_not_come_first() -> None:
    """Whole rows, little arithmetic, and products whose copies take longer than they do."""
    assert not any(n.startswith("padded") for n in names(Product(1, 8192, 50304, 768, False, True), bfloat16))
    assert not any(n.startswith("padded") for n in names(Product(1, 64, 129, 64, False, True), bfloat16))
    assert not any(n.startswith("padded") for n in names(Product(1, 65536, 1, 4096, False, True), bfloat16))
    thin = names(Product(1, 16, 50257, 768, False, True), bfloat16)
    assert thin[0] == "conv"
    assert "padded-conv" in thin
    assert thin[-1] == "tiled"


def test_what_is_known_of_whole_rows_says_nothing() -> None:
    kinds = [
        matmul_problem(p, *specs(p, bfloat16), NONE, Policy(), H200).kind
        for p in (VOCABULARY[0], Product(1, 8192, 50304, 768, False, True))
    ]
    assert kinds[0] != kinds[1]
