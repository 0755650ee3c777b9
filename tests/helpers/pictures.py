"""Images for tests of `data.transforms`, and what torchvision makes of them."""

from typing import Any

import numpy as np

IMAGE = np.random.default_rng(0).integers(0, 256, (10, 14, 3), np.uint8)
#: Odd sizes, one and three channels.
SHAPES = ((33, 47, 3), (47, 20, 1))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def picture(shape: tuple[int, ...], dtype: Any = np.uint8, seed: int = 0) -> Any:
    """A smooth image with some noise, levels from about 20 to 230."""
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    waves = [np.sin(rows / (5 + c)) + np.cos(columns / (7 - c)) for c in range(shape[2])]
    levels = 125 + 45 * np.stack(waves, 2) + rng(seed).uniform(-15, 15, shape)
    return levels.astype(np.uint8) if dtype == np.uint8 else levels.astype(dtype)


def functional() -> Any:
    """torchvision.transforms.v2.functional."""
    from tests.helpers import vision

    return vision.module("transforms.v2.functional")


def by_pillow(name: str, image: Any, *args: Any, **options: Any) -> Any:
    """What torchvision's function of this name makes of an image as Pillow's, or as one for each float32 channel."""
    from PIL import Image

    function = getattr(functional(), name)
    if image.dtype == np.uint8:
        given = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        found = np.asarray(function(given, *args, **options))
        return found.reshape(*found.shape[:2], image.shape[2])
    planes = [Image.fromarray(image[..., c]) for c in range(image.shape[2])]
    return np.stack([np.asarray(function(p, *args, **options)) for p in planes], 2)


def by_tensors(name: str, image: Any, *args: Any, **options: Any) -> Any:
    """What torchvision's function of this name makes of an image as a tensor (C, H, W): float32 from 0 to 1."""
    import torch

    top = 1 if image.dtype == np.uint8 else np.float32(255)
    given = torch.from_numpy(
        np.ascontiguousarray(image.transpose(2, 0, 1)) / top if top != 1 else _planes(image)
    )
    found = getattr(functional(), name)(given, *args, **options).numpy().transpose(1, 2, 0)
    return found if top == 1 else found * top


def _planes(image: Any) -> Any:
    return np.ascontiguousarray(image.transpose(2, 0, 1))


def several_by_tensors(name: str, image: Any, *args: Any, **options: Any) -> list[Any]:
    """The same for functions that give several images."""
    import torch

    found = getattr(functional(), name)(torch.from_numpy(_planes(image)), *args, **options)
    return [x.numpy().transpose(1, 2, 0) for x in found]
