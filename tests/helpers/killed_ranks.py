"""Kills a run of several ranks at random times while it writes checkpoints, and resumes from the last one.

python -m tests.helpers.killed_ranks FOLDER --kills 20 --ranks 4 --device cuda --one
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina import distributed, nn, ops, optim
from lamina.train import CheckpointFolder, Position
from tests.helpers import ROOT
from tests.helpers.ranks import free_port, variables

#: For each time that a run is killed: more than are made before it is.
STEPS = 8
#: Delay after each step in seconds: on a GPU all steps would be over before a rank is killed.
PACE = {"cpu": 0.0, "cuda": 0.03}
#: Seconds within which the others must end after one rank was killed.
LIMIT = 30.0
#: Runs one rank: `train` with its arguments.
RANK = "import sys; from tests.helpers.killed_ranks import train; train(*sys.argv[1:])"


def train(folder: str, log: str, device: str, steps: str) -> None:
    """This many steps with a checkpoint after each; the first rank logs number and loss."""
    lm.distributed.init(timeout=60)
    nn.manual_seed(3)
    net = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 3))
    step = lm.train_step(
        net, ops.cross_entropy, optim.AdamW(1e-2), device=device, parallel="data", shard_optimizer=True
    )
    checkpoints = CheckpointFolder(folder, step)
    start = checkpoints.load() or Position()
    n, me = distributed.world_size(), distributed.rank()
    for number in range(start.batch, int(steps)):
        rng = np.random.default_rng(number)
        x, y = rng.standard_normal((12, 16)).astype(np.float32), rng.integers(0, 3, 12)
        part = slice(me * 12 // n, (me + 1) * 12 // n)
        loss = float(step(x[part], y[part]).item())
        time.sleep(PACE[device])
        if me == 0:
            with open(log, "a") as file:
                file.write(f"{number} {loss.hex()}\n")
        checkpoints.save(Position(0, number + 1))
    checkpoints.wait()
    lm.distributed.shutdown()


def start(folder: Path, log: Path, ranks: int, device: str, steps: int) -> "list[subprocess.Popen[bytes]]":
    port = free_port()
    base = dict(os.environ) | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-c", RANK, str(folder), str(log), device, str(steps)]
    return [
        subprocess.Popen(command, env=base | variables(r, ranks, port), cwd=ROOT, stderr=subprocess.DEVNULL)
        for r in range(ranks)
    ]


def lines(log: Path) -> list[tuple[int, str]]:
    whole = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(int(a), b) for a, b in (line.split() for line in whole)]


def kill_often(
    folder: Path, *, kills: int, ranks: int, seed: int, device: str = "cpu", one: bool = False
) -> dict[str, Any]:
    """The number of kills, how many hit an incomplete checkpoint, and the losses that differed.

    one: only the last rank is killed, and the others must end by themselves; the slowest took `slowest` seconds.
    """
    times, given = random.Random(seed), (ranks, device, STEPS * (kills + 1))
    assert [p.wait() for p in start(folder / "whole", folder / "whole.log", *given)] == [0] * ranks
    expected = dict(lines(folder / "whole.log"))
    found: dict[str, Any] = {"kills": 0, "within_writing": 0, "slowest": 0.0, "wrong": []}
    run, log = folder / "run", folder / "run.log"
    while found["kills"] < kills:
        before = len(lines(log))
        processes = start(run, log, *given)
        while len(lines(log)) == before and all(p.poll() is None for p in processes):
            time.sleep(0.002)
        time.sleep(times.uniform(0, 0.15))
        if any(p.poll() is not None for p in processes):
            break
        found["slowest"] = max(found["slowest"], killed(processes[-1:] if one else processes, processes))
        found["kills"] += 1
        named = "".join(f.read_text() for f in run.glob("*.json"))
        found["within_writing"] += any(f.name not in named for f in run.iterdir() if f.suffix != ".json")
    assert [p.wait() for p in start(run, log, *given)] == [0] * ranks
    found["wrong"] = [(n, x, expected[n]) for n, x in lines(log) if expected[n] != x]
    assert {n for n, _ in lines(log)} == expected.keys()
    return found


def killed(some: "list[subprocess.Popen[bytes]]", processes: "list[subprocess.Popen[bytes]]") -> float:
    """Kill some of the ranks; the seconds until all had ended, each with an error."""
    begin = time.monotonic()
    for p in some:
        p.send_signal(signal.SIGKILL)
    try:
        assert all(p.wait(max(0.0, begin + LIMIT - time.monotonic())) for p in processes)
    finally:
        for p in processes:
            p.kill()
            p.wait()
    return time.monotonic() - begin


def main() -> int:
    """The exit status: 1 if a loss differed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--one", action="store_true", help="kill the last rank alone; the others end by themselves"
    )
    given = vars(parser.parse_args())
    given["folder"].mkdir(parents=True, exist_ok=True)
    found = kill_often(**given)
    print(json.dumps(found))
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
