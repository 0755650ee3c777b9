"""One generated kernel that computes every element of a result from the same positions of its operands.

Operands are read with any strides; those of equal layout are accessed 16 bytes at a time, and one that is broadcast
along the innermost axis is read once per 16 bytes. Separate arrays may be read as one, concatenated along an axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.interleave import interleaved, interleaves
from lamina.backends.cuda.launch.indexing import (
    Space,
    Strides,
    collapse,
    memory_order,
    offset_code,
    table_offset_code,
)
from lamina.backends.cuda.launch.program import (
    LOOPING,
    VECTOR,
    Launch,
    Number,
    Place,
    Program,
    Table,
    c_type,
    kernel_plan,
    target,
    wide_type,
)
from lamina.runtime import Device
from lamina.spec import DType, Layout, Shape, Spec

_BLOCK = 256
#: Placeholder of an element in expressions: not valid C.
ELEMENT = "@"
#: The most arrays that are read as one: each takes two address registers of a thread.
MOST_JOINED = 8


@dataclass(frozen=True)
class KernelOperand:
    """One array that a generated kernel reads or writes."""

    dtype: DType
    strides: Strides  # along the logical axes of the loop
    place: Place

    @property
    def rows(self) -> tuple[Strides, ...]:
        """The offset that is computed from the loop's index."""
        return (self.strides,)

    @property
    def places(self) -> tuple[Place, ...]:
        """Its start."""
        return (self.place,)

    def allows(self, rows: Sequence[Strides], width: int) -> bool:
        """Whether `width` elements are a single access. rows: its own, of the collapsed loop."""
        (row,) = rows
        if row[-1] not in (0, 1) or (row[-1] == 1 and any(s % width for s in row[:-1])):
            return False
        return row[-1] == 0 or self.place.offset % (self.dtype.itemsize * width) == 0


@dataclass(frozen=True)
class JoinedOperand:
    """Arrays concatenated along an axis of the loop, which a generated kernel reads as one.

    parts: each with its strides along the loop. sizes: of each along the axis. functions: the expression on the
        elements of each, in C with ELEMENT as the placeholder; empty: none.
    """

    parts: tuple[KernelOperand, ...]
    axis: int
    sizes: tuple[int, ...]
    functions: tuple[str, ...] = ()

    @property
    def dtype(self) -> DType:
        """Of all parts."""
        return self.parts[0].dtype

    @property
    def rows(self) -> tuple[Strides, ...]:
        """An offset in each part, as if the part began at the loop's start; the position along the axis."""
        rank = len(self.parts[0].strides)
        return (*(p.strides for p in self.parts), tuple(int(a == self.axis) for a in range(rank)))

    @property
    def places(self) -> tuple[Place, ...]:
        """The start of each part."""
        return tuple(p.place for p in self.parts)

    @property
    def ends(self) -> tuple[int, ...]:
        """The end of each part, along the axis."""
        return tuple(accumulate(self.sizes))

    @property
    def begins(self) -> tuple[int, ...]:
        """The offset in each part at its first element."""
        starts = (0, *self.ends[:-1])
        return tuple(n * p.strides[self.axis] for n, p in zip(starts, self.parts, strict=True))

    def allows(self, rows: Sequence[Strides], width: int) -> bool:
        """Whether `width` elements are a single access, within one part. rows: its own, of the collapsed loop."""
        *parts, along = rows
        if any(not p.allows((row,), width) for p, row in zip(self.parts, parts, strict=True)):
            return False
        whole = not along[-1] or all(n % width == 0 for n in self.sizes)
        begun = not parts[0][-1] or all(n % width == 0 for n in self.begins)
        return whole and begun and len({row[-1] for row in parts}) == 1


@dataclass(frozen=True)
class Statement:
    """One statement of the body: name = expression, in a C type."""

    name: str
    type: str
    expression: str


def elementwise(
    shape: Shape,
    order: Sequence[int],
    inputs: Sequence[KernelOperand | JoinedOperand],
    outputs: Sequence[KernelOperand],
    body: Sequence[Statement],
    results: Sequence[str],
    *,
    vector: bool = True,
    raw: str = "",
    stepwise: bool = False,
) -> Launch:
    """The launch that computes `results` (names in `body`) for every element of `shape`.

    Input i is called a0, a1, … in the body, in the type its arithmetic is done in.

    Args:
        shape: sizes of the loop.
        order: axes from outermost to innermost.
        inputs, outputs: the operands read and written.
        body: the statements.
        results: for each output the name of its value.
        vector: whether 16-byte access is allowed (addresses are aligned).
        raw: read and write elements as this unsigned type, without arithmetic.
        stepwise: see `Program`.
    """
    operands = (*inputs, *outputs)
    space = collapse(shape, rows_of(operands), order)
    width = access_width(space, operands) if vector else 1
    code = _Code(space, inputs, outputs, width, raw)
    text, numbers = code.text(body, results)
    program = Program("elementwise", text=text, stepwise=stepwise)
    chunks = -(-space.count // width)
    grid = (max(1, -(-chunks // _BLOCK)),)
    places = tuple(place for o in operands for place in o.places)
    sizes = (Table(numbers),) if numbers else ()
    count = Number(space.count, "i64")
    return Launch(program, grid, (_BLOCK,), (*places, count, *sizes), waves=LOOPING * 4)


def rows_of(operands: Sequence[KernelOperand | JoinedOperand]) -> list[Strides]:
    """The offsets that are computed from the loop's index, for all operands."""
    return [row for o in operands for row in o.rows]


def access_width(space: Space, operands: Sequence[KernelOperand | JoinedOperand]) -> int:
    """Elements per access: those in 16 bytes, halved until every operand allows it.

    space: over the rows of the operands.
    """
    width = VECTOR // max(o.dtype.itemsize for o in operands)
    while width > 1 and not _allow(space, operands, width):
        width //= 2
    return width


def _allow(space: Space, operands: Sequence[KernelOperand | JoinedOperand], width: int) -> bool:
    if len(space.sizes) > 1 and space.sizes[-1] % width:
        return False
    rows = iter(space.strides)
    return all(o.allows([next(rows) for _ in o.rows], width) for o in operands)


class _Code:
    """The source of one elementwise kernel."""

    def __init__(
        self,
        space: Space,
        inputs: Sequence[KernelOperand | JoinedOperand],
        outputs: Sequence[KernelOperand],
        width: int,
        raw: str,
    ) -> None:
        self.space, self.inputs, self.outputs, self.width, self.raw = space, inputs, outputs, width, raw
        rows = iter(space.strides)
        self.steps = [[next(rows)[-1] for _ in o.rows] for o in (*inputs, *outputs)]  # innermost strides
        # For the parts of a concatenated input: end and start.
        self.bounds: dict[tuple[int, int], tuple[str, str]] = {}

    @property
    def _sized(self) -> bool:
        """Whether sizes come from a table, so that one kernel serves all shapes of a kind.

        Offsets then cost a few more instructions, which accesses of 16 bytes hide: there is time for more than two
        hundred during a warp's memory access.
        """
        widest = max(o.dtype.itemsize for o in (*self.inputs, *self.outputs))
        whole = self.width > 1 and self.width * widest == VECTOR
        return whole and len(self.space.sizes) > 1 and self.space.index_type == "i32"

    def text(self, body: Sequence[Statement], results: Sequence[str]) -> tuple[str, tuple[int, ...]]:
        """The whole kernel, and the values of its table."""
        parameters = [f"const {self._type(o)} *in{name}" for i, o in self._ins for name in _names(i, o)]
        parameters += [f"{self._type(o)} *out{i}" for i, o in enumerate(self.outputs)]
        names = list[str]()
        for i, o in self._ins:
            names += [f"i{name}_" for name in _names(i, o)] + [f"w{i}_"] * isinstance(o, JoinedOperand)
        names += [f"o{i}_" for i in range(len(self.outputs))]
        table, numbers = "", tuple[int, ...]()
        if self._sized:
            offsets, numbers = table_offset_code(self.space, names, "sizes.v")
            numbers += self._set_bounds("(Index)sizes.v[{}]", len(numbers))
            table = f"struct Sizes {{ u64 v[{len(numbers)}]; }};\n"
            last = "i64 total, const __grid_constant__ Sizes sizes"
        else:
            offsets, last = offset_code(self.space, names), "i64 total"
            self._set_bounds("(Index){}LL")
        compute = self._compute(body, results)
        text = f"""typedef {self.space.index_type} Index;
{table}extern "C" __global__ void __launch_bounds__({_BLOCK}) elementwise({", ".join(parameters)}, {last})
{{
    const Index count = (Index)total, stride = (Index)(gridDim.x * blockDim.x) * {self.width};
    const Index start = (Index)(blockIdx.x * blockDim.x + threadIdx.x) * {self.width};
    for (Index index = start; index < count; index += stride) {{
        {offsets}
        {self._tail(compute)}
        {self._vector(compute)}
    }}
}}
"""
        return text, numbers

    @property
    def _ins(self) -> list[tuple[int, KernelOperand | JoinedOperand]]:
        return list(enumerate(self.inputs))

    def _set_bounds(self, text: str, first: int | None = None) -> tuple[int, ...]:
        """Set the bounds of concatenated inputs: as literals, or as table entries from `first` on. Returns the
        values."""
        numbers = list[int]()
        for i, o in self._ins:
            if isinstance(o, JoinedOperand):
                for k, both in enumerate(zip(o.ends, o.begins, strict=True)):
                    numbers += both
                    at = both if first is None else (first + len(numbers) - 2, first + len(numbers) - 1)
                    self.bounds[i, k] = text.format(at[0]), text.format(at[1])
        return tuple(numbers)

    def _address(self, i: int, offset: str = "") -> str:
        """The address of an element of input i, at `offset` of this access: in C."""
        operand, steps = self.inputs[i], self.steps[i]
        if isinstance(operand, KernelOperand):
            return f"in{i} + i{i}_" + (f" + {offset} * {steps[0]}" if offset else "")
        further = [f" + {offset} * {step}" if offset else "" for step in steps]
        along, text = f"w{i}_{further[-1]}", ""
        for k, name in reversed(list(enumerate(_names(i, operand)))):
            end, begin = self.bounds[i, k]
            part = f"in{name} + (i{name}_{further[k]} - {begin})"
            text = f"{along} < {end} ? {part} : {text}" if text else part
        return f"({text})"

    def _type(self, operand: KernelOperand | JoinedOperand) -> str:
        return self.raw or c_type(operand.dtype)

    def _compute(self, body: Sequence[Statement], results: Sequence[str]) -> str:
        lines = []
        for i, operand in enumerate(self.inputs):
            wide = self.raw or wide_type(operand.dtype)
            element = f"e{i}_" if self.raw else f"widen(e{i}_)"
            lines.append(f"const {wide} a{i} = {self._of_part(i, operand, element)};")
        lines += [f"const {v.type} {v.name} = {v.expression};" for v in body]
        for i, (operand, name) in enumerate(zip(self.outputs, results, strict=True)):
            kind = self._type(operand)
            lines.append(f"r{i}_ = {name if self.raw else f'narrow<{kind}>({name})'};")
        return " ".join(lines)

    def _of_part(self, i: int, operand: KernelOperand | JoinedOperand, element: str) -> str:
        """The expression on an element of input i, depending on its part: in C."""
        functions = operand.functions if isinstance(operand, JoinedOperand) else ()
        text = ""
        for k, function in reversed(list(enumerate(functions))):
            value = function.replace(ELEMENT, element)
            text = f"w{i}_at < {self.bounds[i, k][0]} ? {value} : {text}" if text else value
        return text or element

    def _places_along(self, offset: str) -> str:
        """The position of an element at `offset` of this access along the axis of a concatenated input with different
        parts."""
        differ = [i for i, o in self._ins if isinstance(o, JoinedOperand) and o.functions]
        return " ".join(f"const Index w{i}_at = w{i}_ + {offset} * {self.steps[i][-1]};" for i in differ)

    def _elements(self, offset: str, compute: str) -> str:
        """One element at `offset` of this access, directly from and to memory."""
        reads = " ".join(f"const {self._type(o)} e{i}_ = {self._element(i, offset)};" for i, o in self._ins)
        reads += self._places_along(offset)
        shift = len(self.inputs)
        results = " ".join(f"{self._type(o)} r{i}_;" for i, o in enumerate(self.outputs))
        writes = " ".join(
            f"out{i}[o{i}_ + {offset} * {self.steps[shift + i][0]}] = r{i}_;"
            for i in range(len(self.outputs))
        )
        return f"{reads} {results} {compute} {writes}"

    def _element(self, i: int, offset: str = "") -> str:
        """An element of input i, at `offset` of this access: in C."""
        if isinstance(self.inputs[i], JoinedOperand):
            return f"*{self._address(i, offset)}"
        return f"in{i}[i{i}_" + (f" + {offset} * {self.steps[i][0]}]" if offset else "]")

    def _tail(self, compute: str) -> str:
        """The last, incomplete access of a flat loop."""
        if self.width == 1:
            return self._elements("0", compute)
        if len(self.space.sizes) > 1:
            return ""
        return (
            f"if (index + {self.width} > count) {{ for (int k_ = 0; index + k_ < count; ++k_) "
            f"{{ {self._elements('k_', compute)} }} continue; }}"
        )

    def _vector(self, compute: str) -> str:
        if self.width == 1:
            return ""
        lines = []
        for i, _ in self._ins:
            if self.steps[i][0]:
                lines.append(f"const auto p{i}_ = load<{self.width}>({self._address(i)});")
            else:
                lines.append(f"const auto e{i}_ = {self._element(i)};")
        for i, o in enumerate(self.outputs):
            lines.append(f"Pack<{self._type(o)}, {self.width}> q{i}_;")
        reads = " ".join(f"const auto e{i}_ = p{i}_.v[k_];" for i, _ in self._ins if self.steps[i][0])
        reads += self._places_along("k_")
        results = " ".join(f"{self._type(o)} r{i}_;" for i, o in enumerate(self.outputs))
        keeps = " ".join(f"q{i}_.v[k_] = r{i}_;" for i in range(len(self.outputs)))
        lines.append(
            f'_Pragma("unroll") for (int k_ = 0; k_ < {self.width}; ++k_) '
            f"{{ {reads} {results} {compute} {keeps} }}"
        )
        lines += [f"store<{self.width}>(out{i} + o{i}_, q{i}_);" for i in range(len(self.outputs))]
        return "\n        ".join(lines)


def _names(i: int, operand: KernelOperand | JoinedOperand) -> list[str]:
    """The suffixes of the pointers and offsets of an input's parts."""
    return [f"{i}p{k}" for k in range(len(operand.parts))] if isinstance(operand, JoinedOperand) else [str(i)]


@dataclass(frozen=True)
class Loop:
    """A body over operands with one result, in any layout.

    inputs: their specs. operands: the views read, in the order of the names a0, a1, …
    """

    inputs: Sequence[Spec]
    operands: Sequence[KernelOperand | JoinedOperand]
    body: Sequence[Statement]
    result: str
    label: str
    stepwise: bool = False

    def plan(self, out: Spec, device: Device, aliases: dict[int, int]) -> Plan:
        """The plan. aliases: inputs that the output may overwrite, if they have its layout."""
        fits = {o: i for o, i in aliases.items() if self.inputs[i].same_memory(out)}
        if out.numel == 0:
            return kernel_plan(device, self.inputs, [out], [], label=self.label, aliases=fits)
        written = KernelOperand(out.dtype, out.physical.strides, target())
        order = memory_order(out.shape, written.strides)

        def steps(vector: bool) -> tuple[Launch, ...]:
            if vector and self._interleaves(out):
                return (self._interleaved(out),)
            rest = [written], self.body, [self.result]
            return (
                elementwise(out.shape, order, self.operands, *rest, vector=vector, stepwise=self.stepwise),
            )

        def relaid(layout: Layout) -> Plan | None:
            other = Spec(out.shape, out.dtype, layout)
            return self.plan(other, device, aliases) if self._is_fast(other) else None

        return kernel_plan(
            device,
            self.inputs,
            [out],
            steps(True),
            label=self.label,
            aliases=fits,
            plain=lambda: steps(False),
            relaid=relaid,
        )

    def _is_fast(self, out: Spec) -> bool:
        """Whether accesses are of 16 bytes, except for operands that are broadcast along the innermost axis."""
        every, space = self._space(out)
        widest = max(o.dtype.itemsize for o in every)
        return access_width(space, every) * widest == VECTOR or self._interleaves(out)

    def _space(self, out: Spec) -> tuple[Sequence[KernelOperand | JoinedOperand], Space]:
        """All operands read and written, and the loops over them."""
        every = (*self.operands, KernelOperand(out.dtype, out.physical.strides, target()))
        order = memory_order(out.shape, out.physical.strides)
        return every, collapse(out.shape, rows_of(every), order)

    def _interleaves(self, out: Spec) -> bool:
        """Whether it makes a few planes the innermost axis."""
        every, space = self._space(out)
        width = VECTOR // max(o.dtype.itemsize for o in every)
        alone = len(space.strides) == 2  # one operand read, one written
        return alone and interleaves(space, width, [place for o in every for place in o.places])

    def _interleaved(self, out: Spec) -> Launch:
        every, space = self._space(out)
        given, made = every
        lines = [f"const {wide_type(given.dtype)} a0 = widen(e0);"]
        lines += [f"const {v.type} {v.name} = {v.expression};" for v in self.body]
        lines.append(f"return narrow<{c_type(made.dtype)}>({self.result});")
        width = VECTOR // max(o.dtype.itemsize for o in every)
        types = c_type(given.dtype), c_type(made.dtype)
        places = [place for o in every for place in o.places]
        return interleaved(space, width, types, " ".join(lines), places, stepwise=self.stepwise)
