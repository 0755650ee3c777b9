"""Gradients of norms over short rows in one pass (layer_norm_backward.cu): layer norm and RMS norm of up to 1,024
features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.backends.cuda.launch.program import (
    VECTOR,
    Launch,
    Place,
    Program,
    c_type,
    constants,
    lanes_of,
    round_up,
)
from lamina.runtime import Machine
from lamina.spec import DType, Spec

_FILE = "norm/layer_norm_backward.cu"
#: The most elements of a row that a lane holds in registers: of float64, and of other types.
_MOST_WIDE, _MOST = 16, 32
#: Threads per block, and the most resident blocks per multiprocessor; warps of a block that adds up sums.
_THREADS, _RESIDENT, _ADDING = 256, 4, 32
#: Registers of a thread besides rows, scales and sums; and the most that allow prefetching the next row.
_OTHER, _ROOM = 40, 220


@dataclass(frozen=True)
class ShortRows:
    """A row-major tensor of `rows` rows of `count` elements.

    added: whether a tensor is added to x's gradient. aligned: whether addresses take accesses of 16 bytes.
    """

    x: Spec
    rows: int
    count: int
    centred: bool
    machine: Machine
    added: bool = False
    aligned: bool = True

    @property
    def fits(self) -> bool:
        """Whether lanes of a warp hold a row."""
        return self.rows > 0 and 0 < self.turns * self.width <= self._most

    @property
    def width(self) -> int:
        """Elements per access."""
        width = VECTOR // self.x.dtype.itemsize if self.aligned else 1
        while self.count % width:
            width //= 2
        return width

    @property
    def lanes(self) -> int:
        """Lanes of a warp that share a row."""
        return lanes_of(self.count // self.width, self._most // self.width)[0]

    @property
    def turns(self) -> int:
        """Accesses of a lane per row."""
        return lanes_of(self.count // self.width, self._most // self.width)[1]

    @property
    def _most(self) -> int:
        return _MOST if self.x.dtype.itemsize <= 4 else _MOST_WIDE

    @property
    def _registers(self) -> tuple[int, int]:
        """Registers of a thread: with one row of all operands, and the extra ones for a second row."""
        held, compute = self.turns * self.width, self.x.dtype.compute.itemsize
        row = (2 + self.added) * held * self.x.dtype.itemsize // 4
        return _OTHER + (2 + self.centred) * held * compute // 4 + row, row

    @property
    def ahead(self) -> bool:
        """Whether registers suffice to prefetch the next row."""
        return sum(self._registers) <= _ROOM

    @property
    def resident(self) -> int:
        """Resident blocks per multiprocessor."""
        one, more = self._registers
        needed = round_up(one + more * self.ahead, 8)
        return max(1, min(_RESIDENT, self.machine.registers // (_THREADS * needed)))

    @property
    def blocks(self) -> int:
        """Blocks, each with its own sums: as many as are resident, each processing many rows."""
        at_once = _THREADS // self.lanes
        return min(self.machine.multiprocessors * self.resident, max(1, -(-self.rows // at_once)))

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks' sums."""
        return self.blocks * (1 + self.centred) * self.count * self.x.dtype.compute.itemsize

    def gradients(
        self,
        operands: Sequence[Place],
        results: tuple[Place, Place],
        sums: Place,
        totals: Sequence[Place],
        out: DType,
        steps: str = "",
    ) -> tuple[Launch, Launch]:
        """The launches.

        operands: g (or the operands from which it is computed), x, scale, mean, r, the addend. results: dx in the
            type `out`, and optionally in x's type. totals: dscale, dbias. Absent ones have any address. steps: how g
            is computed, and whether dx is kept in x's type.
        """
        text = f"typedef {c_type(self.x.dtype)} T;\ntypedef {c_type(out)} Y;\n" + constants(
            V=self.width, COUNT=self.count, ROWS=self.rows, BLOCKS=self.blocks, RESIDENT=self.resident,
            LANES=self.lanes, TURNS=self.turns, AHEAD=int(self.ahead), CENTRED=int(self.centred),
            ADDED=int(self.added),
        )  # fmt: skip
        columns = (1 + self.centred) * self.count
        first = Program("row_grad", _FILE, text + (steps or constants(KEPT=0)) + constants(ROW_GRAD=1))
        last = Program("row_grad_totals", _FILE, text + constants(ROW_GRAD_TOTALS=1, WARPS=_ADDING))
        return (
            Launch(first, (self.blocks,), (_THREADS,), (*operands, *results, sums)),
            Launch(last, (-(-columns // 32),), (32 * _ADDING,), (sums, *totals)),
        )
