"""Trains networks of many kinds of ops several times from one seed, and prints a digest of every bit of each run.

python -m tests.helpers.repeated_runs DEVICE RUNS [PRECISION]
"""

import hashlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import lamina as lm
from lamina import nn, ops, optim


class Mixed(nn.Module):
    """Convolutions, norms, pools, dropout, an embedding, an LSTM, attention, indices."""

    def __init__(self) -> None:
        self.conv = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, groups=2),
            nn.GroupNorm(4, 32),
            nn.GELU(),
            nn.Dropout(0.2),
        )
        self.words = nn.Embedding(50, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64 + 32, 10)

    def forward(self, images: Any, words: Any) -> Any:
        seen = ops.mean(self.conv(images), (2, 3))
        told, _ = self.lstm(self.words(words))
        mixed = self.norm(told + self.attention(told, told, told)[0])
        return self.head(ops.cat([seen, ops.amax(mixed, 1)], 1))


def digest(device: str, precision: str) -> str:
    """Of the losses, parameters, buffers, optimizer's and random states after five steps."""
    nn.manual_seed(7)
    step = lm.train_step(
        Mixed(), ops.cross_entropy, optim.AdamW(1e-3), device=device, precision=precision, clip_norm=1.0
    )
    rng = np.random.default_rng(3)
    content = hashlib.sha256()
    for _ in range(5):
        images = rng.standard_normal((32, 3, 16, 16)).astype(np.float32)
        words, labels = rng.integers(0, 50, (32, 12)), rng.integers(0, 10, 32)
        content.update(step((images, words), labels).numpy().tobytes())
    for name, held in step.state.named().items():
        content.update(name.encode() + held.numpy().tobytes())
    return content.hexdigest()


def main(device: str, runs: str, precision: str = "fp32", print: Callable[[str], None] = print) -> None:
    """A line for each run."""
    lm.use_deterministic_algorithms(True)
    for _ in range(int(runs)):
        print(digest(device, precision))


if __name__ == "__main__":
    main(*sys.argv[1:])
