"""The cpu backend's own promises: layouts, fusion, places, fallbacks. Values of all ops: tests/ops/test_ops.py."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, onednn
from lamina.backends import Call, NoKernel, Plan
from lamina.backends.cpu import CpuBackend, has_onednn
from lamina.backends.cpu import backend as cpu_backend
from lamina.backends.cpu.random import Words
from lamina.backends.cpu.window import prefers_channels_last
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives import (
    Abs,
    AdamUpdate,
    Add,
    ArgMax,
    AvgPool,
    AvgPoolGrad,
    Cast,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    Div,
    Dropout,
    Exp,
    Fused,
    LeakyRelu,
    Matmul,
    MaxPool,
    MaxPoolGrad,
    Mul,
    Reduce,
    Relu,
    ReluGrad,
    Reshape,
    SgdUpdate,
    Sigmoid,
    Softmax,
    Sub,
    Tanh,
    Transpose,
    Where,
    Window,
)
from lamina.ops.primitives.random import words
from lamina.runtime import Device
from lamina.spec import (
    DType,
    Layout,
    Policy,
    Spec,
    as_dtype,
    bfloat16,
    float16,
    float32,
    float64,
    pack,
    unpack,
)
from lamina.tensors import relayout
from tests.helpers.eager import execute, mismatch
from tests.helpers.processor import HAS_FLOAT16

pytestmark = pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")

CPU = Device("cpu")
BACKEND = backends.get(CPU, "cpu")
SAME = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
POOL = Window((2, 2), ((1, 1), (1, 1)), (1, 1))
TAGS = ("abcd", "acdb", "aBcd16b", "aBcd8b")


def ints(*shape: int, seed: int = 0, dtype: DType = float32) -> Array:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype.numpy)


def plan(op: Op, arrays: Sequence[Array], tags: Sequence[str | None] = ()) -> Plan:
    """The backend's plan for inputs that lie as the tags say; None leaves the layout open."""
    specs = [Spec(a.shape, as_dtype(a.dtype)) for a in arrays]
    for i, tag in enumerate(tags):
        specs[i] = specs[i] if tag is None else specs[i].with_tag(tag)
    return BACKEND.plan(op, specs, Policy())


def check(op: Op, *arrays: Array, tags: Sequence[str | None] = (), label: str = "onednn") -> Plan:
    """Values equal the op's (integers exactly); the plan names its layouts and, by its label, its kernel."""
    made = plan(op, arrays, tags)
    assert made.label.startswith(label)
    assert all(spec.layout is not None for spec in (*made.inputs, *made.outputs))
    found = execute(CPU, made, arrays)
    for y, wanted, spec in zip(found, run_reference(op, arrays), made.outputs, strict=True):
        assert mismatch(y, wanted, spec.dtype) == ""
    return made


# ---- layouts


@pytest.mark.feature("F045", "F046", "F048", "F049", "F050")
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("channels", [(4, 8), (4, 4), (20, 36)])
def test_convolutions_are_exact(rank: int, groups: int, flip: bool, channels: tuple[int, int]) -> None:
    """Odd sizes, uneven padding, dilation; in three directions, with integers."""
    c, k = channels
    window = Window((2, 1, 2)[:rank], ((1, 2), (2, 0), (0, 1))[:rank], (1, 2, 1)[:rank], groups, flip)
    x, w = ints(2, c, *(7, 9, 6)[:rank]), ints(k, c // groups, *(3, 2, 3)[:rank], seed=1)
    y = run_reference(Conv(window), [x, w])[0]
    g = ints(*y.shape, seed=2)
    assert np.array_equal(execute(CPU, check(Conv(window), x, w), [x, w])[0], y)
    for op, pair in (
        (ConvDataGrad(window, x.shape[2:]), (g, w)),
        (ConvFilterGrad(window, w.shape[2:]), (x, g)),
    ):
        wanted = run_reference(op, pair)[0]
        assert np.array_equal(execute(CPU, check(op, *pair), pair)[0], wanted)


@pytest.mark.feature("F045", "F046")
@pytest.mark.parametrize(
    "tags", list(product(("abcd", "acdb", "aBcd16b", None), ("abcd", "cdba", "ABcd16b16a", None)))
)
def test_convolution_takes_operands_in_any_layout(tags: tuple[str | None, str | None]) -> None:
    """What the plan asks for is reached by reorders from whatever the operands have."""
    x, w = ints(2, 19, 6, 7), ints(21, 19, 3, 3, seed=1)
    made = check(Conv(SAME), x, w, tags=tags)
    held = [x, w]
    for i, tag in enumerate(tags):
        if tag is not None:
            given = Spec(held[i].shape, float32).with_tag(tag)
            (moved,) = execute(CPU, BACKEND.reorder(given, made.inputs[i]), [held[i]])
            assert np.array_equal(moved, held[i])


def test_a_convolution_is_planned_once_however_its_operands_lie() -> None:
    """What asks before layouts are known, under the heuristic's policy, gets what programs run."""
    x, w, b = Spec((2, 8, 6, 6), float32), Spec((8, 8, 3, 3), float32), Spec((1, 8, 1, 1), float32)
    op = Fused((Conv(SAME), Add(), Relu()))
    first = BACKEND.plan(op, [x, w, b], Policy(algorithm="heuristic"))
    for tag in TAGS:
        assert BACKEND.plan(op, [x.with_tag(tag), w.fixed, b.fixed], Policy()) is first
    assert BACKEND.plan(op, [x, w, b], Policy(workspace_limit=1 << 20)) is not first
    assert BACKEND.plan(op, [x, w, b], Policy(algorithm="fallback")) is not first


def test_a_sum_is_planned_once_whether_row_major_is_said_or_left_open() -> None:
    a, b, op = Spec((5, 6), float32), Spec((5, 6), float32), Fused((Mul(), Add()))
    first = BACKEND.plan(op, [a, b, b], Policy(algorithm="heuristic"))
    assert BACKEND.plan(op, [a.fixed, b.fixed, b.fixed], Policy()) is first
    assert BACKEND.plan(op, [a.with_tag("ba"), b, b], Policy()) is not first


def test_the_backend_opens_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is made, not where the first kernel is planned."""
    asked: list[bool] = []
    monkeypatch.setattr("lamina.backends.cpu.has_onednn", lambda: asked.append(True))
    cpu_backend(lm.Device("cpu"))
    assert asked == [True]


@pytest.mark.feature("F054", "F055")
@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("channels", [16, 19])
def test_pooling_keeps_the_layout(tag: str, channels: int) -> None:
    """Rows and blocks of 16 channels need registers of 16 numbers; elsewhere channels last is taken."""
    kept = tag if tag in ("acdb", "aBcd8b") or prefers_channels_last() else "acdb"
    x = ints(2, channels, 7, 8)
    kernel = (3, 3)
    index = check(MaxPool(kernel, POOL, True), x, tags=[tag])
    assert [s.tag for s in (*index.inputs, *index.outputs)] == [kept] * 3
    y, where = run_reference(MaxPool(kernel, POOL, True), [x])
    grad = check(MaxPoolGrad(kernel, POOL, (7, 8)), ints(*y.shape), where, tags=[tag, tag])
    assert [s.tag for s in (*grad.inputs, *grad.outputs)] == [kept] * 3
    for mode in ("include", "exclude", "sum"):
        assert check(AvgPool(kernel, POOL, mode), x, tags=[tag]).outputs[0].tag == kept
    check(AvgPoolGrad(kernel, POOL, "include", (7, 8)), ints(*y.shape), tags=[tag])


@pytest.mark.feature("F054")
def test_pooling_index_is_the_op_s() -> None:
    """Ties, padding, dilation: bytes of the workspace equal the op's index, in every layout."""
    rng = np.random.default_rng(0)
    by_onednn = 0
    for i in range(40):
        kernel = tuple(int(n) for n in rng.integers(1, 4, 2))
        pads = tuple((int(rng.integers(0, k)), int(rng.integers(0, k))) for k in kernel)
        window = Window(tuple(int(n) for n in rng.integers(1, 4, 2)), pads, (1, 1 + i % 2))
        x = rng.integers(-1, 2, (2, 17, 9, 8)).astype(np.float32)
        op = MaxPool(kernel, window, True)
        made = plan(op, [x], [TAGS[i % 4]])
        by_onednn += made.label.startswith("onednn")
        for found, wanted in zip(execute(CPU, made, [x]), run_reference(op, [x]), strict=True):
            assert np.array_equal(found, wanted), f"{op} in {TAGS[i % 4]}"
    assert by_onednn >= 20  # those without dilation


def test_pooling_with_a_wide_index() -> None:
    check(MaxPool((17, 16), Window((1, 1), ((0, 0), (0, 0)), (1, 1)), True), ints(1, 2, 18, 17))


@pytest.mark.feature("F056", "F044")
@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("op", [Relu(), Tanh(), Abs(), LeakyRelu(0.5)], ids=str)
def test_elementwise_ops_keep_blocked_layouts_and_their_zero_padding(op: Op, tag: str) -> None:
    x = ints(2, 19, 15, 17)  # more elements than NumPy takes the relu of
    made = check(op, x, tags=[tag])
    assert made.inputs[0].tag == made.outputs[0].tag == tag
    target = made.outputs[0]
    given = CPU.allocate(target.nbytes)
    given.array((target.nbytes,), np.uint8)[:] = pack(x, target.physical).view(np.uint8)
    made.bind(Call((given.pointer,), (given.pointer,)))()  # in place
    flat = given.array((target.nbytes // 4,), np.float32)
    y = unpack(flat, target.physical, x.shape)
    assert mismatch(y, run_reference(op, [x])[0], float32) == ""
    assert np.array_equal(pack(y, target.physical), flat)


def test_functions_that_fill_padding_ask_for_a_plain_layout() -> None:
    x = ints(2, 19, 3, 5)
    assert check(Exp(), x, tags=["aBcd16b"]).inputs[0].tag == "abcd"
    assert check(Exp(), x, tags=["acdb"]).inputs[0].tag == "acdb"
    full = ints(2, 32, 3, 5)
    assert check(Sigmoid(), full, tags=["aBcd16b"]).inputs[0].tag == "aBcd16b"
    both = [np.abs(x) + 1, np.abs(x) + 2]
    assert check(Div(), *both, tags=["aBcd16b", "aBcd16b"]).inputs[0].tag == "abcd"


@pytest.mark.feature("F044")
@pytest.mark.parametrize("op", [Add(), Sub(), Mul()], ids=str)
def test_binary_ops_agree_on_a_layout(op: Op) -> None:
    a, b = ints(2, 19, 3, 5), ints(2, 19, 3, 5, seed=1)
    for tags, wanted in (((None, "acdb"), "acdb"), (("aBcd16b", "abcd"), "aBcd16b"), ((None, None), "abcd")):
        made = check(op, a, b, tags=tags)
        assert {s.tag for s in (*made.inputs, *made.outputs)} == {wanted}
    made = check(op, a, ints(19, 1, 1), tags=["acdb", None])
    assert made.outputs[0].tag == "acdb"
    check(op, a, ints(1), tags=["acdb"])
    check(op, ints(19, 1, 1), a, label="numpy")
    check(op, a, ints(2, 1, 3, 1), label="numpy")


@pytest.mark.parametrize("op", [Add(), Sub(), Mul(), Div()], ids=str)
@pytest.mark.parametrize(
    ("a", "b", "tag"),
    [
        ((5, 3, 4, 4), (5, 1, 1, 1), "abcd"),
        ((5, 3, 4, 4), (5, 1, 1, 1), "acdb"),
        ((2, 5, 3, 4), (2, 5, 1, 1), "abcd"),
        ((2, 5, 3, 4), (5, 3, 1), "abcd"),
        ((2, 5, 3, 4), (3, 4), "abcd"),
        ((2, 5, 3, 4), (3, 4), "acdb"),
    ],
)
def test_an_operand_that_varies_along_neighbouring_axes_is_repeated_by_onednn(
    op: Op, a: tuple[int, ...], b: tuple[int, ...], tag: str
) -> None:
    made = check(op, ints(*a), ints(*b, seed=1) * 2 + 1, tags=[tag, None])
    assert {made.inputs[0].tag, made.outputs[0].tag} == {tag}


def test_what_varies_apart_or_in_many_short_rows_is_not_onednn_s() -> None:
    few, many = (np.ones((n, 64, 7, 7), np.float32) for n in (2, 32))
    for a, b, tag in (
        (few, ints(2, 1, 7, 1), "abcd"),
        (few, ints(2, 64, 1, 1), "acdb"),
        (few, ints(2, 1, 1, 1), "aBcd16b"),
        (many, ints(32, 64, 1, 1), "abcd"),
    ):
        assert not plan(Mul(), [a, b], [tag, None]).label.startswith("onednn")
    assert plan(Mul(), [few, ints(2, 64, 1, 1)]).label.startswith("onednn")


def test_activation_gradients_keep_the_layout() -> None:
    y, g = ints(2, 19, 3, 5), ints(2, 19, 3, 5, seed=1)
    made = check(ReluGrad(), y, g, tags=["acdb", "aBcd16b"])
    assert made.outputs[0].tag == "aBcd16b"  # the gradient's
    assert made.aliases == {0: 1}


def test_views_move_nothing() -> None:
    x = ints(2, 3, 4, 5)
    assert check(Reshape((6, 20)), x, label="view").view
    assert check(Reshape((6, 20)), x, tags=["acdb"], label="view").inputs[0].tag == "abcd"
    turned = check(Transpose((0, 2, 3, 1)), x, tags=["acdb"], label="view")
    assert turned.view
    assert turned.outputs[0].tag == "abcd"
    blocked = check(Transpose((1, 0, 2, 3)), ints(2, 16, 3, 3), tags=["aBcd16b"], label="view")
    assert blocked.outputs[0].physical.blocks == ((0, 16),)


@pytest.mark.feature("F044")
@pytest.mark.parametrize(
    "dtype", [float32, float64, bfloat16, float16, as_dtype("int64"), as_dtype("uint8")], ids=str
)
@pytest.mark.parametrize("tags", list(product(TAGS, TAGS)), ids="-".join)
def test_reorder(dtype: DType, tags: tuple[str, str]) -> None:
    x = np.abs(ints(2, 19, 3, 5)).astype(dtype.numpy)
    source, target = (Spec(x.shape, dtype).with_tag(tag) for tag in tags)
    assert np.array_equal(execute(CPU, BACKEND.reorder(source, target), [x])[0], x)


def test_sums_read_channels_last_memory_as_a_matrix() -> None:
    x = ints(4, 24, 9, 9)
    made = check(Reduce("sum", (0, 2, 3)), x, tags=["acdb"])
    assert made.inputs[0].tag == "acdb"
    check(Reduce("mean", (0, 2, 3), True), x, tags=["acdb"])
    check(Reduce("sum", (1, 2, 3)), x)
    check(Reduce("sum", (0,)), ints(64, 100))
    check(Reduce("sum", (0, 1, 2, 3)), x)
    check(Reduce("sum", (0, 2, 3)), x, label="numpy")
    check(Reduce("max", (0,)), ints(64, 100), label="numpy")


def test_the_fastest_layout_is_found_by_timing() -> None:
    x, w, b = ints(2, 32, 9, 9), ints(48, 32, 3, 3, seed=1), ints(1, 48, 1, 1)
    for op, arrays in (
        (Conv(SAME), [x, w]),
        (Fused((Conv(SAME), Add(), Add(), Relu())), [x, w, b, ints(2, 48, 9, 9)]),
        (ConvDataGrad(SAME, (9, 9)), [ints(2, 48, 9, 9), w]),
        (ConvFilterGrad(SAME, (3, 3)), [x, ints(2, 48, 9, 9)]),
    ):
        specs = [Spec(a.shape, float32) for a in arrays]
        made = BACKEND.plan(op, specs, Policy(algorithm="fastest"))
        assert np.array_equal(execute(CPU, made, arrays)[0], run_reference(op, arrays)[0])


# ---- fusion


@pytest.mark.feature("F052")
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution_bias_activation_add_is_one_primitive(groups: int) -> None:
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1), groups)
    x, w, b = ints(2, 16, 6, 6), ints(32, 16 // groups, 3, 3, seed=1), ints(1, 32, 1, 1, seed=2)
    other = ints(2, 32, 6, 6, seed=3)
    chains: list[tuple[tuple[Op, ...], list[Array]]] = [
        ((Add(),), [b]),
        ((Relu(),), []),
        ((Add(), Relu()), [b]),
        ((Add(), Add(), Relu()), [b, other]),
        ((Add(), LeakyRelu(0.25), Mul()), [b, other]),
        ((Mul(), Add(), Tanh()), [b, b]),
        ((Add(), Relu(), Add()), [other, b]),
    ]
    for steps, extra in chains:
        made = check(Fused((Conv(window), *steps)), x, w, *extra)
        assert "," not in made.label
        assert made.outputs[0].tag == "acdb" or made.outputs[0].physical.is_blocked


@pytest.mark.parametrize("rows", [3, 64, 65])
def test_products_with_weights_beyond_the_caches_are_exact(rows: int) -> None:
    """Few rows take the transposed formulation."""
    g, w = ints(rows, 2048), ints(2048, 2056, seed=1)
    made = check(Matmul(), g, w)
    assert made.label.endswith("transposed") == (rows <= 64)
    assert np.array_equal(execute(CPU, made, [g, w])[0], g @ w)


@pytest.mark.feature("F052")
def test_matmul_epilogue_is_one_primitive() -> None:
    x, w, b = ints(16, 40), ints(24, 40, seed=1), ints(24, seed=2)
    for steps, extra in (
        ((Add(),), [b]),
        ((Add(), Relu()), [b]),
        ((Add(), Sigmoid(), Mul()), [b, ints(16, 24)]),
    ):
        check(Fused((Matmul(False, True), *steps)), x, w, *extra)
    check(Fused((Matmul(), Add(), Relu())), ints(3, 5, 7), ints(3, 7, 4), ints(3, 5, 4))


def test_what_cannot_be_fused_is_refused_by_name() -> None:
    x, w = ints(2, 16, 6, 6), ints(32, 16, 3, 3)
    with pytest.raises(NoKernel, match="cannot fuse add"):
        plan(Fused((Conv(SAME), Add())), [x, w, ints(2, 1, 6, 6)])
    with pytest.raises(NoKernel, match="no fusion onto max_pool"):
        plan(Fused((MaxPool((3, 3), POOL), Relu())), [x])
    with pytest.raises(NoKernel, match="cannot fuse relu_grad"):
        plan(Fused((Conv(SAME), ReluGrad())), [x, w, ints(2, 32, 6, 6)])
    with pytest.raises(NoKernel, match="float64"):
        plan(Fused((Conv(SAME), Relu())), [x.astype(np.float64), w.astype(np.float64)])


# ---- dtypes


@pytest.mark.feature("F045", "F046", "F054", "F117")
@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
def test_half_types_accumulate_in_float32(dtype: DType) -> None:
    """Sums of 2304 products stay within one rounding of the exact result."""
    x, w = ints(2, 256, 6, 6, dtype=dtype), ints(32, 256, 3, 3, seed=1, dtype=dtype)
    for op, pair in (
        (Conv(SAME), (x, w)),
        (ConvDataGrad(SAME, (6, 6)), (ints(2, 32, 6, 6, dtype=dtype), w)),
        (ConvFilterGrad(SAME, (3, 3)), (x, ints(2, 32, 6, 6, dtype=dtype))),
        (Matmul(False, True), (ints(16, 300, dtype=dtype), ints(24, 300, seed=1, dtype=dtype))),
    ):
        (y,) = execute(CPU, plan(op, pair), pair)
        exact = run_reference(op, pair, float64)[0]
        assert y.dtype == dtype.numpy
        assert np.array_equal(y.astype(np.float32), exact.astype(dtype.numpy).astype(np.float32))


def test_casts_between_floats_keep_the_layout() -> None:
    x = np.random.default_rng(0).standard_normal((2, 19, 3, 5)).astype(np.float32)
    for to in (bfloat16, float16):
        made = check(Cast(to), x, tags=["aBcd16b"])
        assert made.outputs[0].tag == "aBcd16b"
        assert np.array_equal(execute(CPU, made, [x])[0], x.astype(to.numpy))


@pytest.mark.parametrize(
    ("op", "arrays"),
    [
        (Conv(SAME), [ints(1, 2, 4, 4, dtype=float64), ints(2, 2, 3, 3, dtype=float64)]),
        (Conv(SAME), [ints(0, 2, 4, 4), ints(2, 2, 3, 3)]),
        (Matmul(), [ints(0, 4), ints(4, 3)]),
        (Softmax((1, 2)), [ints(2, 3, 4)]),
        (ArgMax(1), [ints(4, 5)]),
        (Where(), [ints(3) > 0, ints(3), ints(3)]),
    ],
    ids=str,
)
def test_the_rest_runs_on_numpy(op: Op, arrays: list[Array]) -> None:
    check(op, *arrays, label="numpy")


# ---- updates


@pytest.mark.feature("F111")
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("tag", ["abcd", "ABcd16b16a"])
@pytest.mark.parametrize(
    "op",
    [
        SgdUpdate(), SgdUpdate(weight_decay=0.1), SgdUpdate(0.9), SgdUpdate(0.9, 0.3), SgdUpdate(0.9, 0.2, 0.1),
        SgdUpdate(0.9, 0.0, 0.1, True), AdamUpdate(), AdamUpdate(weight_decay=0.1),
        AdamUpdate(weight_decay=0.1, decoupled=True),
    ],
    ids=str,
)  # fmt: skip
def test_updates_in_place_and_apart(op: Op, tag: str, apart: bool) -> None:
    """In place as the executor runs them, and into other memory, with the rate read at run time."""
    rng = np.random.default_rng(0)
    shape = (19, 21, 3, 3)
    draws = [rng.standard_normal(shape).astype(np.float32) for _ in range(4)]
    draws[3] = np.abs(draws[3])
    rate = np.array(0.05, np.float32)
    many = isinstance(op, AdamUpdate)
    arrays = [*draws[: 4 if many else 3], *([np.array(3)] if many else []), rate]
    made = plan(op, arrays, [tag])
    assert made.label == "onednn weighted sums"
    assert {s.tag for s in made.inputs[:3]} == {tag}
    held = [CPU.allocate(s.nbytes) for s in made.inputs]
    for buffer, array, spec in zip(held, arrays, made.inputs, strict=True):
        buffer.array((spec.nbytes,), np.uint8)[:] = pack(array, spec.physical).view(np.uint8)
    fresh = [CPU.allocate(s.nbytes) for s in made.outputs]
    targets = fresh if apart else [held[made.aliases[i]] for i in range(len(made.outputs))]
    scratch = CPU.allocate(made.workspace)
    call = Call(tuple(b.pointer for b in held), tuple(b.pointer for b in targets), scratch.pointer)
    run = made.bind(call)
    held[-1].array((1,), np.float32)[0] = 0.1  # after the bind
    run()
    for buffer, spec, wanted in zip(
        targets, made.outputs, run_reference(op, [*arrays[:-1], np.array(0.1, np.float32)]), strict=True
    ):
        flat = buffer.array((spec.nbytes // spec.dtype.itemsize,), spec.dtype.numpy)
        found = unpack(flat, spec.physical, spec.shape)
        assert mismatch(np.asarray(found), wanted, spec.dtype) == ""
        assert np.array_equal(pack(found, spec.physical), flat)  # padding is still zero


# ---- dropout


@pytest.mark.parametrize("count", [1, 5, 4096 * 4, 4096 * 4 + 7, 50_000])
@pytest.mark.parametrize("state", [(1, 0), (-5, 2**32 - 2), (2**62, 2**63 - 2), (7, -3)])
def test_words_are_those_of_the_generator(count: int, state: tuple[int, int]) -> None:
    draw = Words(count)
    for _ in range(2):
        assert np.array_equal(draw(*state), words(*state, count))


def test_dropout_multiplies_by_the_mask() -> None:
    x = ints(33, 1001)
    made = check(Dropout(0.25), x, np.array([3, 5]), label="numpy philox, onednn")
    assert made.aliases == {0: 0}


# ---- plans


def test_a_plan_may_be_bound_many_times_and_run_by_many_threads() -> None:
    """Each binding has addresses and scratch memory of its own; workspace is what the plan says."""
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1), 2, True)  # mirrored: goes through the workspace
    op = Conv(window)
    x, w = ints(2, 8, 9, 9), ints(12, 4, 3, 3, seed=1)
    made = plan(op, [x, w])
    assert made.workspace > 0
    wanted = run_reference(op, [x, w])[0]
    found: list[bool] = []

    def work() -> None:
        for _ in range(20):
            found.append(np.array_equal(execute(CPU, made, [x, w])[0], wanted))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(found)


def test_nothing_outside_outputs_and_workspace_is_written() -> None:
    """Guards of 256 bytes around every piece of memory stay as they were."""
    x, w, b = ints(2, 19, 7, 7), ints(21, 19, 3, 3, seed=1), ints(1, 21, 1, 1)
    for op, arrays in (
        (Fused((Conv(SAME), Add(), Relu())), [x, w, b]),
        (ConvFilterGrad(SAME, (3, 3)), [x, ints(2, 21, 7, 7)]),
        (MaxPool((3, 3), POOL, True), [x]),
        (Matmul(True, False), [ints(17, 33), ints(17, 21)]),
        (Reduce("sum", (0,)), [ints(97, 31)]),
    ):
        made = plan(op, arrays)
        guarded: list[Any] = []

        def place(nbytes: int, guarded: list[Any] = guarded) -> int:
            guarded.append(CPU.allocate(nbytes + 512))
            guarded[-1].array((nbytes + 512,), np.uint8)[:] = 0xA5
            return int(guarded[-1].pointer) + 256

        inputs = [place(s.nbytes) for s in made.inputs]
        for i, (array, spec) in enumerate(zip(arrays, made.inputs, strict=True)):
            guarded[i].array((spec.nbytes + 512,), np.uint8)[256:-256] = pack(array, spec.physical).view(
                np.uint8
            )
        outputs = [place(s.nbytes) for s in made.outputs]
        made.bind(Call(tuple(inputs), tuple(outputs), place(made.workspace)))()
        for buffer in guarded:
            every = buffer.array((buffer.nbytes,), np.uint8)
            assert (every[:256] == 0xA5).all(), op
            assert (every[-256:] == 0xA5).all(), op


def test_supports_names_the_source() -> None:
    assert BACKEND.supports(Conv) == "onednn"
    assert BACKEND.supports(ArgMax) == "numpy"
    assert BACKEND.supports(Reshape) == "view"


def test_infer_s_errors_come_first() -> None:
    with pytest.raises(ValueError, match="conv"):
        plan(Conv(SAME), [ints(1, 3, 4, 4), ints(2, 2, 3, 3)])


def test_backend_of_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="runs on the cpu, not on cuda:0"):
        backends.get(Device("cuda:0"), "cpu")


_WITHOUT = """
import logging, numpy as np
logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
from lamina import backends
from lamina.ops.primitives import Conv, Fused, Relu, Window
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float32
cpu = backends.get(Device("cpu"))
op = Conv(Window((1, 1), ((1, 1), (1, 1)), (1, 1)))
specs = [Spec((1, 2, 4, 4), float32), Spec((2, 2, 3, 3), float32)]
for _ in range(2):
    print(cpu.plan(op, specs, Policy()).label, cpu.supports(Conv), repr(cpu.supports(Fused)))
print(cpu.reorder(specs[0], specs[0].with_tag("acdb")).label)
try:
    cpu.plan(Fused((op, Relu())), specs, Policy())
except backends.NoKernel as error:
    print(error)
"""


def test_without_onednn_numpy_runs_and_says_so_once() -> None:
    environment = os.environ | {
        "LAMINA_DNNL": "none",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT], env=environment, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[:3] == ["numpy conv numpy ''"] * 2 + ["numpy reorder"]
    assert "oneDNN has no kernel for fused" in lines[3]
    assert done.stderr.count("WARNING lamina.backends.cpu oneDNN was not found") == 1


def test_the_log_is_silent_with_onednn(caplog: pytest.LogCaptureFixture) -> None:
    has_onednn.cache_clear()
    with caplog.at_level(logging.INFO):
        assert has_onednn()
    assert caplog.records == []
    assert isinstance(BACKEND, CpuBackend)


@pytest.mark.parametrize("channels", [48, 20])
@pytest.mark.parametrize(("before", "after"), [(24, 16), (16, 24), (8, 16), (32, 24)])
def test_blocks_of_one_size_become_blocks_of_another(channels: int, before: int, after: int) -> None:
    """Whether in one copy or in two; what pads the last block is zero."""
    shape = (channels, 6, 3, 3)

    def blocked(size: int) -> Spec:
        return Spec(shape, float32, Layout((54 * size, 9 * size, 3 * size, size), ((0, size),)))

    x = lm.tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
    first = relayout(x, blocked(before))
    second = relayout(first, blocked(after))
    np.testing.assert_array_equal(second.numpy(), x.numpy())
    stored = second.buffer.array((second.nbytes // 4,), np.float32)
    assert np.count_nonzero(stored) == x.numel() - 1
    np.testing.assert_array_equal(relayout(second, x.spec).numpy(), x.numpy())


def test_casts_that_onednn_makes_one_by_one_are_loops() -> None:
    """Of float32 to float16 that takes 250 times as long, where the processor has no instructions for float16; values
    are rounded to the nearest, ties to even."""
    x = np.random.default_rng(0).standard_normal((70, 300)).astype(np.float32) * 1e4
    x[0, :4] = np.nan, np.inf, -np.inf, 1e6
    found = CpuBackend(Device("cpu")).plan(Cast(float16), [Spec(x.shape, float32)], Policy())
    assert found.label.startswith("onednn jit" if HAS_FLOAT16 else "loops")
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(execute(Device("cpu"), found, [x])[0], x.astype(np.float16))


@pytest.mark.parametrize("channels", [(4, 4), (3, 20), (12, 8), (9, 5)])
def test_convolutions_leave_no_block_that_channels_do_not_fill(channels: tuple[int, int]) -> None:
    """By default; what lies so already is read as it lies."""
    wide, narrow = channels
    x, w, y = (Spec(s, float32) for s in ((2, wide, 9, 7), (narrow, wide, 3, 3), (2, narrow, 9, 7)))
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
    cases = (
        (Conv(window), [x, w]),
        (ConvDataGrad(window, (9, 7)), [y, w]),
        (ConvFilterGrad(window, (3, 3)), [x, y]),
    )
    for op, specs in cases:
        plan = backends.get(Device("cpu")).plan(op, specs, Policy())
        ends = [s for s in (*plan.inputs, *plan.outputs) if s.shape in (x.shape, y.shape)]
        assert len(ends) == 2
        assert all(s.nbytes == 4 * s.numel for s in ends), (plan.label, ends)
