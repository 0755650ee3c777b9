"""Index arithmetic for the kernels: fewer axes, then C code with the sizes as constants.

A loop over elements runs over a linear index; each operand's offset follows from it by divisions by constants,
which the compiler turns into multiplications. `collapse` first joins axes that lie together in every operand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from lamina.spec import Shape, Spec

Strides = tuple[int, ...]


def index_type(reach: int) -> str:
    """The C type for indexes up to `reach`: 32 bits where a loop's step beyond the last one fits too."""
    return "i32" if reach < 2**31 - 2**26 else "i64"


@dataclass(frozen=True)
class Space:
    """Axes from outermost to innermost, and for each operand its stride along each (in elements)."""

    sizes: Shape
    strides: tuple[Strides, ...]

    @property
    def count(self) -> int:
        """How many index tuples there are."""
        return prod(self.sizes)

    @property
    def reach(self) -> int:
        """The largest distance that an index or an operand's offset goes from 0."""
        reaches = [
            sum((n - 1) * abs(s) for n, s in zip(self.sizes, row, strict=True)) for row in self.strides
        ]
        return max([self.count, *reaches])

    @property
    def index_type(self) -> str:
        """The C type for its indexes and offsets."""
        return index_type(self.reach)

    def part(self, axes: Sequence[int]) -> Space:
        """Only some axes, in the given order."""
        return Space(
            tuple(self.sizes[a] for a in axes), tuple(tuple(row[a] for a in axes) for row in self.strides)
        )


def broadcast_strides(spec: Spec, shape: Shape) -> Strides:
    """The strides with which an operand is read over `shape`: 0 along axes where it is repeated."""
    lead = len(shape) - spec.ndim
    own = zip(spec.shape, spec.physical.strides, strict=True)
    return (0,) * lead + tuple(0 if n == 1 else s for n, s in own)


def memory_order(shape: Shape, strides: Sequence[int]) -> tuple[int, ...]:
    """Axes from the outermost to the innermost in memory."""
    return tuple(sorted(range(len(shape)), key=lambda a: (-abs(strides[a]), a)))


def collapse(sizes: Sequence[int], strides: Iterable[Sequence[int]], order: Sequence[int]) -> Space:
    """The axes in `order`, without those of size 1, joined where every operand steps evenly over two of them."""
    rows = [tuple(row) for row in strides]
    kept: list[int] = []
    found: list[list[int]] = [[] for _ in rows]
    for axis in order:
        if sizes[axis] == 1:
            continue
        joins = bool(kept) and all(
            done[-1] == row[axis] * sizes[axis] for done, row in zip(found, rows, strict=True)
        )
        if joins:
            kept[-1] *= sizes[axis]
        else:
            kept.append(sizes[axis])
        for done, row in zip(found, rows, strict=True):
            if joins:
                done[-1] = row[axis]
            else:
                done.append(row[axis])
    if not kept:
        return Space((1,), tuple((0,) for _ in rows))
    return Space(tuple(kept), tuple(tuple(done) for done in found))


def offset_code(space: Space, names: Sequence[str], index: str = "index") -> str:
    """C statements that declare offset `names[i]` of operand i from the linear index (type `Index`)."""
    lines = [f"Index rest_ = {index};"]
    last = len(space.sizes) - 1
    for axis in range(last, 0, -1):
        lines.append(f"const Index x{axis}_ = rest_ % {space.sizes[axis]}; rest_ /= {space.sizes[axis]};")
    lines.append("const Index x0_ = rest_;")
    for name, row in zip(names, space.strides, strict=True):
        terms = [f"x{axis}_ * (Index){stride}" for axis, stride in enumerate(row) if stride]
        lines.append(f"const Index {name} = {' + '.join(terms) or '0'};")
    return "\n        ".join(lines)


def offset_function(name: str, space: Space, operand: int = 0) -> str:
    """A C function `Index name(Index i)`: the offset of one operand for the i-th element of the space."""
    one = Space(space.sizes, (space.strides[operand],))
    body = offset_code(one, ["offset_"])
    return f"__device__ __forceinline__ Index {name}(Index index)\n{{\n        {body}\n        return offset_;\n}}\n"


def offset_of(space: Space, operand: int, index: int) -> int:
    """What the C code computes, in Python: for tests."""
    found = 0
    for axis in range(len(space.sizes) - 1, 0, -1):
        index, x = divmod(index, space.sizes[axis])
        found += x * space.strides[operand][axis]
    return found + index * space.strides[operand][0]
