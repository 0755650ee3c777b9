"""Random calls with invalid arguments: python -m tests.helpers.bad_calls MODULE SEED COUNT

Each call is printed before it is made, so that the last line names the call that ended the process; then one JSON
line counts the outcomes by kind. Memory addresses are never invented: the caller is responsible for those.
"""

from __future__ import annotations

import importlib
import inspect
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lamina.c._arguments import Opaque
from lamina.c._library import LibraryError
from lamina.spec import DTypeError, ShapeError
from tests.helpers.legacy.lifetime import LEGACY

Call = tuple[str, Callable[[], Any], list[Any]]
#: Permitted errors for invalid arguments. CudnnError and DnnlError are RuntimeError, ValueError or MemoryError.
ALLOWED = (
    TypeError,
    ValueError,
    OverflowError,
    RuntimeError,
    MemoryError,
    LibraryError,
    DTypeError,
    ShapeError,
)
WRONG: tuple[Any, ...] = (
    None, 0, -1, 7, 2**31, 2**63, 2**70, 1.5, float("nan"), float("inf"), True, "abc", "", b"abc", (), (1, 2), [0],
    [2**40] * 3, {}, {"a": 1}, object(), int, len, range(3), 1j, slice(None), Ellipsis,
)  # fmt: skip
#: Values for memory arguments: no numbers.
MEMORY = tuple(x for x in WRONG if not isinstance(x, int) and x != b"abc")
#: Functions that end processes, wait, or change process-wide settings.
LEFT_OUT = ("SetCallback", "set_jit", "set_max_cpu_isa", "set_verbose", "set_default")


def functions(module: Any) -> list[Callable[..., Any]]:
    """The public functions of a module that a call with invalid arguments cannot harm."""
    found = [f for f in vars(module).values() if inspect.isfunction(f) and f.__module__ == module.__name__]
    return [f for f in found if not f.__name__.startswith("_") and not any(n in f.__name__ for n in LEFT_OUT)]


def opaque(module: Any) -> list[Opaque]:
    """One descriptor of each kind that can be made without a device."""
    made = []
    for name, function in vars(module).items():
        plain = name.startswith("cudnnCreate") and name.endswith("Descriptor")
        if plain and not inspect.signature(function).parameters:
            made.append(function())
    return made


def arguments(function: Callable[..., Any], rng: random.Random, objects: list[Opaque]) -> list[Any]:
    """Invalid arguments, with descriptors of any kind among them."""
    chosen = []
    for parameter in inspect.signature(function).parameters.values():
        note = str(parameter.annotation)
        if "Pointer" in note or note in ("Any", "Integers", "Scaling") or "Callable" in note:
            chosen.append(rng.choice(MEMORY))
        elif objects and rng.random() < 0.5:
            chosen.append(rng.choice(objects))
        else:
            chosen.append(rng.choice(WRONG))
    return chosen


def bad_function_calls(module: Any, rng: random.Random, count: int) -> Iterator[Call]:
    """Calls of the functions of a C library's module."""
    objects, known = opaque(module), functions(module)
    for _ in range(count):
        function = rng.choice(known)
        given = arguments(function, rng, objects)
        if "destroy" in function.__name__.lower():
            given = [x for x in given if not isinstance(x, Opaque)] or [7]
        yield function.__name__, partial(function, *given), given


def bad_object_calls(rng: random.Random, count: int) -> Iterator[Call]:
    """Constructors and methods of the imperative API's objects, with other such objects among the arguments."""
    objects = {name: make() for name, make in LEGACY.items()}
    values = [*objects.values(), *WRONG]
    for _ in range(count):
        name, one = rng.choice(list(objects.items()))
        public = [
            n for n in dir(type(one)) if callable(getattr(type(one), n)) and n != "close" and n[0] != "_"
        ]
        made: Callable[..., Any] = type(one) if rng.random() < 0.4 else getattr(one, rng.choice(public))
        parameters = [
            p for p in inspect.signature(made).parameters.values() if not p.kind.name.startswith("VAR")
        ]
        given = {p.name: rng.choice(MEMORY if "Memory" in str(p.annotation) else values) for p in parameters}
        places = [given.pop(p.name) for p in parameters if p.kind is p.POSITIONAL_ONLY]
        yield f"{name}: {made.__name__}", partial(made, *places, **given), [*places, given]


def main(name: str, seed: int, count: int) -> None:
    """Make the calls."""
    rng = random.Random(seed)
    legacy = name == "lamina.cudnn.legacy"
    calls = (
        bad_object_calls(rng, count)
        if legacy
        else bad_function_calls(importlib.import_module(name), rng, count)
    )
    answers: Counter[str] = Counter()
    for what, call, given in calls:
        print(f"{what} {given!r}", flush=True)
        try:
            call()
            answers["taken"] += 1
        except ALLOWED as error:
            answers[type(error).__name__] += 1
        except Exception as error:
            answers[f"WRONG {type(error).__name__} from {what}: {error}"[:200]] += 1
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
