"""Random generators as ops see them: a state that is read, and written after drawing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

from lamina._lazy import lazy
from lamina.ops.core import Operand, bind
from lamina.ops.primitives.marker import DrawnFor

_samples: ContextVar[bool] = ContextVar("lamina_sample_by_sample", default=False)


class GeneratorLike(Protocol):
    """The interface of `lamina.nn.Generator` that ops use."""

    @property
    def state(self) -> Any:
        """int64 (seed, counter)."""


class Generators(NamedTuple):
    """How a generator's state is read and written. Set by `lamina.nn.random`, which owns the default generator."""

    #: (generator or None, the operand or device that determines the placement) -> its state, int64[2].
    read: Callable[[Any, Any], Any]
    #: (generator or None, the next state).
    write: Callable[[Any, Any], None]


_generators: list[Generators] = []
_package = lazy("lamina", {"nn": "lamina.nn"})


def register_generators(generators: Generators) -> None:
    """Set the functions that read and write generators."""
    _generators[:] = [generators]


@contextmanager
def sample_by_sample() -> Iterator[None]:
    """Within it the op that random numbers are drawn for is recorded (see `drawn_for`)."""
    token = _samples.set(True)
    try:
        yield
    finally:
        _samples.reset(token)


def drawn_for(state: Any, x: Any) -> Any:
    """A state from which `vmap` draws numbers per sample if x belongs to a sample (a device never does)."""
    return bind(DrawnFor(), state, x)[0] if _samples.get() and isinstance(x, Operand) else state


def drawn(make: Callable[[Any], Sequence[Any]], generator: Any, beside: Any = None) -> Any:
    """The first result of make(state); the last one becomes the generator's next state."""
    if not _generators:
        _package("nn")  # registers its own
    (held,) = _generators
    found, *_, after = make(drawn_for(held.read(generator, beside), beside))
    held.write(generator, after)
    return found
