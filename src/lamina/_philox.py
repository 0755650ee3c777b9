"""Philox4x32-10 in NumPy: the generator of random words shared by every device and both pillars.

J. Salmon, M. Moraes, R. Dror, D. Shaw: "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)  # multipliers
_W0, _W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)  # key schedule: golden ratio, sqrt(3) - 1
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox4x32(counter: Array, key: tuple[int, int]) -> Array:
    """Ten rounds: counter uint32 [..., 4], key two 32-bit ints -> uint32 [..., 4] random words."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = np.uint32(key[0]), np.uint32(key[1])
    with np.errstate(over="ignore"):
        for _ in range(10):
            p0, p1 = c0 * _M0, c2 * _M1
            c0, c1, c2, c3 = (p1 >> _HALF) ^ c1 ^ k0, p1 & _LOW, (p0 >> _HALF) ^ c3 ^ k1, p0 & _LOW
            k0, k1 = k0 + _W0, k1 + _W1
    return np.stack([c0, c1, c2, c3], -1).astype(np.uint32)


#: Blocks drawn at a time, so that the ten rounds stay in the processor's cache.
_CHUNK = 1 << 13


def words(seed: int, counter: int, count: int) -> Array:
    """`count` random 32-bit words from the blocks counter, counter + 1, …: word i is drawn by element i of an op.

    key = (seed mod 2^32, seed / 2^32), counter words = (low, high of counter + i // 4, 0, 0), word i % 4.
    Seed and counter are taken modulo 2^64.
    """
    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    found = np.empty((-(-count // 4), 4), np.uint32)
    for start in range(0, len(found), _CHUNK):
        part = found[start : start + _CHUNK]
        blocks = np.arange(len(part), dtype=np.uint64) + np.uint64((counter + start) % 2**64)
        parts = np.zeros((len(part), 4), np.uint32)
        parts[:, 0], parts[:, 1] = blocks & _LOW, blocks >> _HALF
        part[...] = philox4x32(parts, key)
    return found.reshape(-1)[:count]
