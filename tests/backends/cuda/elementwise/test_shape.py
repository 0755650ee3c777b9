"""Ops that move elements on the cuda backend: views in any layout, emulated copies where there is none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lamina.backends.cuda import backend
from lamina.ops.primitives import Reshape, Transpose
from lamina.spec import Policy, Spec, bfloat16, dense, pack, unpack
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
