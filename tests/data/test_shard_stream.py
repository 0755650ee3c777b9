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
from tests.helpers import shards, slow_from
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
    assert stream(folder, 1, 4).uneven  # nobody knows that it is not
    assert not stream(folder).uneven
    assert not stream(folder, 1, 4, drop_last=True).uneven
    assert stream(folder, 1, 4, samples=[10] * 5).uneven
    assert not stream(folder, 1, 4, samples=[12] * 5).uneven
    assert not stream(folder, 1, 4, samples=[10] * 5, drop_last=True).uneven


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer": 0}, "must be at least 1 and num_workers at least 0, got 0, 2, 1 and 0"),
        ({"interleave": 5}, "interleave=5 must divide batch_size=12, and be at most the number of shards, 5"),
        ({"samples": [10]}, "samples must be a number for each of 5 shards, got 1"),
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


# ---- shards side by side, and processes


def read_by(folder: Path, world_size: int, start: int = 0, **options: Any) -> list[str]:
    found: list[str] = []
    for rank in range(world_size):
        part = stream(folder, rank, world_size, **options)
        for epoch, first in ((0, start), (1, 0)):
            found += lines(part, rank, world_size, epoch, first)
        part.close()
    return sorted(found)


@pytest.mark.parametrize("interleave", [1, 2, 4])
def test_counted_shards_give_each_sample_once_in_one_order(folder: Path, interleave: int) -> None:
    options: Any = {"interleave": interleave, "samples": [10, 10, 10, 10, 2]}
    expected = read_by(folder, 1, **options)
    if interleave == 1:
        assert expected == read(folder, 1, 0, 0)  # the order is that of what is not counted
    for epoch in range(2):
        labels = [int(line.split()[3]) for line in expected if line.startswith(str(epoch))]
        assert sorted(labels) == list(range(SAMPLES))
    for ranks, workers in ((2, 0), (3, 2), (4, 0)):
        assert read_by(folder, ranks, num_workers=workers, **options) == expected
        assert read_by(folder, ranks, 2, **options) == [line for line in expected if line >= "0 002"]


def counting(folder: Path, rank: int, start: int = 0, **options: Any) -> dict[str, int]:
    """How often each shard is opened for an epoch of one of two ranks."""
    found: dict[str, int] = {}

    def open_it(name: str) -> Any:
        found[Path(name).name] = found.get(Path(name).name, 0) + 1
        return open(name, "rb")

    options |= {"shuffle": False, "samples": [10, 10, 10, 10, 2], "drop_last": True}
    list(stream(folder, rank, 2, open=open_it, **options).epoch(0, start))
    return found


def test_a_rank_reads_the_shards_of_its_part(folder: Path) -> None:
    first, second = (counting(folder, rank, interleave=2) for rank in range(2))
    assert first == {"train-000.tar": 1, "train-002.tar": 1}
    assert second == {"train-001.tar": 1, "train-003.tar": 1}
    assert counting(folder, 0, 2, interleave=1) == {"train-002.tar": 1}


@pytest.mark.parametrize("options", slow_from(1, [{"interleave": 2}, {}]))
def test_processes_read_and_decode(folder: Path, options: Any) -> None:
    expected = read_by(folder, 1, **options)
    assert read_by(folder, 1, num_workers=2, processes=True, **options) == expected
    found = read_by(folder, 2, 1, num_workers=3, processes=True, **options)
    assert found == [line for line in expected if line >= "0 001"]


def test_processes_fill_up_the_last_batch_and_serve_two_loops(folder: Path) -> None:
    options: Any = {"pad_last": True, "shuffle": False, "interleave": 4, "samples": [10, 10, 10, 10, 2]}
    alone = [(labels.tolist(), weights.tolist()) for _, (labels, weights) in stream(folder, 1, 2, **options)]
    by_processes = stream(folder, 1, 2, num_workers=2, processes=True, **options)
    pairs = list(zip(by_processes.epoch(0), by_processes.epoch(0), strict=True))
    for (_, (labels, weights)), (_, (again, _)) in pairs:
        assert (labels.tolist(), weights.tolist()) == alone.pop(0)
        assert again.tolist() == labels.tolist()
    assert not alone
    next(iter(by_processes))  # a loop that is left
    assert len(list(by_processes)) == len(by_processes) == 4
    by_processes.close()


def test_samples_are_counted_once(folder: Path, tmp_path: Path) -> None:
    for file in folder.glob("*.tar"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    one = stream(tmp_path, interleave=3)
    assert one.samples == [10, 10, 10, 10, 2]
    assert (tmp_path / "train-004.tar.count").read_text() == "lamina samples 1 2\n"
    assert one.describe()["interleave"] == 3
    wrong = stream(tmp_path, samples=[11, 10, 10, 10, 2])
    with pytest.raises(
        data.DataError, match=r"train-000.tar: has 10 samples, and sample 11 was counted: remove"
    ):
        list(wrong)
