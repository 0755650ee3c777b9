"""Objects among a network's arguments and results that hold tensors in attributes: key-value caches, batches of a
class, distributions. They are containers of their attributes, as dataclass objects are.
"""

from __future__ import annotations

from enum import Enum
from types import ModuleType
from typing import Any

import numpy as np
import torch

from lamina._tree import Structure, flatten
from lamina.nn import Module
from lamina.ops.core import Operand

#: The maximum number of values in an object that is a container; a larger one is a value by itself.
LARGEST = 10_000
#: What is never a container of attributes, whatever its attributes are.
_WHOLE = (
    type, ModuleType, Enum, Operand, Module, np.ndarray,
    torch.Tensor, torch.nn.Module, torch.Generator, torch.SymInt, torch.SymFloat, torch.SymBool,
)  # fmt: skip
_CONTAINERS = (tuple, list, dict)


def is_container(x: Any) -> bool:
    """Whether an argument is a container of its attributes: an object of a class written in Python, not a function.

    Not one that holds itself (a tree's node with its parent), arrays of NumPy, or more than `LARGEST` values.
    """
    return _has_attributes(x) and _contents(x) is not None


def holds_tensors(x: Any) -> bool:
    """Whether a result is a container of its attributes: `is_container`, with a tensor among them.

    Other results are given as they are: a configuration stays the same object.
    """
    return _has_attributes(x) and any(isinstance(y, torch.Tensor | Operand) for y in _contents(x) or ())


def _has_attributes(x: Any) -> bool:
    return hasattr(x, "__dict__") and not isinstance(x, (*_WHOLE, *_CONTAINERS)) and not callable(x)


def _contents(x: Any) -> list[Any] | None:
    """The leaves in an object; None if it is none to be opened."""
    found: list[Any] = []
    return found if _collect(x, found, ()) else None


def _collect(x: Any, found: list[Any], around: tuple[int, ...]) -> bool:
    """Append the leaves in x, which is within the objects of the ids `around`, to found; False if it cannot be
    opened.
    """
    opened = _has_attributes(x)
    if not opened and not isinstance(x, _CONTAINERS):
        found.append(x)
        return len(found) <= LARGEST and not isinstance(x, np.ndarray)
    if id(x) in around:
        return False
    inside = vars(x).values() if opened else x.values() if isinstance(x, dict) else x
    return all(_collect(y, found, (*around, id(x))) for y in list(inside))


def objects(args: Any) -> list[Any]:
    """The outermost objects among arguments that are containers of their attributes, in order."""

    def is_object(x: Any) -> bool:
        return not isinstance(x, _CONTAINERS) and _has_attributes(x)

    return [x for x in flatten(args, is_object, open_dataclasses=True)[0] if is_container(x)]


class ObjectAttributes:
    """The attributes of arguments' objects before a run, to find out which objects the run changed.

    A cache that a network extends is changed by assignment (`layer.keys = torch.cat(…)`): its new attributes are
    results.
    """

    def __init__(self, args: Any) -> None:
        self._objects = objects(args)
        self._before = [_attributes(x) for x in self._objects]

    def changed(self) -> dict[int, dict[str, Any]]:
        """The present attributes of the objects that were changed, by their number among `objects`."""
        pairs = zip(self._objects, self._before, strict=True)
        return {i: dict(vars(x)) for i, (x, old) in enumerate(pairs) if not _same(_attributes(x), old)}


def assign(args: Any, changed: dict[int, dict[str, Any]]) -> None:
    """Give the caller's objects their new attributes."""
    if not changed:
        return
    held = objects(args)
    for number, new in changed.items():
        own = vars(held[number])
        for name in [n for n in own if n not in new]:
            del own[name]
        own.update(new)


def _attributes(x: Any) -> tuple[list[Any], Structure]:
    return flatten(dict(vars(x)), open_dataclasses=True, opens=is_container)


def _same(now: tuple[list[Any], Structure], before: tuple[list[Any], Structure]) -> bool:
    return now[1] == before[1] and all(_same_value(x, y) for x, y in zip(now[0], before[0], strict=True))


def _same_value(x: Any, y: Any) -> bool:
    return x is y or (isinstance(x, bool | int | float | str) and type(x) is type(y) and x == y)
