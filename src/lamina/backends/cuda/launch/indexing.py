"""Index arithmetic for the kernels: collapsed axes, then C code with sizes as constants or in a table.

A loop over elements runs over a linear index; each operand's offset follows from it by divisions by constants,
which the compiler turns into multiplications; where the sizes come in a table, so do the factors of these
(`divisor`). `collapse` first merges axes that are contiguous in every operand. `KernelSizes` is a table with names.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from lamina.spec import Layout, Shape, Spec

Strides = tuple[int, ...]


def index_type(reach: int) -> str:
    """The C type for indexes up to `reach`: 32 bits if one loop step beyond the last index fits, too."""
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
        """The largest distance of an index or an operand's offset from 0."""
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
    """The strides with which an operand is read over `shape`: 0 along broadcast axes."""
    lead = len(shape) - spec.ndim
    own = zip(spec.shape, spec.physical.strides, strict=True)
    return (0,) * lead + tuple(0 if n == 1 else s for n, s in own)


def memory_order(shape: Shape, strides: Sequence[int]) -> tuple[int, ...]:
    """Axes from the outermost to the innermost in memory."""
    return tuple(sorted(range(len(shape)), key=lambda a: (-abs(strides[a]), a)))


def dense_layout(shape: Shape, order: Sequence[int]) -> Layout:
    """Dense, axes from outermost to innermost."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return Layout(tuple(strides))


def collapse(sizes: Sequence[int], strides: Iterable[Sequence[int]], order: Sequence[int]) -> Space:
    """The axes in `order`, without those of size 1, merged where every operand steps evenly over two of them."""
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


def divisor(size: int) -> tuple[int, int]:
    """(factor, shift): n // size is the upper half of n * factor, shifted right, for each n below 2**31.

    With 2**(shift + 1) >= size the factor is 2**(32 + shift) / size rounded up; the resulting error of n / size is
    less than 1 / size (Granlund and Montgomery 1994, "Division by invariant integers using multiplication").

    Raises ValueError for a size below 2, or of more than 31 bits.
    """
    if not 2 <= size < 2**31:
        raise ValueError(f"divisor: a size of 2 to 2**31 - 1 is divided by, got {size}")
    shift = (size - 1).bit_length() - 1
    return -(-(1 << 32 + shift) // size), shift


def table_offset_code(
    space: Space, names: Sequence[str], table: str, first: int = 0
) -> tuple[str, tuple[int, ...]]:
    """`offset_code` for 32-bit indexes, and the values that it reads as `table[first]`, `table[first + 1]`, …

    The text is the same for all spaces of a rank with the same broadcast axes, the same operands contiguous along the
    last axis, and the same equalities between operands.
    """
    lines, numbers = ["u32 rest_ = (u32)index;"], list[int]()

    def number(value: int) -> str:
        numbers.append(value % (1 << 32))  # negative steps, too
        return f"(u32){table}[{first + len(numbers) - 1}]"

    for axis in range(len(space.sizes) - 1, 0, -1):
        size = space.sizes[axis]
        factor, shift = divisor(size)
        whole = f"(u32)((u64)rest_ * {number(factor)} >> 32) >> {number(shift)}"
        lines.append(f"const u32 n{axis}_ = {whole}, x{axis}_ = rest_ - n{axis}_ * {number(size)};")
        lines.append(f"rest_ = n{axis}_;")
    lines.append("const u32 x0_ = rest_;")
    known: dict[Strides, str] = {}
    for name, row in zip(names, space.strides, strict=True):
        offset = known.setdefault(row, name)
        if offset == name:
            steps = {a: "1u" if s == 1 else number(s) for a, s in enumerate(row) if s}
            offset = f"(Index)({' + '.join(f'x{a}_ * {s}' for a, s in steps.items()) or '0'})"
        lines.append(f"const Index {name} = {offset};")
    return "\n        ".join(lines), tuple(numbers)


def offset_function(name: str, space: Space, operand: int = 0) -> str:
    """A C function `Index name(Index i)`: the offset of one operand for the i-th element of the space."""
    one = Space(space.sizes, (space.strides[operand],))
    body = offset_code(one, ["offset_"])
    return f"__device__ __forceinline__ Index {name}(Index index)\n{{\n        {body}\n        return offset_;\n}}\n"


class KernelSizes:
    """64-bit numbers that a kernel gets as one parameter, `SIZES`, so that one text serves all sizes of a kind.

    `text` declares what is added: names of numbers, and functions of an index. They read the parameter by its name,
    `sizes`, in the scope of their use: also in a function that gets it as `const Sizes &sizes`.

    known: all are constants in the text, as is required if indexes need more than 32 bits.
    """

    def __init__(self, known: bool = False) -> None:
        self.known = known
        self._values: list[int] = []
        self._text = ""

    @property
    def values(self) -> tuple[int, ...]:
        """The values of the parameter."""
        return tuple(self._values) or (0,)

    @property
    def text(self) -> str:
        """The parameter's type and all declarations; `Index` must be declared before."""
        head = f"struct Sizes {{ i64 v[{len(self.values)}]; }};\n"
        return f"{head}#define SIZES const __grid_constant__ Sizes sizes\n{self._text}"

    def _number(self, value: int) -> str:
        self._values.append(value)
        return f"sizes.v[{len(self._values) - 1}]"

    def add(self, **numbers: int) -> None:
        """Add numbers of type `Index` by name."""
        for name, value in numbers.items():
            self._text += f"#define {name} ((Index){value if self.known else self._number(value)})\n"

    def add_real(self, **numbers: float) -> None:
        """Add numbers of type f64 by name."""
        for name, value in numbers.items():
            (bits,) = struct.unpack("<q", struct.pack("<d", value))
            text = repr(float(value)) if self.known else f"__longlong_as_double({self._number(bits)})"
            self._text += f"#define {name} {text}\n"

    def add_quotient(self, name: str, size: int) -> None:
        """`Index name(Index n)`: n / size."""
        if self.known:
            self._text += f"#define {name}(n) ((n) / (Index){size})\n"
            return
        factor, shift = map(self._number, divisor(size) if size > 1 else (1 << 32, 0))
        self._text += (
            f"#define {name}(n) ((Index)((u32)((u64)(u32)(n) * (u64){factor} >> 32) >> (u32){shift}))\n"
        )

    def add_offset(self, name: str, space: Space, operand: int = 0) -> None:
        """`Index name(Index i)`: the offset of one operand for the i-th element of the space."""
        one = Space(space.sizes, (space.strides[operand],))
        if self.known:
            body = offset_code(one, ["offset_"])
        else:
            body, numbers = table_offset_code(one, ["offset_"], "sizes.v", len(self._values))
            self._values += numbers
        self._text += f"__device__ __forceinline__ Index {name}_of(Index index, const Sizes &sizes)\n"
        self._text += f"{{\n        {body}\n        return offset_;\n}}\n"
        self._text += f"#define {name}(index) {name}_of(index, sizes)\n"


def offset_of(space: Space, operand: int, index: int) -> int:
    """The value of the C code, in Python: for tests."""
    found = 0
    for axis in range(len(space.sizes) - 1, 0, -1):
        index, x = divmod(index, space.sizes[axis])
        found += x * space.strides[operand][axis]
    return found + index * space.strides[operand][0]
