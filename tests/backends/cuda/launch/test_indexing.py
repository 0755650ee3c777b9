"""Index arithmetic of own kernels: divisions by multiplication."""

import struct
from collections.abc import Sequence

import numpy as np
import pytest

from lamina.backends.cuda.launch.indexing import (
    KernelSizes,
    Space,
    collapse,
    divisor,
    index_type,
    memory_order,
    table_offset_code,
)

LARGEST = 2**31 - 1


def test_a_division_is_a_multiplication_and_a_shift() -> None:
    rng = np.random.default_rng(0)
    sizes = {*range(2, 70), *(2**k + d for k in range(3, 31) for d in (-1, 0, 1)), LARGEST}
    for size in (*sizes, *rng.integers(2, LARGEST, 300).tolist()):
        factor, shift = divisor(size)
        assert 0 < factor < 2**32
        assert 0 <= shift < 32
        whole = [*rng.integers(0, LARGEST // size + 1, 8).tolist(), 1, LARGEST // size]
        numbers = {n for w in whole for n in (w * size - 1, w * size, w * size + 1) if 0 <= n <= LARGEST}
        for n in (*numbers, 0, LARGEST):
            assert (n * factor >> 32) >> shift == n // size, (n, size)


@pytest.mark.parametrize("size", [1, 0, -3, 2**31])
def test_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"a size of 2 to 2\\*\\*31 - 1 is divided by, got {size}"):
        divisor(size)


def test_sizes_are_numbers_and_the_text_is_that_of_a_kind() -> None:
    def code(sizes: tuple[int, ...], *rows: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        return table_offset_code(Space(sizes, rows), ["a", "b"], "t")

    text, numbers = code((7, 24), (24, 1), (32, 1))
    assert "24" not in text
    assert "32" not in text.replace(">> 32", "").replace("u32", "")
    assert numbers == (*divisor(24), 24, 24, 32)
    assert code((5, 3000), (3000, 1), (4096, 1))[0] == text
    assert code((5, 3000), (3000, 1), (-4096, 1)) == (text, (*divisor(3000), 3000, 3000, 2**32 - 4096))
    same, *_ = code((7, 24), (24, 1), (24, 1))
    assert same != text
    assert "const Index b = a;" in same
    assert code((7, 24), (24, 1), (0, 1))[0] not in (text, same)


def test_numbers_of_a_kernel_are_in_one_parameter() -> None:
    def made(size: int, known: bool = False) -> KernelSizes:
        sizes = KernelSizes(known)
        sizes.add(COUNT=size, STEP=3)
        sizes.add_real(PER=1 / size)
        sizes.add_quotient("rows", size)
        sizes.add_offset("at", Space((7, size), ((2 * size, 1),)))
        return sizes

    (per,) = struct.unpack("<q", struct.pack("<d", 1 / 24))
    assert made(24).values == (24, 3, per, *divisor(24), *divisor(24), 24, 48)
    assert made(24).text == made(3000).text
    assert "struct Sizes { i64 v[9]; };" in made(24).text
    for line in ("COUNT ((Index)24)", "PER 0.041666666666666664", "rows(n) ((n) / (Index)24)", "% 24;"):
        assert line in made(24, known=True).text
    assert made(24, known=True).values == (0,)
    assert KernelSizes().values == (0,)


def test_a_quotient_by_one_is_the_number() -> None:
    sizes = KernelSizes()
    sizes.add_quotient("same", 1)
    factor, shift = sizes.values
    assert [(n * factor >> 32) >> shift for n in (0, 1, 7, LARGEST)] == [0, 1, 7, LARGEST]


def test_indices_have_64_bits_where_a_step_beyond_the_last_needs_them() -> None:
    assert [index_type(n) for n in (0, 2**31 - 2**26 - 1, 2**31 - 2**26, 2**40)] == [
        "i32",
        "i32",
        "i64",
        "i64",
    ]


def test_joined_axes_are_walked_in_the_same_places() -> None:
    """For each operand, whatever its strides; no two axes that remain could be joined."""
    rng = np.random.default_rng(0)
    joined = 0
    for _ in range(300):
        rank = int(rng.integers(0, 5))
        sizes = tuple(int(n) for n in rng.choice([1, 2, 3, 4], rank))
        packed = [int(np.prod(sizes[a + 1 :], dtype=int)) for a in range(rank)]
        rows = [
            [0 if rng.random() < 0.2 else s * int(rng.choice([1, 1, 1, 2])) for s in packed] for _ in range(2)
        ]
        order = tuple(range(rank)) if rng.random() < 0.5 else tuple(int(a) for a in rng.permutation(rank))
        found = collapse(sizes, rows, order)
        joined += len(found.sizes) < sum(n > 1 for n in sizes)
        assert all(n > 1 for n in found.sizes) or found.sizes == (1,)
        for row, new in zip(rows, found.strides, strict=True):
            places = _places([sizes[a] for a in order], [row[a] for a in order])
            assert places == _places(found.sizes, new)
        for k in range(len(found.sizes) - 1):
            assert any(new[k] != new[k + 1] * found.sizes[k + 1] for new in found.strides)
    assert joined > 20


def _places(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Where an operand is read, step by step."""
    return [sum(i * s for i, s in zip(at, strides, strict=True)) for at in np.ndindex(*sizes)]


def test_axes_are_ordered_by_their_strides() -> None:
    assert memory_order((2, 3, 4), (12, 4, 1)) == (0, 1, 2)
    assert memory_order((2, 3, 4), (1, -8, 2)) == (1, 2, 0)
    assert memory_order((2, 3), (3, 3)) == (0, 1)
