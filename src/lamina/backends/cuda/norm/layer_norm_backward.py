"""Gradients of norms over short rows in one pass (rows.cu): layer norm and RMS norm of up to 1,024 features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lamina.backends.cuda.launch.program import VECTOR, Launch, Place, Program, c_type, constants
from lamina.runtime import Machine
from lamina.spec import Spec

_FILE = "norm/layer_norm_backward.cu"
#: Elements of a row that a lane holds in registers: at most, and up to which two blocks fit a multiprocessor.
_MOST, _FEW = 32, 16
_WARPS = 8


@dataclass(frozen=True)
class ShortRows:
    """A row-major tensor of `rows` rows of `count` elements."""

    x: Spec
    rows: int
    count: int
    centred: bool
    machine: Machine

    @property
    def fits(self) -> bool:
        """Whether lanes of a warp share a row out evenly, 16 bytes at a time, and hold it."""
        most = _MOST if self.x.dtype.itemsize <= 4 else _FEW
        return self.rows > 0 and self.count % (32 * self.width) == 0 and self.count <= 32 * most

    @property
    def width(self) -> int:
        """Elements per access."""
        return VECTOR // self.x.dtype.itemsize

    @property
    def resident(self) -> int:
        """Blocks on a multiprocessor at a time."""
        return 2 if self.count <= 32 * _FEW else 1

    @property
    def blocks(self) -> int:
        """Blocks, each with sums of its own: as many as run at once, for each goes through many rows."""
        return min(self.machine.multiprocessors * self.resident, max(1, -(-self.rows // _WARPS)))

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks' sums."""
        return self.blocks * (1 + self.centred) * self.count * self.x.dtype.compute.itemsize

    def gradients(
        self, operands: Sequence[Place], dx: Place, sums: Place, totals: Sequence[Place]
    ) -> tuple[Launch, Launch]:
        """The launches. operands: g, x, scale, mean (or any address), r. totals: dscale, dbias (or any address)."""
        text = f"typedef {c_type(self.x.dtype)} T;\n" + constants(
            V=self.width, COUNT=self.count, ROWS=self.rows, BLOCKS=self.blocks, RESIDENT=self.resident,
            TURNS=self.count // (32 * self.width), CENTRED=int(self.centred),
        )  # fmt: skip
        columns = (1 + self.centred) * self.count
        first = Program("row_grad", _FILE, text + constants(ROW_GRAD=1))
        last = Program("row_grad_totals", _FILE, text + constants(ROW_GRAD_TOTALS=1))
        return (
            Launch(first, (self.blocks,), (256,), (*operands, dx, sums)),
            Launch(last, (columns // 32,), (256,), (sums, *totals)),
        )
