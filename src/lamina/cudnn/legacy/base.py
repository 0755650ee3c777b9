"""Common base of the imperative API's objects: ownership, settings read back, a readable repr, calls.

    with Pooling(mode="max", window=(3, 3), stride=(2, 2)) as pooling:
        pooling.get().window            # read from cuDNN
        pooling.forward(handle, x_desc=x_desc, x=x, y_desc=y_desc, y=y)

An object owns its C descriptor from birth. `close` releases it, and it is destroyed when no call uses it any more, so
that objects may be closed in any order, by any thread, or be left to the garbage collector.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import wraps
from inspect import isfunction, signature
from numbers import Integral
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias, TypeVar

from lamina.c import cudnn as c
from lamina.c._arguments import Pointer
from lamina.c._arguments import short as short_text
from lamina.cudnn.descriptor import integers
from lamina.cudnn.handle import Handle as BaseHandle
from lamina.cudnn.legacy.flags import short
from lamina.runtime import Buffer
from lamina.runtime.uncopied import Uncopied

#: cuDNN's tensors have at most eight dimensions.
_MOST_SPATIAL = 6
R = TypeVar("R")
Memory: TypeAlias = Buffer | Pointer
"""Device memory: a Buffer, an address, or an array of CuPy, PyTorch, JAX, Numba, … (taken without a copy)."""
AnyHandle: TypeAlias = BaseHandle | int | None
"""A Handle, or `lamina.c.cudnn.cudnnHandle_t(address)` of one that something else owns."""


class ClosedError(ValueError):
    """An object was used after its `close`; the text names its class."""


class Native(Uncopied):
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
        if address and not _ending():  # at interpreter shutdown the system frees what is left
            self._destroy(address)


class Closable(Uncopied):
    """An owner of a C object until `close`."""

    _native: Native | None

    @property
    def native(self) -> Native:
        """The owner of the C object: holding it keeps that alive. Raises ClosedError."""
        native = self._native
        if native is None:
            raise ClosedError(f"this {type(self).__name__} was closed")
        return native

    @property
    def address(self) -> int:
        """The C object as an int, for `lamina.c.cudnn` (0 where C has none). Raises ClosedError."""
        return self.native.address

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native is None


#: The classes of objects that stand for C descriptors, by name.
KINDS: dict[str, type[Descriptor]] = {}


def checked(function: Callable[..., R]) -> Callable[..., R]:
    """`function` with type checks on the parameters that are annotated as objects of this API.

    Raises TypeError that names the parameter, before anything reads an attribute or calls the library.
    """
    places = {}
    for place, (name, parameter) in enumerate(signature(function).parameters.items()):
        kinds = [kind.strip() for kind in str(parameter.annotation).split("|")]
        if any(kind in KINDS or kind.endswith(("Descriptor", "State")) for kind in kinds):
            places[name] = place, kinds
    if not places:
        return function

    @wraps(function)
    def run(*arguments: Any, **named: Any) -> R:
        for name, (place, kinds) in places.items():
            if name in named:
                _check_kind(function, name, named[name], kinds)
            elif place < len(arguments):
                _check_kind(function, name, arguments[place], kinds)
        return function(*arguments, **named)

    return run


def _check_kind(function: Callable[..., Any], name: str, value: Any, kinds: Sequence[str]) -> None:
    """Raise TypeError unless the value is of one of these classes, or None where that is among them."""
    if any(base.__name__ in kinds for base in type(value).__mro__) or (value is None and "None" in kinds):
        return
    wanted = " or ".join(kinds)
    raise TypeError(f"{function.__qualname__}: {name} must be a {wanted}, got {short_text(value)}")


class Descriptor(Closable):
    """Base class. Settings are fixed at construction; two objects are equal if they read back alike.

    Raises CudnnError (typed by status, with the library's reason) for what the library refuses, and
    ClosedError when used after `close`.
    """

    kind: ClassVar[str] = ""  # cudnnCreate..., cudnnDestroy...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        KINDS[cls.__name__] = cls
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name != "__init__":
                continue
            if isfunction(member):
                setattr(cls, name, checked(member))
            elif isinstance(member, staticmethod | classmethod):
                setattr(cls, name, type(member)(checked(member.__func__)))

    def __init__(self) -> None:
        self._native = Native.create(self.kind)

    @classmethod
    def empty(cls) -> Self:
        """An object whose C descriptor has no settings yet: for the library to fill in."""
        made = cls.__new__(cls)
        Descriptor.__init__(made)
        return made

    def close(self) -> None:
        """Release the C descriptor; it is destroyed when no call uses it any more. Idempotent."""
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
    call to its worker's thread; work that the call queues begins after the stream's earlier work has ended.
    """
    held = [_held(argument) for argument in arguments]
    handle = next((one for one in arguments[:2] if isinstance(one, BaseHandle)), None)
    if handle is None:
        return _invoke(function, held)
    handle.wait_for_ends()
    run: Callable[..., R] | None = getattr(handle, "run", None)
    if run is not None:
        return run(_invoke, function, held)
    with handle.device.current():
        return _invoke(function, held)


def _invoke(function: Callable[..., R], held: list[Any]) -> R:
    """The call itself; `held` lives until it is over, on whichever thread it runs."""
    return function(*[_value(one) for one in held])


def _held(argument: Any) -> Any:
    """The object that keeps an argument alive during a call, even if it is closed meanwhile."""
    if isinstance(argument, Descriptor):
        return argument.native
    if isinstance(argument, BaseHandle):
        return getattr(argument, "native", argument)
    return argument


def _value(held: Any) -> Any:
    if isinstance(held, (Native, BaseHandle)):
        if not held.address:
            raise TypeError(
                "an object without a C descriptor (Softmax, BatchNorm, …) is no argument of a call"
            )
        return held.address
    return held.pointer if isinstance(held, Buffer) else held


# ---------------------------------------------------------------------------------------------- dims, pairs
def spread(name: str, value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number per spatial axis: a number is repeated, a sequence must have `rank` entries."""
    if isinstance(value, Integral):
        return (int(value),) * rank
    numbers = integers(name, value)
    if len(numbers) != rank:
        raise ValueError(f"{name}={numbers} has {len(numbers)} entries, there are {rank} spatial axes")
    return numbers


def spatial_rank(default: int, **values: int | Sequence[int]) -> int:
    """How many spatial axes the settings are for: the length of the first that is a sequence. Raises ValueError, and
    TypeError that names what is neither a whole number nor a sequence of them."""
    lengths = [len(integers(name, v)) for name, v in values.items() if not isinstance(v, Integral)]
    rank = lengths[0] if lengths else default
    if not isinstance(rank, int) or not 1 <= rank <= _MOST_SPATIAL:
        raise ValueError(f"spatial: there are 1 to {_MOST_SPATIAL} spatial axes, got {rank!r}")
    return rank
