"""LSTMs and GRUs in persistent kernels, whose blocks keep the weights on chip for all time steps; half types.

A layer of 128 units fits into the registers of one block, which is then independent of other blocks
(persistent_single.cu). Larger ones are divided among blocks that are all resident (persistent.cu). If all layers'
weights fit there, one launch runs the layers concurrently ("wave"): the longest chain is steps + layers - 1 products.
Else each layer is a launch of its own, between products over all its time steps. Products without a dependency
between steps are always of that kind: the first layer's input, all gradients of weights, the gradient of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, product
from math import prod

from lamina.backends import Call, Plan, Run
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    WORKSPACE_ALIGNMENT,
    Bindable,
    Fill,
    Launch,
    Place,
    Program,
    SubPlan,
    Table,
    Together,
    c_type,
    constants,
    kernel_plan,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.matmul.matmul import matmul_plan
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.rnn import Rnn, RnnGrad, Sizes
from lamina.runtime import Device, Machine
from lamina.spec import DType, Policy, Spec, bfloat16, float16, uint8

#: Kernel files: for layers divided among resident blocks; for layers within one block.
_TOGETHER, _ALONE = "rnn/persistent.cu", "rnn/persistent_single.cu"
#: FLOP, and length of sums, up to which a product runs with others in one launch; libraries are faster above.
_SMALL_FLOPS, _SMALL_SUMS = 10**9, 1024
#: Registers of a thread for sums, for operands, and for these and weights together.
_SUMS, _READ, _HELD = 64, 64, 128
#: Nanoseconds of a step besides its work; bytes per nanosecond of a multiprocessor from L2 cache and from shared
#: memory; multiplications per nanosecond. Only their ratios matter.
_LATENCY, _CACHE, _BANKS, _MULTIPLY = 1300, 45, 200, 2200
#: Nanoseconds of a launch with the preceding product; of a step within a block; units of a layer for one block.
_LAUNCH, _WITHIN, _SMALL = 6000, 450, 128
#: How often a warp polls before the launch fails; None: forever.
PATIENCE: int | None = None


# ---------------------------------------------------------------------------------------------------------- sizes


@dataclass(frozen=True)
class Tiling:
    """The division of `layers` layers of `hidden` units over `steps` steps of `batch` sequences among blocks.

    wave: all layers in one launch. units: hidden units of a block, a multiple of 8; all of them: blocks do not wait
    for each other. groups: parts of the batch. chains: parts that a block processes, by separate warps; blocks that
    process the same part are a team.
    """

    machine: Machine
    steps: int
    batch: int
    hidden: int
    layers: int
    wave: bool
    units: int
    groups: int
    chains: int = 1

    @property
    def alone(self) -> bool:
        """Whether a block processes whole layers."""
        return self.units == self.hidden

    @property
    def span(self) -> int:
        """Layers of a launch."""
        return self.layers if self.wave else 1

    @property
    def warps(self) -> int:
        """Of a chain."""
        return 8 if self.hidden % 256 == 0 else 4

    @property
    def tiles(self) -> int:
        """Groups of 8 sequences of a part."""
        return -(-self.batch // 8 // self.groups)

    @property
    def padded(self) -> int:
        """Sequences, including padding, for which there are blocks."""
        return self.groups * self.tiles * 8

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of a team; teams."""
        return self.hidden // self.units, self.groups // self.chains * self.span

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.chains * self.warps * 32

    @property
    def _weights(self) -> int:
        return 8 * self.units * self.hidden * (2 if self.span > 1 else 1)

    @property
    def _parts(self) -> int:
        return self.chains * self.warps * 4 * self.units * self.tiles * 8 * 4

    @property
    def buffers(self) -> int:
        """Buffers for the warps' sums: with two of them one barrier less."""
        return 2 if self._weights + 2 * self._parts <= self.machine.shared_memory else 1

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        return self._weights + self.buffers * self._parts

    @property
    def registers(self) -> tuple[int, int, int]:
        """Registers per thread: sums, operands, and the recurrent weights if they are kept there."""
        rows, inner = self.units // 4, self.hidden // self.warps // 32
        return 4 * rows * self.tiles, 4 * inner * self.tiles, 8 * inner * rows

    @property
    def held(self) -> bool:
        """Whether the recurrent weights are kept in registers."""
        return sum(self.registers) <= _HELD // self.chains

    @property
    def fits(self) -> bool:
        """Whether the GPU has room for it."""
        if self.alone:
            return self.hidden == _SMALL and self.tiles == self.chains == self.span == 1
        sums, read, _ = self.registers
        inner = self.hidden % (32 * self.warps) == 0 and self.hidden % (4 * self.units) == 0
        machine = self.machine
        room = prod(self.grid) <= machine.multiprocessors and self.shared <= machine.shared_memory
        registers = sums <= _SUMS // self.chains and read <= _READ // self.chains
        return inner and room and registers and self.groups % self.chains == 0

    @property
    def _rounds(self) -> int:
        """Groups that a multiprocessor processes one after the other."""
        return -(-self.groups // self.machine.multiprocessors)

    @property
    def nanoseconds(self) -> float:
        """The estimated time of the forward pass."""
        launches = self.layers / self.span
        if self.alone:
            return (_WITHIN * self.steps + _LAUNCH) * launches * self._rounds
        times, wide = min(self.span, 2), self.tiles * 8
        rows, combine = times * 4 * self.units * self.hidden, 2 * self._parts / self.chains / _BANKS
        read = times * self.hidden * wide * 2 / _CACHE
        work = max(read, rows * wide / _MULTIPLY + rows * 2 / _BANKS) + combine
        step = max(_LATENCY + work, self.chains * work)
        return (step * (self.steps + self.span - 1) + _LAUNCH) * launches

    # -- bytes ------------------------------------------------------------------------------------------------

    @property
    def states(self) -> int:
        """All states of a layer, the initial one first."""
        return (self.steps + 1) * self.batch * self.hidden * 2

    @property
    def gates(self) -> int:
        """The gates of a layer."""
        return self.steps * self.padded * self.hidden * 8

    @property
    def cells(self) -> int:
        """The cells of a layer, in float32."""
        return self.steps * self.padded * self.hidden * 4

    @property
    def reserve(self) -> int:
        """The values that the forward pass saves for the gradient: states, gates, cells."""
        return self.layers * (self.states + self.gates + self.cells)

    def text(self, dtype: DType, **more: int) -> str:
        """The constants of the kernels."""
        common = {"STEPS": self.steps, "BATCH": self.batch, "H": self.hidden, "SPAN": self.span, **more}
        head = f"typedef {c_type(dtype)} T;\n" + constants(**common)
        if self.alone:
            return head
        if PATIENCE is not None:
            head += constants(PATIENCE=PATIENCE)
        return head + constants(
            UNITS=self.units,
            TILES=self.tiles,
            CHAINS=self.chains,
            GROUPS=self.groups,
            WARPS=self.warps,
            BUFFERS=self.buffers,
            HELD=int(self.held),
        )


def tiling(op: Rnn | RnnGrad, sizes: Sizes, dtypes: Sequence[DType], machine: Machine) -> Tiling | None:
    """The division of a network among blocks, None for networks that these kernels do not support."""
    if (
        op.mode not in ("lstm", "gru")
        or op.bidirectional
        or op.projection
        or not sizes.batch
        or not sizes.inputs
    ):
        return None
    if len(set(dtypes)) > 1 or dtypes[0] not in (float16, bfloat16) or op.hidden % 128:
        return None
    return _tiling(machine, sizes.steps, sizes.batch, op.hidden, op.layers)


@lru_cache(maxsize=256)
def _tiling(machine: Machine, steps: int, batch: int, hidden: int, layers: int) -> Tiling | None:
    waves = (True, False) if layers > 1 else (False,)
    found = [
        Tiling(machine, steps, batch, hidden, layers, *chosen)
        for chosen in product(waves, (8, 16, 32), range(1, -(-batch // 8) + 1), (1, 2))
    ]
    found.append(Tiling(machine, steps, batch, hidden, layers, False, hidden, -(-batch // 8)))
    found = [t for t in found if t.fits and index_type(t.padded * t.hidden * t.steps * 4) == "i32"]
    return min(found, key=lambda t: t.nanoseconds, default=None)


# ---------------------------------------------------------------------------------------------------------- steps


@dataclass(frozen=True)
class _Job:
    """A product of the backward pass: C [m, n] = A B. transposed: A is stored as [k, m]."""

    a: Place
    b: Place
    c: Place
    m: int
    n: int
    k: int
    transposed: bool

    def tiles(self, edge: int) -> int:
        """Tiles of `edge` rows and columns."""
        return -(-self.m // edge) * -(-self.n // edge)

    @property
    def small(self) -> bool:
        """Whether it runs with others in one launch."""
        return self.n % 8 == 0 and 2 * self.m * self.n * self.k <= _SMALL_FLOPS and self.k <= _SMALL_SUMS


@dataclass(frozen=True)
class NoRoom:
    """Takes the place of a launch for which the device has no room."""

    blocks: int

    def bind(self, device: Device, call: Call) -> Run:
        """Raise RuntimeError."""
        raise RuntimeError(
            f"rnn: {self.blocks} blocks do not fit on {device} at once; other work holds a part of it for good "
            "(a green context, MPS): take another policy than 'fastest' and 'direct'"
        )


def _after(place: Place, nbytes: int) -> Place:
    return Place(place.kind, place.index, place.offset + nbytes)


@dataclass(frozen=True)
class _Builder:
    """Common part of both directions: sizes, the places of weights and reserve, and workspace for products."""

    tiling: Tiling
    op: Rnn | RnnGrad
    sizes: Sizes
    dtype: DType
    weights: tuple[Place, ...]
    reserve: Place
    device: Device
    policy: Policy

    @property
    def _rows(self) -> int:
        return self.sizes.steps * self.sizes.batch

    @property
    def _gates(self) -> int:
        return self.op.gates * self.op.hidden

    @property
    def bytes_of_gates(self) -> int:
        """Of the sums of all gates of a layer, or their gradients."""
        return self._rows * self._gates * 2

    @property
    def bytes_of_output(self) -> int:
        """Of all outputs of a layer."""
        return self._rows * self.op.hidden * 2

    def _width(self, layer: int) -> int:
        return self.op.hidden if layer else self.sizes.inputs

    def _weight(self, layer: int, which: int) -> Place:
        """W_ih, W_hh, b_ih, b_hh of a layer; without biases any address."""
        each = 4 if self.op.bias else 2
        return self.weights[layer * each + which % each]

    def _table(self, first: int) -> Table:
        layers = range(first, first + self.tiling.span)
        return Table(tuple(self._weight(layer, which) for layer in layers for which in range(4)))

    def _states(self, layer: int, step: int) -> Place:
        """A layer's states from a step on; 0: the initial state."""
        t = self.tiling
        return _after(self.reserve, layer * t.states + step * t.batch * t.hidden * 2)

    def _gates_of(self, layer: int) -> Place:
        t = self.tiling
        return _after(self.reserve, t.layers * t.states + layer * t.gates)

    def _cells_of(self, layer: int) -> Place:
        t = self.tiling
        return _after(self.reserve, t.layers * (t.states + t.gates) + layer * t.cells)

    def _state(self, place: Place, layer: int) -> Place:
        """One layer of [L, B, H]."""
        return _after(place, layer * self.sizes.batch * self.op.hidden * 2)

    def _input(self, layer: int, x: Place) -> Place:
        """A layer's input, [T, B, .]."""
        return self._states(layer - 1, 1) if layer else x

    def _matmul(self, op: Matmul, shapes: tuple[tuple[int, int], tuple[int, int]]) -> Plan:
        return matmul_plan(op, [Spec(s, self.dtype) for s in shapes], NONE, self.device, self.policy)

    def project(self, layer: int) -> Plan:
        """[T B, I] times W_ih, transposed."""
        width = self._width(layer)
        return self._matmul(Matmul(False, True), ((self._rows, width), (self._gates, width)))

    def _as_part(self, job: _Job, offset: int) -> SubPlan:
        shape = (job.k, job.m) if job.transposed else (job.m, job.k)
        plan = self._matmul(Matmul(job.transposed, False), (shape, (job.k, job.n)))
        return SubPlan(plan, (job.a, job.b), (job.c,), offset)

    def _text(self, misaligned: bool, **more: int) -> str:
        known = {"GRU": int(self.op.mode == "gru"), "BIAS": int(self.op.bias), "CROOKED": int(misaligned)}
        return self.tiling.text(self.dtype, **known, **more)

    def _launch(self, name: str, arguments: tuple[Place | Table, ...], text: str) -> Launch | Together:
        t = self.tiling
        if t.alone:
            return Launch(Program(f"{name}_alone", _ALONE, text), (t.groups,), (t.hidden * 2,), arguments)
        refuse = (NoRoom(prod(t.grid)),)
        program = Program(name, _TOGETHER, text)
        return Together(program, t.grid, (t.threads,), arguments, (), t.shared, refuse, counted=False)

    # -- forward ----------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Place,
        first: tuple[Place, ...],
        y: Place,
        last: tuple[Place, ...],
        train: bool,
        work: int,
        misaligned: bool,
    ) -> tuple[list[Bindable], int]:
        """(steps, end of their workspace) of the forward pass; its workspace begins at `work`."""
        t = self.tiling
        projected, offset = scratch(work), round_up(work + self.bytes_of_gates, WORKSPACE_ALIGNMENT)
        steps: list[Bindable] = [] if t.alone else [Fill(self.reserve, 0xFF, t.layers * t.states)]
        end = offset
        for layer in range(0, t.layers, t.span):
            plan = self.project(layer)
            steps.append(SubPlan(plan, (self._input(layer, x), self._weight(layer, 0)), (projected,), offset))
            end = max(end, offset + plan.workspace)
            states = [self._state(p, layer) for p in first], [self._state(p, layer) for p in last]
            kept = self._states(layer, 0), self._gates_of(layer), self._cells_of(layer)
            places: tuple[Place | Table, ...] = (
                projected,
                self._table(layer),
                *states[0],
                *kept,
                y,
                *states[1],
            )
            top = layer + t.span == t.layers
            text = self._text(
                misaligned, FORWARD=1, TRAIN=int(train), TOP=int(top), SEQ=int(train or not top)
            )
            steps.append(self._launch("rnn_forward", places, text))
        return steps, end

    # -- backward ---------------------------------------------------------------------------------------------

    def backward(
        self,
        x: Place,
        cells: Place,
        dy: Place,
        dlast: tuple[Place, ...],
        dx: Place,
        dfirst: tuple[Place, ...],
        dweights: Sequence[Place],
        work: int,
        misaligned: bool,
    ) -> tuple[list[Bindable], int]:
        """(steps, end of their workspace) of all gradients; their workspace begins at `work`."""
        t, span = self.tiling, self.tiling.span
        partial, each = 4 * t.hidden * t.padded * 4, span * self.bytes_of_gates
        turns, for_below = span * 2 * partial, (span - 1) * t.steps * partial
        sizes = (
            each if self.op.mode == "gru" else 0,
            each,
            0 if t.alone else turns + for_below,
            t.layers * self._slices * 4 * t.hidden * 4,
            0 if t.wave else self.bytes_of_output,
        )
        ends_of = [*accumulate((round_up(n, WORKSPACE_ALIGNMENT) for n in sizes), initial=work)]
        da, ds, own, dbias, between = map(scratch, ends_of[:-1])  # for an LSTM da is ds
        # What blocks wait for: the gradients of gates; a GRU's n from the input only if a layer below reads it.
        awaited = ds if span == 1 else da
        clear = Fill(awaited, 0xFF, dbias.offset - awaited.offset)
        end = work = ends_of[-1]
        steps: list[Bindable] = []
        for first in reversed(range(0, t.layers, span)):
            arriving = dy if first + span == t.layers else between
            given = (self._gates_of(first), self._cells_of(first), self._state(cells, first), arriving)
            sums = (da, ds) if t.alone else (da, ds, own, _after(own, turns))
            ends = [[self._state(p, first) for p in places] for places in (dlast, dfirst)]
            found = _after(dbias, first * self._slices * 4 * t.hidden * 4)
            arguments = (self._table(first), *given, *ends[0], *sums, *ends[1], found)
            steps += [] if t.alone else [clear]
            steps.append(self._launch("rnn_backward", arguments, self._text(misaligned, BACKWARD=1)))
            jobs = self._jobs(first, x, (da, ds), dx if first == 0 else between, dweights)
            small = [job for job in jobs if job.small]
            parts = [self._as_part(job, work) for job in jobs if not job.small]
            end = max(end, *(work + part.plan.workspace for part in parts), 0)
            steps += parts
            if small or self.op.bias:
                layers = range(first, first + span)
                steps.append(self._grads(small, found, dweights, layers, misaligned))
        return steps, end

    @property
    def _slices(self) -> int:
        """Partial sums of a bias's gradient."""
        return self.tiling.groups * self.tiling.tiles

    def _jobs(
        self, first: int, x: Place, dgates: tuple[Place, Place], dx: Place, dweights: Sequence[Place]
    ) -> list[_Job]:
        """The gradients of a launch's matrices, and of its first layer's input, from those of its gates."""
        each, hidden, gates, rows = 4 if self.op.bias else 2, self.op.hidden, self._gates, self._rows
        width = self._width(first)
        jobs = [_Job(dgates[0], self._weight(first, 0), dx, rows, width, gates, False)]
        for layer in range(first, first + self.tiling.span):
            wanted = ((self._width(layer), self._input(layer, x)), (hidden, self._states(layer, 0)))
            for which, (width, read) in enumerate(wanted):
                a = _after(dgates[which], (layer - first) * self.bytes_of_gates)
                jobs.append(_Job(a, read, dweights[layer * each + which], gates, width, rows, True))
        return jobs

    def _grads(
        self, jobs: Sequence[_Job], dbias: Place, dweights: Sequence[Place], layers: range, misaligned: bool
    ) -> Launch:
        """Small products and the gradients of biases in one launch."""
        many = sum(job.tiles(128) for job in jobs) >= self.tiling.machine.multiprocessors
        edge = 128 if many else 64
        firsts = [*accumulate((job.tiles(edge) for job in jobs), initial=0)]
        sums = -(-len(layers) * 4 * self.op.hidden // (edge * 2)) if self.op.bias else 0
        columns = {
            "FIRST": firsts,
            "M_OF": [job.m for job in jobs],
            "N_OF": [job.n for job in jobs],
            "K_OF": [job.k for job in jobs],
            "A_TURNED": [int(job.transposed) for job in jobs],
        }
        numbers = {"EDGE": edge, "JOBS": len(jobs), "PLACES": max(len(jobs), 1)}
        text = self._text(misaligned, LAYERS=len(layers), SLICES=self._slices, **numbers)
        text += "".join(
            f"__device__ const int {name}[] = {{{', '.join(map(str, values or [0]))}}};\n"
            for name, values in columns.items()
        )
        products = Table(tuple(place for job in jobs for place in (job.a, job.b, job.c)) or (0, 0, 0))
        to = [dweights[layer * 4 + which] for layer in layers for which in (2, 3)] if self.op.bias else []
        biases = Table(tuple(to) or (0,) * (2 * len(layers)))
        program = Program("rnn_grads", "rnn/gradients.cu", text)
        return Launch(program, (firsts[-1] + sums,), (edge * 2,), (products, dbias, biases))


# ---------------------------------------------------------------------------------------------------------- plans


def forward_plan(op: Rnn, inputs: Sequence[Spec], found: Tiling, device: Device, policy: Policy) -> Plan:
    """(y, hn, cn, reserve) from x, h0, c0 and the weights; all row-major; c's are the LSTM's."""
    outputs = [s.fixed for s in op.infer(*inputs)]
    work = 0 if op.reserve else round_up(found.layers * found.states, WORKSPACE_ALIGNMENT)
    if op.reserve:
        outputs[-1] = Spec((found.reserve,), uint8).fixed
    weights = tuple(source(i) for i in range(1 + op.states, len(inputs)))
    reserve = target(1 + op.states) if op.reserve else scratch()
    sizes = Sizes(*inputs[0].shape)
    build = _Builder(found, op, sizes, inputs[0].dtype, weights, reserve, device, policy)

    def steps(misaligned: bool) -> tuple[list[Bindable], int]:
        first, last = (source(1), source(op.states)), (target(1), target(op.states))
        return build.forward(source(0), first, target(0), last, op.reserve, work, misaligned)

    return _planned(op, inputs, outputs, steps, device)


def gradient_plan(op: RnnGrad, inputs: Sequence[Spec], found: Tiling, device: Device, policy: Policy) -> Plan:
    """(dx, dh0, dc0, *dweights, spent reserve); without a reserve the forward pass runs first.

    The reserve is not modified: the spent one is empty.
    """
    outputs = [s.fixed for s in op.infer(*inputs)]
    inputs, sizes, n = list(inputs), Sizes(*inputs[0].shape), op.states
    head = 3 + 2 * n
    weights = tuple(source(i) for i in range(head + op.reserve, len(inputs)))
    reserve, y = source(head), source(1 + n)
    if op.reserve:
        inputs[head] = Spec((found.reserve,), uint8).fixed
    else:
        reserve = scratch()
        y = scratch(round_up(found.reserve, WORKSPACE_ALIGNMENT))
    build = _Builder(found, op, sizes, inputs[0].dtype, weights, reserve, device, policy)

    def steps(misaligned: bool) -> tuple[list[Bindable], int]:
        before: list[Bindable] = []
        work = end = 0
        if not op.reserve:
            # The last states share memory with the gradients of the initial ones, which are written later: nobody
            # reads them.
            work = round_up(y.offset + build.bytes_of_output, WORKSPACE_ALIGNMENT)
            first, last = (source(1), source(n)), (target(1), target(n))
            before, end = build.forward(source(0), first, y, last, True, work, misaligned)
        dweights = [target(1 + n + i) for i in range(len(weights))]
        dlast, dfirst = (source(3 + n), source(2 + 2 * n)), (target(1), target(n))
        places = source(0), source(n), source(2 + n), dlast, target(0), dfirst
        after, last_end = build.backward(*places, dweights, work, misaligned)
        return [*before, *after], max(end, last_end)

    return _planned(op, inputs, outputs, steps, device)


def _planned(
    op: Rnn | RnnGrad,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    steps: Callable[[bool], tuple[list[Bindable], int]],
    device: Device,
) -> Plan:
    """The plan of the (steps, bytes of workspace) for aligned addresses, and for unaligned ones."""
    made, end = steps(False)
    label = f"{op.name} resident"
    return kernel_plan(
        device, inputs, outputs, made, label=label, workspace=end, plain=lambda: tuple(steps(True)[0])
    )
