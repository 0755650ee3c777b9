"""Transforms made of other transforms: one after another, sometimes, one of several, in a random order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lamina.data.transforms.base import Rng, Transform, probability
from lamina.ops.arguments import Checked


class Compose(Checked):
    """Transforms applied one after another.

    transforms: functions (image, rng) -> image. Raises TypeError for anything else.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = _functions("Compose", transforms)

    def __call__(self, image: Any, rng: Rng) -> Any:
        """All of them."""
        return _all_of(self.transforms, image, rng)

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"


class RandomApply(Transform):
    """Transforms that are applied with probability p: all of them, one after another, or none.

    transforms: functions (image, rng) -> image, or a single one. Raises TypeError for anything else and ValueError
    for p outside of [0, 1].
    """

    def __init__(self, transforms: Any, p: float = 0.5) -> None:
        given = transforms if isinstance(transforms, Sequence) else [transforms]
        self.transforms, self.p = _functions("RandomApply", given), probability("RandomApply", p)

    def __call__(self, image: Any, rng: Rng) -> Any:
        """Apply them with probability p."""
        return _all_of(self.transforms, image, rng) if rng.random() < self.p else image


class RandomChoice(Transform):
    """One of several transforms, drawn anew for each image.

    transforms: at least one function (image, rng) -> image. p: their weights, which need not sum to one; None for
    equal ones. Raises TypeError for what is no function, and ValueError for no transforms and for weights that do not
    fit.
    """

    def __init__(self, transforms: Sequence[Any], p: Sequence[float] | None = None) -> None:
        self.transforms = _some("RandomChoice", transforms)
        weights = [1.0] * len(transforms) if p is None else [float(x) for x in p]
        if len(weights) != len(transforms):
            raise ValueError(f"RandomChoice: {len(weights)} weights in p for {len(transforms)} transforms")
        if not (min(weights) >= 0 and 0 < sum(weights) < np.inf):
            raise ValueError(f"RandomChoice: p must be weights of at least 0, and not all 0, got {p!r}")
        self.p = [weight / sum(weights) for weight in weights]

    def __call__(self, image: Any, rng: Rng) -> Any:
        """The image after the transform that was drawn."""
        return self.transforms[int(rng.choice(len(self.p), p=self.p))](image, rng)


class RandomOrder(Transform):
    """All of several transforms, in an order drawn anew for each image.

    transforms: at least one function (image, rng) -> image. Raises TypeError for what is no function, and ValueError
    for no transforms.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = _some("RandomOrder", transforms)

    def __call__(self, image: Any, rng: Rng) -> Any:
        """The image after all of them."""
        return _all_of([self.transforms[i] for i in rng.permutation(len(self.transforms))], image, rng)


class Lambda(Transform):
    """A function of the image alone, which draws nothing: `Lambda(np.stack)` makes one array of `FiveCrop`'s crops.

    lambd: any function; what it returns goes to the next transform as it is. For worker processes it must be one that
    can be pickled: of a module, not a lambda. Raises TypeError for what cannot be called.
    """

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        self.lambd = lambd

    def __call__(self, image: Any, rng: Rng) -> Any:
        """What the function returns."""
        return self.lambd(image)


def _all_of(transforms: Sequence[Any], image: Any, rng: Rng) -> Any:
    for transform in transforms:
        image = transform(image, rng)
    return image


def _functions(name: str, transforms: Sequence[Any]) -> list[Any]:
    wrong = [t for t in transforms if isinstance(t, type) or not callable(t)]
    if wrong:
        raise TypeError(f"{name}: transforms must be functions (image, rng) -> image, got {wrong[0]!r}")
    return list(transforms)


def _some(name: str, transforms: Sequence[Any]) -> list[Any]:
    if not transforms:
        raise ValueError(f"{name}: transforms must be at least one function, got none")
    return _functions(name, transforms)
