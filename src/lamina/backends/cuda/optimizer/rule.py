"""An update's rule as CUDA C++: NumPy's arithmetic on symbols emits the statements of a kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from lamina.backends import NoKernel
from lamina.backends.cuda.launch.program import c_type
from lamina.ops.primitives.update import Update
from lamina.spec import DType, as_dtype

#: NumPy's functions in CUDA C++.
_TEXTS: dict[np.ufunc, str] = {
    np.add: "{} + {}",
    np.subtract: "{} - {}",
    np.multiply: "{} * {}",
    np.true_divide: "{} / {}",
    np.negative: "-{}",
    np.absolute: "fabs({})",
    np.sqrt: "sqrt({})",
    np.power: "pow({}, {})",
    np.maximum: "{0} >= {1} || {0} != {0} ? {0} : {1}",  # NaN propagates, which fmax would drop
    np.minimum: "{0} <= {1} || {0} != {0} ? {0} : {1}",
    np.exp: "exp({})",
    np.log: "log({})",
    np.sign: "{0} != {0} ? {0} : ({0} > 0) - ({0} < 0)",
    np.greater: "{} > {}",
    np.less: "{} < {}",
}
_COMPARISONS = (np.greater, np.less)


class Symbol(NDArrayOperatorsMixin):
    """A scalar of a kernel, by its name.

    dtype: as NumPy has it. common: whether it is the same for all elements, so that it is computed once. weak:
        whether it stands for a Python number, which takes the type of the other operand.
    """

    def __init__(self, lines: RuleText, name: str, dtype: Any, common: bool, weak: bool = False) -> None:
        self.lines, self.name, self.dtype, self.common = lines, name, np.dtype(dtype), common
        self.weak = weak

    def astype(self, dtype: Any) -> Symbol:
        """The number in another type."""
        return self.lines.add(f"({_c(dtype)}){self.name}", dtype, self.common)

    def __array_ufunc__(self, function: np.ufunc, method: str, *inputs: Any, **options: Any) -> Symbol:
        """Emit the function. Raises NoKernel for one that is not in the table."""
        if function not in _TEXTS or method != "__call__" or options:
            raise NoKernel(f"cuda: an update's rule cannot use numpy.{function.__name__}; known: {_known()}")
        symbols = [x for x in inputs if isinstance(x, Symbol)]
        dtype = _common_type(symbols)
        text = _TEXTS[function].format(*_named(inputs, dtype))
        made = np.bool_ if function in _COMPARISONS else dtype
        return self.lines.add(text, made, all(s.common for s in symbols), all(s.weak for s in symbols))

    def __array_function__(
        self, function: Any, types: Any, inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> Symbol:
        """Emit a selection, for `numpy.where`. Raises NoKernel for another function."""
        if function is not np.where or len(inputs) != 3 or options:
            raise NoKernel(f"cuda: an update's rule cannot use numpy.{function.__name__}; known: {_known()}")
        condition, *either = inputs
        symbols = [x for x in either if isinstance(x, Symbol)]
        dtype = _common_type(symbols)
        yes, no = _named(either, dtype)
        common = all(s.common for s in (condition, *symbols))
        return self.lines.add(f"{condition.name} ? {yes} : {no}", dtype, common)


class RuleText:
    """The statements that a rule emits: those that run once, and those for each element."""

    def __init__(self) -> None:
        self.members: list[str] = []
        self.common: list[str] = []
        self.each: list[str] = []

    def add(self, text: str, dtype: Any, common: bool, weak: bool = False) -> Symbol:
        """Emit a statement that names its value."""
        name, kind = f"v{len(self.common) + len(self.each)}", _c(dtype)
        if common:
            self.members.append(f"{kind} {name};")
            self.common.append(f"{name} = {text};")
        else:
            self.each.append(f"const {kind} {name} = {text};")
        return Symbol(self, name, dtype, common, weak)

    def moved(self, op: Update, common: bool) -> Update:
        """The op whose hyperparameters are the scalars after the rate."""
        behind = range(1, 1 + len(op.moving))
        return op.at(*(self.add(f"n[{i}]", np.float64, common, weak=True) for i in behind))


@lru_cache(maxsize=256)
def rule_text(op: Update, dtype: DType) -> str:
    """The code for update.cu: `Rule`, the step of an element; `Norms`, the values of norms; `advance`."""
    texts = [_struct("Rule", "step", op, dtype)]
    if op.norms:
        texts.append(_struct("Norms", "of", op, dtype))
    if op.scalars:
        texts.append(_advance(op))
    return "".join(texts)


def _struct(name: str, function: str, op: Update, dtype: DType) -> str:
    """A struct with the scalars that all elements share, and the function on an element."""
    lines, count, measures = RuleText(), len(op.moments), name == "Norms"
    p, g, *moments = [Symbol(lines, n, dtype.numpy, False) for n in ("p", "g", *_moments(count))]
    known = len(op.scalars) + (0 if measures else op.norms)
    t, rate, *numbers = [Symbol(lines, n, np.float64, True) for n in ("t", "rate", *_numbers(known))]
    moved = lines.moved(op, True)
    results = (moved.measured if measures else moved.rule)(
        p, g, moments, t if op.counted else None, rate, *numbers
    )
    kind, each = c_type(dtype), "\n        ".join(lines.each)
    if measures:
        taken = f"{kind} p, {kind} g, const {kind} *m, {kind} (&out)[{op.norms}]"
        stores = " ".join(f"out[{i}] = {r.name};" for i, r in enumerate(results))
    else:
        taken = f"{kind} &p, {kind} g, {kind} (&m)[{max(count, 1)}]"
        stores = _stores(("p", *_moments(count)), results)
    return f"""struct {name} {{
    {" ".join(lines.members)}
    __device__ __forceinline__ {name}(f64 t, f64 rate, const f64 *s, const RATE *n) {{ {" ".join(lines.common)} }}
    __device__ __forceinline__ void {function}({taken}) const
    {{
        {each}
        {stores}
    }}
}};
"""


def _advance(op: Update) -> str:
    """The function that computes the scalars after a step."""
    lines = RuleText()
    t, rate, *scalars = [
        Symbol(lines, n, np.float64, False) for n in ("t", "rate", *_numbers(len(op.scalars)))
    ]
    results = lines.moved(op, False).advance(scalars, t if op.counted else None, rate)
    stores = " ".join(f"out[{i}] = {r.name};" for i, r in enumerate(results))
    body = " ".join([*lines.each, stores])
    taken = "f64 t, f64 rate, const f64 *s, const RATE *n, f64 *out"
    return f"__device__ __forceinline__ void advance({taken}) {{ {body} }}\n"


def _named(inputs: Sequence[Any], dtype: Any) -> list[str]:
    """Symbols by name; Python numbers as constants of a type, or cast to it."""
    return [_in_type(x, dtype) if isinstance(x, Symbol) else f"({_c(dtype)})({float(x)!r})" for x in inputs]


def _in_type(x: Symbol, dtype: Any) -> str:
    return f"({_c(dtype)}){x.name}" if x.weak and x.dtype != dtype else x.name


def _common_type(symbols: Sequence[Symbol]) -> Any:
    """An expression's type: that of the symbols with a type of their own, else float64."""
    own = [s.dtype for s in symbols if not s.weak]
    return np.result_type(*own) if own else np.dtype(np.float64)


def _moments(count: int) -> list[str]:
    return [f"m[{i}]" for i in range(count)]


def _numbers(count: int) -> list[str]:
    return [f"s[{i}]" for i in range(count)]


def _stores(names: Sequence[str], results: Sequence[Symbol]) -> str:
    """The stores of the results, all read before any is overwritten: a moment may be passed from one to another."""
    moved = [(n, r.name) for n, r in zip(names, results, strict=True) if n != r.name]
    if any(name in names for _, name in moved):
        raise NoKernel("cuda: an update's rule must compute each moment, or leave it as it is")
    return " ".join(f"{n} = {r};" for n, r in moved)


def _c(dtype: Any) -> str:
    return c_type(as_dtype(np.dtype(dtype)))


def _known() -> str:
    return ", ".join([*(f.__name__ for f in _TEXTS), "where"])
