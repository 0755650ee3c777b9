"""Damaged and hostile ONNX files: flipped, cut or repeated bytes, and fields with false values."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import onnx
from onnx import TensorProto, helper

from lamina.convert.onnx import HANDLERS

#: Numbers at which sizes overflow, wrap or become huge.
EXTREMES = (
    0,
    -1,
    1,
    2,
    3,
    7,
    255,
    1 << 16,
    1 << 31,
    (1 << 31) - 1,
    1 << 40,
    (1 << 62) + 1,
    -(1 << 63),
    (1 << 63) - 1,
)
PATHS = (
    "/etc/passwd",
    "../../etc/passwd",
    "/dev/zero",
    "/proc/self/mem",
    ".",
    "",
    "a/../..",
    "\\\\host\\share",
    "~",
)


def mutants(seeds: list[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """This many mutants, from the files in turn; reproducible by the seed."""
    rng = random.Random(seed)
    kinds = (_flipped, _cut, _repeated, _length, *(_fields,) * 9, _external, _nested)
    for i in range(count):
        data = seeds[i % len(seeds)]
        for _ in range(rng.choice((1, 1, 1, 2))):
            data = rng.choice(kinds)(data, rng)
        yield data


def _flipped(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.randint(1, 8) if found else 0):
        found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def _cut(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 7, 1 << 20)) :]


def _repeated(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + rng.randint(1, 200)]
    return data[:start] + part * rng.randint(2, 50) + data[start:]


def _length(data: bytes, rng: random.Random) -> bytes:
    """A byte that may be a length becomes the longest number."""
    at = rng.randrange(len(data) + 1)
    return (
        data[:at]
        + rng.choice((b"\xff" * 9 + b"\x01", b"\xff\xff\xff\x7f", b"\x80" * 12, b"\x00"))
        + data[at + 1 :]
    )


def _fields(data: bytes, rng: random.Random) -> bytes:
    """Some fields of the messages get other values."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        return _flipped(data, rng)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(model, rng)
    return model.SerializeToString()


def _change(message: Any, rng: random.Random) -> None:
    """One field, at any depth."""
    while True:
        fields = [f for f, _ in message.ListFields()]
        if not fields:
            return
        field = rng.choice(fields)
        held = getattr(message, field.name)
        repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
        if repeated and not len(held):
            return
        if field.message_type is None:
            value = _other(field, held[0] if repeated else held, rng)
            try:
                if repeated:
                    held[rng.randrange(len(held))] = value
                else:
                    setattr(message, field.name, value)
            except (ValueError, TypeError):
                pass
            return
        if repeated and rng.random() < 0.15:
            del held[rng.randrange(len(held))]
            return
        message = held[rng.randrange(len(held))] if repeated else held


def _other(field: Any, value: Any, rng: random.Random) -> Any:
    if isinstance(value, str):
        return rng.choice(("", "x", "y", "\0", "a" * 1000, *(op for _, op in rng.sample(list(HANDLERS), 4))))
    if isinstance(value, bytes):
        return value[: rng.randrange(len(value) + 1)] if rng.random() < 0.5 else value * 2
    return (
        rng.choice((float("nan"), float("inf"), 1e38)) if isinstance(value, float) else rng.choice(EXTREMES)
    )


def _external(data: bytes, rng: random.Random) -> bytes:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        return _flipped(data, rng)
    if model.graph.initializer:
        held = rng.choice(model.graph.initializer)
        held.data_location = TensorProto.EXTERNAL
        held.ClearField("raw_data")
        for key in rng.sample(("location", "offset", "length", "checksum", "other"), 3):
            value = rng.choice(PATHS) if key == "location" else str(rng.choice(EXTREMES))
            held.external_data.add(key=key, value=value)
    return model.SerializeToString()


def _nested(data: bytes, rng: random.Random) -> bytes:
    """Subgraphs in subgraphs, loops in loops, and functions that call themselves."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:
        return _flipped(data, rng)
    inner = model.graph
    for _ in range(rng.choice((2, 20, 40))):
        node = inner.node.add(op_type=rng.choice(("Loop", "If", "Scan")), input=["x"], output=["n"])
        held = node.attribute.add(name=rng.choice(("body", "then_branch")), type=onnx.AttributeProto.GRAPH)
        inner = held.g
    calls = [helper.make_node("F", ["a"], ["b"], domain="own") for _ in range(2)]
    function = helper.make_function("own", "F", ["a"], ["b"], calls, [helper.make_opsetid("own", 1)])
    model.functions.append(function)
    model.graph.node.insert(0, helper.make_node("F", ["x"], ["f"], domain="own"))
    return model.SerializeToString()
