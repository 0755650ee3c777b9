"""Optimizer steps as ops: parameters and moments come in and go out, in place where memory allows.

Parameters and moments are float32 (or float64); gradients may be of a half type and are widened first. A step is its
`rule`, written once, in NumPy: the reference computes it, and the kernel of a GPU is the CUDA C++ that it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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


class Update(Op, abstract=True):
    """(p, g, *moments[, step i64[]], rate f32[]) -> (p', *moments'[, step']): one step of an optimizer.

    A subclass names its `moments`, says whether it counts its steps, and gives the `rule` and `variants` for tests;
    every backend runs it, over one tensor or many in a launch.
    """

    differentiable = False
    dtypes = (float64, float32)
    effect = "update"
    foreach = True
    widens = (1,)
    #: The tensors like p that are kept from step to step, each with the range that examples are drawn from.
    moments: ClassVar[Mapping[str, tuple[float, float]]] = {}
    #: Whether the number of steps, int64 of shape () or (1,), is kept behind the moments.
    counted: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        kept = len(cls.moments) + cls.counted
        cls.arity = 3 + kept
        cls.inplace = {0: 0} | {1 + i: 2 + i for i in range(kept)}

    def rule(self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        """(p', *moments'), element by element, with NumPy's arithmetic, `astype` and elementwise functions.

        p, g, moments: of p's dtype. t: the number of this step, from 1 on, and rate: float64 numbers; `astype` brings
        what is made of them to p's dtype.
        """
        raise NotImplementedError

    @classmethod
    def variants(cls) -> Sequence[Update]:
        """Examples of the op: its options one by one and together."""
        raise NotImplementedError

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        p, g, *moments = inputs[: 2 + len(self.moments)]
        self.check(p, g, moments, inputs[-1])
        kept = [p.open, *(m.open for m in moments)]
        if self.counted:
            step = inputs[-2]
            if step.dtype != int64 or step.numel != 1:
                raise DTypeError(f"{self.name}: step must be i64[], got {step}")
            kept.append(step.open)
        return tuple(kept)

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

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        p, g, *moments = inputs[: 2 + len(self.moments)]
        step = inputs[-2] + 1 if self.counted else None
        t = None if step is None else np.float64(step.item())
        new = self.rule(p, g.astype(p.dtype), moments, t, np.float64(inputs[-1].item()))
        return (*new, step) if step is not None else new

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, op in enumerate(cls.variants()):
            yield Sample.of(op, *cls._arguments(_SHAPES[i % len(_SHAPES)], None, i))
        for half in (float16, bfloat16):
            yield Sample.of(op, *cls._arguments((9, 5), half, 0), dtypes=(float32,))

    @classmethod
    def _arguments(cls, shape: Shape, gradient: Any, done: int) -> Iterator[Arg]:
        """Arguments of this shape, after so many steps."""
        yield Arg(shape)
        yield Arg(shape, gradient)
        yield from (Arg(shape, low=low, high=high) for low, high in cls.moments.values())
        if cls.counted:
            yield Arg(() if done % 2 else (1,), int64, value=(3 * done,))
        yield Arg((), float32, low=0.01, high=0.1)


@dataclass(frozen=True)
class SgdUpdate(Update):
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
    moments = {"momentum": (-2.0, 2.0)}

    def rule(self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        (m,) = moments
        d = g + self.weight_decay * p if self.weight_decay else g
        if self.momentum:
            m = self.momentum * m + (1 - self.dampening) * d
            d = d + self.momentum * m if self.nesterov else m
        return p - rate.astype(p.dtype) * d, m

    @classmethod
    def variants(cls) -> Sequence[SgdUpdate]:
        return cls(), cls(0.9), cls(0.9, weight_decay=0.1), cls(0.9, 0.0, 0.1, True), cls(0.8, 0.3)


@dataclass(frozen=True)
class AdamUpdate(Update):
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
    moments = {"exp_avg": (-2.0, 2.0), "exp_avg_sq": (0.1, 1.0)}
    counted = True

    def rule(self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        (m, v), d = moments, g
        if self.decoupled:
            p = p * (1 - rate * self.weight_decay).astype(p.dtype)
        elif self.weight_decay:
            d = d + self.weight_decay * p
        m = self.beta1 * m + (1 - self.beta1) * d
        v = self.beta2 * v + (1 - self.beta2) * d * d
        size = (rate / (1 - self.beta1**t)).astype(p.dtype)
        correction = np.sqrt(1 - self.beta2**t).astype(p.dtype)
        return p - size * m / (np.sqrt(v) / correction + self.eps), m, v

    @classmethod
    def variants(cls) -> Sequence[AdamUpdate]:
        return (
            cls(), cls(weight_decay=0.1), cls(weight_decay=0.1, decoupled=True), cls(0.5, 0.9, 1e-3),
            cls(decoupled=True),
        )  # fmt: skip


@dataclass(frozen=True)
class RmspropUpdate(Update):
    """(p, g, v, a, b, rate f32[]) -> (p', v', a', b'): the rule of torch.optim.RMSprop.

        d  = g + weight_decay * p
        v' = alpha * v + (1 - alpha) * d^2
        a' = alpha * a + (1 - alpha) * d                  (centered; a itself otherwise)
        s  = d / (sqrt(v' - a'^2 if centered else v') + eps)
        b' = momentum * b + s                             (b itself when momentum is 0)
        p' = p - rate * (b' if momentum else s)

    v, a and b start as zeros.
    T. Tieleman, G. Hinton: "Lecture 6.5, RMSprop" (2012); centered: A. Graves, "Generating sequences with recurrent
    neural networks" (2013).
    """

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    moments = {"square_avg": (0.5, 1.0), "grad_avg": (-0.5, 0.5), "momentum_buffer": (-2.0, 2.0)}

    def rule(self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        v, a, b = moments
        d = g + self.weight_decay * p if self.weight_decay else g
        v = self.alpha * v + (1 - self.alpha) * d * d
        variance = v
        if self.centered:
            a = self.alpha * a + (1 - self.alpha) * d
            variance = v - a * a
        step = d / (np.sqrt(variance) + self.eps)
        if self.momentum:
            step = b = self.momentum * b + step
        return p - rate.astype(p.dtype) * step, v, a, b

    @classmethod
    def variants(cls) -> Sequence[RmspropUpdate]:
        return (
            cls(), cls(0.9, weight_decay=0.1), cls(0.9, 1e-6, 0.1, 0.8, True), cls(momentum=0.9), cls(centered=True),
        )  # fmt: skip


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
