"""The arguments of a public function are checked at the door, against the function's annotations.

`checked` looks at the parameters that are not tensors: what `int`, `float`, `bool`, `str`, `Literal`,
`Sequence[int]`, `DTypeLike` and unions of them take. An argument of another kind is a TypeError, a word that is none
of a Literal's a ValueError; both name the function, the parameter, the value and what it may be. Ranges (a size of at
least 1, a probability) are the function's own to check. A bool is not taken for a number.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

from lamina.spec import DType, DTypeError, as_dtype

#: What names an element type: lamina.float32, "float32", numpy.float32.
DTypeLike = DType | str | np.dtype[Any] | type
#: Axes, counted from the front or (negative) from the back; None where all are meant.
Dims = int | Sequence[int] | None
#: A size for all spatial axes, or one for each.
Sizes = int | Sequence[int]
#: A Python number, as it stands beside a tensor.
Number = bool | int | float

F = TypeVar("F", bound=Callable[..., Any])


class Rule(NamedTuple):
    """Whether a value is taken, and what is taken, in words."""

    accepts: Callable[[Any], bool]
    text: str


def checked(function: F) -> F:
    """The function, refusing arguments that its annotations do not allow."""
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters
    rules = {name: rule for name in parameters if (rule := _rule(hints.get(name, Any))) is not None}
    if not rules:
        return function
    positional = [
        (name, rules.get(name)) for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    what = function.__name__.lstrip("_")

    @wraps(function)
    def door(*args: Any, **options: Any) -> Any:
        for (name, rule), value in zip(positional, args, strict=False):
            if rule is not None and not rule.accepts(value):
                raise refusal(what, name, value, rule.text)
        for name, value in options.items():
            rule = rules.get(name)
            if rule is not None and not rule.accepts(value):
                raise refusal(what, name, value, rule.text)
        return function(*args, **options)

    return cast(F, door)


def refusal(what: str, name: str, value: Any, allowed: str) -> Exception:
    """What is raised for an argument that is not allowed."""
    kind = ValueError if isinstance(value, str) and allowed.startswith("one of ") else TypeError
    kind = DTypeError if allowed == _DTYPE.text else kind
    return kind(f"{what}: {name} must be {allowed}, got {shown(value)}")


def shown(value: Any) -> str:
    """A value as it stands in an error message: short, and on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # whatever a foreign object's repr raises, the message is about something else
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def within(
    what: str, name: str, value: float, low: float, high: float = math.inf, *, open: bool = False
) -> None:
    """Raise ValueError unless low <= value <= high (with open: low < value); NaN is never within."""
    if (low < value if open else low <= value) and value <= high:
        return
    ends = f"{'(' if open else '['}{low:g}, {high:g}]"
    allowed = f"in {ends}" if high < math.inf else f"{'>' if open else '>='} {low:g}"
    raise ValueError(f"{what}: {name} must be {allowed}, got {shown(value)}")


def _is_int(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _is_float(x: Any) -> bool:
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


def _is_dtype(x: Any) -> bool:
    try:
        as_dtype(x)
    except DTypeError:
        return False
    return True


_DTYPE = Rule(_is_dtype, "a dtype, such as lamina.float32 or 'float32'")
_SCALARS: dict[Any, Rule] = {
    int: Rule(_is_int, "an int"),
    float: Rule(_is_float, "a number"),
    bool: Rule(lambda x: isinstance(x, (bool, np.bool_)), "True or False"),
    str: Rule(lambda x: isinstance(x, str), "a str"),
    NoneType: Rule(lambda x: x is None, "None"),
}


def _rule(hint: Any) -> Rule | None:
    """What an annotation allows; None where anything is (tensors, whose functions adopt them)."""
    origin = get_origin(hint)
    if hint == DTypeLike:
        return _DTYPE
    if origin is Literal:
        words = get_args(hint)
        return Rule(lambda x: isinstance(x, str) and x in words, f"one of {', '.join(map(repr, words))}")
    if origin in (Union, UnionType):
        return _either(hint)
    if origin in (Sequence, tuple):
        return _series(get_args(hint)[0])
    return _SCALARS.get(hint)


def _either(hint: Any) -> Rule | None:
    options = list(get_args(hint))
    named = [_DTYPE] if set(get_args(DTypeLike)) <= set(options) else []
    rest = [o for o in options if not named or o not in get_args(DTypeLike)]
    found = [*named, *(_rule(o) for o in rest)]
    if any(rule is None for rule in found):
        return None
    rules = [rule for rule in found if rule is not None]
    return Rule(lambda x: any(r.accepts(x) for r in rules), " or ".join(dict.fromkeys(r.text for r in rules)))


def _series(inner: Any) -> Rule | None:
    rule = _rule(inner)
    if rule is None:
        return None
    plural = {"an int": "ints", "a number": "numbers"}.get(rule.text, f"({rule.text})")

    def accepts(x: Any) -> bool:
        if isinstance(x, (str, bytes)) or not isinstance(x, Iterable):
            return False
        return isinstance(x, (tuple, list, range, np.ndarray)) and all(map(rule.accepts, x))

    return Rule(accepts, f"a sequence of {plural}")
