"""Factors of matrices with more rows than a panel has columns, in float64: launches, panel by panel, of many blocks.

Products with what lies behind a panel are most of the work and run on the whole device; a panel itself is one
block's. For smaller matrices one block for each is faster (`factorize`, `lu`, `qr`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from lamina.backends.cuda.launch.program import (
    Launch,
    Number,
    Place,
    Program,
    c_type,
    constants,
    round_up,
    scratch,
    source,
    target,
)
from lamina.ops.primitives.factorize import TriangularSolve
from lamina.runtime import Machine
from lamina.spec import Spec

#: The most columns of a panel, as in the kernels; columns of B that a block solves for at most.
PANEL, _COLUMNS = 32, 8
#: Columns of panels: as many as leave a panel in a block's shared memory.
_WIDTHS = (32, 16, 8)
#: Bytes of shared memory that kernels take beside what is asked for.
_STATIC = 20 << 10
#: Sides of a tile of a product, and threads of a block that copies or follows, as in the kernels.
_TILE, _COPYING, _FOLLOWING = 64, 256, 128


@dataclass(frozen=True)
class _Kernels:
    """The kernels of one file for matrices of one size. count: matrices."""

    file: str
    text: str
    count: int

    def launch(
        self,
        name: str,
        threads: int,
        *arguments: Any,
        tiles: tuple[int, ...] = (),
        shared: int = 0,
        width: int = PANEL,
        inside: bool = False,
    ) -> Launch:
        """tiles: blocks of each matrix. width: columns of a panel; inside: it lies in shared memory."""
        about = constants(PANEL=width, IN_SHARED=int(inside), THREADS=threads)
        program = Program(name, self.file, self.text + about)
        return Launch(program, (self.count, *tiles), (threads,), arguments, shared)


@dataclass(frozen=True)
class _Panel:
    """One panel. rows: from its first column's row on. shared: bytes of shared memory, 0 where it does not fit."""

    first: int
    rows: int
    columns: int
    width: int
    shared: int

    @property
    def threads(self) -> int:
        """Of its block."""
        return 1024 if self.rows > 512 else 512


def _panels(rows: int, steps: int, machine: Machine) -> Iterator[_Panel]:
    """The panels of `steps` columns, from left to right."""
    first = 0
    while first < steps:
        left = rows - first
        fitting = [w for w in _WIDTHS if left * 8 * (w + 1) + 4 * left <= machine.shared_memory - _STATIC]
        width = fitting[0] if fitting else _WIDTHS[0]
        columns = min(width, steps - first)
        yield _Panel(first, left, columns, width, left * 8 * (width + 1) if fitting else 0)
        first += columns


def _tiles(n: int, size: int) -> int:
    return max(1, -(-n // size))


def _copying(elements: int) -> tuple[int]:
    """Blocks of a matrix that is copied, a few elements for each thread."""
    return (min(_tiles(elements, 4 * _COPYING), 1024),)


def _number(value: int) -> Number:
    return Number(value, "i32")


def columns_of_a_block(rows: int, columns: int, machine: Machine) -> int:
    """Columns of B whose solutions fit into a block's shared memory; 0 where not even one does."""
    return min(_COLUMNS, max(1, columns), (machine.shared_memory - _STATIC) // (8 * rows))


@dataclass(frozen=True)
class Workspace:
    """Where tables lie in scratch memory, one after another, and the bytes of all."""

    places: tuple[Place, ...]
    nbytes: int

    @staticmethod
    def of(*sizes: int) -> Workspace:
        """For tables of so many bytes."""
        places, at = [], 0
        for size in sizes:
            places.append(scratch(at))
            at += round_up(size, 256)
        return Workspace(tuple(places), at)


def cholesky(x: Spec) -> tuple[list[Launch], int]:
    """(launches, bytes of scratch memory) of L and info of x [..., N, N]."""
    n, count = x.shape[-1], prod(x.shape[:-2])
    held = Workspace.of(8 * count * n * n, 8 * count * n * PANEL)
    w, diagonal = held.places
    sizes = constants(M=n, WIDTH=n, K=0, UPPER=0, UNIT=0, READS_A=n * n, READS_B=0, COLUMNS=1)
    kernels = _Kernels("matmul/panels_cholesky.cu", f"typedef {c_type(x.dtype)} T;\n{sizes}", count)
    launches = [kernels.launch("take_in", _COPYING, source(), w, target(1), tiles=_copying(n * n))]
    for first in range(0, n, PANEL):
        behind = max(0, n - first - PANEL)
        at, rows = _number(first), _tiles(behind, _FOLLOWING)
        launches.append(kernels.launch("panel_factor", _FOLLOWING, w, diagonal, target(1), at, tiles=(rows,)))
        if behind:
            tiles = _tiles(behind, _TILE)
            launches.append(kernels.launch("subtract_product", 256, w, at, tiles=(tiles, tiles)))
    out = kernels.launch("give_out", _COPYING, w, diagonal, target(), tiles=_copying(n * n))
    return [*launches, out], held.nbytes


def triangular_solve(op: TriangularSolve, a: Spec, b: Spec, count: int, machine: Machine) -> list[Launch]:
    """X of `count` systems; A or B may be one for all."""
    n, k = b.shape[-2:]
    columns = columns_of_a_block(n, k, machine)
    reads = [prod(s.shape[-2:]) if s.ndim > 2 else 0 for s in (a, b)]
    sizes = constants(M=n, WIDTH=n, K=k, UPPER=int(op.upper), UNIT=int(op.unit))
    sizes += constants(READS_A=reads[0], READS_B=reads[1], COLUMNS=columns)
    kernels = _Kernels("matmul/panels_cholesky.cu", f"typedef {c_type(a.dtype)} T;\n{sizes}", count)
    shared, tiles = 8 * n * columns, (_tiles(k, columns),)
    places = (source(0), source(1), target())
    return [kernels.launch("triangular_solve", 256, *places, tiles=tiles, shared=shared)]


class Eliminated:
    """LU factors with row exchanges of `count` matrices A [M, N], in one matrix with B [M, K] behind.

    launches: those that make them. w, pivots, info: where they lie, the rows of the exchanges from 0, and the 1-based
    index of the first pivot that is 0. left: whether L's rows are exchanged, too; without it U and the changed B are
    valid.
    """

    def __init__(
        self, a: Spec, b: Spec | None, count: int, machine: Machine, left: bool, info: Place | None = None
    ) -> None:
        m, n = a.shape[-2:]
        k = 0 if b is None else b.shape[-1]
        width, pivots = n + k, min(m, n)
        sizes = [8 * count * m * width, 8 * count * PANEL, 4 * count * pivots, 0 if info else 4 * count]
        held = Workspace.of(*sizes)
        self.w, order, self.pivots, own_info = held.places
        self.info, self.nbytes, self.count = info or own_info, held.nbytes, count
        reads = [0 if s is None or s.ndim == 2 else prod(s.shape[-2:]) for s in (a, b)]
        self._columns = columns_of_a_block(m, k, machine)
        self._rows, self._b_columns, self._elements = m, k, m * width
        text = f"typedef {c_type(a.dtype)} T;\n" + constants(
            M=m, N=n, K=k, WIDTH=width, PIVOTS=pivots, READS_A=reads[0], READS_B=reads[1]
        )
        text += constants(LEFT=int(left), COLUMNS=max(1, self._columns))
        self._kernels = _Kernels("matmul/panels_lu.cu", text, count)
        given = source(0), source(1 if b is not None else 0)
        begun = self._kernels.launch("take_in", _COPYING, *given, self.w, tiles=_copying(m * width))
        self.launches = [begun]
        for panel in _panels(m, pivots, machine):
            behind = width - panel.first - panel.columns
            self._eliminate(panel, order, behind, behind + panel.first * left)

    def _eliminate(self, panel: _Panel, order: Place, behind: int, others: int) -> None:
        """One panel's columns. behind, others: columns behind it, and those that follow its exchanges."""
        launch, at, width = self._kernels.launch, _number(panel.first), panel.width
        places, inside = (self.w, order, self.pivots), panel.shared > 0
        shared, all_places = panel.shared + 4 * panel.rows, (*places, self.info, at)
        self.launches.append(
            launch("panel_factor", panel.threads, *all_places, shared=shared, width=width, inside=inside)
        )
        if others:
            tiles: tuple[int, ...] = (_tiles(others, _FOLLOWING),)
            self.launches.append(launch("follow", _FOLLOWING, *places, at, tiles=tiles, width=width))
        if (below := panel.rows - panel.columns) and behind:
            tiles = (_tiles(below, _TILE), _tiles(behind, _TILE))
            self.launches.append(launch("subtract_product", 256, self.w, at, tiles=tiles, width=width))

    def solution(self) -> Launch:
        """X of A X = B, NaN where a pivot is 0."""
        shared, tiles = 8 * self._rows * self._columns, (_tiles(self._b_columns, self._columns),)
        return self._kernels.launch("solution", 256, self.w, self.info, target(), tiles=tiles, shared=shared)

    def stored(self) -> Launch:
        """The factors, and the rows of the exchanges from 1."""
        places = (self.w, self.pivots, target(0), target(1))
        return self._kernels.launch("give_out", _COPYING, *places, tiles=_copying(self._elements))

    def determinant(self, name: str, results: int) -> Launch:
        """`name`: "determinant" (one result) or "log_determinant" (its sign, and the logarithm of its magnitude)."""
        return self._kernels.launch(name, 256, self.w, self.pivots, self.info, *map(target, range(results)))


def orthogonal(x: Spec, columns: int, rows: int, machine: Machine) -> tuple[list[Launch], int]:
    """(launches, bytes of scratch memory) of Q [M, columns] and R [rows, N] of x [..., M, N]; of R alone for none."""
    *lead, m, n = x.shape
    count, steps = prod(lead), min(m, n)
    tables = steps + PANEL  # the last one has all its rows
    held = Workspace.of(8 * count * m * n, 8 * count * tables * PANEL, 8 * count * m * columns)
    w, triangles, q = held.places
    sizes = constants(M=m, N=n, WIDTH=n, STEPS=steps, ROWS=tables, Q=columns, R=rows, COLUMNS=1)
    launch = _Kernels("matmul/panels_qr.cu", f"typedef {c_type(x.dtype)} T;\n{sizes}", count).launch
    launches = [launch("take_in", _COPYING, source(), w, q, tiles=_copying(m * max(n, columns)))]
    panels = list(_panels(m, steps, machine))
    for one in panels:
        places, width, inside = (w, triangles, _number(one.first)), one.width, one.shared > 0
        launches.append(
            launch("panel_factor", one.threads, *places, shared=one.shared, width=width, inside=inside)
        )
        if rest := n - one.first - one.columns:
            tiles = (_tiles(rest, 32),)
            launches.append(launch("reflect_rest", 256, *places, tiles=tiles, width=width))
    launches.append(launch("give_r", _COPYING, w, target(int(columns > 0)), tiles=_copying(rows * n)))
    if not columns:
        return launches, held.nbytes
    for one in reversed(panels):
        at, tiles = _number(one.first), (_tiles(columns - one.first, 32),)
        launches.append(launch("reflect_unit", 256, w, triangles, q, at, tiles=tiles, width=one.width))
    launches.append(launch("give_q", _COPYING, q, target(0), tiles=_copying(m * columns)))
    return launches, held.nbytes
