"""Factors of matrices with more rows than a panel has columns, in float64: launches, panel by panel, of many blocks.

Products with what lies behind a panel are most of the work and run on the whole device; a panel itself is one
block's. For smaller matrices one block for each is faster (`factorize`, `lu`, `qr`).
"""

from __future__ import annotations

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

#: Columns of a panel, as in `panels.cuh`; columns of B that a block solves for at most.
PANEL, _COLUMNS = 32, 8
#: Bytes of shared memory that kernels take beside what is asked for; of a row of a panel, with its number.
_STATIC, _PANEL_ROW = 12 << 10, 8 * (PANEL + 1) + 4
#: Sides of a tile of a product, and threads of a block that copies or follows, as in the kernels.
_TILE, _COPYING, _FOLLOWING = 64, 256, 128


@dataclass(frozen=True)
class _Kernels:
    """The kernels of one file for matrices of one size. count: matrices."""

    file: str
    text: str
    count: int

    def launch(
        self, name: str, threads: int, *arguments: Any, tiles: tuple[int, ...] = (), shared: int = 0
    ) -> Launch:
        """tiles: blocks of each matrix."""
        program = Program(name, self.file, self.text)
        return Launch(program, (self.count, *tiles), (threads,), arguments, shared)


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
        self._kernels = {
            inside: _Kernels("matmul/panels_lu.cu", text + constants(IN_SHARED=int(inside)), count)
            for inside in (False, True)
        }
        given = source(0), source(1 if b is not None else 0)
        self.launches = [self._launch("take_in", _COPYING, *given, self.w, tiles=_copying(m * width))]
        for first in range(0, pivots, PANEL):
            self._panel(first, order, machine, left, (m, width, pivots))

    def _launch(self, name: str, threads: int, *arguments: Any, **more: Any) -> Launch:
        return self._kernels[False].launch(name, threads, *arguments, **more)

    def _panel(
        self, first: int, order: Place, machine: Machine, left: bool, sizes: tuple[int, int, int]
    ) -> None:
        """Eliminate one panel's columns, and subtract them from what lies behind."""
        m, width, pivots = sizes
        rows, at, count = m - first, _number(first), min(PANEL, pivots - first)
        inside = rows * _PANEL_ROW <= machine.shared_memory - _STATIC
        shared = rows * (_PANEL_ROW if inside else 4)
        places = (self.w, order, self.pivots, self.info, at)
        self.launches.append(self._kernels[inside].launch("panel_factor", 512, *places, shared=shared))
        below, behind = rows - count, width - first - count
        if others := behind + first * left:
            blocks = _tiles(others, _FOLLOWING)
            self.launches.append(self._launch("follow", _FOLLOWING, *places[:3], at, tiles=(blocks,)))
        if below and behind:
            tiles = (_tiles(below, _TILE), _tiles(behind, _TILE))
            self.launches.append(self._launch("subtract_product", 256, self.w, at, tiles=tiles))

    def solution(self) -> Launch:
        """X of A X = B, NaN where a pivot is 0."""
        shared, tiles = 8 * self._rows * self._columns, (_tiles(self._b_columns, self._columns),)
        return self._launch("solution", 256, self.w, self.info, target(), tiles=tiles, shared=shared)

    def stored(self) -> Launch:
        """The factors, and the rows of the exchanges from 1."""
        places = (self.w, self.pivots, target(0), target(1))
        return self._launch("give_out", _COPYING, *places, tiles=_copying(self._elements))

    def determinant(self, name: str, results: int) -> Launch:
        """`name`: "determinant" (one result) or "log_determinant" (its sign, and the logarithm of its magnitude)."""
        return self._launch(name, 256, self.w, self.pivots, self.info, *map(target, range(results)))


def orthogonal(x: Spec, columns: int, rows: int, machine: Machine) -> tuple[list[Launch], int]:
    """(launches, bytes of scratch memory) of Q [M, columns] and R [rows, N] of x [..., M, N]; of R alone for none."""
    *lead, m, n = x.shape
    count, steps = prod(lead), min(m, n)
    panels = range(0, steps, PANEL)
    held = Workspace.of(8 * count * m * n, 8 * count * len(panels) * PANEL**2, 8 * count * m * columns)
    w, triangles, q = held.places
    text = f"typedef {c_type(x.dtype)} T;\n" + constants(
        M=m, N=n, WIDTH=n, STEPS=steps, Q=columns, R=rows, COLUMNS=1
    )
    inside, outside = (_Kernels("matmul/panels_qr.cu", text + constants(IN_SHARED=i), count) for i in (1, 0))
    launches = [outside.launch("take_in", _COPYING, source(), w, q, tiles=_copying(m * max(n, columns)))]
    for first in panels:
        at, shared = _number(first), 8 * (PANEL + 1) * (m - first)
        fits = shared <= machine.shared_memory - 2 * _STATIC
        kernels = inside if fits else outside
        launches.append(kernels.launch("panel_factor", 512, w, triangles, at, shared=shared if fits else 0))
        if (rest := n - first - min(PANEL, steps - first)) > 0:
            tiles = (_tiles(rest, 32),)
            launches.append(outside.launch("reflect_rest", 256, w, triangles, at, tiles=tiles))
    launches.append(outside.launch("give_r", _COPYING, w, target(int(columns > 0)), tiles=_copying(rows * n)))
    if not columns:
        return launches, held.nbytes
    for first in reversed(panels):
        tiles = (_tiles(columns - first, 32),)
        launches.append(outside.launch("reflect_unit", 256, w, triangles, q, _number(first), tiles=tiles))
    return [
        *launches,
        outside.launch("give_q", _COPYING, q, target(0), tiles=_copying(m * columns)),
    ], held.nbytes
