"""Buffers, shelves and views of an arena's memory."""

import gc
from typing import Any

import numpy as np
import pytest

from lamina.runtime import (
    Arena,
    Buffer,
    Device,
    Stream,
    host_array,
    pinned,
)
from lamina.runtime.arena import HostResource
from lamina.runtime.memory import Shelf, Supply, _extent, lend
from tests.helpers.arenas import limited, take
from tests.helpers.resident import growth

CPU = Device("cpu")
KIB, MIB = 1 << 10, 1 << 20


# ------------------------------------------------------------------------------------------------------ reuse


def test_cpu_device_reuses_memory() -> None:
    pointer = CPU.allocate(12345).pointer  # freed at once
    assert CPU.allocate(12345).pointer == pointer


# ---------------------------------------------------------------------------------------------------- buffers
@pytest.mark.feature("F030")
@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 1000, MIB + 1])
def test_host_buffers_are_aligned(nbytes: int) -> None:
    buffers = [CPU.allocate(nbytes) for _ in range(5)]
    assert all(buffer.pointer % 64 == 0 for buffer in buffers)
    assert len({buffer.pointer for buffer in buffers}) == 5
    assert len(buffers[0]) == nbytes


def test_zero_bytes_are_allowed() -> None:
    before = CPU.statistics()
    buffer = CPU.allocate(0)
    assert (buffer.pointer, buffer.nbytes, bool(buffer)) == (0, 0, True)
    assert buffer.array((0, 3), np.float32).shape == (0, 3)
    assert CPU.statistics().allocations == before.allocations
    buffer.close()


@pytest.mark.parametrize(
    ("bad", "error"),
    [(-1, ValueError), (1 << 63, ValueError), (1.5, TypeError), ("8", TypeError), (None, TypeError)],
)
def test_bad_sizes_are_refused_by_name(bad: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="allocate: nbytes"):
        CPU.allocate(bad)


def test_allocating_for_a_stream_of_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a stream of cpu"):
        CPU.allocate(8, stream=Stream(Device("cuda:0")))


def test_close_is_idempotent_and_use_after_it_is_refused() -> None:
    buffer = CPU.allocate(64)
    buffer.close()
    buffer.close()
    assert buffer.closed
    assert "closed" in repr(buffer)
    with pytest.raises(ValueError, match="64 bytes on cpu is closed"):
        _ = buffer.pointer
    with pytest.raises(ValueError, match="closed"):
        buffer.view(0, 1)


def test_a_buffer_is_a_context() -> None:
    arena, _ = limited()
    with take(arena, 64):
        assert arena.statistics().live == 1
    assert arena.statistics().live == 0


def test_views_share_ownership() -> None:
    arena, _ = limited()
    buffer = take(arena, 1024)
    view = buffer.view(256, 128)
    inner = view.view(8, 8)
    assert inner.pointer == buffer.pointer + 264
    buffer.close()
    view.close()
    assert arena.statistics().live == 1
    inner.close()
    assert arena.statistics().live == 0


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 65), (64, 1), (65, 0), (-1, 1), (1, -1), (1 << 62, 1 << 62)]
)
def test_views_stay_inside(offset: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match="view"):
        CPU.allocate(64).view(offset, nbytes)


def test_a_buffer_is_freed_by_the_garbage_collector() -> None:
    arena, _ = limited()
    holder: list[Any] = [take(arena, 64)]
    holder.append(holder)
    del holder
    gc.collect()
    assert arena.statistics().live == 0


def test_arrays_share_ownership() -> None:
    arena = Arena("cpu", HostResource())
    array = take(arena, 24).array((2, 3), np.float32)
    array[...] = 7
    assert arena.statistics().live == 1
    part = array[1:]
    del array
    gc.collect()
    assert part.sum() == 21
    assert arena.statistics().live == 1
    del part
    assert arena.statistics().live == 0


def test_arrays_beyond_the_buffer_are_refused() -> None:
    with pytest.raises(ValueError, match="are not within a buffer of 24 bytes"):
        CPU.allocate(24).array((2, 4), np.float32)
    with pytest.raises(TypeError, match="dtype must be of numbers, got object"):
        CPU.allocate(24).array((3,), object)


def test_borrowed_memory_keeps_its_owner() -> None:
    class Owner:
        alive = True

        def __del__(self) -> None:
            Owner.alive = False

    data = np.arange(8, dtype=np.uint8)
    buffer = Buffer.borrow(data.ctypes.data, 8, CPU, Owner())
    view = buffer.view(2, 3)
    buffer.close()
    assert Owner.alive
    assert view.array((3,), np.uint8).tolist() == [2, 3, 4]
    view.close()
    assert not Owner.alive


def test_buffers_say_what_they_are() -> None:
    data = np.arange(8, dtype=np.uint8)
    own, lent = CPU.allocate(8), Buffer.borrow(data.ctypes.data, 8, CPU, data, read_only=True)
    assert (own.borrowed, lent.borrowed) == (False, True)
    assert repr(own) == f"Buffer(cpu, 8 bytes at {own.pointer:#x})"
    assert repr(lent) == f"Buffer(cpu, 8 bytes at {data.ctypes.data:#x}, read-only)"
    with pytest.raises(AttributeError, match="__cuda_array_interface__: the buffer is on cpu"):
        own.__cuda_array_interface__  # noqa: B018
    own.close()
    assert repr(own) == "Buffer(cpu, 8 bytes at closed)"


def test_pinned_memory_is_host_memory_anywhere() -> None:
    buffer = pinned(100)
    assert buffer.device == CPU
    assert buffer.host
    buffer.array((100,), np.uint8)[...] = 1


# ------------------------------------------------------------------------------------------------- host_array
def test_host_array_views_memory_in_place() -> None:
    data = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    pointer = data.ctypes.data
    assert np.array_equal(host_array(pointer, (2, 3, 4), np.int32), data)
    assert np.array_equal(host_array(pointer, (4, 3), np.int32, (4, 16)), data[0].T)
    last = pointer + 4 * 23
    assert np.array_equal(host_array(last, (24,), np.int32, (-4,)), data.reshape(-1)[::-1])
    host_array(pointer, (24,), np.int32)[5] = -1
    assert data[0, 1, 1] == -1
    assert host_array(pointer, (), np.int32) == 0


def test_host_array_takes_bfloat16() -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    data = np.array([1.5, -2.0], bfloat16)
    assert host_array(data.ctypes.data, (2,), bfloat16).tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    ("shape", "strides", "match"),
    [((-1,), None, "negative"), ((2, 2), (4,), "differ in length"), ((2,), None, "null pointer")],
)
def test_host_array_refuses_nonsense(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        host_array(0, shape, np.float32, strides)


# ------------------------------------------------------------------------------------------ threads and leaks
def test_100k_allocations_do_not_grow_the_process() -> None:
    def work(count: int) -> None:
        for step in range(count):
            CPU.allocate(64 + step % 8192)

    work(10_000)
    assert growth(lambda: work(100_000), MIB) <= MIB


@pytest.mark.parametrize("read_only", [None, False, True])
def test_borrowed_memory_is_writable_unless_it_is_lent_to_read(read_only: bool | None) -> None:
    data = np.arange(8, dtype=np.uint8)
    options = {} if read_only is None else {"read_only": read_only}
    buffer = Buffer.borrow(data.ctypes.data, 8, CPU, data, **options)
    for held in (buffer, buffer.view(0, 4)):
        assert held.read_only == bool(read_only)
        assert held.array((4,), np.uint8).flags.writeable == (not read_only)
    assert (buffer.host, buffer.pinned, buffer.nbytes) == (True, False, 8)
    assert not Buffer.borrow(64, 8, Device("cuda")).host


def test_a_shelf_keeps_a_few_blocks_and_no_large_ones() -> None:
    for nbytes, kept in ((MIB, 4), (MIB + 1, 0)):
        arena, resource = limited(64 * MIB)
        shelf = Shelf(arena, CPU, nbytes, CPU.default_stream)
        buffers = [shelf.take() for _ in range(6)]
        assert {b.nbytes for b in buffers} == {nbytes}
        places = {b.pointer for b in buffers}
        buffers.clear()
        gc.collect()
        assert len(shelf.free) == kept
        assert shelf.take().pointer in places
        assert resource.asked == 6
    assert Shelf(arena, CPU, 0, CPU.default_stream).take().nbytes == 0


def test_a_block_that_is_collected_in_a_cycle_has_one_owner() -> None:
    """Of garbage in a cycle every finalizer runs: the block is on the shelf or in the arena, not on both."""
    for with_shelf in (False, True):
        arena, _ = limited(64 * MIB)
        shelf = Shelf(arena, CPU, MIB, CPU.default_stream)
        cycle: list[Any] = [shelf.take(), shelf.take(), *[shelf] * with_shelf]
        cycle.append(cycle)
        if with_shelf:
            shelf = Shelf(arena, CPU, MIB, CPU.default_stream)
        del cycle
        gc.collect()
        assert len(shelf.free) == 2 * (not with_shelf)
        assert arena.statistics().in_use == MIB * len(shelf.free)
        held = [shelf.take() for _ in range(4)] + [arena.allocate(MIB, CPU.default_stream) for _ in range(4)]
        places = {x.pointer if isinstance(x, Buffer) else x.block.pointer for x in held}
        assert len(places) == 8
        assert arena.statistics().in_use == 8 * MIB


def test_what_others_may_share_is_said() -> None:
    buffer, gpu = CPU.allocate(8), Buffer.borrow(64, 8, Device("cuda"))
    assert (buffer.__dlpack_device__(), gpu.__dlpack_device__()) == ((1, 0), (2, 0))
    for options in ({"copy": True}, {"dl_device": (2, 0)}, {"copy": True, "dl_device": (1, 0)}):
        with pytest.raises(
            BufferError, match=r"Buffer\(cpu, 8 bytes at .*\) can be shared without a copy only"
        ):
            buffer.__dlpack__(**options)
    for options in ({}, {"copy": False}, {"dl_device": (1, 0)}):
        assert type(buffer.__dlpack__(**options)).__name__ == "PyCapsule"
    with pytest.raises(ValueError, match="stream=0 is ambiguous; 1 is the legacy default stream"):
        gpu.__dlpack__(stream=0)
    lend(gpu, -1)  # the consumer orders its work itself
    assert np.from_dlpack(buffer).shape == (8,)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2)])
@pytest.mark.parametrize("signs", [(1, 1, 1), (-1, 1, -2), (2, -3, 1)])
def test_an_array_touches_as_many_bytes_as_numpy_says(order: tuple[int, ...], signs: tuple[int, ...]) -> None:
    whole = np.zeros((4, 7, 3), np.int32)
    x = whole[tuple(slice(None, None, sign) for sign in signs)].transpose(order)
    first = x.__array_interface__["data"][0]
    low, high = _extent(x.shape, x.itemsize, x.strides)
    assert (first + low, first + high) == np.lib.array_utils.byte_bounds(x)
    assert _extent((4, 7), 2, None) == (0, 56)


def test_a_supply_gives_what_the_arena_counts() -> None:
    arena = Arena("test", HostResource())
    supply = Supply(arena, CPU, 1000, CPU.default_stream, host=True)
    first, second = supply.take(), supply.take()
    assert first.pointer != second.pointer
    place = second.pointer
    del second
    assert supply.take().pointer == place  # of which nobody has anything
    found = arena.statistics()
    assert (found.allocations, found.hits, found.live) == (3, 1, 1)
    assert (found.in_use, found.peak, found.cached, found.held) == (1024, 2048, 1024, 2048)
    arena.empty_cache()
    assert arena.statistics().held == 1024
    del first
    assert (supply.take().nbytes, arena.statistics().live) == (1000, 0)
    assert Supply(arena, CPU, 0, CPU.default_stream, host=True).take().pointer == 0


def test_a_buffer_has_no_other_attributes() -> None:
    buffer = CPU.allocate(8)
    assert not hasattr(buffer, "address")
    buffer.close()
    with pytest.raises(ValueError, match="is closed"):
        hasattr(buffer, "pointer")
