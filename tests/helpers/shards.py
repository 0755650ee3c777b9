"""Tar shards of small JPEGs, and a program that reads one rank's part of them.

    python -m tests.helpers.shards FOLDER RANK WORLD_SIZE WORKERS threads|processes START

prints a line for each sample read: epoch, batch, index in the batch, label, digest of the augmented image.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from lamina import data
from lamina.data import transforms

SAMPLES, BATCH = 42, 12


def picture(number: int) -> Any:
    """A unique image of 12 x 10 pixels."""
    y, x = np.mgrid[0:12, 0:10]
    waves = np.stack([np.sin(x / 3 + number), np.cos(y / 2 - number), np.sin((x + y) / 5 + 2 * number)], -1)
    return np.round(127 + 100 * waves).astype(np.uint8)


def write(folder: Path, samples: int = SAMPLES, each: int = 10) -> list[Path]:
    """Shards of pictures, whose labels are their numbers."""
    return data.write_shards(
        folder / "train-%03d.tar",
        ({"jpg": picture(n), "cls": n} for n in range(samples)),
        samples_per_shard=each,
    )


def loader(folder: Path, rank: int = 0, world_size: int = 1, **options: Any) -> data.DataLoader:
    """A rank's part of the shards, shuffled and augmented."""
    augmented = transforms.Compose([transforms.RandomCrop(8), transforms.RandomHorizontalFlip()])
    found = data.TarShards(folder / "train-*.tar", transform=augmented, mix=2)
    return data.DataLoader(found, BATCH, True, seed=5, rank=rank, world_size=world_size, **options)


def lines(batches: Any, rank: int, world_size: int, epoch: int, start: int) -> Iterator[str]:
    """A description of each sample."""
    for position, (images, labels) in enumerate(batches.epoch(epoch, start), start):
        for row, (image, label) in enumerate(zip(images, labels, strict=True)):
            place = rank * (BATCH // world_size) + row
            digest = sha256(np.ascontiguousarray(image).tobytes()).hexdigest()[:16]
            yield f"{epoch} {position:03} {place:03} {int(label)} {digest}"


def main(folder: str, rank: str, world_size: str, workers: str, kind: str, start: str) -> None:
    """Print the samples that a rank reads in two epochs, the first from a position on."""
    part = loader(
        Path(folder), int(rank), int(world_size), num_workers=int(workers), processes=kind == "processes"
    )
    for epoch, first in ((0, int(start)), (1, 0)):
        print("\n".join(lines(part, int(rank), int(world_size), epoch, first)), flush=True)
    part.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
