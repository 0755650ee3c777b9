"""ONNX's sliding window attributes: kernel_shape, strides, dilations, pads or auto_pad."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lamina.convert.onnx.node import OnnxNode


@dataclass(frozen=True)
class OnnxWindow:
    """The window's attributes, one number for each spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    lo: tuple[int, ...]
    hi: tuple[int, ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The padding as Lamina's ops take it."""
        return list(zip(self.lo, self.hi, strict=True))

    @property
    def span(self) -> tuple[int, ...]:
        """The extent of the dilated kernel."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def rounded_up(self, spatial: tuple[int, ...]) -> OnnxWindow:
        """Padded at the end until the last position, which begins inside the data and front padding, fits."""
        hi = []
        for n, lo, end, s, reach in zip(spatial, self.lo, self.hi, self.stride, self.span, strict=True):
            room = n + lo + end - reach
            positions = -(-room // s) + 1
            positions -= (positions - 1) * s >= n + lo
            hi.append(end + max(0, (positions - 1) * s - room))
        return replace(self, hi=tuple(hi))


def window(node: OnnxNode, kernel: tuple[int, ...], spatial: tuple[int, ...]) -> OnnxWindow:
    """The window of a node over spatial sizes. Raises OnnxError for attributes of another rank."""
    rank = len(spatial)
    stride = tuple(node.get("strides", (1,) * rank))
    dilation = tuple(node.get("dilations", (1,) * rank))
    pads = tuple(node.get("pads", (0,) * 2 * rank))
    if (len(kernel), len(stride), len(dilation), len(pads)) != (rank, rank, rank, 2 * rank):
        raise node.error(f"the window's attributes must each name {rank} spatial axes")
    found = OnnxWindow(kernel, stride, dilation, pads[:rank], pads[rank:])
    return automatic(node, found, spatial)


def automatic(node: OnnxNode, found: OnnxWindow, spatial: tuple[int, ...]) -> OnnxWindow:
    """With auto_pad: padding for size / stride positions, the odd element at one side."""
    mode = node.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return found
    if mode == "VALID":
        return replace(found, lo=(0,) * len(spatial), hi=(0,) * len(spatial))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.error(f"auto_pad {mode!r} is none of NOTSET, VALID, SAME_UPPER and SAME_LOWER")
    total = [
        max(0, (-(-n // s) - 1) * s + reach - n)
        for n, s, reach in zip(spatial, found.stride, found.span, strict=True)
    ]
    small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return replace(found, lo=small, hi=large) if mode == "SAME_UPPER" else replace(found, lo=large, hi=small)
