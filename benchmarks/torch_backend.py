"""An unchanged PyTorch training loop, in the same process: eager, torch.compile, `backend="lamina"`.

    python -m benchmarks.torch_backend [--device cpu] [--only resnet18 lstm] [--ways eager lamina] [--out FOLDER]

A step is forward pass, loss, backward pass and SGD with momentum, on a GPU under bf16 autocast; the ways run one
after the other, each behind a reset of Dynamo, and a time is the median of rounds. `converted` is
`lamina.convert.from_torch` with `lamina.train_step`. A way that fails has its error in place of a time. The network
`small` is all overhead. Batches are small on a CPU, and those of the literature on a GPU.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import lamina as lm
from benchmarks.common import processor, versions, write
from lamina import convert, ops, optim
from lamina.convert.torch.backend import lamina

WAYS = ("eager", "compile", "reduce-overhead", "lamina", "converted")
Batch = tuple[torch.Tensor, torch.Tensor]


class Recurrent(nn.Module):
    """A recurrent layer and a linear head on its last output."""

    def __init__(self, layer: nn.Module, features: int) -> None:
        super().__init__()
        self.rnn, self.head = layer, nn.Linear(features, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(x)
        return self.head(y[:, -1])  # type: ignore[no-any-return]


def vision(name: str, **kwargs: Any) -> Callable[[], nn.Module]:
    """One of torchvision's networks."""

    def make() -> nn.Module:
        from tests.helpers.vision import models

        return getattr(models, name)(num_classes=10, **kwargs)  # type: ignore[no-any-return]

    return make


def small_vit() -> nn.Module:
    """ViT-S/16."""
    from tests.helpers.vision import models

    return models.VisionTransformer(224, 16, 12, 6, 384, 1536, num_classes=10)  # type: ignore[no-any-return]


#: Name -> how to make it, the size of a sample, batch on a CPU and on a GPU.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "small": (lambda: nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)), (32,), 8, 8),
    "resnet18": (vision("resnet18"), (3, 112, 112), 4, 256),
    "resnet50": (vision("resnet50"), (3, 224, 224), 2, 128),
    "alexnet": (vision("alexnet"), (3, 224, 224), 4, 256),
    "vgg16": (vision("vgg16"), (3, 224, 224), 1, 64),
    "mobilenet_v2": (vision("mobilenet_v2"), (3, 112, 112), 4, 128),
    "efficientnet_b0": (vision("efficientnet_b0"), (3, 224, 224), 2, 128),
    "vit_s": (small_vit, (3, 224, 224), 2, 128),
    "lstm": (lambda: Recurrent(nn.LSTM(512, 512, batch_first=True), 512), (50, 512), 8, 8),
    "gru_bidirectional": (
        lambda: Recurrent(nn.GRU(512, 512, batch_first=True, bidirectional=True), 1024),
        (50, 512),
        8,
        8,
    ),
}


def in_pytorch(way: str, model: nn.Module, batch: Batch) -> Callable[[], Any]:
    """One step of an ordinary loop."""
    backend: dict[str, Any] = {"compile": {}, "reduce-overhead": {"mode": "reduce-overhead"}}.get(way, {})
    backend = {"backend": lamina} if way == "lamina" else backend
    run = model if way == "eager" else torch.compile(model, **backend)
    rule = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, labels = batch

    def step() -> Any:
        rule.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=x.is_cuda):
            loss = nn.functional.cross_entropy(run(x), labels)
        loss.backward()
        rule.step()
        return loss.detach()

    return step


def converted(model: nn.Module, batch: Batch) -> Callable[[], Any]:
    """One step of the converted network."""
    x, labels = batch
    precision = "bf16" if x.is_cuda else "fp32"
    net = convert.from_torch(model, x)
    rule = optim.SGD(lr=1e-3, momentum=0.9)
    step = lm.train_step(net, ops.cross_entropy, rule, device=str(x.device), precision=precision)
    return lambda: step(x, labels)


def measured(name: str, device: str, ways: list[str], rounds: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of a step in each way, and seconds to its first step."""
    make, shape, on_cpu, on_gpu = NETWORKS[name]
    torch.manual_seed(0)
    model = make().to(device).train()
    count = on_gpu if device == "cuda" else on_cpu
    batch = torch.randn(count, *shape, device=device), torch.randint(0, 10, (count,), device=device)
    found: dict[str, Any] = {"batch": count, "ms": {}, "first_s": {}}
    for way in ways:
        torch.compiler.reset()  # Dynamo keeps what it could not compile for one backend from all others
        begin = time.perf_counter()
        try:
            twin = copy.deepcopy(model)
            step = converted(twin, batch) if way == "converted" else in_pytorch(way, twin, batch)
            float(step())
            found["first_s"][way] = round(time.perf_counter() - begin, 2)
            for _ in range(3):
                float(step())
            times = [timed(step, seconds) for _ in range(rounds)]
            found["ms"][way] = round(statistics.median(times) * 1e3, 4)
        except Exception as error:  # a way that fails is a result
            found["ms"][way] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return found


def timed(step: Callable[[], Any], seconds: float) -> float:
    """Seconds of one step, of as many as fill the time; the last one's loss is waited for."""
    calls, begin = 0, time.perf_counter()
    while True:
        loss = step()
        calls += 1
        if time.perf_counter() - begin > seconds:
            float(loss)
            return (time.perf_counter() - begin) / calls


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda")
    )
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a round of one way")
    parser.add_argument("--threads", type=int, default=None, help="of PyTorch's operators on a CPU")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    results = {}
    for name in given.only:
        results[name] = measured(name, given.device, given.ways, given.rounds, given.seconds)
        print(name, results[name], flush=True)
    machine = torch.cuda.get_device_name() if given.device == "cuda" else processor()
    record = {
        "machine": machine,
        "threads": torch.get_num_threads(),
        "versions": versions(["lamina", "torch", "torchvision", "nvidia-cudnn-cu13"]),
        "networks": results,
    }
    print(write(f"torch_backend_{given.device}", record, given.out))


if __name__ == "__main__":
    main()
