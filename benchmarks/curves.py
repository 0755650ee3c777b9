"""The same training in Lamina and in PyTorch: do losses and accuracies agree?

Both start from the same weights and use the same batches of scikit-learn's digits, in float32 or with bf16 and
float32 master weights, SGD with momentum, weight decay and a cosine schedule; dropout is off, so that only arithmetic
differs. The networks are AlexNet and ResNet-18. Accuracy is on the validation digits, after the last step.

    python -m benchmarks.curves [--device cuda] [--steps 200] [--seeds 0 1 2] [--json] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lamina as lm
from benchmarks import networks
from benchmarks.common import versions, write
from benchmarks.peer_torch import build
from lamina import data, nn, ops, optim
from lamina.data import Batches

#: Constructor of each network, its images' size, and its highest learning rate.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], networks.Layers, int, float]] = {
    "alexnet": (lambda: nn.AlexNet(1, 10, 0.0), networks.alexnet(10, 0.0), 224, 0.006),
    "resnet18": (lambda: nn.resnet18(10, 1), networks.resnet18(10), 64, 0.02),
}
MOMENTUM, DECAY = 0.9, 5e-4
Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def stream(batches: Batches, steps: int) -> Iterator[Batch]:
    """The first `steps` batches, epoch after epoch."""
    epochs = (batch for epoch in itertools.count() for batch in batches.epoch(epoch))
    return itertools.islice(epochs, steps)


class Lamina:
    """A network of lamina.nn in training."""

    def __init__(self, net: nn.Module, rate: Callable[[int], float], device: str, precision: str) -> None:
        self.net, self.device, self.precision = net, device, precision
        sgd = optim.SGD(rate, momentum=MOMENTUM, weight_decay=DECAY)
        self.step = lm.train_step(
            net, partial(ops.cross_entropy, ignore_index=None), sgd, device=device, precision=precision
        )

    def train(self, x: Any, labels: Any) -> Any:
        """The loss of one step, without synchronization."""
        return self.step(x, labels)

    def predictor(self) -> Callable[[Any], np.ndarray[Any, Any]]:
        """Logits in inference mode, with the current weights."""
        made = lm.infer.Predictor(self.net, device=self.device, precision=self.precision)
        return lambda x: made(x).numpy()


class Torch:
    """The same network in PyTorch, from the same weights."""

    def __init__(
        self, start: nn.Module, layers: networks.Layers, shape: tuple[int, ...], device: str, precision: str
    ) -> None:
        self.net = build(layers, shape)
        load(self.net, start)
        self.net.to(device)
        self.device, self.low = device, precision == "bf16"
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1.0, momentum=MOMENTUM, weight_decay=DECAY)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device, dtype=torch.bfloat16) if self.low else nullcontext()

    def train(self, x: Any, labels: Any, rate: float) -> Any:
        """The loss of one step, without synchronization."""
        self.optimizer.param_groups[0]["lr"] = rate
        self.net.train().zero_grad(set_to_none=True)
        with self._autocast():
            y = self.net(torch.from_numpy(x).to(self.device))
        loss = torch.nn.functional.cross_entropy(y.float(), torch.from_numpy(labels).to(self.device))
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def predictor(self) -> Callable[[Any], np.ndarray[Any, Any]]:
        """Logits in inference mode, with the current weights."""
        self.net.eval()

        def predict(x: Any) -> np.ndarray[Any, Any]:
            with torch.no_grad(), self._autocast():
                return self.net(torch.from_numpy(x).to(self.device)).float().cpu().numpy()

        return predict


def load(theirs: torch.nn.Module, ours: nn.Module) -> None:
    """Copy weights by their order, which is the same. Raises ValueError if shapes differ."""
    mine, target = list(ours.state_dict().values()), theirs.state_dict()
    if [tuple(v.shape) for v in mine] != [tuple(v.shape) for v in target.values()]:
        raise ValueError("the two networks differ in the shapes of their weights")
    values = (torch.from_numpy(np.array(v.numpy())) for v in mine)
    theirs.load_state_dict(dict(zip(target, values, strict=True)))


def compare(name: str, precision: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train both and return losses and accuracies."""
    make, layers, size, peak = NETWORKS[name]
    nn.manual_seed(seed)
    net = make()
    rate = optim.schedule.cosine(peak, options.steps)
    theirs = Torch(net, layers, (1, size, size), options.device, precision)
    ours = Lamina(net, rate, options.device, precision)
    seen = data.digits(options.batch, size, "train", seed=seed, shift=0.7)
    losses: list[tuple[Any, Any]] = []
    for i, (x, labels) in enumerate(stream(seen, options.steps)):
        losses.append((ours.train(x, labels), theirs.train(x, labels, rate(i))))
    predictors = {"lamina": ours.predictor(), "torch": theirs.predictor()}
    hits, count = dict.fromkeys(predictors, 0), 0
    for x, labels in data.digits(options.batch, size, "validation").epoch(0):
        count += len(labels)
        for who, predict in predictors.items():
            hits[who] += int((predict(x).argmax(1) == labels).sum())
    return {
        "network": name,
        "precision": precision,
        "seed": seed,
        "accuracy": {who: n / count for who, n in hits.items()},
        "losses": {
            "lamina": [round(float(a.item()), 5) for a, _ in losses],
            "torch": [round(float(b.item()), 5) for _, b in losses],
        },
    }


def means(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy over the seeds by network and precision, and the difference in points."""
    rows = []
    for key in dict.fromkeys((r["network"], r["precision"]) for r in runs):
        mine = [r["accuracy"] for r in runs if (r["network"], r["precision"]) == key]
        mean = {who: 100 * statistics.mean(a[who] for a in mine) for who in ("lamina", "torch")}
        row = {"network": key[0], "precision": key[1], "seeds": len(mine), "accuracy": mean}
        rows.append(row | {"difference": mean["lamina"] - mean["torch"]})
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Compare and print; the exit status says whether Lamina is more than half a point behind anywhere."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    add("--precisions", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--steps", type=int, default=200)
    add("--batch", type=int, default=64)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--json", action="store_true")
    add("--out", type=Path)
    options = parser.parse_args(arguments)
    runs = []
    for case in itertools.product(options.networks, options.precisions, options.seeds):
        runs.append(compare(*case, options))
        last = runs[-1]
        ends = {who: statistics.mean(v[-10:]) for who, v in last["losses"].items()}
        print(
            *case,
            *(f"{w} {100 * a:.2f} % loss {ends[w]:.4f}" for w, a in last["accuracy"].items()),
            flush=True,
        )
        if options.json:
            record = {"what": "accuracy in percent on validation digits", "steps": options.steps}
            record |= {"batch": options.batch, "device": lm.device(options.device).name}
            record |= {"versions": versions(["lamina", "torch", "numpy", "nvidia-cudnn-cu13"])}
            write("curves", record | {"means": means(runs), "runs": runs}, options.out)
    for row in means(runs):
        print(f"{row['network']} {row['precision']}: Lamina - PyTorch {row['difference']:+.2f} points")
    return int(any(row["difference"] < -0.5 for row in means(runs)))


if __name__ == "__main__":
    raise SystemExit(main())
