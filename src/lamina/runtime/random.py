"""Random numbers written directly into memory, without ops: the same on the CPU and on every GPU.

Philox4x32-10 is a function of (seed, block): a generator holds only a seed and the next block, may be saved and
restored at any time, and its numbers do not depend on the device or on the launch configuration.
"""

from __future__ import annotations

import math
import operator
import threading
from typing import Any

import numpy as np

from lamina._philox import words
from lamina.runtime.arrays import borrow, is_array, is_dense, numpy_dtype, share
from lamina.runtime.kernel import compile_module
from lamina.runtime.memory import Buffer, host_array
from lamina.runtime.stream import Stream, StreamLike, as_stream

Array = np.ndarray[Any, Any]
_FLOATS = {
    "float64": "double",
    "float32": "float",
    "float16": "__half",
    "bfloat16": "__nv_bfloat16",
    "float8_e4m3fn": "__nv_fp8_e4m3",
    "float8_e5m2": "__nv_fp8_e5m2",
}
_INTEGERS = {
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "uint32": "unsigned int",
    "int64": "long long",
    "uint64": "unsigned long long",
}

# One thread makes one block of four words: PER elements.
_SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
typedef unsigned int u32;
typedef unsigned long long u64;
typedef ELEMENT T;
typedef ARGUMENT A;

__device__ __forceinline__ void philox(u64 seed, u64 block, u32 w[4])
{
    u32 a = (u32)block, b = (u32)(block >> 32), c = 0, d = 0, low = (u32)seed, high = (u32)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const u32 p = __umulhi(0xD2511F53u, a), q = 0xD2511F53u * a;
        const u32 r = __umulhi(0xCD9E8D57u, c), s = 0xCD9E8D57u * c;
        a = r ^ b ^ low; b = s; c = p ^ d ^ high; d = q;
        low += 0x9E3779B9u; high += 0xBB67AE85u;
    }
    w[0] = a; w[1] = b; w[2] = c; w[3] = d;
}

// 53 bits of two words, in [0, 1).
__device__ __forceinline__ double fine(u32 high, u32 low)
{
    return ((double)(high >> 5) * 67108864.0 + (double)(low >> 6)) * 0x1p-53;
}

extern "C" __global__ void __launch_bounds__(256) fill(T *out, u64 count, u64 seed, u64 first, A p, A q)
{
    const u64 blocks = (count + PER - 1) / PER, step = (u64)gridDim.x * blockDim.x;
    for (u64 b = (u64)blockIdx.x * blockDim.x + threadIdx.x; b < blocks; b += step) {
        u32 w[4];
        philox(seed, first + b, w);
        T made[PER];
#if defined INTEGERS
        for (int k = 0; k < 2; ++k)
            made[k] = (T)((u64)p + __umul64hi((u64)w[2 * k] << 32 | w[2 * k + 1], (u64)q));
#elif defined UNIFORM
        for (int k = 0; k < PER; ++k) {
#if PER == 2
            made[k] = (T)__dadd_rn(p, __dmul_rn(q, fine(w[2 * k], w[2 * k + 1])));
#else
            made[k] = (T)__fadd_rn((float)p, __fmul_rn((float)q, (float)(w[k] >> 8) * 0x1p-24f));
#endif
        }
#else
        for (int k = 0; k < PER; k += 2) {
#if PER == 2
            const double u = fine(w[0], w[1]) + 0x1p-53, v = fine(w[2], w[3]);
#else
            const double u = ((double)w[k] + 1.0) * 0x1p-32, v = (double)w[k + 1] * 0x1p-32;
#endif
            const double radius = sqrt(-2.0 * log(u));
            double sine, cosine;
            sincospi(2.0 * v, &sine, &cosine);
            made[k] = (T)(WIDE)(p + q * (radius * cosine));
            made[k + 1] = (T)(WIDE)(p + q * (radius * sine));
        }
#endif
        for (int k = 0; k < PER; ++k)
            if (b * PER + k < count) out[b * PER + k] = made[k];
    }
}
"""


class DeviceGenerator:
    """Fills memory with random numbers; (seed, offset) is its whole state.

    Each call takes the next blocks of four 32-bit words, so that one seed gives one sequence regardless of the
    device of each fill. Fills are queued on a stream, or done on return if none is given. Threads may share it.

    Args:
        seed: any integer, taken modulo 2^64.
        offset: the first block, likewise.
    """

    def __init__(self, seed: int = 0, offset: int = 0) -> None:
        self._lock = threading.Lock()
        self.state = (seed, offset)

    @property
    def state(self) -> tuple[int, int]:
        """(seed, offset): restore it, or pass it to a new generator, to draw the same numbers again."""
        return self._seed, self._offset

    @state.setter
    def state(self, state: tuple[int, int]) -> None:
        seed, offset = (operator.index(number) % 2**64 for number in state)
        with self._lock:
            self._seed, self._offset = seed, offset

    def uniform(
        self,
        out: Any,
        low: float = 0.0,
        high: float = 1.0,
        *,
        dtype: str | None = None,
        stream: StreamLike | None = None,
    ) -> None:
        """Fill `out` with floats uniform in [low, high): 24 random bits each, 53 in float64.

        Rounding to a type of fewer bits may give `high` itself.

        Args:
            out: a Buffer, or a C-contiguous array of any library (a Lamina tensor too).
            low: the least value.
            high: the bound.
            dtype: of the elements, by name ("float32", "bfloat16", "float8_e4m3fn", …): needed for a Buffer.
            stream: where to queue it, of this or another library.

        Raises:
            TypeError: no dtype, or not a float; ValueError: bounds that are no interval.
        """
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ValueError(f"uniform: needs finite low <= high, got {low} and {high}")
        self._fill("uniform", _FLOATS, out, dtype, stream, float(low), float(high) - float(low))

    def normal(
        self,
        out: Any,
        mean: float = 0.0,
        std: float = 1.0,
        *,
        dtype: str | None = None,
        stream: StreamLike | None = None,
    ) -> None:
        """Fill `out` with normally distributed floats, by the Box-Muller transform.

        The CPU and a GPU agree up to the last bits of their logarithm and cosine. Arguments as for `uniform`.

        Raises:
            TypeError: as `uniform`. ValueError: a negative or non-finite deviation.
        """
        if not (math.isfinite(mean) and math.isfinite(std) and std >= 0):
            raise ValueError(f"normal: needs a finite mean and std >= 0, got {mean} and {std}")
        self._fill("normal", _FLOATS, out, dtype, stream, float(mean), float(std))

    def integers(
        self, out: Any, low: int, high: int, *, dtype: str | None = None, stream: StreamLike | None = None
    ) -> None:
        """Fill `out` with integers uniform in [low, high); 64 random bits each, so that no value is favored
        by more than (high - low) / 2^64. Arguments as for `uniform`.

        Raises:
            TypeError: no dtype, or no integer type. ValueError: an empty interval, or one beyond the dtype.
        """
        first, bound = operator.index(low), operator.index(high)
        if first >= bound or bound - first >= 2**64:
            raise ValueError(f"integers: needs low < high, less than 2^64 apart; got {low} and {high}")
        self._fill("integers", _INTEGERS, out, dtype, stream, first, bound - first)

    def _fill(
        self,
        kind: str,
        types: dict[str, str],
        out: Any,
        dtype: str | None,
        stream: StreamLike | None,
        first: float,
        second: float,
    ) -> None:
        memory, name = _target(kind, out, dtype, stream)
        if name not in types:
            raise TypeError(f"{kind}: dtype must be one of {', '.join(types)}; got {name}")
        size = numpy_dtype(name).itemsize
        if kind == "integers":
            _check_range(name, int(first), int(first) + int(second))
        if memory.nbytes % size or memory.pointer % size:
            raise ValueError(
                f"{kind}: {memory.nbytes} bytes at {memory.pointer:#x} are no elements of {name}"
            )
        count = memory.nbytes // size
        if count == 0:
            return
        per = 2 if name == "float64" or kind == "integers" else 4
        with self._lock:
            seed, block = self._seed, self._offset
            self._offset = (block + -(-count // per)) % 2**64
        where = as_stream(stream, memory.device)
        if memory.device.kind == "cpu":
            values = _DRAW[kind](seed, block, count, per, first, second)
            host_array(memory.pointer, (count,), numpy_dtype(name), owner=memory)[...] = values
            return
        _launch(kind, types[name], per, memory, where, (count, seed, block), (first, second))
        if stream is None:
            where.synchronize()
        else:
            memory.used_on(where)

    def __repr__(self) -> str:
        return f"DeviceGenerator(seed={self._seed}, offset={self._offset})"


def _target(call: str, out: Any, dtype: str | None, stream: StreamLike | None) -> tuple[Buffer, str]:
    """The memory to fill, and the name of its dtype."""
    if isinstance(out, Buffer):
        if dtype is None:
            raise TypeError(f"{call}: a Buffer has no dtype; give one, e.g. dtype='float32'")
        return out, dtype
    if not is_array(out):
        raise TypeError(f"{call}: out must be a Buffer or an array, got {type(out).__name__}")
    shared = share(out, stream, write=True)
    if dtype is not None and dtype != shared.dtype:
        raise TypeError(f"{call}: dtype is {dtype}, but the array is of {shared.dtype}")
    if not is_dense(shared):
        raise ValueError(
            f"{call}: out must be C-contiguous, got strides {shared.strides} for shape {shared.shape}"
        )
    return borrow(shared), shared.dtype


def _check_range(name: str, low: int, bound: int) -> None:
    limits = np.iinfo(numpy_dtype(name))
    if low < limits.min or bound - 1 > limits.max:
        raise ValueError(f"integers: [{low}, {bound}) is not within {name}'s {limits.min} to {limits.max}")


def _launch(
    kind: str,
    element: str,
    per: int,
    memory: Buffer,
    stream: Stream,
    draw: tuple[int, int, int],
    parameters: tuple[float, float],
) -> None:
    integers = kind == "integers"
    defines = {
        "ELEMENT": element,
        "ARGUMENT": "u64" if integers else "double",
        "WIDE": "double" if element == "double" else "float",
        "PER": per,
        kind.upper(): True,
    }
    kernel = compile_module(_SOURCE, device=memory.device, defines=defines, name="random").kernel("fill")
    numbers = (np.uint64(int(p) % 2**64) if integers else np.float64(p) for p in parameters)
    shape = kernel.suggest(-(-draw[0] // per), limit=256)
    kernel.launch(*shape, memory, *(np.uint64(d) for d in draw), *numbers, stream=stream)


# -------------------------------------------------------------------------------------------- the same in NumPy
def _fine(pairs: Array) -> Array:
    """Words (..., 2) -> float64 in [0, 1) of 53 bits."""
    high, low = (pairs[..., 0] >> np.uint32(5)).astype(np.float64), pairs[..., 1] >> np.uint32(6)
    found: Array = (high * 2.0**26 + low) * 2.0**-53
    return found


def _uniform(seed: int, block: int, count: int, per: int, low: float, width: float) -> Array:
    if per == 2:
        return low + width * _fine(words(seed, block, 2 * count).reshape(-1, 2))
    unit = (words(seed, block, count) >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
    scaled: Array = np.float32(low) + np.float32(width) * unit
    return scaled


def _normal(seed: int, block: int, count: int, per: int, mean: float, std: float) -> Array:
    even = count + count % 2
    if per == 2:
        pairs = _fine(words(seed, block, 2 * even).reshape(-1, 2, 2))  # (pairs, u and v)
        u, v = pairs[:, 0] + 2.0**-53, pairs[:, 1]
    else:
        drawn = words(seed, block, even).reshape(-1, 2).astype(np.float64)
        u, v = (drawn[:, 0] + 1) * 2.0**-32, drawn[:, 1] * 2.0**-32
    radius, angle = np.sqrt(-2 * np.log(u)), 2 * np.pi * v
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).reshape(-1)[:count]
    made: Array = mean + std * both
    return made if per == 2 else made.astype(np.float32)


def _integers(seed: int, block: int, count: int, per: int, low: float, width: float) -> Array:
    """low + the upper 64 of the 128 bits of (64 random bits) * width, as 64-bit words that wrap."""
    drawn = words(seed, block, 2 * count).reshape(-1, 2).astype(np.uint64)
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    above, below = np.uint64(int(width) >> 32), np.uint64(int(width) & 0xFFFFFFFF)
    with np.errstate(over="ignore"):
        lowest = (drawn[:, 1] * below) >> half
        middle = drawn[:, 0] * below + lowest
        other = drawn[:, 1] * above + (middle & mask)
        high = drawn[:, 0] * above + (middle >> half) + (other >> half)
        made: Array = high + np.uint64(int(low) % 2**64)
    return made


_DRAW = {"uniform": _uniform, "normal": _normal, "integers": _integers}
