"""Ops in half types for which the processor has no kernel, computed in float32 between casts.

Weights that do not change between runs are cast once (`Plan.packed`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from lamina.backends import Backend, NoKernel, Packed, Plan
from lamina.backends.cpu.library import Chain, Location, at_input, at_output, kernels
from lamina.backends.cpu.loops import table
from lamina.ops.core import Op, inferred
from lamina.ops.primitives.cast import Cast
from lamina.spec import DType, Policy, Spec, bfloat16, float16, float32

HALF = (bfloat16, float16)
#: The input that may be weights, of ops that multiply two.
_WEIGHTS = 1


def in_float32(op: Op, specs: Sequence[Spec], backend: Backend, policy: Policy) -> Plan:
    """The float32 plan of an op that multiplies matrices, or has many operands; backend: plans the casts.

    Raises NoKernel where no operand has a half type, and where oneDNN has no kernel in float32 either.
    """
    given = [s.open for s in specs]
    pays = not op.elementwise and (op.flops(*given) or any(s.numel >= table.LEAST for s in given))
    if not pays or not any(s.dtype in HALF for s in given):
        raise NoKernel(f"cpu: {op} has nothing to compute in float32")
    wide = [_as(s, float32) if s.dtype in HALF else s for s in given]
    inner = kernels.plan(op, wide, backend.device, policy)
    made, results = inferred(op, *given), inferred(op, *wide)
    if any(
        a.shape != b.shape or (a.dtype not in HALF and a.dtype != b.dtype)
        for a, b in zip(made, results, strict=True)
    ):
        raise NoKernel(f"cpu: {op} gives something else in float32")
    halves = {i: s.dtype for i, s in enumerate(given) if s.dtype in HALF}
    between = partial(_between, made=[s.dtype for s in made], backend=backend, policy=policy)
    found = between(inner, halves)
    if _WEIGHTS not in halves or not op.flops(*given):
        return found
    ready, pack = inner, _cast(halves[_WEIGHTS], inner.inputs[_WEIGHTS], backend, policy)
    if inner.packed is not None and inner.packed.index == _WEIGHTS:
        ready, prepared = inner.packed.plan, inner.packed.pack
        pack = _joined(_cast(halves[_WEIGHTS], prepared.inputs[0], backend, policy), prepared)
    rest = {i: dtype for i, dtype in halves.items() if i != _WEIGHTS}
    return replace(found, packed=Packed(_WEIGHTS, pack, between(ready, rest)))


def _between(
    inner: Plan, halves: Mapping[int, DType], made: Sequence[DType], backend: Backend, policy: Policy
) -> Plan:
    """A plan between casts: of the half-type inputs, and of outputs that must be of a half type."""
    casts = {i: _cast(dtype, inner.inputs[i], backend, policy) for i, dtype in halves.items()}
    inputs = [casts[i].inputs[0] if i in casts else s for i, s in enumerate(inner.inputs)]
    outputs = [_as(s, dtype) for s, dtype in zip(inner.outputs, made, strict=True)]
    chain = Chain(inputs, outputs)
    places = [
        _place(chain, a, b, at_input(i)) for i, (a, b) in enumerate(zip(inputs, inner.inputs, strict=True))
    ]
    results = [
        _place(chain, a, b, at_output(i)) for i, (a, b) in enumerate(zip(outputs, inner.outputs, strict=True))
    ]
    for i, cast in casts.items():
        same = cast.outputs[0].same_memory(_as(cast.inputs[0], float32))
        chain.follow(cast, [at_input(i)], [places[i]], Cast(float32) if same else None)
    chain.follow(inner, places, results)
    for i, (target, source) in enumerate(zip(outputs, inner.outputs, strict=True)):
        if target != source:
            cast = _in_place(source, target, backend, policy)
            chain.follow(cast, [results[i]], [at_output(i)], Cast(target.dtype))
    return replace(chain.plan(f"{inner.label} in float32"), arithmetic=inner.arithmetic)


def _place(chain: Chain, spec: Spec, wide: Spec, own: Location) -> Location:
    """The place of an operand for the inner plan: its own, or workspace."""
    return own if spec == wide else chain.temporary(wide.nbytes)


def _as(spec: Spec, dtype: DType) -> Spec:
    return Spec(spec.shape, dtype, spec.layout)


def _cast(dtype: DType, target: Spec, backend: Backend, policy: Policy) -> Plan:
    """The cast from a half type, in the operand's layout; from row-major for filters and partly filled blocks."""
    channels = all(axis == 1 for axis, _ in target.physical.blocks)
    if channels and target.nbytes == target.numel * target.dtype.itemsize:
        return _in_place(_as(target, dtype), target, backend, policy)
    rows = target.open.fixed
    return _joined(_in_place(_as(rows, dtype), rows, backend, policy), backend.reorder(rows, target))


def _joined(first: Plan, then: Plan) -> Plan:
    """Two plans on one operand, one after the other."""
    chain = Chain(list(first.inputs), list(then.outputs))
    place = chain.temporary(first.outputs[0].nbytes)
    chain.follow(first, [at_input(0)], [place])
    chain.follow(then, [place], [at_output()])
    return chain.plan(f"{first.label}, {then.label}")


def _in_place(source: Spec, target: Spec, backend: Backend, policy: Policy) -> Plan:
    """A cast that keeps the layout. Raises NoKernel where there is none."""
    plan = backend.choose(Cast(target.dtype), [source], policy)
    if plan.inputs != (source,) or plan.outputs != (target,):
        raise NoKernel(f"cpu: no cast of {source} to {target}")
    return plan
