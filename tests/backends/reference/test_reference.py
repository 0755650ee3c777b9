"""The reference and null backends: layouts, views, precision, plans of models that fit nowhere."""

import itertools

import numpy as np
import pytest

from lamina import backends
from lamina.backends.reference import array_at, reorder_plan, run_reference
from lamina.ops import primitives
from lamina.ops.core import REGISTRY
from lamina.ops.primitives import (
    Add,
    Cast,
    Conv,
    Dropout,
    Matmul,
    MaxPool,
    Reduce,
    Relu,
    Reshape,
    SgdUpdate,
    Window,
)
from lamina.runtime import Device
from lamina.spec import (
    DType,
    Policy,
    ShapeError,
    Spec,
    bfloat16,
    bool_,
    channels_last,
    dense,
    float16,
    float32,
    float64,
    int8,
    int64,
    pack,
    unpack,
)
from tests.helpers.eager import execute, run_on

CPU = Device("cpu")
REFERENCE = backends.get(CPU, "reference")
NULL = backends.get(CPU, "null")
WINDOW = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
RNG = np.random.default_rng(0)


@pytest.mark.feature("F044")
@pytest.mark.parametrize("source", ["abcd", "acdb", "aBcd8b", "ABcd16a16b", "dcba"])
@pytest.mark.parametrize("target", ["abcd", "acdb", "aBcd16b", "bacd"])
def test_reorder_changes_the_layout_and_nothing_else(source: str, target: str) -> None:
    x = RNG.standard_normal((3, 5, 2, 4)).astype(np.float32)
    given, wanted = (Spec(x.shape, float32).with_tag(tag) for tag in (source, target))
    (found,) = execute(CPU, REFERENCE.reorder(given, wanted), [x])
    np.testing.assert_array_equal(found, x)


def test_reorder_refuses_other_changes() -> None:
    with pytest.raises(backends.NoKernel, match=r"f32\[2\] and f32\[3\] differ in more than layout"):
        REFERENCE.reorder(Spec((2,), float32), Spec((3,), float32))


def test_blocked_padding_is_zero() -> None:
    x = np.ones((1, 3, 2, 2), np.float32)
    target = Spec(x.shape, float32).with_tag("aBcd8b")
    plan = REFERENCE.reorder(Spec(x.shape, float32), target)
    source, out = CPU.allocate(x.nbytes), CPU.allocate(target.nbytes)
    array_at(source.pointer, Spec(x.shape, float32))[...] = x
    array_at(out.pointer, Spec((32,), float32))[...] = 7
    plan.bind(backends.Call((source.pointer,), (out.pointer,)))()
    flat = array_at(out.pointer, Spec((32,), float32))
    assert flat.sum() == 12
    np.testing.assert_array_equal(unpack(flat, target.physical, x.shape), x)


@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd8b", "cdba"])
def test_inputs_of_any_layout(tag: str) -> None:
    """Strided inputs are read as they lie; blocked ones are asked for row-major."""
    x, w = RNG.standard_normal((2, 3, 5, 6)), RNG.standard_normal((4, 3, 3, 3))
    given = [Spec(x.shape, float64).with_tag(tag), Spec(w.shape, float64)]
    plan = REFERENCE.plan(Conv(WINDOW), given, Policy())
    assert plan.inputs[0].tag == ("abcd" if "B" in tag else tag)
    (found,) = execute(CPU, plan, [x, w])
    np.testing.assert_allclose(found, run_reference(Conv(WINDOW), [x, w])[0])


def test_gaps_and_broadcast_strides() -> None:
    """A layout with gaps, and one with stride 0, are read element by element."""
    data = np.arange(24.0)
    gaps, repeated = (
        Spec((3, 4), float64, dense((3, 8), (0, 1))),
        Spec((3, 4), float64, type(dense((1,), (0,)))((0, 1))),
    )
    assert array_at(data.ctypes.data, gaps).tolist() == data.reshape(3, 8)[:, :4].tolist()
    assert array_at(data.ctypes.data, repeated).tolist() == [[0, 1, 2, 3]] * 3
    plan = REFERENCE.plan(Add(), [gaps, repeated], Policy())
    assert plan.inputs == (gaps, repeated)
    out = np.zeros((3, 4))
    plan.bind(backends.Call((data.ctypes.data,) * 2, (out.ctypes.data,)))()
    np.testing.assert_array_equal(out, data.reshape(3, 8)[:, :4] + data[:4])


def test_reshape_is_a_view_where_it_can_be() -> None:
    op, flat = Reshape((6, 4)), Spec((2, 3, 4), float32)
    assert REFERENCE.plan(op, [flat], Policy()).view
    last = Spec((2, 3, 4), float32, channels_last((2, 3, 4)))
    plan = REFERENCE.plan(op, [last], Policy())
    assert not plan.view
    x = RNG.standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(execute(CPU, plan, [x])[0], x.reshape(6, 4))
    assert NULL.plan(op, [flat], Policy()).view
    assert not NULL.plan(op, [last], Policy()).view


def test_plans_may_be_run_in_place_and_again() -> None:
    x = np.float32([-1, 2, -3, 4])
    plan = REFERENCE.plan(Relu(), [Spec((4,), float32)], Policy())
    run = plan.bind(backends.Call((x.ctypes.data,), (x.ctypes.data,)))
    run()
    assert x.tolist() == [0, 2, 0, 4]
    x[:] = [-5, -6, 7, 8]
    run()
    assert x.tolist() == [0, 0, 7, 8]


def test_half_types_are_rounded_once() -> None:
    """1 + 2^-8 + 2^-8 in bfloat16: rounding after each addition would stay at 1."""
    x = np.array([1, 2**-8, 2**-8], bfloat16.numpy)
    (y,) = run_reference(Reduce("sum", (0,)), [x])
    assert y.dtype == bfloat16.numpy
    assert float(y) == 1 + 2**-7
    assert run_reference(Reduce("sum", (0,)), [x / 2], float64)[0] == 0.5 + 2**-8


def test_float64_is_kept_where_asked() -> None:
    a = RNG.standard_normal((5, 6)).astype(np.float16)
    (y,) = run_reference(Matmul(False, True), [a, a], float64)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, a.astype(float) @ a.astype(float).T)
    (i,) = run_reference(primitives.ArgMax(0), [a], float64)
    assert i.dtype == np.int64
    (c,) = run_reference(Cast(float16), [np.array([1 / 3])], float64)
    assert (c.dtype, float(c[0])) == (np.float64, float(np.float16(1 / 3)))


def test_several_outputs() -> None:
    y, mask, state = run_on(REFERENCE, Dropout(0.5), [np.ones((4, 4), np.float32), np.array([1, 2])])
    assert (y.dtype, mask.dtype, state.tolist()) == (np.float32, np.bool_, [1, 6])


def test_errors_come_before_memory() -> None:
    for backend in (REFERENCE, NULL):
        with pytest.raises(ShapeError, match="matmul: inner sizes 3 and 2 differ"):
            backend.plan(Matmul(), [Spec((2, 3), float32), Spec((2, 3), float32)], Policy())
    with pytest.raises(ValueError, match="the reference backend runs on the cpu, not on cuda:0"):
        backends.get(Device("cuda:0"), "reference")


def test_every_op_is_supported() -> None:
    for op_class in REGISTRY.values():
        assert REFERENCE.supports(op_class) == "numpy"
        assert NULL.supports(op_class) == "null"


def test_null_plans_what_fits_nowhere() -> None:
    """A layer of 3 TB is planned with a workspace and the op's in-place outputs, and runs in no time."""
    x, w = Spec((4096, 1024, 512, 512), bfloat16), Spec((1024, 1024, 3, 3), bfloat16)
    plan = NULL.plan(Conv(WINDOW), [x, w], Policy())
    assert plan.outputs[0].nbytes == 2 * 4096 * 1024 * 512 * 512
    assert plan.workspace == 256 << 20
    assert NULL.plan(Conv(WINDOW), [x, w], Policy(workspace_limit=1000)).workspace == 1000
    plan.bind(backends.Call((0, 0), (0,)))()
    NULL.reorder(x, x.with_tag("acdb")).bind(backends.Call((0,), (0,)))()
    big = Spec((10**12,), float32)
    update = NULL.plan(SgdUpdate(0.9), [big, big, big, Spec((), float32)], Policy())
    assert update.aliases == {0: 0, 1: 2}
    assert NULL.plan(Add(), [Spec((1, 4), float32), Spec((3, 4), float32)], Policy()).aliases == {}


def test_null_workspaces() -> None:
    small, g = Spec((1, 2, 5, 5), float32), Spec((1, 4, 5, 5), float32)
    w = Spec((4, 2, 3, 3), float32)
    columns = 2 * 9 * 25 * 4
    sizes = [
        NULL.plan(op, specs, Policy()).workspace
        for op, specs in [
            (Conv(WINDOW), [small, w]),
            (primitives.ConvDataGrad(WINDOW, (5, 5)), [g, w]),
            (primitives.ConvFilterGrad(WINDOW, (3, 3)), [small, g]),
            (primitives.Fused((Conv(WINDOW), Relu())), [small, w]),
            (Matmul(), [Spec((8, 3), float32), Spec((3, 4), float32)]),
            (Reduce("sum", (1,)), [Spec((6, 7), float32)]),
            (Relu(), [small]),
        ]
    ]
    assert sizes == [columns, columns, columns, columns, 128, 24, 0]


def test_null_infers_all_outputs() -> None:
    op = MaxPool((2, 2), Window((2, 2), ((0, 0), (0, 0)), (1, 1)), True)
    plan = NULL.plan(op, [Spec((1, 3, 8, 8), float16)], Policy())
    assert [str(s) for s in plan.outputs] == ["f16[1,3,4,4]", "u8[1,3,4,4]"]
    specs = [Spec((4,), float32), Spec((2,), int64)]
    assert [s.dtype for s in NULL.plan(Dropout(0.5), specs, Policy()).outputs] == [float32, bool_, int64]


def test_packing_agrees_with_the_backend() -> None:
    x = RNG.standard_normal((2, 5, 3)).astype(np.float32)
    spec = Spec(x.shape, float32).with_tag("aBc4b")
    flat = pack(x, spec.physical)
    np.testing.assert_array_equal(array_at(flat.ctypes.data, spec), x)


@pytest.mark.parametrize("dtype", [float32, bfloat16])
def test_a_bound_step_reads_its_memory_in_every_run(dtype: object) -> None:
    """From the second run on what surrounds the op is left out where arrays are taken as they lie."""
    from lamina.backends.reference import numpy_plan

    x, y = np.zeros((3, 4), dtype.numpy), np.zeros(4, dtype.numpy)  # type: ignore[attr-defined]
    plan = numpy_plan(Reduce("sum", (0,)), [Spec(x.shape, dtype)])  # type: ignore[arg-type]
    run = plan.bind(backends.Call((x.ctypes.data,), (y.ctypes.data,), 0, 0))
    for value in (1, 2, 3):
        x[...] = value
        run()
        assert y.astype(np.float32).tolist() == [3.0 * value] * 4


@pytest.mark.parametrize("dtype", [bool_, int8, bfloat16, float32, float64], ids=str)
@pytest.mark.parametrize("channels", [48, 40, 12])
@pytest.mark.parametrize(
    ("given", "wanted"), list(itertools.permutations(("abc", "acb", "aBc8b", "aBc16b"), 2))
)
def test_bits_are_copied_between_layouts(dtype: DType, channels: int, given: str, wanted: str) -> None:
    """In pieces of several elements where these lie together; NaNs stay as they are, and padding is zero."""
    shape = (2, channels, 3)
    bits = np.random.default_rng(0).integers(0, 256, (*shape, dtype.itemsize), dtype=np.uint8)
    bits = bits % 2 if dtype == bool_ else bits
    x = np.ascontiguousarray(bits).view(dtype.numpy).reshape(shape)
    source, target = (Spec(shape, dtype).with_tag(tag) for tag in (given, wanted))
    old = pack(x.view(f"u{dtype.itemsize}"), source.physical)
    new = np.full(target.nbytes // dtype.itemsize, 1, old.dtype)
    plan = reorder_plan(source, target)
    plan.bind(backends.Call((old.ctypes.data,), (new.ctypes.data,)))()
    np.testing.assert_array_equal(new, pack(x.view(old.dtype), target.physical))
