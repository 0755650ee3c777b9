"""Training with plan swaps compared with training without: do losses differ by more than between seeds?

    python -m benchmarks.swap_curves [--networks resnet18 vit lstm] [--seeds 0 1 2] [--steps 3000] [--out FOLDER]

The networks learn scikit-learn's digits in bfloat16 with float32 master weights. Every run is a process of its own
with empty caches, so that all its plans are open. Tuning begins at once, tries everything, installs winners at any
cost, and spends up to half of the time (`--share`), so that there are many swaps. Both runs of a seed
start from the same weights and use the same batches. Losses are means over a tenth of the steps, compared by their
medians over seeds; differences are given in standard deviations over the seeds without swaps.
Several processes may share a GPU (`--beside`), as only values count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import lamina as lm
from benchmarks.common import versions, write
from benchmarks.tuning import without_database
from lamina import data, nn, ops, optim
from lamina.graph.run import tuning

MODES = ("swaps", "none")
_PARTS = 10


class Rows(nn.Module):
    """A recurrent network that reads an image row by row: (N, 1, S, S) -> (N, 10)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.lstm = nn.LSTM(size, 256, 2, batch_first=True)
        self.last = nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        outputs, _ = self.lstm(x.reshape((x.shape[0], self.size, self.size)))
        return self.last(outputs[:, -1])


def _vit() -> nn.Module:
    """Patches of 8 x 8 pixels at the center of three equal planes."""
    vit = nn.models.VisionTransformer(32, 8, 4, 4, 128, 512, num_classes=10)
    return nn.Sequential(nn.Conv2d(1, 3, 1), vit)


#: Constructor of each network, its images' size, and its highest learning rate.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, float]] = {
    "resnet18": (lambda: nn.resnet18(10, 1), 64, 0.02),
    "vit": (_vit, 32, 0.02),
    "lstm": (lambda: Rows(32), 32, 0.1),
}


def trained(name: str, seed: int, mode: str, steps: int, share: float, device: str) -> dict[str, Any]:
    """One run in this process: the mean losses of its tenths, its accuracy, and the tuning statistics."""
    make, size, peak = NETWORKS[name]
    nn.manual_seed(seed)
    net = make()
    shares = dict.fromkeys(("SHARE", "EAGER", "CALM"), share) | dict.fromkeys(("AS_LONG", "PAYBACK"), 1e9)
    shares |= {"BEGIN": 0.0, "APART": 4}  # steps are short: most parts of contests take longer
    at_once = mock.patch.object(
        tuning.TunedProgram, "is_worth", lambda program, seconds: bool(program.better)
    )
    with mock.patch.multiple(tuning, **shares), at_once, without_database():
        rate = optim.schedule.cosine(peak, steps)
        sgd = optim.SGD(rate, momentum=0.9, weight_decay=5e-4)
        step = lm.train_step(
            net, ops.cross_entropy, sgd, device=device, precision="bf16", tuning=mode == "swaps"
        )
        batches = data.digits(128, size, "train", seed=seed, shift=0.7)
        stream = (batch for epoch in itertools.count() for batch in batches.epoch(epoch))
        losses, swapped = [], []
        for number, (x, labels) in enumerate(itertools.islice(stream, steps)):
            before = step.tuning.swaps
            losses.append(step(x, labels))
            swapped += [number] * (step.tuning.swaps - before)
    predict = lm.infer.Predictor(net, device=device, precision="bf16")
    hits = [
        predict(x).numpy().argmax(1) == labels for x, labels in data.digits(128, size, "validation").epoch(0)
    ]
    values = np.array([loss.item() for loss in losses])
    return {
        "network": name,
        "seed": seed,
        "mode": mode,
        "losses": [float(part.mean()) for part in np.array_split(values, _PARTS)],
        "accuracy": float(np.concatenate(hits).mean()),
        "tuning": str(step.tuning),
        "swapped_before_steps": swapped,
    }


def apart(case: tuple[str, int, str], options: argparse.Namespace) -> dict[str, Any]:
    """`trained` in a process of its own with empty caches."""
    name, seed, mode = case
    command = [sys.executable, "-m", "benchmarks.swap_curves", "--here", mode, "--networks", name]
    command += ["--seeds", str(seed), "--steps", str(options.steps), "--share", str(options.share)]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"LAMINA_CACHE": folder}
        done = subprocess.run(
            [*command, "--device", options.device],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"{name}, seed {seed}, {mode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(runs: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Losses with swaps compared with those without, in standard deviations of the seeds' losses without.

    Both are medians over seeds: a recurrent network's loss has transient peaks, one of which would distort a mean.
    """
    of = {(r["seed"], r["mode"]): r for r in runs if r["network"] == name}
    seeds = sorted({seed for seed, _ in of})
    plain = [of[s, "none"]["losses"] for s in seeds]
    spread = [statistics.stdev(part) for part in zip(*plain, strict=True)]
    usual = {
        mode: [statistics.median(p) for p in zip(*(of[s, mode]["losses"] for s in seeds), strict=True)]
        for mode in MODES
    }
    differences = [a - b for a, b in zip(usual["swaps"], usual["none"], strict=True)]
    return {
        "network": name,
        "median_losses": usual,
        "spread_of_seeds": spread,
        "differences_in_spreads": [d / s for d, s in zip(differences, spread, strict=True)],
        "accuracy": {m: [of[s, m]["accuracy"] for s in seeds] for m in MODES},
        "swaps": [len(of[s, "swaps"]["swapped_before_steps"]) for s in seeds],
        "within": all(abs(d) <= s for d, s in zip(differences, spread, strict=True)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all; the exit status says whether a median loss differs by more than the seeds' spread."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--steps", type=int, default=3000)
    add("--share", type=float, default=0.5, help="of the time that tuning may take")
    add("--device", default="cuda")
    add("--beside", type=int, default=1, help="processes at a time")
    add("--here", choices=MODES, help="one run in this process")
    add("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.here:
        name, seed = options.networks[0], options.seeds[0]
        print(json.dumps(trained(name, seed, options.here, options.steps, options.share, options.device)))
        return 0
    cases = list(itertools.product(options.networks, options.seeds, MODES))
    with ThreadPoolExecutor(options.beside) as threads:
        runs = list(threads.map(lambda case: apart(case, options), cases))
    found = [compared(runs, name) for name in options.networks]
    for row in found:
        apart_by = max(map(abs, row["differences_in_spreads"]))
        print(
            f"{row['network']}: at most {apart_by:.2f} spreads apart, swaps {row['swaps']}, {row['accuracy']}"
        )
    record = {"device": lm.device(options.device).name, "versions": versions(["lamina", "nvidia-cudnn-cu13"])}
    write("swap_curves", record | {"steps": options.steps, "compared": found, "runs": runs}, options.out)
    return int(not all(row["within"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
