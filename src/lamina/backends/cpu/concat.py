"""Tensors joined along an axis, in the layout that they lie in: no copy into another one before or after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

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
from lamina.onednn import ARG
from lamina.ops.primitives.shape import Concat
from lamina.runtime import Device
from lamina.spec import Policy, Spec
from lamina.spec.layout import dense

#: Bytes of a run below which oneDNN's copies take longer than loops of our own (half a cache line), and the elements
#: from which that pays for the loops' compilation.
_SHORT, _MANY = 32, 1 << 14


@kernels(Concat, source="onednn")
def concat(op: Concat, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y from what is joined; parts without elements are left out."""
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
        sources = [desc(inputs[i]) for i in parts]
        made = attempt(onednn.concat, axis, sources, desc(joined))
        if made is not None:
            places = enumerate(zip(sources, parts, strict=True))
            operands = {ARG.MULTIPLE_SRC + n: (source, at_input(i)) for n, (source, i) in places}
            return single(made, inputs, [joined], operands | {ARG.DST: (desc(joined), at_output())})
    raise NoKernel(f"cpu: oneDNN has no kernel that joins {', '.join(map(str, specs))} along axis {axis}")


def _run(spec: Spec, axis: int) -> int:
    """Bytes of an operand that come to lie beside each other."""
    strides = spec.physical.strides
    return spec.shape[axis] * strides[axis] * spec.dtype.itemsize if not spec.physical.is_blocked else _SHORT


def _layouts(specs: Sequence[Spec]) -> Iterator[Spec]:
    """Whose layout all may take, best first: the layout of most bytes, that without blocks, row-major."""
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
