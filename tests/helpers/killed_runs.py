"""Kills a training run repeatedly at random times, resumes it from its checkpoint, and compares every loss.

python -m tests.helpers.killed_runs FOLDER KILLS SEED BACKEND

prints, as JSON, the number of kills, how many of them hit a checkpoint being written, from how many
different steps runs resumed, and the differences from an uninterrupted run. Children are forked from a process
that has imported everything and used nothing.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.train import Position, fit, load_checkpoint
from lamina.train.callbacks import Callback, ReduceLROnPlateau

EPOCHS, SAMPLES, BATCH = 12, 60, 8


class Log(Callback):
    """Each step's number and loss in a line, written atomically."""

    def __init__(self, file: Path) -> None:
        self.file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def step(self, number: int, loss: float) -> None:
        os.write(self.file, f"{number} {loss.hex()}\n".encode())


def images(indices: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """Random augmentation, so that the state of the data generators matters."""
    base = np.random.default_rng(5).standard_normal((SAMPLES, 16)).astype(np.float32)
    noise = rng.standard_normal((len(indices), 16)).astype(np.float32) * 0.1
    return base[indices] + noise, (indices % 3).astype(np.int64)


def train(checkpoint: Path, log: Path, backend: str) -> None:
    """The run, from the checkpoint on if there is one: dropout, statistics, momentum, a decaying rate."""
    nn.manual_seed(3)
    net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 3))
    rate = optim.schedule.cosine(0.2, 200)
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(rate, momentum=0.9), device="cpu", backend=backend)
    batches = data.Batches(images, SAMPLES, BATCH, seed=2)
    start = load_checkpoint(checkpoint, step) if checkpoint.exists() else Position()
    fit(
        step,
        data.prefetch(batches),
        EPOCHS,
        validation=data.Batches(images, SAMPLES, BATCH, shuffle=False),
        start=start,
        checkpoint=checkpoint,
        checkpoint_every=3,
        callbacks=[Log(log), ReduceLROnPlateau(patience=1, factor=0.5)],
        progress=False,
        console=lm.train.loop.Console(file=open(os.devnull, "w")),  # noqa: SIM115
    )


def child(checkpoint: Path, log: Path, backend: str) -> int:
    """Fork a training process; its process id."""
    process = os.fork()
    if process:
        return process
    try:
        train(checkpoint, log, backend)
        os._exit(0)
    except BaseException as error:  # a child must never continue as its parent
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def is_over(process: int) -> bool:
    """Whether a child has ended; it can still be waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def steps_of(log: Path) -> list[tuple[int, str]]:
    """Number and loss of each whole line."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(int(n), loss) for n, loss in (line.split() for line in lines)]


def kill_often(folder: Path, kills: int, seed: int, backend: str) -> dict[str, Any]:
    """As the module says."""
    times = random.Random(seed)
    assert os.waitpid(child(folder / "whole", folder / "whole.log", backend), 0)[1] == 0
    expected = dict(steps_of(folder / "whole.log"))
    found: dict[str, Any] = {"kills": 0, "within_writing": 0, "finished": 0, "starts": [], "wrong": []}
    checkpoint, log = folder / "run", folder / "run.log"
    while found["kills"] < kills:
        before, parts = len(steps_of(log)), set(folder.glob(".*.part"))
        process = child(checkpoint, log, backend)
        while len(steps_of(log)) == before and not is_over(process):
            time.sleep(0.001)
        time.sleep(times.uniform(0, 0.06))
        os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        if os.WIFSIGNALED(status):
            found["kills"] += 1
            found["within_writing"] += bool(set(folder.glob(".*.part")) - parts)
        elif status:
            raise RuntimeError("a run failed")
        else:  # it was done: start again
            found["finished"] += 1
        for number, loss in steps_of(log)[before:]:
            if expected[number] != loss:
                found["wrong"].append((number, loss, expected[number]))
        found["starts"] += [n for n, _ in steps_of(log)[before : before + 1]]
        if status == 0:
            for file in (checkpoint, log):
                file.unlink()
    assert os.waitpid(child(checkpoint, log, backend), 0)[1] == 0
    found["wrong"] += [(n, loss) for n, loss in steps_of(log) if expected[n] != loss]
    found["same_end"] = tensors_of(checkpoint) == tensors_of(folder / "whole")
    found["starts"] = len(set(found["starts"]))
    return found


def tensors_of(file: Path) -> dict[str, bytes]:
    """The bytes of a checkpoint's tensors."""
    return {name: x.numpy().tobytes() for name, x in lm.load_safetensors(file).items()}


if __name__ == "__main__":
    place, count, start_seed, where = sys.argv[1:]
    print(json.dumps(kill_often(Path(place), int(count), int(start_seed), where)))
