"""Random fills of raw memory on the CPU; the GPU must give the same (test_gpu_interop.py)."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lamina as lm
from lamina.runtime import Device, DeviceGenerator, compile_cubin
from lamina.runtime.random import _FLOATS, _INTEGERS, _SOURCE

FLOATS = list(_FLOATS)


def filled(kind: str, dtype: str, count: int, *arguments: Any, seed: int = 1) -> Any:
    buffer = Device("cpu").allocate(count * np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize)
    getattr(DeviceGenerator(seed), kind)(buffer, *arguments, dtype=dtype)
    return buffer.array((count,), getattr(ml_dtypes, dtype, dtype)).astype(
        np.float64 if dtype in _FLOATS else dtype
    )


@pytest.mark.feature("F041")
@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype: str) -> None:
    values = filled("uniform", dtype, 100_000, -1.0, 3.0)
    assert -1 <= values.min() < -0.99
    assert 2.99 < values.max() <= 3
    assert abs(values.mean() - 1) < 0.02
    assert abs(values.var() - 16 / 12) < 0.03


@pytest.mark.feature("F041")
@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype: str) -> None:
    values = filled("normal", dtype, 100_001, 1.0, 0.5)
    assert abs(values.mean() - 1) < 0.01
    assert abs(values.std() - 0.5) < 0.01
    assert abs(((values - 1) ** 3).mean()) < 0.01
    assert abs(((values - 1) ** 4).mean() / 0.5**4 - 3) < 0.15


@pytest.mark.feature("F041")
@pytest.mark.parametrize("dtype", list(_INTEGERS))
def test_integers_of_the_whole_type(dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = filled("integers", dtype, 50_000, limits.min, limits.max)
    assert values.min() < limits.min + (limits.max - limits.min) / 100
    assert values.max() > limits.max - (limits.max - limits.min) / 100
    small = filled("integers", dtype, 60_000, 3, 9)
    counts = np.bincount(small.astype(np.int64), minlength=9)
    assert counts[:3].sum() == 0
    assert len(counts) == 9
    assert abs(counts[3:] - 10_000).max() < 400


@pytest.mark.feature("F041")
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("int64", -(2**62), 2**62 + 12345),
        ("int64", -(2**63), 2**63 - 1),
        ("uint64", 0, 2**64 - 1),
        ("uint64", 3, 2**32 + 2),  # all of the lower half
        ("uint64", 5, 5 + (2**32 - 1) * 2**32),  # all of the upper half
        ("int32", -5, 7),
    ],
)
def test_integers_agree_with_wide_arithmetic(dtype: str, low: int, high: int) -> None:
    """Every carry between the halves of the product."""
    values = filled("integers", dtype, 2000, low, high, seed=9)
    words = lm._philox.words(9, 0, 4000).reshape(-1, 2).astype(object)
    expected = [low + ((int(a) << 32 | int(b)) * (high - low) >> 64) for a, b in words]
    assert values.tolist() == expected


@pytest.mark.feature("F041")
def test_the_state_is_saved_and_set_back() -> None:
    generator = DeviceGenerator(7)
    first = np.zeros(10, np.float32)
    generator.uniform(first)
    assert generator.state == (7, 3)  # ten elements take three blocks of four words
    saved = generator.state
    second, third = np.zeros(5), np.zeros(5)
    generator.normal(second)
    assert generator.state == (7, 6)  # two elements a block
    generator.state = saved
    generator.normal(third)
    assert np.array_equal(second, third)
    other = np.zeros(10, np.float32)
    DeviceGenerator(7).uniform(other)
    assert np.array_equal(first, other)
    assert not np.array_equal(first, filled("uniform", "float32", 10, seed=8))
    assert repr(DeviceGenerator(-1)) == f"DeviceGenerator(seed={2**64 - 1}, offset=0)"


@pytest.mark.feature("F041")
def test_tensors_are_filled_in_place() -> None:
    x = lm.zeros((3, 4), dtype="bfloat16")
    DeviceGenerator(3).normal(x)
    assert len(set(x.numpy().astype(float).ravel())) > 8
    pages = np.zeros((0, 3), np.float32)
    generator = DeviceGenerator()
    generator.uniform(pages)
    assert generator.state == (0, 0)


@pytest.mark.feature("F041")
@pytest.mark.parametrize(
    ("call", "error", "reason"),
    [
        (lambda g: g.uniform(Device("cpu").allocate(4)), TypeError, "a Buffer has no dtype"),
        (lambda g: g.uniform(np.zeros(2, np.int32)), TypeError, "dtype must be one of float64"),
        (lambda g: g.integers(np.zeros(2, np.float32), 0, 2), TypeError, "dtype must be one of int8"),
        (lambda g: g.uniform(np.zeros(2), dtype="float32"), TypeError, "but the array is of float64"),
        (lambda g: g.uniform([0.0]), TypeError, "must be a Buffer or an array, got list"),
        (lambda g: g.uniform(np.zeros(2), 2, 1), ValueError, "finite low <= high, got 2 and 1"),
        (lambda g: g.uniform(np.zeros(2), -np.inf, 1), ValueError, "finite low <= high"),
        (lambda g: g.uniform(np.zeros(2), 0, np.nan), ValueError, "finite low <= high"),
        (lambda g: g.normal(np.zeros(2), 0, -1), ValueError, "std >= 0"),
        (lambda g: g.normal(np.zeros(2), 0, np.inf), ValueError, "std >= 0"),
        (lambda g: g.normal(np.zeros(2), np.nan, 1), ValueError, "finite mean"),
        (lambda g: g.integers(np.zeros(2, np.uint64), 0, 2**64), ValueError, r"less than 2\^64 apart"),
        (lambda g: g.normal(np.zeros((4, 4)).T[:2]), ValueError, "C-contiguous"),
        (lambda g: g.integers(np.zeros(2, np.int8), 0, 129), ValueError, "int8's -128 to 127"),
        (
            lambda g: g.integers(np.zeros(2, np.int8), -129, 0),
            ValueError,
            r"\[-129, 0\) is not within int8's",
        ),
        (lambda g: g.uniform(np.broadcast_to(np.zeros(1), (1,))), BufferError, "read-only"),
        (lambda g: g.integers(np.zeros(2, np.int8), 3, 3), ValueError, "low < high"),
        (lambda g: g.uniform(Device("cpu").allocate(6), dtype="float32"), ValueError, "6 bytes"),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], reason: str) -> None:
    generator = DeviceGenerator()
    with pytest.raises(error, match=reason):
        call(generator)
    assert generator.state == (0, 0)


def test_the_whole_range_of_a_type_may_be_drawn() -> None:
    found = np.zeros(4000, np.int8)
    DeviceGenerator(1).integers(found, -128, 128)
    assert (found.min(), found.max()) == (-128, 127)
    DeviceGenerator(1).integers(found, 5, 6)
    assert set(found) == {5}


@pytest.mark.feature("F041")
@pytest.mark.parametrize(
    ("kind", "element"), [("UNIFORM", "__nv_fp8_e4m3"), ("NORMAL", "double"), ("INTEGERS", "short")]
)
def test_the_kernel_compiles(kind: str, element: str) -> None:
    pytest.importorskip("cuda.core")
    wide = kind == "INTEGERS" or element == "double"
    defines = {
        "ELEMENT": element,
        "ARGUMENT": "u64" if kind == "INTEGERS" else "double",
        "WIDE": "double" if element == "double" else "float",
        "PER": 2 if wide else 4,
        kind: True,
    }
    assert compile_cubin(_SOURCE, defines=defines, name="random").startswith(b"\x7fELF")


def unit(pairs: Any) -> Any:
    """Two words -> [0, 1) of 53 bits, in whole numbers until the end."""
    return np.array([((int(a) >> 5 << 26) + (int(b) >> 6)) / 2**53 for a, b in pairs])


@pytest.mark.feature("F041")
def test_uniform_numbers_are_the_upper_bits_of_the_words() -> None:
    """53 bits of two words for a float64, 24 of one for all other types, which are rounded from float32."""
    words = lm._philox.words(9, 0, 22)
    np.testing.assert_array_equal(
        filled("uniform", "float64", 11, -1, 3, seed=9), -1 + 4 * unit(words.reshape(-1, 2))
    )
    short = np.float32(-1) + np.float32(4) * np.array([(int(w) >> 8) / 2**24 for w in words[:11]], np.float32)
    for dtype in FLOATS:
        if dtype != "float64":
            rounded = short.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float64)
            np.testing.assert_array_equal(filled("uniform", dtype, 11, -1, 3, seed=9), rounded, err_msg=dtype)


@pytest.mark.feature("F041")
@pytest.mark.parametrize("dtype", FLOATS)
def test_normal_numbers_are_box_and_mullers(dtype: str) -> None:
    """Pairs: the radius from one uniform number in (0, 1], the angle from the next."""
    words = lm._philox.words(9, 0, 24)
    if dtype == "float64":
        u, v = unit(words.reshape(-1, 2)).reshape(-1, 2).T
        u = u + 2.0**-53
    else:
        u, v = words[:12].astype(np.float64).reshape(-1, 2).T / 2**32
        u = u + 2.0**-32
    pairs = np.sqrt(-2 * np.log(u)) * np.exp(2j * np.pi * v)
    wanted = (0.25 + 0.5 * pairs.view(np.float64))[:11]
    if dtype != "float64":
        wanted = wanted.astype(np.float32).astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float64)
    found = filled("normal", dtype, 11, 0.25, 0.5, seed=9)
    np.testing.assert_allclose(found, wanted, rtol=1e-14 if dtype == "float64" else 1e-6)


@pytest.mark.feature("F041")
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(kind, dtype) for kind in ("uniform", "normal") for dtype in FLOATS]
    + [("integers", d) for d in _INTEGERS],
)
def test_two_draws_are_the_halves_of_one(kind: str, dtype: str) -> None:
    """No number is drawn twice, and none is left out, where whole blocks are drawn."""
    limits = (0, 100) if kind == "integers" else ()
    buffer, generator = (
        Device("cpu").allocate(8 * np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize),
        DeviceGenerator(1),
    )
    halves = []
    for _ in range(2):
        getattr(generator, kind)(buffer, *limits, dtype=dtype)
        halves.append(buffer.array((8,), getattr(ml_dtypes, dtype, dtype)).copy())
    np.testing.assert_array_equal(np.concatenate(halves).astype(np.float64), filled(kind, dtype, 16, *limits))


@pytest.mark.feature("F041")
@pytest.mark.parametrize("dtype", FLOATS)
def test_no_width_gives_one_number(dtype: str) -> None:
    assert set(filled("uniform", dtype, 9, 0.5, 0.5)) == {0.5}
    assert set(filled("normal", dtype, 9, -0.25, 0)) == {-0.25}


@pytest.mark.feature("F041")
@pytest.mark.parametrize("start", [2**32 - 1, 2**64 - 1])
def test_blocks_are_counted_in_64_bits(start: int) -> None:
    generator, x = DeviceGenerator(5), np.zeros(12, np.float32)
    generator.state = 5, start
    generator.uniform(x)
    assert generator.state == (5, (start + 3) % 2**64)
    words = lm._philox.words(5, start, 4).tolist() + lm._philox.words(5, (start + 1) % 2**64, 8).tolist()
    assert x.tolist() == [(w >> 8) / 2**24 for w in words]
