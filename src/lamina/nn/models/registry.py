"""The registry of networks by name: constructors are registered with the paper and the images that they are for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, TypeVar

from lamina.nn.module import Module

M = TypeVar("M", bound=Callable[..., Module])


@dataclass(frozen=True)
class Builder:
    """A network constructor, and its metadata.

    Args:
        make: the function or class. It takes num_classes and in_channels if these are configurable, and image_size if
            images must have a known size.
        paper: the network's source.
        task: its application.
        size: pixels on a side of the images in its publication.
        channels, classes: the defaults.
        fixed_channels: whether images must have exactly this number of channels, if it has no in_channels.
        command: its name in commands.
        plain: arguments for a single output, logits, also in training.
        rates: the highest learning rate for training, by optimizer.
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
        """The name of the function or class."""
        return self.make.__name__

    def __call__(self, channels: int, classes: int, size: int | None = None) -> Module:
        """The network with one output, for images with these channels, and of this size if it must be known.

        Raises ValueError for an unsupported number of channels.
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
    """A decorator that registers network functions and classes in `builders`.

    command: the name in commands; by default its own name in lower case, with hyphens. known: further fields of
    `Builder`.
    """

    def register(make: M) -> M:
        name = make.__name__
        called = command or name.lower().replace("_", "-")
        _builders[name] = Builder(make, paper, command=called, **known)
        return make

    return register


def builders() -> dict[str, Builder]:
    """All networks by the names of their constructors, in alphabetical order."""
    return dict(sorted(_builders.items()))


def list_models() -> list[str]:
    """The names known to `get_model`."""
    return list(builders())


def get_model(name: str, **options: Any) -> Module:
    """A network by name, with its constructor's arguments. Raises ValueError for an unknown name."""
    if name not in _builders:
        near = get_close_matches(name, builders(), 3)
        hint = f"the nearest: {', '.join(near)}; " if near else ""
        raise ValueError(f"get_model: no network is called {name!r}; {hint}known: {', '.join(builders())}")
    return _builders[name].make(**options)
