"""x[key] and x.at[key]: NumPy indexing by ints, slices, None, Ellipsis, and arrays of integers or booleans."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from lamina.ops.arguments import shown
from lamina.ops.core import INTEGERS, Operand, call, is_number, listing, made, operand
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.full_like import full_like, zeros_like
from lamina.ops.primitives.gather import (
    Gather,
    Scatter,
    ScatterMode,
    checked_mask,
    host_values,
    watched_index,
    watched_on_request,
)
from lamina.ops.primitives.pointwise import add, maximum, minimum, mul, where
from lamina.ops.primitives.scan import cumsum
from lamina.ops.primitives.selection import indices
from lamina.ops.primitives.shape import Reshape, Slice, expand, flip, pad_axes, permute, reshape, spread_apart
from lamina.spec import DTypeError, OutsideError, Shape, ShapeError, Spec, bool_, broadcast_shapes


def getitem(x: Any, key: Any) -> Any:
    """NumPy indexing: ints, slices, None and Ellipsis; lists, arrays and tensors of integers or booleans.

    A negative step flips the axis. Index arrays broadcast together; their axes stay in place, or move to the front if
    something separates them. Indexing by a boolean array has a data-dependent shape: a TypeError for a traced value.
    Raises OutsideError (a ShapeError and an IndexError) for an int out of range, IndexError for one in an array (see
    `lamina.ops.gather`), TypeError and DTypeError for invalid indices.
    """
    x = operand(x)
    if isinstance(key, list) and any(k is None or k is ... or isinstance(k, slice) for k in key):
        key = tuple(key)  # an index an axis, as in PyTorch: no array holds slices
    basic, arrays = _parts(key, x.spec)
    return _gathered(_sliced(x, basic), arrays)


class Basic(NamedTuple):
    """A key's slices: first, stop, step >= 1 along each axis of x; axes to flip afterwards; the resulting shape."""

    start: Shape
    stop: Shape
    step: Shape
    flips: tuple[int, ...]
    shape: Shape


#: The index arrays of a key, by the axis of the sliced x that they index.
Arrays = dict[int, Any]


def _parts(key: Any, x: Spec) -> tuple[Basic, Arrays]:
    """A key split into what `Slice` does first, and the index arrays."""
    plain = _plain(key)
    if plain is not None:
        return _basic(plain, x), {}
    return _taken_apart(_expand_key(_entries(key), x), x)


def _plain(key: Any) -> tuple[Any, ...] | None:
    """A key of ints, None, Ellipsis and slices of ints, these as tuples of first, last and step; else None."""
    found = []
    for k in key if type(key) is tuple else (key,):
        if type(k) is slice:
            k = (k.start, k.stop, k.step)
            if not _PLAIN.issuperset(map(type, k)):
                return None
        elif type(k) not in _PLAIN:
            return None
        found.append(k)
    return tuple(found)


_PLAIN = frozenset({int, type(None), type(Ellipsis)})


@lru_cache(maxsize=4096)
def _basic(plain: tuple[Any, ...], x: Spec) -> Basic:
    """Resolves an array-free key for such an operand, cached: programs index the same positions again and again."""
    return _taken_apart(_expand_key([slice(*k) if type(k) is tuple else k for k in plain], x), x)[0]


def _taken_apart(keys: list[Any], x: Spec) -> tuple[Basic, Arrays]:
    """The entries of a key that covers every axis."""
    start, stop, step, flips, shape = list[int](), list[int](), list[int](), list[int](), list[int]()
    arrays = Arrays()
    axis = 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        if isinstance(k, MaskIndex) and k.is_new:
            arrays[len(shape)] = k
            shape.append(1)
            continue
        n = x.shape[axis]
        if isinstance(k, slice):
            first, count, by = _slice(k, n, x)
            if by < 0:
                first, by = first + (count - 1) * by, -by
                flips.append(axis)
            shape.append(count)
        elif _is_array(k):
            first, count, by = 0, n, 1
            arrays[len(shape)] = k
            shape.append(n)
        else:
            first, count, by = _number(k, n, axis, x), 1, 1
        start.append(first if count else 0)
        stop.append(start[-1] + (count - 1) * by + 1 if count else 0)
        step.append(by)
        axis += 1
    return Basic(*map(tuple, (start, stop, step, flips, shape))), arrays


def _slice(k: slice, n: int, x: Spec) -> tuple[int, int, int]:
    """First, count and step. Raises TypeError, ShapeError."""
    try:
        first, last, by = k.indices(n)
    except (TypeError, ValueError) as error:
        raise TypeError(f"getitem: {shown(k)} is no slice of {x}: {error}") from None
    return first, len(range(first, last, by)), by


def _entries(key: Any) -> list[Any]:
    """The key's entries; lists and nested tuples become arrays, multi-axis booleans their indices along each axis."""
    found: list[Any] = []
    for k in key if isinstance(key, tuple) else (key,):
        if isinstance(k, (list, tuple, range)):
            k = np.asarray(k) if len(k) else np.zeros(0, np.int64)
        k = np.asarray(k) if isinstance(k, (bool, np.bool_)) else k
        if not isinstance(k, (Operand, np.ndarray)) and hasattr(k, "__dlpack__"):
            k = operand(k)
        found.extend(_indices_of_mask(k) if _is_mask(k) else (k,))
    return found


def _is_mask(k: Any) -> bool:
    return k.dtype == bool_ if isinstance(k, Operand) else isinstance(k, np.ndarray) and k.dtype == np.bool_


class MaskIndex(NamedTuple):
    """The indices along one axis of a mask's true elements, and the mask's size there.

    is_new: the axis is a new one, from a 0-d boolean.
    """

    true: Any
    size: int
    is_new: bool = False


def _indices_of_mask(mask: Any) -> list[MaskIndex]:
    """For each axis of a mask the indices of its true elements."""
    if mask.ndim == 0:
        flag = mask if isinstance(mask, np.ndarray) else host_values("getitem", mask, "the mask")
        return [MaskIndex(np.zeros(int(flag), np.int64), 1, True)]
    found = indices("getitem", mask, "the mask")
    return [MaskIndex(i, n) for i, n in zip(found, mask.shape, strict=True)]


def _is_array(k: Any) -> bool:
    if isinstance(k, MaskIndex):
        return True
    if not isinstance(k, (Operand, np.ndarray)):
        return False
    whole = k.dtype in INTEGERS if isinstance(k, Operand) else k.dtype.kind in "iu"
    if not whole:
        raise DTypeError(f"getitem: an index must be of integers or booleans, got {operand(k).spec}")
    return k.ndim > 0 or isinstance(k, Operand)


def _expand_key(key: list[Any], x: Spec) -> list[Any]:
    """The key with Ellipsis and missing axes expanded."""
    used = sum(not (k is None or k is Ellipsis or (isinstance(k, MaskIndex) and k.is_new)) for k in key)
    dots = [i for i, k in enumerate(key) if k is Ellipsis]
    if used > x.ndim or len(dots) > 1:
        raise OutsideError(f"getitem: index {shown(tuple(key))} has too many entries for {x}")
    place = dots[0] if dots else len(key)
    rest = [slice(None)] * (x.ndim - used)
    return [*key[:place], *rest, *key[place + len(dots) :]]


def _number(k: Any, n: int, axis: int, x: Spec) -> int:
    try:
        i = int(k.__index__())
    except (AttributeError, TypeError):
        raise TypeError(
            "getitem: an index must be an int, slice, None, Ellipsis or an array of integers or booleans, got "
            f"{type(k).__name__} for {x}"
        ) from None
    if not -n <= i < n:
        raise OutsideError(f"getitem: index {i} is outside axis {axis} of {x}")
    return i % n


# ---- reading


def _sliced(x: Any, basic: Basic) -> Any:
    """The part of x selected by the slices of a key."""
    y = x if _is_whole(x, basic) else call(made(Slice, *basic[:3]), x)
    y = flip(y, basic.flips) if basic.flips else y
    return y if y.shape == basic.shape else call(made(Reshape, basic.shape), y)


def _is_whole(x: Any, basic: Basic) -> bool:
    shape = x.shape
    return basic.stop == shape and not any(basic.start) and (not shape or max(basic.step) == 1)


def _gathered(x: Any, arrays: Arrays) -> Any:
    """The elements at index arrays: the indexed axes are joined into one, which is indexed linearly."""
    if not arrays:
        return x
    joined = Joined.of(x, arrays)
    return call(Gather(joined.axis), joined.forward(x), joined.linear).reshape(joined.result)


class Joined(NamedTuple):
    """Axes indexed by arrays, moved next to each other and joined into one.

    order: the permutation that makes them adjacent. shape: with them joined into `axis`. linear: the index along
    that, of size 1 elsewhere. result: the shape of the indexed result.
    """

    order: tuple[int, ...]
    moved: Shape
    shape: Shape
    axis: int
    linear: Any
    result: Shape

    @classmethod
    def of(cls, x: Any, arrays: Arrays) -> Joined:
        """How the index arrays of a key, by axis, index x. Raises ShapeError, IndexError."""
        axes = sorted(arrays)
        axis = axes[0] if axes[-1] - axes[0] + 1 == len(axes) else 0
        rest = [a for a in range(x.ndim) if a not in arrays]
        order = (*rest[:axis], *axes, *rest[axis:])
        sizes = [x.shape[a] for a in axes]
        linear, common = _linear([arrays[a] for a in axes], sizes, x)
        moved = tuple(x.shape[a] for a in order)
        before, after = moved[:axis], moved[axis + len(axes) :]
        count = prod(common)
        index = linear.reshape((*(1,) * len(before), count, *(1,) * len(after)))
        return cls(order, moved, (*before, prod(sizes), *after), axis, index, (*before, *common, *after))

    def forward(self, x: Any) -> Any:
        """x with its indexed axes joined."""
        return reshape(permute(x, self.order), self.shape)

    def back(self, y: Any) -> Any:
        """y, with the axes joined, in x's shape."""
        return permute(reshape(y, self.moved), [self.order.index(a) for a in range(len(self.order))])


def _linear(arrays: Sequence[Any], sizes: Sequence[int], x: Any) -> tuple[Any, Shape]:
    """A linear index for several axes of these sizes, and the arrays' common shape."""
    for k, n in zip(arrays, sizes, strict=True):
        if isinstance(k, MaskIndex) and k.size != n:
            raise OutsideError(f"getitem: a mask of {k.size} along an axis of {n} of {x.spec}")
    plain = [k.true if isinstance(k, MaskIndex) else k for k in arrays]
    common: Shape = ()
    for k in plain:
        common = broadcast_shapes(common, k.shape, "getitem")
    linear: Any = None
    for k, n in zip(plain, sizes, strict=True):
        alone = len(plain) == 1 and not isinstance(k, np.ndarray)  # the op itself then wraps and checks
        index = watched_on_request("getitem", k, n) if alone else watched_index("getitem", k, n)
        linear = index if linear is None else linear * n + index
    return (
        np.broadcast_to(linear, common) if isinstance(linear, np.ndarray) else expand(linear, common)
    ), common


# ---- writing


class At:
    """x.at: `x.at[key]` refers to elements of x; `set`, `add`, … return an updated copy; x itself is unchanged."""

    __slots__ = ("_x",)

    def __init__(self, x: Any) -> None:
        self._x = x

    def __getitem__(self, key: Any) -> IndexedPlace:
        return IndexedPlace(self._x, key)


class IndexedPlace(NamedTuple):
    """Elements of x selected by `x[key]`; values broadcast to their shape.

    If a key selects an element several times, all values are combined in order; for `set` the last one counts.
    """

    x: Any
    key: Any

    def get(self) -> Any:
        """x[key]."""
        return getitem(self.x, self.key)

    def set(self, values: Any) -> Any:
        """x with these elements replaced by the values."""
        return _changed(self.x, self.key, values, "set")

    def add(self, values: Any) -> Any:
        """x with the values added."""
        return _changed(self.x, self.key, values, "add")

    def mul(self, values: Any) -> Any:
        """x multiplied by the values."""
        return _changed(self.x, self.key, values, "mul")

    def min(self, values: Any) -> Any:
        """x with the minimum of the elements and the values."""
        return _changed(self.x, self.key, values, "min")

    def max(self, values: Any) -> Any:
        """x with the maximum of the elements and the values."""
        return _changed(self.x, self.key, values, "max")


def _changed(x: Any, key: Any, values: Any, mode: ScatterMode) -> Any:
    """x with values combined into its elements at a key."""
    x = operand(x, "at")
    if (masked := MaskedPart.of(x, key)) is not None and masked.takes(values):
        return masked.changed(values, mode)
    basic, arrays = _parts(key, x.spec)
    part = _sliced(x, basic)
    if not arrays:
        return _put(x, basic, _combined(part, _like(values, part, part.shape), mode))
    joined = Joined.of(part, arrays)
    source = _like(values, part, joined.result).reshape(_with(joined.shape, joined.axis, joined.linear))
    y = joined.back(call(Scatter(joined.axis, mode), joined.forward(part), joined.linear, source))
    return _put(x, basic, y)


def _with(shape: Shape, axis: int, index: Any) -> Shape:
    return (*shape[:axis], index.shape[axis], *shape[axis + 1 :])


class MaskedPart(NamedTuple):
    """A key with one boolean mask and possibly slices: the sliced part of x, and the position of the mask in it.

    Values that are the same for all selected elements are written without knowing their number, so that a graph can
    record it.
    """

    x: Any
    basic: Basic
    mask: Any
    axis: int
    part: Any

    @classmethod
    def of(cls, x: Any, key: Any) -> MaskedPart | None:
        """None for other keys. Raises ShapeError."""
        keys = [
            np.asarray(k) if isinstance(k, list) else k for k in (key if isinstance(key, tuple) else (key,))
        ]
        masks = [k for k in keys if _is_mask(k) and k.ndim]
        beside = [k for k in keys if not (k is None or k is Ellipsis or isinstance(k, (slice, int)))]
        if len(masks) != 1 or len(beside) != 1 or any(isinstance(k, bool) for k in keys):
            return None
        mask, first = masks[0], slice(None)
        spread = [first] + [slice(None)] * (mask.ndim - 1)
        whole = _expand_key([y for k in keys for y in (spread if k is mask else [k])], x.spec)
        place = next(i for i, k in enumerate(whole) if k is first)
        axis = sum(k is None or isinstance(k, slice) for k in whole[:place])
        basic, _ = _parts(tuple(whole), x.spec)
        part = _sliced(x, basic)
        along = part.shape[axis : axis + mask.ndim]
        if tuple(mask.shape) != along:
            raise ShapeError(f"at: a mask of shape {tuple(mask.shape)} along axes of {along} of {x.spec}")
        return cls(x, basic, mask, axis, part)

    @property
    def behind(self) -> int:
        """The number of the part's axes after the mask's."""
        return int(self.part.ndim - self.axis - self.mask.ndim)

    def takes(self, values: Any) -> bool:
        """Whether the values lack an axis over the selected elements."""
        if is_number(values):
            return True
        shape = operand(values, "at", "values").shape
        return len(shape) <= self.behind or shape[-1 - self.behind] == 1

    def changed(self, values: Any, mode: ScatterMode) -> Any:
        """x with these values combined into its elements where the mask is true."""
        if not is_number(values) and (values := operand(values, "at", "values")).ndim > self.behind:
            at = values.ndim - 1 - self.behind
            values = values.reshape((*values.shape[:at], *(1,) * self.mask.ndim, *values.shape[at + 1 :]))
        flags = self.mask.reshape((*self.mask.shape, *(1,) * self.behind))
        combined = _combined(self.part, _like(values, self.part, self.part.shape), mode)
        return _put(self.x, self.basic, where(flags, combined, self.part))


def _like(values: Any, x: Any, shape: Shape) -> Any:
    """Values in x's dtype and a given shape."""
    if is_number(values):
        values = np.asarray(values, x.dtype.numpy) if x.dtype.kind != "b" else np.asarray(bool(values))
        one = full_like(x.reshape((x.spec.numel,))[:1], values.item()) if x.spec.numel else operand(values)
        return expand(one.reshape((1,) * len(shape)) if shape else one.reshape(()), shape)
    found = cast(operand(values, "at", "values"), x.dtype)
    extra = found.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in found.shape[:extra]):
        found = found.reshape(found.shape[extra:])
    return expand(found, shape)


def _combined(x: Any, values: Any, mode: ScatterMode) -> Any:
    return values if mode == "set" else _FUNCTIONS[mode](x, values)


_FUNCTIONS = {"add": add, "mul": mul, "min": minimum, "max": maximum}


def _put(x: Any, basic: Basic, part: Any) -> Any:
    """x with the slices of a key replaced by another part."""
    sizes = tuple(len(range(*t)) for t in zip(*basic[:3], strict=True))
    part = reshape(part, sizes)
    part = flip(part, basic.flips) if basic.flips else part
    if _is_whole(x, basic) or part.spec.numel == 0:
        return part if part.spec.numel else x
    start, stop, step = basic[:3]
    spread = spread_apart(part, step)
    # the zeros after the last element extend past the end of the slice, and possibly of x
    inside = [min(s, n - a) for s, n, a in zip(spread.shape, x.shape, start, strict=True)]
    spread = getitem(spread, tuple(slice(0, n) for n in inside))
    pairs = tuple((a, n - a - i) for a, n, i in zip(start, x.shape, inside, strict=True))
    flags: Any = np.ones((), np.bool_)
    for axis, (a, b, s, n) in enumerate(zip(start, stop, step, x.shape, strict=True)):
        line = np.zeros(n, np.bool_)
        line[a:b:s] = True
        if not line.all():
            flags = flags & line.reshape([n if i == axis else 1 for i in range(x.ndim)])
    return where(flags, pad_axes(spread, pairs), x)


def index_put(input: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    """input with values written, or added, at the positions given by a tuple of index arrays. torch.index_put."""
    return getattr(At(operand(input, "index_put"))[tuple(indices)], "add" if accumulate else "set")(values)


def masked_scatter(input: Any, mask: Any, source: Any) -> Any:
    """input with source's elements, in order, where the boolean mask is true. torch.masked_scatter.

    Raises ShapeError if source has fewer elements than the mask has true ones and its values are known (else an
    IndexError on a CPU).
    """
    x, mask = operand(input, "masked_scatter"), checked_mask("masked_scatter", mask)
    source = operand(source, "masked_scatter", "source")
    if source.dtype != x.dtype:
        raise DTypeError(
            f"masked_scatter: source must have input's dtype, got {listing((x.spec, source.spec))}"
        )
    shape = np.broadcast_shapes(x.shape, mask.shape)
    x, flags = expand(x, shape), expand(mask, shape).reshape((prod(shape),))
    if not source.spec.numel:
        source = zeros_like(x).reshape((prod(shape),))[:1]
    number = where(flags, cumsum(flags, 0) - 1, 0)
    found = call(Gather(0), source.reshape((source.spec.numel,)), number) if prod(shape) else x
    return where(flags.reshape(shape), found.reshape(shape), x)
