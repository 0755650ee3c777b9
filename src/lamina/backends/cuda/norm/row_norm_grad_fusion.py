"""Gradients of norms of rows fused with the steps around them: incoming gradients are summed, the residual stream's
gradient is added, and the result rounded, in one kernel.

The incoming gradient of a transformer's norm is a sum of half types, one from each product that reads the norm's
result. The norm's gradient is added to that of the residual stream, and passed on in a half type, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lamina.backends import Fusion, NoKernel, Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.program import (
    WORKSPACE_ALIGNMENT,
    Bindable,
    Fill,
    Place,
    SubPlan,
    constants,
    kernel_plan,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.norm.norm import lines_of, short_rows
from lamina.backends.cuda.norm.row_norm_fusion import computed, count_of, names, reading, shaped
from lamina.backends.cuda.registry import fusions, kernels
from lamina.backends.pattern import PatternMatch, Results, made_by
from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.norm import LayerNormGrad, RmsNormGrad
from lamina.ops.primitives.pointwise import Add
from lamina.runtime import Device
from lamina.spec import DType, Policy, ShapeError, Spec, bfloat16, contiguous, float16, float32, float64


@dataclass(frozen=True)
class SteppedNormGrad(Op):
    """(g, x, scale, mean?, rstd, r?) -> (dx, dscale, dbias?, sum?): the results of the norm's gradient, dx in
    `dtype`.

    With `before` there are operands of g's shape in place of g, from which it computes g. added: r is added to dx.
    keeps: dx is a result in x's type, too.
    """

    norm: LayerNormGrad | RmsNormGrad
    dtype: DType
    added: bool = False
    keeps: bool = False
    before: FusedElementwise | None = None
    differentiable = False
    arity = None

    @property
    def count(self) -> int:
        """The number of operands in place of g."""
        return count_of(self.before)

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        operands, (x, *small) = inputs[: self.count], inputs[self.count :]
        g = operands[0] if self.before is None else self.before.infer(*(s.open for s in operands))[0]
        rest = small[: len(small) - self.added]
        if any(s.shape != x.shape for s in operands) or (self.added and small[-1].open != x.open):
            raise ShapeError(f"{self.name}: tensors of {x} are computed of and added to, got {inputs}")
        dx, *sums = self.norm.infer(g, x, *rest)
        return (Spec(dx.shape, self.dtype), *sums, *([dx] if self.keeps else []))

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        operands, rest = inputs[: self.count], inputs[self.count :]
        g = operands[0] if self.before is None else self.before.reference(*operands)[0]
        dx, *sums = self.norm.reference(g, *rest[: len(rest) - self.added])
        total = Add().reference(dx, rest[-1])[0] if self.added else dx
        return (*Cast(self.dtype).reference(total), *sums, *([total] if self.keeps else []))

    def prune(self, used: Sequence[bool]) -> Op:
        return replace(self, keeps=False) if self.keeps and not used[-1] else self

    def unrounded(self) -> Op:
        before = None if self.before is None else self.before.unrounded()
        return replace(self, dtype=float64, before=before)

    def __str__(self) -> str:
        steps = [str(self.before)] * (self.before is not None) + [str(self.norm)] + ["add"] * self.added
        return f"{self.name}({' > '.join(steps)} > {self.dtype}{', kept' * self.keeps})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        both = FusedElementwise((Cast(float32), Cast(float32), Add()), ((0,), (1,), (~0, ~1)))
        for norm in (LayerNormGrad(1), RmsNormGrad(1)):
            for rows, width in (((3, 4), 24), ((5,), 33), ((2, 1), 400)):
                x, scale = Arg((*rows, width), float32), Arg((width,), float32)
                statistics = [Arg(rows, float32)] * norm.centred + [Arg(rows, float32, low=0.5, high=2.0)]
                small, half = [x, scale, *statistics], Arg((*rows, width), bfloat16)
                for op, more in (
                    (cls(norm, bfloat16), [x, *small]),
                    (cls(norm, float32, added=True), [x, *small, x]),
                    (cls(norm, bfloat16, added=True, keeps=True), [x, *small, x]),
                    (cls(norm, bfloat16, added=True, keeps=True, before=both), [half, half, *small, x]),
                    (cls(norm, float32, before=both), [half, half, *small]),
                ):
                    yield Sample.of(op, *more, dtypes=(float32,))
        half, wide, one = Arg((6, 40)), Arg((40,), float32), Arg((6,), float32, low=0.5, high=2.0)
        alike = FusedElementwise((Add(), Cast(float16)), ((0, 1), (~0,)))
        op = cls(RmsNormGrad(1), float16, added=True, before=alike)
        yield Sample.of(op, half, half, half, wide, one, half, dtypes=(float16,))


# -------------------------------------------------------------------------------------------------------- fusion


def _ended(match: PatternMatch) -> Results | None:
    """The gradient fused with the following sum, and the step that rounds it."""
    norm = match.root
    dx, *sums = norm.outputs
    total, added = _added(match, dx)
    result = _narrowed(match, total)
    if result is dx:
        return None
    keeps = result is not total and len(match.readers(total)) > 1
    op = SteppedNormGrad(norm.op, result.dtype, bool(added), keeps)
    new, *others = match.apply(op, *match.inputs(norm), *added, at=norm)
    found = {result: new, **dict(zip(sums, others, strict=False))}
    if result is not total:  # without `keeps` it has no further reader
        found[total] = others[-1] if keeps else match.apply(Cast(total.dtype), new, at=norm)[0]
    return {dx: found[total], **found}


def _added(match: PatternMatch, dx: Any) -> tuple[Any, list[Any]]:
    """The sum of dx and another tensor, if dx has no other reader, and that tensor; else dx and none."""
    readers = match.readers(dx)
    if len(readers) == 1 and readers[0] is not None and isinstance(readers[0].op, Add):
        (total,) = readers[0].outputs
        others = [v for v in match.inputs(readers[0]) if v is not dx]
        if len(others) == 1 and others[0].spec.open == dx.spec.open and match.exists(others[0], match.root):
            return total, others
    return dx, []


def _narrowed(match: PatternMatch, total: Any) -> Any:
    """The only narrowing cast of a value; the value itself if there is none, or several."""
    casts = {n for n in match.readers(total) if n is not None and isinstance(n.op, Cast)}
    made = [n.outputs[0] for n in casts]
    narrow = [v for v in made if v.dtype.is_float and v.dtype.itemsize < total.dtype.itemsize]
    return narrow[0] if len(narrow) == 1 else total


def _begun(match: PatternMatch) -> Results | None:
    """The gradient fused with the steps that compute the incoming gradient."""
    norm = match.root
    g, *rest = match.inputs(norm)
    op = norm.op if isinstance(norm.op, SteppedNormGrad) else SteppedNormGrad(norm.op, norm.outputs[0].dtype)
    made, before, operands = computed(match, g, op.norm.rank)
    if before is None or len(match.readers(g)) > 1 or len(match.readers(made)) > 1:
        return None
    given = [shaped(match, v, g.shape) for v in operands]
    return dict(
        zip(norm.outputs, match.apply(replace(op, before=before), *given, *rest, at=norm), strict=True)
    )


def _has_nothing_before(node: Any) -> bool:
    return not isinstance(node.op, SteppedNormGrad) or node.op.before is None


GRADIENT_ENDS = fusions.add(
    Fusion("stepped_norm_grad", made_by(LayerNormGrad | RmsNormGrad), _ended, SteppedNormGrad)
)
GRADIENT_BEGINS = fusions.add(
    Fusion(
        "norm_grad_of_steps",
        made_by(LayerNormGrad | RmsNormGrad | SteppedNormGrad, where=_has_nothing_before),
        _begun,
        SteppedNormGrad,
        stage="expressions",
    )
)


# ---------------------------------------------------------------------------------------------------------- plan


@kernels(SteppedNormGrad, source="kernel")
def stepped_norm_grad(op: SteppedNormGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """A single pass, and the sums over its blocks; long rows step by step. Raises NoKernel for operands of wider
    types."""
    outs, n, norm = op.infer(*specs), op.count, op.norm
    operands, (x, *small) = specs[:n], specs[n:]
    if any(s.dtype.itemsize > x.dtype.itemsize for s in (*operands, outs[0])):
        raise NoKernel(
            f"cuda computes gradients of rows of {x.dtype} of operands that are no wider, got {op} of {operands}"
        )
    lines = lines_of(norm, x.open)
    whole = contiguous(x.shape)
    inputs = [*(full(s, whole) for s in (*operands, x)), *(s.open.fixed for s in small)]
    outputs = [s.fixed for s in outs]
    before = [] if op.before is None else [names(op.before)]
    label = "+".join([*before, norm.name, *["add"] * op.added, *["cast"] * (op.dtype != x.dtype)])
    if x.numel == 0:
        zeros = [Fill(target(i), 0, s.nbytes) for i, s in enumerate(outputs) if s.nbytes]
        return kernel_plan(device, inputs, outputs, zeros, label=label)
    ways = [short_rows(norm, lines, device.machine, added=op.added, aligned=a) for a in (True, False)]
    if ways[0] is None or ways[1] is None:
        return _apart(op, inputs, outputs, label, device, policy)
    steps = reading("read_g", op.before, operands, x.dtype) + constants(KEPT=int(op.keeps))
    spread = source(n + 2 + norm.centred)
    places = [*map(source, range(n + 2)), source(n + 2), spread, source(len(inputs) - 1)]
    ends, sums = (target(0), target(len(outputs) - 1)), (target(1), target(1 + norm.centred))
    launches: list[tuple[Bindable, ...]] = [
        short.gradients(places, ends, scratch(), sums, op.dtype, steps) for short in ways if short
    ]
    alike = [i for i, s in enumerate(inputs[:n]) if s.same_memory(outputs[0])]
    aliases = {0: alike[0]} if alike else {}
    if op.added and op.keeps:
        aliases[len(outputs) - 1] = len(inputs) - 1
    return kernel_plan(
        device,
        inputs,
        outputs,
        launches[0],
        label=label,
        workspace=max(short.nbytes for short in ways if short),
        aliases=aliases,
        plain=lambda: launches[1],
    )


def _apart(
    op: SteppedNormGrad,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    label: str,
    device: Device,
    policy: Policy,
) -> Plan:
    """The steps one after the other; a graph keeps them separate."""
    n, x, parts, steps = op.count, inputs[op.count], list[Plan](), list[Bindable]()
    room = round_up(x.nbytes, WORKSPACE_ALIGNMENT)
    dx, between = scratch(), 2 * room

    def run(step: Op, specs: Sequence[Spec], given: Sequence[Place], made: Sequence[Place]) -> Spec:
        plan = kernels.plan(step, tuple(specs), device, policy)
        parts.append(plan)
        steps.append(SubPlan(plan, tuple(given), tuple(made), between))
        return plan.outputs[0]

    g, arriving = inputs[0], source(0)
    if op.before is not None:
        arriving = scratch(room)
        g = run(op.before, inputs[:n], [source(i) for i in range(n)], [arriving])
    small = range(n, len(inputs) - op.added)
    sums = [target(i) for i in range(1, 2 + op.norm.centred)]
    run(op.norm, [g, *(inputs[i] for i in small)], [arriving, *map(source, small)], [dx, *sums])
    if op.added:
        run(Add(), [x, inputs[-1]], [dx, source(len(inputs) - 1)], [dx])
    run(Cast(op.dtype), [x], [dx], [target()])
    if op.keeps:
        run(Cast(x.dtype), [x], [dx], [target(len(outputs) - 1)])
    space = between + max(plan.workspace for plan in parts)
    plan = kernel_plan(device, inputs, outputs, steps, label=label, workspace=space)
    return replace(plan, parts=tuple(parts))
