"""The networks and data sets that commands know by name."""

from __future__ import annotations

from pathlib import Path

from lamina import data
from lamina.data import Batches
from lamina.nn import models

#: The networks that classify images, by the names that commands call them.
NETWORKS = {
    builder.command: builder
    for builder in sorted(models.builders().values(), key=lambda b: b.command)
    if builder.task == "classification"
}


def command_name(text: str) -> str:
    """A network's name as commands call it: Python's, with underscores, is taken too."""
    return text.replace("_", "-")


def is_image_folder(name: str) -> bool:
    """Whether a data set is a folder of images: one with folders in it."""
    return name != "digits" and Path(name).is_dir() and any(f.is_dir() for f in Path(name).iterdir())


def batches(name: str, split: str, batch_size: int, size: int, seed: int, shift: float) -> Batches:
    """The batches of a data set: "digits", or a folder with files as MNIST's.

    Raises ValueError when there is neither a data set nor a folder of this name, DataError for unsound files.
    """
    if name == "digits":
        return data.digits(batch_size, size, split, seed=seed, shift=shift)
    if Path(name).is_dir():
        return data.mnist(name, batch_size, size=size, split=split, seed=seed, shift=shift)
    raise ValueError(
        f"--data: {name!r} is neither 'digits' nor a folder, with the files of MNIST or a folder of images a class"
    )
