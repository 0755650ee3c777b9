"""Primitive descriptors are made again from data, and data that is none raises typed errors."""

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from lamina import onednn
from lamina.c.errors import DnnlError
from lamina.onednn import Attributes, Binary, Eltwise, MemoryDesc, PrimitiveDesc, Sum
from lamina.onednn.primitives import SlidingWindow
from lamina.onednn.recipe import RecipeError, decode, decode_desc, encode, encode_desc

WINDOW = SlidingWindow((1, 1), (0, 0), (1, 1), (1, 1))
IMAGE, ANY = MemoryDesc((2, 16, 8, 8), tag="acdb"), MemoryDesc((16, 16, 3, 3), tag="any")


def conv() -> PrimitiveDesc:
    steps = [Eltwise("elu", 0.0), Binary("add", IMAGE), Sum(0.5)]
    return onednn.convolution_forward(
        IMAGE, ANY, MemoryDesc((16,)), IMAGE, WINDOW, prop="inference", attributes=Attributes(steps)
    )


MADE = {
    "conv": conv,
    "data gradient": lambda: onednn.convolution_backward_data(
        IMAGE, ANY, IMAGE, WINDOW, hint=onednn.convolution_forward(IMAGE, ANY, None, IMAGE, WINDOW)
    ),
    "grouped conv": lambda: onednn.convolution_forward(
        IMAGE, MemoryDesc((4, 4, 4, 3, 3), tag="any"), MemoryDesc((16,)), IMAGE, WINDOW, prop="inference"
    ),
    "grouped filter gradient": lambda: onednn.convolution_backward_weights(
        IMAGE,
        MemoryDesc((4, 4, 4, 3, 3), tag="any"),
        None,
        IMAGE,
        WINDOW,
        hint=onednn.convolution_forward(IMAGE, MemoryDesc((4, 4, 4, 3, 3), tag="any"), None, IMAGE, WINDOW),
    ),
    "pool": lambda: onednn.pooling_forward("max", IMAGE, IMAGE, (3, 3), WINDOW, prop="inference"),
    "matmul": lambda: onednn.matmul(
        MemoryDesc((4, 6)), MemoryDesc((6, 5), strides=(1, 6)), MemoryDesc((4, 5)), bias=MemoryDesc((1, 5))
    ),
    "sum": lambda: onednn.weighted_sum([1.0, 2.5], [MemoryDesc((3, 4))] * 2),
    "concat": lambda: onednn.concat(1, [MemoryDesc((3, 4)), MemoryDesc((3, 2))]),
    "reorder": lambda: onednn.reorder(IMAGE, MemoryDesc((2, 16, 8, 8), tag="aBcd16b")),
    "eltwise": lambda: onednn.eltwise_forward("tanh", IMAGE, IMAGE, prop="inference"),
    "softmax": lambda: onednn.softmax_forward(MemoryDesc((4, 9)), MemoryDesc((4, 9)), 1, prop="inference"),
    "norm": lambda: onednn.layer_normalization_forward(
        MemoryDesc((4, 9)), MemoryDesc((4, 9)), MemoryDesc((4,)), epsilon=1e-5
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_the_same_kernel_on_the_same_layouts(name: str) -> None:
    made = MADE[name]()
    again = decode(json.loads(json.dumps(encode(made))))
    assert again.implementation == made.implementation
    assert again.context == made.context
    assert again.scratchpad.nbytes == made.scratchpad.nbytes
    for what in ("src", "weights", "dst", "diff_src", "diff_dst"):
        assert getattr(again, what) == getattr(made, what)


def mutated(data: Any, rng: np.random.Generator) -> Any:
    """The data with one value replaced."""
    data = copy.deepcopy(data)
    holders: list[tuple[Any, Any]] = []

    def walk(x: Any) -> None:
        for key in x if isinstance(x, dict) else range(len(x)):
            holders.append((x, key))
            if isinstance(x[key], dict | list):
                walk(x[key])

    walk(data)
    holder, key = holders[rng.integers(len(holders))]
    values = (
        None,
        -1,
        0,
        3,
        1 << 40,
        1 << 70,
        2.5,
        "f32",
        "any",
        "abcd",
        [],
        [1, 2, 3],
        {},
        True,
        ["f32", [4], [1]],
    )
    holder[key] = values[rng.integers(len(values))]
    return data


@pytest.mark.parametrize("name", MADE)
def test_damaged_data_raises_typed_errors(name: str) -> None:
    data, rng = encode(MADE[name]()), np.random.default_rng(0)
    for _ in range(150):
        with suppress(RecipeError, DnnlError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            decode(mutated(data, rng))


@pytest.mark.parametrize(
    ("data", "refused"),
    [
        (["f32", [4], [1]], False),
        (["f32", [4, 5], [5, 1]], False),
        (["f32", [4, 5], [0, 1]], False),  # one row again and again
        (["f32", [0], [1]], False),
        (["f32", [1] * 12, [1] * 12], False),
        (["f32", [1] * 13, [1] * 13], True),
        (["f32", [1] * 13, "a"], True),
        (["f32", [], []], True),
        (["f32", 4, [1]], True),
        (["f32", [-1], [1]], True),
        (["f32", [True], [1]], True),
        (["f32", [4.0], [1]], True),
        (["f32", [1 << 39], [1]], False),
        (["f32", [1 << 40], [1]], True),
        (["f32", [1 << 20, 1 << 20], "ab"], True),
        (["f32", [1 << 20, 0, 1 << 20], "abc"], True),
        (["f32", [4], 3], True),
        (["f32", [4], None], True),
        (["f32", [4], {}], True),
        (["f32", [4], [1, 2]], True),
        (["f32", [4, 5], [1]], True),
        (["f32", [4], [-1]], True),
        (["f32", [4], [True]], True),
        (["f32", [2], [1 << 40]], True),
        (["f32", [2], [(1 << 40) - 1]], False),
        (["f32", [3], [(1 << 39)]], True),
        ([1, [4], [1]], True),
    ],
)
def test_what_is_read_as_a_layout(data: list[Any], refused: bool) -> None:
    if refused:
        with pytest.raises(RecipeError, match="not a description of a primitive"):
            decode_desc(data)
    else:
        found = decode_desc(data)
        assert found is not None
        assert (list(found.dims), list(found.strides)) == (data[1], data[2])


def test_no_layout_and_an_empty_one_differ() -> None:
    assert decode_desc(None) is None
    assert decode_desc([]) == MemoryDesc()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.__setitem__(0, 3), "not a description"),
        (lambda d: d.__setitem__(3, None), "not a description"),
        (lambda d: d.__setitem__(4, ["src_engine"]), "not a description"),
        (lambda d: d.__setitem__(6, [None]), "not a description"),
        (lambda d: d[2][1].append([True, 1]), "not a description"),
        (lambda d: d[2][1].append([1, 1 << 31]), "not a description"),
        (lambda d: d[2][0].append(["other", 1.0]), "not a description"),
        (lambda d: d[2][0].append(["binary", "add", None]), "not a description"),
        (lambda d: d[2][0].append(["binary", "add", []]), "not a description"),
        (lambda d: d[7].__setitem__("strides", [1]), "not a description"),
        (lambda d: d[7].__setitem__("strides", 1), "not a description"),
        (lambda d: d[7].__setitem__("scales", 1.0), "not a description"),
        (lambda d: d[7].__setitem__("other", [1]), "not a description"),
        (lambda d: d[7].__setitem__("strides", [1, True]), "not a number: True"),
        (lambda d: d[7].__setitem__("strides", [1, "1"]), "not a number: '1'"),
    ],
)
def test_what_is_no_description_is_refused(change: Callable[[Any], None], message: str) -> None:
    data = json.loads(json.dumps(encode(conv())))
    change(data)
    with pytest.raises(RecipeError, match=message):
        decode(data)


def test_odd_layouts_have_no_form() -> None:
    class Odd:
        ndim, is_strided, blocks, is_any, tag = 2, False, (), False, ""
        dims, data_type = (2, 3), "f32"

    with pytest.raises(RecipeError, match="has no name"):
        encode_desc(Odd())  # type: ignore[arg-type]
