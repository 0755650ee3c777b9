"""Reshapes on the cpu backend: views of what lies in any order, as long as the axes that are joined lie together."""

import numpy as np
import pytest

from lamina import backends, onednn
from lamina.graph import compile, trace
from lamina.ops import conv2d
from lamina.ops.primitives import Reshape
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float32
from tests.helpers.eager import execute

CPU = Device("cpu")


@pytest.mark.parametrize(
    ("shape", "tag", "new", "read", "written"),
    [
        ((2, 12, 5, 6), "acdb", (2, 3, 4, 5, 6), "acdb", "adebc"),  # channels split into groups
        ((2, 3, 4, 5, 6), "adebc", (2, 12, 5, 6), "adebc", "acdb"),
        (
            (2, 4, 3, 5, 6),
            "adecb",
            (2, 12, 5, 6),
            "adebc",
            "acdb",
        ),  # joined in another order: one copy before
        ((2, 12, 5, 6), "acdb", (2, 12, 30), "acdb", "acb"),
        ((2, 12, 30), "acb", (2, 12, 5, 6), "acb", "acdb"),
        ((2, 12, 5, 6), "acdb", (2, 360), "abcd", "ab"),
        ((2, 3, 4, 5), "acdb", (6, 20), "abcd", "ab"),  # the first two lie around the others
        ((2, 12, 1, 1), "acdb", (2, 12), "abcd", "ab"),
        ((1, 12, 5, 6), "acdb", (12, 5, 6), "acdb", "bca"),
        ((4, 6), None, (2, 2, 6, 1), "ab", "abcd"),
        ((3, 0), "ab", (0, 7), "ab", "ab"),
        ((), None, (1, 1), "", "ab"),
    ],
)
def test_where_a_reshape_is_a_view(
    shape: tuple[int, ...], tag: str | None, new: tuple[int, ...], read: str, written: str
) -> None:
    spec = Spec(shape, float32) if tag is None else Spec(shape, float32).with_tag(tag)
    plan = backends.get(CPU, "cpu").plan(Reshape(new), [spec], Policy())
    assert plan.view
    assert (plan.inputs[0].tag, plan.outputs[0].tag) == (read, written)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    (found,) = execute(CPU, plan, [x])
    np.testing.assert_array_equal(found, x.reshape(new))


@pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")
def test_channels_are_shuffled_by_one_copy() -> None:
    """Between two convolutions: split into groups, exchanged, joined."""
    image, w = Spec((1, 12, 8, 8), float32), Spec((12, 12, 1, 1), float32)

    def shuffled(x, a, b):  # type: ignore[no-untyped-def]
        y = conv2d(x, a).reshape((1, 3, 4, 8, 8)).transpose(1, 2).reshape((1, 12, 8, 8))
        return conv2d(y, b)

    steps = compile(trace(shuffled, image, w, w), "cpu", resident=[1, 2]).program.steps
    between = [s.label for s in steps if not s.plan.view]
    at = [i for i, label in enumerate(between) if label == "conv"]
    assert between[at[0] : at[1] + 1].count("reorder") <= 1
