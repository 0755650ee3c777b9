"""Ops that move elements on the cuda backend: views in any layout, emulated copies where there is none."""

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.core import Op
from lamina.ops.primitives import (
    Add,
    Cast,
    Concat,
    Expand,
    Flip,
    Fused,
    GeluTanh,
    Mul,
    Pad,
    Reshape,
    Slice,
    Transpose,
)
from lamina.spec import Policy, Shape, Spec, as_dtype, bfloat16, dense, float32, from_tag, pack, unpack
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

CUDA = backend(H200)


@pytest.mark.parametrize(
    ("shape", "tag", "new", "read", "written"),
    [
        ((64, 512, 3136), "acb", (64, 512, 56, 56), "acb", "acdb"),  # tokens as an image, and back
        ((64, 512, 56, 56), "acdb", (64, 512, 3136), "acdb", "acb"),
        ((2, 64, 49, 8, 64), "bacde", (2, 64, 49, 512), "bacde", "bacd"),
        ((64, 8, 49, 64), "acbd", (64, 392, 64), "abcd", "abc"),  # heads by positions lie the other way round
        ((2, 4, 3, 5, 6), "adecb", (2, 12, 5, 6), "adebc", "acdb"),  # channels are shuffled by one copy
        ((4, 6), None, (2, 2, 6, 1), "ab", "abcd"),
    ],
)
def test_where_a_reshape_is_a_view(
    shape: tuple[int, ...], tag: str | None, new: tuple[int, ...], read: str, written: str
) -> None:
    spec = Spec(shape, bfloat16) if tag is None else Spec(shape, bfloat16).with_tag(tag)
    plan = CUDA.plan(Reshape(new), (spec,), Policy())
    assert plan.view
    assert (plan.inputs[0].tag, plan.outputs[0].tag) == (read, written)


@given(
    st.permutations(range(4)),
    st.permutations(range(4)),
    st.sampled_from([(6, 20), (30, 4), (2, 60), (2, 3, 20)]),
)
def test_transposed_and_reshaped(lying: list[int], order: list[int], new: tuple[int, ...]) -> None:
    """What a view shows of memory is the op's result."""
    shape = (2, 3, 5, 4)
    x = np.arange(120, dtype=np.float32).reshape(shape)
    turned = CUDA.plan(
        Transpose(tuple(order)), (Spec(shape, bfloat16, dense(shape, tuple(lying))),), Policy()
    )
    (found,) = turned.outputs
    y = unpack(pack(x, turned.inputs[0].physical), found.physical, found.shape)
    np.testing.assert_array_equal(y, x.transpose(order))
    joined = CUDA.plan(Reshape(new), (found,), Policy())
    z = unpack(pack(y, joined.inputs[0].physical), joined.outputs[0].physical, new)
    np.testing.assert_array_equal(z, y.reshape(new))


X = (3, 4, 6, 16)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(
    ("op", "shapes", "tag", "written"),
    [
        (Concat(0), [X, X], "acbd", "bacd"),
        (Concat(1), [X, (3, 1, 6, 16)], "abcd", "acdb"),  # tile by tile
        (Slice((0, 1, 0, 8), (3, 4, 6, 16), (1, 2, 1, 1)), [X], "abcd", "cabd"),
        (Expand((5, 4, 6, 16)), [(1, 4, 6, 16)], "abcd", "bcad"),
        (Flip((1,)), [X], "abcd", "acbd"),
        (Pad(((0, 0), (1, 0), (0, 2), (8, 8)), 1.5), [X], "abcd", "acbd"),
        (Pad(((0, 0), (1, 0), (0, 2), (8, 8)), 1.5), [X], "acdb", "abcd"),
        (GeluTanh(), [X], "acbd", "abcd"),
        (Add(), [X, (4, 1, 16)], "acbd", "abcd"),
        (Add(), [X, (3, 4, 6, 1)], "abcd", "bcad"),
        (Cast(float32), [X], "acbd", "abcd"),
        (Fused((Mul(), Add())), [X, X, X], "bcad", "cabd"),
    ],
    ids=str,
)
def test_results_written_as_a_reader_wants_them(
    op: Op, shapes: list[tuple[int, ...]], tag: str, written: str
) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(bfloat16.numpy) for s in shapes]
    specs = [Spec(s, bfloat16, from_tag(tag, s)) if len(s) == 4 else Spec(s, bfloat16).fixed for s in shapes]
    plan = CUDA.plan(op, specs, Policy())
    assert plan.relaid is not None
    (y,) = plan.outputs
    other = plan.relaid(from_tag(written, y.shape))
    assert other is not None
    assert [s.tag for s in other.outputs] == [written]
    assert other.inputs == plan.inputs
    (wanted,) = run_reference(op, arrays)
    for misaligned in (False, True):
        (found,) = run_plan(other, arrays, misaligned=misaligned)
        assert not (problem := mismatch(found, wanted, as_dtype(wanted.dtype))), problem
    assert all(other.outputs[o].same_memory(other.inputs[i]) for o, i in other.aliases.items())


@pytest.mark.parametrize(
    ("op", "tag", "written"),
    [
        (Add(), "acdb", "abcd"),
        (Slice((0, 0, 0, 0), (3, 4, 6, 16), (1, 1, 1, 2)), "abcd", "acdb"),
    ],
    ids=str,
)
def test_results_for_which_a_copy_is_as_fast(op: Op, tag: str, written: str) -> None:
    specs = [Spec(X, bfloat16, from_tag(tag, X))] * (op.arity or 1)
    plan = CUDA.plan(op, specs, Policy())
    assert plan.relaid is not None
    assert plan.relaid(from_tag(written, plan.outputs[0].shape)) is None


SHORT = (2, 3, 6, 2)


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (Concat(0), [SHORT, SHORT]),
        (Concat(1), [(2, 0, 6, 2), SHORT]),
        (Slice((0, 1, 0, 0), (2, 3, 5, 2), (1, 1, 1, 1)), [SHORT]),
        (Expand((5, 3, 6, 2)), [(1, 3, 6, 2)]),
        (Flip((0,)), [SHORT]),
        (Pad(((0, 0), (1, 0), (0, 2), (0, 1)), 1.5), [SHORT]),
    ],
    ids=str,
)
def test_channels_that_are_too_few_to_be_written_side_by_side(op: Op, shapes: list[tuple[int, ...]]) -> None:
    """Three channels do not fill a line, for which tiles have four at least; what lies together may stay so."""
    plan = CUDA.plan(op, [Spec(s, bfloat16).fixed for s in shapes], Policy())
    (y,) = plan.outputs
    assert plan.relaid is not None
    assert plan.relaid(from_tag("acdb", y.shape)) is None
    assert plan.relaid(from_tag("bacd", y.shape)) is not None


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("written", ["abcd", "acdb", "dcba"])
@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (Pad(((0, 0), (2, 3), (0, 0), (0, 1)), 1.5), [(3, 0, 6, 2)]),
        (Pad(((1, 0), (0, 1), (0, 1), (0, 0)), 2.5), [(0, 4, 0, 2)]),
        (Concat(0), [(0, 4, 1, 8), (1, 4, 1, 8), (0, 4, 1, 8)]),
    ],
    ids=str,
)
def test_what_has_no_elements_is_no_reason_against_a_layout(
    op: Op, shapes: list[tuple[int, ...]], written: str
) -> None:
    arrays = [np.arange(np.prod(s)).reshape(s).astype(bfloat16.numpy) for s in shapes]
    plan = CUDA.plan(op, [Spec(s, bfloat16).fixed for s in shapes], Policy())
    assert plan.relaid is not None
    other = plan.relaid(from_tag(written, plan.outputs[0].shape))
    assert other is not None
    assert other.outputs[0].physical == from_tag(written, plan.outputs[0].shape)
    (wanted,) = run_reference(op, arrays)
    (found,) = run_plan(other, arrays)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize(
    ("axis", "shapes", "tag", "width"),
    [
        (1, [(1, 1, 384), (1, 196, 384)], "abc", 8),
        (1, [(2, 3, 4), (2, 5, 4), (2, 1, 4)], "abc", 4),
        (1, [(2, 8, 3, 3), (2, 16, 3, 3)], "acdb", 8),
        (1, [(2, 8, 3, 3), (2, 3, 3, 3)], "acdb", 1),
        (0, [(7,), (9,), (16,)], "a", 1),
        (0, [(16,), (8,), (5,)], "a", 1),
        (2, [(2, 1, 3), (2, 1, 0), (2, 1, 4)], "abc", 1),
        (-1, [(3, 16)] * 8, "ab", 8),
    ],
)
def test_what_is_joined_is_one_launch(axis: int, shapes: list[Shape], tag: str, width: int) -> None:
    """In accesses of so many elements, as parts end."""
    specs = [Spec(s, bfloat16, from_tag(tag, s)) for s in shapes]
    arrays = [
        np.random.default_rng(i).standard_normal(s).astype(bfloat16.numpy) for i, s in enumerate(shapes)
    ]
    plan = backend(H200).plan(Concat(axis), specs, Policy())
    (launch,) = plan.make.steps  # type: ignore[attr-defined]
    assert (f"load<{width}>" in launch.program.text) == (width > 1)
    np.testing.assert_array_equal(
        run_plan(plan, arrays)[0].astype(np.float32), np.concatenate(arrays, axis).astype(np.float32)
    )


@pytest.mark.parametrize(
    ("shapes", "launches"),
    [([(64, 1024, 56), (64, 512, 56)], 1), ([(2, 3)] * 8, 1), ([(2, 3)] * 9, 9)],
    ids=["much", "few", "many"],
)
def test_many_that_are_joined_are_copied_one_by_one(shapes: list[Shape], launches: int) -> None:
    plan = backend(H200).plan(Concat(1), [Spec(s, bfloat16) for s in shapes], Policy())
    assert len(plan.make.steps) == launches  # type: ignore[attr-defined]
