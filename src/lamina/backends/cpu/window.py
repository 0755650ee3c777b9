"""Windows in oneDNN's terms, and candidate layouts of activations."""

from __future__ import annotations

from functools import lru_cache

from lamina import onednn
from lamina.c import dnnl
from lamina.ops.primitives.window import Window
from lamina.spec import Layout, Spec, bfloat16

Isa = dnnl.dnnl_cpu_isa_t


def sliding(window: Window) -> onednn.SlidingWindow:
    """The window; oneDNN calls a dilation of 1 0."""
    lo, hi = zip(*window.padding, strict=True)
    return onednn.SlidingWindow(window.stride, tuple(d - 1 for d in window.dilation), lo, hi)


@lru_cache(maxsize=1)
def prefers_channels_last() -> bool:
    """Whether the processor has AVX-512: there the channels-last kernels are at least as fast as the blocked
    ones (measured on all of AlexNet's layers), and need no padding.
    """
    isa = int(dnnl.dnnl_get_effective_cpu_isa())
    return isa & Isa.dnnl_cpu_isa_avx512_core == Isa.dnnl_cpu_isa_avx512_core


def activation_tags(spec: Spec) -> tuple[str, ...]:
    """Layouts to try for an activation [N, C, *spatial], best first."""
    last = channels_last_tag(spec.ndim)
    blocked = "aB" + "".join(chr(ord("a") + i) for i in range(2, spec.ndim)) + "16b"
    if prefers_channels_last() or spec.dtype == bfloat16:
        return (last, "any", blocked)
    return ("any", last)


def channels_last_tag(rank: int) -> str:
    """ "acdb" for four axes."""
    return "a" + "".join(chr(ord("a") + i) for i in range(2, rank)) + "b"


def ungrouped(
    strides: tuple[int, ...], blocks: tuple[tuple[int, int], ...], dims: tuple[int, ...]
) -> Layout | None:
    """The layout of a filter [K, C / g, *k] that is stored as [g, K / g, C / g, *k] with these strides and blocks.

    None where no strides and blocks over the K axis are equivalent.
    """
    groups, rows = dims[0], dims[1]
    along = {axis for axis, _ in blocks}
    size = 1
    for axis, b in blocks:
        size *= b if axis == 1 else 1
    if rows == 1 and 1 not in along:  # depthwise: the K axis is the axis of groups
        step, moved = strides[0], tuple((max(axis - 1, 0), b) for axis, b in blocks)
    elif 0 in along or rows % size or (groups > 1 and strides[0] != strides[1] * (rows // size)):
        return None
    else:
        step, moved = strides[1], tuple((axis - 1, b) for axis, b in blocks)
    return Layout((step, *strides[2:]), moved)
