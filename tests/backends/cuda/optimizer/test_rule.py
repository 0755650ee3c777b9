"""NumPy's arithmetic on symbols writes what a kernel computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cuda.optimizer.rule import rule_text
from lamina.ops.primitives.update import Update
from lamina.spec import float32, float64


@dataclass(frozen=True)
class _Rule(Update):
    """p' = |p| - rate * sqrt(m') with m' = max(m, 0.5 * g * g)."""

    moments: ClassVar[Mapping[str, tuple[float, float]]] = {"m": (0.1, 1.0)}

    def rule(self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        m = np.maximum(moments[0], 0.5 * g * g)
        return abs(p) - (2 * rate).astype(p.dtype) * np.sqrt(m), m


def test_what_is_the_same_for_all_elements_is_made_once() -> None:
    text = " ".join(rule_text(_Rule(), float32).split())
    assert (
        "Rule(f64 t, f64 rate, const f64 *s, const RATE *n) { v4 = (f64)(2.0) * rate; v5 = (f32)v4; }" in text
    )
    assert (
        "const f32 v0 = (f32)(0.5) * g; const f32 v1 = v0 * g; const f32 v2 = m[0] >= v1 || m[0] != m[0] ? m[0] : v1;"
        in text
    )
    assert "p = v8; m[0] = v2;" in text
    assert "f32" not in rule_text(_Rule(), float64)


@dataclass(frozen=True)
class _Unknown(Update):
    """A rule with a function that kernels do not have."""

    def rule(self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        return (np.arctan(p),)


@dataclass(frozen=True)
class _Swapped(Update):
    """A rule that hands one moment to the other."""

    moments: ClassVar[Mapping[str, tuple[float, float]]] = {"a": (0.1, 1.0), "b": (0.1, 1.0)}

    def rule(self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        return (p - g, *reversed(moments))


def test_what_a_kernel_cannot_do_is_named() -> None:
    with pytest.raises(NoKernel, match=r"cannot use numpy.arctan; known: add, subtract"):
        rule_text(_Unknown(), float32)
    with pytest.raises(NoKernel, match="must compute each moment, or leave it as it is"):
        rule_text(_Swapped(), float32)
