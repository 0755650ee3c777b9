"""An update's rule as CUDA C++: NumPy's arithmetic on symbols writes the lines of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from lamina.backends import NoKernel
from lamina.backends.cuda.launch.program import c_type
from lamina.ops.primitives.update import Update
from lamina.spec import DType, as_dtype

#: What each of NumPy's functions is in CUDA C++.
_TEXTS: dict[np.ufunc, str] = {
    np.add: "{} + {}",
    np.subtract: "{} - {}",
    np.multiply: "{} * {}",
    np.true_divide: "{} / {}",
    np.negative: "-{}",
    np.absolute: "fabs({})",
    np.sqrt: "sqrt({})",
    np.power: "pow({}, {})",
    np.maximum: "fmax({}, {})",
    np.minimum: "fmin({}, {})",
    np.exp: "exp({})",
    np.log: "log({})",
    np.sign: "({0} > 0) - ({0} < 0)",
}


class Symbol(NDArrayOperatorsMixin):
    """A number of a kernel, by its name.

    dtype: as NumPy has it. common: whether it is the same for all elements, so that it is made once.
    """

    def __init__(self, lines: RuleText, name: str, dtype: Any, common: bool) -> None:
        self.lines, self.name, self.dtype, self.common = lines, name, np.dtype(dtype), common

    def astype(self, dtype: Any) -> Symbol:
        """The number in another type."""
        return self.lines.add(f"({_c(dtype)}){self.name}", dtype, self.common)

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **options: Any) -> Symbol:
        """A line that applies the function. Raises NoKernel for one that is not in the table."""
        if function not in _TEXTS or method != "__call__" or options:
            raise NoKernel(f"cuda: an update's rule cannot use numpy.{function.__name__}; known: {_known()}")
        symbols = [x for x in inputs if isinstance(x, Symbol)]
        dtype = np.result_type(*(s.dtype for s in symbols))
        names = [x.name if isinstance(x, Symbol) else f"({_c(dtype)})({float(x)!r})" for x in inputs]
        return self.lines.add(_TEXTS[function].format(*names), dtype, all(s.common for s in symbols))


class RuleText:
    """The lines that a rule writes: those that are run once, and those for each element."""

    def __init__(self) -> None:
        self.members: list[str] = []
        self.common: list[str] = []
        self.each: list[str] = []

    def add(self, text: str, dtype: Any, common: bool) -> Symbol:
        """A line that gives its value a name."""
        name, kind = f"v{len(self.common) + len(self.each)}", _c(dtype)
        if common:
            self.members.append(f"{kind} {name};")
            self.common.append(f"{name} = {text};")
        else:
            self.each.append(f"const {kind} {name} = {text};")
        return Symbol(self, name, dtype, common)


@lru_cache(maxsize=256)
def rule_text(op: Update, dtype: DType) -> str:
    """`struct Rule` of update.cu: what its numbers are, and what one step makes of an element."""
    lines, count = RuleText(), len(op.moments)
    p, g, *moments = [Symbol(lines, n, dtype.numpy, False) for n in ("p", "g", *_moments(count))]
    t, rate = (Symbol(lines, n, np.float64, True) for n in ("t", "rate"))
    results = op.rule(p, g, moments, t if op.counted else None, rate)
    kind, each = c_type(dtype), "\n        ".join(lines.each)
    stores = _stores(("p", *_moments(count)), results)
    return f"""struct Rule {{
    {" ".join(lines.members)}
    __device__ __forceinline__ Rule(f64 t, f64 rate) {{ {" ".join(lines.common)} }}
    __device__ __forceinline__ void step({kind} &p, {kind} g, {kind} (&m)[{max(count, 1)}]) const
    {{
        {each}
        {stores}
    }}
}};
"""


def _moments(count: int) -> list[str]:
    return [f"m[{i}]" for i in range(count)]


def _stores(names: Sequence[str], results: Sequence[Symbol]) -> str:
    """The results in their places, read before any is overwritten: a moment may be handed from one to another."""
    moved = [(n, r.name) for n, r in zip(names, results, strict=True) if n != r.name]
    if any(name in names for _, name in moved):
        raise NoKernel("cuda: an update's rule must compute each moment, or leave it as it is")
    return " ".join(f"{n} = {r};" for n, r in moved)


def _c(dtype: Any) -> str:
    return c_type(as_dtype(np.dtype(dtype)))


def _known() -> str:
    return ", ".join(f.__name__ for f in _TEXTS)
