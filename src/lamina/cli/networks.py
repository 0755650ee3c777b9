"""The networks and data sets that commands know by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lamina import data
from lamina.data import Batches
from lamina.nn import AlexNet, AlexNetImageNet, LeNet, Module


@dataclass(frozen=True)
class Network:
    """How a network is made, from the number of channels and classes, and what it is trained with by default.

    size: of its images. rates: the highest learning rate, by optimizer.
    """

    make: Callable[[int, int], Module]
    channels: int
    size: int
    classes: int
    rates: Mapping[str, float]


def _imagenet(channels: int, classes: int) -> Module:
    if channels != 3:
        raise ValueError(f"alexnet-imagenet takes images of 3 channels, the data has {channels}")
    return AlexNetImageNet(classes)


NETWORKS = {
    "alexnet": Network(AlexNet, 1, 224, 10, {"sgd": 0.006, "adam": 1e-4}),
    "lenet": Network(LeNet, 1, 28, 10, {"sgd": 0.02, "adam": 2e-3}),
    "alexnet-imagenet": Network(_imagenet, 3, 224, 1000, {"sgd": 0.01, "adam": 1e-4}),
}


def batches(name: str, split: str, batch: int, size: int, seed: int, shift: float) -> Batches:
    """The batches of a data set: "digits", or a folder with files as MNIST's.

    Raises ValueError when there is neither a data set nor a folder of this name, DataError for unsound files.
    """
    if name == "digits":
        return data.digits(batch, size, split, seed=seed, shift=shift)
    if Path(name).is_dir():
        return data.mnist(name, batch, size=size, split=split, seed=seed, shift=shift)
    raise ValueError(f"--data: {name!r} is neither 'digits' nor a folder with the files of MNIST")
