"""A cached property without a lock.

Before Python 3.12 `functools.cached_property` takes a lock at every first access, which costs more than most values
do: a program asks for thousands. Two threads at once may both compute the value; both get the one that is kept, which
later versions do not promise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property:  # noqa: N801 - as Python calls it
        """A value computed at first access and kept in the object's `__dict__`."""

        def __init__(self, make):
            self.make, self.name, self.__doc__ = make, make.__name__, make.__doc__

        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            return instance.__dict__.setdefault(self.name, self.make(instance))
