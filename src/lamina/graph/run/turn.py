"""Serialization of state updates: executables that update the same tensors run one call after another, across
threads."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable
from functools import partial
from types import TracebackType

from lamina.runtime import renew_after_fork
from lamina.tensors import Tensor


class Turn:
    """A lock that some tensors share, because one executable updates all of them."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self.lock = threading.RLock()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self.lock = threading.RLock()


class Turns:
    """The locks of some tensors, taken together and always in the same order, so that no deadlock is possible.
    Re-entrant."""

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        self._turns = sorted(turns, key=lambda t: t.number)

    def __enter__(self) -> None:
        for turn in self._turns:
            turn.lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for turn in reversed(self._turns):
            turn.lock.release()


#: By a tensor's id: the tensor, while it lives, and its turn.
_turn_of: dict[int, tuple[weakref.ref[Tensor], Turn]] = {}
_changing = threading.Lock()


def turns_of(tensors: Iterable[Tensor], updated: Iterable[Tensor] = ()) -> Turns:
    """The turns of tensors that some executable updates.

    updated: those that the caller's executable updates: from now on they have turns, a common one for all that had
        none.
    """
    mine = Turn()
    with _changing:
        for x in updated:
            if _known(x) is None:
                _turn_of[id(x)] = weakref.ref(x, partial(_forget, id(x))), mine
        found = (_known(x) for x in tensors)
        return Turns({turn.number: turn for turn in found if turn is not None}.values())


def _forget(key: int, gone: object) -> None:
    _turn_of.pop(key, None)


def _known(x: Tensor) -> Turn | None:
    entry = _turn_of.get(id(x))
    return entry[1] if entry is not None and entry[0]() is x else None
