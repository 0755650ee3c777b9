"""Connectionist temporal classification (Graves et al. 2006): the loss over all alignments of a label sequence.

A sequence of L labels has 2 L + 1 states: a blank, a label, a blank, …; blanks may be skipped, except between two
equal labels. alpha[t, s] is the log-probability of all paths in state s at time t. Everything is computed in
logarithms, because the probabilities of long sequences underflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lamina.ops.arguments import checked, shown
from lamina.ops.core import (
    INTEGERS,
    Arg,
    Array,
    BatchAxes,
    BatchAxis,
    Op,
    Sample,
    bind,
    call,
    from_host,
    listing,
    operand,
    recorder,
)
from lamina.ops.primitives.check_index import check_index
from lamina.ops.primitives.embedding import embedding
from lamina.ops.primitives.loss import Reduction
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.scan import cumsum
from lamina.spec import DTypeError, Shape, ShapeError, Spec, float32, float64, int64


class _Ctc(Op):
    blank: int
    zero_infinity: bool

    def check(self, x: Spec, targets: Spec, *lengths: Spec) -> None:
        """Raise unless the operands are [T, N, C] of floats, [N, S], [N] and [N] of int64."""
        self.check_float(x)
        given = listing((x, targets, *lengths))
        if any(s.dtype != int64 for s in (targets, *lengths)):
            raise DTypeError(f"{self.name}: targets and lengths must be int64, got {given}")
        if x.ndim != 3 or targets.ndim != 2 or any(s.shape != x.shape[1:2] for s in lengths):
            raise ShapeError(
                f"{self.name}: needs log_probs [T, N, C], targets [N, S] and lengths [N], got {given}"
            )
        if targets.shape[0] != x.shape[1] or 0 in (x.shape[0], x.shape[2]):
            raise ShapeError(f"{self.name}: log_probs {x} and targets {targets} do not fit")
        if not 0 <= self.blank < x.shape[2]:
            raise ValueError(f"{self.name}: blank must be in 0 … {x.shape[2] - 1}, got {self.blank}")

    def states(self, x: Array, targets: Array, steps: Array, counts: Array) -> _States:
        """The states of every sequence. Raises IndexError for lengths and labels out of range."""
        check_index("ctc_loss: input_lengths", steps, x.shape[0] + 1)
        check_index("ctc_loss: target_lengths", counts, targets.shape[1] + 1)
        used = np.arange(targets.shape[1]) < counts[:, None]
        labels = np.where(used, targets, self.blank)
        check_index("ctc_loss: targets", labels, x.shape[2])
        names = np.full((len(targets), 2 * targets.shape[1] + 1), self.blank, np.int64)
        names[:, 1::2] = labels
        skips = np.zeros(names.shape, bool)
        skips[:, 3::2] = labels[:, 1:] != labels[:, :-1]
        scores = np.take_along_axis(x, names[None], 2)
        inside = np.arange(names.shape[1]) < 2 * counts[:, None] + 1
        return _States(names, scores, skips, inside)


class _States(NamedTuple):
    """names [N, Z]: the class of each state; scores [T, N, Z]: its log-probability at each time; skips [N, Z]:
    whether it may follow the state two before; inside [N, Z]: whether the sequence has it. Z = 2 S + 1.
    """

    names: Array
    scores: Array
    skips: Array
    inside: Array


@dataclass(frozen=True)
class CtcLoss(_Ctc):
    """(log_probs [T, N, C], targets [N, S], input_lengths [N], target_lengths [N]) -> (losses [N], alpha).

    losses: -log of the probability that the input_lengths[n] steps of sequence n spell the first target_lengths[n]
    labels of targets[n]; infinity if it is too short for them, or 0 with zero_infinity. In float32 (float64 for
    float64). alpha [T, N, 2 S + 1], with keep: saved for `CtcLossGrad`; -inf where there is no state. It has no
    gradient. normalized: log_probs are the output of log_softmax, and the gradient is that of log_softmax's input,
    which log_softmax's own gradient maps to itself; otherwise the gradient is that of the losses alone. A length or
    label out of range is an IndexError on a CPU and gives NaN on a GPU.
    """

    blank: int = 0
    zero_infinity: bool = False
    normalized: bool = False
    keep: bool = False
    arity = 4

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        self.check(*inputs)
        (time, batch, _), dtype = inputs[0].shape, inputs[0].dtype.compute
        alpha = self.result((time, batch, 2 * inputs[1].shape[1] + 1), dtype)
        losses = self.result((batch,), dtype)
        return (losses, alpha) if self.keep else (losses,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        x, *rest = axes
        if x is None or x.axis != 1 or any(b != BatchAxis(0, x.size) for b in rest):
            return None
        return (BatchAxis(0, x.size), x)[: 1 + self.keep]

    def prune(self, used: Sequence[bool]) -> Op:
        return replace(self, keep=False) if self.keep and not any(used[1:]) else self

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        if grads[0] is None:
            return (None,) * 4
        alpha = outputs[1] if self.keep else bind(replace(self, keep=True), *inputs)[1]
        op = CtcLossGrad(self.blank, self.zero_infinity, self.normalized)
        return call(op, *inputs, alpha, grads[0]), None, None, None

    def reference(self, x: Array, targets: Array, steps: Array, counts: Array) -> tuple[Array, ...]:
        states = self.states(x, targets, steps, counts)
        alpha = _ways(states.scores, states.skips)
        losses = _losses(alpha, steps, counts)
        if self.zero_infinity:
            losses = np.where(losses == np.inf, 0, losses)
        if not self.keep:
            return (losses,)
        alpha[~states.inside[None] | (np.arange(len(x))[:, None, None] >= steps[:, None])] = -np.inf
        return losses, alpha

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """Samples whose gradient is another function's, and the states, are compared in dtypes other than float64."""
        narrow = tuple(d for d in cls.dtypes if d != float64)
        for options, x, *labels in _cases():
            yield Sample.of(cls(*options), x, *labels, dtypes=narrow if options[2] else cls.dtypes)
            yield Sample.of(replace(cls(*options), keep=True), x, *labels, dtypes=(float32,))


@dataclass(frozen=True)
class CtcLossGrad(_Ctc):
    """(log_probs, targets, input_lengths, target_lengths, alpha, g [N]) -> the gradient of log_probs.

    At time t, class c: -g times the posterior probability of c at t given the labels; normalized: plus exp of
    log_probs. 0 after a sequence's end, and with zero_infinity where the loss is infinite; NaN there otherwise. There
    is no second derivative.
    """

    blank: int = 0
    zero_infinity: bool = False
    normalized: bool = False
    arity = 6
    differentiable = False

    def infer(self, *inputs: Spec) -> tuple[Spec]:
        self.check(*inputs[:4])
        x, targets, _, _, alpha, g = inputs
        wide = x.dtype.compute
        wanted = Spec((*x.shape[:2], 2 * targets.shape[1] + 1), wide), Spec((x.shape[1],), wide)
        if (alpha.open, g.open) != wanted:
            raise ShapeError(f"{self.name}: needs alpha {wanted[0]} and g {wanted[1]}, got {alpha} and {g}")
        return (x.open,)

    def reference(self, *inputs: Array) -> tuple[Array]:
        x, targets, steps, counts, alpha, g = inputs
        states = self.states(x, targets, steps, counts)
        losses = _losses(alpha, steps, counts)
        beta = _back(states, steps, counts)
        share = np.exp(alpha + beta - states.scores + losses[:, None])
        share[~states.inside[None] | (alpha == -np.inf)] = 0
        found = np.exp(x) if self.normalized else np.zeros_like(x)
        found[:, :, self.blank] -= share[:, :, ::2].sum(2)
        rows = np.arange(x.shape[1])
        for s in range(
            1, share.shape[2], 2
        ):  # states at one position belong to different sequences: indices are unique
            found[:, rows, states.names[:, s]] -= share[:, :, s]
        found[:, losses == np.inf] = 0 if self.zero_infinity else np.nan
        found *= g[:, None]
        found[np.arange(len(x))[:, None] >= steps] = 0
        return (found,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """alpha is drawn independently, as the op is defined by its formulas; low enough that no path sum grows."""
        for options, shape, *labels in _cases():
            for wide in (None, float32):
                dtypes = tuple(d for d in cls.dtypes if (d == d.compute) == (wide is None))
                x, g = Arg(shape, low=-4, high=-2), Arg(shape[1:2], wide)
                alpha = Arg((*shape[:2], 2 * labels[0].shape[1] + 1), wide, low=-2, high=-1)
                yield Sample.of(cls(*options), x, *labels, alpha, g, dtypes=dtypes)


def _ways(scores: Array, skips: Array) -> Array:
    """alpha [T, N, Z] of scores [T, N, Z]: from each state to itself, the next, and, if it skips, the one after.

    Internally two columns of -inf precede the states.
    """
    time, batch, count = scores.shape
    never, least = scores.dtype.type(-np.inf), np.finfo(scores.dtype).min
    found = np.full((time, batch, count + 2), never)
    found[0, :, 2:4] = scores[0, :, :2]
    closed = np.where(skips, 0, never).astype(scores.dtype)
    terms, top = np.empty((3, batch, count), scores.dtype), np.empty((batch, count), scores.dtype)
    for t in range(1, time):
        before = found[t - 1]
        terms[0], terms[1] = before[:, 2:], before[:, 1:-1]
        np.add(before[:, :-2], closed, out=terms[2])
        np.maximum(terms.max(0, out=top), least, out=top)
        np.subtract(terms, top, out=terms)
        np.exp(terms, out=terms)
        now = found[t, :, 2:]
        np.log(terms.sum(0, out=now), out=now)
        now += top
        now += scores[t]
    return found[:, :, 2:]


def _back(states: _States, steps: Array, counts: Array) -> Array:
    """beta [T, N, Z], from a sequence's end: alpha of the reversed sequences, reversed."""
    time, _, count = states.scores.shape
    when = (steps - 1 - np.arange(time)[:, None]) % max(time, 1)  # [T, N]; arbitrary after the end
    which = (2 * counts[:, None] - np.arange(count)) % count  # [N, Z]
    rows = np.arange(len(steps))[:, None]
    turned = states.scores[when[:, :, None], rows, which]
    skips = np.zeros_like(states.skips)
    skips[:, 2:] = np.take_along_axis(states.skips, which, 1)[:, :-2]
    return np.asarray(_ways(turned, skips)[when[:, :, None], rows, which])


def _losses(alpha: Array, steps: Array, counts: Array) -> Array:
    """-log of the paths ending in the last label or the blank after it; a sequence without steps spells nothing."""
    rows = np.arange(len(steps))
    last = alpha[np.maximum(steps, 1) - 1, rows]
    ends = last[rows, 2 * counts], np.where(counts > 0, last[rows, 2 * counts - 1], -np.inf)
    empty = np.where(counts == 0, 0, np.inf)
    return np.where(steps == 0, empty, -np.logaddexp(*ends)).astype(alpha.dtype)


def _cases() -> Iterator[tuple[Any, ...]]:
    """(blank, zero_infinity, normalized), log_probs' shape, targets, input_lengths, target_lengths."""
    cases: list[tuple[tuple[int, bool, bool], Shape, list[list[int]], list[int], list[int]]] = [
        ((0, False, False), (5, 2, 4), [[1, 2], [3, 3]], [5, 4], [2, 2]),
        ((3, False, False), (6, 3, 4), [[0, 0, 1], [2, 1, 0], [1, 1, 1]], [6, 3, 1], [3, 2, 0]),
        ((1, True, False), (4, 2, 3), [[0, 0, 2], [2, 0, 2]], [3, 4], [3, 3]),
        ((0, False, False), (9, 1, 6), [[5, 4, 5, 5]], [9], [4]),
        ((2, False, False), (3, 2, 3), [[], []], [3, 0], [0, 0]),
        ((0, False, False), (2, 0, 3), [], [], []),
        ((0, True, False), (40, 2, 3), [[1, 2] * 9, [2, 2] * 9], [40, 37], [18, 17]),
        ((0, False, True), (4, 2, 5), [[4, 1], [2, 2]], [4, 3], [1, 2]),
    ]  # fmt: skip
    for options, shape, targets, *lengths in cases:
        values = np.array(targets, np.int64).reshape(shape[1], -1 if shape[1] else 2)
        yield options, shape, *(_fixed(v) for v in (values, *(np.array(n, np.int64) for n in lengths)))


def _fixed(values: Array) -> Arg:
    return Arg(values.shape, int64, value=tuple(values.reshape(-1).tolist()), differentiable=False)


# -------------------------------------------------------------------------------------------------- the function


@checked
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: Reduction = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Connectionist temporal classification (Graves et al. 2006), as torch.nn.functional.ctc_loss.

    log_probs: [T, N, C] of log_softmax over C, or [T, C] for one. targets: integers, padded [N, S], or concatenated
    [sum of target_lengths]; [S] for one. input_lengths, target_lengths: N ints or integers [N] ([] for one); sequence
    n has input_lengths[n] steps and target_lengths[n] labels. blank: the blank class. reduction: "mean" (each loss
    divided by its number of labels, then averaged), "sum" or "none": [N]. zero_infinity: sequences too short for
    their labels count 0. The result is float32 (float64 for float64).

    As in torch the gradient is that of log_softmax's input. A length or label out of range is an IndexError on a CPU
    and NaN on a GPU. Raises ShapeError, DTypeError, ValueError.
    """
    x = operand(log_probs, "ctc_loss", "log_probs")
    if x.ndim not in (2, 3):
        raise ShapeError(f"ctc_loss: log_probs must be [T, N, C] or [T, C], got {x.spec}")
    single = x.ndim == 2
    x = x.unsqueeze(1) if single else x
    counts = _lengths("target_lengths", target_lengths, x, single)
    labels, spelled = _integers("targets", targets), counts
    if labels.ndim not in (1, 2):
        raise ShapeError(f"ctc_loss: targets must be [N, S] or [sum of target_lengths], got {labels.spec}")
    if labels.ndim == 1 and single:
        labels = labels.unsqueeze(0)
    elif labels.ndim == 1:
        labels, spelled = _padded(labels, counts, _host(target_lengths), x.shape[0])
    steps = _lengths("input_lengths", input_lengths, x, single)
    op = CtcLoss(int(blank), bool(zero_infinity), normalized=True, keep=True)
    losses = call(op, x, labels, steps, spelled)
    if reduction == "mean":
        return (losses / counts.maximum(1).cast(losses.dtype)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses.squeeze(0) if single else losses


def _integers(name: str, given: Any) -> Any:
    """Integers as an int64 operand."""
    if isinstance(given, (tuple, list)) and not given:
        given = np.zeros(0, np.int64)
    found = operand(given, "ctc_loss", name)
    if found.dtype not in INTEGERS:
        raise DTypeError(f"ctc_loss: {name} must be integers, got {found.spec}; cast with ops.cast")
    return found.cast(int64)


def _lengths(name: str, given: Any, x: Any, single: bool) -> Any:
    """Lengths as [N]."""
    found = _integers(name, from_host(given))
    if single and found.ndim == 0:
        found = found.unsqueeze(0)
    if found.shape != x.shape[1:2]:
        raise ShapeError(
            f"ctc_loss: {name} must be {x.shape[1]} integers for log_probs {x.spec}, got {shown(given)}"
        )
    return found


def _host(lengths: Any) -> Array | None:
    """The values of lengths if they are already known: a compiled program must not capture those of a tensor."""
    if recorder() is None and hasattr(lengths, "numpy"):
        lengths = lengths.numpy()
    return np.asarray(lengths) if isinstance(lengths, (tuple, list, np.ndarray)) else None


def _padded(labels: Any, counts: Any, known: Array | None, time: int) -> tuple[Any, Any]:
    """Concatenated labels as [N, S], and the number of them that count.

    S is the longest length, or if unknown one more than the steps: that many labels can never be spelled.
    """
    total = labels.shape[0]
    width = min(total, time + 1) if known is None else int(known.max(initial=0))
    if not total or not width:
        return operand(np.zeros((counts.shape[0], width), np.int64)), counts
    first = cumsum(counts, 0) - counts
    places = np.arange(width)
    index = where(counts.unsqueeze(1) > places, first.unsqueeze(1) + places, 0)
    rows = embedding(index, labels.cast(float64).unsqueeze(1))  # exact up to 2^53
    return rows.squeeze(2).cast(int64), counts.minimum(width) if known is None else counts
