"""The arena: reuse, limits, streams, and what is asked of the system."""

import gc
import itertools
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lamina.runtime import (
    Arena,
    Device,
    DeviceError,
    OutOfMemoryError,
    Statistics,
    host_array,
    parse_bytes,
)
from lamina.runtime.arena import HostResource, cap_from_environment, size_class
from tests.helpers.arenas import FakeStream, Limited, limited, take
from tests.helpers.resident import growth

CPU = Device("cpu")
KIB, MIB = 1 << 10, 1 << 20


def test_size_classes_hold_the_request_and_waste_little() -> None:
    for nbytes in [*range(1, 5000), *(int(1.37**k) for k in range(30, 120))]:
        size = size_class(nbytes, 64)
        assert size >= nbytes
        assert size % 64 == 0
        assert size <= max(64, nbytes * 1.25 + 64)
        assert size_class(size, 64) == size
        if nbytes > 16 * MIB:
            assert size - nbytes < 2 * MIB


def test_size_classes_grow_with_the_request() -> None:
    sizes = [size_class(nbytes, 512) for nbytes in range(1, 100_000, 7)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 40


@pytest.mark.feature("F034")
def test_a_freed_block_is_reused() -> None:
    arena, resource = limited()
    first = take(arena, 1000)
    pointer = first.pointer
    first.close()
    second = take(arena, 1001)
    assert second.pointer == pointer
    assert resource.asked == 1
    found = arena.statistics()
    assert (found.allocations, found.hits, found.live) == (2, 1, 1)


def test_another_size_class_is_not_served_from_the_cache() -> None:
    arena, resource = limited()
    take(arena, 64).close()
    take(arena, 4096).close()
    assert resource.asked == 2


@pytest.mark.feature("F034")
def test_statistics_count_bytes() -> None:
    arena, _ = limited(cap=MIB)
    a, b = take(arena, 1024), take(arena, 2048)
    assert arena.statistics() == Statistics(
        in_use=3072, peak=3072, cached=0, reserved=0, held=3072, cap=MIB, allocations=2, hits=0, live=2
    )
    a.close()
    b.close()
    after = arena.statistics()
    assert (after.in_use, after.peak, after.cached, after.held) == (0, 3072, 3072, 3072)
    assert "cached 3 KiB" in str(after)
    arena.reset_peak()
    assert arena.statistics().peak == 0


def test_statistics_read_well() -> None:
    found = Statistics(3072, 4096, 1024, 512, 5120, None, 8, 2, 3)
    assert str(found) == (
        "in use 3 KiB (peak 4 KiB), cached 1 KiB, reserved 512 B, cap none, 8 allocations, "
        "25% without asking the system"
    )
    assert "cap 1 MiB, 0 allocations, 0% without" in str(Statistics(0, 0, 0, 0, 0, MIB, 0, 0, 0))


def test_empty_cache_gives_everything_back() -> None:
    arena, resource = limited()
    kept = take(arena, 64)
    take(arena, 4096).close()
    arena.empty_cache()
    assert list(resource.blocks) == [kept.pointer]
    assert arena.statistics().held == 64


@pytest.mark.feature("B040", "F034")
def test_out_of_memory_frees_the_cache_and_retries() -> None:
    arena, resource = limited(limit=1024)
    for size in (256, 512):
        take(arena, size).close()  # 768 bytes cached: neither fits what comes now
    big = take(arena, 1024)
    assert big.nbytes == 1024
    assert resource.blocks == {big.pointer: 1024}


@pytest.mark.feature("B040")
def test_what_lies_idle_has_a_limit() -> None:
    """Networks of other sizes, one after the other: what was freed goes back before more is asked for."""
    arena = Arena("test", Limited(1 << 40, idle_limit=10 * MIB))
    for size in range(2, 40, 2):
        arena.allocate(size * MIB)  # freed at once
    assert arena.statistics().held <= (10 + 36 + 38) * MIB
    held = [arena.allocate(30 * MIB) for _ in range(3)]
    assert arena.statistics().in_use == 90 * MIB
    del held
    again = [arena.allocate(30 * MIB) for _ in range(3)]  # of the same size: kept, and served without asking
    assert arena.statistics().hits >= 3
    assert len(again) == 3


def test_out_of_memory_tells_the_figures_and_goes_on() -> None:
    arena, _ = limited(limit=1024, cap=4096)
    kept = take(arena, 512)
    for _ in range(50):
        with pytest.raises(OutOfMemoryError, match=r"2 KiB requested \(2048 bytes\), 512 B in use") as caught:
            take(arena, 2048)
        error = caught.value
        assert (error.requested, error.in_use, error.cached, error.cap) == (2048, 512, 0, 4096)
    kept.close()
    assert take(arena, 1024).nbytes == 1024
    assert arena.statistics().held == 1024


@pytest.mark.feature("B040")
def test_out_of_memory_collects_cycles_first() -> None:
    arena, _ = limited(limit=1024)

    class Node:
        def __init__(self) -> None:
            self.me, self.memory = self, take(arena, 1024)

    gc.disable()
    try:
        Node()
        assert take(arena, 512).nbytes == 512
    finally:
        gc.enable()


@pytest.mark.feature("F034")
def test_cap_limits_what_is_held() -> None:
    arena, resource = limited(cap=1024)
    first = take(arena, 1024)
    with pytest.raises(OutOfMemoryError, match="cap 1 KiB"):
        take(arena, 64)
    first.close()
    assert take(arena, 64).nbytes == 64  # the cached kilobyte was given up for it
    assert sum(resource.blocks.values()) == 64


def test_lowering_the_cap_frees_the_cache() -> None:
    arena, resource = limited()
    take(arena, 4096).close()
    arena.set_cap(1024)
    assert not resource.blocks
    arena.set_cap(None)
    assert take(arena, 8192).nbytes == 8192


@pytest.mark.parametrize("bad", [0, -1])
def test_a_cap_must_be_positive(bad: int) -> None:
    with pytest.raises(ValueError, match="cap"):
        limited()[0].set_cap(bad)


@pytest.mark.feature("B040")
def test_host_memory_runs_out_with_a_typed_error() -> None:
    before = CPU.statistics().in_use
    with pytest.raises(OutOfMemoryError, match="cpu: out of memory: 4096 PiB requested"):
        CPU.allocate(1 << 62)
    assert CPU.statistics().in_use == before
    assert CPU.allocate(100).nbytes == 100


@pytest.mark.parametrize(
    ("text", "device", "cap"),
    [
        ("", "cpu", None),
        ("4096", "cpu", 4096),
        ("1.5GiB", "cuda:0", 3 << 29),
        ("cpu=1M,cuda=2G", "cuda:1", 2 << 30),
        ("cuda:1=7K, cuda=2G", "cuda:1", 7 << 10),
        ("cuda=2G", "cpu", None),
    ],
)
def test_the_cap_from_outside(
    monkeypatch: pytest.MonkeyPatch, text: str, device: str, cap: int | None
) -> None:
    monkeypatch.setenv("LAMINA_MEMORY_CAP", text)
    assert cap_from_environment(device) == cap


@pytest.mark.parametrize("text", ["much", "cpu=", "12 parsecs", "cpu=1G,2G"])
def test_a_bad_cap_from_outside_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LAMINA_MEMORY_CAP", text)
    with pytest.raises(ValueError, match="LAMINA_MEMORY_CAP"):
        cap_from_environment("cpu")


def test_sizes_as_people_write_them() -> None:
    assert [parse_bytes(text) for text in ("7", "7B", "2k", "2 KiB", "1.5MB", "1T")] == [
        7, 7, 2048, 2048, 3 << 19, 1 << 40,
    ]  # fmt: skip


@pytest.mark.feature("F034")
def test_a_reserve_serves_without_asking() -> None:
    arena, resource = limited()
    arena.reserve(64 * KIB)
    assert resource.asked == 1
    buffers = [take(arena, size) for size in (64, 1000, 5000, 20000)]
    assert resource.asked == 1
    spans = sorted((b.pointer, b.pointer + b.nbytes) for b in buffers)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert arena.statistics().hits == 4
    arena.reserve(32 * KIB)  # enough is held
    assert resource.asked == 1


@pytest.mark.parametrize(("bad", "error"), [(-1, ValueError), (1 << 70, ValueError), (1.5, TypeError)])
def test_a_reserve_is_of_whole_bytes(bad: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="reserve: nbytes must be"):
        limited()[0].reserve(bad)


def test_a_reserve_is_whole_again_when_its_blocks_are_back() -> None:
    arena, resource = limited(limit=64 * KIB)
    arena.reserve(64 * KIB)
    buffers = [take(arena, 1000 + 700 * k) for k in range(12)]
    for place in (3, 7, 1, 0, 11, 5, 2, 4, 6, 10, 8, 9):
        buffers[place].close()
    assert take(arena, 64 * KIB).nbytes == 64 * KIB  # only possible with the gaps merged
    assert resource.asked == 2  # the reserve, and one vain request before the cache was freed
    arena.empty_cache()
    assert not resource.blocks
    assert arena.statistics().held == 0


def test_blocks_fill_a_reserve_from_its_first_byte_to_its_last() -> None:
    arena, resource = limited()
    arena.reserve(4 * KIB)
    (start,) = resource.blocks
    buffers = [take(arena, KIB) for _ in range(4)]
    assert sorted(b.pointer - start for b in buffers) == [0, 1024, 2048, 3072]
    assert arena.statistics().reserved == 0
    assert resource.asked == 1


def test_a_reserve_that_is_in_use_outlives_an_emptied_cache() -> None:
    arena, resource = limited()
    arena.reserve(4 * KIB)
    (start,) = resource.blocks
    kept = take(arena, KIB)
    arena.empty_cache()
    assert take(arena, KIB).pointer in range(start, start + 4 * KIB)
    assert resource.asked == 1
    kept.close()
    arena.empty_cache()  # the whole reserve goes
    assert (resource.blocks, arena.statistics().held) == ({}, 0)
    take(arena, KIB)  # and nothing is carved from it any more
    assert resource.asked == 2


def test_a_reserve_that_is_too_small_is_added_to() -> None:
    arena, resource = limited()
    arena.reserve(4 * KIB)
    arena.reserve(12 * KIB)
    assert sorted(resource.blocks.values()) == [4 * KIB, 8 * KIB]


def test_a_reserve_counts_against_the_cap() -> None:
    arena, _ = limited(cap=1024)
    with pytest.raises(OutOfMemoryError):
        arena.reserve(2048)
    arena.reserve(1024)
    assert arena.statistics().reserved == 1024


@pytest.mark.feature("F034")
def test_memory_of_one_stream_is_not_given_to_another() -> None:
    arena, _ = limited()
    one, two = FakeStream(), FakeStream()
    first = take(arena, 256, one)
    pointer = first.pointer
    first.close()
    assert take(arena, 256, two).pointer != pointer
    assert take(arena, 256, one).pointer == pointer


@pytest.mark.feature("F034")
def test_memory_used_on_another_stream_rests_until_it_has_passed() -> None:
    arena, _ = limited()
    own, other = FakeStream(), FakeStream()
    buffer = take(arena, 256, own)
    pointer = buffer.pointer
    buffer.view(0, 8).used_on(other, own)  # said of any view, it holds for the whole
    buffer.close()
    waiting = take(arena, 256, own)
    assert waiting.pointer != pointer
    assert not own.events
    other.events[0].done = True
    assert take(arena, 256, own).pointer == pointer


def test_no_event_is_recorded_into_a_capture() -> None:
    arena, _ = limited()
    own, other = FakeStream(), FakeStream()
    other.capturing = True
    buffer = take(arena, 256, own)
    buffer.used_on(other)
    buffer.close()
    assert arena.statistics().cached == 256
    assert not other.events
    other.capturing = False
    assert arena.statistics().cached == 256
    assert len(other.events) == 1


def test_out_of_memory_waits_for_resting_blocks() -> None:
    arena, _ = limited(limit=1024)
    own, other = FakeStream(), FakeStream()
    buffer = take(arena, 1024, own)
    buffer.used_on(other)
    buffer.close()
    assert take(arena, 1000, own).nbytes == 1000
    assert other.events[0].done


@pytest.mark.parametrize("freed_before", [True, False])
def test_memory_of_a_closed_stream_is_for_any_stream(freed_before: bool) -> None:
    arena, _ = limited()
    gone, other = FakeStream(), FakeStream()
    buffer = take(arena, 256, gone)
    pointer = buffer.pointer
    if freed_before:
        buffer.close()
    gone.closed = True
    if not freed_before:
        one = take(arena, 256, other)
        assert one.pointer != pointer
        buffer.close()
    again = take(arena, 256, other)
    assert again.pointer == pointer
    assert set(arena._bins) == {(None, 256), (other, 256)}  # nothing keeps a closed stream
    again.close()
    assert take(arena, 256, CPU.default_stream).pointer != pointer


def test_a_stream_that_is_closed_while_memory_rests_for_it_is_not_asked() -> None:
    arena, _ = limited()
    own, other, third = FakeStream(), FakeStream(), FakeStream()
    other.capturing = True
    buffers = [take(arena, 256, own) for _ in range(2)]
    places = [buffer.pointer for buffer in buffers]
    for buffer, user in zip(buffers, (other, third), strict=True):
        buffer.used_on(user)
        buffer.close()
    assert arena.statistics().cached == 512
    other.capturing, other.closed = False, True
    third.events[0].done = True
    again = [take(arena, 256, own) for _ in range(2)]
    assert sorted(buffer.pointer for buffer in again) == places


def test_what_rests_is_not_lost_if_the_driver_refuses() -> None:
    arena, _ = limited()
    own, other = FakeStream(), FakeStream()
    buffer = take(arena, 256, own)
    buffer.used_on(other)
    buffer.close()
    arena.statistics()

    def refuse() -> bool:
        raise DeviceError("refused")

    ask, other.events[0].query = other.events[0].query, refuse  # type: ignore[method-assign]
    with pytest.raises(DeviceError, match="refused"):
        take(arena, 256, own)
    other.events[0].query, other.events[0].done = ask, True  # type: ignore[method-assign]
    assert arena.statistics().cached == 256
    assert arena.statistics().live == 0
    assert take(arena, 256, own).nbytes == 256
    assert arena.statistics().held == 256


def test_classes_are_four_sizes_per_power_of_two() -> None:
    """The smallest that holds the request; whole quanta where it is small, whole huge pages where it is large."""
    small = sorted({q * step for q in (4, 5, 6, 7) for step in (64 << k for k in range(20))} | {64, 128, 192})
    for n in [*range(1, 3000), *(size + more for size in small[:-4] for more in (-1, 0, 1))]:
        if n <= 16 * MIB:
            assert size_class(n, 64) == next(size for size in small if size >= n), n
    for n in (16 * MIB + 1, 33 * MIB, 34 * MIB - 1, 34 * MIB, 500 * MIB + 1):
        assert size_class(n, 64) == -(-n // (2 * MIB)) * 2 * MIB


def test_a_host_may_keep_an_eighth_of_its_memory() -> None:
    (line,) = (
        line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:")
    )
    assert HostResource.idle_limit == pytest.approx(int(line.split()[1]) * KIB / 8, rel=1e-3)


def test_large_memory_of_the_host_begins_where_a_huge_page_does(monkeypatch: pytest.MonkeyPatch) -> None:
    resource, nbytes = HostResource(), 5 * MIB + 64
    pointer, owner = resource.allocate(nbytes)
    assert pointer % (2 * MIB) == 0
    array = host_array(pointer, (nbytes,), np.uint8)
    array[:] = 7
    assert int(array.sum(dtype=np.int64)) == 7 * nbytes
    del array, owner
    with pytest.raises(MemoryError, match=f"the system gives no {1 << 60} bytes"):
        resource.allocate(1 << 60)
    monkeypatch.setattr("lamina.runtime.arena._ADVICE", None)  # a system without them
    pointer, _owner = resource.allocate(nbytes)
    assert pointer % resource.quantum == 0


def test_pages_are_given_back_with_their_owner() -> None:
    def once() -> None:
        pointer, _owner = HostResource().allocate(8 * MIB)
        host_array(pointer, (8 * MIB,), np.uint8)[:] = 1

    assert growth(once, MIB) <= MIB


def test_freed_memory_of_another_size_is_not_at_its_peak_still() -> None:
    arena = Arena("test", HostResource())
    for nbytes in (1024, 512, 1024, 256):
        arena.allocate(nbytes)
    assert arena.statistics().peak == 1024
    held = arena.allocate(512), arena.allocate(1024)
    assert arena.statistics().peak == 1536
    del held


def test_threads_share_an_arena() -> None:
    arena = Arena("cpu", HostResource())
    wrong: list[str] = []

    def work(mark: int) -> None:
        rng = np.random.default_rng(mark)
        for _ in range(300):
            size = int(rng.integers(1, 5000))
            buffer = take(arena, size)
            array = buffer.array((size,), np.uint8)
            array[...] = mark
            if not (array == mark).all():
                wrong.append(f"{mark}: {size}")

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    found = arena.statistics()
    assert (found.live, found.in_use, found.allocations) == (0, 0, 2400)
    assert found.held == found.cached
