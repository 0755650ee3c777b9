"""Do N ranks with a part of each batch train like one rank with the whole batch? Every loss of 50 steps, on CPUs.

    LAMINA_RANKS_LIMIT=3600 python -m benchmarks.data_parallel --out benchmarks/results/data_parallel-DATE.json

ResNet-18 with SyncBatchNorm and AlexNet with dropout, SGD with momentum, small images; 2 and 4 ranks started by
MPICH's mpirun, over MPI, and 2 by environment variables, over TCP; with the optimizer's state whole and sharded.
Writes the largest relative difference of a loss, and that of one rank with initial weights perturbed by a rounding:
ResNet-18 on few samples amplifies small differences, so float64 is needed to tell whether ranks compute the same.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from benchmarks.common import processor
from lamina import distributed, nn, ops, optim
from tests.helpers.ranks import run_ranks

STEPS = 50
#: Network, precision, batch, and the images' side by case.
CASES = {
    "resnet18-fp64": ("resnet18", "fp64", 8, 32),
    "resnet18-fp32": ("resnet18", "fp32", 8, 32),
    "alexnet-fp64": ("alexnet", "fp64", 4, 64),
    "alexnet-fp32": ("alexnet", "fp32", 4, 64),
}
#: Relative perturbation of the initial weights of one rank, to see the effect of a rounding.
SHAKEN = 2e-7
#: Launcher, ranks, and whether the optimizer's state is sharded.
RUNS = [
    ("mpirun", 2, False),
    ("mpirun", 4, False),
    ("variables", 2, False),
    ("mpirun", 4, True),
    ("variables", 2, True),
]


def network(name: str) -> nn.Module:
    nn.manual_seed(1)
    return nn.SyncBatchNorm.convert_sync_batchnorm(nn.models.get_model(name, num_classes=10))


def losses(case: str, shaken: float = 0.0, in_shards: bool = False) -> list[float]:
    """Losses of the whole batches; each rank has its part of them."""
    name, precision, batch, side = CASES[case]
    step = lm.train_step(
        network(name),
        ops.cross_entropy,
        optim.SGD(0.01, momentum=0.9),
        device="cpu",
        precision=precision,
        parallel="data",
        shard_optimizer=in_shards,
    )
    first = next(iter(step.state.parameters.values()))
    first.copy_(first.numpy() * (1 + shaken))
    rng, n, me = np.random.default_rng(0), distributed.world_size(), distributed.rank()
    part, found = slice(me * batch // n, (me + 1) * batch // n), []
    for _ in range(STEPS):
        x = rng.standard_normal((batch, 3, side, side)).astype(np.float32)
        y = rng.integers(0, 10, batch)
        found.append(float(step(x[part], y[part]).item()))
    return found


def differences(found: list[float], wanted: list[float]) -> dict[str, float]:
    """The largest relative difference of the first five losses, and of all."""
    each = [abs(a - b) / b for a, b in zip(found, wanted, strict=True)]
    return {"first_five": max(each[:5]), "all": max(each)}


def compare(case: str) -> dict[str, Any]:
    """Each run compared with one rank alone, and with one rank whose initial weights were perturbed by a rounding."""
    alone, rows = losses(case), []
    for launcher, ranks, in_shards in RUNS:
        results = run_ranks(losses, ranks, launcher=launcher, args=(case, 0.0, in_shards))
        assert all(found == results[0] for found in results)
        run = {"launcher": launcher, "ranks": ranks, "in_shards": in_shards}
        rows.append({**run, **differences(results[0], alone)})
        print(case, rows[-1], flush=True)
    shaken = differences(losses(case, SHAKEN), alone)
    print(case, "one rank, shaken", shaken, flush=True)
    name, precision, batch, side = CASES[case]
    facts = {"network": name, "precision": precision, "batch": batch, "side": side}
    return {**facts, "runs": rows, "shaken": shaken, "losses": alone}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=list(CASES), action="append")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    known = json.loads(options.out.read_text())["cases"] if options.out.exists() else {}
    found = known | {case: compare(case) for case in options.case or CASES}
    text = json.dumps(
        {"steps": STEPS, "shaken_by": SHAKEN, "processor": processor(), "cases": found}, indent=1
    )
    options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
