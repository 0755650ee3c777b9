"""NumPy's arithmetic on symbols writes what a kernel computes."""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cuda import backend
from lamina.backends.cuda.optimizer import rule
from lamina.backends.cuda.optimizer.rule import RuleText, Symbol, rule_text
from lamina.ops.primitives.update import Update
from lamina.spec import DType, Policy, Spec, as_dtype, float32, float64
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200


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


# ------------------------------------------------------------------------------------------------------- types


#: Of p and g (of the parameter's type), c (float64, as the rate is), w (one of Python's numbers, as what moves is).
EXPRESSIONS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "tensors": lambda p, g, c, w: p * g,
    "a constant": lambda p, g, c, w: 0.5 * p,
    "a number of float64": lambda p, g, c, w: c * p,
    "one brought to the parameter's type": lambda p, g, c, w: c.astype(p.dtype) * p,
    "it alone": lambda p, g, c, w: c.astype(p.dtype) * 2.0,
    "a tensor in float64": lambda p, g, c, w: p.astype(np.float64) * g,
    "a tensor in float64 alone": lambda p, g, c, w: p.astype(np.float64) * 2.0,
    "what moves": lambda p, g, c, w: w * p,
    "what is made of it": lambda p, g, c, w: (1.0 - w) * p,
    "it and float64": lambda p, g, c, w: w * c,
    "where": lambda p, g, c, w: np.where(p > g, p, g),
    "where, and a constant": lambda p, g, c, w: np.where(p > 0, p, 0.0) * 2.0,
    "where of float64": lambda p, g, c, w: np.where(p > g, c, 1.0) * p,
    "where, beside float64": lambda p, g, c, w: np.where(p > g, p, c),
    "where, and what moves": lambda p, g, c, w: np.where(p > g, p, g) * w,
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_types_are_numpys(name: str, dtype: Any) -> None:
    expression, lines = EXPRESSIONS[name], RuleText()
    arrays = [np.full(3, value, dtype) for value in (0.25, 0.5)]
    wanted = expression(*arrays, np.array([0.125]), 0.375)  # type: ignore[call-arg]
    p, g = (Symbol(lines, n, dtype, False) for n in ("p", "g"))
    c, w = (Symbol(lines, n, np.float64, True, weak) for n, weak in (("c", False), ("w", True)))
    found = expression(p, g, c, w)
    assert found.dtype == wanted.dtype
    assert not found.weak


def test_what_is_made_of_pythons_numbers_alone_is_one() -> None:
    """But not what was brought to a type, or chosen."""
    lines = RuleText()
    w: Any = lines.add("n[1]", np.float64, True, weak=True)
    chosen: Any = np.where(w > 0.0, w, 1.0)
    assert (1.0 - w * w).weak
    assert not w.astype(np.float32).weak
    assert not chosen.weak
    assert not lines.add("p", np.float32, False).weak


def test_what_is_common_is_written_once_and_the_rest_for_each_element() -> None:
    lines = RuleText()
    p: Any = Symbol(lines, "p", np.float32, False)
    c: Any = Symbol(lines, "c", np.float64, True)
    kinds = [
        c * 2.0,
        p * 2.0,
        c * p,
        np.where(c > 0.0, c, 1.0),
        np.where(c > 0.0, p, 1.0),
        np.where(p > 0.0, c, 1.0),
    ]
    assert [x.common for x in kinds] == [True, False, False, True, False, False]
    assert [x.name for x in kinds] == ["v0", "v1", "v2", "v4", "v6", "v8"]
    assert (len(lines.common), len(lines.members), len(lines.each)) == (4, 4, 5)


# ------------------------------------------------------------------------------------------------------ values


def _of_one(function: np.ufunc) -> Callable[[Any, Any], Any]:
    return lambda p, g: function(p)


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    **{f.__name__: f for f in (np.add, np.subtract, np.multiply, np.true_divide, np.maximum, np.minimum)},
    **{f.__name__: _of_one(f) for f in (np.negative, np.absolute, np.sqrt, np.exp, np.log, np.sign)},
    "power": lambda p, g: np.power(np.absolute(p), g),
    "greater": lambda p, g: np.where(p > g, p, 0.0),
    "less": lambda p, g: np.where(p < g, p, 0.0),
    "astype": lambda p, g: (p.astype(np.float64) * g).astype(p.dtype),
}  # fmt: skip


@dataclass(frozen=True)
class _Applied(Update):
    """One function of p and g, by its name."""

    function: str = ""

    def rule(self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        return (FUNCTIONS[self.function](p, g),)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_functions_give_what_numpys_give(name: str, dtype: DType) -> None:
    """Infinities, NaN and negative zeros, too."""
    special = np.array([0.0, -0.0, 1.5, -2.5, 3.0, np.inf, -np.inf, np.nan])
    p, g = (a.reshape(-1).astype(dtype.numpy) for a in np.meshgrid(special, special))
    specs = [Spec(p.shape, dtype), Spec(g.shape, dtype), Spec((), float32)]
    plan = backend(H200).plan(_Applied(function=name), specs, Policy())
    (found,) = run_plan(plan, [p, g, np.array(0.5, np.float32)])
    with np.errstate(all="ignore"):
        wanted = FUNCTIONS[name](p, g)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_all_that_rules_may_use_is_tried() -> None:
    assert {f.__name__ for f in rule._TEXTS} == {*FUNCTIONS} - {"astype"}


@dataclass(frozen=True)
class _Moving(Update):
    """Two numbers that may move: p' = p - rate * a * s * g + b * g, and s' = s * a + b."""

    scalars: ClassVar[Mapping[str, tuple[float, float]]] = {"s": (0.1, 1.0)}
    a: float = 0.5
    b: float = 0.25

    def rule(
        self, p: Any, g: Any, moments: Sequence[Any], t: Any, rate: Any, *numbers: Any
    ) -> tuple[Any, ...]:
        return (p - (rate * self.a * numbers[0]).astype(p.dtype) * g + self.b * g,)

    def advance(self, scalars: Sequence[Any], t: Any, rate: Any) -> tuple[Any, ...]:
        return (scalars[0] * self.a + self.b,)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("moving", [(), ("a",), ("b",), ("a", "b")], ids=str)
def test_numbers_that_move_are_read_behind_the_rate(moving: tuple[str, ...]) -> None:
    op = _Moving().moved(moving)
    assert op.moving == moving
    p, g = (np.linspace(a, 2.0, 37).astype(np.float32) for a in (-1.0, 0.5))
    rate = np.array([0.125, *({"a": 0.5, "b": 0.25}[name] for name in moving)])
    arrays = [p, g, np.array(0.75), rate if moving else np.array(0.125, np.float32)]
    plan = backend(H200).plan(op, [Spec(x.shape, as_dtype(x.dtype)) for x in arrays], Policy())
    new, kept = run_plan(plan, arrays)
    np.testing.assert_allclose(new, p - 0.125 * 0.5 * 0.75 * g + 0.25 * g, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(kept, 0.75 * 0.5 + 0.25, rtol=1e-15)
    text = rule_text(op, float32)
    assert {f"n[{i}]" for i in range(4) if f"n[{i}]" in text} == {f"n[{1 + i}]" for i in range(len(moving))}
    assert "f64 p" not in text
    if "b" in moving:  # as Python's number is, it is brought to the tensor's type
        assert re.search(r"const f32 v\d+ = \(f32\)v\d+ \* g;", text)
