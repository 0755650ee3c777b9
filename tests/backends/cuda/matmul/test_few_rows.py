"""Products of few rows: the own kernel on a CPU, with steps behind it, and where it is the first choice."""

import math
import shutil
from functools import partial

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import Launch, source, target
from lamina.backends.cuda.matmul import few_rows as few_rows_module
from lamina.backends.cuda.matmul.few_rows import MOST_ROWS, few_rows
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
from lamina.spec import DType, Policy, Shape, Spec, bfloat16, channels_last, float16, float32, float64
from tests.helpers import own_products
from tests.helpers.eager import mismatch
from tests.helpers.planned import H200

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
rng = np.random.default_rng(8)
POINT = Window((1, 1), ((0, 0), (0, 0)), (1, 1))


check = partial(own_products.check, "few rows")
planned = partial(own_products.planned, "few rows")
given = partial(own_products.given, rng)


@emulated
@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 256, 40), (1, 8, 1024), (2, 1030, 6), (3, 300, 130), (4, 1160, 48), (4, 2048, 2)]
)
def test_values(m: int, k: int, n: int, transposed: bool, dtype: DType) -> None:
    check(Matmul(transpose_b=transposed), given(dtype, (m, k), (n, k) if transposed else (k, n)), dtype)


@emulated
@pytest.mark.parametrize("transposed", [False, True])
def test_few_columns_are_rows_of_the_other_side(transposed: bool) -> None:
    """[40, 512] x [512, 3]: what is long lies along either axis."""
    inputs = given(bfloat16, (512, 40) if transposed else (40, 512), (3, 512))
    check(Matmul(transpose_a=transposed, transpose_b=True), inputs, bfloat16)
    inputs = given(bfloat16, (512, 40) if transposed else (40, 512), (512, 1))
    check(Matmul(transpose_a=transposed), inputs, bfloat16)


@emulated
@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("steps", "extras"),
    [
        ((Add(), Silu()), [(48,)]),
        ((Add(), Sigmoid(), Mul()), [(1, 48), (3, 48)]),
        ((Add(), Gelu(), Add()), [(48,), (3, 1)]),
        ((Sub(), Relu()), [(3, 48)]),
    ],
)  # fmt: skip
def test_steps_behind_the_sum(
    steps: tuple[Op, ...], extras: list[Shape], transposed: bool, dtype: DType
) -> None:
    """Biases, residuals, and one number for each row."""
    inputs = given(dtype, (3, 256), (48, 256) if transposed else (256, 48), *extras)
    check(Fused((Matmul(transpose_b=transposed), *steps)), inputs, dtype)


@emulated
@pytest.mark.parametrize("steps", [(), (Add(), Silu()), (Add(), Sigmoid())])
@pytest.mark.parametrize(("images", "channels", "filters"), [(1, 1152, 48), (4, 48, 1152), (2, 96, 4)])
def test_squeezed_images(images: int, channels: int, filters: int, steps: tuple[Op, ...]) -> None:
    """1x1 convolutions of images of one place."""
    shapes: list[Shape] = [(images, channels, 1, 1), (filters, channels, 1, 1)]
    shapes += [(filters, 1, 1)] if steps else []
    inputs = given(bfloat16, *shapes)
    specs = [Spec(s, bfloat16, channels_last(s) if len(s) == 4 else None) for s in shapes]
    check(Fused((Conv(POINT), *steps)) if steps else Conv(POINT), inputs, bfloat16, specs)


@emulated
def test_the_gradient_of_squeezed_images() -> None:
    shapes: list[Shape] = [(2, 48, 1, 1), (48, 256, 1, 1)]
    inputs = given(bfloat16, *shapes)
    specs = [Spec(s, bfloat16, channels_last(s)) for s in shapes]
    check(ConvDataGrad(POINT, (1, 1)), inputs, bfloat16, specs)


label = partial(own_products.label, dtype=bfloat16)


def test_where_it_is_the_first_choice() -> None:
    """Few rows of long sums, or of little to read; no batches, other types, nor rows of odd length."""
    assert "few rows" in label(Matmul(), (4, 768), (768, 3072))
    assert "few rows" in label(Matmul(transpose_b=True), (1, 64), (4096, 64))
    for shapes in (
        ((MOST_ROWS + 1, 768), (768, 3072)),
        ((4, 64), (64, 1 << 20)),
        ((2, 4, 768), (2, 768, 3072)),
        ((4, 768), (768, 3071)),
        ((4, 4096), (4096, 14336)),
    ):
        assert "few rows" not in label(Matmul(), *shapes), shapes
    assert "few rows" not in label(Matmul(), (4, 768), (768, 3072), dtype=float64)
    assert "few rows" not in label(ConvFilterGrad(POINT, (1, 1)), (4, 64, 1, 1), (4, 48, 1, 1))


def test_what_lies_along_no_axis_of_its_own_has_no_form() -> None:
    places = (source(0), source(1), target())
    assert few_rows(Product(1, 2, 64, 64, True, False), places) is None
    assert few_rows(Product(1, 64, 2, 64, False, False), places) is None
    assert few_rows(Product(2, 1, 64, 64, False, False), places) is None
    assert few_rows(Product(1, 1, 64, 64, True, False), places) is not None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [float16, bfloat16, float32], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 768, 3072), (2, 3072, 768), (3, 25088, 10), (4, 768, 50258), (1, 40, 4)]
)
def test_values_on_a_gpu(
    m: int, k: int, n: int, transposed: bool, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another way is expected to be faster, too."""
    monkeypatch.setattr(few_rows_module, "_MOST_PRODUCTS", math.inf)
    monkeypatch.setattr(known, "_measured_here", lambda place, device: [])
    monkeypatch.setattr(known, "database_of_kin", lambda device: None)
    op = Fused((Matmul(transpose_b=transposed), Add(), Silu()))
    inputs = given(dtype, (m, k), (n, k) if transposed else (k, n), (n,))
    specs = [Spec(x.shape, dtype) for x in inputs]
    plan = backend(Device("cuda:0")).plan(op, specs, Policy())
    assert plan.label.endswith("few rows")
    graph = trace(lambda a, b, c: bind(op, a, b, c)[0], *specs)
    (found,) = compile(graph, device="cuda:0")(*inputs)
    (wanted,) = run_reference(op, inputs, float64)
    assert not mismatch(found.numpy(), wanted, dtype)


def test_results_of_more_than_31_bits_are_numbered_by_64() -> None:
    """4 rows of a thousand million columns, of 2 products each: c is larger than what it is made of."""
    n = 10**9
    form = few_rows(Product(1, 4, n, 2, False, False), (source(0), source(1), target()))
    made = form.formulation(Spec((4, n), bfloat16).fixed, NONE, H200.machine)
    assert isinstance(made.steps[-1], Launch)
    assert "typedef i64 Index;" in made.steps[-1].program.text
