"""The plan store: what is remembered, and what becomes of files that others wrote, tore or edited."""

import json
import multiprocessing
import os
import stat
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from lamina.cudnn import Choice, PlanStore, StoredChoice
from lamina.runtime import digest


def store(folder: Path) -> PlanStore:
    return PlanStore("NVIDIA H200", "9.19.0", folder)


@pytest.mark.feature("B010", "F086", "F087")
def test_choices_survive(tmp_path: Path) -> None:
    first = store(tmp_path)
    choice = Choice("deep", 62, ((2, 0), (13, 1)), 0.5)
    first.put("conv a", choice)
    first.put("conv b", Choice("direct"))
    again = store(tmp_path)
    assert again.get("conv a") == choice
    assert again.get("conv a").key == (62, ((2, 0), (13, 1)))  # type: ignore[union-attr]
    assert again.get("conv b") == Choice("direct")
    assert again.get("conv c") is None
    assert again.path.name == "NVIDIA-H200-9.19.0.jsonl"
    assert PlanStore("NVIDIA H200", "9.20.0", tmp_path).get("conv a") is None  # another version, another file


@pytest.mark.feature("B010")
def test_what_is_no_cudnn_graph_has_no_engine_and_no_times(tmp_path: Path) -> None:
    """As it is made, in the file, and read again."""
    first = store(tmp_path)
    first.put("conv", Choice("direct"))
    again = store(tmp_path).get("conv")
    assert again is not None
    assert again.key == Choice("direct").key == (-1, ())
    assert (again.milliseconds, again.heuristic) == (0.0, 0.0)
    line = json.loads(json.loads(first.path.read_text())["choice"])
    assert line == {
        "key": "conv", "way": "direct", "engine": -1, "knobs": [], "milliseconds": 0.0, "heuristic": 0.0,
    }  # fmt: skip


@pytest.mark.feature("B010")
def test_all_that_was_measured_survives(tmp_path: Path) -> None:
    choice = Choice("deep", 62, ((2, 0), (13, 1)), 0.5, 0.75)
    store(tmp_path).put("k", choice, "conv", (8, 64))
    again = store(tmp_path)
    assert (again.get("k"), again.placed("conv")) == (choice, {(8, 64): choice})


@pytest.mark.feature("B010")
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1, 2]\n",
        b"null\n",
        b'{"k": 1}\n',
        b'{"check": "0", "choice": "{}"}\n',
        b"\x00\xff\n",
        b"[" * 200_000 + b"\n",
    ],
    ids=lambda content: content[:20].decode(errors="replace"),
)
def test_what_is_torn_is_ignored(tmp_path: Path, content: bytes) -> None:
    """And what is written behind it counts."""
    place = store(tmp_path).path
    place.write_bytes(content)
    place.chmod(0o600)
    damaged = store(tmp_path)
    assert damaged.get("k") is None
    damaged.put("new", Choice("plain", 1))
    assert store(tmp_path).get("new") == Choice("plain", 1)


@pytest.mark.feature("B010")
@pytest.mark.parametrize("left", [1, 20, 60, 100])
def test_a_write_that_was_cut_off(tmp_path: Path, left: int) -> None:
    """A crash within a write: what was written before it and after it counts, the truncated line does not."""
    first = store(tmp_path)
    first.put("before", Choice("plain", 1))
    whole = first.path.read_bytes()
    first.put("truncated", Choice("plain", 2))
    first.path.write_bytes(first.path.read_bytes()[: len(whole) + left])
    second = store(tmp_path)
    second.put("behind", Choice("plain", 3))
    third = store(tmp_path)
    assert third.keys() == ["before", "behind"]
    assert third.get("behind") == Choice("plain", 3)


@pytest.mark.feature("B010")
def test_an_edited_line_is_passed_over(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.put("good", Choice("plain", 3, ((1, 2),), 0.25))
    first.put("changed", Choice("plain", 58))
    first.path.write_bytes(first.path.read_bytes().replace(b"58", b"59"))
    assert store(tmp_path).keys() == ["good"]


@pytest.mark.feature("B010", "F086")
def test_choices_of_others_are_seen_and_forgotten(tmp_path: Path) -> None:
    mine, other = store(tmp_path), store(tmp_path)
    assert mine.get("k") is None
    other.put("k", Choice("plain", 7))
    assert mine.get("k") == Choice("plain", 7)
    other.put("k", Choice("plain", 8))
    assert store(tmp_path).get("k") == Choice("plain", 8)
    mine.clear()
    assert mine.get("k") is None
    assert not mine.path.exists()
    other.put("l", Choice("plain", 9))
    assert mine.get("l") == Choice("plain", 9)


def _write(folder: str, worker: int) -> None:
    mine = PlanStore("NVIDIA H200", "9.19.0", Path(folder))
    for number in range(20):
        mine.put(f"{worker} {number}", Choice("plain", number))


@pytest.mark.feature("B010")
def test_many_processes_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_write, args=(str(tmp_path), n)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [w.exitcode for w in workers] == [0, 0, 0]
    assert store(tmp_path).keys() == sorted(f"{w} {n}" for w in range(3) for n in range(20))


@pytest.mark.feature("B010", "B040")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = PlanStore("NVIDIA H200", "9.19.0", tmp_path / "file" / "plans")
    blocked.put("k", Choice("plain", 1))
    assert blocked.get("k") == Choice("plain", 1)
    with pytest.raises(OSError, match="plans"):
        blocked.write([StoredChoice("k", Choice("plain", 2))])


def test_a_choice_for_which_there_is_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The part that was written is passed over, and what comes next stands in a line of its own."""
    written = os.write
    first = store(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, text: written(file, text[: len(text) // 2]))
        with pytest.raises(OSError, match="No space left"):
            first.write([StoredChoice("k", Choice("plain", 1))])
        first.put("l", Choice("plain", 2))
    first.put("m", Choice("plain", 3))
    assert store(tmp_path).keys() == ["m"]


@pytest.mark.feature("B010", "B042")
@pytest.mark.parametrize("which", ["file", "folder"])
def test_choices_that_others_may_have_written_are_not_taken(tmp_path: Path, which: str) -> None:
    folder = tmp_path / "plans"
    first = store(folder)
    first.put("k", Choice("plain", 1))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    content = first.path.read_bytes()
    changed = first.path if which == "file" else folder
    changed.chmod(0o777)
    second = store(folder)
    with pytest.warns(RuntimeWarning, match="it can be written by others"):
        assert second.get("k") is None
    second.put("k", Choice("plain", 2))
    assert second.get("k") == Choice("plain", 2)  # in memory alone
    assert first.path.read_bytes() == content


@pytest.mark.feature("B010")
@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"key": "k", "way": "w", "engine": Infinity, "knobs": [], "milliseconds": 1}']
)
def test_a_sealed_line_that_is_no_choice_is_passed_over(tmp_path: Path, text: str) -> None:
    place = store(tmp_path).path
    place.touch(0o600)
    place.write_text(json.dumps({"check": digest(text)[:16], "choice": text}) + "\n")
    assert store(tmp_path).get("k") is None


@pytest.mark.feature("B010", "F081")
def test_choices_with_a_place_are_found_by_it(tmp_path: Path) -> None:
    first, other = store(tmp_path), store(tmp_path)
    first.put("k", Choice("plain", 1), "conv", (8, 64))
    first.put("l", Choice("plain", 2), "conv", (16, 64))
    first.put("m", Choice("direct"))
    assert other.placed("conv") == {(8, 64): Choice("plain", 1), (16, 64): Choice("plain", 2)}
    first.put("n", Choice("plain", 3), "conv", (8, 64))  # of the same problem the last choice counts
    assert other.placed("conv")[8, 64] == Choice("plain", 3)
    assert other.placed("matmul") == {}
    assert [(e.nature, e.sizes, e.choice.engine) for e in other.entries()] == [
        ("conv", (8, 64), 3),
        ("conv", (16, 64), 2),
    ]
    assert other.get("k") == Choice("plain", 1)
    other.put("", Choice("split"), "conv", (1, 1))  # a place without a key
    assert store(tmp_path).placed("conv")[1, 1] == Choice("split")
    assert store(tmp_path).get("") is None
    first.clear()
    assert first.placed("conv") == store(tmp_path).placed("conv") == {}


@pytest.mark.feature("B010", "F081")
def test_entries_are_in_the_order_of_nature_and_sizes(tmp_path: Path) -> None:
    first = store(tmp_path)
    places = [("matmul", (1, 2)), ("conv", (16, 64)), ("matmul", (1, 1)), ("conv", (8, 640))]
    for number, (nature, sizes) in enumerate(places):
        first.put(f"k{number}", Choice("plain", number), nature, sizes)
    assert [(e.nature, e.sizes, e.key) for e in store(tmp_path).entries()] == [
        ("conv", (8, 640), ""), ("conv", (16, 64), ""), ("matmul", (1, 1), ""), ("matmul", (1, 2), ""),
    ]  # fmt: skip


def _write_until_killed(folder: Path, number: int, told: Connection) -> None:
    own = store(folder)
    for count in range(100_000):
        own.put(f"{number} {count}", Choice("plain", count), f"nature {number}", (count + 1,))
        told.send(count)


@pytest.mark.feature("B010")
def test_processes_that_are_killed_while_they_write_lose_nothing(tmp_path: Path) -> None:
    """All that was put is found by others; what was torn is no choice; nobody waits for who was killed."""
    context = multiprocessing.get_context("fork")
    processes, pipes = [], []
    for number in range(3):
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_write_until_killed, args=(tmp_path, number, there))
        process.start()
        there.close()
        processes.append(process)
        pipes.append(here)
    done = []
    for number, (process, pipe) in enumerate(zip(processes, pipes, strict=True)):
        while pipe.recv() < 20 * (number + 1):
            pass
        process.kill()
        process.join()
        last = 20 * (number + 1)
        with suppress(EOFError):
            while True:
                last = pipe.recv()
        done.append(last)
    reader = store(tmp_path)
    for number, last in enumerate(done):
        placed = reader.placed(f"nature {number}")
        assert {sizes: x.engine for sizes, x in placed.items() if sizes[0] <= last + 1} == {
            (count + 1,): count for count in range(last + 1)
        }
    took = []
    for _ in range(5):
        began = time.perf_counter()
        reader.put("after", Choice("direct"), "nature 0", (0,))
        took.append(time.perf_counter() - began)
    assert took[0] < 5  # which would wait for who was killed; the machine may be busy otherwise
    assert min(took) < 0.1
    assert store(tmp_path).placed("nature 0")[0,] == Choice("direct")
