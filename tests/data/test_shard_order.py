"""The order of shards that are read through: each sample once, equal parts of lanes, and how samples are counted."""

import gzip
import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina import data
from lamina.data.shard_order import batches_in_order, count_samples, counted, drawn
from lamina.data.shard_stream import open_file
from tests.helpers import shards
from tests.helpers.ranks import run_ranks

pytestmark = pytest.mark.feature("B030")
COUNTS = [7, 0, 12, 5, 9, 1, 8]


@pytest.mark.parametrize("lanes", [1, 2, 3, 6])
@pytest.mark.parametrize("seed", [None, 1])
def test_each_sample_once_in_batches_of_one_size(lanes: int, seed: int | None) -> None:
    rng = None if seed is None else np.random.default_rng(seed)
    found = list(batches_in_order(COUNTS, 6, lanes, 9, rng))
    assert [len(batch) for batch in found] == [6] * 7
    samples = list(itertools.chain(*found))
    assert sorted(samples) == [(s, n) for s, count in enumerate(COUNTS) for n in range(count)]
    if seed is None and lanes == 1:
        assert samples == sorted(samples)


def test_lanes_give_equal_parts_while_they_have_samples() -> None:
    first, second, *_, last = batches_in_order([4, 4, 4, 4], 4, 2, 1, None)
    assert first == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert second == [(0, 2), (0, 3), (1, 2), (1, 3)]
    assert last == [(2, 2), (2, 3), (3, 2), (3, 3)]
    *_, short = batches_in_order([9, 1], 4, 2, 1, None)  # the second lane has run out
    assert short == [(0, 7), (0, 8)]


def test_samples_are_drawn_from_some_that_were_read() -> None:
    found = list(drawn(iter(range(50)), 5, np.random.default_rng(0)))
    assert sorted(found) == list(range(50))
    assert all(x <= place + 5 for place, x in enumerate(found))


def test_what_lies_beside_a_shard_serves_while_it_is_new(tmp_path: Path) -> None:
    (plain, *_) = shards.write(tmp_path)
    shard = tmp_path / "a.tar.gz"
    shard.write_bytes(gzip.compress(plain.read_bytes()))
    beside = tmp_path / "a.tar.gz.count"
    assert count_samples(str(shard), open_file) == 10
    beside.write_text("lamina samples 1 77")
    assert count_samples(str(shard), open_file) == 77
    os.utime(beside, ns=(0, 0))
    assert count_samples(str(shard), open_file) == 10
    beside.write_text("nonsense")
    assert count_samples(str(shard), open_file) == 10
    with pytest.raises(data.DataError, match="gone.tar"):
        counted([str(shard), str(tmp_path / "gone.tar")], open_file, together=False)


def ranks_count(folder: str) -> Any:
    """The numbers, how many shards this rank has opened, and the error of one that is not there on all ranks."""
    opened: list[str] = []

    def open_it(name: str) -> Any:
        opened.append(name)
        return open(name, "rb")

    paths = [str(path) for path in sorted(Path(folder).glob("*.tar"))]
    found = counted(paths, open_it, together=True)
    try:
        counted([*paths, f"{folder}/gone.tar"], open_it, together=True)
    except data.DataError as error:
        return found, len(opened), str(error)
    return found, len(opened), ""


def test_ranks_count_together(tmp_path: Path) -> None:
    shards.write(tmp_path)
    first, second = run_ranks(ranks_count, 2, args=(str(tmp_path),))
    assert first[0] == second[0] == [10, 10, 10, 10, 2]
    assert first[1] + second[1] == 6
    assert first[2] == second[2]
    assert "gone.tar" in first[2]
