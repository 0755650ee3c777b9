"""Random numbers: streams for initialization, and the generator state that dropout draws from.

Both are counter-based (Philox; Salmon et al. 2011), so that a seed gives the same network and the same masks on every
device and in every run. The default seed is 0: a program without `manual_seed` is also reproducible.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from lamina.nn.parameter import read, traces, write
from lamina.ops.core import recorder
from lamina.ops.primitives.generator import Generators, register_generators
from lamina.runtime import Device
from lamina.tensors import Tensor, tensor


class Generator:
    """The state of a random generator as a tensor: int64 (seed, counter).

    A state is a value: an op reads it and returns the next one. In a compiled training step it is an input that is
    updated in place, so that each step draws new masks.
    """

    def __init__(self, seed: int = 0, *, device: Device | str | None = None) -> None:
        self.state: Tensor = tensor(np.zeros(2, np.int64), device=device)
        self.manual_seed(seed)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """For pickle and copies: the generator seeded by `manual_seed` is unique in the process."""
        return "default_generator" if self is default_generator else super().__reduce_ex__(protocol)

    def manual_seed(self, seed: int) -> Generator:
        """Restart from a seed: any integer that fits into 63 bits. Raises ValueError for others."""
        self.state.copy_(np.array([_checked(seed), 0], np.int64))
        return self

    @property
    def seed(self) -> int:
        """The seed."""
        return int(self.state.numpy()[0])

    def initial_seed(self) -> int:
        """The seed, as torch calls it."""
        return self.seed

    def get_state(self) -> Tensor:
        """A copy of the state, int64 (seed, counter), from which `set_state` resumes."""
        copied: Tensor = self.state.clone()
        return copied

    def set_state(self, new_state: Any) -> Generator:
        """Resume from the result of `get_state`. Raises ValueError for anything else."""
        given = np.asarray(new_state)
        if given.shape != (2,) or given.dtype != np.int64:
            raise ValueError(
                f"set_state: new_state must be what get_state gave, int64 (seed, counter), got {given.dtype} "
                f"{given.shape}"
            )
        self.state.copy_(given)
        return self

    @property
    def counter(self) -> int:
        """The position of the generator in its sequence."""
        return int(self.state.numpy()[1])

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, counter={self.counter})"


class UnknownGenerator(TypeError):
    """Random numbers are drawn in a trace that knows nothing of their generator."""

    def __init__(self, generator: Generator) -> None:
        super().__init__(
            "random numbers are drawn from a generator that takes no part in this trace, so that every call would "
            "get the same: use lamina.jit, a Predictor or a step"
        )
        self.generator = generator


#: Numbers per part of a stream: a few milliseconds of work.
PART = 1 << 18


class Streams:
    """Independent NumPy generators, in order: number i depends only on the seed and on i."""

    def __init__(self, seed: int = 0) -> None:
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> None:
        """Restart with the first stream of a seed."""
        self.seed = _checked(seed)
        self._numbers: Iterator[int] = itertools.count()

    def next(self) -> np.random.Generator:
        """The next stream."""
        return self.parts(1)[0]

    def parts(self, count: int) -> list[np.random.Generator]:
        """The next stream as a number of parts of PART numbers, drawable in any order, or by several threads.

        The first one equals the result of `next`: the highest of the counter's four words is the part's number.
        """
        key = np.array([self.seed, next(self._numbers)], np.uint64)
        words = (np.array([0, 0, 0, i], np.uint64) for i in range(count))
        return [np.random.Generator(np.random.Philox(key=key, counter=w)) for w in words]


def _checked(seed: int) -> int:
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool):
        raise TypeError(f"manual_seed: seed must be an int, got {seed!r}")
    if not 0 <= int(seed) < 2**63:
        raise ValueError(f"seed must be at least 0 and below 2^63, got {seed}")
    return int(seed)


#: The generator of dropout layers unless they are given their own.
default_generator = Generator()
#: The source of initial values: each parameter takes the next stream.
streams = Streams()


def _state(generator: Generator | None, beside: Any) -> Any:
    """The state of a generator, on the given device or that of a tensor; in a recorded program, unmoved: the program
    moves it to where it runs."""
    state, by = read(_chosen(generator).state), recorder()
    if by is not None:
        return state if beside is None else by.placed(state, beside)
    if not isinstance(state, Tensor):
        return state
    if traces() or getattr(beside, "records", False):
        raise UnknownGenerator(_chosen(generator))
    if beside is None:
        return state
    return state.to(beside.device if isinstance(beside, Tensor) else beside)


def _move_on(generator: Generator | None, after: Any) -> None:
    write(_chosen(generator).state, after)


def _chosen(generator: Generator | None) -> Generator:
    if generator is not None and not isinstance(generator, Generator):
        raise TypeError(f"generator must be an nn.Generator or None, got {generator!r}")
    return generator or default_generator


register_generators(Generators(_state, _move_on))


def manual_seed(seed: int) -> None:
    """Seed everything: initialization of layers constructed from now on, and dropout."""
    streams.manual_seed(seed)
    default_generator.manual_seed(seed)


def initial_seed() -> int:
    """The seed last set by `manual_seed`, by default 0."""
    return default_generator.seed


def get_rng_state() -> Tensor:
    """The state of the generator used by random ops and dropout, int64 (seed, counter), as torch's."""
    return default_generator.get_state()


def set_rng_state(new_state: Any) -> None:
    """Let random ops and dropout resume from the result of `get_rng_state`. Raises ValueError for anything else."""
    default_generator.set_state(new_state)
