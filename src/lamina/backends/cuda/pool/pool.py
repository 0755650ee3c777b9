"""Pooling at memory bandwidth: several channels per thread where they are contiguous, gradients without atomics.

The gradient is gathered: each position of the input reads the few windows that cover it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.indexing import KernelSizes, dense_layout, index_type, memory_order
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Launch,
    Place,
    Program,
    Table,
    c_type,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.pool import MODES, AvgPool, AvgPoolGrad, MaxPool, MaxPoolGather, MaxPoolGrad
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Shape, Spec, channels_last, int32, uint8

_NAMES = ("D", "H", "W")
#: The most positions for which one thread computes the gradient: their sums are held in registers.
_MOST_IN_BLOCK = 4
Pool = MaxPool | MaxPoolGrad | MaxPoolGather | AvgPool | AvgPoolGrad


@kernels(MaxPool, source="kernel")
def max_pool(op: MaxPool, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The maxima, and with `index` their positions."""
    outs = op.infer(*specs)
    x = _dense_or_channels_last(specs[0])
    results = [_same_order(out, x) for out in outs]
    places = [source(), target(0), target(1) if op.index else target(0)]
    dtype = outs[1].dtype if op.index else uint8
    return _plan(op, "max_pool", [x], results, x, results[0], dtype, places, device)


@kernels(MaxPoolGrad, source="kernel")
def max_pool_grad(op: MaxPoolGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The gradient scattered to the positions of the maxima."""
    (out,) = op.infer(*specs)
    index = _dense_or_channels_last(specs[1] if specs[1].layout is not None else specs[0])
    g = full(specs[0], index.physical)
    index = full(specs[1], index.physical)
    dx = _same_order(out, g)
    places = [source(0), source(1), target()]
    return _plan(op, "max_pool_grad", [g, index], [dx], dx, g, index.dtype, places, device)


@kernels(MaxPoolGather, source="kernel")
def max_pool_gather(op: MaxPoolGather, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """A tensor's elements at the positions of the maxima."""
    (out,) = op.infer(*specs)
    index = _dense_or_channels_last(specs[1] if specs[1].layout is not None else out)
    index = full(specs[1], index.physical)
    y = full(out, index.physical)
    t = _same_order(specs[0], index)
    places = [source(0), source(1), target()]
    return _plan(op, "max_pool_gather", [t, index], [y], t, y, index.dtype, places, device)


@kernels(AvgPool, source="kernel")
def avg_pool(op: AvgPool, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Averages or sums."""
    (out,) = op.infer(*specs)
    x = _dense_or_channels_last(specs[0])
    y = _same_order(out, x)
    return _plan(op, "avg_pool", [x], [y], x, y, int32, [source(), target()], device)


@kernels(AvgPoolGrad, source="kernel")
def avg_pool_grad(op: AvgPoolGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The gradient spread over the windows."""
    (out,) = op.infer(*specs)
    g = _dense_or_channels_last(specs[0])
    dx = _same_order(out, g)
    return _plan(op, "avg_pool_grad", [g], [dx], dx, g, int32, [source(), target()], device)


def _dense_or_channels_last(spec: Spec) -> Spec:
    """The spec in its own layout, if that is dense; else channels last."""
    lies = spec.layout is not None and spec.tag is not None and not spec.physical.is_blocked
    return spec if lies else full(spec, channels_last(spec.shape))


def _same_order(spec: Spec, like: Spec) -> Spec:
    """`spec` with the memory order of axes of `like`."""
    return full(spec, _order(spec.shape, like.physical, like.shape))


def _order(shape: Shape, layout: Layout, of: Shape) -> Layout:
    """A dense layout in the axis order of another one; axes of size 1 there are ambiguous, so channels go first."""
    if layout == channels_last(of) and layout.strides[1] == 1:
        return channels_last(shape)
    return dense_layout(shape, memory_order(of, layout.strides))


def _plan(
    op: Pool,
    name: str,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    wide: Spec,
    narrow: Spec,
    index: DType,
    places: Sequence[Place],
    device: Device,
) -> Plan:
    """`wide` is the spec of the pooled tensor (or its gradient), `narrow` that of the result (or its gradient)."""
    if outputs[0].numel == 0:
        return kernel_plan(device, inputs, outputs, [], label=op.name)

    def steps(aligned: bool) -> tuple[Launch, ...]:
        width = _width(wide, narrow) if aligned else 1
        blocks = stride_blocks(op, wide) if isinstance(op, MaxPoolGrad) else None
        sizes, kind = _sizes(wide, narrow, width)
        if blocks is None:
            function, total = name, outputs[0].numel // width
        else:
            function, total = "max_pool_grad_blocks", wide.shape[0] * wide.shape[1] // width * prod(blocks)
            for axis, size in zip("HW", blocks, strict=True):
                _add(sizes, f"BLOCKS_{axis}", size)
        sizes.add(TOTAL=total)
        text = f"{kind}typedef {c_type(index)} I;\n{sizes.text}{_constants(op, wide, narrow, width)}"
        program = Program(function, "pool/pool.cu", text + constants(**{function.upper(): 1}))
        return (looping(program, total, [*places, Table(sizes.values)], each=4),)

    return kernel_plan(device, inputs, outputs, steps(True), label=op.name, plain=lambda: steps(False))


def stride_blocks(op: MaxPool | MaxPoolGrad, x: Spec) -> tuple[int, int] | None:
    """The number of stride-sized blocks that cover the image; None where the kernel for them does not apply."""
    win = op.window
    inside = x.physical.strides[1] == 1 and x.shape[1] > 1
    if win.rank != 2 or not inside or max(win.dilation) > 1 or not 1 < prod(win.stride) <= _MOST_IN_BLOCK:
        return None
    (top, _), (left, _) = win.padding
    return (
        (x.shape[2] - 1 + top) // win.stride[0] + 1,
        (x.shape[3] - 1 + left) // win.stride[1] + 1,
    )


def _width(wide: Spec, narrow: Spec) -> int:
    """Channels per thread: as many as 16 bytes hold, if channels are contiguous in both tensors."""
    if wide.physical.strides[1] != 1 or narrow.physical.strides[1] != 1:
        return 1
    width = VECTOR // wide.dtype.itemsize
    others = [s for spec in (wide, narrow) for a, s in enumerate(spec.physical.strides) if a != 1]
    while width > 1 and (wide.shape[1] % width or any(s % width for s in others)):
        width //= 2
    return width


def _add(sizes: KernelSizes, name: str, size: int) -> None:
    """A size, and the quotient by it."""
    sizes.add(**{name: size})
    sizes.add_quotient(f"by_{name}", size)


def _sizes(wide: Spec, narrow: Spec, width: int) -> tuple[KernelSizes, str]:
    """The numbers of pool.cu, and its types. Divisions by run-time sizes cost a few more instructions, which accesses
    of 16 bytes hide.
    """
    lead = 5 - wide.ndim
    kind = index_type(max(wide.nbytes, narrow.nbytes) // wide.dtype.itemsize)
    sizes = KernelSizes(known=kind != "i32" or width * wide.dtype.itemsize != VECTOR)
    types = f"typedef {kind} Index;\ntypedef {c_type(wide.dtype)} T;\n"
    _add(sizes, "CHUNKS", wide.shape[1] // width)
    for prefix, letter, spec in (("", "X", wide), ("O", "Y", narrow)):
        for axis in _NAMES[:lead]:
            types += constants(**{prefix + axis: 1, f"{letter}_{axis}": 0})
            types += f"#define by_{prefix}{axis}(n) (n)\n"
        for axis, size in zip(_NAMES[lead:], spec.shape[2:], strict=True):
            _add(sizes, prefix + axis, size)
        for axis, step in zip(("N", "C", *_NAMES[lead:]), spec.physical.strides, strict=True):
            sizes.add(**{f"{letter}_{axis}": step})
    return sizes, types


def _constants(op: Pool, wide: Spec, narrow: Spec, width: int) -> str:
    """The constants of pool.cu."""
    win, lead = op.window, (1,) * (3 - op.window.rank)
    padding = tuple(lo for lo, _ in win.padding)
    ends = [
        (n - 1) * stride + (k - 1) * step
        for n, stride, k, step in zip(narrow.shape[2:], win.stride, op.kernel, win.dilation, strict=True)
    ]
    within = max(padding) == 0 and all(end < n for end, n in zip(ends, wide.shape[2:], strict=True))
    numbers: dict[str, int | str | float] = {
        "V": width,
        "CHANNELS_INSIDE": int(wide.physical.strides[1] == 1 and wide.shape[1] > 1),
        "ALL_WITHIN": int(within),
        "HAS_INDEX": int(getattr(op, "index", False)),
        "MODE": MODES.index(getattr(op, "mode", "sum")),
    }
    groups: dict[str, Sequence[int]] = {
        "K": lead + op.kernel,
        "S": lead + win.stride,
        "P": (0,) * (3 - win.rank) + padding,
        "J": lead + win.dilation,
    }
    for prefix, values in groups.items():
        numbers |= {f"{prefix}{axis}": value for axis, value in zip(_NAMES, values, strict=True)}
    return constants(**numbers)
