"""Folders of images as training data, and the preprocessing that reproduces the training's view of an image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lamina.data import DataLoader, ImageFolder, Subset, random_split, transforms
from lamina.data.datasets import Dataset, Transform

#: The folder of each split, by its usual names.
_NAMES = {"train": ("train", "training"), "validation": ("validation", "val", "valid"), "test": ("test",)}
#: For a folder without splits: fractions, drawn with a fixed seed.
SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}
#: Mean and standard deviation of ImageNet's pixels, of levels from 0 to 1.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: The smaller side of an image before the center crop, by the network's size.
_MARGIN = 256 / 224
_KEY = "lamina network"


@dataclass(frozen=True)
class Sight:
    """A network's image preprocessing: image kind and transforms. Stored in the header of its weights.

    mean, std: of levels from 0 to 1, one for all channels or one each. margin: the image's smaller side is scaled to
    this multiple of the size before the center crop; 0 scales both sides to the size.
    """

    network: str
    classes: tuple[str, ...]
    channels: int = 3
    size: int = 224
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    margin: float = _MARGIN

    def header(self) -> dict[str, str]:
        """As a text for a weight file."""
        return {_KEY: json.dumps(asdict(self))}

    @classmethod
    def of(cls, texts: Mapping[str, str], where: str) -> Sight | None:
        """From a weight file's texts; None if absent. Raises ValueError for an invalid one."""
        if _KEY not in texts:
            return None
        try:
            facts: dict[str, Any] = json.loads(texts[_KEY])
            lists = {name: tuple(facts[name]) for name in ("classes", "mean", "std")}
            return cls(**{**facts, **lists})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{where}: its header's network is not sound ({error!r})") from None

    @classmethod
    def usual(cls, network: str, classes: tuple[str, ...], channels: int, size: int) -> Sight:
        """The default: ImageNet's mean and standard deviation, the middle of the levels for gray images."""
        seen = cls(network, classes, channels, size)
        return seen if channels == 3 else replace(seen, mean=(0.5,), std=(0.5,))

    @property
    def mode(self) -> str:
        """The mode of `decode_image`."""
        return "grey" if self.channels == 1 else "rgb"

    def transform(self) -> transforms.Compose:
        """An image as the network's input, without augmentation."""
        cut: list[Any] = [transforms.Resize((self.size, self.size))]
        if self.margin:
            cut = [transforms.Resize(round(self.size * self.margin)), transforms.CenterCrop(self.size)]
        return transforms.Compose([*cut, transforms.Normalize(self.mean, self.std)])

    def augmented(self) -> transforms.Compose:
        """Random crops and flips, for training."""
        return transforms.Compose(
            [
                transforms.RandomResizedCrop(self.size, (0.35, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.Normalize(self.mean, self.std),
            ]
        )


def image_batches(
    root: str | Path,
    split: str,
    batch_size: int,
    sight: Sight,
    *,
    seed: int = 0,
    augment: bool = True,
    workers: int = 0,
    mixup: float | None = None,
) -> DataLoader:
    """Batches of one split of a folder of images.

    The folder has a folder for each class, whose images are split 80:10:10 with a fixed seed, or folders for splits
    ("train", "val", "test") that contain these; missing splits are taken from the training images.
    Raises DataError for invalid folders.
    """
    training = split == "train"
    transform = sight.augmented() if training and augment else sight.transform()
    dataset = _split(Path(root), split, sight, transform)
    mixing = transforms.MixUp(len(sight.classes), mixup) if mixup and training else None
    found = DataLoader(
        dataset,
        batch_size,
        shuffle=training,
        seed=seed,
        drop_last=training and len(dataset) >= batch_size,
        num_workers=workers,
        batch_transform=mixing,
    )
    found.num_classes = len(sight.classes)
    return found


def classes_of(root: str | Path) -> tuple[str, ...]:
    """The classes of a folder's training images. Raises DataError."""
    place = Path(root)
    return tuple(ImageFolder(_folder(place, "train") or place).classes)


def _folder(root: Path, split: str) -> Path | None:
    """The folder of a split, None where the images are not split."""
    return next((root / name for name in _NAMES[split] if (root / name).is_dir()), None)


def _split(root: Path, split: str, sight: Sight, transform: Transform) -> Dataset[Any]:
    """The images of a split. A split without its own folder gets a share of the training images, with a
    fixed seed."""
    own = _folder(root, split)
    if own is not None and split != "train":
        return ImageFolder(own, transform, mode=sight.mode, classes=sight.classes)
    whole = ImageFolder(_folder(root, "train") or root, transform, mode=sight.mode, classes=sight.classes)
    shared = [name for name in SHARES if name == "train" or _folder(root, name) is None]
    rest = sum(SHARES[name] for name in shared if name != "train")
    shares = [1 - rest if name == "train" else SHARES[name] for name in shared]
    part: Subset = random_split(whole, shares)[shared.index(split)]
    return part


def inputs_of(images: Sequence[np.ndarray[Any, Any]], sight: Sight) -> np.ndarray[Any, Any]:
    """Images (H, W, C) of uint8 as a batch for the network, float32 (N, C, size, size)."""
    transform, rng = sight.transform(), np.random.default_rng(0)
    return np.stack([transform(image, rng) for image in images])
