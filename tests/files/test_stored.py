"""Tensors in storages: views within bounds, shared memory, both byte orders."""

import numpy as np
import pytest

from lamina.files.element_types import BY_TORCH
from lamina.files.source import Source, WeightsError
from lamina.files.stored import Storage, StoredTensor, row_major

BYTES = np.arange(12, dtype=np.int16)
F = BY_TORCH["int16"]


def stored(shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, **more: bool) -> StoredTensor:
    return StoredTensor(Storage(Source("f", BYTES.tobytes()), "x", 0, 24), F, shape, strides, offset, **more)


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "inside"),
    [((12,), (1,), 0, True), ((13,), (1,), 0, False), ((3, 4), (1, 3), 0, True), ((2,), (11,), 0, True),
     ((2,), (11,), 1, False), ((0,), (1,), 12, True), ((0,), (1,), 13, False), ((), (), 11, True),
     ((9,), (0,), 3, True)],
)  # fmt: skip
def test_extents(shape: tuple[int, ...], strides: tuple[int, ...], offset: int, inside: bool) -> None:
    found = stored(shape, strides, offset)
    assert found.inside() == inside
    if inside:
        want = np.lib.stride_tricks.as_strided(BYTES[offset:], shape, [2 * s for s in strides])
        np.testing.assert_array_equal(found.read(), want)


def test_order_sharing_and_rows() -> None:
    big = stored((12,), (1,), big_endian=True)
    np.testing.assert_array_equal(big.read(), BYTES.byteswap())
    known: dict[Storage, np.ndarray] = {}
    one, two = stored((12,), (1,)), stored((3, 4), (4, 1))
    assert one.storage == two.storage
    assert np.shares_memory(one.read(known), two.read(known))
    assert two.contiguous()
    assert not stored((3, 4), (1, 3)).contiguous()
    assert row_major((2, 0, 3)) == (3, 3, 1)


def test_changes_are_found() -> None:
    for digest in ({"digest": "0" * 64}, {"crc": 5}):
        with pytest.raises(WeightsError, match="f: the content of x was changed"):
            Storage(Source("f", BYTES.tobytes()), "x", 0, 24, **digest).read()
