"""Optimizer steps as ops: parameters and moments come in and go out, in place where memory allows.

Parameters and moments are float32 (or float64); gradients may be of a half type and are widened first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.core import Arg, Array, Op, Sample, bind, listing
from lamina.spec import (
    FLOATS,
    DTypeError,
    Shape,
    ShapeError,
    Spec,
    bfloat16,
    float16,
    float32,
    float64,
    int64,
)

_SHAPES: tuple[Shape, ...] = ((3, 5), (17,), (), (0, 4), (2, 3, 5, 5))


class _Update(Op):
    differentiable = False
    dtypes = (float64, float32)
    effect = "update"
    foreach = True
    widens = (1,)

    def check(self, p: Spec, g: Spec, moments: Sequence[Spec], rate: Spec) -> None:
        """Raise unless shapes are equal, moments have p's dtype, g is a float and the rate float32 []."""
        self.check_float(p, *moments)
        if any(x.shape != p.shape for x in (g, *moments)):
            raise ShapeError(
                f"{self.name}: parameter, gradient and moments must have one shape, got "
                f"{listing((p, g, *moments))}"
            )
        if g.dtype not in FLOATS:
            raise DTypeError(f"{self.name}: gradient must be a float, got {g}")
        if rate.dtype != float32 or rate.numel != 1:
            raise DTypeError(f"{self.name}: learning rate must be f32[], got {rate}")


@dataclass(frozen=True)
class SgdUpdate(_Update):
    """(p, g, m, rate f32[]) -> (p', m'): the rule of torch.optim.SGD; the momentum buffer starts as zeros.

        d  = g + weight_decay * p
        m' = momentum * m + (1 - dampening) * d          (m itself when momentum is 0)
        p' = p - rate * (d + momentum * m' if nesterov else m' if momentum else d)

    torch sets the buffer to d at the first step whatever the dampening; here it is (1 - dampening) * d, as in
    all later steps. Without dampening, the default, both are the same.
    """

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    arity = 4
    inplace = {0: 0, 1: 2}

    def infer(self, p: Spec, g: Spec, m: Spec, rate: Spec) -> tuple[Spec, Spec]:  # type: ignore[override]
        self.check(p, g, (m,), rate)
        return p.open, m.open

    def reference(self, p: Array, g: Array, m: Array, rate: Array) -> tuple[Array, Array]:  # type: ignore[override]
        d = g.astype(p.dtype)
        if self.weight_decay:
            d = d + self.weight_decay * p
        if self.momentum:
            m = self.momentum * m + (1 - self.dampening) * d
            d = d + self.momentum * m if self.nesterov else m
        return p - rate.reshape(()).astype(p.dtype) * d, m

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ops = (cls(), cls(0.9), cls(0.9, weight_decay=0.1), cls(0.9, 0.0, 0.1, True), cls(0.8, 0.3))
        rate = Arg((), float32, low=0.01, high=0.1)
        for op, shape in zip(ops, _SHAPES, strict=True):
            yield Sample.of(op, shape, shape, shape, rate)
        for half in (float16, bfloat16):
            yield Sample.of(ops[2], (9, 5), Arg((9, 5), half), (9, 5), rate, dtypes=(float32,))


@dataclass(frozen=True)
class AdamUpdate(_Update):
    """(p, g, m, v, step i64[] , rate f32[]) -> (p', m', v', step'): the rule of torch.optim.Adam and AdamW.

        t  = step + 1
        d  = g + weight_decay * p; with decoupled=True p shrinks by (1 - rate * weight_decay) first, d = g
        m' = beta1 * m + (1 - beta1) * d,    v' = beta2 * v + (1 - beta2) * d^2
        p' = p - rate / (1 - beta1^t) * m' / (sqrt(v') / sqrt(1 - beta2^t) + eps)

    m and v start as zeros, step as 0; step has shape () or (1,).
    D. Kingma, J. Ba: "Adam" (ICLR 2015); I. Loshchilov, F. Hutter: "Decoupled weight decay" (ICLR 2019).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    arity = 6
    inplace = {0: 0, 1: 2, 2: 3, 3: 4}

    def infer(  # type: ignore[override]
        self, p: Spec, g: Spec, m: Spec, v: Spec, step: Spec, rate: Spec
    ) -> tuple[Spec, Spec, Spec, Spec]:
        self.check(p, g, (m, v), rate)
        if step.dtype != int64 or step.numel != 1:
            raise DTypeError(f"{self.name}: step must be i64[], got {step}")
        return p.open, m.open, v.open, step.open

    def reference(  # type: ignore[override]
        self, p: Array, g: Array, m: Array, v: Array, step: Array, rate: Array
    ) -> tuple[Array, Array, Array, Array]:
        lr = float(rate.reshape(()))
        t = step + 1
        count = int(t.reshape(()))
        d = g.astype(p.dtype)
        if self.decoupled:
            p = p * (1 - lr * self.weight_decay)
        elif self.weight_decay:
            d = d + self.weight_decay * p
        m = self.beta1 * m + (1 - self.beta1) * d
        v = self.beta2 * v + (1 - self.beta2) * d * d
        root = np.sqrt(v) / (1 - self.beta2**count) ** 0.5 + self.eps
        return p - lr / (1 - self.beta1**count) * m / root, m, v, t

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        ops = (
            cls(), cls(weight_decay=0.1), cls(weight_decay=0.1, decoupled=True), cls(0.5, 0.9, 1e-3),
            cls(decoupled=True),
        )  # fmt: skip
        rate = Arg((), float32, low=0.01, high=0.1)
        for i, (op, shape) in enumerate(zip(ops, _SHAPES, strict=True)):
            step = Arg(() if i % 2 else (1,), int64, value=(3 * i,))
            second = Arg(shape, low=0.1, high=1.0)
            yield Sample.of(op, shape, shape, shape, second, step, rate)
        for half in (float16, bfloat16):
            step = Arg((), int64, value=(0,))
            args = ((9, 5), Arg((9, 5), half), (9, 5), Arg((9, 5), low=0.1, high=1.0), step, rate)
            yield Sample.of(ops[2], *args, dtypes=(float32,))


def sgd_update(
    p: Any,
    g: Any,
    m: Any,
    rate: Any,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> tuple[Any, Any]:
    """One step of stochastic gradient descent: (p', m'). See SgdUpdate."""
    op = SgdUpdate(float(momentum), float(dampening), float(weight_decay), nesterov)
    new_p, new_m = bind(op, p, g, m, rate)
    return new_p, new_m


def adam_update(
    p: Any,
    g: Any,
    m: Any,
    v: Any,
    step: Any,
    rate: Any,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
) -> tuple[Any, Any, Any, Any]:
    """One step of Adam (AdamW with decoupled=True): (p', m', v', step'). See AdamUpdate."""
    op = AdamUpdate(float(beta1), float(beta2), float(eps), float(weight_decay), decoupled)
    new_p, new_m, new_v, new_step = bind(op, p, g, m, v, step, rate)
    return new_p, new_m, new_v, new_step
