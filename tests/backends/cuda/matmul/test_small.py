"""Products of little work: the own kernel on a CPU, with steps behind it, and where it is the first choice."""

import math
import shutil
from functools import partial

import numpy as np
import pytest

from lamina.backends import Call
from lamina.backends.cuda import backend
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import Launch, Launches, source, target
from lamina.backends.cuda.matmul import small as small_module
from lamina.backends.cuda.matmul.small import small_product
from lamina.backends.cuda.select import known
from lamina.backends.reference import run_reference
from lamina.graph import compile, trace
from lamina.ops.core import Op, bind
from lamina.ops.primitives import (
    Add,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    Fused,
    Gelu,
    Matmul,
    Mul,
    Relu,
    Sigmoid,
    Silu,
    Sub,
    Window,
)
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Shape, Spec, bfloat16, channels_last, float16, float32, float64
from tests.helpers import own_products
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.own_products import CUDA

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
rng = np.random.default_rng(9)
POINT = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
HALF = [float16, bfloat16]


check = partial(own_products.check, "small")
planned = partial(own_products.planned, "small")
given = partial(own_products.given, rng)


@emulated
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("transposed", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(5, 1, 7), (32, 16, 32), (33, 17, 31), (64, 128, 8), (9, 270, 70), (128, 34, 40)]
)
def test_values(m: int, k: int, n: int, transposed: tuple[bool, bool], dtype: DType) -> None:
    """Tiles that are full and that are not, sums of odd length, operands that lie either way."""
    a, b = transposed
    op = Matmul(transpose_a=a, transpose_b=b)
    check(op, given(dtype, (k, m) if a else (m, k), (n, k) if b else (k, n)), dtype)


def heads(features: int, dtype: DType, order: str = "bshd", part: int = 3) -> Spec:
    """2 samples of 3 heads of 5 tokens among a projection's features, of which they are a part: [B, H, S, D]."""
    sizes = {"b": 2, "h": 3, "s": 5, "d": features}
    strides, step = dict[str, int](), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= sizes[axis] * (part if axis == order[2] else 1)
    return Spec(tuple(sizes.values()), dtype, Layout(tuple(strides[axis] for axis in sizes)))


@emulated
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("features", [1, 3, 8, 19, 40])
@pytest.mark.parametrize("order", ["bshd", "bhsd", "bdhs", "shbd"])
def test_matrices_are_read_where_they_lie(features: int, order: str, dtype: DType) -> None:
    """Scores of heads, and of their features: tokens are lines of a part, or adjacent; matrices at any distance."""
    q, dense = heads(features, dtype, order), Spec((2, 3, 5, features), dtype)
    for op, specs in (
        (Matmul(transpose_b=True), [q, q]),
        (Matmul(transpose_b=True), [dense, q]),
        (Matmul(transpose_a=True), [q, dense]),
        (Matmul(transpose_a=True), [q, q]),
    ):
        plan = planned(op, specs)
        read = [s.shape[-1] == 1 or made.same_memory(s) for s, made in zip(specs, plan.inputs, strict=True)]
        assert all(read), plan.inputs
        check(op, given(dtype, *(s.shape for s in specs)), dtype, specs)


@emulated
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_single_matrices_are_read_where_they_lie(rows: int) -> None:
    """Few rows, too, whose kernels read dense matrices."""
    a, b = Spec((rows, 5), bfloat16, Layout((16, 1))), Spec((5, 4), bfloat16, Layout((16, 1)))
    plan = CUDA.plan(Matmul(), [a, b], Policy())
    assert all(made.same_memory(s) for made, s in zip(plan.inputs, (a, b), strict=True))
    inputs = given(bfloat16, a.shape, b.shape)
    assert not mismatch(run_plan(plan, inputs)[0], run_reference(Matmul(), inputs, float64)[0], bfloat16)


@emulated
@pytest.mark.parametrize("transposed", [(a, b) for a in (False, True) for b in (False, True)])
def test_batches(transposed: tuple[bool, bool]) -> None:
    """Sums of odd length and long ones; several tiles."""
    a, b = transposed
    for m, k, n in ((5, 7, 3), (33, 18, 40), (3, 1700, 5)):
        shapes = (7, k, m) if a else (7, m, k), (7, n, k) if b else (7, k, n)
        check(Matmul(transpose_a=a, transpose_b=b), given(bfloat16, *shapes), bfloat16)


@emulated
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("steps", "extras"),
    [
        ((Add(), Silu()), [(48,)]),
        ((Add(), Sigmoid(), Mul()), [(1, 48), (37, 48)]),
        ((Add(), Gelu(), Add()), [(48,), (37, 1)]),
        ((Sub(), Relu()), [(37, 48)]),
        ((Silu(),), []),
    ],
)  # fmt: skip
def test_steps_behind_the_sum(
    steps: tuple[Op, ...], extras: list[Shape], transposed: bool, dtype: DType
) -> None:
    """Biases, residuals, and one number for each row."""
    inputs = given(dtype, (37, 40), (48, 40) if transposed else (40, 48), *extras)
    check(Fused((Matmul(transpose_b=transposed), *steps)), inputs, dtype)


@emulated
@pytest.mark.parametrize("steps", [(), (Add(), Silu()), (Add(), Sigmoid())])
@pytest.mark.parametrize(("images", "channels", "filters"), [(32, 96, 6), (20, 10, 240), (128, 64, 65)])
def test_squeezed_images(images: int, channels: int, filters: int, steps: tuple[Op, ...]) -> None:
    """1x1 convolutions of images of one place, and both of their gradients."""
    shapes: list[Shape] = [(images, channels, 1, 1), (filters, channels, 1, 1)]
    shapes += [(filters, 1, 1)] if steps else []
    inputs = given(bfloat16, *shapes)
    specs = [Spec(s, bfloat16, channels_last(s) if len(s) == 4 else None) for s in shapes]
    check(Fused((Conv(POINT), *steps)) if steps else Conv(POINT), inputs, bfloat16, specs)
    if not steps:
        (g,) = given(bfloat16, (images, filters, 1, 1))
        spec = Spec(g.shape, bfloat16, channels_last(g.shape))
        check(ConvDataGrad(POINT, (1, 1)), [g, inputs[1]], bfloat16, [spec, specs[1]])
        check(ConvFilterGrad(POINT, (1, 1)), [inputs[0], g], bfloat16, [specs[0], spec])


label = partial(own_products.label, dtype=bfloat16)


def test_where_it_is_the_first_choice() -> None:
    """Little to read and to compute, in half types; few rows have a kernel of their own."""
    assert label(Matmul(), (128, 1152), (1152, 48)).endswith(" small")
    assert label(Matmul(transpose_b=True), (128, 48), (1152, 48)).endswith(" small")
    assert "few rows" in label(Matmul(), (4, 768), (768, 200))
    for shapes in (
        ((128, 1280), (1280, 1000)),
        ((512, 512), (512, 512)),
        ((256, 64, 64), (256, 64, 64)),
        ((64, 16), (16, 1 << 15)),
    ):
        assert not label(Matmul(), *shapes).endswith(" small"), shapes
    assert not label(Matmul(), (128, 64), (64, 48), dtype=float32).endswith(" small")


def test_all_sizes_share_one_text() -> None:
    """For each chain of steps, and each way in which operands lie; an odd number of elements in a sum is another."""

    def text(m: int, k: int, n: int, *extra: Shape) -> str:
        op = Fused((Matmul(transpose_b=True), Add(), Sigmoid()))
        make = planned(op, [Spec(s, bfloat16) for s in ((m, k), (n, k), *extra)]).make
        assert isinstance(make, Launches)
        (launch,) = [s for s in make.steps if isinstance(s, Launch)]
        return launch.program.source

    first = text(128, 32, 8, (8,))
    assert text(64, 1152, 48, (48,)) == first
    assert text(64, 1152, 48, (64, 48)) == first
    assert text(64, 33, 48, (48,)) != first


def test_what_is_no_small_product_has_no_form() -> None:
    places = (source(0), source(1), target())
    assert small_product(Product(2, 8, 8, 8, False, False), places) is not None
    assert small_product(Product(4, 2048, 512, 8, False, False), places) is None
    assert small_product(Product(2, 8, 8, 8193, False, False), places) is None
    assert small_product(Product(1 << 16, 2, 2, 2, False, False), places) is None
    assert small_product(Product(129, 64, 64, 64, False, False), places) is None
    assert small_product(Product(1, 2048, 512, 8, False, False), places) is None
    assert small_product(Product(1, 512, 512, 65, False, False), places) is None
    assert small_product(Product(1, 512, 512, 64, True, True), places) is not None


def test_addresses_between_16_bytes_are_refused_where_nothing_else_has_the_steps() -> None:
    plan = planned(Fused((Matmul(), Silu())), [Spec((8, 8), bfloat16)] * 2)
    with pytest.raises(ValueError, match=r"multiples of 16, got 0x2; copy the tensor to memory of its own"):
        plan.bind(Call((2, 16), (32,)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("transposed", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize(("m", "k", "n"), [(128, 1152, 48), (128, 48, 1152), (33, 17, 31), (5, 700, 9)])
def test_values_on_a_gpu(
    m: int, k: int, n: int, transposed: tuple[bool, bool], dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another way is expected to be faster, too."""
    monkeypatch.setattr(small_module, "_MOST_PRODUCTS", math.inf)
    monkeypatch.setattr(known, "_measured_here", lambda place, device: [])
    monkeypatch.setattr(known, "database_of_kin", lambda device: None)
    a, b = transposed
    op = Fused((Matmul(transpose_a=a, transpose_b=b), Add(), Silu()))
    inputs = given(dtype, (k, m) if a else (m, k), (n, k) if b else (k, n), (n,))
    specs = [Spec(x.shape, dtype) for x in inputs]
    plan = backend(Device("cuda:0")).plan(op, specs, Policy())
    assert plan.label.endswith(" small")
    graph = trace(lambda x, y, z: bind(op, x, y, z)[0], *specs)
    (found,) = compile(graph, device="cuda:0")(*inputs)
    (wanted,) = run_reference(op, inputs, float64)
    assert not mismatch(found.numpy(), wanted, dtype)
