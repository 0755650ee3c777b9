"""A convolution with non-overlapping windows as a matrix product: each window is a row of elements (im2col).

If the stride equals the filter size, and there is no padding, no element is in two windows. Channels last, [N, H, W,
C] is [N, H / r, r, W / s, s, C], whose windows [r, s, C] have the layout of a filter [K, r, s, C]; copied to
contiguous rows they are a matrix of N H/r W/s x r s C:

    y = patches w^T      dw = dy^T patches      patches of dx = dy w

Convolution engines gather such windows tap by tap, the slower the longer the filter is. The copy is omitted where
windows are contiguous already: along one axis only. Rows that are no multiple of 16 bytes are zero-padded, as are
those of the filter. Elements of x beyond the last window do not contribute to y, and get a gradient of zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import pow, prod

from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, is_channels_last, places_of
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.elementwise.shape import strided_copy
from lamina.backends.cuda.launch.indexing import Strides
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Fill,
    Place,
    round_up,
    scratch,
)
from lamina.backends.cuda.matmul.matmul import copied_formulations
from lamina.backends.cuda.matmul.padded import CopiedProduct, repack
from lamina.backends.cuda.select.formulations import Formulation
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.runtime import Device, Machine
from lamina.spec import Policy, Shape, Spec, channels_last, contiguous

#: The time of convolution engines relative to tensor cores at their peak rate is about the first number times t to
#: the power of the second, for filters of t taps (bfloat16 on Hopper, 2x2 to 16x16).
_SLOWDOWN: dict[Direction, tuple[float, float]] = {
    Conv: (1.0, 0.75),
    ConvDataGrad: (3.0, 0.5),
    ConvFilterGrad: (1.0, 0.75),
}
#: Seconds of a convolution engine per tap, however few windows there are: a block processes taps one after the other
#: (0.42 microseconds for each of 16x16 taps of one image, compute capability 9.0).
_TAP_SECONDS = 0.4e-6
#: The estimated speedup from which a product is used untimed.
_GAIN = 1.5


@dataclass(frozen=True)
class Patches:
    """A convolution with non-overlapping windows, all operands channels last."""

    o: Operands
    direction: Direction

    @property
    def rows(self) -> int:
        """Windows of all images."""
        return self.o.y.numel // self.o.y.shape[1]

    @property
    def row(self) -> int:
        """Elements of a window, as of a filter."""
        return prod(self.o.w.shape[1:])

    @property
    def wide(self) -> int:
        """Elements of a padded row: a multiple of 16 bytes."""
        return round_up(self.row, VECTOR // self.o.x.dtype.itemsize)

    @property
    def shape(self) -> Shape:
        """x as windows: [N, *places, *taps, C]."""
        return (self.o.x.shape[0], *self.o.y.shape[2:], *self.o.w.shape[2:], self.o.x.shape[1])

    @property
    def apart(self) -> Strides:
        """The strides of x along these axes."""
        image, channel, *places = self.o.x.physical.strides
        windows = (s * n for s, n in zip(places, self.o.window.stride, strict=True))
        return (image, *windows, *places, channel)

    @property
    def side_by_side(self) -> Strides:
        """The strides of the matrix along these axes."""
        *windows, _ = contiguous((*self.shape[: -self.o.window.rank - 1], self.wide)).strides
        return (*windows, *contiguous((*self.o.w.shape[2:], self.o.x.shape[1])).strides)

    @property
    def lies_so(self) -> bool:
        """Whether x is the matrix already."""
        pairs = zip(self.shape, self.apart, self.side_by_side, strict=True)
        return self.wide == self.row and all(n == 1 or a == b for n, a, b in pairs)

    def seconds(self, machine: Machine, *, tf32: bool) -> float:
        """Its estimated time: the copies, the product, and the kernel launches."""
        size, o = self.o.x.dtype.itemsize, self.o
        matrix, filters = self.rows * self.wide * size, o.w.shape[0] * self.wide * size
        flops = o.flops * self.wide / self.row
        product = machine.seconds(flops, matrix + filters + o.y.nbytes, o.x.dtype.name, tf32=tf32)
        copied = 0 if self.lies_so else o.x.nbytes + matrix
        return product + copied / machine.bandwidth + 2 * machine.launch_seconds

    def pays(self, machine: Machine, policy: Policy) -> bool:
        """Whether it is expected to be clearly faster than convolution engines."""
        rate = machine.rate(self.o.x.dtype.name, tf32=policy.tf32)
        (factor, power), taps = _SLOWDOWN[self.direction], prod(self.o.w.shape[2:])
        engine = factor * pow(taps, power) * self.o.flops / rate
        if self.direction is Conv:
            engine = max(engine, taps * _TAP_SECONDS)
        return _GAIN * self.seconds(machine, tf32=policy.tf32) <= engine

    def epilogue(self, epilogue: Epilogue) -> Epilogue | None:
        """The epilogue on rows; None if there is none, or an operand varies along some of the axes only."""
        if epilogue.steps and self.direction is not Conv:
            return None
        result, extras = self.o.y.shape, []
        for spec in epilogue.extras:
            shape = (1,) * (len(result) - spec.ndim) + spec.shape
            if shape == result:
                extras.append(replace(spec, shape=(self.rows, result[1]), layout=None))
            elif prod(shape) == shape[1]:
                extras.append(replace(spec, shape=(shape[1],), layout=None))
            else:
                return None
        return replace(epilogue, extras=tuple(extras))

    def product(self, epilogue: Epilogue, machine: Machine, policy: Policy) -> CopiedProduct:
        """The product of copies, and the surrounding kernels."""
        o, dtype = self.o, self.o.x.dtype
        x, w, y = places_of(self.direction)
        matrix, filters, size = x, w, 0
        if not self.lies_so:
            matrix, size = scratch(), round_up(self.rows * self.wide * dtype.itemsize, WORKSPACE_ALIGNMENT)
        if self.wide != self.row:
            filters, size = scratch(size), size + o.w.shape[0] * self.wide * dtype.itemsize
        own, wide = (o.w.shape[0], self.row), (o.w.shape[0], self.wide)
        before: list[Bindable] = []
        after: list[Bindable] = []
        if self.direction is ConvFilterGrad:
            after += [repack(1, wide, own, dtype, filters, w)] if filters != w else []
        else:
            before += [repack(1, own, wide, dtype, w, filters)] if filters != w else []
        if matrix != x and self.direction is ConvDataGrad:
            covered = prod(self.shape) == o.x.numel
            after += [] if covered else [Fill(x, 0, o.x.nbytes)]
            after.append(strided_copy(self.shape, o.x, self.side_by_side, self.apart, matrix, x))
        elif matrix != x:
            blank = Fill(matrix, 0, self.rows * self.wide * dtype.itemsize)
            before += [] if self.wide == self.row else [blank]
            before.append(strided_copy(self.shape, o.x, self.apart, self.side_by_side, x, matrix))
        p, places = self._multiplied(matrix, filters, y)
        pays = self.pays(machine, policy)
        return CopiedProduct(p, places, epilogue, tuple(before), tuple(after), size, pays)

    def _multiplied(self, matrix: Place, w: Place, y: Place) -> tuple[Product, tuple[Place, Place, Place]]:
        """The product, and the places of its A, B and C."""
        rows, filters, wide = self.rows, self.o.w.shape[0], self.wide
        if self.direction is Conv:
            return Product(1, rows, filters, wide, False, True), (matrix, w, y)
        if self.direction is ConvDataGrad:
            return Product(1, rows, wide, filters, False, False), (y, w, matrix)
        return Product(1, filters, wide, rows, True, False), (y, matrix, w)


def patches(direction: Direction, o: Operands) -> Patches | None:
    """The form as a product, or None where windows overlap, or rows of y are no whole 16 bytes."""
    win, taps = o.window, o.w.shape[2:]
    apart = taps == win.stride and not any(map(any, win.padding)) and max(win.dilation) == 1
    if not apart or prod(taps) == 1 or win.groups > 1 or win.flip or not is_channels_last(o):
        return None
    if o.x.physical != channels_last(o.x.shape) or o.w.physical != channels_last(o.w.shape):
        return None
    return None if o.w.shape[0] * o.y.dtype.itemsize % VECTOR else Patches(o, direction)


def patches_formulations(
    form: Patches, epilogue: Epilogue, device: Device, policy: Policy
) -> list[Formulation]:
    """The products' engines on patches; none where the epilogue cannot be fused."""
    steps = form.epilogue(epilogue)
    if steps is None:
        return []
    copied = form.product(steps, device.machine, policy)
    c = Spec((copied.product.m, copied.product.n), form.o.x.dtype).fixed
    return copied_formulations("patches", copied, c, policy, device)
