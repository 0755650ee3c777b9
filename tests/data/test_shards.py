"""Tar shards: samples, their order over ranks and workers, resumption, what is refused."""

import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina import data
from lamina.data import DataError, transforms
from lamina.data.shards import expand_braces
from tests.helpers import ROOT, shards
from tests.helpers.shards import BATCH, SAMPLES, lines, loader, picture

pytestmark = pytest.mark.feature("B030")
pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("shards")
    assert len(shards.write(made)) == 5
    return made


def read(folder: Path, world_size: int, workers: int, start: int) -> list[str]:
    """What all ranks read of two epochs, in the order of the global batches."""
    found: list[str] = []
    for rank in range(world_size):
        part = loader(folder, rank, world_size, num_workers=workers)
        for epoch, first in ((0, start), (1, 0)):
            found += lines(part, rank, world_size, epoch, first)
    return sorted(found)


# ---- order


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_each_sample_once_in_one_order(folder: Path, world_size: int, workers: int) -> None:
    expected = read(folder, 1, 0, 0)
    for epoch in range(2):
        labels = [int(line.split()[3]) for line in expected if line.startswith(str(epoch))]
        assert sorted(labels) == list(range(SAMPLES))
    assert read(folder, world_size, workers, 0) == expected
    later = [line for line in expected if line >= "0 002"]
    assert read(folder, world_size, workers, 2) == later  # however many ranks there were before


@pytest.mark.parametrize(
    ("world_size", "workers", "kind"),
    [
        pytest.param(2, 1, "processes"),
        pytest.param(4, 2, "threads", marks=pytest.mark.slow),
        pytest.param(4, 2, "processes", marks=pytest.mark.slow),
        pytest.param(3, 4, "processes", marks=pytest.mark.slow),
    ],
)
def test_ranks_in_processes_of_their_own(folder: Path, world_size: int, workers: int, kind: str) -> None:
    command = [sys.executable, "-m", "tests.helpers.shards", str(folder)]
    options = [str(world_size), str(workers), kind, "1"]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        )
        for rank in range(world_size)
    ]
    told = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size, told
    assert [error for _, error in told] == [""] * world_size
    assert sorted(line for out, _ in told for line in out.split("\n") if line) == read(folder, 1, 0, 1)


def test_samples_are_mixed_over_some_shards_at_a_time(folder: Path) -> None:
    whole = data.TarShards(folder / "train-*.tar", mix=2)
    of_shard = np.arange(SAMPLES) // 10
    orders = [whole.order(np.random.default_rng(seed)) for seed in range(4)]
    for order in orders:
        assert sorted(order) == list(range(SAMPLES))
        opened = [shard for shard, _ in itertools.groupby(of_shard[order])]
        first = len(set(of_shard[order[:12]]))
        assert first <= 2 < len(opened)  # mixed, but not over all
    assert len({tuple(o) for o in orders}) == 4
    apart = data.TarShards(folder / "train-*.tar", mix=1).order(np.random.default_rng(0))
    assert len(list(itertools.groupby(of_shard[apart]))) == 5
    mixed = data.TarShards(folder / "train-*.tar").order(np.random.default_rng(0))
    assert len(set(of_shard[mixed[:12]])) > 2


# ---- samples


def test_samples_are_those_of_the_files(folder: Path) -> None:
    found = data.TarShards(str(folder / "train-{000..004}.tar"))
    assert len(found) == SAMPLES
    image, label = found[17]
    assert (image.shape, image.dtype, label) == ((12, 10, 3), np.uint8, 17)
    assert np.abs(image.astype(int) - picture(17)).mean() < 8  # a JPEG
    first = data.TarShards([folder / "train-001.tar"], columns=None)[0]
    assert (first["__key__"], first["cls"], sorted(first)) == ("000000010", 10, ["__key__", "cls", "jpg"])
    assert repr(found) == f"TarShards({SAMPLES} samples in 5 shards)"
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again[17][0], image)
    assert found[-1][1] == found[SAMPLES - 1][1]


def test_every_kind_comes_back(tmp_path: Path) -> None:
    sample = {
        "__key__": "folder/first",
        "png": picture(1),
        "bmp": picture(2),
        "cls": 3,
        "count": -4,
        "txt": "Größe",
        "json": {"a": [1, None]},
        "npy": np.arange(6, dtype=np.float16).reshape(2, 3),
        "bin": b"\x00\xff",
        "seg.png": picture(5)[:, :, :1],
    }
    (path,) = data.write_shards(tmp_path / "%d.tar", [sample])
    found = data.TarShards(path, None)[0]
    assert set(found) == set(sample)
    for name in ("png", "bmp", "npy"):
        np.testing.assert_array_equal(found[name], sample[name])
    for name in ("__key__", "cls", "count", "txt", "json", "bin"):
        assert found[name] == sample[name]
    (again,) = data.write_shards(tmp_path / "again-%d.tar", [sample])
    assert again.read_bytes() == path.read_bytes()


def test_a_picture_and_its_mask_are_cut_alike(tmp_path: Path) -> None:
    data.write_shards(tmp_path / "%d.tar", [{"png": picture(1), "seg.png": picture(1)}])
    found = data.TarShards(tmp_path / "0.tar", ["png", "seg.png"], transforms.RandomCrop(6))
    cut = [found.sample(0, np.random.default_rng(seed)) for seed in range(5)]
    for image, mask in cut:
        np.testing.assert_array_equal(image, mask)
    assert len({image.tobytes() for image, _ in cut}) > 1


def test_names_of_any_length(tmp_path: Path) -> None:
    names = ["x" * n for n in (90, 120, 300)] + ["größer", "a b"]
    (path,) = data.write_shards(tmp_path / "%d.tar", [{"__key__": n, "cls": i} for i, n in enumerate(names)])
    found = data.TarShards(path, None)
    assert [(s["__key__"], s["cls"]) for s in map(found.__getitem__, range(5))] == list(
        zip(names, range(5), strict=True)
    )


# ---- what is refused


def test_a_shard_that_changed_is_noticed(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.tar" for n in range(2)]
    data.write_shards(tmp_path / "%d.tar", [{"txt": "a"}, {"txt": "b" * 600}], samples_per_shard=1)
    before = data.TarShards(paths[0], None)
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(
        DataError, match=r"000000000.txt is not at byte 512, where the index says: the shard has chan"
    ):
        before[0]
    paths[0].write_bytes(b"")
    with pytest.raises(DataError, match="is made again"):
        before[0]


@pytest.mark.parametrize(
    ("sample", "columns", "message"),
    [
        (
            {"txt": "a"},
            ("jpg;png", "txt"),
            "no file of kind jpg;png, only txt; .* one behind the other .*--sort=name",
        ),
        ({"jpg": b"no image", "cls": 1}, ("jpg", "cls"), "0.tar: 000000000.jpg: "),
        ({"cls": b"seven"}, ("cls",), "000000000.cls: invalid literal for int"),
        ({"json": b"{"}, ("json",), "000000000.json: "),
        ({"npy": b"\x80\x04."}, ("npy",), "000000000.npy: "),
        ({"npy": b""}, ("npy",), "000000000.npy: "),
        ({"txt": b"\xff"}, ("txt",), "000000000.txt: "),
    ],
    ids=["missing", "image", "number", "json", "pickle", "empty", "text"],
)
def test_bad_samples_are_named(tmp_path: Path, sample: Any, columns: Any, message: str) -> None:
    data.write_shards(tmp_path / "%d.tar", [sample])
    with pytest.raises(DataError, match=message):
        data.TarShards(tmp_path / "0.tar", columns)[0]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda p: data.TarShards(p / "none-*.tar"), DataError, "there are no such shards"),
        (lambda p: data.TarShards([]), DataError, "there are no shards"),
        (lambda p: data.TarShards(p / "0.tar", mix=0), ValueError, "mix must be at least 1, got 0"),
        (lambda p: data.TarShards(p / "0.tar", None)[1], IndexError, "index 1 is not from -1 to 0"),
        (
            lambda p: data.write_shards(p / "s.tar", []),
            ValueError,
            "needs a place for one number, such as %06d",
        ),
        (lambda p: data.write_shards(p / "%s-%d", []), ValueError, "needs a place for one number"),
        (
            lambda p: data.write_shards(p / "%d", [{"bin": 1}]),
            ValueError,
            "a int is not written as 'bin'; give bytes",
        ),
        (lambda p: data.write_shards(p / "%d", [], samples_per_shard=0), ValueError, "at least 1, got 0"),
    ],
    ids=["pattern", "empty", "mix", "index", "no place", "two places", "kind", "size"],
)
def test_bad_arguments_are_named(tmp_path: Path, call: Any, kind: type[Exception], message: str) -> None:
    data.write_shards(tmp_path / "%d.tar", [{"txt": "a"}])
    with pytest.raises(kind, match=message):
        call(tmp_path)


def test_braces() -> None:
    assert expand_braces("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expand_braces("{x,y}/{0..1}") == ["x/0", "x/1", "y/0", "y/1"]
    assert expand_braces("plain{}") == ["plain{}"]


def test_open_files_are_bounded_and_closed(tmp_path: Path) -> None:
    data.write_shards(tmp_path / "%03d.tar", ({"cls": n} for n in range(80)), samples_per_shard=1)
    before = len(os.listdir("/proc/self/fd"))
    found = data.TarShards(tmp_path / "*.tar", ["cls"])
    assert [found[n] for n in range(80)] == [(n,) for n in range(80)]
    assert len(os.listdir("/proc/self/fd")) - before <= 64
    del found
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_loader_of_shards_tells_what_a_resumed_run_must_find_again(folder: Path) -> None:
    assert loader(folder).describe() == loader(folder, 3, 4, num_workers=2).describe()
    assert loader(folder).describe()["batch_size"] == BATCH
