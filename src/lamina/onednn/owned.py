"""Objects that own a handle of the C library: owned from birth, freed with the last user.

The handle is held by an `Owner`, which every object made from it holds as well. Closing an object drops its
reference; the C destructor runs when nobody holds the owner any more. So objects may be closed in any order, and
nothing is freed under a call in flight or under an object that still needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

from lamina.runtime.uncopied import Uncopied


class Owner(Uncopied):
    """One C handle, what it needs to stay alive, and how it is destroyed."""

    __slots__ = ("_destroy", "handle", "needs")

    def __init__(self, handle: int, destroy: Callable[[int], None], *needs: object) -> None:
        self.handle = handle
        self.needs = needs
        self._destroy = destroy

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not _ending():  # at interpreter shutdown the system frees what is left
            self._destroy(self.handle)


class Owned(Uncopied):
    """Base of the object layer: `handle`, `close()`, `closed`, use in a `with` block."""

    __slots__ = ("__weakref__", "_owner")
    _owner: Owner | None

    def __init__(self, handle: int, destroy: Callable[[int], None], *needs: object) -> None:
        self._owner = Owner(handle, destroy, *needs)

    @property
    def owner(self) -> Owner:
        """The object that keeps the handle alive. Raises ValueError once the object is closed."""
        if self._owner is None:
            raise ValueError(f"this oneDNN {type(self).__name__} is closed")
        return self._owner

    @property
    def handle(self) -> int:
        """The C handle. Raises ValueError once the object is closed."""
        return self.owner.handle

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._owner is None

    def close(self) -> None:
        """Give up the handle; it is destroyed when no other object needs it. Idempotent."""
        self._owner = None

    def _describe(self) -> str:
        """The text between the brackets of the repr."""
        return ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'closed' if self.closed else self._describe()})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
