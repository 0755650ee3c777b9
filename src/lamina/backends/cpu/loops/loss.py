"""Cross-entropy of logits and labels: class by class for many positions at once, or row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import prod

import numpy as np

from lamina.backends import Plan
from lamina.backends.cpu.library import at_input, at_output
from lamina.backends.cpu.loops.code import Code, Elements, Scalar, least, where
from lamina.backends.cpu.loops.gather import Index
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.backends.reference import by_numpy
from lamina.ops.primitives.loss import CrossEntropy, CrossEntropyGrad
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, int64

#: Positions that a thread processes at once.
_POSITIONS = 256


@loops(CrossEntropy, CrossEntropyGrad, source="loops")
def cross_entropy(
    op: CrossEntropy | CrossEntropyGrad, specs: Sequence[Spec], device: Device, policy: Policy
) -> Plan:
    """Losses, or the gradient of the logits."""
    inputs = tuple(s.open.fixed for s in specs)
    x, labels = inputs[:2]
    y = op.infer(*inputs)[0].fixed
    work = 8 * worthwhile(op, [x], [y])
    images, classes, positions = x.shape[0], x.shape[1], prod(x.shape[2:])
    single = positions == 1
    gradient = isinstance(op, CrossEntropyGrad)
    forms = (single, gradient, op.label_smoothing > 0, op.ignore_index is not None)
    text = partial(_text, x.dtype, labels.dtype, *forms)
    smoothing = int(np.float64(op.label_smoothing).view(np.int64))
    each = int(gradient and inputs[2].shape != ())
    parts = -(-positions // _POSITIONS)
    numbers = [smoothing, op.ignore_index or 0, each, classes, positions, parts]
    places = [*(at_input(i) for i in range(len(inputs))), at_output()]
    refused = partial(by_numpy, op, inputs, (y,))
    kernel = LoopKernel(text, [*places, *numbers], images * parts, work, refused)
    aliases = {0: 0} if gradient else {}
    return Plan(inputs, (y,), kernel, aliases=aliases, label=f"loops {op.name}")


@lru_cache(maxsize=256)
def _text(dtype: DType, labels: DType, single: bool, gradient: bool, smooth: bool, ignores: bool) -> str:
    code = Code()
    f = _Losses(code, dtype, labels, gradient, smooth, ignores)
    first, last = code.share()
    f.inside = Index(code, f.classes, from_back=False)
    with code.loop(first, last) as step:
        (f.by_row if single else f.by_positions)(step)
    f.inside.tell(f.flag)
    return code.text()


class _Losses:
    """Parameters of the kernel, and its loops."""

    inside: Index

    def __init__(
        self, code: Code, dtype: DType, labels: DType, gradient: bool, smooth: bool, ignores: bool
    ) -> None:
        self.code, self.wide, self.smooth, self.ignores = code, dtype.compute, smooth, ignores
        self.x, self.labels = code.array(dtype), code.array(labels)
        self.g = code.array(self.wide) if gradient else None
        self.y = code.array(dtype if gradient else self.wide)
        self.smoothing = code.bits(code.size(), np.float64).astype(self.wide.numpy)
        self.ignored, self.each, self.classes, self.positions, self.parts = code.sizes(5)
        self.flag = code.array(int64)

    def by_row(self, row: Scalar) -> None:
        """The classes of a row are contiguous."""
        code, start = self.code, row * self.classes
        kind = self.wide.numpy
        top = code.variable(-np.inf, kind)
        with code.loop(0, self.classes) as c:
            top.set(np.maximum(top.get(), self.x[start + c]))
        total, plain = code.variable(0, kind), code.variable(0, kind)
        with code.loop(0, self.classes) as c:
            apart = self.x[start + c] - top.get()
            total.add(np.exp(apart))
            if self.smooth:
                plain.add(apart)
        log_total = code.call("log", (total.get(),))
        label, counts = self.label(row)
        if self.g is None:
            own = self.x[start + label] - top.get()
            self.y[row] = self.loss(log_total, own, plain.get(), counts)
            return
        g = self.g[row * self.each]
        with code.loop(0, self.classes, independent=True) as c:
            log_p = self.x[start + c] - top.get() - log_total
            self.y[start + c] = self.slope(log_p, c, label, g, counts)

    def by_positions(self, step: Scalar) -> None:
        """Positions are contiguous, classes strided."""
        code = self.code
        image, begin = code.quotient(step, self.parts), code.remainder(step, self.parts) * _POSITIONS
        width = least(self.positions - begin, _POSITIONS)
        start, first = image * self.classes * self.positions + begin, image * self.positions + begin
        count = code.value(_POSITIONS, np.dtype(np.int64))
        top, total, plain = (code.scratch(self.wide, count) for _ in range(3))

        def all_(change: Callable[[Scalar, Scalar], None]) -> None:
            with code.loop(0, self.classes) as c:
                row = start + c * self.positions
                with code.loop(0, width, independent=True) as j:
                    change(self.x[row + j], j)

        with code.loop(0, width, independent=True) as j:
            top[j] = -np.inf
            total[j] = 0
            plain[j] = 0

        def highest(x: Scalar, j: Scalar) -> None:
            top[j] = np.maximum(top[j], x)

        def added(x: Scalar, j: Scalar) -> None:
            total[j] = total[j] + np.exp(x - top[j])
            if self.smooth:
                plain[j] = plain[j] + (x - top[j])

        all_(highest)
        all_(added)
        with code.loop(0, width, independent=True) as j:
            total[j] = np.log(total[j])
        if self.g is None:
            with code.loop(0, width, independent=True) as j:
                label, counts = self.label(first + j)
                own = self.x[start + label * self.positions + j] - top[j]
                self.y[first + j] = self.loss(total[j], own, plain[j], counts)
            return
        self._slopes(start, first, width, top, total)

    def _slopes(self, start: Scalar, first: Scalar, width: Scalar, top: Elements, total: Elements) -> None:
        code = self.code
        assert self.g is not None
        with code.loop(0, self.classes) as c:
            row = start + c * self.positions
            with code.loop(0, width, independent=True) as j:
                label, counts = self.label(first + j)
                g = self.g[(first + j) * self.each]
                self.y[row + j] = self.slope(self.x[row + j] - top[j] - total[j], c, label, g, counts)

    def label(self, at: Scalar) -> tuple[Scalar, Scalar | None]:
        """A label, and whether it counts (None: all do). An invalid class sets the flag."""
        found = self.labels[at].astype(np.int64)
        if not self.ignores:
            return self.inside(found), None
        counts = found != self.ignored
        return self.inside(where(counts, found, 0)), counts

    def loss(self, log_total: Scalar, own: Scalar, plain: Scalar, counts: Scalar | None) -> Scalar:
        """The loss from logits minus the largest: the label's, and the log of the sum over all."""
        found = log_total - own
        if self.smooth:
            mean = plain / self.classes.astype(self.wide.numpy)
            found = (1 - self.smoothing) * found + self.smoothing * (log_total - mean)
        return found if counts is None else where(counts, found, 0)

    def slope(self, log_p: Scalar, c: Scalar, label: Scalar, g: Scalar, counts: Scalar | None) -> Scalar:
        """The gradient of one logit."""
        wanted = where(c == label, 1 - self.smoothing, 0)
        if self.smooth:
            wanted = wanted + self.smoothing / self.classes.astype(self.wide.numpy)
        found = g * (np.exp(log_p) - wanted)
        return found if counts is None else where(counts, found, 0)
