"""Attention over tiles of scores, by own kernels that keep these in registers and shared memory (`tiles.cu`).

Half types and features that are a multiple of 16 bytes, at most 128; any number of queries and keys. Operands are
read by strides, and so are gradients written. The order of summation is fixed. cuDNN's kernels are slow with an
explicit dropout mask: their gradient takes more than 1.5 times as long.

Source: FlashAttention-2 (Dao 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from lamina.backends.cuda.attention.windows import Term, is_read, text_of
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Launch,
    Place,
    Program,
    SubPlan,
    constants,
    round_up,
    scratch,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.attention import Attention, AttentionGrad
from lamina.ops.primitives.reduce import Reduce
from lamina.runtime import Device
from lamina.spec import Policy, Spec, bfloat16, float16

#: The most features.
FEATURES = 128
#: The most keys of a bias with which the kernels are faster than cuDNN's.
_SHORT = 224
#: Columns of a tile.
_COLUMNS = 32
#: Blocks per multiprocessor over which the sum of a bias' gradient is split.
_WAVES = 4
#: Rows of a block of eight warps, for as many features as leave room for two such blocks; of one of four warps.
_MANY, _FEW, _NARROW = 128, 64, 64


def fit(terms: Sequence[Term]) -> bool:
    """Whether the kernels support operands that begin with q, k and v."""
    (q, _), (k, _), (v, _) = terms[:3]
    few = max(q.shape[3], v.shape[3]) <= FEATURES
    return few and q.dtype in (float16, bfloat16) and all(is_read(s) for s in (q, k, v))


def fit_gradients(terms: Sequence[Term], targets: Sequence[Term]) -> bool:
    """Whether they give these gradients: a bias' only if it has all rows and columns."""
    (q, _), (k, _) = terms[:2]
    return fit(terms) and all(s.shape[2:] == (q.shape[2], k.shape[2]) for s, _ in targets[3:])


def reads_bias_faster(op: Attention, terms: Sequence[Term]) -> bool:
    """Whether there is a bias with few keys: for 100 to 197 cuDNN takes 1.05 to 1.4 times as long, for 512 0.6."""
    _, (k, _), _, *more = terms
    return bool(op.parted(more)[0]) and k.shape[2] <= _SHORT


def reads_masks_whole(terms: Sequence[Term]) -> bool:
    """Whether lines of a dropout mask are a multiple of an access: else cuDNN is as fast."""
    (k, _) = terms[1]
    return k.shape[2] % (VECTOR // k.dtype.itemsize) == 0


def forward(op: Attention, terms: Sequence[Term], targets: Sequence[Term], *, aligned: bool = True) -> Launch:
    """The launch that makes o and, if requested, the statistics."""
    q, k, v, *more = terms
    bias, mask = op.parted(more)
    o, *stats = targets
    lines = _lines(terms)
    text = text_of(op, terms, o[0], bias, aligned, PASS=0, LINES=lines, STATS=int(op.stats))
    places = [q, k, v, *(bias or [q]), *(mask or [q]), o, *(stats or [o])]
    return _launch("attention_tiles", text, q, lines, [place for _, place in places])


def backward(
    op: AttentionGrad,
    terms: Sequence[Term],
    targets: Sequence[Term],
    device: Device,
    policy: Policy,
    *,
    aligned: bool = True,
) -> tuple[list[Bindable], int]:
    """The steps that make dq, dk, dv and the bias' gradient; their scratch memory: per row the sum over do o."""
    q, k, v, o, (_, stats), g, *more = terms
    bias, mask = op.parted(more)
    lines = _lines(terms), _FEW, _FEW
    first, second, third = (
        text_of(op, terms, g[0], bias, aligned, targets, PASS=n, LINES=lines[n - 1], STATS=0)
        for n in (1, 2, 3)
    )
    beside = [place for _, place in (*(bias or [q]), *(mask or [q]))]
    (_, dq), (_, dk), (_, dv) = targets[:3]
    means = scratch()
    of_queries = [*(place for _, place in (q, k, v, o, g)), *beside, stats, means, dq]
    of_keys = [*(place for _, place in (q, k, v, g)), *beside, stats, means, dk, dv]
    batch, heads, queries, _ = q[0].shape
    size = round_up(batch * heads * queries * 4, WORKSPACE_ALIGNMENT)
    steps: list[Bindable] = [
        _launch("attention_tiles_queries", first, q, lines[0], of_queries),
        _launch("attention_tiles_keys", second, k, lines[1], of_keys),
    ]
    for term in targets[3:]:
        made, more_size = _bias_gradient(third, (batch, heads), of_keys[:-2], term, size, device, policy)
        steps += made
        size += more_size
    return steps, size


def _bias_gradient(
    text: str,
    matrices: tuple[int, int],
    places: Sequence[Place],
    to: Term,
    begin: int,
    device: Device,
    policy: Policy,
) -> tuple[list[Bindable], int]:
    """The steps that sum a bias' gradient, split where there are few tiles; their scratch memory, from `begin`.

    matrices: batch entries and heads. places: of the kernel's operands.
    """
    spec, dbias = to
    own, heads, queries, keys = spec.shape
    over_b, over_h = matrices[0] // own, matrices[1] // heads
    tiles = own * heads * ceil(queries / _FEW) * ceil(keys / _COLUMNS)
    each = ceil(over_b * over_h / max(1, _WAVES * device.machine.multiprocessors // tiles))
    parts = Spec((ceil(over_b * over_h / each), *spec.shape), spec.dtype).fixed
    text += constants(OVER_B=over_b, OVER_H=over_h, BIASES=own * heads, EACH=each)
    program = Program("attention_tiles_bias", "attention/tiles.cu", text)
    blocks = parts.shape[0] * tiles
    if parts.shape[0] == 1:
        return [Launch(program, (blocks,), (_FEW * 2,), (*places, dbias))], 0
    summed, size = scratch(begin), round_up(parts.nbytes, WORKSPACE_ALIGNMENT)
    plan = kernels.plan(Reduce("sum", (0,)), [parts], device, policy)
    return [
        Launch(program, (blocks,), (_FEW * 2,), (*places, summed)),
        SubPlan(plan, (summed,), (dbias,), begin + size),
    ], size + plan.workspace


def _lines(terms: Sequence[Term]) -> int:
    """Queries per block."""
    (q, _), _, (v, _) = terms[:3]
    return _MANY if q.shape[2] > _FEW and max(q.shape[3], v.shape[3]) <= _NARROW else _FEW


def _launch(name: str, text: str, rows: Term, lines: int, arguments: Sequence[Place]) -> Launch:
    """A launch with a block per `lines` rows of each matrix, and a warp for each 16 of them."""
    batch, heads, count, _ = rows[0].shape
    blocks = batch * heads * ceil(count / lines)
    return Launch(Program(name, "attention/tiles.cu", text), (blocks,), (lines * 2,), tuple(arguments))
