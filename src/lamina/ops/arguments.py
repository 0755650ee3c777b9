"""Arguments of public functions are checked on entry, against the function's annotations.

`checked` validates the parameters that are not tensors, by annotations of `int`, `float`, `bool`, `str`, `Literal`,
`Sequence[int]`, `DTypeLike`, classes, functions, containers and unions of these. An argument of the wrong type raises
TypeError, a string that is not in a Literal ValueError; both name the function, the parameter, the value and the
accepted values. Ranges (a size of at least 1, a probability) are checked by the function itself. A bool is not
accepted as a number.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache, wraps
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)
from weakref import WeakSet

import numpy as np

from lamina.spec import DType, DTypeError, as_dtype

#: A name of an element type: lamina.float32, "float32", numpy.float32.
DTypeLike = DType | str | np.dtype[Any] | type
#: Axes, counted from the front or (negative) from the back; None for all.
Dims = int | Sequence[int] | None
#: A size for all spatial axes, or one for each.
Sizes = int | Sequence[int]
#: A Python number, as it appears next to a tensor.
Number = bool | int | float

F = TypeVar("F", bound=Callable[..., Any])


class Rule(NamedTuple):
    """A predicate for accepted values, its description, and classes whose instances are always accepted."""

    accepts: Callable[[Any], bool]
    text: str
    kinds: frozenset[type] = frozenset()


#: NumPy's name of a parameter, which torch accepts as well; and torch's own alternative names.
OTHER_NAMES = {
    "axis": "dim",
    "dim0": "axis0",
    "dim1": "axis1",
    "indices": "indices_or_sections",
    "keepdims": "keepdim",
    "sections": "indices_or_sections",
    "split_size": "split_size_or_sections",
}


#: Parameters that torch's functions have and ours lack, and what to write instead.
INSTEAD = {
    "requires_grad": "derivatives are of functions' arguments (lamina.grad) and of nn.Parameter: leave it out",
    "out": "no function writes over its arguments: take its result, or y.copy_(result)",
    "layout": "every tensor is dense: leave it out",
    "pin_memory": "what goes to a GPU goes by way of pinned memory in any case: leave it out",
    "memory_format": "how elements lie is settled when a graph is planned: leave it out",
    **dict.fromkeys(
        ("weights", "pretrained"),
        "nothing is downloaded: a network's weights are read by net.load_state_dict(lamina.load_weights(file))",
    ),
    **dict.fromkeys(("size_average", "reduce"), 'it is reduction="mean", "sum" or "none"'),
}


class Rules(NamedTuple):
    """The rules of a function's parameters, by position and by name."""

    by_place: list[tuple[str, Rule | None]]
    by_name: dict[str, Rule]
    names: frozenset[str]
    takes_any: bool  # further keyword options

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Rules:
        """The rules given by its annotations; a name that only exists for type checkers gives none."""
        parameters = inspect.signature(function).parameters
        rules = {name: rule for name in parameters if (rule := _rule(_hint(function, name))) is not None}
        places = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        return cls([(name, rules.get(name)) for name in places], rules, frozenset(parameters), takes_any)

    def check(self, what: str, args: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Raise TypeError, ValueError or DTypeError for an argument that is not allowed."""
        for (name, rule), value in zip(self.by_place, args, strict=False):
            if rule is not None and type(value) not in rule.kinds and not rule.accepts(value):
                raise refusal(what, name, value, rule.text)
        for name, value in options.items():
            if name not in self.names and not self.takes_any and (hint := self.hint(name)):
                raise TypeError(f"{what}() got an unexpected keyword argument {name!r}; {hint}")
            rule = self.by_name.get(name)
            if rule is not None and type(value) not in rule.kinds and not rule.accepts(value):
                raise refusal(what, name, value, rule.text)

    def hint(self, name: str) -> str:
        """What to write instead of an unknown name: the nearest one, which differs by a letter or two; else ""."""
        near = get_close_matches(name, self.names - {"self"}, 1, 0.8)
        return f"did you mean {near[0]!r}?" if near else INSTEAD.get(name, "")

    @property
    def free(self) -> int:
        """The number of positional parameters without a rule: mostly tensors."""
        return next((i for i, (_, rule) in enumerate(self.by_place) if rule is not None), len(self.by_place))


def _hint(function: Callable[..., Any], name: str) -> Any:
    note = function.__annotations__.get(name, Any)
    try:
        return get_type_hints(SimpleNamespace(__annotations__={name: note}), function.__globals__)[name]
    except NameError:
        return Any


def checked(function: F) -> F:
    """Wrap the function so that it rejects arguments that its annotations do not allow."""
    rules = Rules.of(function)
    if not rules.by_name:
        return function
    what = function.__name__.lstrip("_")

    also = {
        other: name for other, name in OTHER_NAMES.items() if name in rules.names and other not in rules.names
    }

    free = rules.free

    @wraps(function)
    def door(*args: Any, **options: Any) -> Any:
        for other in also.keys() & options.keys() if options else ():
            if also[other] not in options:
                options[also[other]] = options.pop(other)
        if options or len(args) > free:
            rules.check(what, args, options)
        return function(*args, **options)

    return cast(F, door)


def one_by_one(function: F) -> F:
    """Wrap the function so that its sizes or axes (`*size`) may be separate arguments, one sequence, or a keyword."""
    kinds = [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]
    before, name = next(
        (i, n) for i, (n, kind) in enumerate(kinds) if kind is inspect.Parameter.VAR_POSITIONAL
    )

    @wraps(function)
    def door(*args: Any, **options: Any) -> Any:
        if options and name in options:
            if len(args) > before:
                raise TypeError(f"{function.__name__}: {name} is given by place and by name")
            args = (*args, options.pop(name))
        return function(*args, **options)

    return cast(F, door)


def checked_method(method: F) -> F:
    """Like `checked`, for `__init__` and `__call__`; errors name the instance's class, which may be incomplete."""
    found: list[Rules] = []

    @wraps(method)
    def door(self: Any, *args: Any, **options: Any) -> Any:
        if not found:
            found.append(Rules.of(method))
        if found[0].by_name:
            found[0].check(type(self).__name__, (self, *args), options)
        return method(self, *args, **options)

    return cast(F, door)


class Checked:
    """A base class whose subclasses have `__init__` and `__call__` checked if they belong to the package: the
    annotations in users' subclasses are the users' own."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("__init__", "__call__"):
            if cls.__module__.startswith("lamina.") and name in vars(cls) and _says_anything(vars(cls)[name]):
                setattr(cls, name, checked_method(vars(cls)[name]))


def _says_anything(method: Callable[..., Any]) -> bool:
    """Whether parameter annotations may contain rules; they are evaluated at the method's first call."""
    notes = method.__annotations__
    return any(note not in ("Any", Any) for name, note in notes.items() if name != "return")


def refusal(what: str, name: str, value: Any, allowed: str) -> Exception:
    """The exception for a rejected argument."""
    kind = ValueError if isinstance(value, str) and allowed.startswith("one of ") else TypeError
    kind = DTypeError if allowed == _DTYPE.text else kind
    return kind(f"{what}: {name} must be {allowed}, got {shown(value)}")


def shown(value: Any) -> str:
    """A value as formatted in an error message: short, on one line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a foreign object's repr may raise anything, and the message is about something else
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def within(
    what: str, name: str, value: float, low: float, high: float = math.inf, *, open: bool = False
) -> None:
    """Raise ValueError unless low <= value <= high (with open: low < value); NaN is always out of range."""
    if (low < value if open else low <= value) and value <= high:
        return
    ends = f"{'(' if open else '['}{low:g}, {high:g}]"
    allowed = f"in {ends}" if high < math.inf else f"{'>' if open else '>='} {low:g}"
    raise ValueError(f"{what}: {name} must be {allowed}, got {shown(value)}")


#: Upper bound on the layers of one module: a larger number is a mistake and would take hours to construct.
MOST_LAYERS = 1 << 16


def whole(what: str, name: str, value: Any, least: int = 1, most: float = math.inf) -> int:
    """An integer from `least` to `most`. Raises TypeError for anything but an integer, ValueError out of range."""
    if not _is_int(value):
        raise refusal(what, name, value, "an int")
    if value < least:
        raise ValueError(f"{what}: {name} must be at least {least}, got {shown(value)}")
    if value > most:
        raise ValueError(f"{what}: {name} must be at most {most}, got {shown(value)}")
    return int(value)


def _is_int(x: Any) -> bool:
    return isinstance(x, (int, np.integer)) and not isinstance(x, bool)


def _is_float(x: Any) -> bool:
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


def is_dtype(x: Any) -> bool:
    """Whether it names an element type."""
    try:
        as_dtype(x)
    except DTypeError:
        return False
    return True


_DTYPE = Rule(is_dtype, "a dtype, such as lamina.float32 or 'float32'")
_SCALARS: dict[Any, Rule] = {
    int: Rule(_is_int, "an int", frozenset({int})),
    float: Rule(_is_float, "a number", frozenset({int, float})),
    bool: Rule(lambda x: isinstance(x, (bool, np.bool_)), "True or False", frozenset({bool})),
    str: Rule(lambda x: isinstance(x, str), "a str", frozenset({str})),
    NoneType: Rule(lambda x: x is None, "None", frozenset({NoneType})),
}
_CONTAINERS: dict[Any, str] = {
    Mapping: "a mapping, such as a dict",
    dict: "a dict",
    Iterable: "iterable",
    Collection: "a collection",
}


def _rule(hint: Any) -> Rule | None:
    """The rule of an annotation; None where anything is accepted (tensors, which the functions adopt)."""
    origin = get_origin(hint)
    if hint == DTypeLike:
        return _DTYPE
    if origin is Literal:
        words = get_args(hint)
        return Rule(lambda x: isinstance(x, str) and x in words, f"one of {', '.join(map(repr, words))}")
    if isinstance(hint, TypeVar):
        return None if hint.__bound__ is None else _rule(hint.__bound__)
    if origin in (Union, UnionType):
        return _either(hint)
    if origin is type:
        kinds = get_args(hint)[0]
        return Rule(lambda x: isinstance(x, type) and issubclass(x, kinds), f"a class of {kinds.__name__}")
    if origin is np.ndarray:
        return Rule(lambda x: isinstance(x, np.ndarray), "a NumPy array")
    if Callable in (origin, hint):
        return Rule(callable, "a function")
    if (origin or hint) in _CONTAINERS:
        kind, text = origin or hint, _CONTAINERS[origin or hint]
        return Rule(lambda x: isinstance(x, kind) and not isinstance(x, str | bytes), text)
    if origin in (Sequence, tuple):
        return _series(get_args(hint))
    if hint in _SCALARS:
        return _SCALARS[hint]
    return _class_rule(hint) if origin is None and isinstance(hint, type) else None


@lru_cache(maxsize=512)
def _class_rule(kind: type) -> Rule | None:
    """Instances of a class; None for a class that only type checkers use."""
    bare: Any = kind
    if getattr(bare, "_is_protocol", False) and not getattr(bare, "_is_runtime_protocol", False):
        return _attributes_rule(kind)
    if kind in (Any, object, complex):
        return None
    accepts = _remembering(kind) if getattr(bare, "_is_protocol", False) else lambda x: isinstance(x, kind)
    plain: tuple[type, ...] = (int, float)
    return Rule(accepts, f"an instance of {kind.__name__}", frozenset(k for k in plain if accepts(k())))


def _remembering(protocol: type) -> Callable[[Any], bool]:
    """isinstance(x, protocol), cached per class that has the methods: before Python 3.12 a check takes 20 us."""
    known: WeakSet[type] = WeakSet()
    methods = [name for name, held in vars(protocol).items() if callable(held) and name not in vars(Protocol)]

    def allowed(x: Any) -> bool:
        if type(x) in known:
            return True
        found = isinstance(x, protocol)
        if found and all(hasattr(type(x), name) for name in methods):
            known.add(type(x))
        return found

    return allowed


def _attributes_rule(protocol: type) -> Rule | None:
    """Objects with a protocol's attributes, wherever they are defined; None for a protocol with methods alone.

    Since Python 3.12 `isinstance` of a runtime protocol ignores `__getattr__`, which is where modules keep their
    parameters.
    """
    names = [name for base in protocol.__mro__ for name in inspect.get_annotations(base)]
    if not names:
        return None
    return Rule(lambda x: all(hasattr(x, name) for name in names), f"an object with {' and '.join(names)}")


def _either(hint: Any) -> Rule | None:
    options = list(get_args(hint))
    named = [_DTYPE] if set(get_args(DTypeLike)) <= set(options) else []
    rest = [o for o in options if not named or o not in get_args(DTypeLike)]
    found = [*named, *(_rule(o) for o in rest)]
    if any(rule is None for rule in found):
        return None
    rules = [rule for rule in found if rule is not None]
    ways = [rule.accepts for rule in rules]

    def accepts(x: Any) -> bool:
        return any([way(x) for way in ways])  # noqa: C419 - a generator takes longer than what it may leave out

    text = " or ".join(dict.fromkeys(r.text for r in rules))
    return Rule(accepts, text, frozenset[type]().union(*(r.kinds for r in rules)))


def _series(inner: tuple[Any, ...]) -> Rule | None:
    """A homogeneous sequence, or a tuple with a rule per position; the length is not checked."""
    fixed = len(inner) > 1 and Ellipsis not in inner
    rules = [_rule(kind) for kind in (inner if fixed else inner[:1])]
    if not fixed and rules[0] is None:
        return None
    text = (
        f"a sequence of {_plural(rules[0])}" if len(set(inner)) == 1 or not fixed else f"{len(rules)} values"
    )

    kinds = rules[0].kinds if not fixed and rules[0] is not None else frozenset[type]()

    def accepts(x: Any) -> bool:
        if not isinstance(x, (tuple, list, range, np.ndarray)):
            return False
        if type(x) is not np.ndarray and kinds.issuperset(map(type, x)):
            return True
        pairs = zip(rules if fixed else rules * len(x), x, strict=False)
        return all(rule is None or rule.accepts(y) for rule, y in pairs)

    return Rule(accepts, text)


def _plural(rule: Rule | None) -> str:
    text = "" if rule is None else rule.text
    if text.startswith("an instance"):
        return text.replace("an instance", "instances")
    return {"an int": "ints", "a number": "numbers"}.get(text, f"({text})")
