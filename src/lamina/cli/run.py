"""Start a program as several ranks on this machine: one process a GPU, or so many on the CPU.

    lamina run --gpus 4 train.py --epochs 10
    lamina run --ranks 2 --prefix -m package.train

Each rank gets the variables that torchrun sets (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, …). When one
fails, all are ended, and the failure is reported; SIGTERM and Ctrl-C are forwarded.
"""

from __future__ import annotations

import argparse
import sys

from lamina.cli.arguments import above_zero, natural, positive
from lamina.runtime import NoGpuError, devices
from lamina.runtime.ranks.processes import Job, RankStarter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument("--ranks", type=positive, metavar="N", help="so many processes on the CPU")
    how_many.add_argument("--gpus", metavar="N", help="one process for each of N GPUs (default: all)")
    add("-m", "--module", action="store_true", help="the program is a module: lamina run -m package.train")
    add(
        "--restarts",
        type=natural,
        default=0,
        metavar="N",
        help="start all ranks again after a failure, at most N times",
    )
    add(
        "--timeout",
        type=above_zero,
        default=30.0,
        metavar="S",
        help="seconds in which all end when one fails (default: 30)",
    )
    add(
        "--patience",
        type=above_zero,
        default=30.0,
        metavar="S",
        help="seconds that ranks have to end when asked to (default: 30)",
    )
    add("--prefix", action="store_true", help="begin each line of output with its rank")
    add("program", help="a Python file, or with -m a module")
    add("arguments", nargs=argparse.REMAINDER, help="the program's own")


def run(options: argparse.Namespace) -> int:
    """Run the ranks, and exit with their status."""
    ranks = options.ranks or _gpus(options.gpus)
    job = Job(
        [sys.executable, *(["-m"] if options.module else []), options.program, *options.arguments],
        ranks,
        hides_gpus=options.ranks is not None,
        timeout=options.timeout,
        patience=options.patience,
        prefix=options.prefix,
    )
    return RankStarter(job, say=_say).run(options.restarts)


def _gpus(asked: str | None) -> int:
    """How many GPUs to run on. Raises NoGpuError if there are fewer, ValueError for non-numbers."""
    found = sum(where.kind == "cuda" for where in devices())
    if asked not in (None, "all") and not (asked.isdecimal() and int(asked)):
        raise ValueError(f"--gpus must be a number of at least 1, or all, got {asked}")
    wanted = max(found, 1) if asked in (None, "all") else int(asked)
    if wanted > found:
        raise NoGpuError(
            f"--gpus {asked or 'all'}: this machine has {found} GPUs; --ranks N runs N processes on the CPU"
        )
    return wanted


def _say(text: str) -> None:
    print(f"lamina run: {text}", file=sys.stderr, flush=True)
