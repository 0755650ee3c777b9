"""Public names whose module is imported when they are first used.

`import lamina` must stay cheap, and some names need a large library (scikit-learn, rich). A package says

    __getattr__ = lazy(__name__, {"digits": "lamina.data.scikit"})

and `lamina.data.digits` is imported at first use. `dir` and completion show exactly the public names, by

    __dir__ = listing(__all__)

Besides `backends.get` this is the only place that imports by name.
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
    """A module-level `__getattr__` for `package`: each name is looked up in the module given by `names`, or is that
    module itself; "module:other" looks it up there as `other`.

    instead: hints in the error for names that users look for here. elsewhere: a package whose public names the error
    refers to.
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
            )  # so that a traceback shows the right line
        place, _, other = names[name].partition(":")
        module = importlib.import_module(place)
        value = module if place == f"{package}.{name}" else getattr(module, other or name)
        setattr(sys.modules[package], name, value)
        return value

    return getattr_


def _is_module(package: str, name: str) -> bool:
    """Whether the module can be imported: `from package import module` asks for an attribute first."""
    places = getattr(sys.modules[package], "__path__", ())
    return PathFinder.find_spec(f"{package}.{name}", list(places)) is not None


def listing(names: Iterable[str]) -> Callable[[], list[str]]:
    """A module-level `__dir__` of the public names."""
    return lambda: sorted(names)
