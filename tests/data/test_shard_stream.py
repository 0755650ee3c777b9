"""Shards that are read through: the same order for any number of ranks and workers, resumption, compressed shards."""

import gzip
import itertools
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lamina import data
from lamina.data import transforms
from tests.helpers import shards
from tests.helpers.shards import SAMPLES, lines

pytestmark = pytest.mark.feature("B030")
pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, of which every second is compressed."""
    made: Path = tmp_path_factory.mktemp("stream")
    for path in shards.write(made)[::2]:
        path.write_bytes(gzip.compress(path.read_bytes()))
    return made


def stream(folder: Path, rank: int = 0, world_size: int = 1, **options: Any) -> data.ShardStream:
    options = {"shuffle": True, "buffer": 15, "transform": transforms.RandomCrop(8)} | options
    return data.ShardStream(
        folder / "train-*.tar", shards.BATCH, seed=5, rank=rank, world_size=world_size, **options
    )


def read(folder: Path, world_size: int, workers: int, start: int) -> list[str]:
    found: list[str] = []
    for rank in range(world_size):
        part = stream(folder, rank, world_size, num_workers=workers)
        for epoch, first in ((0, start), (1, 0)):
            found += lines(part, rank, world_size, epoch, first)
    return sorted(found)


@pytest.mark.parametrize(("world_size", "workers"), [(1, 2), (2, 0), (3, 1), (4, 2)])
def test_each_sample_once_in_one_order(folder: Path, world_size: int, workers: int) -> None:
    expected = read(folder, 1, 0, 0)
    for epoch in range(2):
        labels = [int(line.split()[3]) for line in expected if line.startswith(str(epoch))]
        assert labels != sorted(labels)
        assert sorted(labels) == list(range(SAMPLES))
    assert read(folder, world_size, workers, 0) == expected
    assert read(folder, world_size, workers, 2) == [line for line in expected if line >= "0 002"]


def test_loops_are_epochs_and_the_last_batch_is_as_elsewhere(folder: Path) -> None:
    plain = stream(folder, shuffle=False, transform=None)
    first = [labels.tolist() for _, labels in plain]
    assert list(itertools.chain(*first)) == list(range(SAMPLES))
    assert [len(b) for b in first] == [12, 12, 12, 6]
    assert [len(labels) for _, labels in stream(folder, drop_last=True)] == [12, 12, 12]
    (_, (labels, weights)) = list(stream(folder, 1, 2, pad_last=True, shuffle=False))[-1]
    assert labels.tolist() == list(range(36, 42))
    assert not weights.any()
    shuffled = stream(folder)
    assert [labels.tolist() for _, labels in shuffled] != [labels.tolist() for _, labels in shuffled]
    assert shuffled.next_epoch == 2


def test_a_pipe_is_read(folder: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    content = (folder / "train-000.tar").read_bytes()
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    found = [labels.tolist() for _, labels in data.ShardStream(pipe, 4)]
    writer.join()
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_files_are_closed_when_the_loop_ends(folder: Path) -> None:
    opened: list[Any] = []

    def open_it(name: str) -> Any:
        opened.append(open(name, "rb"))  # noqa: SIM115
        return opened[-1]

    for _ in stream(folder, open=open_it, num_workers=2, buffer=1):
        break
    batches = stream(folder, open=open_it, num_workers=0).epoch(0)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert opened
    assert all(file.closed for file in opened)


def test_what_a_stream_says_of_itself(folder: Path) -> None:
    one = stream(folder)
    with pytest.raises(TypeError, match="a stream does not know how many batches it has; length= says it"):
        len(one)
    assert len(stream(folder, length=4)) == 4
    assert isinstance(one, data.Epochs)
    assert one.describe() == stream(folder, 1, 4).describe()
    assert one.describe()["shards"][0] == "train-000.tar"
    assert repr(one) == "ShardStream(5 shards, batches of 12)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer": 0}, "must be at least 1 and num_workers at least 0, got 0, 2 and 0"),
        ({"drop_last": True, "pad_last": True}, "take one of them"),
        (
            {"world_size": 5},
            "batch_size=12 is that of all ranks and must be a multiple of world_size=5, such as 10",
        ),
    ],
)
def test_bad_arguments_are_named(folder: Path, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stream(folder, **options)


def test_a_stream_that_breaks_off_is_named(tmp_path: Path, folder: Path) -> None:
    broken = tmp_path / "broken.tar"
    broken.write_bytes((folder / "train-000.tar").read_bytes()[:-40])
    with pytest.raises(data.DataError, match=r"broken.tar: is no tar that can be read here"):
        list(data.ShardStream(broken, 4))
