"""How networks are found by name: what makes one says so, with the paper and the images that it is for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lamina.nn.module import Module

M = TypeVar("M", bound=Callable[..., Module])


@dataclass(frozen=True)
class Builder:
    """What makes a network, and what is known of it.

    Args:
        make: the function or class. It takes num_classes where there may be any number, in_channels where images may
            have any, and image_size where they must have one that is known.
        paper: where the network comes from.
        task: what it is for.
        size: pixels on a side of the images that it is published for.
        channels, classes: how many it has by default.
        fixed_channels: whether it takes images of so many channels alone, where it has no in_channels.
        command: its name in commands.
        plain: arguments with which it gives one output, logits, in training too.
        rates: the highest learning rate to train it with, by optimizer.
    """

    make: Callable[..., Module]
    paper: str
    task: str = "classification"
    size: int = 224
    channels: int = 3
    classes: int = 1000
    fixed_channels: bool = True
    command: str = ""
    plain: Mapping[str, Any] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=lambda: {"sgd": 0.02, "adam": 2e-4})

    @property
    def name(self) -> str:
        """What the function or class is called."""
        return self.make.__name__

    def __call__(self, channels: int, classes: int, size: int | None = None) -> Module:
        """The network with one output, for images of so many channels, and of this size where it must be known.

        Raises ValueError for channels that it does not take.
        """
        asked = {"num_classes": classes, "in_channels": channels, "image_size": size or self.size}
        taken = inspect.signature(self.make).parameters
        if self.fixed_channels and "in_channels" not in taken and channels != self.channels:
            raise ValueError(
                f"{self.command} takes images of {self.channels} channels, the data has {channels}"
            )
        return self.make(**self.plain, **{name: value for name, value in asked.items() if name in taken})


_builders: dict[str, Builder] = {}


def network(paper: str, *, command: str | None = None, **known: Any) -> Callable[[M], M]:
    """A decorator of functions and classes that make networks: `builders` holds them from then on.

    command: what commands call it; by default its own name in small letters, with hyphens.
    known: further fields of `Builder`.
    """

    def register(make: M) -> M:
        name = make.__name__
        called = command or name.lower().replace("_", "-")
        _builders[name] = Builder(make, paper, command=called, **known)
        return make

    return register


def builders() -> dict[str, Builder]:
    """All networks by the names of what makes them, in alphabetical order."""
    return dict(sorted(_builders.items()))


def list_models() -> list[str]:
    """The names that `get_model` knows."""
    return list(builders())


def get_model(name: str, **options: Any) -> Module:
    """A network by name, with the arguments of what makes it. Raises ValueError for an unknown name."""
    if name not in _builders:
        raise ValueError(f"get_model: no network is called {name!r}; known: {', '.join(builders())}")
    return _builders[name].make(**options)
