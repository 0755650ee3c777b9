"""Whole training steps and inference, planned for an absent H200 and for a CPU, after all passes.

    python -m tests.helpers.program_plans write        after a pass was changed on purpose: the difference is reviewed
    python -m tests.helpers.program_plans show NAME    each step of a program, to compare two checkouts

A row of the table is a program with its numbers of steps and views, on the GPU the bytes of its arena (on a CPU they
depend on the number of threads), and a digest of all steps: their ops and operands, their kernels, and in-place
updates. Values do not show when a pass misses a fusion, or when memory is not reused.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import lamina as lm
from lamina import nn, ops, optim
from lamina.graph import Executable, Graph, compile, trace
from lamina.nn import init
from lamina.runtime import Device
from lamina.spec import Spec, float32, int64
from lamina.train import compiled_step as training
from tests.helpers.planned import H200
from tests.helpers.processor import HAS_AVX512_VNNI

TABLE = Path(__file__).with_name("program_plans.json")
IMAGES = Spec((8, 3, 32, 32), float32)
LABELS = Spec((8,), int64)


class Block(nn.Module):
    """Depthwise convolution, squeeze-and-excitation, and a residual, as in mobile networks."""

    def __init__(self, channels: int, act: type[nn.Module]) -> None:
        wide = 4 * channels
        self.expand = nn.Sequential(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), act())
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), act()
        )
        self.squeeze, self.excite = nn.Conv2d(wide, 8, 1), nn.Conv2d(8, wide, 1)
        self.project = nn.Sequential(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: Any) -> Any:
        """The same shape again."""
        y = self.depth(self.expand(x))
        s = self.excite(ops.silu(self.squeeze(ops.mean(y, (2, 3), keepdim=True))))
        return x + self.project(y * ops.sigmoid(s))


def mobile(act: type[nn.Module]) -> nn.Module:
    """A stem, two blocks, a head."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), act())
    return nn.Sequential(
        stem, Block(16, act), Block(16, act), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


class Words(nn.Module):
    """Embedded words through a body, a head on the last one."""

    def __init__(self, body: nn.Module, width: int = 32) -> None:
        self.embed, self.body, self.head = nn.Embedding(100, width), body, nn.Linear(width, 10)

    def forward(self, ids: Any) -> Any:
        """(B, T) -> (B, 10)."""
        y = self.body(self.embed(ids))
        return self.head((y[0] if isinstance(y, tuple) else y)[:, -1])


class UNet(nn.Module):
    """Down, up by a transposed convolution, concatenated; group norms with SiLU."""

    def __init__(self) -> None:
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU())
        self.low = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU()
        )
        self.up = nn.ConvTranspose2d(32, 16, 2, 2)
        self.head = nn.Conv2d(32, 10, 1)

    def forward(self, x: Any) -> Any:
        """(B, 3, H, W) -> (B, 10): the mean over the image."""
        y = self.down(x)
        return ops.mean(self.head(ops.cat([y, self.up(self.low(y))], 1)), (2, 3))


def _encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 2)


WORDS = Spec((8, 12), int64)
#: Networks: their constructors and inputs.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Spec]] = {
    "resnet18": (lambda: nn.models.resnet18(num_classes=10), IMAGES),
    "mobile silu": (lambda: mobile(nn.SiLU), IMAGES),
    "mobile relu6": (lambda: mobile(nn.ReLU6), IMAGES),
    "unet": (UNet, IMAGES),
    "lstm": (lambda: Words(nn.LSTM(256, 256, 2, batch_first=True, dropout=0.2), 256), WORDS),
    "gru": (lambda: Words(nn.GRU(256, 256, batch_first=True), 256), WORDS),
    "encoder": (lambda: Words(_encoder(False)), WORDS),
    "encoder, norms first": (lambda: Words(_encoder(True)), WORDS),
}
RECURRENT = ("lstm", "gru")
#: Options of a step: arguments of `train_step`.
STEPS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": lambda: optim.SGD(0.1, momentum=0.9, weight_decay=1e-4)},
    "adamw, clipped": {"optimizer": lambda: optim.AdamW(1e-3), "clip_norm": 1.0},
    "accumulated": {"optimizer": lambda: optim.SGD(0.1), "accumulate": 2},
    "float16": {"optimizer": lambda: optim.Adam(1e-3), "precision": "fp16"},
    "bfloat16": {"optimizer": lambda: optim.Lion(1e-4), "precision": "bf16"},
}


class _Planned(Exception):
    """Raised after planning: the training step is not needed."""


def training_program(
    make: Callable[[], nn.Module], given: Spec, device: Device, options: dict[str, Any]
) -> Executable:
    """A training step's program for a device that may be absent."""
    found: list[Executable] = []

    def compiled(graph: Graph, _: Any, **more: Any) -> Executable:
        found.append(compile(graph, device, **{k: v for k, v in more.items() if k != "backend"}))
        raise _Planned

    more = dict(options)
    with init.skipped(), mock.patch.object(training, "compile", compiled):
        step = lm.train_step(make(), ops.cross_entropy, more.pop("optimizer")(), device="cpu", **more)
        with suppress(_Planned):
            step.program(given, LABELS)
    return found[-1]


def inference_program(make: Callable[[], nn.Module], given: Spec, device: Device) -> Executable:
    """A network's inference program."""
    nn.manual_seed(0)  # norms are folded into the weights
    return compile(trace(make().eval(), given), device)


def programs() -> Iterator[tuple[str, Callable[[], Executable]]]:
    """Names of programs, with planning functions. For an absent GPU recurrent ones are planned only in half
    types, by Lamina's kernels."""
    for where, device in (("cpu", Device("cpu")), ("h200", H200)):
        for name, (make, given) in NETWORKS.items():
            half = {"precision": "bf16"} if where == "h200" else {}
            yield f"{where} {name}", partial(training_program, make, given, device, {**STEPS["sgd"], **half})
            if where == "cpu" or name not in RECURRENT:
                yield f"{where} {name}, inference", partial(inference_program, make, given, device)
        for name in ("mobile silu", "encoder"):
            for kind, options in STEPS.items():
                yield f"{where} {name}, {kind}", partial(training_program, *NETWORKS[name], device, options)


def steps_of(found: Executable) -> list[str]:
    """Each step: its implementation, op and slots, and whose memory it overwrites. oneDNN's kernels are the
    processor's."""
    names: dict[int, str] = {}
    cpu = found.device.kind == "cpu"

    def named(slot: Any) -> str:
        return names.setdefault(id(slot), f"{len(names)}")

    lines = []
    for step in (*found.program.prologue, *found.program.steps):
        kernel = step.plan.label.split()[0] if cpu else re.sub(r" eng\S+", "", step.plan.label)
        op = str(step.node.op) if step.node else "reorder"
        given, made = (" ".join(map(named, slots)) for slots in (step.inputs, step.outputs))
        lines.append(f"{kernel}: {op} of {given} -> {made} {dict(step.plan.aliases)}")
    return lines


def row(found: Executable) -> str:
    """A program's row."""
    lines = steps_of(found)
    views = sum(bool(s.plan.view) for s in found.program.steps)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]
    arena = "" if found.device.kind == "cpu" else f"{found.program.placement.nbytes} bytes, "
    return f"{len(lines)} steps, {views} views, {arena}{digest}"


def main(arguments: list[str]) -> None:
    """The command line of the docstring."""
    if arguments == ["write"]:
        kept = {} if HAS_AVX512_VNNI else json.loads(TABLE.read_text(encoding="utf-8"))
        rows = {
            name: kept[name] if name.startswith("cpu") and name in kept else row(make())
            for name, make in programs()
        }
        TABLE.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    else:
        print("\n".join(steps_of(dict(programs())[arguments[1]]())))


if __name__ == "__main__":
    main(sys.argv[1:])
