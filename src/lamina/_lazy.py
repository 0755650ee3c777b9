"""Public names whose module is imported when they are first used.

`import lamina` must stay cheap, and some names need a large library (scikit-learn, rich). A package says

    __getattr__ = lazy(__name__, {"digits": "lamina.data.scikit"})

and `lamina.data.digits` is there at first use; `dir` and completion show it, and nothing but public names, by

    __dir__ = listing(__all__)

This is the one place beside `backends.get` that imports by
name.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import PathFinder
from typing import Any


def lazy(
    package: str, names: Mapping[str, str], *, instead: Mapping[str, str] | None = None, elsewhere: str = ""
) -> Callable[[str], Any]:
    """A module-level `__getattr__` for `package`: each name is taken from the module that `names` gives, or is that
    module; "module:other" is what it calls other.

    instead: what to write for names that are looked for here. elsewhere: the package whose public names are, too.
    """

    def getattr_(name: str) -> Any:
        if name not in names:
            hint = (instead or {}).get(name, "")
            if elsewhere and not name.startswith("_") and not _is_module(package, name):
                hint = (
                    f"it is {elsewhere}.{name}"
                    if name in importlib.import_module(elsewhere).__all__
                    else hint
                )
            text = f"module {package!r} has no attribute {name!r}" + (hint and f"; {hint}")
            raise AttributeError(
                text, name=name, obj=sys.modules[package]
            )  # so that a traceback finds what is meant
        place, _, other = names[name].partition(":")
        module = importlib.import_module(place)
        value = module if place == f"{package}.{name}" else getattr(module, other or name)
        setattr(sys.modules[package], name, value)
        return value

    return getattr_


def _is_module(package: str, name: str) -> bool:
    """Whether it can be imported: `from package import module` asks for an attribute first."""
    places = getattr(sys.modules[package], "__path__", ())
    return PathFinder.find_spec(f"{package}.{name}", list(places)) is not None


def listing(names: Iterable[str]) -> Callable[[], list[str]]:
    """A module-level `__dir__`: the public names."""
    return lambda: sorted(names)
