"""Philox4x32-10 for many counters at once, in preallocated buffers (see lamina.ops.primitives.random)."""

from __future__ import annotations

import numpy as np

from lamina.ops.core import Array

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
#: Blocks of four words per batch: the buffers stay in the first cache levels.
_STEP = 4096


class Words:
    """Draws `count` 32-bit words, the same as `lamina.ops.primitives.random.words`, without allocating."""

    def __init__(self, count: int) -> None:
        self.count = count
        blocks = -(-count // 4)
        self._out = np.empty((blocks, 4), np.uint32)
        self._index = np.arange(min(blocks, _STEP), dtype=np.uint64)
        self._lanes = [np.empty(len(self._index), np.uint64) for _ in range(6)]

    def __call__(self, seed: int, counter: int) -> Array:
        """The words from this state on; the next call overwrites the array."""
        seed %= 2**64
        for start in range(0, len(self._out), _STEP):
            self._draw(self._out[start : start + _STEP], (seed, (counter + start) % 2**64))
        return self._out.reshape(-1)[: self.count]

    def _draw(self, out: Array, state: tuple[int, int]) -> None:
        c0, c1, c2, c3, p0, p1 = (lane[: len(out)] for lane in self._lanes)
        k0, k1 = state[0] & 0xFFFFFFFF, state[0] >> 32
        np.add(self._index[: len(out)], np.uint64(state[1]), out=p0)  # wraps at 2^64
        np.bitwise_and(p0, _LOW, out=c0)
        np.right_shift(p0, _HALF, out=c1)
        c2.fill(0)
        c3.fill(0)
        for _ in range(10):
            np.multiply(c0, _M0, out=p0)
            np.multiply(c2, _M1, out=p1)
            # (hi(p1) ^ c1 ^ k0, lo(p1), hi(p0) ^ c3 ^ k1, lo(p0))
            np.right_shift(p1, _HALF, out=c0)
            np.bitwise_xor(c0, c1, out=c0)
            np.bitwise_xor(c0, np.uint64(k0), out=c0)
            np.bitwise_and(p1, _LOW, out=c1)
            np.right_shift(p0, _HALF, out=c2)
            np.bitwise_xor(c2, c3, out=c2)
            np.bitwise_xor(c2, np.uint64(k1), out=c2)
            np.bitwise_and(p0, _LOW, out=c3)
            k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
        for lane, values in enumerate((c0, c1, c2, c3)):
            out[:, lane] = values
