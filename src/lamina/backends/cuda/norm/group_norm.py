"""Group norm of channels-last images, by per-channel sums.

In groups of few channels a group's elements are a few bytes per position, so that its rows would be read in small
pieces; long rows are read repeatedly, and a few rows leave most of the machine idle. Instead each channel of an image
is summed, as in batch norm, and the sums are combined by groups: x is read twice, g and x twice for the gradient, in
whole accesses, without reorders. The same passes compute an activation. Of small tensors a block holds a group's
elements in registers (`group_norm.cu`): one launch in place of three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.indexing import KernelSizes, collapse, index_type, memory_order
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Launch,
    Place,
    Program,
    Table,
    c_type,
    constants,
    kernel_plan,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.norm.norm import (
    HELD_BYTES,
    SUMMING,
    TOGETHER,
    WRITING,
    Blocks,
    KernelHead,
    NormFunctions,
    flags,
    moments,
    resident,
    row_norm,
    row_norm_grad,
    types,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.norm import GroupNorm, GroupNormGrad
from lamina.runtime import Device, Machine
from lamina.spec import Policy, Spec

#: Positions of a channel from which on its sums are small compared with its elements.
_PLACES = 32
#: The most channel sums that a warp combines: more are left to a block.
_FEW_SUMS = 512
#: Rows per multiprocessor that keep it busy.
_ENOUGH = 2
#: Bytes of a group that a thread holds, and the most threads; bytes of a register and of a cache line.
_HELD, _MOST_THREADS, _REGISTER, _LINE = 128, 1024, 4, 128
#: The most cache lines that a multiprocessor reads for its groups: one a cycle, and again for the result. 256
#: positions take 3 microseconds, 1,024 take 5, 4,096 take 10, by channels 7 (compute capability 9.0).
_MOST_LINES = 1536


def _text(functions: NormFunctions | None, x: Spec) -> str:
    """The code of a function after the norm, or none."""
    return flags(RELU=False, RESIDUAL=False) + ("" if functions is None else functions.text(x.dtype))


@dataclass(frozen=True)
class _Channels:
    """An image's contiguous channels; some of them form a group."""

    x: Spec
    groups: int
    machine: Machine

    @property
    def lines(self) -> int:
        """Groups of all images."""
        return self.x.shape[0] * self.groups

    def blocks(self, aligned: bool, waves: int = SUMMING) -> Blocks:
        """Channels of images kept, positions reduced."""
        strides = self.x.physical.strides
        rows = [strides, tuple(0 for _ in strides)]
        order = memory_order(self.x.shape, strides)
        kept = collapse(self.x.shape, rows, [0, 1])
        rest = collapse(self.x.shape, rows, [a for a in order if a > 1])
        return Blocks(kept, rest, self.x.dtype.itemsize, aligned, waves * self.machine.multiprocessors)

    @property
    def sums_bytes(self) -> int:
        """Bytes of two partial sums of each channel, whether addresses are aligned or not."""
        most = max(self.blocks(aligned).split[1] for aligned in (True, False))
        nbytes = 2 * most * self.x.shape[0] * self.x.shape[1] * self.x.dtype.compute.itemsize
        return round_up(nbytes, WORKSPACE_ALIGNMENT)

    def known(self, head: KernelHead) -> KernelHead:
        """The header with the numbering of channels."""
        head.sizes.add(CHANNELS=self.x.shape[1], PER_GROUP=self.per_group)
        head.sizes.add_quotient("group_of", self.per_group)
        head.sizes.add_quotient("image_of", self.x.shape[1])
        return head

    def suits_rows(self, tensors: int) -> bool:
        """Whether a block per group reads this many tensors efficiently: once, or again from the L2 cache, with the
        machine busy."""
        nbytes = tensors * self.x.nbytes // self.lines
        at_once = min(self.lines, SUMMING * self.machine.multiprocessors)
        is_busy = self.lines >= _ENOUGH * self.machine.multiprocessors
        return nbytes <= HELD_BYTES or (is_busy and at_once * nbytes <= self.machine.l2_bytes)

    @property
    def positions(self) -> int:
        """Positions of an image."""
        return self.x.numel // (self.x.shape[0] * self.x.shape[1])

    @property
    def per_group(self) -> int:
        """Channels of a group."""
        return self.x.shape[1] // self.groups

    @property
    def width(self) -> int:
        """Channels of a group in an access."""
        return gcd(self.per_group, VECTOR // self.x.dtype.itemsize)

    @property
    def holds_groups(self) -> bool:
        """Whether blocks can hold groups, and a multiprocessor reads few cache lines for its."""
        size = self.x.dtype.itemsize
        accesses = _MOST_THREADS * _HELD // max(_REGISTER, self.width * size)
        fits = self.positions * (self.per_group // self.width) <= accesses
        touched = self.positions * -(-self.per_group * size // _LINE)
        rounds = -(-self.lines // self.machine.multiprocessors)
        return self.x.physical.strides[1] == 1 and fits and rounds * touched <= _MOST_LINES

    def holding(self, text: str, places: Sequence[Place]) -> Launch:
        """The launch with a block for each group."""
        parts = self.per_group // self.width
        accesses = self.positions * parts
        threads = min(_MOST_THREADS, round_up(accesses, 32))
        kind = index_type(self.x.numel)
        sizes = KernelSizes(known=kind != "i32")
        sizes.add(GROUPS=self.groups, PER_GROUP=self.per_group, CHANNELS=self.x.shape[1])
        sizes.add(PLACES=self.positions, PARTS=parts)
        sizes.add_quotient("image_of", self.groups)
        sizes.add_quotient("place_of", parts)
        held = 1 << (-(-accesses // threads) - 1).bit_length()
        head = f"typedef {kind} Index;\ntypedef {c_type(self.x.dtype)} T;\n{sizes.text}"
        head += constants(V=self.width, HELD=held, THREADS=threads)
        program = Program("group_norm_held", "norm/group_norm.cu", head + text)
        return Launch(program, (self.lines,), (threads,), (*places, Table(sizes.values)))

    def gathering(
        self, name: str, aligned: bool, teams: int, places: Sequence[Place], text: str = ""
    ) -> Launch:
        """A launch with a warp, or a block, for each combination of channel sums."""
        sums = self.blocks(aligned)
        members = 32 if self.per_group * sums.split[1] <= _FEW_SUMS else 256
        index = index_type(sums.kept.reach + self.x.numel)
        head = KernelHead.bare(types(index, self.x), known=index != "i32")
        head.sizes.add(OUTPUTS=sums.kept.count, COUNT=sums.reduced.count, SPLITS=sums.split[1])
        head.sizes.add(LINES=self.lines, IMAGES=self.x.shape[0])
        head.sizes.add_offset("kept", sums.kept)
        switches = constants(V=1, MEMBERS=members) + text + flags(**{name.upper(): True})
        return self.known(head).launch(name, switches, (-(-teams * members // 256),), places)

    def passing(self, name: str, aligned: bool, places: Sequence[Place], text: str, waves: int) -> Launch:
        """A launch over all elements."""
        blocks = self.blocks(aligned, waves)
        return self.known(blocks.head(self.x)).launch(name, text + flags(GROUPED=True), blocks.grid, places)


def _channels(
    op: GroupNorm | GroupNormGrad, machine: Machine, functions: NormFunctions | None, *specs: Spec
) -> _Channels | None:
    """The tensor if groups should be read channel by channel; None if row by row is as good.

    With functions there is no other form. Raises NoKernel without contiguous positions.
    """
    x = full(specs[0], resident(*specs))
    found = _Channels(x, op.groups, machine)
    if functions is not None:
        if x.ndim < 3 or x.numel == 0 or functions.before is not None:
            raise NoKernel(
                f"cuda computes no {functions.op} of {x}: it takes functions of results at several places"
            )
        return found
    if x.ndim < 3 or x.numel == 0 or x.physical.strides[1] != 1:
        return None
    if x.shape[1] // op.groups >= TOGETHER and found.suits_rows(len(specs)):
        return None
    blocks = found.blocks(True)
    return None if blocks.by_rows or blocks.reduced.count < _PLACES else found


def _label(op: GroupNorm | GroupNormGrad, functions: NormFunctions | None, way: str = "by channels") -> str:
    return f"{op.name if functions is None else functions.label(op.name)} {way}"


@kernels(GroupNorm, source="kernel")
def group_norm(
    op: GroupNorm,
    specs: tuple[Spec, ...],
    device: Device,
    policy: Policy,
    functions: NormFunctions | None = None,
) -> Plan:
    """Sums of each channel, statistics of groups, then the normalized result; or row by row."""
    lying = _channels(op, device.machine, functions, specs[0])
    if lying is None:
        return row_norm(op, specs, device, policy)
    x, outs = lying.x, op.infer(*specs)
    inputs = [x, *(s.open.fixed for s in specs[1:])]
    outputs = [full(outs[0], x.physical), *(s.fixed for s in outs[1:])]
    epsilon = constants(EPSILON=repr(op.epsilon))
    applied = [*(source(i) for i in range(3)), target(1), target(2), source(0), target(0), target(0)]
    text = _text(functions, x) + constants(APPLY=1) + flags(INFERENCE=False, SIGNS=False)

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        if aligned and lying.holds_groups:
            own = (*(source(i) for i in range(3)), target(1), target(2), target(0))
            return (lying.holding(epsilon + _text(functions, x), own),)
        places = (source(0), scratch(), target(1), target(2))
        return (
            moments(x, lying.blocks(aligned)),
            lying.gathering("group_statistics", aligned, lying.lines, places, epsilon),
            lying.passing("batch_apply", aligned, applied, text, WRITING),
        )

    return kernel_plan(
        device,
        inputs,
        outputs,
        steps(True),
        label=_label(op, functions, "held" if lying.holds_groups else "by channels"),
        workspace=lying.sums_bytes,
        plain=lambda: steps(False),
    )


@kernels(GroupNormGrad, source="kernel")
def group_norm_grad(
    op: GroupNormGrad,
    specs: tuple[Spec, ...],
    device: Device,
    policy: Policy,
    functions: NormFunctions | None = None,
) -> Plan:
    """Sums of each channel, from them those of groups, scales and biases, then dx; or row by row.

    functions: of the incoming gradient and the norm's result, for which the bias is an operand, too.
    """
    lying = _channels(op, device.machine, functions, specs[1], specs[0])
    if lying is None:
        return row_norm_grad(op, specs, device, policy)
    x, outs = lying.x, op.infer(*specs[:5])
    inputs = [full(specs[0], x.physical), x, *(s.open.fixed for s in specs[2:])]
    outputs = [full(outs[0], x.physical), *(s.fixed for s in outs[1:])]
    g, given, scale, mean, spread = (source(i) for i in range(5))
    small = round_up(lying.lines * x.dtype.compute.itemsize, WORKSPACE_ALIGNMENT)
    level, tilt = scratch(lying.sums_bytes), scratch(lying.sums_bytes + small)
    bias, text = scale if functions is None else source(5), _text(functions, x)
    summed = [g, given, scale, mean, spread, bias, g, target(0), scratch()]
    totals = [scratch(), scale, spread, level, tilt, target(1), target(2)]
    applied = [g, given, scale, mean, spread, bias, level, tilt, target(0)]

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        return (
            lying.passing("batch_grad_sums", aligned, summed, text + constants(GRAD_SUMS=1), SUMMING),
            lying.gathering("group_totals", aligned, lying.lines + x.shape[1], totals),
            lying.passing(
                "group_grad_apply", aligned, applied, text + constants(GROUP_GRAD_APPLY=1), WRITING
            ),
        )

    return kernel_plan(
        device,
        inputs,
        outputs,
        steps(True),
        label=_label(op, functions),
        workspace=lying.sums_bytes + 2 * small,
        aliases={0: 0},
        plain=lambda: steps(False),
    )
