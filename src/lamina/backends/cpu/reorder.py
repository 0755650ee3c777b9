"""Copies between layouts and between float types."""

from __future__ import annotations

from collections.abc import Sequence

from lamina import onednn
from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import (
    TYPES,
    Chain,
    Location,
    Refused,
    at_input,
    at_output,
    attempt,
    computes,
    desc,
    flat,
    kernels,
    single,
)
from lamina.backends.cpu.loops import table
from lamina.onednn import ARG, MemoryDesc, PrimitiveDesc
from lamina.ops.primitives.cast import Cast
from lamina.runtime import Device
from lamina.spec import Layout, Policy, Spec, bfloat16, float16
from lamina.spec.layout import overlaps

#: Elements from which on copies of runs by memcpy are faster than what oneDNN generates: more than caches hold.
_LARGE = 1 << 22
#: Elements from which on NumPy casts half types faster than oneDNN's loops, which take 25 ns for each.
_SMALL = 256


def reorder(source: Spec, target: Spec) -> Plan:
    """The plan that copies from one layout to another; padding becomes zero. Raises NoKernel."""
    source, target = source.fixed, target.fixed
    if source.open != target.open:
        raise NoKernel(f"reorder: {source} and {target} differ in more than layout")
    if source.dtype not in TYPES or source.numel == 0 or _has_windows(source):
        raise NoKernel(f"cpu: oneDNN does not copy {source}")
    if source.physical.is_blocked and target.physical.is_blocked:
        return _through_rows(source, target) or _copy(source, target, desc(source), desc(target))
    return _copy(source, target, desc(source), desc(target))


def _has_windows(spec: Spec) -> bool:
    """Whether elements share addresses in another way than by repetition (stride 0), which oneDNN has no form for."""
    strides = spec.physical.strides
    if spec.physical.is_blocked or not spec.overlaps:
        return False
    once = [(n, s) for n, s in zip(spec.shape, strides, strict=True) if s]
    return overlaps(Layout(tuple(s for _, s in once)), tuple(n for n, _ in once))


def generated(source: Spec, target: Spec) -> Plan:
    """The same by code that oneDNN generates for plain layouts, in a tenth of a millisecond. Raises NoKernel where it
    has none, or the copy is so large that runs of neighbours are faster.
    """
    source, target = source.fixed, target.fixed
    blocked = source.physical.is_blocked or target.physical.is_blocked
    is_small = 0 < source.numel < _LARGE
    if (
        blocked
        or source.open != target.open
        or source.dtype not in TYPES
        or not is_small
        or _has_windows(source)
    ):
        raise NoKernel(f"cpu: {source} to {target} is left to loops")
    made = _described(desc(source), desc(target))
    if made is None:
        raise NoKernel(f"cpu: oneDNN generates no code for {source} to {target}")
    return _made(source, target, made)


def one_by_one(source: Spec, target: Spec) -> bool:
    """Whether oneDNN has but a loop for a copy of a half type, at 25 to 50 ns an element, or not even that."""
    if source.dtype not in (float16, bfloat16) or source.open != target.open or source.numel == 0:
        return False
    try:
        return _described(desc(source.fixed), desc(target.fixed)) is None
    except NoKernel:
        return True


def _through_rows(source: Spec, target: Spec) -> Plan | None:
    """Two copies by generated code, where oneDNN has none for blocks of two sizes: four to fifty times as fast."""
    rows, chain = source.open.fixed, Chain([source], [target])
    place = chain.temporary(rows.nbytes)
    steps = [(source, at_input(0), target, at_output())]
    if not _is_generated(*steps[0]):
        steps = [(source, at_input(0), rows, place), (rows, place, target, at_output())]
    if not all(_is_generated(*step) for step in steps):
        return None
    for a, before, b, after in steps:
        chain.run(onednn.reorder(desc(a), desc(b)), {ARG.SRC: (desc(a), before), ARG.DST: (desc(b), after)})
    return chain.plan()


def _is_generated(source: Spec, before: Location, target: Spec, after: Location) -> bool:
    return _described(desc(source), desc(target)) is not None


def _described(before: MemoryDesc, after: MemoryDesc) -> PrimitiveDesc | None:
    """The copy, where oneDNN generates code for it."""
    made = attempt(onednn.reorder, before, after)
    return made if made is not None and made.implementation.startswith("jit") else None


@kernels(Cast, source="onednn")
def cast(op: Cast, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Between float types, in the layout that x has; rounded to the nearest, ties to even."""
    x = specs[0].fixed if specs[0].tag is not None else specs[0].open.fixed
    y = Spec(x.shape, op.dtype, x.physical)
    computes(x, y)
    before, after = flat(x), flat(y)
    assert before is not None
    assert after is not None
    found = attempt(onednn.reorder, before, after)
    plain = found is not None and found.implementation == "simple:any"
    # Of few elements NumPy takes over, which keeps no layout but rows.
    least = _SMALL if x.is_contiguous else table.LEAST
    if plain and table.answers(op) and x.numel >= least:
        raise NoKernel(f"cpu: oneDNN converts {x} to {y} one by one")
    return _copy(x, y, before, after)


def _copy(source: Spec, target: Spec, before: MemoryDesc, after: MemoryDesc) -> Plan:
    try:
        made = onednn.reorder(before, after)
    except Refused:
        raise NoKernel(f"cpu: oneDNN cannot copy {source} to {target}") from None
    return _made(source, target, made)


def _made(source: Spec, target: Spec, made: PrimitiveDesc) -> Plan:
    return single(
        made, [source], [target], {ARG.SRC: (made.src, at_input(0)), ARG.DST: (made.dst, at_output())}
    )
