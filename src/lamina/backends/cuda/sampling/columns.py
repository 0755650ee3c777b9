"""Windows of images as columns, written once in the order of the result, and columns summed into images."""

from __future__ import annotations

from math import gcd

from lamina.backends import Plan
from lamina.backends.cuda.launch.indexing import KernelSizes, index_type
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Fill,
    Launch,
    Program,
    Table,
    bits_type,
    c_type,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.fold import Col2im, Im2col
from lamina.runtime import Device
from lamina.spec import Policy, Shape, Spec

_FILE = "sampling/columns.cu"
_NAMES = ("D", "H", "W")


@kernels(Im2col, source="kernel")
def im2col(op: Im2col, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major; adjacent columns in accesses of up to 16 bytes, single ones where the address is not aligned."""
    x = specs[0].open.fixed
    y = op.infer(x)[0].fixed
    if not x.numel or not y.numel:
        steps = [Fill(target(), 0, y.nbytes)] if y.numel else []
        return kernel_plan(device, [x], [y], steps, label=op.name)
    positions = op.window.output(x.shape[2:], op.kernel)

    def launches(width: int) -> tuple[Launch, ...]:
        text = f"typedef {bits_type(x.dtype)} T;\n"
        return (_launch(op, text, x, y, positions, width),)

    width = gcd(positions[-1], VECTOR // x.dtype.itemsize)
    return kernel_plan(device, [x], [y], launches(width), label=op.name, plain=lambda: launches(1))


@kernels(Col2im, source="kernel")
def col2im(op: Col2im, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major; each element is a sum in a fixed order."""
    x = specs[0].open.fixed
    y = op.infer(x)[0].fixed
    if not x.numel or not y.numel:
        steps = [Fill(target(), 0, y.nbytes)] if y.numel else []
        return kernel_plan(device, [x], [y], steps, label=op.name)
    text, positions = f"typedef {c_type(x.dtype)} T;\n", op.window.output(op.size, op.kernel)
    return kernel_plan(device, [x], [y], [_launch(op, text, y, x, positions, 1)], label=op.name)


def _launch(
    op: Im2col | Col2im, text: str, image: Spec, columns: Spec, positions: Shape, width: int
) -> Launch:
    """A launch for the columns of an image, `width` columns per thread."""
    spatial, win = image.shape[2:], op.window
    kind = index_type(max(image.numel, columns.numel, *win.padded(spatial)))
    sizes = KernelSizes(known=kind == "i64")
    whole = columns.numel // width if isinstance(op, Im2col) else image.numel
    sizes.add(TOTAL=whole)
    names, lead = _NAMES, 3 - win.rank
    for name, n, out in zip(names, (1,) * lead + spatial, (1,) * lead + positions, strict=True):
        sizes.add(**{name: n, f"O{name}": out})
        sizes.add_quotient(f"by_{name}", n)
        sizes.add_quotient(f"by_O{name}", out)
    sizes.add(RUNS=positions[-1] // width)
    sizes.add_quotient("by_RUNS", positions[-1] // width)
    before = tuple(lo for lo, _ in win.padding)
    for letter, values, unused in (
        ("K", op.kernel, 1),
        ("S", win.stride, 1),
        ("P", before, 0),
        ("J", win.dilation, 1),
    ):
        padded = (unused,) * lead + values
        text += constants(**{letter + name: v for name, v in zip(names, padded, strict=True)})
    text = f"typedef {kind} Index;\n{text}{sizes.text}" + constants(V=width, **{op.name.upper(): 1})
    return looping(Program(op.name, _FILE, text), whole, (source(), target(), Table(sizes.values)))
