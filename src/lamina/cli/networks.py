"""The networks and data sets that commands know by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lamina import data
from lamina.data import Batches
from lamina.nn import (
    AlexNet,
    AlexNetImageNet,
    GoogLeNet,
    LeNet,
    Module,
    OverFeat,
    mobilenet_v2,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    vgg11,
)


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


def _coloured(name: str, make: Callable[[int], Module]) -> Callable[[int, int], Module]:
    """A network whose images have 3 channels, as one that is asked for any number of them."""

    def checked(channels: int, classes: int) -> Module:
        if channels != 3:
            raise ValueError(f"{name} takes images of 3 channels, the data has {channels}")
        return make(classes)

    return checked


def _coloured_network(
    name: str, make: Callable[[int], Module], rate: float, size: int = 224
) -> dict[str, Network]:
    return {name: Network(_coloured(name, make), 3, size, 1000, {"sgd": rate, "adam": rate / 100})}


def _resnet(make: Callable[[int, int], Module]) -> Network:
    """A residual network, whose images may have any number of channels."""
    return Network(
        lambda channels, classes: make(classes, channels), 3, 224, 1000, {"sgd": 0.02, "adam": 1e-3}
    )


NETWORKS = {
    "alexnet": Network(AlexNet, 1, 224, 10, {"sgd": 0.006, "adam": 1e-4}),
    "lenet": Network(LeNet, 1, 28, 10, {"sgd": 0.02, "adam": 2e-3}),
    "resnet18": _resnet(resnet18),
    "resnet34": _resnet(resnet34),
    "resnet50": _resnet(resnet50),
    "resnet101": _resnet(resnet101),
    **_coloured_network("alexnet-imagenet", AlexNetImageNet, 0.01),
    **_coloured_network("googlenet", GoogLeNet, 0.01),
    **_coloured_network("mobilenet-v2", mobilenet_v2, 0.05),
    **_coloured_network("overfeat", OverFeat, 0.01, 231),
    **_coloured_network("vgg11", vgg11, 0.01),
}


def batches(name: str, split: str, batch_size: int, size: int, seed: int, shift: float) -> Batches:
    """The batches of a data set: "digits", or a folder with files as MNIST's.

    Raises ValueError when there is neither a data set nor a folder of this name, DataError for unsound files.
    """
    if name == "digits":
        return data.digits(batch_size, size, split, seed=seed, shift=shift)
    if Path(name).is_dir():
        return data.mnist(name, batch_size, size=size, split=split, seed=seed, shift=shift)
    raise ValueError(f"--data: {name!r} is neither 'digits' nor a folder with the files of MNIST")
