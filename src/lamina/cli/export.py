"""Write a network as an ONNX model, or as a saved plan, and check it: run it beside the network.

lamina export resnet50 resnet50.onnx
lamina export resnet50 pets.onnx --weights pets.safetensors --opset 17
lamina export mobilenet-v2 fixed.onnx --batch-size 8 --fixed-batch --size 160
lamina export resnet18 resnet18.plan --batch-size 1 --weights resnet18.pth     what lamina.infer.load answers from
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

from lamina import convert
from lamina.cli.arguments import positive
from lamina.cli.folders import Sight
from lamina.cli.networks import NETWORKS, command_name
from lamina.files.weights import read_weights
from lamina.infer import Inferer, load
from lamina.nn import Module
from lamina.runtime import human_bytes
from lamina.spec import PRECISIONS, Spec, float32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "network",
        choices=NETWORKS,
        type=command_name,
        metavar="NETWORK",
        help="what to write: its name, or FILE.py:NAME",
    )
    add("target", type=Path, metavar="OUT", help="the file to write: net.onnx, or net.plan")
    add("--weights", type=Path, metavar="FILE", help="safetensors or .pt (default: fresh, random weights)")
    add("--opset", type=positive, default=20, help="the version of ONNX's operators, 17 to 23 (default: 20)")
    add(
        "--batch-size",
        type=positive,
        default=2,
        help="images of the check, of a plan, and with --fixed-batch (default: 2)",
    )
    add("--fixed-batch", action="store_true", help="the model takes --batch-size images, no other number")
    add("--size", type=positive, help="pixels on a side (default: the network's)")
    add("--no-check", action="store_true", help="do not run the model")
    add("--device", default="auto", help="of a plan: auto, cpu, cuda or cuda:N (default: auto)")
    add(
        "--precision",
        default="fp32",
        choices=PRECISIONS,
        help="of a plan: what to compute in (default: fp32)",
    )


def run(options: argparse.Namespace) -> None:
    """Build the network, write it, report the result."""
    write = WRITERS.get(options.target.suffix)
    if write is None:
        raise ValueError(f"OUT: {options.target.name!r} ends in none of {', '.join(WRITERS)}")
    net, sight, channels = _net(options)
    size = options.size or NETWORKS[options.network].size
    said = write(net, Spec((options.batch_size, channels, size, size), float32), sight, options)
    nbytes = human_bytes(options.target.stat().st_size)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(f"{options.network}: {said}, {nbytes}, in {options.target}")


def _write_onnx(net: Module, images: Spec, sight: Sight | None, options: argparse.Namespace) -> str:
    """A model; it records the image preprocessing, if known. Raises ExportError."""
    model = convert.to_onnx(
        net,
        images,
        path=options.target,
        opset=options.opset,
        dynamic=None if options.fixed_batch else "batch",
        input_names=["images"],
        metadata=None if sight is None else replace(sight, size=images.shape[2]).header(),
        check=not options.no_check,
    )
    return f"{len(model.graph.node)} operators of opset {options.opset}"


def _write_plan(net: Module, images: Spec, sight: Sight | None, options: argparse.Namespace) -> str:
    """A saved plan; it is loaded again and run, unless --no-check is given. Raises ValueError."""
    drawn = np.random.default_rng(0).standard_normal(images.shape).astype(np.float32)
    with Inferer(net.eval(), device=options.device, precision=options.precision) as inferer:
        wanted = inferer(drawn).numpy()
        inferer.save(options.target)
        where = inferer.device
    if not options.no_check:
        with load(options.target, device=where) as found:
            if found(drawn).tobytes() != wanted.tobytes():
                raise ValueError(f"{options.target}: the plan does not answer as the network does")
    return f"a plan for {images.shape[0]} images of {images.shape[2]}x{images.shape[3]} on {where.kind}"


#: Writers of networks, by file name extension.
WRITERS: dict[str, Callable[[Module, Spec, Sight | None, argparse.Namespace], str]] = {
    ".onnx": _write_onnx,
    ".plan": _write_plan,
}


def _net(options: argparse.Namespace) -> tuple[Module, Sight | None, int]:
    """The network with its weights, its image preprocessing if the weights record it, and their number of channels.

    Raises ValueError for weights of other networks.
    """
    network = NETWORKS[options.network]
    if options.weights is None:
        return network(network.channels, network.classes, options.size), None, network.channels
    tensors, texts = read_weights(options.weights)
    sight = Sight.of(texts, str(options.weights))
    if sight is not None and sight.network != options.network:
        raise ValueError(f"--weights: {options.weights} is of {sight.network}, not of {options.network}")
    channels, classes = (
        (network.channels, network.classes) if sight is None else (sight.channels, len(sight.classes))
    )
    net = network(channels, classes, options.size)
    net.load_state_dict(tensors)
    return net, sight, channels
