"""Values at labels and their gradient, row by row or position by position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from math import prod

import numpy as np

from lamina.backends import Plan
from lamina.backends.cpu.library import Location, at_input, at_output
from lamina.backends.cpu.loops.code import Code, Scalar, where
from lamina.backends.cpu.loops.gather import Index
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.backends.cpu.loops.table import loops, worthwhile
from lamina.backends.reference import by_numpy
from lamina.ops.primitives.nll_loss import NllLoss, NllLossGrad
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, int64


@loops(NllLoss, NllLossGrad, source="loops")
def nll_loss(op: NllLoss | NllLossGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """Losses with the weights of their labels, or the gradient of the values."""
    inputs = tuple(s.open.fixed for s in specs)
    outputs = tuple(s.fixed for s in op.infer(*inputs))
    gradient, weighted = isinstance(op, NllLossGrad), len(inputs) == 3
    labels, x = (inputs[0], outputs[0]) if gradient else (inputs[1], inputs[0])
    worthwhile(op, inputs, outputs)
    positions = prod(x.shape[2:])
    parameters: list[Location | int] = [at_input(i) for i in range(len(inputs))]
    parameters += [at_output(i) for i in range(len(outputs))]
    parameters += [op.ignore_index or 0, x.shape[1], positions]
    ignores = op.ignore_index is not None
    text = partial(_text, x.dtype, labels.dtype, gradient, weighted, ignores, positions == 1)
    work = x.numel if gradient else 4 * labels.numel
    kernel = LoopKernel(text, parameters, x.shape[0], work, partial(by_numpy, op, inputs, outputs))
    return Plan(inputs, outputs, kernel, label=f"loops {op.name}")


@lru_cache(maxsize=256)
def _text(dtype: DType, labels: DType, gradient: bool, weighted: bool, ignores: bool, single: bool) -> str:
    """single: classes are contiguous."""
    code = Code()
    given = [code.array(d) for d in ((labels, dtype) if gradient else (dtype, labels))]
    weight = code.array(dtype.compute) if weighted else None
    result = code.array(dtype)
    shares = code.array(dtype.compute) if weighted and not gradient else None
    ignored, classes, positions = code.sizes(3)
    flag = code.array(int64)
    first, last = code.share()
    inside = Index(code, classes, from_back=False)

    def scaled(value: Scalar, label: Scalar, counts: Scalar | None) -> tuple[Scalar, Scalar | None]:
        """The term of a label, and its weight."""
        if weight is None:
            return (-value if counts is None else where(counts, -value, 0)), None
        share = weight[label] if counts is None else where(counts, weight[label], 0)
        return where(share != 0, -value * share, 0), share

    def label_at(at: Scalar) -> tuple[Scalar, Scalar | None]:
        found = (given[0] if gradient else given[1])[at].astype(np.int64)
        if not ignores:
            return inside(found), None
        counts = found != ignored
        return inside(where(counts, found, 0)), counts

    with code.loop(first, last) as image:
        start, begin = image * classes * positions, image * positions
        if gradient:
            with code.loop(0, classes * positions, independent=True) as k:
                result[start + k] = 0
        with code.loop(0, 1 if single else positions) as j:
            at = image if single else begin + j
            label, counts = label_at(at)
            place = start + (label if single else label * positions + j)
            value, share = scaled(given[1][at] if gradient else given[0][place], label, counts)
            result[place if gradient else at] = value
            if shares is not None and share is not None:
                shares[at] = share
    inside.tell(flag)
    return code.text()
