"""Optimizer steps as ops: parameters and moments are inputs and outputs, updated in place where memory allows.

Parameters and moments are float32 (or float64); gradients may be of a half type and are widened first. A step is
defined by its `rule`, written once, in NumPy: the reference runs it, and a GPU's kernel is generated from it in CUDA
C++.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self

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


@dataclass(frozen=True)
class Update(Op, abstract=True):
    """One step of an optimizer.

        (p, g, *moments, *scalars f64[][, step i64[]], rate f32[] or f64[]) -> (p', *moments', *scalars'[, step'])

    A subclass names its `moments`, declares whether it counts its steps, and defines the `rule` and `variants` for
    tests; every backend runs it, over one tensor or many in a launch. A rule may also keep `scalars` (with
    `advance`), and read norms over the whole tensor (`norms`, with `measured`).

    moving: names of fields whose values are passed at each step, like the rate, so that they are not compiled in. In
    place of the rate there is then one input f64[1 + len(moving)]: the rate, and these. A field whose value is 0 does
    not move, since rules omit the terms it belongs to.
    """

    moving: tuple[str, ...] = field(default=(), kw_only=True)

    differentiable = False
    dtypes = (float64, float32)
    effect = "update"
    foreach = True
    widens = (1,)
    #: The tensors shaped like p that are kept from step to step, each with the range that samples are drawn from.
    moments: ClassVar[Mapping[str, tuple[float, float]]] = {}
    #: Scalars per parameter, float64 of shape () or (1,), kept from step to step, with ranges likewise.
    scalars: ClassVar[Mapping[str, tuple[float, float]]] = {}
    #: Whether the step count, int64 of shape () or (1,), is kept after them.
    counted: ClassVar[bool] = False
    #: The number of norms over the whole tensor that the rule reads.
    norms: ClassVar[int] = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        kept = len(cls.kept())
        cls.arity = 3 + kept
        cls.inplace = {0: 0} | {1 + i: 2 + i for i in range(kept)}

    @classmethod
    def kept(cls) -> tuple[str, ...]:
        """The names of the state, in order: moments, scalars, and "step" if steps are counted."""
        return (*cls.moments, *cls.scalars, *(("step",) if cls.counted else ()))

    def moved(self, names: Collection[str]) -> Self:
        """The op with those of the named fields moving that are nonzero; their values in it are 1."""
        moving = tuple(name for name in self.numbers() if name in names and getattr(self, name))
        return replace(self, moving=moving, **dict.fromkeys(moving, 1.0))

    def numbers(self) -> dict[str, float]:
        """The numeric fields, by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, float)}

    def at(self, *numbers: Any) -> Self:
        """The op with these values of the moving fields."""
        return replace(self, moving=(), **dict(zip(self.moving, numbers, strict=True))) if numbers else self

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        """(p', *moments'), elementwise, in NumPy arithmetic, `astype`, `where` and elementwise functions.

        p, g, moments: of p's dtype. t: the number of this step, from 1 on, rate, and numbers (the scalars before this
        step, then the norms): float64; `astype` casts results of them to p's dtype.
        """
        raise NotImplementedError

    def measured(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *scalars: Any
    ) -> tuple[Any, ...]:
        """`norms` many values, elementwise, like a rule: the rule gets the 2-norm of each."""
        raise NotImplementedError

    def advance(self, scalars: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        """The scalars after step t, float64."""
        raise NotImplementedError

    def descent(self: Any, p: Any, g: Any) -> Any:
        """The descent direction: g, or -g to maximize, plus weight_decay * p."""
        d = -g if self.maximize else g
        return d + self.weight_decay * p if self.weight_decay else d

    @classmethod
    def variants(cls) -> Sequence[Update]:
        """Variants of the op: its options one by one and combined."""
        raise NotImplementedError

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        p, g, *moments = inputs[: 2 + len(self.moments)]
        self.check(p, g, moments, inputs[-1])
        numbers = inputs[2 + len(self.moments) : -1]
        for name, number in zip(self.kept()[len(self.moments) :], numbers, strict=True):
            wanted = float64 if name in self.scalars else int64
            if number.dtype != wanted or number.numel != 1:
                raise DTypeError(f"{self.name}: {name} must be {wanted.short}[], got {number}")
        return tuple(x.open for x in (p, *moments, *numbers))

    def check(self, p: Spec, g: Spec, moments: Sequence[Spec], rate: Spec) -> None:
        """Raise unless shapes are equal, moments have p's dtype, g is a float and the rate a scalar float."""
        self.check_float(p, *moments)
        if any(x.shape != p.shape for x in (g, *moments)):
            raise ShapeError(
                f"{self.name}: parameter, gradient and moments must have one shape, got "
                f"{listing((p, g, *moments))}"
            )
        if g.dtype not in FLOATS:
            raise DTypeError(f"{self.name}: gradient must be a float, got {g}")
        if self.moving:
            wanted = Spec((1 + len(self.moving),), float64)
            if rate.open != wanted:
                raise DTypeError(
                    f"{self.name}: learning rate and {', '.join(self.moving)} must be {wanted}, got {rate}"
                )
        elif rate.dtype not in self.dtypes or rate.numel != 1:
            raise DTypeError(f"{self.name}: learning rate must be f32[] or f64[], got {rate}")

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        p, g, *moments = inputs[: 2 + len(self.moments)]
        rate, *moving = map(np.float64, inputs[-1].reshape(-1))
        g, own = g.astype(p.dtype), self.at(*map(float, moving))
        scalars = inputs[2 + len(self.moments) :][: len(self.scalars)]
        numbers = [np.float64(s.item()) for s in scalars]
        step = (inputs[-2] + 1,) if self.counted else ()
        t = np.float64(step[0].item()) if step else None
        after = own.advance(numbers, t, rate) if scalars else ()
        if self.norms:
            values = own.measured(p, g, moments, t, rate, *numbers)
            numbers += [np.sqrt(np.sum(np.square(v, dtype=np.float64))) for v in values]
        new = own.rule(p, g, moments, t, rate, *numbers)
        shaped = (np.full_like(s, a) for s, a in zip(scalars, after, strict=True))
        return (*new, *shaped, *step)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, op in enumerate(cls.variants()):
            yield Sample.of(op, *cls._arguments(_SHAPES[i % len(_SHAPES)], None, i))
            *others, _ = cls._arguments((3, 5), None, 1)
            moved = op.moved(op.numbers())
            if moved.moving:
                numbers = (0.05, *(getattr(op, name) for name in moved.moving))
                yield Sample.of(moved, *others, Arg((len(numbers),), float64, value=numbers))
        for half in (float16, bfloat16):
            yield Sample.of(op, *cls._arguments((9, 5), half, 0), dtypes=(float32,))

    @classmethod
    def _arguments(cls, shape: Shape, gradient: Any, done: int) -> Iterator[Arg]:
        """Arguments of this shape, after a number of steps."""
        yield Arg(shape)
        yield Arg(shape, gradient)
        yield from (Arg(shape, low=low, high=high) for low, high in cls.moments.values())
        number: Shape = () if done % 2 else (1,)
        yield from (Arg(number, float64, low=low, high=high) for low, high in cls.scalars.values())
        if cls.counted:
            yield Arg(number, int64, value=(3 * done,))
        yield Arg((), float64 if gradient is float64 else float32, low=0.01, high=0.1)


@dataclass(frozen=True)
class SgdUpdate(Update):
    """(p, g, m, rate f32[]) -> (p', m'): the rule of torch.optim.SGD; the momentum buffer starts as zeros.

        d  = g + weight_decay * p
        m' = momentum * m + (1 - dampening) * d          (m itself when momentum is 0)
        p' = p - rate * (d + momentum * m' if nesterov else m' if momentum else d)

    torch sets the buffer to d in the first step whatever the dampening; here it is (1 - dampening) * d, as in all
    later steps: `DampenedSgdUpdate` counts the steps to match torch. maximize: -g in place of g.
    """

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    moments = {"momentum": (-2.0, 2.0)}

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        (m,) = moments
        d = self.descent(p, g)
        if self.momentum:
            m = self.momentum * m + (1 - self.dampening) * d
            d = d + self.momentum * m if self.nesterov else m
        return p - rate.astype(p.dtype) * d, m

    @classmethod
    def variants(cls) -> Sequence[SgdUpdate]:
        return (
            cls(), cls(0.9), cls(0.9, weight_decay=0.1), cls(0.9, 0.0, 0.1, True), cls(0.8, 0.3),
            cls(0.9, 0.0, 0.1, True, True), cls(maximize=True),
        )  # fmt: skip


@dataclass(frozen=True)
class DampenedSgdUpdate(Update):
    """(p, g, m, step i64[], rate f32[]) -> (p', m', step'): SgdUpdate with momentum and an undampened first step.

    m' = momentum * m + k * d with k = 1 in the first step, as in torch.optim.SGD, and 1 - dampening later.
    """

    momentum: float = 0.9
    dampening: float = 0.0
    weight_decay: float = 0.0
    maximize: bool = False
    moments = {"momentum": (-2.0, 2.0)}
    counted = True

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        k = np.where(t > 1, 1 - self.dampening, 1.0).astype(p.dtype)
        m = self.momentum * moments[0] + k * self.descent(p, g)
        return p - rate.astype(p.dtype) * m, m

    @classmethod
    def variants(cls) -> Sequence[DampenedSgdUpdate]:
        return cls(), cls(0.9, 0.5), cls(0.8, 0.3, 0.1), cls(0.8, 0.3, 0.1, True)


@dataclass(frozen=True)
class AdamUpdate(Update):
    """(p, g, m, v, step i64[], rate f32[]) -> (p', m', v', step'): the rule of torch.optim.Adam and AdamW.

        t  = step + 1
        d  = g + weight_decay * p; with decoupled=True p shrinks by (1 - rate * weight_decay) first, d = g
        m' = beta1 * m + (1 - beta1) * d,    v' = beta2 * v + (1 - beta2) * d^2
        p' = p - rate / (1 - beta1^t) * m' / (sqrt(v') / sqrt(1 - beta2^t) + eps)

    m and v start as zeros, step as 0; step has shape () or (1,). maximize: -g in place of g.
    D. Kingma, J. Ba: "Adam" (ICLR 2015); I. Loshchilov, F. Hutter: "Decoupled weight decay" (ICLR 2019).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False
    moments = {"exp_avg": (-2.0, 2.0), "exp_avg_sq": (0.1, 1.0)}
    counted = True

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        p, d = decayed_apart(self, p, g, rate)
        m, v = means(self, d, moments)
        return p - adam_step(self, m, v, t, rate), m, v

    @classmethod
    def variants(cls) -> Sequence[AdamUpdate]:
        return (
            cls(), cls(weight_decay=0.1), cls(weight_decay=0.1, decoupled=True), cls(0.5, 0.9, 1e-3),
            cls(decoupled=True), cls(weight_decay=0.1, maximize=True),
        )  # fmt: skip


@dataclass(frozen=True)
class AmsgradUpdate(Update):
    """(p, g, m, v, h, step i64[], rate f32[]) -> (p', m', v', h', step'): AdamUpdate with the largest v so far.

    h' = max(h, v') replaces v' in the new parameter. h starts as zeros. S. Reddi, S. Kale, S. Kumar: "On the
    convergence of Adam and beyond" (ICLR 2018).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    maximize: bool = False
    moments = {"exp_avg": (-2.0, 2.0), "exp_avg_sq": (0.1, 1.0), "max_exp_avg_sq": (0.1, 1.0)}
    counted = True

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        p, d = decayed_apart(self, p, g, rate)
        m, v = means(self, d, moments[:2])
        highest = np.maximum(moments[2], v)
        return p - adam_step(self, m, highest, t, rate), m, v, highest

    @classmethod
    def variants(cls) -> Sequence[AmsgradUpdate]:
        return (
            cls(),
            cls(weight_decay=0.1),
            cls(weight_decay=0.1, decoupled=True),
            cls(0.5, 0.9, maximize=True),
        )


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
    maximize: bool = False
    moments = {"square_avg": (0.5, 1.0), "grad_avg": (-0.5, 0.5), "momentum_buffer": (-2.0, 2.0)}

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        v, a, b = moments
        d = self.descent(p, g)
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
            cls(weight_decay=0.1, maximize=True),
        )  # fmt: skip


# ---- parts of the rules of the Adam family; `op` has beta1, beta2, eps, weight_decay, decoupled, maximize


def decayed_apart(op: Any, p: Any, g: Any, rate: Any) -> tuple[Any, Any]:
    """(parameter, direction): if decoupled the parameter shrinks; else weight_decay * p is added to the direction."""
    if not op.decoupled:
        return p, op.descent(p, g)
    return p * (1 - rate * op.weight_decay).astype(p.dtype), -g if op.maximize else g


def means(op: Any, d: Any, moments: Sequence[Any]) -> tuple[Any, Any]:
    """The running means of d and d²."""
    m, v = moments
    return op.beta1 * m + (1 - op.beta1) * d, op.beta2 * v + (1 - op.beta2) * d * d


def adam_step(op: Any, m: Any, v: Any, t: Any, rate: Any) -> Any:
    """rate * m̂ / (√v̂ + eps) with bias-corrected means."""
    size = (rate / (1 - op.beta1**t)).astype(m.dtype)
    correction = np.sqrt(1 - op.beta2**t).astype(m.dtype)
    return size * m / (np.sqrt(v) / correction + op.eps)


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
