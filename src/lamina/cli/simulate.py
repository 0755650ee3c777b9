"""Predict a training step on many GPUs from one that was measured on one, and from the links between them.

lamina plan resnet50 --train --time --device cuda --precision bf16 --batch-size 256 --json step.json
lamina simulate step.json --batch-size 256 --gpus 1 2 4 8 64 1024 --inside nvlink4 --between infiniband-ndr --switch
lamina simulate step.json --batch-size 256 --gpus 8 --inside links.json --spread 0.01 --input 60000
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from lamina._json import parse_json
from lamina.cli.arguments import above_zero, positive
from lamina.runtime import check_writable, write_atomically
from lamina.simulate import LINKS, Cluster, Link, MeasuredAllReduces, Prediction, Workload, simulate


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    link = f"{', '.join(LINKS)}; 'LATENCY_US,GB_PER_S'; or a file of benchmarks.all_reduce"
    add("step", type=Path, metavar="STEP", help="a timed training step: of lamina plan --train --time --json")
    add("--batch-size", type=positive, help="samples of the step (a profile does not say)")
    add("--gpus", type=positive, nargs="+", default=[1, 2, 4, 8], help="how many (default: 1 2 4 8)")
    add("--gpus-per-node", type=positive, default=8, help="(default: 8)")
    add("--inside", type=_inside, default=LINKS["nvlink4"], metavar="LINK", help=f"{link} (default: nvlink4)")
    add(
        "--between",
        type=_link,
        default=LINKS["infiniband-ndr"],
        metavar="LINK",
        help="a GPU's, between nodes",
    )
    add("--switch", action="store_true", help="the switches of a node add up (NVLink SHARP)")
    add("--step-ms", type=above_zero, help="what the step takes on one GPU, if not as in STEP")
    add(
        "--bucket-mib",
        type=above_zero,
        default=25.0,
        help="gradients are joined up to so many MiB (default: 25)",
    )
    add("--scale-bytes", type=above_zero, default=1.0, help="0.5: float32 gradients are sent as bfloat16")
    add(
        "--contention",
        type=float,
        default=0.0,
        help="the part of a GPU that communication takes (default: 0)",
    )
    add("--spread", type=float, default=0.0, help="standard deviation of a GPU's step, as a fraction of it")
    add("--input", type=above_zero, default=math.inf, help="samples a second that a node's input can deliver")
    add("--json", type=Path, metavar="FILE", help="write the predictions")


def _inside(text: str) -> Link | MeasuredAllReduces:
    """A link, or the measurements in a file."""
    try:
        record = parse_json(Path(text).read_bytes()) if text.endswith(".json") else {}
        if isinstance(record, dict) and "points" in record:
            return MeasuredAllReduces(
                tuple((int(n), float(size), float(time)) for n, size, time in record["points"])
            )
    except (ValueError, TypeError, OSError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no link ({error})") from None
    return _link(text)


def _link(text: str) -> Link:
    """A link by its name, its two numbers, or a file with fitted values."""
    if text in LINKS:
        return LINKS[text]
    try:
        if text.endswith(".json"):
            fitted = parse_json(Path(text).read_bytes())["link"]
            return Link(float(fitted["latency"]), float(fitted["bandwidth"]))
        latency, bandwidth = map(float, text.split(","))
        return Link(latency * 1e-6, bandwidth * 1e9)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no link ({error}); known: {', '.join(LINKS)}"
        ) from None


def run(options: argparse.Namespace) -> None:
    """Predict, and print a table."""
    if options.json:
        check_writable(options.json)
    workload = _workload(options)
    if options.step_ms:
        workload = workload.in_time(options.step_ms / 1e3)
    cluster = Cluster(options.inside, options.gpus_per_node, options.between, options.switch)
    found = [
        simulate(
            workload,
            cluster,
            gpus,
            bucket_bytes=options.bucket_mib * (1 << 20),
            scale_bytes=options.scale_bytes,
            contention=options.contention,
            spread=options.spread,
            node_samples_per_second=options.input,
        )
        for gpus in options.gpus
    ]
    print(_table(found))
    if options.json:
        records = {"workload": workload.record, "predictions": [p.record for p in found]}
        write_atomically(options.json, [json.dumps(records, indent=1).encode()])


def _workload(options: argparse.Namespace) -> Workload:
    try:
        record = parse_json(options.step.read_bytes())
    except ValueError as error:
        raise ValueError(
            f"{options.step} is no step of lamina plan --train --time --json ({error})"
        ) from error
    if isinstance(record, dict) and "kernels" in record:
        if options.batch_size is None:
            raise ValueError("--batch-size: a profile does not say how many samples the step has")
        return Workload.of_profile(record, options.batch_size)
    found = Workload.of_record(
        record["workload"] if isinstance(record, dict) and "workload" in record else record
    )
    return (
        found
        if options.batch_size is None
        else Workload(found.seconds, options.batch_size, found.gradients, found.update)
    )


def _table(found: list[Prediction]) -> str:
    """Times in milliseconds; communication is not part of the step's sum."""
    head = ("GPUs", "step ms", "compute", "contention", "exposed", "stragglers", "input", "communication")
    rows: list[tuple[str, ...]] = [(*head, "samples/s", "speedup")]
    for p in found:
        times = (p.seconds, p.compute, p.contention, p.exposed, p.stragglers, p.input, p.communication)
        rows.append(
            (
                str(p.gpus),
                *(f"{1e3 * t:.3f}" for t in times),
                f"{p.samples_per_second:,.0f}",
                f"{p.speedup:.2f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f.rjust(w) for f, w in zip(row, widths, strict=True)) for row in rows)
