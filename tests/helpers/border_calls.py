"""Accepted and refused arguments: each argument of a valid call is replaced by boundary values.

    python -m tests.helpers.border_calls write         after it was changed on purpose: the difference is reviewed
    python -m tests.helpers.border_calls show [NAME]   each call with its outcome, to compare two checkouts

Four kinds of calls: ops, with the fields and operands of their samples except one; saved ops, with one changed value
in their data; public functions, on small tensors; and constructors of layers, optimizers and data classes,
as in `bad_public_calls`. The outcome is the dtypes and shapes of the results, or the type of the error. A
row of the table is an op, a function or a class: how many calls are accepted and refused, and a digest of outcomes.
Error texts are not included.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina import ops
from lamina.graph.ir.serialize import decode_op, encode_op
from lamina.ops.core import REGISTRY, Op
from lamina.spec import DType, Spec, bfloat16, bool_, float32, int64
from tests.helpers import bad_public_calls
from tests.helpers.cuda_plans import digest

TABLE = Path(__file__).with_name("border_calls.json")
#: Function transformations and process-wide functions. Functions of files are left out by their annotations.
LEFT_OUT = {
    "checkpoint",
    "compile",
    "manual_seed",
    "policy",
    "predict",
    "trace",
    "use_deterministic_algorithms",
}


def _floats(*shape: int) -> Any:
    return np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _whole(*shape: int) -> Any:
    return (np.arange(int(np.prod(shape))) % 2).reshape(shape)


#: Arguments of valid calls, by the names used in the table.
POOL: dict[str, Callable[[], Any]] = {
    "f4": lambda: _floats(2, 4, 4, 4), "f3": lambda: _floats(2, 4, 6), "f2": lambda: _floats(3, 4),
    "f1": lambda: _floats(4), "f0": lambda: _floats(), "f5": lambda: _floats(1, 4, 4, 4, 4),
    "i1": lambda: _whole(4), "i2": lambda: _whole(3, 4), "b2": lambda: _whole(3, 4) > 0,
    "b4": lambda: _whole(2, 4, 4, 4) > 0, "square": lambda: _floats(4, 4), "wide": lambda: _floats(4, 3),
    "filter": lambda: _floats(4, 4, 2, 2), "1": lambda: 1, "2": lambda: 2, "0": lambda: 0, "half": lambda: 0.5,
    "pair": lambda: (1, 1), "ends": lambda: (0, 1), "list": lambda: [_floats(3, 4)] * 2, "dtype": lambda: "float32",
    "i3": lambda: _whole(2, 4, 6), "none": lambda: None, "labels": lambda: _whole(3), "sizes": lambda: (3, 4),
    "state": lambda: np.zeros(2, np.int64),
}  # fmt: skip
#: Replacements of an argument.
BORDERS: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: -5, lambda: -1, lambda: 0, lambda: 1, lambda: 2, lambda: 3, lambda: 4,
    lambda: -0.5, lambda: 0.5, lambda: 1.5, lambda: float("nan"), lambda: "mean", lambda: (), lambda: (1,),
    lambda: (2, 0), lambda: (0, 1, 2), lambda: (1, 1, 1, 1), lambda: _floats(), lambda: _floats(4),
    lambda: _floats(3, 5), lambda: _floats(1, 4), lambda: _floats(2, 4, 6), lambda: _floats(2, 4, 4, 4),
    lambda: _floats(0, 4), lambda: _whole(3, 4), lambda: _whole(3, 4) > 0, lambda: _floats(3, 4).astype(np.float64),
)  # fmt: skip


# ------------------------------------------------------------------------------------------------------ functions


@cache
def functions() -> dict[str, tuple[Callable[..., Any], tuple[inspect.Parameter, ...]]]:
    """Public functions of values, with their parameters."""
    found = {f"ops.{n}": getattr(ops, n) for n in ops.__all__ if n not in ops.ALIASES}
    found |= {f"lamina.{n}": getattr(lm, n) for n in lm.__all__ if n not in LEFT_OUT and n[0] not in "_"}
    known = {n: f for n, f in found.items() if inspect.isfunction(f)}
    parameters = {n: tuple(inspect.signature(f).parameters.values()) for n, f in known.items()}
    return {n: (f, parameters[n]) for n, f in known.items() if not of_files(parameters[n])}


def of_files(parameters: Sequence[inspect.Parameter]) -> bool:
    """Whether a call reads or writes a file."""
    return any("Path" in str(p.annotation) for p in parameters)


def required(parameters: Sequence[inspect.Parameter]) -> list[inspect.Parameter]:
    """The required parameters."""
    return [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]


def call(function: Callable[..., Any], parameters: Sequence[inspect.Parameter], given: dict[str, Any]) -> Any:
    """A call with arguments by name."""
    args, options = [], {}
    for p in parameters:
        if p.name in given and p.kind is p.VAR_POSITIONAL:
            args.append(given[p.name])
        elif p.name in given and (p.kind is p.KEYWORD_ONLY or p.default is not p.empty):
            options[p.name] = given[p.name]
        elif p.name in given:
            args.append(given[p.name])
    return function(*args, **options)


def outcome(made: Callable[[], Any]) -> str:
    """The outcome of a call."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return shown(made())
    except Exception as error:
        return type(error).__name__


def shown(value: Any) -> str:
    """Dtypes and shapes of a result."""
    if isinstance(value, tuple | list):
        return f"[{' '.join(map(shown, value))}]"
    spec = getattr(value, "spec", None)
    if isinstance(spec, Spec):
        return str(spec.open)
    return repr(value) if isinstance(value, bool | int | str | Spec | DType) else type(value).__name__


def working(name: str) -> list[str] | None:
    """Names in the pool that make a valid call: tried in a fixed order, the simplest first."""
    function, parameters = functions()[name]
    needed = required(parameters)
    tried = itertools.product(POOL, repeat=len(needed))
    if len(needed) > 2:
        rng = np.random.default_rng(len(name))
        tried = (tuple(rng.choice(list(POOL), len(needed))) for _ in range(3000))  # type: ignore[assignment]
    for chosen in tried:
        given = {p.name: POOL[n]() for p, n in zip(needed, chosen, strict=True)}
        if not outcome(partial(call, function, parameters, given)).endswith("Error"):
            return [str(n) for n in chosen]
    return None


def around(name: str, chosen: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each call with one argument replaced, and its outcome."""
    function, parameters = functions()[name]
    needed = required(parameters)
    for p in parameters:
        if p.kind is p.VAR_KEYWORD:
            continue
        for i, border in enumerate(BORDERS):
            given = {q.name: POOL[n]() for q, n in zip(needed, chosen, strict=True)} | {p.name: border()}
            yield f"{p.name} {i}", outcome(partial(call, function, parameters, given))


# ------------------------------------------------------------------------------------------------------------ ops


def neighbours(value: Any) -> list[Any]:
    """Values near that of a field."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [-2, -1, 0, 1, 2, value - 1, value + 1]
    if isinstance(value, float):
        return [-0.5, 0.0, 0.5, 1.0, 1.5, float("nan"), float("inf")]
    if isinstance(value, tuple) and value and all(isinstance(n, int) for n in value):
        return [
            (),
            value[:-1],
            (*value, 1),
            *((*value[:-1], n) for n in (-1, 0, value[-1] + 1, value[-1] - 1)),
        ]
    return [None] if isinstance(value, str) else []


def resized(spec: Spec) -> Iterator[Spec]:
    """Variants of an operand: other ranks, sizes and dtypes."""
    shape = spec.shape
    yield from (Spec((*shape, 1), spec.dtype), Spec((1, *shape), spec.dtype))
    for axis in range(len(shape)):
        yield Spec((*shape[:axis], *shape[axis + 1 :]), spec.dtype)
        for n in (0, 1, shape[axis] + 1):
            yield Spec((*shape[:axis], n, *shape[axis + 1 :]), spec.dtype)
    yield from (Spec(shape, dtype) for dtype in (float32, bfloat16, int64, bool_))


def around_op(op_class: type[Op]) -> Iterator[tuple[str, str]]:
    """Each sample with one field or operand changed, and the result of `infer`."""
    for n, sample in enumerate(itertools.islice(op_class.samples(), 8)):
        dtype = (sample.dtypes or op_class.dtypes)[0]
        specs = [Spec(a.shape, a.dtype or dtype) for a in sample.args]
        for field in dataclasses.fields(sample.op):
            for i, value in enumerate(neighbours(getattr(sample.op, field.name))):
                yield (
                    f"{n} {field.name} {i}",
                    outcome(partial(_inferred, sample.op, {field.name: value}, specs)),
                )
        for i, spec in enumerate(specs):
            for k, other in enumerate(resized(spec)):
                given = [*specs[:i], other, *specs[i + 1 :]]
                yield f"{n} operand {i} {k}", outcome(partial(_inferred, sample.op, {}, given))


def _inferred(op: Op, change: dict[str, Any], specs: Sequence[Spec]) -> Any:
    return dataclasses.replace(op, **change).infer(*specs)


# ----------------------------------------------------------------------------------------------------- saved ops

#: Replacements of a value in a saved op.
SAVED: tuple[Any, ...] = (
    None, True, -1, 1, 2.5, {"float": "0x1p+0"}, "x", [1, 2], [[1, 1], [1, 1]], {"dtype": "float32"},
    {"value": "int", "fields": {}}, {"value": "Window", "fields": {}}, {"op": "relu", "fields": {}}, {},
)  # fmt: skip


def around_saved(op_class: type[Op]) -> Iterator[tuple[str, str]]:
    """The data of a sample's op with one value replaced, at any depth, and the result of reading it."""
    for n, sample in enumerate(itertools.islice(op_class.samples(), 3)):
        whole = encode_op(sample.op)
        for place in places(whole):
            for i, value in enumerate(SAVED):
                yield (
                    f"{n} {place} {i}",
                    outcome(partial(_read, op_class.name, replaced(whole, place, value))),
                )


def _read(name: str, values: Any) -> str:
    return str(decode_op(name, values))


def places(data: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to each value in JSON data, including nested ones."""
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield (*above, key)
        yield from places(data[key], (*above, key))


def replaced(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The data with another value at a path."""
    if not place:
        return value
    made = dict(data) if isinstance(data, dict) else list(data)
    made[place[0]] = replaced(made[place[0]], place[1:], value)
    return made


# -------------------------------------------------------------------------------------------------------- classes

#: Areas of `bad_public_calls` with numeric constructor arguments.
AREAS = ("nn", "init", "utils", "optim", "data")
#: Valid constructor arguments come from `bad_public_calls.arguments`.
NUMBERS: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: 1, lambda: 2, lambda: 3, lambda: -0.5, lambda: 0.0,
    lambda: 0.5, lambda: 1.0, lambda: 1.5, lambda: float("nan"), lambda: "mean", lambda: (), lambda: (1, 1),
    lambda: (0.5, 1.0), lambda: (0.5, 0.5), lambda: (1, 1, 1),
)  # fmt: skip


@cache
def classes() -> dict[str, bad_public_calls.Target]:
    """Public classes and functions of layers, initializers, optimizers and data that a plausible call creates."""
    found = {t.name: t for t in bad_public_calls.targets() if t.area in AREAS and "()" not in t.name}
    found = {name: target for name, target in found.items() if not of_files(target.parameters)}
    return {
        name: target for name, target in found.items() if not outcome(partial(made, target)).endswith("Error")
    }


def made(target: bad_public_calls.Target, place: str = "", value: Any = None) -> Any:
    """The result of a call with one argument replaced; a layer is also called if its inputs are known."""
    args, options = bad_public_calls.arguments(target.parameters, target.area)
    names = [p.name for p in target.parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = {n: make() for n, make in bad_public_calls.NEEDED.get(target.name.split(".")[-1], {}).items()}
    given = dict(zip(names, args, strict=False)) | options | needed | ({place: value} if place else {})
    found = target.function()(**{n: v for n, v in given.items() if n in {p.name for p in target.parameters}})
    example = bad_public_calls.CALLED.get(type(found).__name__)
    return (type(found).__name__, found(*example())) if example and isinstance(found, lm.nn.Module) else found


def around_class(target: bad_public_calls.Target) -> Iterator[tuple[str, str]]:
    """Each call with one number replaced."""
    for p in target.parameters:
        if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in ("device", "dtype"):
            for i, value in enumerate(NUMBERS):
                yield f"{p.name} {i}", outcome(partial(made, target, p.name, value()))


# ---------------------------------------------------------------------------------------------------------- table


def row(outcomes: Iterator[tuple[str, str]]) -> str:
    """A summary of outcomes."""
    every = list(outcomes)
    refused = sum(text.endswith("Error") for _, text in every)
    return f"{len(every) - refused} taken, {refused} refused, {digest(every)}"


def owned() -> dict[str, type[Op]]:
    """The package's ops; those of conversion need PyTorch."""
    floors = ("lamina.ops.", "lamina.backends.")
    return {n: c for n, c in sorted(REGISTRY.items()) if c.__module__.startswith(floors)}


def outcomes(part: str, name: str, names: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Calls and their outcomes: of an op, a function (names: of the arguments of a valid call) or a class."""
    if part in ("ops", "saved"):
        return (around_op if part == "ops" else around_saved)(owned()[name])
    return around(name, names) if part == "functions" else around_class(classes()[name])


def table() -> dict[str, dict[str, Any]]:
    """All rows; functions without a valid call are left out."""
    known = json.loads(TABLE.read_text(encoding="utf-8"))["functions"] if TABLE.exists() else {}
    needed = {n: len(required(parameters)) for n, (_, parameters) in functions().items()}
    fits = {n: names for n, (names, _) in known.items() if len(names) == needed.get(n)}
    calls = {n: fits[n] if n in fits else working(n) for n in sorted(functions())}
    return {
        **{part: {n: row(outcomes(part, n)) for n in owned()} for part in ("ops", "saved")},
        "functions": {
            n: [names, row(outcomes("functions", n, names))] for n, names in calls.items() if names
        },
        "classes": {n: row(outcomes("classes", n)) for n in sorted(classes())},
    }


def main(argv: list[str]) -> int:
    """The command line."""
    if argv == ["write"]:
        TABLE.write_text(json.dumps(table(), indent=0) + "\n", encoding="utf-8")
        return 0
    if argv[:1] != ["show"]:
        print(__doc__)
        return 2
    for part, rows in json.loads(TABLE.read_text(encoding="utf-8")).items():
        for name in [n for n in rows if n in argv[1:] or not argv[1:]]:
            for what, text in outcomes(part, name, *([rows[name][0]] if part == "functions" else [])):
                print(f"{name}: {what}: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
