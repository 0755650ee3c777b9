"""CTC losses and their gradient, sequence by sequence; all states of a time step are vectorized."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import at_input, at_output
from lamina.backends.cpu.loops.code import Code, Elements, Scalar, least, where
from lamina.backends.cpu.loops.gather import Index
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.backends.reference import by_numpy
from lamina.ops.primitives.ctc import CtcLoss, CtcLossGrad
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, int64

#: The most states and classes in thread-local memory.
_MOST = 1 << 14


@loops(CtcLoss, source="loops")
def ctc_loss(op: CtcLoss, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """From the first time step to the last."""
    inputs = tuple(s.open.fixed for s in specs)
    outputs = tuple(s.fixed for s in op.infer(*inputs))
    text = partial(_forward, inputs[0].dtype, op.keep)
    places = [*(at_input(i) for i in range(4)), at_output(0), at_output(1 if op.keep else 0)]
    numbers = [*_sizes(op, inputs), int(op.zero_infinity)]
    work = 16 * worthwhile(op, inputs, outputs)
    refused = partial(by_numpy, op, inputs, outputs)
    kernel = LoopKernel(text, [*places, *numbers], inputs[0].shape[1], work, refused)
    return Plan(inputs, outputs, kernel, label="loops ctc_loss")


@loops(CtcLossGrad, source="loops")
def ctc_loss_grad(op: CtcLossGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """From a sequence's last time step to its first."""
    inputs = tuple(s.open.fixed for s in specs)
    y = op.infer(*inputs)[0].fixed
    text = partial(_backward, y.dtype, op.normalized, op.zero_infinity)
    places = [*(at_input(i) for i in range(6)), at_output()]
    work = 16 * worthwhile(op, inputs, [y])
    refused = partial(by_numpy, op, inputs, (y,))
    kernel = LoopKernel(text, [*places, *_sizes(op, inputs)], y.shape[1], work, refused)
    return Plan(inputs, (y,), kernel, label="loops ctc_loss_grad")


def _sizes(op: CtcLoss | CtcLossGrad, inputs: Sequence[Spec]) -> list[int]:
    """Time steps, sequences, classes, labels, the blank, and the length of a row of states."""
    time, batch, classes = inputs[0].shape
    labels = inputs[1].shape[1]
    if max(classes, 2 * labels + 1) > _MOST:
        raise NoKernel(f"cpu: {op} of {classes} classes and {labels} labels is left to NumPy")
    return [time, batch, classes, labels, op.blank, 2 * labels + 5]


class _Sequences:
    """Parameters of a kernel, and the states of one sequence. Rows of states have two of -inf on either side."""

    def __init__(self, code: Code, dtype: DType) -> None:
        self.code, self.wide = code, dtype.compute
        self.x = code.array(dtype)
        self.targets, self.steps, self.counts = (code.array(int64) for _ in range(3))

    def sizes(self) -> None:
        """The next parameters, and memory for the states."""
        code = self.code
        self.time, self.batch, self.classes, self.labels, self.blank, room = code.sizes(6)
        self.states = self.labels * 2 + 1
        self.names, self.closed = code.scratch(int64, room), code.scratch(self.wide, room)
        self.now, self.next = code.scratch(self.wide, room), code.scratch(self.wide, room)

    def begin(self) -> None:
        """Emit the code before the loop over sequences."""
        code = self.code
        self.inside = Index(code, self.classes, from_back=False)
        self.in_time = Index(code, self.time + 1, from_back=False)
        self.in_labels = Index(code, self.labels + 1, from_back=False)

    def end(self, flag: Elements) -> None:
        """Emit the code after it."""
        for index in (self.inside, self.in_time, self.in_labels):
            index.tell(flag)

    def open(self, n: Scalar) -> tuple[Scalar, Scalar]:
        """Read a sequence's states; returns its steps and labels."""
        code = self.code
        steps, count = self.in_time(self.steps[n]), self.in_labels(self.counts[n])
        with code.loop(0, self.states) as z:
            label = where((z & 1) == 0, self.blank, self._label(n, code.shifted(z, 1), count))
            self.names[z + 2] = label
            again = code.variable(True, np.bool_)
            with code.when(((z & 1) == 1) & (z > 1)):
                again.set(code.call("equal", (label, self.names[z])))
            self.closed[z + 2] = where(again.get(), -np.inf, 0.0)
        for row in (self.now, self.next):
            with code.loop(0, self.states + 4) as z:
                row[z] = -np.inf
        return steps, count

    def _label(self, n: Scalar, place: Scalar, count: Scalar) -> Scalar:
        at = n * self.labels + least(place, np.maximum(self.labels - 1, 0))
        used = self.code.variable(self.blank)
        with self.code.when(place < count):
            used.set(self.targets[at])
        return self.inside(used.get())

    def score(self, t: Scalar, n: Scalar, z: Scalar) -> Scalar:
        """The log-probability of a state."""
        return self.x[(t * self.batch + n) * self.classes + self.names[z + 2]]

    def turn(self) -> None:
        """Swap the current row of states with the next one."""
        with self.code.loop(2, self.states + 2, independent=True) as z:
            self.now[z] = self.next[z]


def _sum(code: Code, *terms: Scalar) -> Scalar:
    """Log-sum-exp."""
    top = terms[0]
    for term in terms[1:]:
        top = code.call("maximum", (top, term))
    safe = where(top == -np.inf, 0.0, top)
    total = code.value(0.0, top.dtype)
    for term in terms:
        total = total + code.call("exp", (term - safe,))
    return code.call("log", (total,)) + safe


@lru_cache(maxsize=16)
def _forward(dtype: DType, keep: bool) -> str:
    code = Code()
    s = _Sequences(code, dtype)
    losses, alpha = code.array(s.wide), code.array(s.wide)
    s.sizes()
    forgiven = code.size()
    flag = code.array(int64)
    first, last = code.share()
    s.begin()
    with code.loop(first, last) as n:
        steps, count = s.open(n)
        with code.loop(0, s.time) as t:
            within = t < steps
            with code.when(within & (t == 0)), code.loop(0, least(s.states, 2)) as z:
                s.now[z + 2] = s.score(t, n, z)
            with code.when(within & (t > 0)):
                with code.loop(0, s.states, independent=True) as z:
                    skipped = s.now[z] + s.closed[z + 2]
                    s.next[z + 2] = _sum(code, s.now[z + 2], s.now[z + 1], skipped) + s.score(t, n, z)
                s.turn()
            if keep:
                with code.loop(0, s.states, independent=True) as z:
                    there = within & (z <= count * 2)
                    alpha[(t * s.batch + n) * s.states + z] = where(there, s.now[z + 2], -np.inf)
        loss = _loss(code, steps, count, s.now[count * 2 + 2], s.now[count * 2 + 1])
        losses[n] = where((forgiven == 1) & (loss == np.inf), 0.0, loss)
    s.end(flag)
    return code.text()


def _loss(code: Code, steps: Scalar, count: Scalar, end: Scalar, before: Scalar) -> Scalar:
    """-log of the sum of paths that end in the last label or the blank after it; zero steps spell the empty label."""
    both = -_sum(code, end, where(count > 0, before, -np.inf))
    return where(steps == 0, where(count == 0, code.value(0.0, both.dtype), np.inf), both)


@lru_cache(maxsize=16)
def _backward(dtype: DType, normalized: bool, forgiven: bool) -> str:
    code = Code()
    s = _Sequences(code, dtype)
    alpha, arriving, dx = code.array(s.wide), code.array(s.wide), code.array(dtype)
    s.sizes()
    flag, row = code.array(int64), code.scratch(s.wide, s.classes)
    first, last = code.share()
    s.begin()
    with code.loop(first, last) as n:
        steps, count = s.open(n)
        end = (np.maximum(steps - 1, 0) * s.batch + n) * s.states + count * 2
        loss = _loss(code, steps, count, alpha[end], alpha[np.maximum(end - 1, 0)])
        g, never = arriving[n], loss == np.inf
        with code.loop(0, s.time) as back:
            t = s.time - 1 - back
            start = (t * s.batch + n) * s.classes
            with code.when(t >= steps), code.loop(0, s.classes, independent=True) as c:
                dx[start + c] = 0
            with code.when(t < steps):
                with code.loop(0, s.classes, independent=True) as c:
                    row[c] = code.call("exp", (s.x[start + c],)) if normalized else 0
                _beta(code, s, t, n, steps, count)
                at = (t * s.batch + n) * s.states
                with code.loop(0, count * 2 + 1, independent=True) as z:
                    way = alpha[at + z]
                    share = code.call("exp", (way + s.now[z + 2] - s.score(t, n, z) + loss,))
                    s.next[z + 2] = where(way == -np.inf, 0.0, share)
                with code.loop(0, count * 2 + 1) as z:
                    name = s.names[z + 2]
                    row[name] = row[name] - s.next[z + 2]
                with code.loop(0, s.classes, independent=True) as c:
                    dx[start + c] = where(never, 0.0 if forgiven else np.nan, row[c]) * g
    s.end(flag)
    return code.text()


def _beta(code: Code, s: _Sequences, t: Scalar, n: Scalar, steps: Scalar, count: Scalar) -> None:
    """The paths from each state at t to the sequence's end, including its own score, as the current row."""
    with code.when(t == steps - 1), code.loop(np.maximum(count * 2 - 1, 0), count * 2 + 1) as z:
        s.now[z + 2] = s.score(t, n, z)
    with code.when(t < steps - 1):
        with code.loop(0, count * 2 + 1, independent=True) as z:
            skipped = where(z + 2 <= count * 2, s.now[z + 4] + s.closed[z + 4], -np.inf)
            s.next[z + 2] = _sum(code, s.now[z + 2], s.now[z + 3], skipped) + s.score(t, n, z)
        s.turn()
