"""Convolutions straight from their definition: own kernels for any type, window and alignment."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, places_of, sides
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import Launch, Program, c_type, constants, looping
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad

_AXES = ("D", "H", "W")


def direct(direction: Direction, o: Operands) -> Launch:
    """The own kernel of one direction."""
    win, rank = o.window, o.window.rank
    lead = (1,) * (3 - rank)
    numbers: dict[str, int | str | float] = {
        "N": o.x.shape[0],
        "CHANNELS": o.x.shape[1],
        "FILTERS": o.w.shape[0],
        "GROUPS": win.groups,
        "FLIP": int(win.flip),
    }
    groups: dict[str, Sequence[int]] = {
        "": lead + o.x.shape[2:],
        "O": lead + o.y.shape[2:],
        "K": lead + o.w.shape[2:],
        "S": lead + win.stride,
        "P": (0,) * (3 - rank) + tuple(lo for lo, _ in win.padding),
        "J": lead + win.dilation,
    }
    for prefix, values in groups.items():
        numbers |= {f"{prefix}{axis}": value for axis, value in zip(_AXES, values, strict=True)}
    for prefix, spec, names in (("X", o.x, "NC"), ("W", o.w, "KC"), ("Y", o.y, "NK")):
        strides = spec.physical.strides
        own = (*strides[:2], *((0,) * (3 - rank)), *strides[2:])
        numbers |= {f"{prefix}_{axis}": s for axis, s in zip((*names, *_AXES), own, strict=True)}
    reach = max(spec.nbytes // spec.dtype.itemsize for spec in (o.x, o.w, o.y))
    kind = index_type(reach)
    text = f"typedef {kind} Index;\ntypedef {c_type(o.x.dtype)} T;\n{constants(**numbers)}"
    count = prod(sides(direction, o)[0].shape)
    threads = count * 256 if direction is ConvFilterGrad else count
    x, w, y = places_of(direction)
    arguments = {Conv: (x, w, y), ConvDataGrad: (y, w, x), ConvFilterGrad: (x, y, w)}[direction]
    return looping(Program(direction.name, "conv/direct.cu", text), threads, arguments, each=4)
