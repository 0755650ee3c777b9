"""The rules of further optimizers, as `Update`s: each is one NumPy formula that every backend runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.ops.primitives.update import Update, adam_step, decayed_apart, means


@dataclass(frozen=True)
class AdagradUpdate(Update):
    """(p, g, s, step i64[], rate f32[]) -> (p', s', step'): the rule of torch.optim.Adagrad.

        d  = g + weight_decay * p                     (-g in place of g to maximize, here and in all rules below)
        s' = s + d^2
        p' = p - rate / (1 + (t - 1) * lr_decay) * d / (sqrt(s') + eps)

    J. Duchi, E. Hazan, Y. Singer: "Adaptive subgradient methods" (JMLR 2011).
    """

    lr_decay: float = 0.0
    weight_decay: float = 0.0
    eps: float = 1e-10
    maximize: bool = False
    moments = {"sum": (0.1, 1.0)}
    counted = True

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        d = self.descent(p, g)
        total = moments[0] + d * d
        size = (rate / (1 + (t - 1) * self.lr_decay)).astype(p.dtype)
        return p - size * d / (np.sqrt(total) + self.eps), total

    @classmethod
    def variants(cls) -> Sequence[AdagradUpdate]:
        return cls(), cls(0.1), cls(0.1, 0.2, 1e-6), cls(weight_decay=0.1, maximize=True)


@dataclass(frozen=True)
class AdadeltaUpdate(Update):
    """(p, g, v, u, rate f32[]) -> (p', v', u'): the rule of torch.optim.Adadelta.

        d  = g + weight_decay * p
        v' = rho * v + (1 - rho) * d^2
        s  = d * sqrt(u + eps) / sqrt(v' + eps)
        u' = rho * u + (1 - rho) * s^2
        p' = p - rate * s

    M. Zeiler: "ADADELTA: an adaptive learning rate method" (2012).
    """

    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0
    maximize: bool = False
    moments = {"square_avg": (0.1, 1.0), "acc_delta": (0.1, 1.0)}

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        d = self.descent(p, g)
        squares = self.rho * moments[0] + (1 - self.rho) * d * d
        step = d * np.sqrt(moments[1] + self.eps) / np.sqrt(squares + self.eps)
        steps = self.rho * moments[1] + (1 - self.rho) * step * step
        return p - rate.astype(p.dtype) * step, squares, steps

    @classmethod
    def variants(cls) -> Sequence[AdadeltaUpdate]:
        return cls(), cls(0.8, 1e-4), cls(0.9, 1e-6, 0.1), cls(weight_decay=0.1, maximize=True)


@dataclass(frozen=True)
class AdamaxUpdate(Update):
    """(p, g, m, u, step i64[], rate f32[]) -> (p', m', u', step'): the rule of torch.optim.Adamax.

        d  = g + weight_decay * p
        m' = beta1 * m + (1 - beta1) * d
        u' = max(beta2 * u, |d| + eps)
        p' = p - rate / (1 - beta1^t) * m' / u'

    D. Kingma, J. Ba: "Adam" (ICLR 2015), section 7.1.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    maximize: bool = False
    moments = {"exp_avg": (-2.0, 2.0), "exp_inf": (0.1, 1.0)}
    counted = True

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        d = self.descent(p, g)
        m = self.beta1 * moments[0] + (1 - self.beta1) * d
        u = np.maximum(self.beta2 * moments[1], np.absolute(d) + self.eps)
        return p - (rate / (1 - self.beta1**t)).astype(p.dtype) * m / u, m, u

    @classmethod
    def variants(cls) -> Sequence[AdamaxUpdate]:
        return cls(), cls(0.5, 0.9), cls(0.9, 0.99, 1e-3, 0.1), cls(weight_decay=0.1, maximize=True)


@dataclass(frozen=True)
class NadamUpdate(Update):
    """(p, g, m, v, c f64[], step i64[], rate f32[]) -> (p', m', v', c', step'): the rule of torch.optim.NAdam.

        mu_t = beta1 * (1 - 0.96^(t * momentum_decay) / 2),    c' = c * mu_t
        m'   = beta1 * m + (1 - beta1) * d,    v' = beta2 * v + (1 - beta2) * d^2
        p'   = p - rate * (mu_{t+1} / (1 - c' * mu_{t+1}) * m' + (1 - mu_t) / (1 - c') * d)
                 / (sqrt(v' / (1 - beta2^t)) + eps)

    d as in AdamUpdate. c, the product of all mu, starts as 1.
    T. Dozat: "Incorporating Nesterov momentum into Adam" (ICLR workshop 2016).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
    decoupled: bool = False
    maximize: bool = False
    moments = {"exp_avg": (-2.0, 2.0), "exp_avg_sq": (0.1, 1.0)}
    scalars = {"mu_product": (0.1, 0.5)}
    counted = True

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        p, d = decayed_apart(self, p, g, rate)
        m, v = means(self, d, moments)
        now, then = self.momentum(t), self.momentum(t + 1)
        product = numbers[0] * now
        of_mean = (rate * then / (1 - product * then)).astype(p.dtype)
        of_gradient = (rate * (1 - now) / (1 - product)).astype(p.dtype)
        correction = np.sqrt(1 - self.beta2**t).astype(p.dtype)
        return p - (of_mean * m + of_gradient * d) / (np.sqrt(v) / correction + self.eps), m, v

    def momentum(self, t: Any) -> Any:
        """mu_t."""
        return self.beta1 * (1 - 0.5 * 0.96 ** (t * self.momentum_decay))

    def advance(self, scalars: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        return (scalars[0] * self.momentum(t),)

    @classmethod
    def variants(cls) -> Sequence[NadamUpdate]:
        return (
            cls(), cls(0.5, 0.9, 1e-3), cls(0.9, 0.99, 1e-8, 0.1, 0.1), cls(weight_decay=0.1, decoupled=True),
            cls(weight_decay=0.1, maximize=True),
        )  # fmt: skip


@dataclass(frozen=True)
class RadamUpdate(Update):
    """(p, g, m, v, step i64[], rate f32[]) -> (p', m', v', step'): the rule of torch.optim.RAdam.

        m' = beta1 * m + (1 - beta1) * d,    v' = beta2 * v + (1 - beta2) * d^2
        l  = L - 2 * t * beta2^t / (1 - beta2^t)    with L = 2 / (1 - beta2) - 1
        r  = sqrt((l - 4) * (l - 2) * L / ((L - 4) * (L - 2) * l))
        p' = p - rate * m' / (1 - beta1^t) * (r * sqrt(1 - beta2^t) / (sqrt(v') + eps) if l > 5 else 1)

    d as in AdamUpdate.
    L. Liu et al.: "On the variance of the adaptive learning rate and beyond" (ICLR 2020).
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
        size = rate / (1 - self.beta1**t)
        step = size.astype(p.dtype) * m
        longest = 2 / (1 - self.beta2) - 1
        if longest > 5:
            left = 1 - self.beta2**t
            length = longest - 2 * t * self.beta2**t / left
            safe = np.maximum(length, 5.0)
            part = longest / ((longest - 4) * (longest - 2)) * (safe - 4) * (safe - 2) / safe
            factor = (size * np.sqrt(part * left)).astype(p.dtype)
            step = np.where(length > 5, factor * m / (np.sqrt(v) + self.eps), step)
        return p - step, m, v

    @classmethod
    def variants(cls) -> Sequence[RadamUpdate]:
        return (
            cls(), cls(0.5, 0.9, 1e-3), cls(weight_decay=0.1, decoupled=True), cls(weight_decay=0.1, maximize=True),
            cls(0.9, 0.6),
        )  # fmt: skip


@dataclass(frozen=True)
class RpropUpdate(Update):
    """(p, g, b, s, rate f32[]) -> (p', b', s'): the rule of torch.optim.Rprop; s starts at the rate.

        s' = s * (etaplus where g * b > 0, etaminus where it is < 0, 1 where it is 0), from smallest to largest
        b' = 0 where g * b < 0, else g
        p' = p - sign(b') * s'

    b, the previous gradient, starts as zeros. M. Riedmiller, H. Braun: "A direct adaptive method for faster
    backpropagation learning" (ICNN 1993).
    """

    etaminus: float = 0.5
    etaplus: float = 1.2
    smallest: float = 1e-6
    largest: float = 50.0
    maximize: bool = False
    moments = {"prev": (-2.0, 2.0), "step_size": (0.01, 1.0)}
    weight_decay = 0.0

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        d = self.descent(p, g)
        before, size = moments
        # By signs: a product of two small gradients would underflow.
        same = np.sign(d) * np.sign(before)
        size = np.where(same > 0, self.etaplus * size, np.where(same < 0, self.etaminus * size, size))
        size = np.minimum(np.maximum(size, self.smallest), self.largest)
        d = np.where(same < 0, 0 * size, d)
        return p - np.sign(d) * size, d, size

    @classmethod
    def variants(cls) -> Sequence[RpropUpdate]:
        return cls(), cls(0.3, 1.5, 0.1, 0.5), cls(0.5, 1.2, 0.2), cls(maximize=True)


@dataclass(frozen=True)
class AsgdUpdate(Update):
    """(p, g, a, eta f64[], mu f64[], step i64[], rate f32[]) -> (p', a', eta', mu', step'): torch.optim.ASGD's rule.

        d    = g + weight_decay * p
        p'   = (1 - lambd * eta) * p - eta * d
        a'   = a + mu * (p' - a)
        eta' = rate / (1 + lambd * rate * t)^alpha,    mu' = 1 / max(1, t - t0)

    a, the average, starts as zeros, eta as the first rate, mu as 1.
    B. Polyak, A. Juditsky: "Acceleration of stochastic approximation by averaging" (1992).
    """

    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6
    weight_decay: float = 0.0
    maximize: bool = False
    moments = {"ax": (-2.0, 2.0)}
    scalars = {"eta": (0.01, 0.1), "mu": (0.1, 0.9)}
    counted = True

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        eta, mu = numbers
        d = self.descent(p, g)
        p = (1 - self.lambd * eta).astype(p.dtype) * p - eta.astype(p.dtype) * d
        return p, (1 - mu).astype(p.dtype) * moments[0] + mu.astype(p.dtype) * p

    def advance(self, scalars: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        eta = rate / (1 + self.lambd * rate * t) ** self.alpha
        return eta, 1 / np.maximum(t - self.t0, 1.0)

    @classmethod
    def variants(cls) -> Sequence[AsgdUpdate]:
        return cls(), cls(0.1, 0.5, 2.0), cls(0.1, 0.75, 0.0, 0.1), cls(weight_decay=0.1, maximize=True)


@dataclass(frozen=True)
class LionUpdate(Update):
    """(p, g, m, rate f32[]) -> (p', m'): the sign of an interpolated momentum.

        p' = (1 - rate * weight_decay) * p - rate * sign(beta1 * m + (1 - beta1) * g)
        m' = beta2 * m + (1 - beta2) * g

    m starts as zeros. X. Chen et al.: "Symbolic discovery of optimization algorithms" (NeurIPS 2023), algorithm 2.
    """

    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.0
    maximize: bool = False
    moments = {"exp_avg": (-2.0, 2.0)}

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        (m,), d = moments, -g if self.maximize else g
        direction = np.sign(self.beta1 * m + (1 - self.beta1) * d)
        shrunk = (1 - rate * self.weight_decay).astype(p.dtype) * p if self.weight_decay else p
        return shrunk - rate.astype(p.dtype) * direction, self.beta2 * m + (1 - self.beta2) * d

    @classmethod
    def variants(cls) -> Sequence[LionUpdate]:
        return cls(), cls(0.5, 0.9), cls(0.9, 0.99, 0.1), cls(0.95, 0.98, 0.1, True)


@dataclass(frozen=True)
class LambUpdate(Update):
    """(p, g, m, v, step i64[], rate f32[]) -> (p', m', v', step'): Adam's step, scaled by the layer's norm.

        m' = beta1 * m + (1 - beta1) * g,    v' = beta2 * v + (1 - beta2) * g^2
        u  = m' / (1 - beta1^t) / (sqrt(v' / (1 - beta2^t)) + eps) + weight_decay * p
        p' = p - rate * |p| / |u| * u                          (with 1 for |p| / |u| where one of the norms is 0)

    Y. You et al.: "Large batch optimization for deep learning: training BERT in 76 minutes" (ICLR 2020), algorithm 2,
    with the identity for phi.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.0
    maximize: bool = False
    moments = {"exp_avg": (-2.0, 2.0), "exp_avg_sq": (0.1, 1.0)}
    counted = True
    norms = 2

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        u, m, v = self.direction(p, g, moments, t)
        return p - (rate * trust(*numbers)).astype(p.dtype) * u, m, v

    def measured(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *scalars: Any
    ) -> tuple[Any, ...]:
        return p, self.direction(p, g, moments, t)[0]

    def direction(self, p: Any, g: Any, moments: Sequence[Any], t: Any) -> tuple[Any, Any, Any]:
        """(u, m', v')."""
        m, v = means(self, -g if self.maximize else g, moments)
        u = adam_step(self, m, v, t, np.float64(1))
        return u + self.weight_decay * p if self.weight_decay else u, m, v

    @classmethod
    def variants(cls) -> Sequence[LambUpdate]:
        return cls(), cls(0.5, 0.9, 1e-3), cls(weight_decay=0.1), cls(weight_decay=0.1, maximize=True)


@dataclass(frozen=True)
class LarsUpdate(Update):
    """(p, g, m, rate f32[]) -> (p', m'): momentum with a rate per layer, from the norms of weights and gradient.

        r  = trust_coefficient * |p| / (|g| + weight_decay * |p| + eps)    (1 where |p| or the divisor is 0)
        m' = momentum * m + rate * r * (g + weight_decay * p)
        p' = p - m'

    m starts as zeros.
    Y. You, I. Gitman, B. Ginsburg: "Large batch training of convolutional networks" (2017), algorithm 1.
    """

    momentum: float = 0.9
    weight_decay: float = 0.0
    trust_coefficient: float = 1e-3
    eps: float = 0.0
    maximize: bool = False
    moments = {"momentum": (-2.0, 2.0)}
    norms = 2

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        weights, gradient = numbers
        ratio = trust(self.trust_coefficient * weights, gradient + self.weight_decay * weights + self.eps)
        m = self.momentum * moments[0] + (rate * ratio).astype(p.dtype) * self.descent(p, g)
        return p - m, m

    def measured(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *scalars: Any
    ) -> tuple[Any, ...]:
        return p, g

    @classmethod
    def variants(cls) -> Sequence[LarsUpdate]:
        return cls(), cls(0.8, 0.1, 0.1), cls(0.0, 0.1, 0.02, 1e-3), cls(weight_decay=0.1, maximize=True)


def trust(weights: Any, other: Any) -> Any:
    """weights / other, or 1 if either is 0."""
    both = weights * other > 0
    return np.where(both, weights / np.where(both, other, 1.0), 1.0)
