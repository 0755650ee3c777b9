"""Elementwise ops that read each other's results, and a reduction at the end, as one generated kernel.

Slices, diagonals and broadcasts become access patterns of operands. Values of half types are float32 between the
steps, except where a cast rounds them, and are rounded before they are reduced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.elementwise.loop import (
    ELEMENT,
    MOST_JOINED,
    JoinedOperand,
    KernelOperand,
    Loop,
    Statement,
)
from lamina.backends.cuda.elementwise.pointwise import (
    align_operands,
    expression_of,
    full,
    op_value,
    result_layout,
)
from lamina.backends.cuda.elementwise.reduce import ReducedOperand, reduction_plan
from lamina.backends.cuda.elementwise.shape import common_layout
from lamina.backends.cuda.launch.indexing import Strides, dense_layout, memory_order
from lamina.backends.cuda.launch.program import (
    Place,
    c_type,
    source,
    wide_type,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.core import Op, inferred
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.diagonal import Diagonal
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import MOVES, FusedElementwise
from lamina.ops.primitives.quantize import Dequantize, Quantize
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.shape import Concat, Expand, Reshape, Slice
from lamina.runtime import Device
from lamina.spec import DType, Layout, Policy, Shape, Spec

#: The content of innermost brackets, with the function's name before them.
_INNERMOST = re.compile(r"(\w*)\(([^()]*)\)")
#: Approximate instruction counts: a library function, a division; of these functions, as of any other operator, one.
_FUNCTION, _DIVISION = 16, 8
_QUICK = {"smaller", "larger", "magnitude", "fabsf", "fabs", "widen"}
#: Instructions of functions on the special function units.
_SHORT = {"__expf": 4, "__fdividef": 4}
#: Bits of integers that wrap around between two steps as they do in memory.
_WHOLE = 32


def joins(op: Op, specs: Sequence[Spec]) -> bool:
    """Whether an op may be a step: it has a C++ expression, and its values are as exact between steps as in
    memory."""
    if isinstance(op, Fused):
        return all(isinstance(step, Expand) or _is_step(step) for step in op.ops) and _is_exact(op, specs)
    if isinstance(op, Concat):
        return len(specs) <= MOST_JOINED
    return isinstance(op, Reduce) or (_is_step(op) and _is_exact(op, specs))


def _is_step(op: Op) -> bool:
    return expression_of(op) is not None and not isinstance(op, Quantize | Dequantize)


def _is_exact(op: Op, specs: Sequence[Spec]) -> bool:
    """Whether a value is the same before it is stored: not where small integers could wrap around."""
    dtype = inferred(op, *specs)[0].dtype
    return isinstance(op, Cast) or dtype.is_float or dtype.kind == "b" or 8 * dtype.itemsize >= _WHOLE


@kernels(FusedElementwise, source="kernel")
def fused_elementwise(op: FusedElementwise, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """All steps in one kernel; with a reduction, in the reduction's."""
    (out,) = op.infer(*(s.open for s in specs))
    body, last = FusedBody(op, specs), op.ops[-1]
    label = "+".join(step.name for step in op.ops if not isinstance(step, MOVES))
    if not isinstance(last, Reduce):
        return _elementwise_plan(body, out, device, label)
    value = body.value(op.reads[-1][0])
    x = full(value.spec, body.layout)
    operands = [
        (ReducedOperand(c_type(v.dtype), v.dtype.itemsize, v.place), v.along(body.shape)) for v in body.views
    ]
    lines = [f"const {wide_type(v.dtype)} a{i} = widen(e{i});" for i, v in enumerate(body.operands)]
    lines += [f"const {s.type} {s.name} = {s.expression};" for s in body.statements]
    element = f"widen(narrow<{c_type(x.dtype)}>({value.name}))"
    return reduction_plan(
        last, x, body.inputs, operands, element, device, f"{label} {last.kind}", " ".join(lines)
    )


def _on_numbers(op: FusedElementwise, count: int, dtype: DType) -> FusedBody:
    """The body of elementwise steps, on `count` scalars."""
    return FusedBody(op, [Spec((1,), dtype)] * count)


def instructions(op: FusedElementwise, count: int, dtype: DType) -> int:
    """The approximate instruction count of steps on `count` scalars; repeated subexpressions count once."""
    total, seen = 0, dict[str, str]()
    for statement in _on_numbers(op, count, dtype).statements:
        text = statement.expression
        while found := _INNERMOST.search(text):
            name = seen.get(found[0])
            if name is None:
                name = seen[found[0]] = f"${len(seen)}$"
                total += _operators(found[2]) + _call(found[1])
            text = text.replace(found[0], name)
        total += _operators(text)
    return total


def _call(name: str) -> int:
    """Instructions of a function; 0 for bare brackets."""
    return (1 if name in _QUICK else _SHORT.get(name, _FUNCTION)) if name else 0


def _operators(text: str) -> int:
    """Instructions of the operators between brackets."""
    return sum(map(text.count, "+-*<>?&|")) + _DIVISION * text.count("/")


def device_function(name: str, op: FusedElementwise, count: int, dtype: DType) -> str:
    """Elementwise steps as a C++ function of `count` scalars in the compute type of `dtype`."""
    body, wide = _on_numbers(op, count, dtype), wide_type(dtype)
    names = {v.index: f"a{i}" for i, v in enumerate(body.views)}
    parameters = ", ".join(f"{wide} {names.get(i, f'unread{i}')}" for i in range(count))
    lines = "".join(f"    const {s.type} {s.name} = {s.expression};\n" for s in body.statements)
    result = body.value(-len(op.ops)).name
    return f"__device__ __forceinline__ {wide} {name}({parameters})\n{{\n{lines}    return {result};\n}}\n"


def _elementwise_plan(body: FusedBody, out: Spec, device: Device, label: str) -> Plan:
    """The plan without a reduction."""
    result, output = body.value(-len(body.op.ops)), full(out, body.layout)
    read = [v.operand(body.shape) for v in body.operands]
    loop = Loop(body.inputs, read, body.statements, result.name, label, stepwise=True)
    return loop.plan(output, device, body.in_place(output))


@dataclass(frozen=True)
class _View:
    """The view of an input that steps read, whole or in part: element (i, j, …) at offset + i * strides[0] + j *
    strides[1] …"""

    index: int
    spec: Spec
    strides: Strides
    offset: int = 0

    @property
    def dtype(self) -> DType:
        """Of its elements."""
        return self.spec.dtype

    @property
    def place(self) -> Place:
        """Where its first element lies."""
        return source(self.index, self.offset * self.dtype.itemsize)

    def moved(self, op: Op) -> _View:
        """The view after an op that moves elements."""
        spec = inferred(op, self.spec.open)[0]
        if isinstance(op, Slice | Diagonal):
            strides = op.strides_within(self.spec.shape, self.strides)
            offset = self.offset + op.first_within(self.strides)
            return replace(self, spec=spec, strides=strides, offset=offset)
        if isinstance(op, Expand):
            return replace(self, spec=spec, strides=_repeated(self.spec.shape, self.strides, spec.shape))
        if self.spec.numel == 1:
            return replace(self, spec=spec, strides=(0,) * spec.ndim)
        raise NoKernel(f"cuda does not read {self.spec} as {op} within a fused elementwise op")

    def along(self, shape: Shape) -> Strides:
        """The strides over a loop of this shape."""
        return _repeated(self.spec.shape, self.strides, shape)

    def operand(self, shape: Shape) -> KernelOperand:
        """What a loop of this shape reads."""
        return KernelOperand(self.dtype, self.along(shape), self.place)


@dataclass(frozen=True)
class _JoinedViews:
    """Views that steps read as one, concatenated along an axis. spec: of the concatenation. functions: as in
    `JoinedOperand`.
    """

    parts: tuple[_View, ...]
    axis: int
    spec: Spec
    functions: tuple[str, ...] = ()

    @property
    def dtype(self) -> DType:
        """Of its elements."""
        return self.spec.dtype

    def operand(self, shape: Shape) -> JoinedOperand:
        """What a loop of this shape reads."""
        parts = tuple(v.operand(shape) for v in self.parts)
        sizes = tuple(v.spec.shape[self.axis] for v in self.parts)
        return JoinedOperand(parts, len(shape) - self.spec.ndim + self.axis, sizes, self.functions)


def _repeated(shape: Shape, strides: Strides, wanted: Shape) -> Strides:
    """Strides over a larger shape: 0 along broadcast axes."""
    own = zip(shape, strides, strict=True)
    return (0,) * (len(wanted) - len(shape)) + tuple(0 if n == 1 else s for n, s in own)


@dataclass(frozen=True)
class _Value:
    """A value in the body: its name and C type, and its spec."""

    name: str
    type: str
    spec: Spec


class FusedBody:
    """The statements of an expression, their operands, and the layout of its loop.

    inputs: in the layouts that are required. operands: views, in the order of the names a0, a1, … shape: of the loop.
    """

    def __init__(self, op: FusedElementwise, specs: Sequence[Spec]) -> None:
        self.op = op
        made: list[Spec] = []
        for step, read in zip(op.ops, op.reads, strict=True):
            made.append(inferred(step, *(specs[k].open if k >= 0 else made[~k] for k in read))[0])
        last = op.reads[-1][0]
        of_reduction = specs[last] if last >= 0 else made[~last]
        self.shape = of_reduction.shape if isinstance(op.ops[-1], Reduce) else made[-1].shape
        joined = [(read, made[i]) for i, read in enumerate(op.reads) if isinstance(op.ops[i], Concat)]
        self.layout = result_layout(
            self.shape, [*(_like_parts(r, made, specs) for r, made in joined), *specs]
        )
        self.inputs = _aligned_parts(
            [k for read, made in joined if len(made.shape) == len(self.shape) for k in read if k >= 0],
            align_operands(specs, self.shape, self.layout),
            self.layout,
        )
        self.operands: list[_View | _JoinedViews] = []
        self.statements: list[Statement] = []
        self._views: dict[int, _View | _JoinedViews] = {
            i: _View(i, s.open, s.physical.strides) for i, s in enumerate(self.inputs)
        }
        self._values: dict[int, _Value] = {}
        self._of_parts: dict[int, tuple[_View, str]] = {}  # steps on parts: the view, and the expression
        whole = {k for read, _ in joined for k in read if k < 0 and not isinstance(op.ops[~k], MOVES)}
        for number, (step, read) in enumerate(zip(op.ops, op.reads, strict=True)):
            if ~number in whole:
                self._add_to_part(step, read[0], ~number, made[number])
            elif not isinstance(step, Reduce):
                self._add(step, read, ~number, made[number])

    def _add_to_part(self, op: Op, read: int, key: int, spec: Spec) -> None:
        """A unary step on a part of a concatenation. Raises NoKernel for other steps."""
        view = self._views.get(read)
        if op.arity != 1 or not isinstance(view, _View) or view.dtype != spec.dtype:
            raise NoKernel(f"cuda joins no computed values but those of one tensor and type, {op} of {spec}")
        made = op_value(op, [ELEMENT], [wide_type(spec.dtype)], "", spec.dtype)
        self._of_parts[key] = view, made.expression

    def _add(self, op: Op, read: Sequence[int], key: int, spec: Spec) -> None:
        """A step."""
        if isinstance(op, Concat):
            self._views[key] = self._joined(op, read, spec)
            return
        if isinstance(op, MOVES):
            self._move(op, read[0], key, spec)
            return
        values = [self.value(k) for k in read]
        made = op_value(op, [v.name for v in values], [v.type for v in values], f"s{~key}", spec.dtype)
        self.statements.append(made)
        self._values[key] = _Value(made.name, made.type, spec)

    def _joined(self, op: Concat, read: Sequence[int], spec: Spec) -> _JoinedViews:
        """Inputs, or parts of them, as one operand, with the expression applied to each."""
        found = [self._of_parts.get(k, (self._views.get(k), ELEMENT)) for k in read]
        parts = [(view, function) for view, function in found if isinstance(view, _View)]
        if len(parts) < len(read):
            raise NoKernel(f"cuda joins no computed values, {op} of {spec}, within a fused elementwise op")
        kept = [part for part in parts if part[0].spec.numel] or parts[:1]
        if len(kept) > MOST_JOINED:
            raise NoKernel(f"cuda reads at most {MOST_JOINED} arrays as one, got {len(kept)} of {op}")
        views, functions = zip(*kept, strict=True)
        computed = any(function != ELEMENT for function in functions)
        return _JoinedViews(views, op.axis % spec.ndim, spec, functions if computed else ())

    def _move(self, op: Op, read: int, key: int, spec: Spec) -> None:
        if isinstance(view := self._views.get(read), _View):
            self._views[key] = view.moved(op)
            return
        value = self.value(read)
        stays = isinstance(op, Expand) or (isinstance(op, Reshape) and value.spec.numel == 1)
        if not stays:
            raise NoKernel(
                f"cuda does not move computed values, {op} of {value.spec}, within a fused elementwise op"
            )
        self._values[key] = replace(value, spec=spec)

    def value(self, key: int) -> _Value:
        """The value of input `key`, or of step ~key."""
        if key in self._of_parts:
            raise NoKernel(f"cuda reads what is computed of a part as a part alone, in {self.op}")
        if key not in self._values:
            view = self._views[key]
            if view not in self.operands:
                self.operands.append(view)
            name = f"a{self.operands.index(view)}"
            self._values[key] = _Value(name, wide_type(view.dtype), view.spec)
        return self._values[key]

    @property
    def views(self) -> list[_View]:
        """The operands of a body without concatenated ones. Raises NoKernel."""
        found = [v for v in self.operands if isinstance(v, _View)]
        if len(found) < len(self.operands):
            raise NoKernel(f"cuda does not join what is read on the way, in {self.op}")
        return found

    def in_place(self, output: Spec) -> dict[int, int]:
        """The input whose memory the output may share: each of its elements must be read where it is written."""
        for i, given in enumerate(self.inputs):
            own = [v for v in self.operands if isinstance(v, _View) and v.index == i]
            whole = all(v.strides == given.physical.strides and not v.offset for v in own)
            if own and whole and given.same_memory(output) and i not in self._in_parts:
                return {0: i}
        return {}

    @property
    def _in_parts(self) -> set[int]:
        """Inputs that are read as parts of others, at other positions than in the result."""
        return {p.index for v in self.operands if isinstance(v, _JoinedViews) for p in v.parts}


def _like_parts(read: Sequence[int], made: Spec, specs: Sequence[Spec]) -> Spec:
    """The concatenation of inputs, in the largest one's order of axes."""
    parts = sorted([specs[k] for k in read if k >= 0], key=lambda s: -s.numel)
    return full(made, common_layout(parts, made)) if parts else made


def _aligned_parts(parts: Sequence[int], inputs: Sequence[Spec], layout: Layout) -> tuple[Spec, ...]:
    """The inputs; concatenated ones are requested in the result's order of axes."""
    found = list(inputs)
    for k in parts:
        spec = found[k]
        wanted = full(spec, dense_layout(spec.shape, memory_order(spec.shape, layout.strides)))
        if spec.tag is not None and not spec.same_memory(wanted):
            found[k] = wanted
    return tuple(found)
