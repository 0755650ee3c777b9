"""Every default of the public interface: of functions, constructors, methods, fields of ops and constants of classes;
and the metadata of each named network.

    python -m tests.helpers.signatures write      after a default was changed on purpose: the difference is reviewed

The interface consists of the names in `__all__`, the ops (a saved graph holds their fields) and the members that
their classes inherit from the package. A changed default changes the results of programs that rely on it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import lamina
from lamina.nn.models.registry import builders
from lamina.ops import core

TABLE = Path(__file__).with_name("signatures.json")
#: Generated from C headers, selected by name, programs, or dependent on packages that may be missing.
ELSEWHERE = (
    "lamina.c.", "lamina.backends.", "lamina.cli", "lamina.__main__", "lamina.convert.torch",
    "lamina.data.codec_cuda",
)  # fmt: skip
PLAIN = (bool, int, float, str, type(None))


def modules() -> Iterator[Any]:
    """The modules with a list of public names."""
    for found in [lamina.__name__, *(m.name for m in pkgutil.walk_packages(lamina.__path__, "lamina."))]:
        if not found.startswith(ELSEWHERE) and found != "lamina.convert":  # lists names that need PyTorch
            module = importlib.import_module(found)
            if "__all__" in vars(module):
                yield module


def public() -> Iterator[Any]:
    """Functions and classes: the listed ones, all ops, and the bases of each within the package."""
    listed = [vars(m).get(n) if n in vars(m) else getattr(m, n) for m in modules() for n in m.__all__]
    for value in [*listed, *_below(core.Op)]:
        if inspect.isclass(value):
            yield from (base for base in value.__mro__ if _is_ours(base))
        elif isinstance(inspect.unwrap(value) if callable(value) else value, FunctionType) and _is_ours(
            value
        ):
            yield value


def _below(base: type) -> list[type]:
    return [base, *(c for child in base.__subclasses__() for c in _below(child))]


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith("lamina.") and not value.__module__.startswith(
        ELSEWHERE
    )


@cache
def defaults() -> dict[str, dict[str, dict[str, str]]]:
    """By module and name: each default as text, for a class including those of its methods ("forward.mask")."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for value in public():
        held = dict(_of_class(value) if inspect.isclass(value) else _of_function(value))
        if held:
            found.setdefault(value.__module__, {})[value.__qualname__] = held
    for name, builder in builders().items():
        known = {"task", "size", "channels", "classes", "command", "plain", "rates"}
        found.setdefault("lamina.nn.models", {})[name] = {
            field: repr(getattr(builder, field)) for field in sorted(known)
        }
    return {module: dict(sorted(names.items())) for module, names in sorted(found.items())}


def _of_class(cls: type) -> Iterator[tuple[str, str]]:
    for name, value in sorted(vars(cls).items()):
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if isinstance(inspect.unwrap(function) if callable(function) else None, FunctionType):
            if name in ("__init__", "__call__") or not name.startswith("_"):
                mark = "" if name == "__init__" else f"{name}."
                yield from ((mark + argument, text) for argument, text in _of_function(function))
        elif not name.startswith("_") and _is_plain(value):
            yield f"{name}:", repr(value)


def _of_function(function: Any) -> Iterator[tuple[str, str]]:
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not parameter.empty:
            yield name, _text(parameter.default)


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple | frozenset) and all(map(_is_plain, value)))


def _text(value: Any) -> str:
    """Its source form; the name of its type if there is none."""
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    text = getattr(value, "__qualname__", None) or repr(value)
    return f"<{type(value).__name__}>" if " at 0x" in text else text


def main(argv: list[str]) -> int:
    """The command line."""
    if argv != ["write"]:
        print(__doc__)
        return 2
    TABLE.write_text(json.dumps(defaults(), indent=0) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
