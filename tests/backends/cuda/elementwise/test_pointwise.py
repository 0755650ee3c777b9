"""Generated elementwise kernels: one for all shapes of a kind, emulated."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends.cuda import backend
from lamina.backends.cuda.elementwise import pointwise
from lamina.backends.cuda.launch.program import Launch, Launches, Program
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives import GeluGrad, GeluTanh, Mul, Sigmoid, Sign, Silu, SiluGrad
from lamina.spec import (
    DType,
    Policy,
    Shape,
    Spec,
    as_dtype,
    bfloat16,
    channels_last,
    float16,
    float32,
    float64,
    from_tag,
)
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

#: Images by a number for each of their channels, channels last: blocks of 8 bf16 elements lie in one image.
IMAGES = [(2, 8, 3, 5), (3, 24, 1, 2), (5, 16, 7, 1), (1, 40, 4, 4), (7, 1000, 1, 3), (2, 64, 9, 9)]


def planned(specs: list[Spec]) -> tuple[Any, Program]:
    plan = backend(H200).plan(Mul(), specs, Policy())
    assert isinstance(plan.make, Launches)
    (launch,) = plan.make.steps
    assert isinstance(launch, Launch)
    return plan, launch.program


@pytest.mark.parametrize("dtype", [float32, bfloat16])
def test_the_sign_of_nan_is_0(dtype: DType) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 2.0, -3.0, np.nan], dtype.numpy)
    (found,) = run_plan(backend(H200).plan(Sign(), [Spec((8,), dtype)], Policy()), [x])
    np.testing.assert_array_equal(found.astype(np.float32), [0, 1, -1, 0, 0, 1, -1, 0])


def drawn(spec: Spec, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(spec.shape).astype(spec.dtype.numpy)


def check(specs: list[Spec]) -> Program:
    arrays = [drawn(s, i) for i, s in enumerate(specs)]
    plan, program = planned(specs)
    (wanted,) = run_reference(Mul(), arrays, float64)
    (found,) = run_plan(plan, arrays)
    assert not (problem := mismatch(found, wanted, as_dtype(found.dtype))), problem
    return program


@pytest.mark.parametrize("dtype", [bfloat16, float32, float64], ids=str)
def test_one_kernel_serves_all_sizes_that_whole_accesses_fit(dtype: DType) -> None:
    """Of 8, 4 and 2 elements."""
    programs = set()
    for shape in IMAGES:
        x = Spec(shape, dtype, channels_last(shape))
        programs.add(check([x, Spec((*shape[:2], 1, 1), dtype).fixed]))
    assert len(programs) <= 3  # of three axes, or two where there is one image or one pixel


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 7), bfloat16),
        ((2, 9), bfloat16),
        ((5, 12), bfloat16),
        ((5, 6), float32),
        ((3, 7), float32),
        ((3, 7), float64),
    ],
    ids=str,
)
def test_other_sizes_have_kernels_of_their_own(shape: Shape, dtype: DType) -> None:
    """Rows that whole accesses leave a rest of: of halves of 16 bytes, of quarters, of single elements."""
    program = check([Spec(shape, dtype).fixed, Spec((shape[0], 1), dtype).fixed])
    assert f"% {shape[1]}" in program.text


def test_indexes_of_64_bits_keep_their_sizes() -> None:
    shape = (3, 1 << 16, 1 << 16)
    _, program = planned([Spec(shape, float32).fixed, Spec((1, 1 << 16, 1), float32).fixed])
    assert "typedef i64 Index;" in program.text
    assert "Sizes" not in program.text


@pytest.mark.parametrize(
    ("tags", "read"),
    [
        (("abcd", "bacd"), ("abcd", "bacd")),  # rows of 16 elements lie together in both
        (("acbd", "abcd"), ("acbd", "abcd")),
        (("abcd", "acdb"), ("abcd", "abcd")),  # a line of memory for each element
        (("abcd", None), ("abcd", "abcd")),
    ],
)
def test_operands_in_another_order_are_read_where_whole_accesses_are_left(
    tags: tuple[str | None, ...], read: tuple[str, ...]
) -> None:
    shape = (3, 4, 5, 16)
    specs = [Spec(shape, bfloat16, from_tag(t, shape) if t else None) for t in tags]
    plan, _ = planned(specs)
    assert tuple(s.tag for s in plan.inputs) == read
    check(specs)


def test_operands_whose_rows_are_no_whole_accesses_are_laid_alike() -> None:
    shape = (3, 4, 5, 7)
    plan, _ = planned([Spec(shape, bfloat16).fixed, Spec(shape, bfloat16).with_tag("bacd")])
    assert [s.tag for s in plan.inputs] == ["abcd", "abcd"]


#: What half types have shorter expressions of.
SHORT: list[Op] = [Sigmoid(), Silu(), GeluTanh(), SiluGrad(), GeluGrad("tanh")]


def halves(dtype: DType) -> Array:
    """All numbers of a type of 16 bits up to half the largest, or 2⁴⁰, whose cube is finite in float32."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    most = np.array(2.0**40 if dtype == bfloat16 else 32752.0).astype(dtype.numpy).view(np.uint16)
    return bits[(bits & 0x7FFF) <= most].view(dtype.numpy)


def steps_off(found: Array, wanted: Array, dtype: DType) -> Array:
    """By how many steps of the type, or of 2⁻⁴⁰ where these are smaller, results differ from rounded exact ones."""
    exact = wanted.astype(dtype.numpy).astype(np.float64)
    step = np.maximum(np.spacing(np.abs(wanted).astype(dtype.numpy)).astype(np.float64), 2.0**-40)
    return np.abs(found.astype(np.float64) - exact) / step


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("op", SHORT, ids=str)
def test_short_expressions_are_right_for_every_half(op: Op, dtype: DType) -> None:
    x = halves(dtype)
    arrays = [x, np.ones_like(x)][: 2 if isinstance(op, SiluGrad | GeluGrad) else 1]
    (wanted,) = run_reference(op, arrays, float64)
    plan = backend(H200).plan(op, [Spec(a.shape, dtype) for a in arrays], Policy())
    (found,) = run_plan(plan, arrays)
    assert steps_off(found, wanted, dtype).max() <= 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("name", ["sigmoid", "silu", "gelu"])
def test_short_expressions_are_right_on_a_gpu(name: str, dtype: DType) -> None:
    """The units for special functions, which the emulator does not know; gradients too."""
    x = halves(dtype)
    options = {"approximate": "tanh"} if name == "gelu" else {}
    op, grad = {
        "sigmoid": (Sigmoid(), None),
        "silu": (Silu(), SiluGrad()),
        "gelu": (GeluTanh(), GeluGrad("tanh")),
    }[name]
    given = lm.tensor(x, device="cuda")
    (wanted,) = run_reference(op, [x], float64)
    assert steps_off(getattr(ops, name)(given, **options).numpy(), wanted, dtype).max() <= 1
    if grad is not None:
        (wanted,) = run_reference(grad, [x, np.ones_like(x)], float64)
        _, pull = lm.vjp(lambda v: getattr(ops, name)(v, **options), given)
        (found,) = pull(lm.tensor(np.ones_like(x), device="cuda"))
        assert steps_off(found.numpy(), wanted, dtype).max() <= 1


@pytest.mark.parametrize(
    ("x", "other", "wanted"),
    [
        (
            Spec((2, 4, 8, 16), bfloat16),
            Spec((1, 1, 8, 16), bfloat16, from_tag("abdc", (1, 1, 8, 16))),
            "abcd",
        ),
        (Spec((2, 4, 8, 16), bfloat16), Spec((8, 16), bfloat16, from_tag("ba", (8, 16))), "ab"),
        (Spec((2, 16, 4, 3), bfloat16, channels_last((2, 16, 4, 3))), Spec((16, 4, 3), bfloat16), "bca"),
        (Spec((2, 16, 4, 3), bfloat16, channels_last((2, 16, 4, 3))), Spec((16, 1, 1), bfloat16), "abc"),
        (Spec((2, 4, 8, 16), bfloat16), Spec((2, 1, 8, 1), bfloat16, from_tag("cbad", (2, 1, 8, 1))), "cbad"),
        (Spec((1, 4, 8), bfloat16), Spec((4, 8), bfloat16, from_tag("ba", (4, 8))), "ba"),
    ],
    ids=["a table", "of fewer axes", "of images", "of channels", "one number a row", "not small"],
)
def test_what_is_repeated_lies_along_the_result(
    x: Spec, other: Spec, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it would be read one by one, and is small beside a result that is large."""
    as_it_is, _ = planned([x, other])
    assert as_it_is.inputs[1] == other.fixed
    monkeypatch.setattr(pointwise, "_MUCH", 0)
    plan, _ = planned([x, other])
    assert plan.inputs[1].tag in (wanted, Spec(other.shape, other.dtype, from_tag(wanted, other.shape)).tag)
    rng = np.random.default_rng(0)
    arrays: list[Array] = [rng.standard_normal(s.shape).astype(s.dtype.numpy) for s in (x, other)]
    (found,) = run_plan(plan, arrays)
    (meant,) = run_reference(Mul(), arrays, float64)
    assert not (problem := mismatch(found, meant, as_dtype(found.dtype))), problem
