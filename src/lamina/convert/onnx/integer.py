"""Products of 8-bit integers with known weights, by kernels for 8-bit integers.

A sum of (x - zero) w over integers is the sum of x' w less zero' times the sum of w, where x' and zero' are x and
its zero point in int8: less 128 if they are uint8. w are the weights minus their own zero points.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import Array, OnnxNode, as_tensor, numbers
from lamina.convert.onnx.window import window
from lamina.graph import constant
from lamina.ops.core import call, recorder
from lamina.ops.primitives import QuantizedConv, QuantizedMatmul
from lamina.ops.primitives.window import Window
from lamina.spec import float32, int8, int32, uint8

#: The offset between uint8 and int8.
SHIFT = 128
#: Sums up to this are exact in float32.
_EXACT = 1 << 24


@dataclass(frozen=True)
class Dequantized:
    """The operands of a DequantizeLinear: integers, their scale and zero point (or None), their axis."""

    values: Any
    scale: Any
    zero: Any
    axis: int

    @classmethod
    def of(cls, node: OnnxNode, index: int) -> Dequantized | None:
        """The quantized integers that an input was dequantized from, without blocks; None if it was
        made otherwise."""
        name = node.input_names[index]
        made = node.makers.get(name)
        if made is None or made.operator != "DequantizeLinear" or "block_size" in made.attributes:
            return None
        values, scale, zero = (*(node.values.get(n) for n in made.inputs), None)[:3]
        if values is None or scale is None or not eight_bits(values) or scale.dtype != float32:
            return None
        axis = made.attributes.get("axis", 1)
        return cls(values, scale, zero, axis) if node.values[name].dtype == float32 else None

    def varies_along(self, axis: int) -> bool:
        """Whether scale and zero point are single numbers, or one for each index of this axis."""
        return one_number(self.scale, self.zero) or self.axis % self.values.ndim == axis


def signed(x: Any, zero: Any) -> tuple[Any, Any]:
    """(x in int8, the corresponding zero point in float32 or 0) of int8 or uint8."""
    if x.dtype == int8:
        return x, 0.0 if zero is None else ops.cast(zero, float32)
    moved = ops.cast(ops.sub(ops.cast(x, int32), SHIFT), int8)
    return moved, float(-SHIFT) if zero is None else ops.sub(ops.cast(zero, float32), float(SHIFT))


def weights(w: Any, zero: Any, transposed: bool = False) -> Array | None:
    """Weights minus their zero points (which broadcast), in int8; None if unknown or out of range.

    transposed: w is a matrix that is transposed first.
    """
    centred = centred_numbers(w, zero, transposed)
    fits = centred is not None and centred.min() >= -SHIFT and centred.max() < SHIFT
    return centred.astype(np.int8) if centred is not None and fits else None


def centred_numbers(w: Any, zero: Any, transposed: bool = False) -> Array | None:
    """8-bit weights minus their zero points, int32; None if unknown, absent, or of another type."""
    values, middle = numbers(w), np.int32(0) if zero is None else numbers(zero)
    if values is None or middle is None or values.dtype not in (np.int8, np.uint8) or not values.size:
        return None
    return (values.T if transposed else values).astype(np.int32) - middle.astype(np.int32)


def held(array: Array) -> Any:
    """A constant of the recorded graph, else a tensor."""
    found = as_tensor(array)
    return found if recorder() is None else constant(found)


def exact(w: Array) -> bool:
    """Whether sums of products of 9-bit integers with the weights [outputs, ...] are exact in float32."""
    return bool(np.abs(w.reshape(len(w), -1).astype(np.int64)).sum(1).max() * 2 * SHIFT <= _EXACT)


def exact_parts(w: Array) -> list[tuple[int, int]]:
    """Ranges of the channels of filters [K, C, *k] whose sums are exact in float32; [] if one channel is
    too large."""
    most = np.abs(w.reshape(*w.shape[:2], -1).astype(np.int64)).sum(2).max(0) * 2 * SHIFT  # [C]
    if most.max() > _EXACT:
        return []
    edges, total = [0], 0
    for channel, reach in enumerate(most):
        if total + reach > _EXACT:
            edges.append(channel)
            total = 0
        total += int(reach)
    return list(pairwise([*edges, len(most)]))


def convolved_integers(node: OnnxNode, x: Any, zero: Any, w: Array, scale: Any) -> Any:
    """scale [K] times the convolution of (x - zero) with weights [K, C/g, *k] in int8: float32.

    The padding consists of zero points: its contribution is the convolution of a single, constant image.
    """
    found = window(node, w.shape[2:], x.shape[2:])
    op = QuantizedConv(Window(found.stride, tuple(found.pairs), found.dilation, node.get("group", 1)))
    x, zero = signed(x, zero)
    filters = held(w)
    total = call(op, x, filters, scale)
    if isinstance(zero, float) and not zero:
        return total
    known = numbers(zero) if not isinstance(zero, float) else np.asarray(zero)
    if known is not None and not known.any():
        return total
    if any(found.lo) or any(found.hi):
        every = call(op, held(np.ones((1, *x.shape[1:]), np.int8)), filters, scale)
    else:
        sums = held(w.reshape(len(w), -1).sum(1, dtype=np.float32))
        every = ops.mul(sums, scale).reshape((-1, *(1,) * (x.ndim - 2)))
    return ops.sub(total, ops.mul(every, _number(zero)))


def multiplied_integers(a: Any, zero: Any, b: Array, scale: Any) -> Any:
    """scale [N] times (a - zero) b of a [..., K] and int8 b [K, N], float32; zero: one number, or [..., 1]."""
    a, zero = signed(a, zero)
    k, n = b.shape
    total = call(QuantizedMatmul(), a.reshape((-1, k)), held(np.ascontiguousarray(b.T)), scale)
    total = total.reshape((*a.shape[:-1], n))
    if isinstance(zero, float) and not zero:
        return total
    sums = ops.mul(held(b.sum(0, dtype=np.float32)), scale)
    return ops.sub(total, ops.mul(sums, zero))


def summed_integers(a: Any, zero: Any, b: Array) -> Any:
    """(a - zero) b of a [..., K] and weights [K, N] in int8: int32, in parts that are each exact."""
    ones = held(np.ones(b.shape[1], np.float32))
    rows = _EXACT // (2 * SHIFT * SHIFT)
    parts = [
        ops.cast(multiplied_integers(a[..., i : i + rows], zero, b[i : i + rows], ones), int32)
        for i in range(0, len(b), rows)
    ]
    found = parts[0]
    for part in parts[1:]:
        found = ops.add(found, part)
    return found


def per_output(scale: Any, n: int) -> Any:
    """A scale as one for each of n outputs; None if it is neither that nor a single number."""
    if scale.shape not in ((), (1,), (n,)):
        return None
    return ops.cast(ops.expand(scale.reshape((-1,)), (n,)), float32)


def quantized_to(x: Any, scale: Any, zero: Any, dtype: Any) -> Any:
    """round(x / scale) + zero in int8 or uint8, by the op that kernels fuse as an epilogue; None for other types.

    The zero point is added before rounding, which is the same if it is even: halves round to even numbers.
    """
    middle = np.zeros(1, np.int32) if zero is None else numbers(zero)
    if dtype not in (int8, uint8) or x.dtype != float32 or scale.dtype != float32 or middle is None:
        return None
    if scale.shape not in ((), (1,)) or middle.size != 1 or int(middle.reshape(-1)[0]) % 2:
        return None
    scale = scale.reshape(())
    moved = int(middle.reshape(-1)[0]) - (SHIFT if dtype == uint8 else 0)
    found = ops.quantize(x if not moved else ops.add(x, ops.mul(scale, float(moved))), scale)
    return found if dtype == int8 else ops.cast(ops.add(ops.cast(found, int32), SHIFT), uint8)


def _number(x: Any) -> Any:
    return x if isinstance(x, float) else x.reshape(())


def one_number(*values: Any) -> bool:
    """Whether each is left out or a single number."""
    return all(v is None or v.shape in ((), (1,)) for v in values)


def eight_bits(*values: Any) -> bool:
    """Whether all are int8 or uint8."""
    return all(v.dtype in (int8, uint8) for v in values)
