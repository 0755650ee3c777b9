"""Rearranging elements with data-movement ops: slices, rolls, triangles, diagonals, repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial, reduce
from itertools import combinations as choices
from itertools import combinations_with_replacement
from typing import Any, Literal

import numpy as np

from lamina.ops.arguments import checked, shown
from lamina.ops.core import Array, call, operand
from lamina.ops.primitives.axis_map import AxisMap
from lamina.ops.primitives.diagonal import Diagonal
from lamina.ops.primitives.full_like import ones_like
from lamina.ops.primitives.gather import Gather, host_values, index_add, index_select
from lamina.ops.primitives.index import At
from lamina.ops.primitives.map_axes import mapped
from lamina.ops.primitives.pointwise import clamp, where
from lamina.ops.primitives.scan import cumsum
from lamina.ops.primitives.shape import (
    cat,
    expand,
    flip,
    pad_axes,
    permute,
    reshape,
    slice_axis,
    split,
    squeeze,
    stack,
    transpose,
    unsqueeze,
)
from lamina.spec import (
    DTypeError,
    OutsideError,
    Shape,
    ShapeError,
    as_shape,
    normalize_axis,
)
from lamina.spec import broadcast_shapes as common_shape

#: Axes of up to this many elements are rolled by a table of positions.
_MAPPED = 1 << 14

# ---- slices


def index_number(what: str, value: Any) -> int:
    """An integer given as such, or as a one-element tensor. Raises TypeError."""
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise TypeError(f"{what}: start must be a whole number, got {shown(value)}") from None


@checked
def narrow(input: Any, dim: int, start: Any, length: int) -> Any:
    """`length` elements of an axis from `start` on, which may be negative. torch.narrow.

    start: an int, or a one-element tensor whose value is known.
    """
    x = operand(input, "narrow")
    start = index_number("narrow", start)
    axis = normalize_axis(dim, x.ndim, "narrow")
    first = start + x.shape[axis] if start < 0 else start
    if not 0 <= first <= first + length <= x.shape[axis]:
        raise ShapeError(f"narrow: start {start} and length {length} are outside axis {dim} of {x.spec}")
    return slice_axis(x, axis, first, first + length)


@checked
def select(input: Any, dim: int, index: int) -> Any:
    """One slice of an axis, which is removed. torch.select."""
    x = operand(input, "select")
    axis = normalize_axis(dim, x.ndim, "select")
    return squeeze(narrow(x, axis, _inside("select", x, axis, index), 1), axis)


def _inside(what: str, x: Any, axis: int, index: int) -> int:
    n: int = x.shape[axis]
    if not -n <= index < n:
        raise OutsideError(f"{what}: index {index} is outside axis {axis} of {x.spec}")
    return index % n


@checked
def select_scatter(input: Any, src: Any, dim: int, index: int) -> Any:
    """input with one slice of an axis replaced by src. torch.select_scatter."""
    x = operand(input, "select_scatter")
    axis = normalize_axis(dim, x.ndim, "select_scatter")
    place = _inside("select_scatter", x, axis, index)
    source = operand(src, "select_scatter", "src")
    return slice_scatter(x, unsqueeze(source, axis), axis, place, place + 1)


@checked
def slice_scatter(
    input: Any, src: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """input with the slice start:end:step of an axis replaced by src. torch.slice_scatter."""
    x, source = operand(input, "slice_scatter"), operand(src, "slice_scatter", "src")
    axis = normalize_axis(dim, x.ndim, "slice_scatter")
    if step < 1:
        raise ShapeError(f"slice_scatter: step must be >= 1, got {step}")
    count = len(range(*slice(start, end, step).indices(x.shape[axis])))
    wanted = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if source.shape != wanted:
        raise ShapeError(
            f"slice_scatter: src must be of shape {wanted} for input {x.spec}, got {source.spec}"
        )
    return At(x)[(*(slice(None),) * axis, slice(start, end, step))].set(source)


@checked
def unbind(input: Any, dim: int = 0) -> tuple[Any, ...]:
    """All slices of an axis, which is removed. torch.unbind."""
    x = operand(input, "unbind")
    axis = normalize_axis(dim, x.ndim, "unbind")
    return tuple(squeeze(part, axis) for part in split(x, 1, axis)) if x.shape[axis] else ()


@checked
def tensor_split(input: Any, indices_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """input split along an axis into a number of parts, the first ones possibly one larger, or at given indices.

    The indices may be a tensor whose values are known. torch.tensor_split, NumPy's array_split.
    """
    x = operand(input, "tensor_split")
    if not isinstance(indices_or_sections, (int, np.integer, tuple, list)):
        indices_or_sections = host_values("tensor_split", indices_or_sections, "indices_or_sections").tolist()
    axis = normalize_axis(dim, x.ndim, "tensor_split")
    total = x.shape[axis]
    if isinstance(indices_or_sections, (int, np.integer)):
        count = int(indices_or_sections)
        if count < 1:
            raise ShapeError(f"tensor_split: there must be a part or more, got {count}")
        size, more = divmod(total, count)
        cuts = [i * size + min(i, more) for i in range(1, count)]
    else:
        cuts = [slice(i).indices(total)[1] for i in indices_or_sections]
    ends = [*cuts, total]
    return tuple(slice_axis(x, axis, a, max(a, b)) for a, b in zip([0, *cuts], ends, strict=True))


def _split_at(what: str, input: Any, sections: int | Sequence[int], least: int, axis: int) -> tuple[Any, ...]:
    x = operand(input, what)
    if x.ndim < least:
        raise ShapeError(f"{what}: needs {least} axes or more, got {x.spec}")
    if isinstance(sections, (int, np.integer)) and (sections < 1 or x.shape[axis] % sections):
        raise ShapeError(f"{what}: {sections} does not divide the {x.shape[axis]} of axis {axis} of {x.spec}")
    return tensor_split(x, sections, axis)


@checked
def hsplit(input: Any, indices_or_sections: int | Sequence[int]) -> tuple[Any, ...]:
    """input split along its second axis (its only one for vectors) into equal parts, or at given indices."""
    x = operand(input, "hsplit")
    return _split_at("hsplit", x, indices_or_sections, 1, 0 if x.ndim == 1 else 1)


@checked
def vsplit(input: Any, indices_or_sections: int | Sequence[int]) -> tuple[Any, ...]:
    """input split along its first axis into equal parts, or at given indices."""
    return _split_at("vsplit", input, indices_or_sections, 2, 0)


@checked
def dsplit(input: Any, indices_or_sections: int | Sequence[int]) -> tuple[Any, ...]:
    """input split along its third axis into equal parts, or at given indices."""
    return _split_at("dsplit", input, indices_or_sections, 3, 2)


@checked
def split_with_sizes(input: Any, split_sizes: Sequence[int], dim: int = 0) -> tuple[Any, ...]:
    """`split` by a list of sizes."""
    return split(input, split_sizes, dim)


# ---- joining


def _each(function: Callable[[Any], Any], what: str, tensors: Sequence[Any]) -> Any:
    """Apply a function of one tensor; for several tensors, as arguments or a sequence, return a tuple."""
    if len(tensors) == 1 and not isinstance(tensors[0], (tuple, list)):
        return function(operand(tensors[0], what))
    given = tensors[0] if len(tensors) == 1 else tensors
    return tuple(function(operand(x, what)) for x in given)


def atleast_1d(*tensors: Any) -> Any:
    """Tensors with at least one axis."""
    return _each(lambda x: x if x.ndim else x.reshape((1,)), "atleast_1d", tensors)


def atleast_2d(*tensors: Any) -> Any:
    """Tensors with at least two axes, new ones in front."""
    return _each(
        lambda x: x if x.ndim >= 2 else x.reshape((1,) * (2 - x.ndim) + x.shape), "atleast_2d", tensors
    )


def atleast_3d(*tensors: Any) -> Any:
    """Tensors with at least three axes: a vector becomes the middle one, a matrix the first two."""

    def widened(x: Any) -> Any:
        shape = (1, *x.shape, 1) if x.ndim == 1 else (*x.shape, *(1,) * (3 - x.ndim))
        return x if x.ndim >= 3 else x.reshape(shape)

    return _each(widened, "atleast_3d", tensors)


def hstack(tensors: Sequence[Any]) -> Any:
    """Tensors joined along the second axis, vectors along their only one."""
    parts = [atleast_1d(x) for x in tensors]
    return cat(parts, 0 if parts and parts[0].ndim == 1 else 1)


def vstack(tensors: Sequence[Any]) -> Any:
    """Tensors joined along the first axis, vectors as rows."""
    return cat([atleast_2d(x) for x in tensors], 0)


def dstack(tensors: Sequence[Any]) -> Any:
    """Tensors joined along the third axis."""
    return cat([atleast_3d(x) for x in tensors], 2)


def column_stack(tensors: Sequence[Any]) -> Any:
    """Tensors joined along the second axis, vectors as columns."""
    parts = [operand(x, "column_stack") for x in tensors]
    return cat([x.reshape((x.spec.numel, 1)) if x.ndim < 2 else x for x in parts], 1)


def block_diag(*tensors: Any) -> Any:
    """A matrix with matrices (vectors as rows) along its diagonal and zeros elsewhere."""
    parts = [atleast_2d(x) for x in tensors]
    if any(x.ndim != 2 for x in parts):
        raise ShapeError(f"block_diag: takes at most two axes, got {', '.join(str(x.spec) for x in parts)}")
    columns, rows, left = sum(x.shape[1] for x in parts), [], 0
    for x in parts:
        rows.append(pad_axes(x, [(0, 0), (left, columns - left - x.shape[1])]))
        left += x.shape[1]
    return cat(rows, 0)


def meshgrid(*tensors: Any, indexing: Literal["ij", "xy"] = "ij") -> tuple[Any, ...]:
    """Vectors expanded over the grid that they span: axis i is vector i's; "xy" swaps the first two.

    Vectors are separate arguments or one sequence. torch.meshgrid.
    """
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], (tuple, list)) else tensors
    lines = [operand(x, "meshgrid", "tensors") for x in given]
    lines = [x if x.ndim else x.reshape((1,)) for x in lines]
    if indexing not in ("ij", "xy"):
        raise ValueError(f"meshgrid: indexing must be 'ij' or 'xy', got {indexing!r}")
    if any(x.ndim != 1 for x in lines):
        raise ShapeError(f"meshgrid: takes vectors, got {', '.join(str(x.spec) for x in lines)}")
    shape = tuple(x.shape[0] for x in lines)
    grids = [
        expand(x.reshape([-1 if a == i else 1 for a in range(len(lines))]), shape)
        for i, x in enumerate(lines)
    ]
    swapped = indexing == "xy" and len(lines) > 1
    return tuple(transpose(g, 0, 1) for g in grids) if swapped else tuple(grids)


def cartesian_prod(*tensors: Any) -> Any:
    """All combinations of the elements of vectors, one per row."""
    lines = [operand(x, "cartesian_prod") for x in tensors]
    if len(lines) == 1:
        return lines[0]
    return stack([g.reshape((g.spec.numel,)) for g in meshgrid(*lines)], 1)


@checked
def combinations(input: Any, r: int = 2, with_replacement: bool = False) -> Any:
    """All combinations of r elements of a vector in order, one per row."""
    x = operand(input, "combinations")
    if x.ndim != 1 or r < 0:
        raise ShapeError(f"combinations: takes a vector and r >= 0, got {x.spec} and {r}")
    if r == 0:
        return x[:0]
    pick = combinations_with_replacement if with_replacement else choices
    rows = np.array(list(pick(range(x.shape[0]), r)), np.int64).reshape((-1, r))
    return call(Gather(0), x, rows.reshape(-1)).reshape(rows.shape)


# ---- axes


@checked
def movedim(input: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Any:
    """Axes moved to other positions; the others keep their order. torch.movedim."""
    x = operand(input, "movedim")
    given = [[v] if isinstance(v, (int, np.integer)) else list(v) for v in (source, destination)]
    origin, target = ([normalize_axis(int(a), max(x.ndim, 1), "movedim") for a in v] for v in given)
    if len(origin) != len(target) or len(set(origin)) < len(origin) or len(set(target)) < len(target):
        raise ShapeError(
            f"movedim: source {source} and destination {destination} must name as many different axes"
        )
    if x.ndim == 0:
        return x
    rest = iter(a for a in range(x.ndim) if a not in origin)
    order = [origin[target.index(a)] if a in target else next(rest) for a in range(x.ndim)]
    return permute(x, order)


@checked
def swapaxes(input: Any, axis0: int, axis1: int) -> Any:
    """`transpose` under NumPy's name."""
    return transpose(input, axis0, axis1)


def t(input: Any) -> Any:
    """A matrix transposed; vectors unchanged."""
    x = operand(input, "t")
    if x.ndim > 2:
        raise ShapeError(f"t: takes at most two axes, got {x.spec}")
    return transpose(x, 0, 1) if x.ndim == 2 else x


def ravel(input: Any) -> Any:
    """All elements as one axis."""
    x = operand(input, "ravel")
    return x.reshape((x.spec.numel,))


@checked
def broadcast_to(input: Any, size: Sequence[int]) -> Any:
    """`expand` under NumPy's name."""
    return expand(input, size)


def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """Tensors expanded to their common shape."""
    xs = [operand(x, "broadcast_tensors") for x in tensors]
    shape: Shape = ()
    for x in xs:
        shape = common_shape(shape, x.shape, "broadcast_tensors")
    return tuple(expand(x, shape) for x in xs)


@checked
def broadcast_shapes(*shapes: int | Sequence[int]) -> Shape:
    """The common broadcast shape; an int is a shape of one axis. torch.broadcast_shapes. Raises ShapeError."""
    given = [(s,) if isinstance(s, int) else as_shape(s, "broadcast_shapes") for s in shapes]
    return reduce(partial(common_shape, what="broadcast_shapes"), given, ())


# ---- order


@checked
def roll(input: Any, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Any:
    """Elements shifted along axes, wrapping around at the ends. torch.roll.

    dims: None rolls the flattened tensor.
    """
    x = operand(input, "roll")
    if dims is None:
        if not isinstance(shifts, (int, np.integer)) and len(shifts) != 1:
            raise ShapeError(f"roll: shifts {tuple(shifts)} need as many dims")
        return reshape(roll(ravel(x), shifts, 0), x.shape)
    by, axes = ([v] if isinstance(v, (int, np.integer)) else list(v) for v in (shifts, dims))
    if len(by) != len(axes):
        raise ShapeError(f"roll: shifts {tuple(by)} and dims {tuple(axes)} must be as many")
    moved = dict.fromkeys(range(max(x.ndim, 1)), 0)
    for shift, dim in zip(by, axes, strict=True):
        moved[normalize_axis(int(dim), max(x.ndim, 1), "roll")] += int(shift)
    maps: list[AxisMap | None] = []
    for axis, n in enumerate(x.shape):
        shift = moved[axis] % max(n, 1)
        small = n <= _MAPPED
        maps.append(AxisMap("circular", n, n, (shift,)) if shift and small else None)
        if shift and not small:
            x = cat([slice_axis(x, axis, n - shift, n), slice_axis(x, axis, 0, n - shift)], axis)
    return mapped(x, maps)


@checked
def rot90(input: Any, k: int = 1, dims: Sequence[int] = (0, 1)) -> Any:
    """input rotated by k right angles in the plane of two axes, from the first towards the second. torch.rot90."""
    x = operand(input, "rot90")
    axes = [normalize_axis(d, x.ndim, "rot90") for d in dims]
    if len(set(axes)) != 2:
        raise ShapeError(f"rot90: dims must be two different axes, got {tuple(dims)}")
    first, second = axes
    if k % 4 == 2:
        return flip(x, axes)
    if k % 4 == 0:
        return x.clone()
    return (
        transpose(flip(x, second), first, second) if k % 4 == 1 else flip(transpose(x, first, second), second)
    )


def fliplr(input: Any) -> Any:
    """input reversed along its second axis."""
    x = operand(input, "fliplr")
    if x.ndim < 2:
        raise ShapeError(f"fliplr: needs two axes, got {x.spec}")
    return flip(x, 1)


def flipud(input: Any) -> Any:
    """input reversed along its first axis."""
    x = operand(input, "flipud")
    if x.ndim < 1:
        raise ShapeError(f"flipud: needs an axis, got {x.spec}")
    return flip(x, 0)


# ---- triangles and diagonals


def _triangle(what: str, input: Any, diagonal: int, upper: bool) -> Any:
    x = operand(input, what)
    if x.ndim < 2:
        raise ShapeError(f"{what}: needs two axes, got {x.spec}")
    return where(_kept(x.shape[-2], x.shape[-1], diagonal, upper), x, False)


@lru_cache(maxsize=8)
def _kept(rows: int, columns: int, diagonal: int, upper: bool) -> Array:
    """A mask of the elements in a triangle."""
    apart = np.arange(columns) - np.arange(rows)[:, None]
    kept: Array = apart >= diagonal if upper else apart <= diagonal
    return kept


@checked
def tril(input: Any, diagonal: int = 0) -> Any:
    """The elements on and below a diagonal of matrices, 0 above it. torch.tril."""
    return _triangle("tril", input, diagonal, upper=False)


@checked
def triu(input: Any, diagonal: int = 0) -> Any:
    """The elements on and above a diagonal of matrices, 0 below it. torch.triu."""
    return _triangle("triu", input, diagonal, upper=True)


def _pair(what: str, x: Any, dim1: int, dim2: int, rank: int) -> tuple[int, int]:
    first, second = normalize_axis(dim1, rank, what), normalize_axis(dim2, rank, what)
    if first == second:
        raise ShapeError(f"{what}: dim1 and dim2 must be different axes, got {dim1} and {dim2} for {x.spec}")
    return first, second


@checked
def diagonal(input: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal of the matrices along two axes, as a new last axis in their place. torch.diagonal."""
    x = operand(input, "diagonal")
    first, second = _pair("diagonal", x, dim1, dim2, x.ndim)
    return call(Diagonal(offset), movedim(x, (first, second), (-2, -1)))


@checked
def diag_embed(input: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Matrices along two new axes with the elements of the last axis on a diagonal. torch.diag_embed."""
    x = operand(input, "diag_embed")
    first, second = _pair("diag_embed", x, dim1, dim2, x.ndim + 1)
    count, size = x.shape[-1], x.shape[-1] + abs(offset)
    apart = pad_axes(x.reshape((*x.shape, 1)), [(0, 0)] * x.ndim + [(0, size)])  # elements size + 1 apart
    flat = apart.reshape((*x.shape[:-1], count * (size + 1)))
    start = max(offset, 0) - min(offset, 0) * size
    have, wanted = count * (size + 1), size * size
    flat = pad_axes(flat, [(0, 0)] * (x.ndim - 1) + [(start, wanted - start - have)])
    return movedim(flat.reshape((*x.shape[:-1], size, size)), (-2, -1), (first, second))


@checked
def diag(input: Any, diagonal: int = 0) -> Any:
    """The diagonal of a matrix, or a matrix with a vector on its diagonal. torch.diag."""
    x = operand(input, "diag")
    if x.ndim == 1:
        return diag_embed(x, diagonal)
    if x.ndim != 2:
        raise ShapeError(f"diag: takes a vector or a matrix, got {x.spec}")
    return _diagonal(x, diagonal)


_diagonal = diagonal


@checked
def diagflat(input: Any, offset: int = 0) -> Any:
    """A matrix with all elements on a diagonal. torch.diagflat."""
    return diag_embed(ravel(input), offset)


@checked
def diagonal_scatter(input: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """input with a diagonal replaced by src. torch.diagonal_scatter."""
    x, source = operand(input, "diagonal_scatter"), operand(src, "diagonal_scatter", "src")
    first, second = _pair("diagonal_scatter", x, dim1, dim2, x.ndim)
    matrices = movedim(x, (first, second), (-2, -1))
    wanted = _diagonal(x, offset, dim1, dim2).shape
    if source.shape != wanted:
        raise ShapeError(f"diagonal_scatter: src must be of shape {wanted}, got {source.spec}")
    count = wanted[-1]
    rows, columns = np.arange(count) - min(offset, 0), np.arange(count) + max(offset, 0)
    return movedim(At(matrices)[..., rows, columns].set(source), (-2, -1), (first, second))


def trace(input: Any) -> Any:
    """The sum of the diagonal of a matrix."""
    x = operand(input, "trace")
    if x.ndim != 2:
        raise ShapeError(f"trace: takes a matrix, got {x.spec}")
    return _diagonal(x).sum()


# ---- repeats


@checked
def tile(input: Any, dims: Sequence[int]) -> Any:
    """input repeated along its axes, the last ones if there are fewer counts than axes. torch.tile."""
    x = operand(input, "tile")
    counts = as_shape(dims, "tile: dims")
    counts = (1,) * (x.ndim - len(counts)) + counts
    x = x.reshape((1,) * (len(counts) - x.ndim) + x.shape)
    if all(c == 1 for c in counts):
        return x.clone()
    apart = x.reshape(tuple(part for n in x.shape for part in (1, n)))
    wide = expand(apart, tuple(part for c, n in zip(counts, x.shape, strict=True) for part in (c, n)))
    return wide.reshape(tuple(c * n for c, n in zip(counts, x.shape, strict=True)))


@checked
def repeat_interleave(
    input: Any, repeats: Any, dim: int | None = None, *, output_size: int | None = None
) -> Any:
    """Each element of an axis (of the flattened tensor by default) repeated consecutively. torch.repeat_interleave.

    repeats: an int, or a vector with a count per element: then the shape depends on its values. While a graph is
    recorded they are unknown, and output_size, their sum, is required. If their sum differs, the last element fills
    the rest.

    Raises ShapeError for a number of repeats other than the number of elements, or an output_size other than the
    known sum.
    """
    x = operand(input, "repeat_interleave")
    if dim is None:
        x, dim = ravel(x), 0
    axis = normalize_axis(dim, max(x.ndim, 1), "repeat_interleave")
    x = atleast_1d(x)
    n = x.shape[axis]
    if isinstance(repeats, (int, np.integer)):
        if repeats < 0:
            raise ValueError(f"repeat_interleave: repeats must be >= 0, got {repeats}")
        if repeats == 1:
            return x.clone()
        wide = expand(unsqueeze(x, axis + 1), (*x.shape[: axis + 1], int(repeats), *x.shape[axis + 1 :]))
        return wide.reshape((*x.shape[:axis], n * int(repeats), *x.shape[axis + 1 :]))
    many = operand(repeats, "repeat_interleave", "repeats")
    if many.dtype.numpy.kind not in "iu":
        raise DTypeError(f"repeat_interleave: repeats must be integers, got {many.dtype}")
    if many.ndim > 1 or many.spec.numel not in (1, n):
        raise ShapeError(f"repeat_interleave: repeats must be {n} numbers or one, got shape {many.shape}")
    try:
        counts = host_values("repeat_interleave", many, "repeats")
    except TypeError:
        if output_size is None:
            raise
        # A result's source index is the number of elements whose copies end before it.
        ends = clamp(cumsum(expand(many, (n,)), 0), max=output_size)
        ended = index_add(np.zeros(output_size + 1, ends.dtype.numpy), 0, ends, ones_like(ends))
        return index_select(x, axis, clamp(cumsum(ended, 0)[:output_size], max=n - 1))
    if (counts < 0).any():
        raise ValueError(f"repeat_interleave: repeats must be >= 0, got {counts.min()} among them")
    places = np.repeat(np.arange(n), np.broadcast_to(counts.reshape(-1), (n,)))
    if output_size not in (None, len(places)):
        raise ShapeError(
            f"repeat_interleave: repeats make {len(places)} elements, and output_size is {output_size}"
        )
    return index_select(x, axis, places)


@checked
def windows(input: Any, dimension: int, size: int, step: int) -> Any:
    """Windows of an axis with stride `step`, their elements along a new last axis: torch.Tensor.unfold."""
    x = operand(input, "unfold")
    axis = normalize_axis(dimension, max(x.ndim, 1), "unfold")
    flat = atleast_1d(x)
    n = flat.shape[axis]
    if not 0 <= size <= n or step < 1:
        raise ShapeError(f"unfold: size must be in 0 … {n} and step >= 1 for {x.spec}, got {size} and {step}")
    count = (n - size) // step + 1
    if size and step >= size and count * step <= n:  # non-overlapping: a view
        found = slice_axis(flat, axis, 0, count * step)
        found = found.reshape((*flat.shape[:axis], count, step, *flat.shape[axis + 1 :]))
        found = movedim(slice_axis(found, axis + 1, 0, size), axis + 1, -1)
        return found.reshape((size,)) if x.ndim == 0 else found
    index = (np.arange(count)[:, None] * step + np.arange(size)).reshape(-1)
    found = index_select(flat, axis, index)
    found = movedim(found.reshape((*flat.shape[:axis], count, size, *flat.shape[axis + 1 :])), axis + 1, -1)
    return found.reshape((size,)) if x.ndim == 0 else found
