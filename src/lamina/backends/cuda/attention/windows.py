"""Attention of few queries and keys, such as windows of an image, in one kernel: only operands and results touch
global memory (`windows.cu`).

Half types, at most 64 queries and keys, and features that are a multiple of 16 bytes, at most 128, as far as the
operands of one head fit in shared memory. Operands are read by strides. The gradient of a bias is summed over the
batch entries that a block processes one after the other, and over the blocks of a head by a reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from lamina.backends.cuda.elementwise.pointwise import literal
from lamina.backends.cuda.launch.indexing import broadcast_strides
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Launch,
    Place,
    Program,
    SubPlan,
    c_type,
    constants,
    round_up,
    scratch,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.attention import Attention, AttentionGrad
from lamina.ops.primitives.reduce import Reduce
from lamina.runtime import Device
from lamina.spec import Policy, Spec, bfloat16, float16

#: The most queries and keys, and the most features.
MOST, FEATURES = 64, 128
#: Bytes of shared memory that every GPU gives a block; lines of operands are padded by 16 bytes there.
_SHARED, _GAP = 48 << 10, 8
#: Blocks per multiprocessor over which a bias' gradient is split: there is a partial sum for each.
_WAVES = 8
_WARP, _LINES = 32, 16

Term = tuple[Spec, Place]


def fit(terms: Sequence[Term], *, gradient: bool = False) -> bool:
    """Whether the kernel, or that of the gradient, supports operands that begin with q, k and v."""
    (q, _), (k, _), (v, _) = terms[:3]
    few = q.shape[2] <= MOST and k.shape[2] <= MOST and max(q.shape[3], v.shape[3]) <= FEATURES
    if not few or q.dtype not in (float16, bfloat16) or _shared(q, k, v, gradient) > _SHARED:
        return False
    return all(is_read(s) for s in (q, k, v))


def _shared(q: Spec, k: Spec, v: Spec, gradient: bool) -> int:
    """Bytes of shared memory: q, k and v of a head; backward also dO, and scores in place of k and v."""
    rows, columns = _whole(q.shape[2]), _whole(k.shape[2])
    of_k, of_v = (_whole(s.shape[3]) + _GAP for s in (q, v))
    if not gradient:
        return (rows * of_k + columns * (of_k + of_v)) * q.dtype.itemsize
    scores = rows * (columns + _GAP)
    kept = max(columns * of_k, scores) + max(columns * of_v, scores)
    return (rows * (of_k + of_v) + kept) * q.dtype.itemsize


def _whole(n: int) -> int:
    """Rounded up to whole tensor-core matrices."""
    return ceil(n / _LINES) * _LINES


def is_read(spec: Spec) -> bool:
    """Whether lines of features are a multiple of an access, and aligned to it."""
    each = VECTOR // spec.dtype.itemsize
    strides = spec.physical.strides
    whole = all(step % each == 0 for n, step in zip(spec.shape[:3], strides, strict=False) if n > 1)
    return not spec.physical.is_blocked and strides[3] == 1 and spec.shape[3] % each == 0 and whole


def forward(op: Attention, terms: Sequence[Term], targets: Sequence[Term], *, aligned: bool = True) -> Launch:
    """The launch that makes o and, if requested, the statistics."""
    q, k, v, *more = terms
    bias, mask = op.parted(more)
    o, *stats = targets
    text = text_of(op, terms, o[0], bias, aligned, GRADIENT=0, STATS=int(op.stats), SLOPES=0, TURNS=1)
    unused = q[1]
    places = [q, k, v, *(bias or [q]), *(mask or [q]), o]
    arguments = (*(place for _, place in places), stats[0][1] if stats else unused)
    return _launch("attention_windows", text, q[0].shape, q[0].shape[0], arguments)


def backward(
    op: AttentionGrad,
    terms: Sequence[Term],
    targets: Sequence[Term],
    device: Device,
    policy: Policy,
    *,
    aligned: bool = True,
) -> tuple[list[Bindable], int]:
    """The steps that make dq, dk, dv and, if requested, the gradient of the bias, and their scratch memory."""
    q, k, v, _, stats, g, *more = terms
    bias, mask = op.parted(more)
    batch, heads, queries, _ = q[0].shape
    summed = [t for t, _ in bias] if op.bias_grad else []
    turns = _turns(batch, heads, device) if summed and summed[0].shape[0] == 1 else 1
    parts = Spec((ceil(batch / turns), heads, queries, k[0].shape[2]), q[0].dtype).fixed
    flags = {"GRADIENT": 1, "STATS": 0, "SLOPES": len(summed), "TURNS": turns}
    text = text_of(op, terms, g[0], bias, aligned, targets, **flags)
    steps: list[Bindable] = []
    slopes, size = q[1], 0
    if summed:
        axes = tuple(i for i, (n, m) in enumerate(zip(summed[0].shape, parts.shape, strict=True)) if n != m)
        slopes = scratch() if axes else targets[3][1]
        if axes:
            size = round_up(parts.nbytes, WORKSPACE_ALIGNMENT)
            plan = kernels.plan(Reduce("sum", axes), [parts], device, policy)
            steps.append(SubPlan(plan, (slopes,), (targets[3][1],), size))
            size += plan.workspace
    places = [q, k, v, g, *(bias or [q]), *(mask or [q]), stats, *targets[:3]]
    arguments = (*(place for _, place in places), slopes)
    launch = _launch("attention_windows_grad", text, q[0].shape, parts.shape[0], arguments)
    return [launch, *steps], size


def _turns(batch: int, heads: int, device: Device) -> int:
    """Batch entries per block, which it adds one after the other to its part of a bias' gradient."""
    blocks = _WAVES * device.machine.multiprocessors
    return max(1, batch * heads // blocks)


def _launch(name: str, text: str, shape: Sequence[int], parts: int, arguments: tuple[Place, ...]) -> Launch:
    """A launch with a block per head of each part of the batch, and a warp for each 16 queries."""
    _, heads, queries, _ = shape
    threads = ceil(queries / _LINES) * _WARP
    return Launch(Program(name, "attention/windows.cu", text), (parts * heads,), (threads,), arguments)


def text_of(
    op: Attention | AttentionGrad,
    terms: Sequence[Term],
    o: Spec,
    bias: Sequence[Term],
    aligned: bool,
    gradients: Sequence[Term] = (),
    **flags: int,
) -> str:
    """The constants of the kernels. gradients: those of q, k and v, if the kernels make these."""
    (q, _), (k, _), (v, _) = terms[:3]
    batch, heads, queries, d = q.shape
    scores = (batch, heads, queries, k.shape[2])
    text = f"typedef {c_type(q.dtype)} T;\n" + constants(
        BATCH=batch, HEADS=heads, QUERIES=queries, KEYS=k.shape[2], D=d, E=v.shape[3], SCALE=literal(op.scale, "f32"),
        CAUSAL=int(op.causal), DROPS=int(op.keep < 1), GROWTH=literal(op.growth, "f32"), BIAS=len(bias),
        CROOKED=int(not aligned), **flags,
    )  # fmt: skip
    for name, spec in zip("QKVO", (q, k, v, o), strict=True):
        text += _strides(name, "BHS", spec.physical.strides[:3])
    for name, (spec, _) in zip(("DQ", "DK", "DV"), gradients, strict=False):
        text += _strides(name, "BHS", spec.physical.strides[:3])
    return text + _strides("BIAS", "BHST", broadcast_strides(bias[0][0], scores) if bias else (0, 0, 0, 0))


def _strides(name: str, axes: str, steps: Sequence[int]) -> str:
    return constants(**{f"{name}_{axis}": f"{step}LL" for axis, step in zip(axes, steps, strict=True)})
