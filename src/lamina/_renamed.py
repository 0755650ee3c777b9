"""Renamed keywords: a call with the old name fails, and the error gives the new one.

@renamed(batch="batch_size")
def digits(batch_size: int = 128) -> Batches: ...

digits(batch=3)   # TypeError: digits() got an unexpected keyword argument 'batch'; it is 'batch_size' now
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator of functions and of `__init__`; names: old keyword -> new keyword."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        title = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in names.keys() & kwargs.keys():
                raise TypeError(
                    f"{title}() got an unexpected keyword argument {old!r}; it is {names[old]!r} now"
                )
            return function(*args, **kwargs)

        return call

    return decorate
