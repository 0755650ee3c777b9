"""The option `inplace=True` of activations and dropouts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from lamina.ops.arguments import refusal
from lamina.ops.core import Operand

F = TypeVar("F", bound=Callable[..., Any])


def with_inplace(function: F) -> F:
    """Wrap an elementwise function of `input` so that `inplace=True` writes its result over input, too, and returns
    input, as torch's functions do. Arrays stay as they are, and so do the arguments of compiled functions for their
    callers. Raises TypeError for an `inplace` that is not a bool.
    """
    place = [*inspect.signature(function).parameters].index("inplace")

    @wraps(function)
    def door(*args: Any, **options: Any) -> Any:
        made = function(*args, **options)
        asked = args[place] if len(args) > place else options.get("inplace", False)
        if asked is False or isinstance(made, tuple):
            return made
        if not isinstance(asked, bool):
            raise refusal(function.__name__, "inplace", asked, "a bool")
        return written_over(args[0] if args else options["input"], made, function.__name__)

    return cast(F, door)


def written_over(input: Any, made: Any, name: str) -> Any:
    """made, the result of the function of that name, written over its input, which is returned; made for an array.

    Raises ShapeError for another shape, TypeError if fractions would be lost, ValueError for a read-only tensor.
    """
    if made is input or not isinstance(input, Operand):
        return made
    return input._overwrite(name, made)  # type: ignore[attr-defined]
