"""The AlexNet of the comparison, in PyTorch: the same network, loss and optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def alexnet(classes: int = 10) -> nn.Module:
    """1×224×224 → 10, the layers of lamina.nn.AlexNet."""
    return nn.Sequential(
        nn.Conv2d(1, 96, 11, 4),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(96, 256, 5, 1, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(256, 384, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(384, 384, 3, 1, 1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, 1, 1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Linear(6400, 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(4096, classes),
    )


class Trainer:
    """A training step: forward, backward, SGD with momentum.

    autocast: a dtype for torch.autocast, with float32 master weights, or None.
    """

    def __init__(
        self,
        device: str,
        *,
        channels_last: bool,
        dtype: torch.dtype = torch.float32,
        autocast: torch.dtype | None = None,
        fused: bool = True,
    ) -> None:
        memory = torch.channels_last if channels_last else torch.contiguous_format
        self.net = alexnet().to(device=device, dtype=dtype, memory_format=memory)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9, fused=fused)
        self.device, self.memory, self.dtype, self.autocast = device, memory, dtype, autocast

    def inputs(self, batch: int) -> tuple[Any, Any]:
        """Random images and labels on the device."""
        x = torch.randn(batch, 1, 224, 224, device=self.device, dtype=self.dtype)
        return x.contiguous(memory_format=self.memory), torch.randint(0, 10, (batch,), device=self.device)

    def step(self, x: Any, labels: Any) -> Any:
        """One step; returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, dtype=self.autocast, enabled=self.autocast is not None):
            loss = nn.functional.cross_entropy(self.net(x).float(), labels)
        loss.backward()
        self.optimizer.step()
        return loss

    def infer(self, x: Any) -> Any:
        """Logits, without gradients."""
        with torch.inference_mode():
            return self.net.eval()(x)
