"""Copies and memset on the CPU; the GPU's are in test_gpu.py."""

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.runtime import (
    Buffer,
    Device,
    Stream,
    copy,
    copy_2d,
    copy_3d,
    from_host,
    memset,
    memset_2d,
    move,
    to_host,
)
from lamina.runtime.transfer import _SMALL, values_of

CPU = Device("cpu")


@pytest.mark.feature("F031")
@pytest.mark.parametrize(
    "source",
    [
        b"abcdef",
        bytearray(b"abcdef"),
        memoryview(b"abcdef"),
        array.array("H", [1, 2, 3]),
        np.arange(6, dtype=np.uint8),
    ],
)
def test_host_objects_go_in_and_out(source: Any) -> None:
    buffer = from_host(source, CPU)
    assert buffer.nbytes == 6
    assert to_host(buffer).tobytes() == bytes(memoryview(source).cast("B"))


def test_bfloat16_arrays_can_be_copied() -> None:
    data = np.array([1.5, 2.5], pytest.importorskip("ml_dtypes").bfloat16)
    buffer, back = from_host(data, CPU), np.zeros_like(data)
    copy(back, buffer)
    assert back.tolist() == [1.5, 2.5]


@pytest.mark.feature("F031")
def test_part_of_a_buffer() -> None:
    buffer, target = from_host(b"0123456789", CPU), bytearray(4)
    copy(target, buffer.view(3, 7), 4)
    assert target == b"3456"
    copy(buffer.view(2, 6), buffer, 6)  # overlapping
    assert to_host(buffer).tobytes() == b"0101234589"


def test_with_a_stream() -> None:
    stream = CPU.stream()
    buffer = from_host(b"abc", CPU, stream=stream)
    assert to_host(buffer, stream=stream).tobytes() == b"abc"
    assert move(buffer, CPU) is buffer


@pytest.mark.feature("F030")
def test_memset() -> None:
    buffer = CPU.allocate(10)
    memset(buffer, 255)
    memset(buffer.view(2, 3), 0)
    assert to_host(buffer).tolist() == [255] * 2 + [0] * 3 + [255] * 5
    memset(CPU.allocate(0), 1)


@pytest.mark.parametrize("byte", [-1, 256])
def test_memset_refuses_more_than_a_byte(byte: int) -> None:
    with pytest.raises(ValueError, match=f"memset: value must be between 0 and 255, got {byte}"):
        memset(CPU.allocate(1), byte)


@pytest.mark.parametrize(
    ("destination", "source", "nbytes", "error", "match"),
    [
        (bytearray(3), b"ab", None, ValueError, "destination has 3 bytes and source 2"),
        (bytearray(3), b"ab", 3, ValueError, "nbytes is 3, but source has 2 bytes"),
        (bytearray(1), b"ab", 2, ValueError, "nbytes is 2, but destination has 1 bytes"),
        (bytearray(2), b"ab", -1, ValueError, "nbytes must be between"),
        (b"cd", b"ab", None, ValueError, "destination is read-only"),
        (bytearray(2), "ab", None, TypeError, "source must be a Buffer or host memory .* got str"),
        (bytearray(2), 5, None, TypeError, "got int"),
        (bytearray(2), np.zeros((4, 4), np.uint8)[:, 0], 2, ValueError, "source must be C-contiguous"),
        (bytearray(2), memoryview(b"abcd")[::2], 2, ValueError, "source must be C-contiguous"),
        (bytearray(8), np.array([None]), 8, TypeError, r"copy: source is an array of Python objects"),
        (np.array([None]), bytes(8), None, TypeError, r"copy: destination is an array of Python objects"),
    ],
)
def test_copies_that_cannot_be_are_refused(
    destination: Any, source: Any, nbytes: int | None, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        copy(destination, source, nbytes)


def test_a_closed_buffer_is_refused() -> None:
    buffer = CPU.allocate(2)
    buffer.close()
    with pytest.raises(ValueError, match="is closed"):
        copy(buffer, b"ab")


def test_gpu_memory_is_not_touched_from_a_host_stream() -> None:
    foreign = CPU.allocate(4)
    foreign.device = Device("cuda:0")
    with pytest.raises(ValueError, match="memory of cuda:0 cannot be reached from"):
        copy(foreign, b"abcd", stream=Stream(CPU))


@pytest.mark.feature("F031")
def test_rows_with_pitches() -> None:
    source = np.arange(5 * 8, dtype=np.uint8).reshape(5, 8)
    target = np.zeros((5, 6), np.uint8)
    copy_2d(target, source, width=4, height=5, destination_pitch=6, source_pitch=8)
    assert np.array_equal(target[:, :4], source[:, :4])
    assert not target[:, 4:].any()


@pytest.mark.feature("F031")
@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(0, 5)] * 3), st.tuples(*[st.integers(0, 3)] * 4))
def test_blocks_with_strides(shape: tuple[int, int, int], slack: tuple[int, int, int, int]) -> None:
    slices, rows, width = shape
    source = np.random.default_rng(0).integers(
        0, 255, (slices, rows + slack[0], width + slack[1] + 1), np.uint8
    )
    target = np.zeros((slices, rows + slack[2], width + slack[3] + 1), np.uint8)
    copy_3d(
        target, source, shape=shape, destination_strides=target.strides[:2], source_strides=source.strides[:2]
    )
    expected = np.zeros_like(target)
    expected[:, :rows, :width] = source[:, :rows, :width]
    assert np.array_equal(target, expected)


@pytest.mark.parametrize(
    ("shape", "strides", "match"),
    [
        ((1, 4, 4), (16, 3), "do not fit shape"),
        ((2, 2, 4), (7, 4), "do not fit shape"),
        ((2, 2, 4), (10, 4), "do not fit shape"),
        ((1, 5, 4), (20, 4), "ends at byte 20, but source has 16 bytes"),
        ((1, -1, 4), (16, 4), "shape must be between"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(shape: Any, strides: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        copy_3d(bytearray(100), bytes(16), shape=shape, destination_strides=(20, 4), source_strides=strides)
    with pytest.raises(ValueError, match=r"shape must be \(slices, rows, bytes\)"):
        copy_3d(bytearray(16), bytes(16), shape=(4, 4), destination_strides=(16, 4), source_strides=(16, 4))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="source_pitch must be at least width"):
        copy_2d(bytearray(16), bytes(16), width=4, height=2, destination_pitch=4, source_pitch=3)


@pytest.mark.feature("F030")
@pytest.mark.parametrize(("bits", "value"), [(8, 0xAB), (16, 0xABCD), (32, 0xABCDEF01)])
def test_memset_of_words(bits: int, value: int) -> None:
    buffer = Device("cpu").allocate(64)
    memset(buffer, value, bits=bits)
    assert set(buffer.array((512 // bits,), f"u{bits // 8}").tolist()) == {value}
    array = np.zeros(8, np.uint32)
    memset(array, value, bits=bits)
    assert array.view(f"u{bits // 8}").tolist() == [value] * (256 // bits)


@pytest.mark.feature("F030")
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_memset_of_rows(bits: int) -> None:
    buffer = Device("cpu").allocate(60)
    memset(buffer, 0)
    memset_2d(buffer, 7, width=2, height=3, pitch=20, bits=bits)
    words = buffer.array((3, 160 // bits), f"u{bits // 8}")
    assert np.array_equal(words[:, :2], np.full((3, 2), 7))
    assert not words[:, 2:].any()
    memset_2d(buffer, 9, width=0, height=3, pitch=20)
    assert 9 not in words


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda b: memset(b, 1 << 16, bits=16), "between 0 and 65535"),
        (lambda b: memset(b, 1, bits=64), "bits must be 8, 16 or 32, got 64"),
        (lambda b: memset(b.view(0, 6), 1, bits=32), "6 bytes .* are no words of 32 bits"),
        (lambda b: memset(b.view(2, 4), 1, bits=32), "are no words of 32 bits"),
        (lambda b: memset_2d(b, 1, width=4, height=2, pitch=3), "pitch must hold 4 words of 8 bits"),
        (lambda b: memset_2d(b, 1, width=1, height=2, pitch=6, bits=32), "pitch must hold"),
        (
            lambda b: memset_2d(b, 1, width=4, height=9, pitch=8),
            "the rows end at byte 68, but the buffer has 64",
        ),
        (lambda b: memset_2d(b, 300, width=4, height=1, pitch=8), "between 0 and 255"),
        (lambda _: memset(b"ab", 0), "memset: buffer is read-only"),
    ],
)
def test_memset_refuses(call: Callable[[Buffer], None], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        call(Device("cpu").allocate(64))


def test_memset_takes_whole_numbers_and_memory_of_numbers() -> None:
    with pytest.raises(TypeError, match=r"memset: value must be a whole number, got 1\.0"):
        memset(bytearray(2), 1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="memset: buffer is an array of Python objects"):
        memset(np.array([None]), 0)


def test_small_values_come_through_pinned_memory_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One place serves call after call, and no result lies in it; larger ones are copied to where they stay."""
    monkeypatch.setattr(CPU.platform, "landing", [])
    given = np.random.default_rng(0).integers(0, 256, _SMALL + 8, np.uint8)
    buffer, places = from_host(given, CPU), set[int]()
    assert values_of(buffer, (0, 3), np.dtype(np.int64)).shape == (0, 3)
    assert values_of(buffer, (_SMALL + 8,), np.dtype(np.uint8)).tobytes() == given.tobytes()
    assert CPU.platform.landing == []
    found = [
        values_of(buffer, shape, np.dtype(kind))
        for shape, kind in (((), "i8"), ((2, 3), "f4"), ((_SMALL,), "u1"), ((4, 2), "u2"))
    ]
    for x in found:
        assert x.tobytes() == given[: x.nbytes].tobytes()
        ((place, memory),) = CPU.platform.landing
        places.add(place.pointer)
        assert not np.shares_memory(x, memory)
    assert len(places) == 1
    with pytest.raises(ValueError, match=f"values_of: {_SMALL + 16} bytes of a buffer of {_SMALL + 8}"):
        values_of(buffer, (_SMALL // 8 + 2,), np.dtype(np.int64))


@pytest.mark.parametrize("short", ["destination", "source"])
def test_blocks_may_end_where_memory_does(short: str) -> None:
    """Two slices of three rows of 2 bytes: the last one is byte 25."""
    strides = {"destination_strides": (16, 4), "source_strides": (16, 4)}
    given, target = np.arange(30, dtype=np.uint8), np.zeros(30, np.uint8)
    held = {"destination": target, "source": given}
    held[short] = held[short][:25]
    with pytest.raises(ValueError, match=f"the block ends at byte 26, but {short} has 25 bytes"):
        copy_3d(held["destination"], held["source"], shape=(2, 3, 2), **strides)
    copy_3d(target[:26], given[:26], shape=(2, 3, 2), **strides)
    places = [s * 16 + r * 4 + b for s in range(2) for r in range(3) for b in range(2)]
    assert np.flatnonzero(target).tolist() == [p for p in places if p]
    assert target[places].tolist() == places
