"""The functions of `ops/primitives/elementary.py` in CUDA C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamina.ops.primitives.elementary import BinaryFunction, Polygamma, UnaryFunction

#: Functions of CUDA's math library: the float version has the suffix f. Others are those of special.cuh.
_CUDA = {
    "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "asinh": "asinh",
    "acosh": "acosh", "atanh": "atanh", "exp2": "exp2", "expm1": "expm1", "log1p": "log1p", "log2": "log2",
    "log10": "log10", "erfc": "erfc", "lgamma": "lgamma", "round": "rint", "atan2": "atan2", "hypot": "hypot",
    "copysign": "copysign", "nextafter": "nextafter",
}  # fmt: skip
_OWN = {
    "erfinv": "inverse_error_function", "digamma": "digamma", "sinc": "sine_ratio", "fmod": "trunc_mod",
    "remainder": "floor_mod", "floor_divide": "floor_div", "trunc_divide": "trunc_div", "logaddexp": "log_sum",
    "bitwise_left_shift": "shifted_up", "bitwise_right_shift": "shifted_down", "gcd": "common_divisor",
    "whole_power": "whole_power",
}  # fmt: skip
_TEXTS = {
    "bitwise_and": "({t})({0} & {1})", "bitwise_or": "({t})({0} | {1})", "bitwise_xor": "({t})({0} ^ {1})",
    "fmin": "({1} != {1} || {0} < {1} ? {0} : {1})", "fmax": "({1} != {1} || {0} > {1} ? {0} : {1})",
}  # fmt: skip


def expression(op: UnaryFunction | BinaryFunction, a: Sequence[str], t: str) -> str:
    """The function's value for named arguments of a C type."""
    if op.function in _TEXTS:
        return _TEXTS[op.function].format(*a, t=t)
    name = _OWN.get(op.function) or _CUDA[op.function] + ("f" if t == "f32" else "")
    return f"{name}({', '.join(a)})"


def polygamma(op: Polygamma, a: Sequence[str], t: str) -> str:
    """The n-th derivative of digamma."""
    return f"polygamma({op.n}, {a[0]})"


EXPRESSIONS: dict[type[Any], Any] = {
    UnaryFunction: expression,
    BinaryFunction: expression,
    Polygamma: polygamma,
}
