"""Sorting of rows: a stable radix sort by bytes; insertion where only few elements are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import at_input, at_output
from lamina.backends.cpu.loops.code import TYPES, Code, Elements, Scalar, where
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.ops.primitives.sort import Sort
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, int8, int16, int32, int64

#: The most elements of a row that a thread sorts in thread-local memory.
_LONGEST = 1 << 14
#: The most elements that insertion keeps in order while it scans the row.
_FEW = 64
_BUCKETS = 256
_WHOLE = {1: int8, 2: int16, 4: int32, 8: int64}


@loops(Sort, source="loops")
def sort(op: Sort, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Row by row."""
    x = specs[0].open.fixed
    values, order = (s.fixed for s in op.infer(x))
    worthwhile(op, [x], [values, order])
    rows, count, wanted = prod(x.shape[:-1]), x.shape[-1], op.count(x)
    if not 1 <= count <= _LONGEST:
        raise NoKernel(f"cpu: {op} of rows of {count} is left to NumPy")
    few = wanted <= _FEW and 4 * wanted <= count
    text = partial(_insertion if few else _radix, x.dtype, op.descending)
    kernel = LoopKernel(text, [at_input(0), at_output(0), at_output(1), count, wanted], rows, 8 * x.numel)
    return Plan((x,), (values, order), kernel, label=f"loops sort {'insertion' if few else 'radix'}")


def _key(code: Code, x: Scalar, descending: bool) -> Scalar:
    """A signed integer key in the order of the elements: equal zeros, NaN last, all inverted for descending order."""
    if x.dtype.kind == "f":
        whole = np.dtype(f"i{x.dtype.itemsize}")
        bits = code.bits(x + 0.0, whole)  # -0.0 becomes 0.0
        sign = code.made(whole, f"ashr {TYPES[whole]} {bits.text}, {8 * whole.itemsize - 1}")
        key = bits ^ (sign & np.iinfo(whole).max)
        key = where(x != x, np.iinfo(whole).max, key)
    elif x.dtype.kind == "u":
        key = x.astype(np.int8) ^ -128
    else:
        key = x
    return key ^ -1 if descending else key


@lru_cache(maxsize=64)
def _insertion(dtype: DType, descending: bool) -> str:
    """The best elements so far are kept in order; an element that comes before the last of them is inserted."""
    code = Code()
    x, values, order = code.array(dtype), code.array(dtype), code.array(int64)
    count, wanted = code.sizes(2)
    first, last = code.share()
    kind = _WHOLE[dtype.compute.itemsize]
    keys, at = code.scratch(kind, wanted), code.scratch(int64, wanted)

    def insert(key: Scalar, number: Scalar, held: Scalar) -> None:
        """Insert behind those of the first `held` that come before it or are equal; the last one of `held + 1` is
        dropped."""
        place = code.variable(0)
        with code.loop(0, held) as j:
            place.add((keys[j] <= key).astype(np.int64))
        with code.loop(0, held - place.get()) as j:
            to = held - j
            keys[to] = keys[to - 1]
            at[to] = at[to - 1]
        keys[place.get()] = key
        at[place.get()] = number

    with code.loop(first, last) as row:
        base = row * count
        with code.loop(0, wanted) as i:
            insert(_key(code, x[base + i], descending), i, i)
        worst = code.variable(keys[np.maximum(wanted - 1, 0)], kind.numpy)
        with code.loop(wanted, count) as i:
            key = _key(code, x[base + i], descending)
            with code.when(key < worst.get()):
                insert(key, i, wanted - 1)
                worst.set(keys[wanted - 1])
        with code.loop(0, wanted) as i:
            number = at[i]
            order[row * wanted + i] = number
            values[row * wanted + i] = x[base + number]
    return code.text()


@lru_cache(maxsize=64)
def _radix(dtype: DType, descending: bool) -> str:
    """Byte by byte from the lowest; each pass keeps the order within a bucket."""
    code = Code()
    x, values, order = code.array(dtype), code.array(dtype), code.array(int64)
    count, wanted = code.sizes(2)
    first, last = code.share()
    kind = _WHOLE[dtype.compute.itemsize]
    passes = kind.itemsize
    keys = [code.scratch(kind, count) for _ in range(2)]
    at = [code.scratch(int32, count) for _ in range(2)]
    total = code.scratch(int32, code.value(_BUCKETS * passes, np.dtype(np.int64)))

    def bucket(key: Scalar, number: int) -> Scalar:
        byte = code.shifted(key, 8 * number) if number else key
        return (byte.astype(np.int64) & (_BUCKETS - 1)) + _BUCKETS * number

    with code.loop(first, last) as row:
        base = row * count
        with code.loop(0, _BUCKETS * passes, independent=True) as i:
            total[i] = 0
        with code.loop(0, count) as i:
            key = _key(code, x[base + i], descending) ^ np.iinfo(kind.numpy).min
            keys[0][i] = key
            at[0][i] = i.astype(np.int32)
            for number in range(passes):
                place = bucket(key, number)
                total[place] = total[place] + 1
        for number in range(passes):
            _starts(code, total, number)
            source, target = number % 2, 1 - number % 2
            with code.loop(0, count) as i:
                key = keys[source][i]
                place = bucket(key, number)
                to = total[place]
                keys[target][to] = key
                at[target][to] = at[source][i]
                total[place] = to + 1
        with code.loop(0, wanted, independent=True) as i:
            number_at = at[passes % 2][i].astype(np.int64)
            order[row * wanted + i] = number_at
            values[row * wanted + i] = x[base + number_at]
    return code.text()


def _starts(code: Code, total: Elements, number: int) -> None:
    """Turn counts into the start offsets of buckets."""
    sum_ = code.variable(0, np.int32)
    with code.loop(_BUCKETS * number, _BUCKETS * (number + 1)) as b:
        here = total[b]
        total[b] = sum_.get()
        sum_.set(sum_.get() + here)
