"""Specs as JSON and back."""

import json

import pytest

from lamina.replay.specs import decode_spec, encode_spec
from lamina.spec import DTypeError, Layout, ShapeError, Spec, bfloat16, float32, uint8

SPECS = [
    Spec((), float32),
    Spec((2, 3), uint8),
    Spec((2, 3, 4, 5), bfloat16).with_tag("acdb"),
    Spec((2, 20, 4, 5), float32).with_tag("aBcd16b"),
    Spec((2, 3), float32, Layout((8, 1))),
    Spec((0, 3), float32),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_there_and_back(spec: Spec) -> None:
    found = decode_spec(json.loads(json.dumps(encode_spec(spec))))
    assert found.same_memory(spec)
    assert found.nbytes == spec.nbytes


@pytest.mark.parametrize(
    "data",
    [
        [[2, -1], "float32"],
        [[2.0], "float32"],
        [[2], "float31"],
        [[2], "float32", [1], [[3, 4]]],
        [[2], "float32", [-1], []],
        [[2], "float32", [1 << 60], []],
        [[2], "float32", [1, 1], []],
        [[1 << 40, 1 << 40], "float32"],
        [[2], "float32", [1]],
        [],
        None,
    ],
    ids=str,
)
def test_what_is_no_spec_is_refused(data: object) -> None:
    with pytest.raises((ValueError, TypeError, ShapeError, DTypeError)):
        decode_spec(data)
