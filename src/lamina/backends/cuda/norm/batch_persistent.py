"""Batch norm in one launch with all blocks resident: channels last, elements kept in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lamina.backends.cuda.launch.program import (
    VECTOR,
    Argument,
    Bindable,
    Number,
    Program,
    Table,
    Together,
    c_type,
    constants,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.select.formulations import Formulation
from lamina.ops.primitives.norm import BatchNorm, BatchNormGrad
from lamina.runtime import Machine
from lamina.spec import Spec, bfloat16, channels_last, float16, float32

_FILE = "norm/batch_persistent.cu"
#: Threads of a block; there is a block for each multiprocessor.
_THREADS = 512
#: Bytes of shared memory that the kernels declare: the rest of a block's limit is for elements that are kept.
_DECLARED = 35 << 10
#: The most adjacent vectors that a block reads, and the fewest if there are as many.
_MOST_LANES, _LEAST_LANES = 64, 8
#: The fraction of the GPU that may be idle so that fewer blocks share channels.
_IDLE = 0.04


@dataclass(frozen=True)
class BatchNormTiling:
    """At most `blocks` blocks over [rows, channels]; `width` elements per access, `arrays` tensors are kept in `room`
    bytes of shared memory, `unroll` accesses of each are in flight.
    """

    rows: int
    channels: int
    width: int
    arrays: int
    unroll: int
    blocks: int
    room: int

    @cached_property
    def groups(self) -> int:
        """Blocks along the channels: the most with few idle threads and multiprocessors. Each block adds up the sums
        of all blocks that share its channels: these are then fewer, and of fewer channels.
        """
        vectors = self.channels // self.width
        few, most = -(-vectors // _MOST_LANES), max(1, vectors // _LEAST_LANES)

        def busy(groups: int) -> float:
            lanes = -(-vectors // groups)
            threads = _THREADS // lanes * lanes / _THREADS
            return vectors / (lanes * groups) * threads * (self.blocks // groups * groups / self.blocks)

        possible = range(few, max(few, min(most, self.blocks)) + 1)
        enough = max(map(busy, possible)) - _IDLE
        return max(groups for groups in possible if busy(groups) >= enough)

    @cached_property
    def lanes(self) -> int:
        """Threads along the channels."""
        return -(-self.channels // self.width // self.groups)

    @cached_property
    def part(self) -> int:
        """Rows of a block: at least one per thread, however small the tensor is."""
        splits = max(1, min(self.blocks // self.groups, self.rows * self.lanes // (_THREADS * 2)))
        return -(-self.rows // splits)

    @property
    def splits(self) -> int:
        """Blocks along the rows."""
        return -(-self.rows // self.part)

    @property
    def held(self) -> int:
        """Iterations whose elements are kept."""
        turns = -(-self.part // (_THREADS // self.lanes))
        most = self.room // (_THREADS * VECTOR * self.arrays) // self.unroll
        return min(most, -(-turns // self.unroll)) * self.unroll

    @property
    def shared(self) -> int:
        """Bytes of shared memory for kept elements."""
        return self.held * _THREADS * VECTOR * self.arrays

    @property
    def workspace(self) -> int:
        """Bytes for the sums of all blocks."""
        return 2 * self.splits * self.channels * 4

    @property
    def sizes(self) -> Table:
        """The kernels' sizes."""
        return Table((self.rows, self.channels, self.lanes, self.part, self.splits, self.held))

    def text(self, x: Spec, activation: str, direction: str, machine: Machine) -> str:
        """The kernels' constants: types, and the work beside the norm. direction: FORWARD or BACKWARD."""
        types = f"typedef {c_type(x.dtype)} T;\n" + constants(V=self.width, MOST_LANES=_MOST_LANES)
        return types + activation + constants(STREAM=int(_streams(x, machine)), **{direction: 1})


def tiling(x: Spec, arrays: int, machine: Machine) -> BatchNormTiling | None:
    """The division of x among blocks, None for tensors that these kernels do not support."""
    blocks, room = machine.multiprocessors, machine.shared_memory - _DECLARED
    channels, lies = x.shape[1], x.ndim == 2 or x.physical == channels_last(x.shape)
    if x.dtype not in (float16, bfloat16, float32) or not lies or x.numel + (1 << 22) > 2**31:
        return None
    width = VECTOR // x.dtype.itemsize
    if channels % width or -(-channels // width // _MOST_LANES) > blocks:
        return None
    return BatchNormTiling(x.numel // channels, channels, width, arrays, 8 // arrays, blocks, room)


def _streams(x: Spec, machine: Machine) -> bool:
    """Whether the result is too large to stay in the cache for its next reader."""
    return x.nbytes > machine.l2_bytes * 2 // 5


def forward(
    op: BatchNorm, x: Spec, activation: str, otherwise: tuple[Bindable, ...], spare: int, machine: Machine
) -> Formulation | None:
    """A single launch; `otherwise` runs (with `spare` bytes of workspace) where the device is too small."""
    found = tiling(x, 1, machine)
    if found is None:
        return None
    places = [*(source(i) for i in range(5)), source(5 if op.residual else 0), scratch()]
    numbers = [Number(n, "f64") for n in (op.epsilon, op.momentum, found.rows / (found.rows - 1))]
    results: list[Argument] = [*(target(i) for i in (1, 2, 3, 4, 0)), found.sizes, *numbers]
    grid = (found.groups, found.splits)
    program = Program("batch_norm_resident", _FILE, found.text(x, activation, "FORWARD", machine))
    step = Together(program, grid, (_THREADS,), tuple(places), tuple(results), found.shared, otherwise)
    return Formulation("resident", steps=(step,), scratch=max(found.workspace, spare))


def backward(
    op: BatchNormGrad,
    x: Spec,
    activation: str,
    otherwise: tuple[Bindable, ...],
    spare: int,
    machine: Machine,
    again: bool = False,
) -> Formulation | None:
    """A single launch; `otherwise` runs (with `spare` bytes of workspace) where the device is too small.

    again: the activation needs the norm's result, and so the bias, which is input 5.
    """
    found = tiling(x, 2, machine) if op.moving else None
    if found is None:
        return None
    last = source(5) if again or op.relu else source(2)  # y or the bias; else any address
    bias, y, dz = (source(2), last, target(3)) if op.residual else (last, source(0), target(0))
    places = [*(source(i) for i in range(5)), bias, y, dz, scratch()]
    results = (target(1), target(2), target(0), found.sizes)
    grid = (found.groups, found.splits)
    program = Program("batch_norm_grad_resident", _FILE, found.text(x, activation, "BACKWARD", machine))
    step = Together(program, grid, (_THREADS,), tuple(places), results, found.shared, otherwise)
    return Formulation("resident", steps=(step,), scratch=max(found.workspace, spare))
