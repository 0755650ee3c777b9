"""Show how a network will run: its graph, the chosen kernels, and the memory plan.

lamina plan alexnet --batch-size 128 --device cuda
lamina plan alexnet --batch-size 16 --train --graph
lamina plan alexnet --batch-size 4096 --backend null   places memory, needs no kernels
lamina plan resnet18 --train --passes                  what each pass merged, and what it refused and why
lamina plan net.onnx --time                            a model's file; --batch-size where it leaves sizes open
lamina plan alexnet --train --time --html plan.html         times each kernel; a page with the timeline
lamina plan alexnet --train --trace step.json          runs it, and writes what ran when (chrome://tracing, Perfetto)
"""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from lamina import convert, ops
from lamina.cli.arguments import Gone, positive
from lamina.cli.networks import NETWORKS, command_name
from lamina.graph import Executable, html_page, profile, record_call
from lamina.infer import Predictor
from lamina.nn import Module, init
from lamina.optim import SGD
from lamina.runtime import check_writable, device, write_atomically
from lamina.spec import PRECISIONS, Spec, float32, int64, policy
from lamina.spec.policies import ALGORITHMS
from lamina.train import train_step

#: Timings of each kernel, whose median is reported.
_ROUNDS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "network",
        type=_network,
        metavar="NETWORK",
        help="what to plan: a network's name, FILE.py:NAME, or an ONNX model's file",
    )
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
    add("--trace", type=Path, metavar="FILE", help="run it and write what ran when, for chrome://tracing")
    add("--html", type=Path, metavar="FILE", help="write them as one page with a timeline")
    add("--algorithm", choices=ALGORITHMS, help="how kernels are chosen; fastest times them first")


def _network(text: str) -> str:
    """The name of a network, or a model's file (.onnx)."""
    return text if text.endswith(".onnx") else command_name(text)


def run(options: argparse.Namespace) -> None:
    """Compile and print."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    for name in ("time", "trace"):
        if getattr(options, name) and options.backend == "null":
            raise ValueError(
                f"--{name}: the null backend has no kernels; leave out --backend null or --{name}"
            )
    for file in (options.json, options.html, options.trace):
        if file is not None:
            check_writable(file)
    with policy(algorithm=options.algorithm) if options.algorithm else nullcontext():
        executable = _compiled(options)
        found = profile(executable, rounds=_ROUNDS if options.time else 0)
        wanted = options.trace or (options.time and _communicates(executable))
        timeline = record_call(executable) if wanted else None
    if options.graph:
        console.print(str(executable.graph))
    if options.passes:
        console.print("\n".join(map(str, executable.passes)))
    console.print(found.text())
    if timeline is not None and timeline.communication:
        console.print(
            f"communication: {1e3 * timeline.communication:.3f} ms, of which {1e3 * timeline.exposed:.3f} ms exposed "
            "(nothing is computed meanwhile)"
        )
    if options.trace:
        assert timeline is not None
        timeline.save(options.trace)
    if options.json:
        write_atomically(options.json, [json.dumps(found.record, indent=1).encode()])
    if options.html:
        what = "training step" if options.train else "inference"
        title = f"{options.network}, batch {options.batch_size}, {options.precision}, {what}"
        write_atomically(options.html, [html_page(found, title, executable.graph).encode()])


def _runs(options: argparse.Namespace) -> bool:
    """Whether the program is to be run."""
    return bool(options.time or options.trace)


def _communicates(executable: Executable) -> bool:
    """Whether other ranks take part in the program."""
    return any(node.op.effect == "collective" for node in executable.graph.nodes)


def _compiled(options: argparse.Namespace) -> Executable:
    if options.network.endswith(".onnx"):
        return _of_model(options)
    network = NETWORKS[options.network]
    where = device(options.device)
    with nullcontext() if _runs(options) else init.skipped():  # planning needs no weights
        net = network(network.channels, network.classes)
    images = Spec((options.batch_size, network.channels, network.size, network.size), float32)
    if not options.train:
        return _inference(options, net, images)
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


def _of_model(options: argparse.Namespace) -> Executable:
    """The program of an ONNX model for inference."""
    if options.train:
        raise ValueError("--train: a model's file names no loss; lamina.train_step trains it")
    net = convert.from_onnx(options.network)
    return _inference(options, net, net.input_specs(options.batch_size))


def _inference(options: argparse.Namespace, net: Module, inputs: Any) -> Executable:
    """The program for inference; with weights if it is to be run."""
    if options.memory_limit:
        raise ValueError("--memory-limit: inference keeps nothing that could be computed again; add --train")
    predictor = Predictor(net, device=options.device, precision=options.precision, backend=options.backend)
    executable = predictor.program(inputs)
    if _runs(options):
        executable.load(dict(enumerate([*net.parameters(), *net.buffers()])))
    return executable
