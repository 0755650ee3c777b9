"""Concatenation in the operands' own layout, without reorders before or after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lamina import onednn
from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import (
    TYPES,
    alike,
    at_input,
    at_output,
    attempt,
    desc,
    is_padded,
    kernels,
    memory_order,
    single,
)
from lamina.backends.cpu.loops import table
from lamina.backends.cpu.loops.space import has_runs
from lamina.onednn import ARG
from lamina.ops.primitives.shape import Concat
from lamina.runtime import Device
from lamina.spec import Layout, Policy, Spec
from lamina.spec.layout import dense

#: Bytes of a contiguous run (half a cache line) below which oneDNN's copies take longer than generated loops, and the
#: elements from which that pays for the loops' compilation.
_SHORT, _MANY = 32, 1 << 14


@kernels(Concat, source="onednn")
def concat(op: Concat, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y from the concatenated inputs; empty ones are left out."""
    (y,) = op.infer(*(s.open for s in specs))
    parts = [i for i, x in enumerate(specs) if x.numel]
    if y.dtype not in TYPES or not parts:
        raise NoKernel(f"cpu: oneDNN does not join {y}")
    axis = op.axis % y.ndim
    for like in _layouts([specs[i] for i in parts]):
        inputs, joined = [alike(like, x) for x in specs], alike(like, y)
        if any(is_padded(x) for x in (*inputs, joined)):
            continue
        if y.numel >= _MANY and table.answers(op) and min(_run(inputs[i], axis) for i in parts) < _SHORT:
            raise NoKernel(f"cpu: oneDNN copies element by element where {op} joins short runs")
        found = _joined(axis, inputs, joined)
        if found is not None:
            return found
    raise NoKernel(f"cpu: oneDNN has no kernel that joins {', '.join(map(str, specs))} along axis {axis}")


def _joined(axis: int, inputs: Sequence[Spec], y: Spec) -> Plan | None:
    """The plan that concatenates operands in place of a layout; None where oneDNN has no kernel."""
    parts = [i for i, x in enumerate(inputs) if x.numel]
    sources = [desc(inputs[i]) for i in parts]
    made = attempt(onednn.concat, axis, sources, desc(y))
    if made is None:
        return None

    def relaid(layout: Layout) -> Plan | None:
        other = Spec(y.shape, y.dtype, layout)
        runs = all(has_runs(x.shape, [x, Spec(x.shape, x.dtype, layout)]) for x in inputs if x.numel)
        return _joined(axis, inputs, other) if runs else None

    operands = {
        ARG.MULTIPLE_SRC + n: (d, at_input(i)) for n, (d, i) in enumerate(zip(sources, parts, strict=True))
    }
    plan = single(made, inputs, [y], operands | {ARG.DST: (desc(y), at_output())})
    return replace(plan, relaid=relaid)


def _run(spec: Spec, axis: int) -> int:
    """Contiguous bytes that an operand contributes."""
    strides = spec.physical.strides
    return spec.shape[axis] * strides[axis] * spec.dtype.itemsize if not spec.physical.is_blocked else _SHORT


def _layouts(specs: Sequence[Spec]) -> Iterator[Spec]:
    """Candidate layouts for all operands, best first: the one with the most bytes, that without blocks, row-major."""
    held: Counter[str] = Counter()
    first: dict[str, Spec] = {}
    for x in specs:
        if x.layout is not None and x.tag is not None:
            held[x.tag] += x.nbytes
            first.setdefault(x.tag, x)
    if held:
        like = first[held.most_common(1)[0][0]]
        yield like
        if like.physical.is_blocked:
            yield Spec(like.shape, like.dtype, dense(like.shape, memory_order(like)))
    yield specs[0].open.fixed
