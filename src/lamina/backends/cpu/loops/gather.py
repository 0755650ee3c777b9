"""Elements by number: gather, scatter, embeddings and their gradients.

An index out of range sets the kernel's flag, and NumPy raises the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import Location, at_input, at_output
from lamina.backends.cpu.loops.code import BOOL, Code, Elements, Scalar, Variable, least, where
from lamina.backends.cpu.loops.elementwise import offsets
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.rearrange import RAW
from lamina.backends.cpu.loops.space import space
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.backends.reference import by_numpy
from lamina.ops.core import Op
from lamina.ops.primitives.embedding import Embedding, EmbeddingGrad
from lamina.ops.primitives.embedding_bag import EmbeddingSum
from lamina.ops.primitives.gather import Gather, GatherGrad, Scatter
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Shape, Spec, int64

#: The columns that a thread accumulates at a time.
_COLUMNS = 128
#: The longest rows that a thread adds up.
_MOST_COLUMNS = 4096
#: With at least this many lines, threads divide lines, else columns.
_LINES = 8


class Index:
    """Indices of a kernel: counted from the front, and valid, or else the flag is set at the end."""

    def __init__(self, code: Code, size: Scalar, from_back: bool) -> None:
        self.code, self.size, self.from_back = code, size, from_back
        self.wrong: Variable = code.variable(False, BOOL)

    def __call__(self, found: Scalar) -> Scalar:
        """An index; 0 in place of an invalid one."""
        found = found.astype(np.int64)
        if self.from_back:
            found = where(found < 0, found + self.size, found)
        wrong = (found < 0) | (found >= self.size)
        self.wrong.set(self.wrong.get() | wrong)
        return where(wrong, 0, found)

    def tell(self, flag: Elements) -> None:
        """Set the flag if an index was invalid."""
        with self.code.when(self.wrong.get()):
            flag[0] = 1


# ------------------------------------------------------------------------------------------------------------ gather


@loops(Gather, source="loops")
def gather(op: Gather, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Element by element; whole rows where an index applies to a row."""
    x, index = (s.open.fixed for s in specs)
    (out,) = op.infer(x, index)
    return _gathered(op, x, index, op.axis, out.fixed, index.shape, from_back=True)


@loops(Embedding, source="loops")
def embedding(op: Embedding, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Rows of the table."""
    x, index = (s.open.fixed for s in specs)
    (out,) = op.infer(x, index)
    return _gathered(op, x, index, 0, out.fixed, (index.numel, 1), from_back=False)


@loops(EmbeddingSum, source="loops")
def embedding_sum(op: EmbeddingSum, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Rows are added up as they are looked up, in the wider type of half types."""
    table, index = inputs = tuple(s.open.fixed for s in specs)
    y = op.infer(table, index)[0].fixed
    work = worthwhile(op, [index, y], [y]) + index.numel * y.shape[1]
    if not table.shape[0] or y.shape[1] > _MOST_COLUMNS:
        raise NoKernel(f"cpu: {op} of {table} is left to NumPy")
    numbers = [table.shape[0], y.shape[1], index.shape[1]]
    parameters: list[Location | int] = [at_input(0), at_input(1), at_output(), *numbers]
    text = partial(_embedding_sum_text, table.dtype, index.dtype, op.mean)
    kernel = LoopKernel(text, parameters, y.shape[0], work, partial(by_numpy, op, inputs, (y,)))
    return Plan(inputs, (y,), kernel, label=f"loops {op.name}")


@lru_cache(maxsize=64)
def _embedding_sum_text(dtype: DType, index: DType, mean: bool) -> str:
    code = Code()
    x, at, y = code.array(dtype), code.array(index), code.array(dtype)
    size, width, count = code.sizes(3)
    flag = code.array(int64)
    total = code.scratch(dtype.compute, width)
    first, last = code.share()
    inside = Index(code, size, from_back=False)
    with code.loop(first, last) as bag:
        with code.loop(0, width, independent=True) as j:
            total[j] = 0
        with code.loop(0, count) as k:
            start = inside(at[bag * count + k]) * width
            with code.loop(0, width, independent=True) as j:
                total[j] = total[j] + x[start + j]
        with code.loop(0, width, independent=True) as j:
            found = total[j]
            y[bag * width + j] = found / np.maximum(count, 1).astype(found.dtype) if mean else found
    inside.tell(flag)
    return code.text()


def _gathered(op: Op, x: Spec, index: Spec, axis: int, y: Spec, lines: Shape, from_back: bool) -> Plan:
    """y = x at indices along an axis; lines: the indices' shape beside x's."""
    work = worthwhile(op, [y], [y])
    size, stride = x.shape[axis], x.physical.strides[axis]
    if size == 0:
        raise NoKernel(f"cpu: {op} of {x} is left to NumPy")
    shape = (*x.shape[:axis], lines[axis], *x.shape[axis + 1 :])
    raw = RAW[x.dtype.itemsize]
    others = Layout(tuple(0 if a == axis else s for a, s in enumerate(x.physical.strides)))
    operands = [Spec(shape, raw, others), Spec(lines, index.dtype).fixed, Spec(shape, raw).fixed]
    nested = space(shape, operands[2].physical, operands)
    rank = len(nested.sizes)
    steps = tuple(row[-1] if row[-1] in (0, 1) else None for row in nested.strides)
    text = partial(_gather_text, raw, index.dtype, rank, steps, from_back)
    numbers = [size, stride, *nested.sizes, *(s for row in nested.strides for s in row)]
    parameters: list[Location | int] = [at_input(0), at_input(1), at_output(), *numbers]
    count = nested.count if rank == 1 else nested.count // nested.sizes[-1]
    kernel = LoopKernel(text, parameters, count, work, partial(by_numpy, op, (x, index), (y,)))
    return Plan((x, index), (y,), kernel, label=f"loops {op.name}")


@lru_cache(maxsize=1024)
def _gather_text(
    dtype: DType, index: DType, rank: int, steps: tuple[int | None, ...], from_back: bool
) -> str:
    code = Code()
    x, at, y = code.array(dtype), code.array(index), code.array(dtype)
    size, stride = code.sizes(2)
    sizes = code.sizes(rank)
    strides = [code.sizes(rank) for _ in range(3)]
    flag = code.array(int64)
    x_step, i_step, y_step = (
        row[-1] if s is None else code.value(s) for s, row in zip(steps, strides, strict=True)
    )
    first, last = code.share()
    inside = Index(code, size, from_back)
    if rank == 1:
        with code.loop(first, last, independent=True) as i:
            y[i * y_step] = x[i * x_step + inside(at[i * i_step]) * stride]
    else:
        with code.loop(first, last) as row:
            x_base, i_base, y_base = offsets(code, row, sizes[:-1], [s[:-1] for s in strides])
            common = steps[1] == 0  # one index for the whole row, which is copied
            start = x_base + inside(at[i_base]) * stride if common else x_base
            if common and steps[0] == steps[2] == 1:
                code.copy(y, y_base, x, start, sizes[-1])
            else:
                with code.loop(0, sizes[-1], independent=True) as i:
                    place = start if common else start + inside(at[i_base + i * i_step]) * stride
                    y[y_base + i * y_step] = x[place + i * x_step]
    inside.tell(flag)
    return code.text()


# ----------------------------------------------------------------------------------------------------------- scatter


@dataclass(frozen=True)
class ScatterForm:
    """The specialization of a scatter kernel.

    combine: NumPy's function of the old and the new element, "" for the new one alone. zero: whether the result
        starts as zeros. by_columns: whether threads divide columns or lines. common: whether an index applies to a
        whole row. drop: whether indices out of range are ignored. single: whether the axis is the last one.
    """

    combine: str
    zero: bool
    by_columns: bool
    common: bool
    drop: bool
    single: bool


_COMBINE = {"set": "", "add": "add", "mul": "multiply", "min": "minimum", "max": "maximum"}


@loops(GatherGrad, source="loops")
def gather_grad(op: GatherGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Add each element at the position it was read from."""
    g, index = (s.open.fixed for s in specs)
    (out,) = op.infer(g, index)
    places = (at_input(0), at_input(1), None)
    return _scattered(op, (g, index), out.fixed, places, op.axis, g.shape, index.shape, "add")


@loops(EmbeddingGrad, source="loops")
def embedding_grad(op: EmbeddingGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Add each row to the table's row."""
    g, index = (s.open.fixed for s in specs)
    (out,) = op.infer(g, index)
    places, rows = (at_input(0), at_input(1), None), index.numel
    return _scattered(op, (g, index), out.fixed, places, 0, (rows, g.shape[-1]), (rows, 1), "add", drop=True)


@loops(Scatter, source="loops")
def scatter(op: Scatter, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The input, with each element of the source combined into its position."""
    x, index, source = (s.open.fixed for s in specs)
    (out,) = op.infer(x, index, source)
    if any(n != s for a, (n, s) in enumerate(zip(x.shape, source.shape, strict=True)) if a != op.axis):
        raise NoKernel(f"cpu: {op} with a source {source} smaller than {x} is left to NumPy")
    places = (at_input(2), at_input(1), at_input(0))
    return _scattered(op, (x, index, source), out.fixed, places, op.axis, source.shape, index.shape, op.mode)


def _scattered(
    op: Op,
    inputs: tuple[Spec, ...],
    y: Spec,
    places: tuple[Location, Location, Location | None],
    axis: int,
    given: Shape,
    lines: Shape,
    mode: str,
    drop: bool = False,
) -> Plan:
    """places: of the given elements, of their indices, and of the initial result (None: zeros)."""
    work = worthwhile(op, inputs, [y])
    outer, behind, count, size = prod(given[:axis]), prod(given[axis + 1 :]), given[axis], y.shape[axis]
    strides = _index_strides(op, lines, axis, given)
    # Sums and products of half types are accumulated in float32, in workspace.
    wide = y.dtype.compute if mode in ("add", "mul") else y.dtype
    apart = wide != y.dtype
    by_columns = outer < _LINES and behind >= 2 * _COLUMNS
    form = ScatterForm(_COMBINE[mode], places[2] is None, by_columns, strides[2] == 0, drop, behind == 1)
    index = inputs[1].dtype
    text = partial(_scatter_text, form, y.dtype, wide, index)
    memory = Location("workspace", 0) if apart else at_output()
    arrays = [*places[:2], memory, places[2] or at_output(), at_output()]
    numbers = [size, outer, count, behind, *strides[:2]]
    steps = -(-behind // _COLUMNS) if by_columns else outer
    kernel = LoopKernel(text, [*arrays, *numbers], steps, work, partial(by_numpy, op, inputs, (y,)))
    workspace = y.numel * wide.itemsize if apart else 0
    aliases = {} if apart else {o: i for o, i in op.inplace.items() if inputs[i].same_memory(y)}
    return Plan(inputs, (y,), kernel, workspace, aliases, label=f"loops {op.name}")


def _index_strides(op: Op, lines: Shape, axis: int, given: Shape) -> tuple[int, int, int]:
    """The indices' strides over the axes before, along and after the indexed one. Raises NoKernel."""
    before, behind = lines[:axis], lines[axis + 1 :]
    for some, all_ in ((before, given[:axis]), (behind, given[axis + 1 :])):
        if some != all_ and prod(some) != 1:
            raise NoKernel(f"cpu: {op} with indices of {lines} for {given} is left to NumPy")
    inner = prod(behind)
    return (
        lines[axis] * inner if prod(before) > 1 else 0,
        inner,
        1 if inner > 1 else 0,
    )


@lru_cache(maxsize=1024)
def _scatter_text(form: ScatterForm, dtype: DType, wide: DType, index: DType) -> str:
    return _ScatterLoops(form, dtype, wide, index).text()


class _ScatterLoops:
    """The code of a scatter: `given` into lines of `size` rows of `behind` elements, `outer` of them."""

    def __init__(self, form: ScatterForm, dtype: DType, wide: DType, index: DType) -> None:
        self.form, self.is_apart = form, wide != dtype
        self.code = code = Code()
        self.given, self.at, self.kept = code.array(dtype), code.array(index), code.array(wide)
        self.begun, self.y = code.array(dtype), code.array(dtype)
        self.size, self.outer, self.count, self.behind, self.i_line, self.i_step = code.sizes(6)
        self.flag = code.array(int64)

    def text(self) -> str:
        """The program: a step is a line, or a block of columns of all lines."""
        code = self.code
        first, last = code.share()
        self.inside = Index(code, self.size, not self.form.drop)
        with code.loop(first, last) as step:
            if self.form.single:
                self.single_elements(step)
            elif self.form.by_columns:
                start = step * _COLUMNS
                with code.loop(0, self.outer) as line:
                    self.line(line, start, least(start + _COLUMNS, self.behind))
            else:
                self.line(step, code.value(0, np.dtype(np.int64)), self.behind)
        self.inside.tell(self.flag)
        return code.text()

    def line(self, line: Scalar, j: Scalar, after: Scalar) -> None:
        """All rows of a line of the result, for the columns from j to before `after`."""
        code = self.code
        with code.loop(0, self.size) as row:
            start = (line * self.size + row) * self.behind
            with code.loop(j, after, independent=True) as i:
                self.begin(start + i)
        with code.loop(0, self.count) as k:
            self.add_row(line, k, j, after)
        if self.is_apart:
            with code.loop(0, self.size) as row:
                start = (line * self.size + row) * self.behind
                with code.loop(j, after, independent=True) as i:
                    self.y[start + i] = self.kept[start + i]

    def add_row(self, line: Scalar, k: Scalar, j: Scalar, after: Scalar) -> None:
        """One row of the source."""
        source, index_at = (line * self.count + k) * self.behind, line * self.i_line + k * self.i_step
        found = self.at[index_at] if self.form.common else None
        if self.form.drop:
            assert found is not None
            with self.code.when((found >= 0) & (found < self.size)):
                self.combine_rows(source, (line * self.size + found) * self.behind, j, after)
        elif found is not None:
            self.combine_rows(source, (line * self.size + self.inside(found)) * self.behind, j, after)
        else:
            with self.code.loop(j, after, independent=True) as i:
                row = line * self.size + self.inside(self.at[index_at + i])
                self.combine(row * self.behind + i, self.given[source + i])

    def combine_rows(self, source: Scalar, target: Scalar, j: Scalar, after: Scalar) -> None:
        """Combine a row of the source into one of the result."""
        with self.code.loop(j, after, independent=True) as i:
            self.combine(target + i, self.given[source + i])

    def single_elements(self, line: Scalar) -> None:
        """A line where the axis is the last one."""
        code, start = self.code, line * self.size
        with code.loop(0, self.size, independent=True) as i:
            self.begin(start + i)
        with code.loop(0, self.count) as k:
            found, new = self.at[line * self.i_line + k * self.i_step], self.given[line * self.count + k]
            if self.form.drop:
                with code.when((found >= 0) & (found < self.size)):
                    self.combine(start + found, new)
            else:
                self.combine(start + self.inside(found), new)
        if self.is_apart:
            with code.loop(0, self.size, independent=True) as i:
                self.y[start + i] = self.kept[start + i]

    def begin(self, place: Scalar) -> None:
        """Initialize an element."""
        self.kept[place] = 0 if self.form.zero else self.begun[place]

    def combine(self, place: Scalar, new: Scalar) -> None:
        """Combine a new value into an element."""
        old = self.kept[place] if self.form.combine else None
        self.kept[place] = new if old is None else self.code.call(self.form.combine, (old, new))
