"""Norms of rows fused with the steps around them: operand computed, and result rounded, in one kernel.

Transformers add to a residual stream, normalize the sum, and pass it on in a half type. The kernel of a norm holds a
row in registers: it computes the row from its operands, writes it if others read it, too, and writes the result in
the type in which that is read. So the sum is not read again, nor is the norm's result stored in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.backends import Fusion, NoKernel, Plan
from lamina.backends.cuda.elementwise.fused_elementwise import device_function
from lamina.backends.cuda.elementwise.pointwise import expression_of, full
from lamina.backends.cuda.launch.program import (
    Bindable,
    c_type,
    constants,
    kernel_plan,
    source,
    target,
)
from lamina.backends.cuda.norm.norm import flags, lines_of, row_launch
from lamina.backends.cuda.registry import fusions, kernels
from lamina.backends.pattern import PatternMatch, Results, made_by
from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import MOVES, FusedElementwise
from lamina.ops.primitives.norm import LayerNorm, RmsNorm
from lamina.ops.primitives.pointwise import Add
from lamina.ops.primitives.shape import Reshape
from lamina.runtime import Device
from lamina.spec import DType, Policy, ShapeError, Spec, bfloat16, contiguous, float16, float32, float64

#: The most tensors from which a row is computed: each is one load per thread and access.
_MOST_OPERANDS = 6


def count_of(before: FusedElementwise | None) -> int:
    """The number of operands from which a tensor is computed; one if it is only read."""
    return 1 if before is None else 1 + max(k for read in before.reads for k in read)


@dataclass(frozen=True)
class SteppedNorm(Op):
    """(x, scale, bias?) -> (y, statistics …, x?): the norm's results, y in `dtype`.

    With `before` there are operands of x's shape in place of x, from which it computes x. keeps: whether x is a
    result, too.
    """

    norm: LayerNorm | RmsNorm
    dtype: DType
    before: FusedElementwise | None = None
    keeps: bool = False
    differentiable = False
    arity = None

    @property
    def count(self) -> int:
        """The number of operands in place of x."""
        return count_of(self.before)

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        operands, small = inputs[: self.count], inputs[self.count :]
        x = operands[0] if self.before is None else self.before.infer(*(s.open for s in operands))[0]
        if any(s.shape != x.shape for s in operands):
            raise ShapeError(
                f"{self.name}: what is normalized is computed of tensors {x.shape}, got {operands}"
            )
        y, *statistics = self.norm.infer(x, *small)
        return (Spec(y.shape, self.dtype), *statistics, *([x.open] if self.keeps else []))

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        operands = inputs[: self.count]
        x = operands[0] if self.before is None else self.before.reference(*operands)[0]
        y, *statistics = self.norm.reference(x, *inputs[self.count :])
        return (*Cast(self.dtype).reference(y), *statistics, *([x] if self.keeps else []))

    def prune(self, used: Sequence[bool]) -> Op:
        return SteppedNorm(self.norm, self.dtype, self.before) if self.keeps and not used[-1] else self

    def unrounded(self) -> Op:
        before = None if self.before is None else self.before.unrounded()
        return replace(self, dtype=float64, before=before)

    def __str__(self) -> str:
        given = "" if self.before is None else f"{self.before} > "
        return f"{self.name}({given}{self.norm} > {self.dtype}{', kept' * self.keeps})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        added = FusedElementwise((Cast(float32), Add()), ((0,), (~0, 1)))
        alike = FusedElementwise((Add(), Cast(float16)), ((0, 1), (~0,)))
        for norm, count in ((LayerNorm(1, 1e-5), 2), (RmsNorm(1, 1e-6), 1)):
            for rows, width in (((3, 4), 24), ((5,), 33), ((2, 1), 1000)):
                shape, small = (*rows, width), [Arg((width,), float32)] * count
                yield Sample.of(cls(norm, bfloat16), Arg(shape, float32), *small, dtypes=(float32,))
                for keeps in (False, True):
                    two = Arg(shape, bfloat16), Arg(shape, float32)
                    yield Sample.of(cls(norm, bfloat16, added, keeps), *two, *small, dtypes=(float32,))
        halves = [Arg((6, 40))] * 2
        yield Sample.of(
            cls(RmsNorm(1, 1e-6), float16, alike, True), *halves, Arg((40,), float32), dtypes=(float16,)
        )


# -------------------------------------------------------------------------------------------------------- fusion


def _stepped(match: PatternMatch) -> Results | None:
    """The norm fused with the step that rounds its result, and with those that compute its operand."""
    norm = match.root
    x, *small = match.inputs(norm)
    y, *statistics = norm.outputs
    result = rounded(match, y)
    made, before, operands = computed(match, x, norm.op.rank)
    if result is y and before is None:
        return None
    elsewhere = len(match.readers(x)) > 1 or (made is not x and len(match.readers(made)) > 1)
    keeps = before is not None and elsewhere
    op = SteppedNorm(norm.op, result.dtype, before, keeps)
    given = [shaped(match, v, x.shape) for v in operands]
    new, *others = match.apply(op, *given, *small, at=norm)
    found = {result: shaped(match, new, result.shape), **dict(zip(statistics, others, strict=False))}
    if result is not y:  # without further readers
        found[y] = match.apply(Cast(y.dtype), new, at=norm)[0]
    if keeps:
        found[made] = shaped(match, others[-1], made.shape)
        found[x] = others[-1]
    return found


def rounded(match: PatternMatch, y: Any) -> Any:
    """A value after rounding: itself, or the only reader, a narrowing cast of it or of a view of it."""
    seen = y
    while (node := _only_reader(match, seen)) is not None and isinstance(node.op, Reshape):
        (seen,) = node.outputs
    if node is None or not isinstance(node.op, Cast):
        return y
    (made,) = node.outputs
    return made if made.dtype.is_float and made.dtype.itemsize <= y.dtype.itemsize else y


def _only_reader(match: PatternMatch, value: Any) -> Any:
    """The only reader of a value; None if there are several, or it is an output of the graph."""
    readers = match.readers(value)
    return readers[0] if len(readers) == 1 else None


def computed(match: PatternMatch, x: Any, rank: int) -> tuple[Any, FusedElementwise | None, list[Any]]:
    """The computation of x from whole tensors: x before reshapes, the steps, their operands; else x, None, [x]."""
    made = x
    while made.node is not None and isinstance(made.node.op, Reshape):
        (made,) = match.inputs(made.node)
    node = made.node
    steps = None if node is None else _steps(node.op, len(node.inputs))
    if node is None or steps is None or made.shape[made.ndim - rank :] != x.shape[x.ndim - rank :]:
        return x, None, [x]
    given, steps = _each_once(match.inputs(node), _rounding(steps, made.dtype))
    fits = all(
        v.shape == made.shape and v.dtype.is_float and v.dtype.itemsize <= x.dtype.itemsize for v in given
    )
    return (made, steps, given) if fits and len(given) <= _MOST_OPERANDS else (x, None, [x])


def _steps(op: Op, count: int) -> FusedElementwise | None:
    """An op on `count` tensors as an expression; None if it has none."""
    if isinstance(op, FusedElementwise):
        return None if any(isinstance(step, MOVES) or not step.elementwise for step in op.ops) else op
    if isinstance(op, Fused):
        return FusedElementwise.of_chain(op, count) if all(map(_is_step, op.ops)) else None
    return FusedElementwise((op,), (tuple(range(count)),)) if _is_step(op) else None


def _rounding(steps: FusedElementwise, dtype: DType) -> FusedElementwise:
    """Steps with the result rounded to a half type, as it is when stored."""
    if dtype.itemsize == dtype.compute.itemsize or isinstance(steps.ops[-1], Cast):
        return steps
    return FusedElementwise((*steps.ops, Cast(dtype)), (*steps.reads, (~(len(steps.ops) - 1),)))


def _each_once(given: Sequence[Any], steps: FusedElementwise) -> tuple[list[Any], FusedElementwise]:
    """The operands without duplicates, and the steps on them."""
    once = {v: i for i, v in enumerate(dict.fromkeys(given))}
    reads = (tuple(once[given[k]] if k >= 0 else k for k in read) for read in steps.reads)
    return list(once), FusedElementwise(steps.ops, tuple(reads))


def _is_step(op: Op) -> bool:
    return op.elementwise and expression_of(op) is not None


def shaped(match: PatternMatch, value: Any, shape: Any) -> Any:
    """The value in another shape."""
    return value if value.shape == shape else match.apply(Reshape(shape), value, at=match.root)[0]


STEPPED_NORM = fusions.add(
    Fusion("stepped_norm", made_by(LayerNorm | RmsNorm), _stepped, SteppedNorm, stage="expressions")
)


# ---------------------------------------------------------------------------------------------------------- plan


@kernels(SteppedNorm, source="kernel")
def stepped_norm(op: SteppedNorm, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One kernel. Raises NoKernel for operands of wider types than x."""
    outs = op.infer(*specs)
    shape, operands, norm = specs[0].shape, specs[: op.count], op.norm
    x = operands[0].open if op.before is None else op.before.infer(*(s.open for s in operands))[0]
    lines = lines_of(norm, x)
    if any(s.dtype.itemsize > x.dtype.itemsize for s in (*operands, outs[0])):
        raise NoKernel(
            f"cuda computes rows of {x.dtype} of operands that are no wider, got {op} of {operands}"
        )
    inputs = [full(s, contiguous(shape)) for s in operands] + [s.open.fixed for s in specs[op.count :]]
    outputs = [s.fixed for s in outs]
    label = f"{norm.name}+cast" if op.before is None else f"{names(op.before)}+{norm.name}"
    if x.numel == 0:
        return kernel_plan(device, inputs, outputs, [], label=label)
    numbers = flags(CENTRED=norm.centred) + constants(EPSILON=repr(norm.epsilon))
    numbers += reading("read_x", op.before, operands, x.dtype) + (constants(KEPT=1) if op.keeps else "")
    n, last = op.count, target(len(outputs) - 1)
    places = [
        *map(source, range(n + 1)),
        source(n + norm.centred),
        target(0),
        target(1),
        target(1 + norm.centred),
    ]
    places += [last] * op.keeps

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        return (row_launch("row_norm", lines, aligned, numbers, places, 1, outs[0].dtype),)

    aliases = {
        len(outputs) - 1: i for i, s in enumerate(inputs[:n]) if op.keeps and s.same_memory(outputs[-1])
    }
    return kernel_plan(
        device, inputs, outputs, steps(True), label=label, plain=lambda: steps(False), aliases=aliases
    )


def names(steps: FusedElementwise) -> str:
    """The steps' names, for labels."""
    return "+".join(step.name for step in steps.ops)


def reading(name: str, steps: FusedElementwise | None, operands: Sequence[Spec], dtype: DType) -> str:
    """The function of a kernel that computes V elements of a type from operands, as source text; "" if they are only
    read."""
    if steps is None:
        return ""
    numbers = range(len(operands))
    given = ", ".join(f"const {c_type(s.dtype)} *in{i}" for i, s in enumerate(operands))
    loads = " ".join(f"const auto p{i} = load<V>(in{i} + at);" for i in numbers)
    values = ", ".join(f"widen(p{i}.v[k])" for i in numbers)
    kind = c_type(dtype)
    head = constants(INPUTS=given, GIVEN_ROWS=", ".join(f"in{i}" for i in numbers))
    return f"""{head}{device_function("before", steps, len(operands), dtype)}
__device__ __forceinline__ Pack<{kind}, V> {name}(i64 at, {given})
{{
    {loads}
    Pack<{kind}, V> x;
    _Pragma("unroll") for (int k = 0; k < V; ++k) x.v[k] = narrow<{kind}>(before({values}));
    return x;
}}
"""
