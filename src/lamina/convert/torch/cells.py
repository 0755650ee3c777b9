"""Mutable tensors over immutable operands: a cell holds a tensor's current value, a view refers to one.

PyTorch's in-place functions and views define when memory is shared. Here a tensor of the graph is a `Cell`; a view of
it is a `View`: a function of its base (`get`) and one that returns the base after a write (`put`). A write to any of
them puts a new operand into the underlying cell, which every other view reads from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from lamina import ops
from lamina._tree import flatten
from lamina.ops.core import recording
from lamina.ops.primitives.marker import overwritten
from lamina.spec import Shape

Get = Callable[[Any], Any]
Put = Callable[[Any, Any], Any]


class Cell:
    """The current value of a tensor of the graph: an operand, replaced when the tensor is written."""

    def __init__(self, held: Any) -> None:
        self._held = held
        self._version = 0
        self.is_seen = False  # by views

    @property
    def version(self) -> int:
        """How often it was written (its version)."""
        return self._version

    @property
    def roots(self) -> list[Cell]:
        """The cells that a write to it affects."""
        return [self]

    def read(self) -> Any:
        """The current operand."""
        return self._held

    def write(self, value: Any) -> None:
        """Overwrite it: value is cast to its dtype and broadcast to its shape, as in PyTorch."""
        now = self.read()
        value = ops.operand(value)
        value = value if value.dtype == now.dtype else ops.cast(value, now.dtype)
        self.replace(value if value.shape == now.shape else ops.broadcast_to(value, now.shape))

    def replace(self, value: Any) -> None:
        """Hold another operand of the same shape and dtype."""
        self._held = value
        self._version += 1

    def rename(self, get: Get) -> None:
        """Hold the operand under another identity, given by get."""
        self._held = get(self._held)

    def turn(self, get: Get) -> None:
        """Change the shape of the same elements from now on. Raises ValueError if it has views."""
        if self.is_seen:
            raise ValueError(
                f"a tensor {self.read().spec} that views look into changes its shape in place: take them behind it"
            )
        self._turn(get)

    def _turn(self, get: Get) -> None:
        self.replace(get(self._held))


class View(Cell):
    """A tensor that shares memory with `base`: get(base) reads it, put(base, value) is the base after a write."""

    def __init__(self, base: Cell, get: Get, put: Put | None = None) -> None:
        self.base, self._get = base, get
        self._put = put or (lambda whole, value: put_back(get, whole, value))
        self._held, self._seen = get(base.read()), base.version
        self.is_seen, base.is_seen = False, True

    @property
    def version(self) -> int:
        """The version of its base."""
        return self.base.version

    @property
    def roots(self) -> list[Cell]:
        """Those of its base."""
        return self.base.roots

    def read(self) -> Any:
        """Its part of the base's current value."""
        if self._seen != self.base.version:
            self._held, self._seen = self._get(self.base.read()), self.base.version
        return self._held

    def replace(self, value: Any) -> None:
        """Write through to the base."""
        self.base.replace(self._put(self.base.read(), value))

    def rename(self, get: Get) -> None:
        """Read by get from now on; what it reads at present is renamed once."""
        before = self._get
        self._get = lambda whole: get(before(whole))
        self._held = get(self._held)

    def _turn(self, get: Get) -> None:
        before = self._get
        self._get = lambda whole: get(before(whole))
        self._put = lambda whole, value: put_back(self._get, whole, value)
        self._held, self._seen = self._get(self.base.read()), self.base.version


@contextmanager
def past_derivatives(args: Any) -> Iterator[None]:
    """Within the block writes to cells among these (nested) arguments are ignored by differentiation."""
    cells = [c for x in flatten(args)[0] if isinstance(x, Cell) for c in x.roots]
    before = [(c, c.version, c.read()) for c in cells]
    yield
    for cell, version, value in before:
        if cell.version != version and value.dtype.is_float:
            cell.replace(overwritten(value, cell.read()))


def put_back(get: Get, whole: Any, value: Any) -> Any:
    """`whole` with `value` written where `get` reads: for any function that only selects and arranges elements.

    Raises ValueError for a view that reads an element more than once, to which PyTorch does not write either.
    """
    places = elements(get, whole.shape)
    if not places.size:
        return whole
    region = Region.of(places, whole.shape)
    if region is not None:
        part = ops.reshape(ops.permute(value, region.order), region.sizes)
        return whole.at[region.key].set(part)
    if np.unique(places).size != places.size:
        raise ValueError(
            f"a view {value.spec} of {whole.spec} is written that has several elements in one place: clone it first"
        )
    kept = ops.reshape(whole, (-1,))
    flat = ops.index_put(kept, [ops.operand(places.reshape(-1))], ops.reshape(value, (-1,)))
    return ops.reshape(flat, whole.shape)


class Region(NamedTuple):
    """A view that reads `whole[key]`, of these sizes, with its axes permuted: the most common kind.

    order: the axes of the view in the order of the region.
    """

    key: tuple[slice, ...]
    sizes: Shape
    order: tuple[int, ...]

    @classmethod
    def of(cls, places: np.ndarray[Any, Any], shape: Shape) -> Region | None:
        """The region of positions, elements of a tensor of `shape` in row-major order; None if they form none."""
        along = [np.unique(c) for c in np.unravel_index(places, shape)] if shape else []
        sizes = tuple(len(c) for c in along)
        if int(np.prod(sizes, dtype=np.int64)) != places.size:
            return None
        key = tuple(slice(int(c[0]), int(c[-1]) + 1, int(c[1] - c[0]) if len(c) > 1 else 1) for c in along)
        whole = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
        # Distances of neighbors along the view's axes: the outermost axis of the region comes first.
        axes = range(places.ndim)
        beside = [tuple(int(i == axis and n > 1) for i in axes) for axis, n in enumerate(places.shape)]
        apart = [int(places[at]) - int(places.flat[0]) for at in beside]
        order = tuple(sorted(axes, key=lambda axis: -apart[axis]))
        same = np.array_equal(whole[key].reshape(-1), places.transpose(order).reshape(-1))
        return cls(key, sizes, order) if same else None


def elements(get: Get, shape: Shape) -> np.ndarray[Any, Any]:
    """The row-major element of a tensor of `shape` at each position of its view."""
    count = int(np.prod(shape, dtype=np.int64))
    with recording(None):
        found: np.ndarray[Any, Any] = get(ops.operand(np.arange(count).reshape(shape))).numpy()
    return found
