"""Starts worlds of several ranks repeatedly, with a fault or without, and reports how each ended.

    python -m tests.helpers.many_worlds OUT --ranks 4 --times 200 --at-once 8
    python -m tests.helpers.many_worlds OUT --ranks 4 --times 20 --fault SIGKILL --device cpu

Concurrent worlds share the devices. A world is right if it ends within the limit after its fault, with an
error that names the rank (or without one if nothing fails), and leaves no process. OUT gets a line of JSON for
each as it ends; the last printed line counts them. The exit status is 1 if one was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.helpers import ROOT

#: A training step on all ranks, during which rank 1 fails in the sixth, or when it captures the first.
PROGRAM = """
import os, signal, sys
import numpy as np
import lamina as lm
from lamina import nn, ops, optim
lm.distributed.init()
me = lm.distributed.rank()
net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
step = lm.train_step(net, ops.cross_entropy, optim.SGD(0.1), parallel="data")
x, y = np.zeros((8, 256), np.float32), np.zeros(8, np.int64)
for number in range({steps}):
    if me == 1 and number == {number}:
        {fault}
    step(x, y).item()
"""
#: The fault of rank 1. "none" lets all end by themselves.
FAULTS = {
    "none": "pass",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGSTOP": "os.kill(os.getpid(), signal.SIGSTOP)",
    "raises": "raise ValueError('bad batch')",
    "memory": "[lm.zeros((1 << 32,), device='cuda') for _ in range(100)]",
    "capture": "lm.runtime.stream.CapturedGraph.__init__ = lambda *_: os.kill(os.getpid(), signal.SIGKILL)",
}
#: Faults that apply to CPUs, too: they capture nothing, and memory is shared with other programs.
ON_CPUS = ("none", "SIGKILL", "SIGSTOP", "raises")
#: Seconds in which all ranks end after one has failed, and those of a world in total.
TIMEOUT, LIMIT = 20, 150


def program(fault: str) -> str:
    """The text of the program."""
    number, steps = 0 if fault == "capture" else 5, 12 if fault == "none" else 10**6
    return PROGRAM.format(fault=FAULTS[fault], number=number, steps=steps)


def command(file: Path, ranks: int, device: str) -> list[str]:
    """The command that starts it on this many ranks of a kind of device."""
    where = ["--gpus" if device == "cuda" else "--ranks", str(ranks)]
    return [sys.executable, "-m", "lamina", "run", *where, "--timeout", str(TIMEOUT), str(file)]


def environment() -> dict[str, str]:
    """Of a world: the package of this tree, one thread per rank."""
    return os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}


def world(number: int, fault: str, ranks: int, device: str, folder: Path) -> dict[str, Any]:
    """One world: seconds, status, its fault ("" if there is none)."""
    file, log, begin = folder / f"{number}.py", folder / f"{number}.log", time.monotonic()
    file.write_text(program(fault))
    with log.open("wb") as written:
        started = subprocess.Popen(
            command(file, ranks, device),
            env=environment(),
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        started.wait(LIMIT)
        left = _end_group(started.pid)
        wrong = "it left a process" if left else _judged(fault, started.returncode, log.read_text())
    except subprocess.TimeoutExpired:
        _end_group(started.pid)
        started.wait()
        wrong = f"no end within {LIMIT} s"
    seconds = round(time.monotonic() - begin, 2)
    return {"number": number, "seconds": seconds, "status": started.returncode, "wrong": wrong}


def _judged(fault: str, status: int, text: str) -> str:
    if fault == "none":
        return "" if status == 0 else f"it failed: {text[-1000:]}"
    if status == 0:
        return "it ended well in spite of its fault"
    return "" if "rank 1" in text else f"no error names rank 1: {text[-1000:]}"


def _end_group(leader: int) -> bool:
    """Whether a process of a world is left; it is killed."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
        return True
    return False


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    given = parser.parse_args(arguments)
    if given.device == "cpu" and given.fault not in ON_CPUS:
        parser.error(f"--fault {given.fault} is for GPUs, CPUs have {', '.join(ON_CPUS)}")
    found: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        given.out.open("w") as out,
        ThreadPoolExecutor(given.at_once) as pool,
    ):
        made = (
            pool.submit(world, i, given.fault, given.ranks, given.device, Path(folder))
            for i in range(given.times)
        )
        for one in list(made):
            found.append(one.result())
            out.write(json.dumps(found[-1]) + "\n")
            out.flush()
    wrong = [one for one in found if one["wrong"]]
    slowest = max((one["seconds"] for one in found), default=0.0)
    print(json.dumps({"fault": given.fault, "worlds": len(found), "wrong": len(wrong), "slowest_s": slowest}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
