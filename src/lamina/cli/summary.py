"""Show what a network is made of: outputs, parameters and arithmetic of every module, and its memory.

lamina summary resnet50
lamina summary alexnet --batch-size 128 --depth 1
"""

from __future__ import annotations

import argparse

from rich.console import Console

from lamina import nn
from lamina.cli.arguments import natural, positive
from lamina.cli.networks import NETWORKS, command_name
from lamina.infer import Predictor
from lamina.runtime import human_bytes
from lamina.spec import Spec, float32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "network",
        choices=NETWORKS,
        type=command_name,
        metavar="NETWORK",
        help="what to show: its name, or FILE.py:NAME",
    )
    add("--batch-size", type=positive, default=1, help="samples (default: 1)")
    add("--size", type=positive, help="pixels on a side (default: the network's)")
    add("--depth", type=natural, help="leave out modules that lie deeper (default: none)")


def run(options: argparse.Namespace) -> None:
    """Trace, plan the memory, and print."""
    network = NETWORKS[options.network]
    size = options.size or network.size
    net = network(network.channels, network.classes, size)
    images = Spec((options.batch_size, network.channels, size, size), float32)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(str(nn.summary(net, images, depth=options.depth)))
    planned = Predictor(net, device="cpu", backend="null").program(images).program.placement
    console.print(f"inference: {human_bytes(planned.nbytes)} for temporaries")
