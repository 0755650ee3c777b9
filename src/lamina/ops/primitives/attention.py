"""Scaled dot-product attention, forward and backward, without materializing the weight matrix.

The forward pass saves one number per row, the log-sum-exp of its scores, from which the backward pass recomputes the
weights (Dao et al. 2022, FlashAttention).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod, sqrt
from typing import Any, TypeVar

import numpy as np

from lamina.ops.arguments import checked, within
from lamina.ops.core import Arg, Array, BatchAxes, Op, Sample, bind, call, listing, operand, recorder
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.dropout import dropout_mask
from lamina.ops.primitives.marker import stop_gradient
from lamina.ops.primitives.matmul import matmul
from lamina.ops.primitives.pointwise import exp, where
from lamina.ops.primitives.reduce import sum_to
from lamina.ops.primitives.softmax import softmax
from lamina.spec import FLOATS, Shape, ShapeError, Spec, bool_, broadcast_shapes, float32, float64

A = TypeVar("A")
#: From this magnitude on a row's statistic does not resolve the sum of its weights: of a row that a finite bias masks
#: whole (`finfo.min`) float32 keeps the largest score alone.
COARSE = 1024.0


@dataclass(frozen=True)
class _Attention(Op):
    """Common base of both directions: weights = softmax(scale q kᵀ + bias), per row i over the columns j.

    scale: a factor of the scores. causal: row i attends only to columns j <= i. keep: the fraction of weights that
    dropout keeps. Below 1 the last operand is the dropout mask [B, H, S, T] of zeros and ones, of q's dtype: the
    weights are multiplied by mask / keep (zeros if keep is 0). It has no gradient.
    """

    scale: float
    causal: bool = False
    keep: float = field(default=1.0, kw_only=True)
    arity = None

    @property
    def growth(self) -> float:
        """The scale of kept weights: 1 / keep; 0 if none is kept."""
        return 1 / self.keep if self.keep else 0.0

    def parted(self, more: Sequence[A]) -> tuple[list[A], list[A]]:
        """(the bias, the dropout mask) from the trailing operands: lists of zero or one element."""
        bias, mask = list(more), list[A]()
        if self.keep < 1 and bias:
            mask = [bias.pop()]
        return bias, mask

    def check(self, inputs: Sequence[Spec], count: int) -> Shape:
        """Check q, k, v and, from `count` on, the bias and the mask; returns (B, H, S, T, D, E)."""
        least = count + (self.keep < 1)
        if not 0 <= self.keep <= 1:
            raise ValueError(f"{self.name}: keep must be in [0, 1], got {self.keep}")
        if len(inputs) not in (least, least + 1):
            dropped = ", a mask of dropout" * (self.keep < 1)
            raise ShapeError(
                f"{self.name}: takes {count} operands{dropped} and perhaps a bias, got {listing(inputs)}"
            )
        q, k, v = inputs[:3]
        fits = all(s.ndim == 4 for s in (q, k, v)) and q.shape[:2] == k.shape[:2] == v.shape[:2]
        if not fits or q.shape[3] != k.shape[3] or k.shape[2] != v.shape[2]:
            raise ShapeError(
                f"{self.name}: needs q [B, H, S, D], k [B, H, T, D] and v [B, H, T, E], got {listing((q, k, v))}"
            )
        if 0 in (q.shape[3], k.shape[2]):
            raise ShapeError(f"{self.name}: there is nothing to attend to in {listing((q, k))}")
        batch, heads, rows, width = q.shape
        sizes = (batch, heads, rows, k.shape[2], width, v.shape[3])
        bias, mask = self.parted(inputs[count:])
        full = sizes[:4]
        for b in bias:
            if b.ndim != 4 or any(n not in (1, m) for n, m in zip(b.shape, full, strict=True)):
                raise ShapeError(f"{self.name}: bias must be {full} or have axes of 1, got {b}")
        if any(m.shape != full for m in mask):
            raise ShapeError(f"{self.name}: the mask of dropout must be {full}, got {listing(mask)}")
        return sizes

    def scores(self, q: Array, k: Array, bias: Sequence[Array]) -> Array:
        """scale q kᵀ + bias, -inf where a row does not attend to a column."""
        found: Array = self.scale * (q @ k.swapaxes(2, 3))
        for b in bias:
            found = found + b
        return np.where(self.mask(q.shape[2], k.shape[2]), found, -np.inf) if self.causal else found

    @staticmethod
    def mask(rows: int, columns: int) -> Array:
        """bool [S, T]: the columns that each row attends to under `causal`."""
        return np.tri(rows, columns, dtype=np.bool_)

    def weights(self, q: Any, k: Any, stats: Any, bias: Sequence[Any]) -> Any:
        """exp(scores - stats) in ops, divided by its sum where stats are coarse: used in second derivatives."""
        found = matmul(q, k.transpose(2, 3)) * self.scale
        for b in bias:
            found = found + b
        found = exp(found - cast(stats, q.dtype))
        found = where(self.mask(q.shape[2], k.shape[2]), found, 0.0) if self.causal else found
        total = found.sum(3, keepdim=True)
        return found / where((abs(stats) >= COARSE) & (total > 0), total, 1.0)

    def mask_argument(self, sizes: Shape) -> list[Arg]:
        """The dropout mask of a sample (B, H, S, T, …), if it takes one."""
        drawn = Arg(sizes[:4], low=0, high=2, integers=True, differentiable=False)
        return [drawn] if self.keep < 1 else []

    def dropped(self, weights: Any, mask: Sequence[Any]) -> Any:
        """The weights, or their gradient, times mask / keep: for arrays or op operands."""
        for m in mask:
            weights = weights * (m * self.growth)
        return weights


@dataclass(frozen=True)
class Attention(_Attention):
    """(q [B, H, S, D], k [B, H, T, D], v [B, H, T, E], bias?, mask?) -> (o [B, H, S, E], stats [B, H, S, 1]).

    o = (softmax(scale q kᵀ + bias) mask / keep) v; stats, with stats=True: log of the sum over a row's exp(scores),
    in float32 (float64 for float64). bias: axes of size 1 broadcast. A fully masked row (all scores -inf) gives zeros
    and stats of +inf.
    """

    stats: bool = False

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        self.check_float(*inputs)
        b, h, s, _, _, e = self.check(inputs, 3)
        dtype = inputs[0].dtype
        o = self.result((b, h, s, e), dtype)
        return (o, Spec((b, h, s, 1), dtype.compute)) if self.stats else (o,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        b, bias = axes[0], axes[3:]
        if b is None or b.axis > 1 or axes[1] != b or axes[2] != b:
            return None
        if any(
            other != b and (other or x.shape[b.axis] != 1) for other, x in zip(bias, inputs[3:], strict=True)
        ):
            return None
        return (b,) * (1 + self.stats)

    def flops(self, *inputs: Spec) -> int:
        b, h, s, t, d, e = self.check(inputs, 3)
        return 2 * b * h * s * t * (d + e)

    def prune(self, used: Sequence[bool]) -> Op:
        return replace(self, stats=False) if self.stats and not any(used[1:]) else self

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        q, k, v, *more = inputs
        bias, mask = self.parted(more)
        o, stats = outputs if self.stats else bind(replace(self, stats=True), *inputs)
        g, g_stats = (*grads, None)[:2]
        grad = AttentionGrad(self.scale, self.causal, keep=self.keep)
        found = [None] * 4 if g is None else [*bind(grad, q, k, v, o, stats, g, *more)]
        if g_stats is not None:
            slope = self.weights(q, k, stats, bias) * cast(g_stats, q.dtype)
            dq, dk, *dbias = _through_scores(self, slope, q, k, bias)
            found = [_sum(a, b) for a, b in zip(found, (dq, dk, None, *dbias), strict=False)]
        return [*found[: 3 + len(bias)], *(None for _ in mask)]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        q, k, v, *more = inputs
        bias, mask = self.parted(more)
        scores = self.scores(q, k, bias)
        top = scores.max(3, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0)
        powers = np.exp(scores - top)
        total = powers.sum(3, keepdims=True)
        stats = np.where(total == 0, np.inf, top + np.log(total))
        o = self.dropped(powers / np.where(total == 0, 1, total), mask) @ v
        return (o, stats) if self.stats else (o,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for scale, causal, keep, shapes, bias in _CASES:
            for stats in (False, True) if not bias else (True,):
                op = cls(scale, causal, stats, keep=keep)
                yield Sample.of(op, *_operands(shapes), *bias, *op.mask_argument(shapes))


@dataclass(frozen=True)
class AttentionGrad(_Attention):
    """(q, k, v, o, stats, do [B, H, S, E], bias?, mask?) -> (dq, dk, dv, dbias?): the gradients of `Attention`.

    With w = exp(scores - stats), divided by its sum in rows with |stats| >= COARSE, m = mask / keep (1 without
    dropout), e = m (do vᵀ) and r = sum of w e over the columns: dv = (w m)ᵀ do, dscores = w (e - r),
    dq = scale dscores k, dk = scale dscoresᵀ q, dbias = dscores, summed over the bias' axes of size 1.
    r also equals the sum of do o over the features, the form used by tiled kernels; it is less accurate where o was
    rounded to a half type.
    bias_grad: whether dbias is returned, the last output if there is a bias.
    """

    bias_grad: bool = True

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        b, h, s, t, d, e = self.check(inputs, 6)
        self.check_float(*inputs[:4], *inputs[5:])
        wanted = (b, h, s, e)
        stats = Spec((b, h, s, 1), inputs[0].dtype.compute)
        if inputs[3].shape != wanted or inputs[5].shape != wanted or inputs[4].open != stats:
            raise ShapeError(
                f"{self.name}: needs o and do of shape {wanted} and stats {stats}, got {listing(inputs[3:6])}"
            )
        shapes: list[Shape] = [(b, h, s, d), (b, h, t, d), (b, h, t, e)]
        shapes += [x.shape for x in self.parted(inputs[6:])[0] if self.bias_grad]
        return tuple(self.result(shape, inputs[0].dtype) for shape in shapes)

    def prune(self, used: Sequence[bool]) -> Op:
        return replace(self, bias_grad=False) if len(used) > 3 and not used[3] else self

    def flops(self, *inputs: Spec) -> int:
        """Recomputed scores, then one product each for the weights' gradient, dq, dk and dv."""
        b, h, s, t, d, e = self.check(inputs, 6)
        return 2 * b * h * s * t * (3 * d + 2 * e)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """With u, p, x the gradients of dq, dk, dv: the product rule, applied step by step backwards."""
        q, k, v, _, stats, g, *more = inputs
        bias, mask = self.parted(more)
        u, p, x, *b = (_like(s) if c is None else c for c, s in zip(grads, (q, k, v, *bias), strict=False))
        w, given = self.weights(q, k, stats, bias), self.dropped(matmul(g, v.transpose(2, 3)), mask)
        slope = given - (w * given).sum(3, keepdim=True)
        ds = w * slope
        d_ds = (matmul(u, k.transpose(2, 3)) + matmul(q, p.transpose(2, 3))) * self.scale
        for extra in b:
            d_ds = d_ds + extra
        d_slope = d_ds * w
        d_row = -d_slope.sum(3, keepdim=True)
        d_given = self.dropped(d_slope + d_row * w, mask)
        d_scores = (d_ds * slope + d_row * given + self.dropped(matmul(g, x.transpose(2, 3)), mask)) * w
        dq, dk, *dbias = _through_scores(self, d_scores, q, k, bias)
        return (
            dq + matmul(ds, p) * self.scale,
            dk + matmul(ds.transpose(2, 3), u) * self.scale,
            matmul(d_given.transpose(2, 3), g),
            None,
            cast(-d_scores.sum(3, keepdim=True), stats.dtype),
            matmul(self.dropped(w, mask), x) + matmul(d_given, v),
            *dbias,
            *(None for _ in mask),
        )

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        q, k, v, _, stats, g, *more = inputs
        bias, mask = self.parted(more)
        w = np.exp(self.scores(q, k, bias) - stats)
        total = w.sum(3, keepdims=True)
        w = w / np.where((abs(stats) >= COARSE) & (total > 0), total, 1)
        slope = self.dropped(g @ v.swapaxes(2, 3), mask)
        ds = w * (slope - (w * slope).sum(3, keepdims=True))
        dq, dk = self.scale * (ds @ k), self.scale * (ds.swapaxes(2, 3) @ q)
        dbias = [_to_shape(ds, b.shape) for b in bias if self.bias_grad]
        return (dq, dk, self.dropped(w, mask).swapaxes(2, 3) @ g, *dbias)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """In float64 o and stats are drawn independently, as the op is defined by its formulas; else from q, k, v."""
        for scale, causal, keep, shapes, bias in _CASES:
            q, k, v = _operands(shapes)
            o, narrow = (*q[:3], v[3]), tuple(d for d in FLOATS if d != float64)
            stats = Arg((*q[:3], 1), low=1.5, high=3.0)
            made = Attention(scale, causal, stats=True, keep=keep)
            mask = made.mask_argument(shapes)
            fitting = fitting_operands(made, (q, k, v, *bias, *(m.shape for m in mask)))
            for bias_grad in (True, False) if bias else (True,):
                op = cls(scale, causal, bias_grad, keep=keep)
                yield Sample.of(op, q, k, v, o, stats, o, *bias, *mask, dtypes=(float64,))
                yield Sample.of(op, *fitting[:5], o, *fitting[5:], dtypes=narrow)


def fitting_operands(op: Attention, shapes: Sequence[Shape]) -> list[Arg]:
    """q, k, v, the op's results for them (o and stats), its bias and mask: with values exact in every dtype."""
    rng = np.random.default_rng(0)
    given = [rng.integers(-12, 13, s) / 8 for s in shapes]
    if op.keep < 1:
        given[-1] = rng.integers(0, 2, shapes[-1]).astype(np.float64)
    values = [*given[:3], *op.reference(*given), *given[3:]]
    kinds = [None] * 4 + [float32] + [None] * (len(shapes) - 3)
    slopes = [True] * (len(values) - (op.keep < 1)) + [False] * (op.keep < 1)
    return [
        Arg(x.shape, kind, value=tuple(x.ravel().tolist()), differentiable=slope)
        for x, kind, slope in zip(values, kinds, slopes, strict=True)
    ]


def _through_scores(op: _Attention, ds: Any, q: Any, k: Any, bias: Sequence[Any]) -> list[Any]:
    """The gradients of q, k and the bias from that of the scores."""
    dq, dk = matmul(ds, k) * op.scale, matmul(ds.transpose(2, 3), q) * op.scale
    return [dq, dk, *(sum_to(ds, b.shape) for b in bias)]


def _to_shape(x: Array, shape: Shape) -> Array:
    axes = tuple(i for i, n in enumerate(shape) if n == 1)
    found: Array = x.sum(axes, keepdims=True)
    return found


def _sum(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _like(x: Any) -> Any:
    return operand(np.zeros(x.shape, x.dtype.numpy))


def _operands(sizes: Shape) -> list[Shape]:
    b, h, s, t, d, e = sizes
    return [(b, h, s, d), (b, h, t, d), (b, h, t, e)]


#: scale, causal, keep, (B, H, S, T, D, E), shapes of the bias.
_CASES: list[tuple[float, bool, float, Shape, tuple[Shape, ...]]] = [
    (0.5, False, 1.0, (1, 2, 3, 3, 4, 4), ()),
    (0.35355339, True, 1.0, (2, 2, 5, 5, 8, 8), ()),
    (1.0, False, 1.0, (2, 1, 4, 7, 3, 5), ((2, 1, 4, 7),)),
    (0.3, True, 1.0, (1, 3, 2, 6, 5, 2), ((1, 3, 1, 6),)),
    (0.7, False, 1.0, (1, 1, 1, 9, 2, 33), ()),
    (0.125, True, 1.0, (2, 2, 17, 9, 16, 16), ()),
    (0.4, True, 1.0, (1, 2, 1, 1, 4, 3), ((1, 2, 1, 1),)),
    (0.5, False, 0.75, (2, 2, 8, 8, 8, 8), ()),
    (0.35355339, True, 0.5, (1, 2, 3, 5, 4, 3), ((1, 1, 3, 5),)),
]


@checked
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(scale q kᵀ + mask) v as torch.nn.functional.scaled_dot_product_attention: [..., S, E].

    query [..., S, D], key [..., T, D], value [..., T, E]; the leading axes broadcast. attn_mask: bool (True where a
    row attends to a column) or added to the scores; it broadcasts to [..., S, T]. enable_gqa: key and value have
    fewer heads (axis -3), each shared by several of query's. dropout_p: the dropout probability of the weights, drawn
    from the default generator. Fully masked rows give zeros.
    Also differentiable in the mask. Raises ShapeError, DTypeError, ValueError.
    """
    what = "scaled_dot_product_attention"
    q, k, v = operand(query, what, "query"), operand(key, what, "key"), operand(value, what, "value")
    within(what, "dropout_p", dropout_p, 0, 1)
    if min(q.ndim, k.ndim, v.ndim) < 2:
        raise ShapeError(
            f"{what}: query, key and value must be [..., rows, features], got {_shapes(q, k, v)}"
        )
    mask = None if attn_mask is None else operand(attn_mask, what, "attn_mask")
    if enable_gqa:
        joined = None if is_causal else _joined_rows(q, k, v, mask)
        if joined is not None:
            y = scaled_dot_product_attention(*joined, dropout_p, False, scale)
            return y.reshape((*y.shape[:-3], *q.shape[-3:-1], y.shape[-1]))
        k, v = (_shared_heads(what, x, q) for x in (k, v))
    lead = broadcast_shapes(q.shape[:-2], broadcast_shapes(k.shape[:-2], v.shape[:-2], what), what)
    heads = lead[-1:] or (1,)
    batch = prod(lead[:-1])
    q, k, v = (x.expand((*lead, *x.shape[-2:])).reshape((batch, *heads, *x.shape[-2:])) for x in (q, k, v))
    bias = None if mask is None else _mask(mask, lead, heads)
    y = attention(q, k, v, bias, causal=is_causal, scale=scale, dropout_p=dropout_p)
    return y.reshape((*lead, *y.shape[-2:]))


def _joined_rows(q: Any, k: Any, v: Any, mask: Any) -> tuple[Any, Any, Any, Any] | None:
    """Query heads that share a key head as more rows of one head, to avoid copies: query, key, value and mask; None
    where that is impossible.
    """
    if min(q.ndim, k.ndim, v.ndim) < 3 or k.shape[-3] != v.shape[-3] or not k.shape[-3]:
        return None
    (heads, rows, width), groups = q.shape[-3:], k.shape[-3]
    if heads % groups:
        return None
    if mask is not None:
        by_head, by_row = mask.shape[-3:-2] not in ((), (1,)), mask.shape[-2:-1] not in ((), (1,))
        if by_head and mask.shape[-3:-1] == (heads, rows):
            mask = mask.reshape((*mask.shape[:-3], groups, heads // groups * rows, mask.shape[-1]))
        elif by_head or by_row:
            return None
    return q.reshape((*q.shape[:-3], groups, heads // groups * rows, width)), k, v, mask


def _shared_heads(what: str, x: Any, q: Any) -> Any:
    """The heads of key or value, each repeated for the query heads that share it."""
    if x.ndim < 3 or q.ndim < 3 or not x.shape[-3] or q.shape[-3] % x.shape[-3]:
        raise ShapeError(f"{what}: the heads (axis -3) of {x.spec} must divide those of query {q.spec}")
    times = q.shape[-3] // x.shape[-3]
    apart = x.unsqueeze(-3).expand((*x.shape[:-2], times, *x.shape[-2:]))
    return apart.reshape((*x.shape[:-3], q.shape[-3], *x.shape[-2:]))


def _mask(mask: Any, lead: Shape, heads: Shape) -> Any:
    """A mask that broadcasts to [*lead, S, T] as [B, H, S, T], keeping axes of size 1 where possible."""
    if mask.ndim > len(lead) + 2:
        raise ShapeError(f"scaled_dot_product_attention: attn_mask {mask.spec} has more axes than the scores")
    mask = mask.reshape((1,) * (max(len(lead), 2) + 2 - mask.ndim) + mask.shape)
    if mask.ndim == 4:
        return mask
    return mask.expand((*lead, *mask.shape[-2:])).reshape((prod(lead[:-1]), *heads, *mask.shape[-2:]))


def _shapes(*xs: Any) -> str:
    return listing([x.spec for x in xs])


@checked
def attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Any:
    """softmax(scale q kᵀ + bias) v over q [B, H, S, D], k [B, H, T, D] and v [B, H, T, E]: [B, H, S, E].

    bias: added to the scores, [B, H, S, T] with axes of size 1 broadcasting; of bool: True where a row attends to a
    column. causal: row i attends only to columns j <= i. scale: 1 / sqrt(D) by default.
    dropout_p: the dropout probability of the weights, drawn from the default generator.
    Fully masked rows give zeros.

    Raises ShapeError, DTypeError, ValueError for dropout_p outside [0, 1].
    Source: torch's scaled_dot_product_attention; cuDNN's attention operations.
    """
    within("attention", "dropout_p", dropout_p, 0, 1)
    q, k, v = operand(q, "attention", "q"), operand(k, "attention", "k"), operand(v, "attention", "v")
    return dropping_attention(q, k, v, bias, dropout_p, causal=causal, scale=scale)


def dropping_attention(
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    p: float,
    *,
    causal: bool = False,
    scale: float | None = None,
    generator: Any = None,
) -> Any:
    """`attention` whose weights are dropped with probability p by a generator (None: the default one)."""
    mask = _weights_mask(q, k, p, generator)
    return _attended(Attention(_scale(q, scale), bool(causal), stats=True, keep=1 - p), q, k, v, bias, mask)


def attention_and_weights(
    q: Any, k: Any, v: Any, bias: Any, p: float, *, causal: bool = False, generator: Any = None
) -> tuple[Any, Any]:
    """`dropping_attention`, and the weights [B, H, S, T] that it applies to the values.

    In a recording they are computed separately, so that unused weights cost nothing.
    """
    mask = _weights_mask(q, k, p, generator)
    weights = attention_weights(q, k, bias, causal=causal)
    op = Attention(_scale(q, None), bool(causal), stats=True, keep=1 - p)
    weights = op.dropped(weights, [] if mask is None else [mask])
    if recorder() is None and not q.records:
        return matmul(weights, v), weights
    return _attended(op, q, k, v, bias, mask), weights


def _attended(op: Attention, q: Any, k: Any, v: Any, bias: Any, mask: Any) -> Any:
    given = (None if bias is None else _as_bias(bias, q), mask)
    return call(op, q, k, v, *(x for x in given if x is not None))


def _weights_mask(q: Any, k: Any, p: float, generator: Any) -> Any:
    """The dropout mask of the weights [B, H, S, T]; None without dropout."""
    if not p:
        return None
    if min(q.ndim, k.ndim) < 4:
        raise ShapeError(f"attention: needs q [B, H, S, D] and k [B, H, T, D], got {_shapes(q, k)}")
    return dropout_mask((*q.shape[:3], k.shape[2]), p, q, generator)


@checked
def attention_weights(
    q: Any, k: Any, bias: Any = None, *, causal: bool = False, scale: float | None = None
) -> Any:
    """softmax(scale q kᵀ + bias): the weights [B, H, S, T] of `attention`, from the same arguments.

    For inspection; `attention` itself never materializes them. The weights of a fully masked row are zeros.
    """
    q, k = operand(q, "attention_weights", "q"), operand(k, "attention_weights", "k")
    scores = matmul(q, k.transpose(2, 3)) * _scale(q, scale)
    if bias is not None:
        scores = scores + _as_bias(bias, q)
    if causal:
        scores = where(_Attention.mask(q.shape[2], k.shape[2]), scores, -np.inf)
    if bias is None or not k.shape[2]:
        return softmax(scores, 3)
    sees = (
        stop_gradient(scores).amax(3, keepdim=True) > -np.inf
    )  # keeps the infinities of other rows out of the gradient
    return where(sees, softmax(where(sees, scores, 0.0), 3), 0.0)


def _scale(q: Any, scale: float | None) -> float:
    return float(scale) if scale is not None else 1 / sqrt(max(q.shape[-1], 1))


def _as_bias(bias: Any, q: Any) -> Any:
    bias = operand(bias, "attention", "bias")
    if bias.dtype != bool_:
        return bias.cast(q.dtype)
    zero, never = (np.array(x, q.dtype.numpy) for x in (0, -np.inf))
    return where(bias, zero, never)
