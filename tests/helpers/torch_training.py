"""Networks and training loops in idiomatic PyTorch, for comparisons with PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lamina.convert.torch.backend import lamina

Batch = tuple[torch.Tensor, torch.Tensor]


def compiled(model: Any, **kwargs: Any) -> Any:
    """The model compiled by this package, by the function of its entry point."""
    torch._dynamo.reset()
    return torch.compile(model, backend=lamina, **kwargs)


class ConvNet(nn.Module):
    """Convolutions with batch norm, in-place activations and dropout."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.second = nn.Conv2d(8, 12, 3, stride=2, bias=False)
        self.norm, self.drop, self.head = nn.BatchNorm2d(12), nn.Dropout(p), nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.second(self.first(x))), inplace=True)
        return self.head(self.drop(F.adaptive_avg_pool2d(x, 1).flatten(1)))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """A transformer encoder over embedded tokens, whose head shares the embedding's weight."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=p, batch_first=True, activation="gelu")
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(x))).mean(1)  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A recurrent layer between an input and a linear head."""

    def __init__(self, kind: str, **kwargs: Any) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(6, 8, batch_first=True, **kwargs)
        size = (kwargs.get("proj_size") or 8) * (2 if kwargs.get("bidirectional") else 1)
        self.head = nn.Linear(size, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.rnn(x)
        return self.head(y[:, -1])  # type: ignore[no-any-return]


def images(step: int, count: int = 4) -> Batch:
    """A batch for `ConvNet`."""
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(0, 5, (count,), generator=generator)
    return torch.randn(count, 3, 8, 8, generator=generator), labels


def tokens(step: int, count: int = 4) -> Batch:
    """A batch for `Encoder`."""
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(0, 11, (count,), generator=generator)
    return torch.randint(0, 11, (count, 7), generator=generator), labels


def sequences(step: int, count: int = 4) -> Batch:
    """A batch for `Recurrent`."""
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(0, 5, (count,), generator=generator)
    return torch.randn(count, 7, 6, generator=generator), labels


def trained(
    model: nn.Module,
    run: Callable[..., torch.Tensor],
    batches: Callable[[int], Batch],
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    steps: int = 10,
) -> list[float]:
    """The losses of an ordinary training loop."""
    rule = optimizer([p for p in model.parameters() if p.requires_grad])
    losses = []
    for step in range(steps):
        x, labels = batches(step)
        rule.zero_grad()
        loss = F.cross_entropy(run(x).float(), labels)
        loss.backward()
        rule.step()
        losses.append(loss.item())
    return losses


def both(
    model: nn.Module, batches: Callable[[int], Batch], **kwargs: Any
) -> tuple[list[float], list[float], nn.Module, nn.Module]:
    """Losses without and with this package, and the two trained models."""
    twin = copy.deepcopy(model)
    eager = trained(model, model, batches, **kwargs)
    return eager, trained(twin, compiled(twin), batches, **kwargs), model, twin


def differences(a: nn.Module, b: nn.Module) -> float:
    """The largest difference of the two models' states."""
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max((x.double() - y.double()).abs().max().item() for x, y in pairs)


def gradients_of(model: nn.Module, y: torch.Tensor) -> Sequence[torch.Tensor]:
    """The gradients of the sum of squares."""
    return torch.autograd.grad(y.square().sum(), list(model.parameters()))
