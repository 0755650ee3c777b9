"""Say what is on images: the likeliest classes of a file, or of every image in a folder.

lamina train resnet18 --data photos --weights pets.safetensors
lamina predict cat.jpg --weights pets.safetensors
lamina predict photos/new --weights pets.safetensors --top 3 --json
lamina predict cat.jpg --weights resnet50.safetensors --network resnet50 --classes imagenet.txt
lamina predict cat.jpg --weights resnet50.onnx --classes imagenet.txt     any classifier of images in ONNX
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from lamina import convert
from lamina.cli.arguments import positive
from lamina.cli.folders import Sight, inputs_of
from lamina.cli.networks import NETWORKS, command_name
from lamina.data import DataError
from lamina.data.datasets import image_files, read_image
from lamina.files.weights import read_weights
from lamina.infer import Predictor
from lamina.nn import Module
from lamina.spec import PRECISIONS
from lamina.tensors import Tensor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("images", type=Path, help="an image, or a folder of images")
    add(
        "--weights",
        type=Path,
        required=True,
        metavar="FILE",
        help="what `lamina train --weights` wrote, others, or an ONNX model (.onnx)",
    )
    add(
        "--network",
        choices=NETWORKS,
        type=command_name,
        metavar="NETWORK",
        help="what the weights are of (default: as the file says)",
    )
    add(
        "--classes",
        type=Path,
        metavar="FILE",
        help="names of the classes, a line each (default: as the file says)",
    )
    add("--size", type=positive, help="pixels on a side, where an ONNX model leaves them open (default: 224)")
    add("--top", type=positive, default=5, help="so many classes are shown (default: 5)")
    add("--batch-size", type=positive, default=32, help="images at a time (default: 32)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    add("--precision", default="fp32", choices=PRECISIONS, help="what to compute in (default: fp32)")
    add("--json", action="store_true", help="a line of JSON for each image")


def run(options: argparse.Namespace) -> None:
    """Read, compute, print."""
    of_model = options.weights.suffix == ".onnx"
    net, sight, batch = (_of_model if of_model else _of_weights)(options)
    predictor = Predictor(net, device=options.device, precision=options.precision)
    files = image_files(options.images)
    if not files:
        raise DataError(f"{options.images}: there is no image")
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for some in _batched(files, batch or options.batch_size):
        inputs = inputs_of([read_image(file, sight.mode) for file in some], sight)
        if batch:  # a model with a fixed batch size
            inputs = np.resize(inputs, (batch, *inputs.shape[1:]))
        found = predictor(inputs)
        scores = (found[0] if isinstance(found, tuple) else found).numpy()
        if scores.size != len(inputs) * len(sight.classes) and not options.classes:
            sight = replace(sight, classes=tuple(str(n) for n in range(scores.size // len(inputs))))
        if scores.size != len(inputs) * len(sight.classes):
            raise ValueError(
                f"--classes: {len(sight.classes)} names for {scores.size // len(inputs)} scores of an image"
            )
        for file, row in zip(some, scores.reshape(len(inputs), -1), strict=False):
            console.print(_line(file, row, sight.classes, options.top, options.json))


def _of_weights(options: argparse.Namespace) -> tuple[Module, Sight, int]:
    """The network of a weight file, its preprocessing, and 0: it takes any number of images. Raises ValueError."""
    if options.size:
        raise ValueError("--size: is for ONNX models; a network sees in the size that it was trained in")
    tensors, texts = read_weights(options.weights)
    sight = _sight(options, tensors, texts)
    if sight.network not in NETWORKS:
        raise ValueError(
            f"--network: {options.weights} is of {sight.network}, which is not known here: a network of your own is "
            "named by --network FILE.py:NAME"
        )
    net = NETWORKS[sight.network](sight.channels, len(sight.classes), sight.size)
    net.load_state_dict(tensors)
    return net, sight, 0


def _of_model(options: argparse.Namespace) -> tuple[Module, Sight, int]:
    """An ONNX model of images, its preprocessing, and its batch size, 0 for any. Raises ValueError.

    Models of `lamina export` record the preprocessing; others get the default.
    """
    if options.network is not None:
        raise ValueError(f"--network: {options.weights} is a model of its own")
    net = convert.from_onnx(options.weights)
    (images, *more) = net.input_specs(unknown=0)
    channels, *sides = images.shape[1:] if images.ndim == 4 else (0,)
    if more or channels not in (1, 3) or not images.dtype.is_float or len(set(sides)) != 1:
        found = ", ".join(map(str, (images, *more)))
        raise ValueError(
            f"{options.weights}: takes {found}, not square images [N, 1 or 3, S, S] of floats (0: any)"
        )
    if options.size and sides[0] not in (0, options.size):
        raise ValueError(f"--size: the model takes images of {sides[0]} pixels on a side, not {options.size}")
    sight = Sight.of({p.key: p.value for p in net.model.metadata_props}, str(options.weights))
    sight = sight or Sight.usual(options.weights.stem, (), channels, sides[0] or 224)
    names = _names(options)
    if names and sight.classes and len(names) != len(sight.classes):
        raise ValueError(f"--classes: {len(names)} names for {len(sight.classes)} classes")
    sight = replace(sight, size=options.size or sight.size, classes=names or sight.classes)
    return net, sight, images.shape[0]


def _names(options: argparse.Namespace) -> tuple[str, ...]:
    """The lines of --classes."""
    names = tuple(options.classes.read_text(encoding="utf-8").split("\n")) if options.classes else ()
    return names[:-1] if names and not names[-1] else names


def _sight(options: argparse.Namespace, tensors: dict[str, Tensor], texts: dict[str, str]) -> Sight:
    """The preprocessing, from the weights' header and the options. Raises ValueError."""
    found = Sight.of(texts, str(options.weights))
    if found is None and options.network is None:
        raise ValueError(f"--network: {options.weights} does not say of which network it is; name it")
    names = _names(options)
    if found is None:
        network = NETWORKS[options.network]
        classes = names or tuple(str(n) for n in range(network.classes))
        return Sight.usual(options.network, classes, network.channels, network.size)
    if options.network not in (None, found.network):
        raise ValueError(f"--network: {options.weights} is of {found.network}, not of {options.network}")
    if names and len(names) != len(found.classes):
        raise ValueError(f"--classes: {len(names)} names for {len(found.classes)} classes")
    return replace(found, classes=names or found.classes)


def _batched(files: list[Path], size: int) -> Iterator[list[Path]]:
    rest = iter(files)
    while some := list(itertools.islice(rest, size)):
        yield some


def _line(file: Path, scores: np.ndarray[Any, Any], classes: tuple[str, ...], top: int, as_json: bool) -> str:
    """An image's likeliest classes, by the softmax of the outputs; models may already end with it."""
    shares = scores
    if scores.min() < 0 or abs(scores.sum() - 1) > 1e-3:
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
    best = np.argsort(-shares, kind="stable")[:top]
    if as_json:
        found = [{"class": classes[i], "probability": float(shares[i])} for i in best]
        return json.dumps({"file": str(file), "classes": found})
    return f"{file}: " + ", ".join(f"{classes[i]} {100 * shares[i]:.2f} %" for i in best)
