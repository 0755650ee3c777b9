"""Batch norm's last pass and the max-pool of its result in one kernel, and the gradients of both in two; against the
unfused form.

Forward the statistics come from `norm`'s kernels, then each element of x is read once, normalized and compared in
registers; only the pool's result is written. Backward the pool's gradient is gathered again in both passes. Only
timing (`fastest`) tells whether other formulations for the norm alone gain more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Launch,
    Launches,
    Place,
    Program,
    SubPlan,
    c_type,
    check_join,
    constants,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.norm.batch_norm_max_pool_fusion import NormPool, PoolNormGrad
from lamina.backends.cuda.norm.norm import (
    activation,
    channel_blocks,
    flags,
    moments,
    normalized,
    resident,
    sums_bytes,
    totals,
)
from lamina.backends.cuda.pool.pool import stride_blocks
from lamina.backends.cuda.registry import kernels
from lamina.backends.cuda.select.formulations import (
    Formulation,
    Problem,
    candidate,
    choose,
    expects,
    make_plan,
)
from lamina.ops.primitives.pool import MaxPool, MaxPoolGrad
from lamina.runtime import Device, Machine
from lamina.spec import Policy, Spec, channels_last, contiguous

_FILE = "norm/batch_norm_max_pool.cu"
_THREADS = 256
#: The most elements of a window: overlapping rows are held in registers.
_MOST_TAPS = 16
#: Blocks per multiprocessor over which sums are split.
_SUMMING = 8
#: Outputs of a thread along a row, and down the rows as many as leave this many blocks per multiprocessor.
_ACROSS, _DOWN, _ENOUGH = 2, (4, 2, 1), 4


@kernels(NormPool, source="kernel")
def norm_pool(op: NormPool, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One kernel for norm and pool, or the unfused form."""
    lies = resident(specs[0], *specs[5:])
    given = (*(full(s, lies) if s.ndim > 1 else s.open.fixed for s in specs),)
    norm = kernels.plan(op.norm, given, device, policy)
    y = norm.outputs[0]
    pool = kernels.plan(op.pool, (y,), device, policy)
    check_join(norm, pool)
    outputs = (pool.outputs[0], *norm.outputs[1:], *pool.outputs[1:])
    between = scratch(round_up(max(norm.workspace, pool.workspace), WORKSPACE_ALIGNMENT))
    unfused = Formulation(
        "unfused",
        steps=(
            SubPlan(norm, _sources(given), (between, *(target(i) for i in range(1, 5)))),
            SubPlan(pool, (between,), (target(0), *(target(5 + i) for i in range(len(outputs) - 5)))),
        ),
        scratch=between.offset + y.nbytes,
        parts=(norm, pool),
    )
    problem = Problem(
        _key(op, given), op.name, given, outputs, (unfused,), 0.0, aliases={3: 3, 4: 4}, kind=str(op)
    )
    if op.norm.residual or not _takes(op.pool, y, outputs[0]):
        return _first(problem, device)

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        machine = device.machine
        return (*_statistics(op, y, aligned, machine), forward(op, y, outputs[0], aligned, machine))

    return _choose(problem, steps, sums_bytes(y, device.machine), device, policy)


@kernels(PoolNormGrad, source="kernel")
def pool_norm_grad(op: PoolNormGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Two passes that gather the pool's gradient, or the unfused form."""
    lies = resident(specs[2], *specs[6 + (not op.norm.residual) :])
    arrange = channels_last if lies == channels_last(specs[2].shape) else contiguous
    pool = kernels.plan(op.pool, [full(s, arrange(s.shape)) for s in specs[:2]], device, policy)
    (g,) = pool.outputs
    x, *rest = (full(s, g.physical) if s.ndim > 1 else s.open.fixed for s in specs[2:])
    norm = kernels.plan(op.norm, (g, x, *rest), device, policy)
    check_join(pool, norm)
    given, outputs = (*pool.inputs, *norm.inputs[1:]), norm.outputs
    between = scratch(round_up(max(norm.workspace, pool.workspace), WORKSPACE_ALIGNMENT))
    unfused = Formulation(
        "unfused",
        steps=(
            SubPlan(pool, _sources(pool.inputs), (between,)),
            SubPlan(norm, (between, *_sources(given)[2:]), tuple(target(i) for i in range(len(outputs)))),
        ),
        scratch=between.offset + g.nbytes,
        parts=(pool, norm),
    )
    problem = Problem(_key(op, given), op.name, given, outputs, (unfused,), 0.0, kind=str(op))
    if op.norm.residual or not _takes(op.pool, x, given[0]) or norm.inputs[:2] != (x, x):
        return _first(problem, device)

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        return backward(op, given, aligned, device.machine)

    size = max(Groups.of(op, x, aligned, device.machine).workspace for aligned in (True, False))
    return _choose(problem, steps, size, device, policy)


def _sources(specs: Sequence[Spec]) -> tuple[Place, ...]:
    return tuple(source(i) for i in range(len(specs)))


def _key(op: NormPool | PoolNormGrad, given: Sequence[Spec]) -> str:
    return f"{op} {' '.join(map(str, given))}"


def _takes(pool: MaxPool | MaxPoolGrad, x: Spec, y: Spec) -> bool:
    """Whether the kernels support it: images channels last, whole accesses, small undilated windows, stride above 1
    (the separate pool gradient then adds in the same order).
    """
    lies = all(s.ndim == 4 and s.physical == channels_last(s.shape) for s in (x, y))
    whole = x.numel > 0 and x.shape[1] % (VECTOR // x.dtype.itemsize) == 0
    return lies and whole and prod(pool.kernel) <= _MOST_TAPS and stride_blocks(pool, x) is not None


def _choose(
    problem: Problem, steps: Callable[[bool], tuple[Bindable, ...]], size: int, device: Device, policy: Policy
) -> Plan:
    """The fused kernels or the unfused form, which also serves unaligned addresses."""
    fused = Formulation("fused", steps=steps(True), scratch=size)
    problem = replace(problem, formulations=(fused, *problem.formulations))
    timed = expects(problem, "unfused", device, policy)
    found = choose(problem, device, policy) if timed else _first(problem, device)
    assert isinstance(found.make, Launches)
    if found.make.steps != fused.steps:
        return replace(found, open=None)
    return replace(found, make=Launches(device, fused.steps, lambda: steps(False)), open=None)


def _first(problem: Problem, device: Device) -> Plan:
    """The plan that runs the first formulation."""
    return make_plan(problem, candidate(problem.formulations[0], None, {}), device)


# ------------------------------------------------------------------------------------------------------ kernels


def _head(pool: MaxPool | MaxPoolGrad, x: Spec, y: Spec, index: str, width: int) -> str:
    """Types and sizes."""
    kind = "i32" if 2 * x.numel + (1 << 22) < 2**31 else "i64"
    text = f"typedef {kind} Index;\ntypedef {c_type(x.dtype)} T;\ntypedef {index} I;\n"
    win = pool.window
    pairs = {"": x.shape[2:], "O": y.shape[2:], "K": pool.kernel, "S": win.stride}
    pairs["P"] = tuple(before for before, _ in win.padding)
    sizes = {prefix + axis: n for prefix, two in pairs.items() for axis, n in zip("HW", two, strict=True)}
    words = int(x.dtype.itemsize == 2 and width > 1)
    return text + constants(V=width, WORDS=words, OUTPUTS=x.shape[1], CHUNKS=x.shape[1] // width, **sizes)


def _statistics(op: NormPool, x: Spec, aligned: bool, machine: Machine) -> tuple[Bindable, ...]:
    """The first launches: the norm's own kernels for the sums of each channel, and for mean and r from them."""
    sums, given = channel_blocks(x, aligned, machine), [source(i) for i in range(5)]
    return moments(x, sums), normalized(op.norm, x, given, machine, aligned)[0]


def forward(op: NormPool, x: Spec, y: Spec, aligned: bool, machine: Machine) -> Launch:
    """The pass after the statistics: y from x."""
    width, (n, c, rows, columns) = VECTOR // x.dtype.itemsize if aligned else 1, y.shape
    wide = n * (c // width) * -(-columns // _ACROSS)
    enough = _ENOUGH * machine.multiprocessors * _THREADS
    down = next((d for d in _DOWN if wide * -(-rows // d) >= enough), 1)
    tiles = wide * -(-rows // down)
    numbers = constants(
        FORWARD=1,
        ACROSS=_ACROSS,
        DOWN=down,
        TILES_W=-(-columns // _ACROSS),
        TILES_H=-(-rows // down),
        TILES=f"{tiles}LL",
        KEYED=int(op.norm.relu and x.dtype.itemsize == 2),
        HAS_INDEX=int(op.pool.index),
    )
    kind = c_type(op.pool.infer(x)[1].dtype) if op.pool.index else "u8"
    text = _head(op.pool, x, y, kind, width) + activation(op.norm) + numbers
    places = (
        *(source(i) for i in range(3)),
        target(1),
        target(2),
        target(0),
        target(5 if op.pool.index else 0),
    )
    return Launch(Program("norm_max_pool", _FILE, text), (-(-tiles // _THREADS),), (_THREADS,), places)


@dataclass(frozen=True)
class Groups:
    """The blocks over channels and groups; a group is a stride-sized set of positions of x."""

    channels: int
    width: int
    rows: int
    columns: int
    images: int
    itemsize: int  # of sums
    blocks: int

    @classmethod
    def of(cls, op: PoolNormGrad, x: Spec, aligned: bool, machine: Machine) -> Groups:
        """Those of x in the gradient of the op."""
        blocks = stride_blocks(op.pool, x)
        assert blocks is not None
        width = VECTOR // x.dtype.itemsize if aligned else 1
        most = _SUMMING * machine.multiprocessors
        return cls(x.shape[1], width, *blocks, x.shape[0], x.dtype.compute.itemsize, most)

    @property
    def lanes(self) -> int:
        """Threads along the channels."""
        lanes = 1
        while lanes < 32 and lanes * self.width < self.channels:
            lanes *= 2
        return lanes

    @property
    def count(self) -> int:
        """Groups in all."""
        return self.images * self.rows * self.columns

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks along the channels, and along the groups: as many as have work for all of their threads."""
        across = -(-self.channels // (self.lanes * self.width))
        most = -(-self.count // (_THREADS // self.lanes * 2))
        part = -(-self.count // max(1, min(self.blocks // across, most)))
        return across, -(-self.count // part)

    @property
    def workspace(self) -> int:
        """Bytes for the sums of all blocks."""
        return 2 * self.grid[1] * self.channels * self.itemsize

    @property
    def text(self) -> str:
        """The constants for the division of groups among blocks."""
        return constants(
            BACKWARD=1,
            LANES=self.lanes,
            ROWS=_THREADS // self.lanes,
            GROUPS_H=self.rows,
            GROUPS_W=self.columns,
            COUNT=f"{self.count}LL",
            PART=-(-self.count // self.grid[1]),
            SPLITS=self.grid[1],
        )


def backward(
    op: PoolNormGrad, given: Sequence[Spec], aligned: bool, machine: Machine
) -> tuple[Bindable, ...]:
    """The sums of each channel, dscale and dbias from them, then dx."""
    g, index, x = given[:3]
    groups = Groups.of(op, x, aligned, machine)
    text = _head(op.pool, x, g, c_type(index.dtype), groups.width) + groups.text + activation(op.norm)
    read = [source(i) for i in (0, 1, 2, 3, 4, 5, 6 if op.norm.relu else 3)]
    summed = (scratch(), source(5), target(1), target(2))
    last = text + flags(MOVING=op.norm.moving) + constants(ELEMENTS=x.numel // x.shape[1])
    sums = Program("pool_norm_grad_sums", _FILE, text + constants(SUMS=1))
    apply, block = Program("pool_norm_grad_apply", _FILE, last), (_THREADS,)
    return (
        Launch(sums, groups.grid, block, (*read, scratch())),
        totals(x, x.shape[1], groups.grid[1], summed, centred=True, scaled=True),
        Launch(apply, groups.grid, block, (*read, target(1), target(2), target(0))),
    )
