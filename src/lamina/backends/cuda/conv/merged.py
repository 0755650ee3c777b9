"""A convolution of many small groups as one of fewer, larger ones, whose filters hold zeros between the groups.

cuDNN's kernels run groups of few channels at a fraction of the tensor cores' rate. m groups of c channels as one of m
c cost m times the arithmetic, at the rate of large groups; with m the number of groups the convolution is dense. The
filter [K, c, *taps] becomes [K, m c, *taps], with the rows of the i-th of m groups at channels i c to (i + 1) c; of
the gradient of such a filter only these blocks are kept.

For finite operands the sums are the same, with zeros added. Forward and in the data gradient a NaN or an infinity is
multiplied by the zeros, so that it spreads to other groups at the same positions, where the definition gives finite
values. (Fast FIR spreads it too, to neighbouring rows.) The loss is NaN either way; under
`policy(check_finite=True)`, which searches for the origin, these directions merge no groups. The filter gradient
discards it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, conv_graph, places_of
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.shape import strided_copy
from lamina.backends.cuda.launch.program import Bindable, Fill, Place, scratch
from lamina.backends.cuda.select.formulations import Formulation
from lamina.cudnn import Graph
from lamina.ops.primitives.conv import Conv, ConvFilterGrad
from lamina.runtime import Machine
from lamina.spec import Policy, Shape, Spec, bfloat16, channels_last, float16

#: Channels of a group from which on, in multiples, tensor-core engines run without waste.
_ENOUGH_CHANNELS, _MULTIPLE = 64, 8
#: Kernels are best if the channels of a merged group are a multiple of this.
_TILE = 32
#: Groups reach the fraction channels / 1024 of the tensor cores' rate (bfloat16, 3x3 on Hopper: 1/45 with 24
#: channels, 1/27 to 1/16 with 48), except for powers of two, for which engines reach memory bandwidth.
_FULL_RATE = 1024
#: The least seconds of a forward engine for groups whose channels are no power of two (46 to 90 microseconds for one
#: image of 7x7 to 112x112, where one dense group takes 24 to 44; 12 for a power of two; bfloat16).
_GROUPED_SECONDS = 45e-6
#: The estimated speedup from which larger groups are used untimed.
_GAIN = 1.5


@dataclass(frozen=True)
class Merged:
    """A grouped convolution, all operands channels last, and how many adjacent groups become one.

    least: seconds that engines for groups take at least.
    """

    original: Operands
    number: int
    least: float = 0.0

    @property
    def operands(self) -> Operands:
        """The convolution over the larger groups."""
        o = self.original
        shape = (o.w.shape[0], self.number * o.w.shape[1], *o.w.shape[2:])
        w = full(Spec(shape, o.w.dtype), channels_last(shape))
        return replace(o, window=replace(o.window, groups=o.window.groups // self.number), w=w)

    @property
    def name(self) -> str:
        """The formulation's name."""
        return "dense" if self.number == self.original.window.groups else "merged"

    def seconds(self, machine: Machine) -> float:
        """Its estimated time: arithmetic, traffic, and the surrounding kernels."""
        other = self.operands
        return _seconds(other, 2 * other.w.nbytes, self.least, machine) + 2 * machine.launch_seconds

    def pays(self, machine: Machine) -> bool:
        """Whether it is expected to be clearly faster than small groups, for which there are no good engines."""
        channels = self.original.w.shape[1]
        good = channels >= _MULTIPLE and channels & (channels - 1) == 0
        return not good and _GAIN * self.seconds(machine) <= _seconds(self.original, 0, self.least, machine)

    @property
    def blocks(self) -> tuple[Shape, Shape, Shape]:
        """The filter as [merged group, group in it, filter in the group, tap, channel]: sizes, strides, and the
        strides of the same elements in the filter over larger groups.
        """
        w, m, groups = self.original.w, self.number, self.original.window.groups
        filters, channels, taps = w.shape[0] // groups, w.shape[1], prod(w.shape[2:])
        sizes = (groups // m, m, filters, taps, channels)
        row, wide = taps * channels, taps * m * channels
        own = (m * filters * row, filters * row, row, channels, 1)
        return sizes, own, (m * filters * wide, filters * wide + channels, wide, m * channels, 1)


def _seconds(o: Operands, more: int, least: float, machine: Machine) -> float:
    """Of a convolution that moves `more` bytes besides its operands, and takes at least `least` seconds if it has
    groups."""
    dense = o.window.groups == 1
    share = 1 if dense else min(1, o.w.shape[1] / _FULL_RATE)
    traffic = o.x.nbytes + o.w.nbytes + o.y.nbytes + more
    seconds = o.flops / (share * machine.rate(o.x.dtype.name)) + traffic / machine.bandwidth
    return seconds if dense else max(seconds, least)


def merged(direction: Direction, o: Operands, machine: Machine, policy: Policy) -> list[Merged]:
    """The merges worth trying, the lowest estimate first: one dense group, and the fewest groups that become an
    efficient one. None for other than half types, depthwise convolutions, and large groups.
    """
    groups, filters, channels = o.window.groups, o.w.shape[0] // o.window.groups, o.w.shape[1]
    finite = policy.check_finite and direction is not ConvFilterGrad
    lasts = all(spec.physical == channels_last(spec.shape) for spec in (o.x, o.w, o.y))
    if groups == 1 or finite or not lasts or o.x.dtype not in (float16, bfloat16):
        return []
    if filters == channels == 1 or channels >= _ENOUGH_CHANNELS:
        return []
    least = _GROUPED_SECONDS if direction is Conv else 0.0
    fitting = [
        Merged(o, m, least)
        for m in range(2, groups)
        if groups % m == 0
        and m * channels >= _ENOUGH_CHANNELS
        and m * channels % _MULTIPLE == m * filters % _MULTIPLE == 0
    ]
    best = sorted(fitting, key=lambda form: (form.number * channels % _TILE > 0, form.number))[:1]
    return sorted([Merged(o, groups, least), *best], key=lambda form: form.seconds(machine))


def merged_formulation(direction: Direction, form: Merged, epilogue: Epilogue = NONE) -> Formulation:
    """The convolution over larger groups, with its filter (or the filter's gradient) in scratch memory."""
    x, w, y = places_of(direction)
    other, filter_ = form.operands, scratch()
    sizes, own, wide = form.blocks

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        return conv_graph(direction, other, (x, filter_, y), epilogue)

    before: tuple[Bindable, ...] = ()
    after: tuple[Bindable, ...] = ()
    if direction is ConvFilterGrad:
        after = (strided_copy(sizes, form.original.w, wide, own, filter_, w),)
    else:
        spread = strided_copy(sizes, form.original.w, own, wide, w, filter_)
        before = (Fill(filter_, 0, other.w.nbytes), spread)
    return Formulation(form.name, graph, before, after, scratch=other.w.nbytes)
