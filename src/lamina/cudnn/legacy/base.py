"""What all objects of the imperative API share: ownership, settings read back, a readable repr, calls.

    with Pooling(mode="max", window=(3, 3), stride=(2, 2)) as pooling:
        pooling.get().window            # read from cuDNN
        pooling.forward(handle, x_desc=x_desc, x=x, y_desc=y_desc, y=y)

An object owns its C descriptor from birth. `close` lets go of it, and it is destroyed when no call uses it any
more, so that objects may be closed in any order, by any thread, or be left to the garbage collector.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from lamina.c import cudnn as c
from lamina.c._arguments import Pointer
from lamina.cudnn.handle import Handle as BaseHandle
from lamina.cudnn.legacy.flags import short
from lamina.runtime import Buffer

R = TypeVar("R")
Memory: TypeAlias = Buffer | Pointer
"""Device memory: a Buffer, an address, or an array of CuPy, PyTorch, JAX, Numba, … (taken as it lies)."""
AnyHandle: TypeAlias = BaseHandle | int | None
"""A Handle, or the address of a cudnnHandle_t that something else owns."""


class ClosedError(ValueError):
    """An object was used after its `close`; the text names its class."""


class Native:
    """A C descriptor, destroyed with its last owner. Address 0: there is none."""

    __slots__ = ("__weakref__", "_destroy", "address")

    def __init__(self, address: int, destroy: Callable[[int], Any]) -> None:
        self.address = address
        self._destroy = destroy

    @classmethod
    def create(cls, kind: str) -> Native:
        """By cudnnCreate`kind`, to be destroyed by cudnnDestroy`kind`; an empty kind gives address 0."""
        if not kind:
            return cls(0, int)
        create: Callable[[], int] = getattr(c, "cudnnCreate" + kind)
        return cls(create(), getattr(c, "cudnnDestroy" + kind))

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        address, self.address = self.address, 0
        if address and not _ending():  # at the end of the process the system frees what is left
            self._destroy(address)


class Owned:
    """What owns something of C's until `close`."""

    _native: Native | None

    @property
    def native(self) -> Native:
        """The owner of what C made: who holds it keeps that alive. Raises ClosedError."""
        native = self._native
        if native is None:
            raise ClosedError(f"this {type(self).__name__} was closed")
        return native

    @property
    def address(self) -> int:
        """What C made as an int, for `lamina.c.cudnn` (0 where C has none). Raises ClosedError."""
        return self.native.address

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None


class Descriptor(Owned):
    """Base class. Settings are fixed at construction; two objects are equal if they read back alike.

    Raises CudnnError (typed by status, with the library's reason) for what the library refuses, and
    ClosedError when used after `close`.
    """

    kind: ClassVar[str] = ""  # cudnnCreate..., cudnnDestroy...

    def __init__(self) -> None:
        self._native = Native.create(self.kind)

    @classmethod
    def empty(cls) -> Self:
        """An object whose C descriptor has no settings yet: for the library to fill in."""
        made = cls.__new__(cls)
        Descriptor.__init__(made)
        return made

    def close(self) -> None:
        """Let go of the C descriptor; it is destroyed when no call uses it any more. Idempotent."""
        self._native = None

    def get(self) -> Any:
        """The settings, read back from cuDNN, as a named tuple with the constructor's names."""
        raise NotImplementedError

    def _shown(self) -> dict[str, Any]:
        """What the repr shows: settings by the constructor's names."""
        return dict(self.get()._asdict())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(other) is not type(self):
            return NotImplemented
        return not self.closed and not other.closed and bool(self.get() == other.get())

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.get()))

    def __repr__(self) -> str:
        if self.closed:
            return f"{type(self).__name__}(closed)"
        try:
            shown = ", ".join(f"{name}={_show(value)}" for name, value in self._shown().items())
        except (RuntimeError, ValueError) as error:  # without settings, or unreadable: a repr never raises
            shown = f"unreadable: {error}"
        return f"{type(self).__name__}({shown})"


def _show(value: Any) -> str:
    return repr(short(value)) if isinstance(value, IntEnum) else repr(value)


# ---------------------------------------------------------------------------------------------------- calls
def call(function: Callable[..., R], *arguments: Any) -> R:
    """`function` with objects turned into addresses, which stay alive until it returns.

    A Handle (always the first or second argument in C) makes its device current during the call, or sends the
    call to its worker's thread.
    """
    held = [_held(argument) for argument in arguments]
    handle = next((one for one in arguments[:2] if isinstance(one, BaseHandle)), None)
    if handle is None:
        return _invoke(function, held)
    run: Callable[..., R] | None = getattr(handle, "run", None)
    if run is not None:
        return run(_invoke, function, held)
    with handle.device.current():
        return _invoke(function, held)


def _invoke(function: Callable[..., R], held: list[Any]) -> R:
    """The call itself; `held` lives until it is over, on whichever thread it runs."""
    return function(*[_value(one) for one in held])


def _held(argument: Any) -> Any:
    """What keeps an argument alive during a call, whoever closes it meanwhile."""
    if isinstance(argument, Descriptor):
        return argument.native
    if isinstance(argument, BaseHandle):
        return getattr(argument, "native", argument)
    return argument


def _value(held: Any) -> Any:
    if isinstance(held, (Native, BaseHandle)):
        return held.address
    return held.pointer if isinstance(held, Buffer) else held


# ---------------------------------------------------------------------------------------------- dims, pairs
def spread(name: str, value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number per spatial axis: a number is repeated, a sequence must have `rank` entries."""
    if isinstance(value, int):
        return (value,) * rank
    numbers = tuple(int(v) for v in value)
    if len(numbers) != rank:
        raise ValueError(f"{name}={numbers} has {len(numbers)} entries, there are {rank} spatial axes")
    return numbers


def spatial_rank(default: int, *values: int | Sequence[int]) -> int:
    """How many spatial axes the settings are for: the length of the first that is a sequence."""
    return next((len(value) for value in values if not isinstance(value, int)), default)
