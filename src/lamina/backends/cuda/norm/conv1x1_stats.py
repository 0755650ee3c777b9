"""1x1 convolutions whose blocks also sum their results, for the following batch norm or the following gradient of
one.

Otherwise a batch norm's sums read the whole result once more. cuDNN has engines with these sums for the forward
direction only, and they are slower than its others (cuDNN 9.19).
"""

from __future__ import annotations

from dataclasses import dataclass

from lamina.backends.cuda.launch.program import Launch, Place, Program, c_type, constants, scratch, source
from lamina.ops.primitives.window import Window
from lamina.runtime import Machine
from lamina.spec import DType, Spec, bfloat16, channels_last, float16

_FILE = "norm/conv1x1_stats.cu"
_THREADS, _DEEP = 512, 64
#: Bytes of shared memory of a stage, for all teams.
_STAGE = 2 * (_THREADS // 2) * _DEEP
#: Elements of the filter that fit into shared memory.
_HELD = 1 << 15


@dataclass(frozen=True)
class ProductTiling:
    """A product [rows, depth] x [depth, columns], its result cut into tiles of `tall` x `wide`."""

    rows: int
    columns: int
    depth: int
    machine: Machine

    @property
    def wide(self) -> int:
        """Columns of a block: 128 where their filter fits into shared memory, with a stage beside it."""
        fits = 128 * self.depth <= _HELD and self._room(128) >= _STAGE
        return 64 if self.columns % 128 or not fits else 128

    @property
    def fits(self) -> bool:
        """Whether a block of the machine can have the filter and a stage in its shared memory."""
        return self._room(self.wide) >= _STAGE

    @property
    def teams(self) -> int:
        """Teams of a block: more, with smaller tiles, if the products take longer than reads and writes."""
        return 4 if self.columns >= 512 else 2

    @property
    def tall(self) -> int:
        """Rows of a tile."""
        return _THREADS // 2 // self.teams

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks that read the same rows are adjacent; there is one for each multiprocessor."""
        tiles, across = -(-self.rows // self.tall), self.columns // self.wide
        return across, min(max(1, self.machine.multiprocessors // across), -(-tiles // self.teams))

    @property
    def parts(self) -> int:
        """Teams that share the rows."""
        return self.teams * self.grid[1]

    @property
    def stages(self) -> int:
        """Stages of the first operand that a team has in shared memory: up to four, as far as there is room."""
        return min(4, self._room(self.wide) // _STAGE)

    def _kept(self, wide: int) -> int:
        """Bytes for the filter, and for 8 rows of results of each warp."""
        return 2 * wide * self.depth + _THREADS // 32 * 8 * wide * 4

    def _room(self, wide: int) -> int:
        """Bytes of shared memory that are left for stages."""
        numbers = 3 * wide * 4  # of the columns, beside the dynamic shared memory of a launch
        return self.machine.shared_memory - numbers - self._kept(wide)

    @property
    def shared(self) -> int:
        """Bytes of dynamic shared memory of a launch."""
        return self._kept(self.wide) + self.stages * _STAGE

    @property
    def workspace(self) -> int:
        """Bytes for the partial sums [2, columns, parts]."""
        return 2 * self.columns * self.parts * 4

    def text(self, dtype: DType) -> str:
        """Types and sizes."""
        return f"typedef {c_type(dtype)} T;\n" + constants(
            ROWS=self.rows,
            OUT=self.columns,
            DEPTH=self.depth,
            ACROSS=self.wide // 64,
            TEAMS=self.teams,
            PARTS=self.parts,
            STAGES=self.stages,
        )


def tiling(window: Window, given: Spec, w: Spec, result: Spec, machine: Machine) -> ProductTiling | None:
    """The tiling of a convolution or its data gradient, given -> result; None where these kernels do not support
    it."""
    dense = all(s.ndim == 4 and s.physical == channels_last(s.shape) for s in (given, result))
    point = window == Window((1, 1), ((0, 0), (0, 0)), (1, 1)) and w.shape[2:] == (1, 1)
    if not dense or not point or given.dtype not in (float16, bfloat16) or result.numel >= 2**31:
        return None
    depth, columns = given.shape[1], result.shape[1]
    lies = w.physical.strides[:2] == (w.shape[1], 1) and {depth, columns} == set(w.shape[:2])
    if not lies or depth % _DEEP or 64 * depth > _HELD or columns % 64 or result.numel == 0:
        return None
    found = ProductTiling(result.numel // columns, columns, depth, machine)
    return found if found.fits else None


def forward(tiles: ProductTiling, dtype: DType, y: Place) -> Launch:
    """y = conv(input 0, input 1), and the sums of y and of its square at the start of the workspace."""
    given = [source(0), source(1), *(source(0),) * 7]
    return _launch(tiles, dtype, constants(FORWARD=1, ADDED=0, MASKED=0, NORM_RELU=0), [*given, y])


@dataclass(frozen=True)
class Behind:
    """The steps after a data gradient: a sum and relu's gradient, and the norm whose gradient needs the sums.

    added, y: places of the addend and of relu's output, or None; bits: y is a bit mask of where that is positive.
    norm: x, scale, mean, r, and its bias where it has relu, clipped at `hi`.
    """

    added: Place | None
    y: Place | None
    norm: tuple[Place, ...]
    hi: float | None = None
    bits: bool = False


def data_grad(tiles: ProductTiling, dtype: DType, behind: Behind, dx: Place) -> Launch:
    """dx from inputs 0 (the gradient) and 1 (the filter), and the norm's sums at the start of the workspace."""
    masked = 0 if behind.y is None else 1 + behind.bits
    added, relu = int(behind.added is not None), int(len(behind.norm) > 4)
    text = constants(FORWARD=0, ADDED=added, MASKED=masked, NORM_RELU=relu)
    text += "" if behind.hi is None else constants(HI=repr(float(behind.hi)))
    nothing = source(0)
    norm = [*behind.norm, *(nothing,) * (5 - len(behind.norm))]
    given = [source(0), source(1), behind.added or nothing, behind.y or nothing, *norm]
    return _launch(tiles, dtype, text, [*given, dx])


def _launch(tiles: ProductTiling, dtype: DType, switches: str, places: list[Place]) -> Launch:
    program = Program("point_conv", _FILE, tiles.text(dtype) + switches)
    return Launch(program, tiles.grid, (_THREADS,), (*places, scratch()), tiles.shared)
