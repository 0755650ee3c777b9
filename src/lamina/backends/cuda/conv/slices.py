"""A convolution of few large groups as one convolution per group, on channels that were made contiguous.

cuDNN's engines process groups one after the other, on copies of their channels in its workspace or on slices of the
channels, so that 2 groups of 32 to 128 channels run at a tenth to a third of the tensor cores' rate (bfloat16, 3x3 on
Hopper). Here the channels of all groups are copied once, [N, H, W, G, C] to [G, N, H, W, C], at memory bandwidth, and
the groups' convolutions are ordinary ones; there is no more arithmetic. Where groups are so small that this costs
more, the other form is one convolution whose filter has zeros between the groups (conv/merged.py): m groups cost m
times the arithmetic, but no copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from lamina.backends import Plan
from lamina.backends.cuda.conv.merged import Merged
from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, places_of, sides
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.shape import strided_copy
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Launch,
    Place,
    SubPlan,
    round_up,
    scratch,
)
from lamina.backends.cuda.select.formulations import Formulation
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.runtime import Machine
from lamina.spec import Policy, Shape, Spec, bfloat16, channels_last, contiguous, float16

#: Groups that are worth a kernel each: their largest number, and their fewest channels.
_MOST_GROUPS, _FEWEST_CHANNELS = 8, 32
#: Groups of c channels reach the fraction c / this number of the tensor cores' rate, in a grouped convolution.
_GROUPED: dict[Direction, float] = {Conv: 320.0, ConvDataGrad: 320.0, ConvFilterGrad: 430.0}
#: A convolution of c channels without groups reaches the fraction c / the first number, at most the second.
_DENSE, _MOST_RATE = 128.0, 0.6
#: The estimated speedup from which another form is used untimed.
_GAIN = 1.25


@dataclass(frozen=True)
class Slices:
    """A grouped convolution, all operands channels last."""

    original: Operands
    direction: Direction

    @property
    def operands(self) -> Operands:
        """The convolution of one group."""
        o, groups = self.original, self.original.window.groups
        x, y = ((s.shape[0], s.shape[1] // groups, *s.shape[2:]) for s in (o.x, o.y))
        w = (o.w.shape[0] // groups, *o.w.shape[1:])
        specs = (full(Spec(shape, o.x.dtype), channels_last(shape)) for shape in (x, w, y))
        return Operands(replace(o.window, groups=1), *specs)

    def seconds(self, machine: Machine) -> float:
        """The estimated time of the copies and of the groups, one after the other."""
        o = self.original
        copied = 2 * (o.x.nbytes + o.y.nbytes) / machine.bandwidth
        launches = (1 + o.window.groups) * machine.launch_seconds
        return _seconds(o, min(o.w.shape[1] / _DENSE, _MOST_RATE), machine) + copied + launches

    def together(self, spec: Spec, place: Place, at: Place, *, back: bool = False) -> Launch:
        """The launch that copies x or y to contiguous groups, or back."""
        samples, channels, *places = spec.shape
        groups = self.original.window.groups
        shape: Shape = (groups, samples, *places, channels // groups)
        own = spec.physical.strides
        apart = (channels // groups, own[0], *own[2:], 1)
        side_by_side = contiguous(shape).strides
        if back:
            return strided_copy(shape, spec, side_by_side, apart, at, place)
        return strided_copy(shape, spec, apart, side_by_side, place, at)


def _seconds(o: Operands, share: float, machine: Machine, times: int = 1) -> float:
    """`times` the arithmetic at a fraction of the tensor cores' rate, or the traffic."""
    moved = o.x.nbytes + o.w.nbytes + o.y.nbytes
    return max(times * o.flops / (share * machine.rate(o.x.dtype.name)), moved / machine.bandwidth)


def slices(direction: Direction, o: Operands) -> Slices | None:
    """The form with one convolution per group, or None: groups are too many or too small, or misaligned."""
    groups, (filters, channels) = o.window.groups, o.w.shape[:2]
    if o.x.dtype not in (float16, bfloat16) or not 1 < groups <= _MOST_GROUPS or channels < _FEWEST_CHANNELS:
        return None
    if any(spec.physical != channels_last(spec.shape) for spec in (o.x, o.w, o.y)):
        return None
    whole = all(n * o.x.dtype.itemsize % VECTOR == 0 for n in (channels, filters // groups))
    return Slices(o, direction) if whole else None


def that_pay(form: Slices, machine: Machine, policy: Policy, *, steps: bool) -> list[Slices | Merged]:
    """The forms that are expected to be clearly faster than engines for groups, the fastest first.

    steps: whether there is an epilogue, which only a single convolution can have.
    """
    o, direction = form.original, form.direction
    groups, channels = o.window.groups, o.w.shape[1]
    limit = _seconds(o, min(1.0, channels / _GROUPED[direction]), machine) + machine.launch_seconds
    found: list[tuple[float, Slices | Merged]] = [] if steps else [(form.seconds(machine), form)]
    if not policy.check_finite or direction is ConvFilterGrad:
        share = min(groups * channels / _DENSE, _MOST_RATE)
        seconds = _seconds(o, share, machine, groups) + 3 * machine.launch_seconds
        found.append((seconds, Merged(o, groups)))
    return [one for taken, one in sorted(found, key=lambda pair: pair[0]) if _GAIN * taken <= limit]


def slices_formulation(form: Slices, plan: Callable[[Operands], Plan]) -> Formulation:
    """x and y with contiguous groups in scratch memory, and the same plan for each group. plan: chooses it."""
    o, direction, groups = form.original, form.direction, form.original.window.groups
    made, (result, _) = plan(form.operands), sides(direction, o)
    together = (scratch(), scratch(round_up(o.x.nbytes, WORKSPACE_ALIGNMENT)))
    end = together[1].offset + round_up(o.y.nbytes, WORKSPACE_ALIGNMENT)
    x, w, y = places_of(direction)
    before: list[Bindable] = []
    after: list[Bindable] = []
    for spec, place, at in ((o.x, x, together[0]), (o.y, y, together[1])):
        if spec is result:
            after.append(form.together(spec, place, at, back=True))
        else:
            before.append(form.together(spec, place, at))
    for group in range(groups):
        parts = zip((together[0], w, together[1]), (o.x, o.w, o.y), strict=True)
        lie = [replace(at, offset=at.offset + group * spec.nbytes // groups) for at, spec in parts]
        before.append(_of_group(direction, made, (lie[0], lie[1], lie[2]), end))
    return Formulation("slices", steps=(*before, *after), scratch=end + made.workspace)


def _of_group(direction: Direction, made: Plan, places: tuple[Place, Place, Place], end: int) -> SubPlan:
    """One group's convolution. places: of its x, filter and y. end: the offset of its workspace."""
    x, w, y = places
    if direction is Conv:
        return SubPlan(made, (x, w), (y,), end)
    if direction is ConvDataGrad:
        return SubPlan(made, (y, w), (x,), end)
    return SubPlan(made, (x, y), (w,), end)
