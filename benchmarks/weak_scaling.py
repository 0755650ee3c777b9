"""Weak scaling of a training step: N GPUs with a batch each against one, and PyTorch's DistributedDataParallel.

    python -m benchmarks.weak_scaling --ranks 1 2 --out FOLDER
    python -m benchmarks.weak_scaling --ranks 1 4 --only resnet50 timm/mixer_b16_224 --batch 64
    python -m benchmarks.weak_scaling --device cpu --ranks 1 2 --only small

Each network is PyTorch's; a step is forward pass, cross-entropy, backward pass and SGD with momentum, in bfloat16 on
GPUs. Ways: `lamina` converts the network and trains it with `parallel="data"`, `lamina-shards` with
`shard_optimizer=True` too, `lamina-bf16` sends gradients in bfloat16, `lamina-apart` sends none: each rank trains a
network of its own, so that the time is that of the slowest GPU alone; `ddp` is torch.compile of
DistributedDataParallel with a static graph, under autocast and channels-last, `ddp-bf16` with PyTorch's hook that
sends gradients in bfloat16. Ranks of one network are processes, one per GPU, that run all ways one after the other;
runs with one rank come first, so that the others reuse their plans. A time is that of the slowest rank,
the median of rounds, all of which begin together. Efficiency is the time of the first number of ranks over that of N.
The result file is written after every group of ranks.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

import lamina as lm
from benchmarks.common import processor, versions, write
from benchmarks.torch_backend import Batch, Network, Recurrent, looped, vision
from lamina import convert, distributed, ops, optim
from tests.helpers.ranks import run_ranks

#: The part after a hyphen is an option for several ranks: on one rank such a way equals the one before the hyphen.
WAYS = ("lamina", "lamina-bf16", "lamina-shards", "lamina-apart", "ddp", "ddp-bf16")
#: Measured by default: batches per GPU are those of the literature, and a small one, whose gradients are
#: large for its step.
NETWORKS = {
    "resnet50": Network(vision("resnet50"), (3, 224, 224), 2, 256),
    "alexnet": Network(vision("alexnet"), (3, 224, 224), 4, 1024),
    "alexnet-small-batch": Network(vision("alexnet"), (3, 224, 224), 1, 128),
    "lstm": Network(lambda: Recurrent(nn.LSTM(1024, 1024, 2, batch_first=True), 1024), (100, 1024), 2, 64),
}


def by_lamina(
    model: nn.Module, batch: Batch, way: str, settle: float
) -> tuple[Callable[[], Any], dict[str, Any]]:
    """A step of the converted network on all ranks, after this many seconds of tuning; facts: bytes of the state."""
    x, labels = batch
    compression = "bf16" if way == "lamina-bf16" else None
    together: dict[str, Any] = {
        "parallel": distributed.DataParallel(compression=compression, error_feedback=False),
        "shard_optimizer": way == "lamina-shards",
    }
    step = lm.train_step(
        convert.from_torch(model, x),
        ops.cross_entropy,
        optim.SGD(lr=1e-3, momentum=0.9),
        device=str(x.device),
        precision="bf16" if x.is_cuda else "fp32",
        **(together if distributed.world_size() > 1 and way != "lamina-apart" else {}),
    )
    begin = time.perf_counter()
    while step.number == 0 or (step.tuning.open and time.perf_counter() - begin < settle):
        step(x, labels).item()
    held = sum(t.nbytes for t in step.state.named().values())
    return lambda: step(x, labels), {"state_bytes": held, "kernels": len(step.executable.program.steps)}


def by_pytorch(model: nn.Module, batch: Batch, way: str, meeting: str) -> Callable[[], Any]:
    """A step of DistributedDataParallel, or of the plain network for one rank."""
    x, labels = batch
    ranks = distributed.world_size()
    if x.ndim == 4 and x.is_cuda:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if ranks > 1:
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group(
                "nccl" if x.is_cuda else "gloo",
                f"file://{meeting}",
                rank=distributed.rank(),
                world_size=ranks,
            )
        model = nn.parallel.DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
        if way == "ddp-bf16":
            model.register_comm_hook(None, bf16_compress_hook)
    run = torch.compile(model) if x.is_cuda else model
    rule = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    return looped(run, rule, (x, labels))


def seconds_of(step: Callable[[], Any], rounds: int, seconds: float) -> float:
    """Of one step: each round has the same number of steps on all ranks, and takes as long as on the slowest."""
    for _ in range(3):
        float(step())
    begin = time.perf_counter()
    float(step())
    count = distributed.broadcast_object(max(1, round(seconds / (time.perf_counter() - begin))))
    times = []
    for _ in range(rounds):
        distributed.barrier()
        begin = time.perf_counter()
        for _ in range(count):
            loss = step()
        float(loss)
        times.append((time.perf_counter() - begin) / count)
    return statistics.median(max(each) for each in zip(*distributed.all_gather_object(times), strict=True))


def measured(way: str, network: Network, device: str, given: dict[str, Any], meeting: str) -> dict[str, Any]:
    """One way of one network; frees everything afterwards."""
    torch.manual_seed(0)
    model = network.make().to(device).train()
    x, labels = network.batch(given["device"], given["batch"])
    batch = x.to(device), labels.to(device)
    begin, facts = time.perf_counter(), {}
    if way.startswith("ddp"):
        step = by_pytorch(model, batch, way, meeting)
    else:
        step, facts = by_lamina(model, batch, way, given["settle"])
    float(step())
    first = time.perf_counter() - begin
    ms = round(1e3 * seconds_of(step, given["rounds"], given["seconds"]), 4)
    return {"ms": ms, "first_s": round(first, 2), "batch": len(labels), **facts}


def measure(name: str, ways: list[str], given: dict[str, Any], meeting: str) -> dict[str, Any]:
    """On each rank: the ways of one network, one after the other; a failure is a result."""
    distributed.init(timeout=given["limit"], fault_timeout=None)
    device = "cpu" if given["device"] == "cpu" else f"cuda:{distributed.local_rank()}"
    if device != "cpu":
        torch.cuda.set_device(device)
    network = NETWORKS.get(name) or Network.named(name)
    found: dict[str, Any] = {}
    for way in ways:
        try:
            found[way] = measured(way, network, device, given, meeting)
        except Exception as error:
            found[way] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
            if distributed.world_size() > 1:  # the others may wait for a message that will not come
                break
        if distributed.rank() == 0:
            print(name, distributed.world_size(), way, found[way], flush=True)
    if torch.distributed.is_initialized():
        gc.collect()  # remains of a DistributedDataParallel wait forever when its group is gone
        torch.distributed.destroy_process_group()
    return found


def ways_of(ranks: int, asked: list[str], device: str) -> list[str]:
    """One rank needs no communication options, and PyTorch's hook is for GPUs."""
    return [way for way in asked if (ranks > 1 or "-" not in way) and (device != "cpu" or way != "ddp-bf16")]


def efficiencies(times: dict[int, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By way and number of ranks: the first number's time over theirs."""
    first = times[min(times)]
    found: dict[str, dict[str, float]] = {}
    for ranks, ways in times.items():
        for way, row in ways.items():
            alone = first.get(way.partition("-")[0], {})
            if "ms" in row and "ms" in alone:
                found.setdefault(way, {})[str(ranks)] = round(alone["ms"] / row["ms"], 4)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--only", nargs="*", default=list(NETWORKS), help="(also names that torch_backend takes)"
    )
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--batch", type=int, default=None, help="samples of a rank")
    parser.add_argument("--settle", type=float, default=30, help="most seconds of tuning, on one rank")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a round")
    parser.add_argument("--limit", type=float, default=300, help="seconds for ranks to come")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    networks: dict[str, Any] = {}
    machine = torch.cuda.get_device_name() if given.device == "cuda" else processor()
    facts = versions(["lamina", "torch", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "nccl4py"])
    for name in given.only:
        times: dict[int, dict[str, Any]] = {}
        for ranks in sorted(given.ranks):
            with tempfile.TemporaryDirectory() as folder:
                arguments = (name, ways_of(ranks, given.ways, given.device), vars(given), f"{folder}/meeting")
                times[ranks] = run_ranks(measure, ranks, args=arguments, init=False)[0]
            networks[name] = {"ranks": times, "efficiency": efficiencies(times)}
            record = {"machine": machine, "versions": facts, "networks": networks}
            write(f"weak_scaling_{given.device}", record, given.out)
        print(name, times, networks[name]["efficiency"], flush=True)


if __name__ == "__main__":
    main()
