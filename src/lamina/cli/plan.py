"""Show how a network will run: its graph, the chosen kernels, and the memory plan.

lamina plan alexnet --batch-size 128 --device cuda
lamina plan alexnet --batch-size 16 --train --graph
lamina plan alexnet --batch-size 4096 --backend null   places memory, needs no kernels
lamina plan resnet18 --train --passes                  what each pass merged, and what it refused and why
lamina plan alexnet --train --time --html plan.html         times each kernel; a page with the timeline
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from lamina import ops
from lamina.cli.arguments import Gone, positive
from lamina.cli.networks import NETWORKS
from lamina.graph import Executable, html_page, profile
from lamina.infer import Predictor
from lamina.optim import SGD
from lamina.runtime import check_writable, device, write_atomically
from lamina.spec import PRECISIONS, Spec, float32, int64, policy
from lamina.spec.policies import ALGORITHMS
from lamina.train import train_step

#: Timings of each kernel, of which the median counts.
_ROUNDS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("network", choices=NETWORKS, help="what to plan")
    add("--batch", action=Gone, const="--batch-size")
    add("--batch-size", type=positive, default=16, help="samples (default: 16)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    add("--precision", default="fp32", choices=PRECISIONS, help="what to compute in (default: fp32)")
    add("--train", action="store_true", help="plan a training step; otherwise inference")
    add("--memory-limit", metavar="SIZE", help="compute again what does not fit, such as '8 GiB'")
    add("--graph", action="store_true", help="print the graph, too")
    add("--passes", action="store_true", help="print what each pass did to the graph, and what it refused")
    add("--backend", choices=("cpu", "cuda", "reference", "null"), help="another backend than the device's")
    add("--time", action="store_true", help="run it and time each kernel")
    add("--json", type=Path, metavar="FILE", help="write kernels, work, times and memory over time as JSON")
    add("--html", type=Path, metavar="FILE", help="write them as one page with a timeline")
    add("--algorithm", choices=ALGORITHMS, help="how kernels are chosen; fastest times them first")


def run(options: argparse.Namespace) -> None:
    """Compile and print."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if options.time and options.backend == "null":
        raise ValueError("--time: the null backend has no kernels; leave out --backend null or --time")
    for file in (options.json, options.html):
        if file is not None:
            check_writable(file)
    with policy(algorithm=options.algorithm) if options.algorithm else nullcontext():
        executable = _compiled(options)
        found = profile(executable, rounds=_ROUNDS if options.time else 0)
    if options.graph:
        console.print(str(executable.graph))
    if options.passes:
        console.print("\n".join(map(str, executable.passes)))
    console.print(found.text())
    if options.json:
        write_atomically(options.json, [json.dumps(found.record, indent=1).encode()])
    if options.html:
        what = "training step" if options.train else "inference"
        title = f"{options.network}, batch {options.batch_size}, {options.precision}, {what}"
        write_atomically(options.html, [html_page(found, title).encode()])


def _compiled(options: argparse.Namespace) -> Executable:
    network = NETWORKS[options.network]
    where = device(options.device)
    net = network.make(network.channels, network.classes)
    images = Spec((options.batch_size, network.channels, network.size, network.size), float32)
    if not options.train:
        if options.memory_limit:
            raise ValueError(
                "--memory-limit: inference keeps nothing that could be computed again; add --train"
            )
        predictor = Predictor(net, device=where, precision=options.precision, backend=options.backend)
        executable = predictor.program(images)
        if options.time:
            executable.load(dict(enumerate([*net.parameters(), *net.buffers()])))
        return executable
    step = train_step(
        net,
        partial(ops.cross_entropy, ignore_index=None),  # the labels are classes
        SGD(momentum=0.9),
        device=where,
        precision=options.precision,
        backend=options.backend,
        memory_limit=options.memory_limit,
    )
    return step.program(images, Spec((options.batch_size,), int64)).executable
