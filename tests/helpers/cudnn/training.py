"""Whole training steps planned for absent machines: run in a process that sees a libcuda without devices.

    python -m tests.helpers.cudnn.training MACHINE NETWORK …

Prints a JSON object: network -> result.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lamina import graph, nn, ops, optim, train_step
from lamina.backends.cuda.launch.program import Launch, Launches, Program, SubPlan, Together
from lamina.graph import Executable
from lamina.nn.models.resnet import resnet18
from lamina.runtime import Device
from lamina.spec import Spec, float32, int64
from lamina.train import compiled_step as steps
from tests.helpers.planned import KINDS

BATCH = 16


class Recurrent(nn.Module):
    """The last output of an LSTM, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(128, 256), nn.Linear(256, 16)

    def forward(self, x: Any) -> Any:
        """[T, B, I] -> [B, 16]."""
        return self.head(self.lstm(x)[0][-1])


class Encoder(nn.Module):
    """The mean of an encoder layer's outputs, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
        self.head = nn.Linear(256, 16)

    def forward(self, x: Any) -> Any:
        """[B, T, F] -> [B, 16]."""
        return self.head(ops.mean(self.layer(x), 1))


def residual() -> nn.Module:
    """ResNet-18 of two stages: windows of 7, 3 and 1, of strides 1 and 2, each with its epilogue."""
    net = resnet18(num_classes=16)
    net.layer3, net.layer4, net.fc = nn.Identity(), nn.Identity(), nn.Linear(128, 16)
    return net


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (residual, (BATCH, 3, 64, 64)),
    "lstm": (Recurrent, (12, BATCH, 128)),
    "encoder": (Encoder, (BATCH, 64, 256)),
}


def planned(name: str, device: Device) -> Executable:
    """The training step of a network in bf16, compiled for a device that stands for a machine."""
    make, shape = NETWORKS[name]
    found: list[Executable] = []

    def compile(made: graph.Graph, _: Device, **options: Any) -> Executable:
        found.append(graph.compile(made, device, **options))
        return graph.compile(made, "cpu", **{**options, "backend": "null"})

    steps.compile = compile
    step = train_step(
        make(), ops.cross_entropy, optim.SGD(lr=0.1, momentum=0.9), device="cpu", precision="bf16"
    )
    step.program(Spec(shape, float32), Spec((BATCH,), int64))
    return found[0]


def programs(made: Sequence[Any]) -> Iterator[Program]:
    """The programs launched by Lamina's kernels, including nested plans."""
    for step in made:
        if isinstance(step, Launch | Together):
            yield step.program
        if isinstance(step, Together):
            yield from programs(step.otherwise)
        if isinstance(step, SubPlan) and isinstance(step.plan.make, Launches):
            yield from programs(step.plan.make.steps)


def result(name: str, device: Device) -> dict[str, Any]:
    """The plans of the steps, and Lamina's kernels to compile."""
    plans = [s.plan for s in planned(name, device).program.steps if not s.plan.view]
    own = {p for plan in plans if isinstance(plan.make, Launches) for p in programs(plan.make.steps)}
    return {"labels": [plan.label for plan in plans], "programs": [[p.name, p.file, p.text] for p in own]}


if __name__ == "__main__":
    machine, *networks = sys.argv[1:]
    print(json.dumps({name: result(name, KINDS[machine]) for name in networks}))
