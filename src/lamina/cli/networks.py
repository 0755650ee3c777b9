"""The networks and data sets that commands know by name."""

from __future__ import annotations

import argparse
import inspect
import runpy
import sys
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from lamina import data
from lamina.data import Batches
from lamina.nn import Module, models
from lamina.nn.models.registry import Builder

#: The networks that classify images, by their names in commands.
NETWORKS = {
    builder.command: builder
    for builder in sorted(models.builders().values(), key=lambda b: b.command)
    if builder.task == "classification"
}


#: The arguments that commands pass to a network accepting them.
_TOLD = ("num_classes", "in_channels", "image_size")


def command_name(text: str) -> str:
    """A network's name in commands; Python's, with underscores, is accepted too.

    FILE.py:NAME is a user-defined one, which commands know from then on by its name. Raises ArgumentTypeError, also
    for an unknown name.
    """
    file, _, name = text.rpartition(":")
    if file.endswith(".py"):
        return _of_file(Path(file), name)
    command = text.replace("_", "-")
    if command not in NETWORKS:
        near = get_close_matches(command, NETWORKS, 3)
        hint = f"the nearest: {', '.join(near)}; " if near else ""
        raise argparse.ArgumentTypeError(
            f"no network is called {text!r}; {hint}known: {', '.join(NETWORKS)}, and FILE.py:NAME"
        )
    return command


def _of_file(file: Path, name: str) -> str:
    """Run a user's file, as `python FILE` would, for the function or class of this name."""
    sys.path.insert(0, str(file.absolute().parent))
    try:
        make = runpy.run_path(str(file)).get(name)
    except Exception as error:
        raise argparse.ArgumentTypeError(f"{file}: {type(error).__name__}: {error}") from error
    if not callable(make) or isinstance(make, Module):
        raise argparse.ArgumentTypeError(f"{file} has no function or class {name!r} that makes a network")
    told = models.builders().get(name)
    builder = told if told is not None and told.make is make else _untold(make, name)
    if builder.command in NETWORKS:
        raise argparse.ArgumentTypeError(
            f"{file}: {name!r} is another network's name; give it one of its own"
        )
    NETWORKS[builder.command] = builder
    return builder.command


def _untold(make: Callable[..., Module], name: str) -> Builder:
    """A network whose defaults determine its numbers of channels and classes.

    Raises ArgumentTypeError for one with required arguments.
    """
    taken = inspect.signature(make).parameters
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [
        n for n, p in taken.items() if p.default is p.empty and p.kind not in variable and n not in _TOLD
    ]
    if needed:
        raise argparse.ArgumentTypeError(
            f"{name} needs {', '.join(needed)}; a command says {', '.join(_TOLD)}, give others a default"
        )
    known = {n: p.default for n, p in taken.items() if isinstance(p.default, int)}
    classes, channels = known.get("num_classes", 1000), known.get("in_channels", 3)
    command = name.lower().replace("_", "-")
    return Builder(make, "", classes=classes, channels=channels, fixed_channels=False, command=command)


def is_image_folder(name: str) -> bool:
    """Whether a data set is a folder of images: one with folders in it."""
    return name != "digits" and Path(name).is_dir() and any(f.is_dir() for f in Path(name).iterdir())


def batches(name: str, split: str, batch_size: int, size: int, seed: int, shift: float) -> Batches:
    """The batches of a data set: "digits", or a folder with files as MNIST's.

    Raises ValueError when there is neither a data set nor a folder of this name, DataError for invalid files.
    """
    if name == "digits":
        return data.digits(batch_size, size, split, seed=seed, shift=shift)
    if Path(name).is_dir():
        return data.mnist(name, batch_size, size=size, split=split, seed=seed, shift=shift)
    raise ValueError(
        f"--data: {name!r} is neither 'digits' nor a folder, with the files of MNIST or a folder of images a class"
    )
