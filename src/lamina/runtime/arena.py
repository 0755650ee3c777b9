"""The caching arena that memory comes from.

Requests to the system or the driver are slow (cuMemAlloc takes tens of microseconds and stops the
device). So an `Arena` keeps freed memory and reuses it. Its rules:

* **Size classes.** A request is rounded up to one of four sizes per power of two (to a multiple of 2 MiB from
  16 MiB on), so that freed blocks fit later requests; at most a quarter is lost, and little of large blocks.
* **Streams.** A freed block is cached under the stream it was allocated for, and only that stream gets it
  again: its queue orders the old use before the new one, so nothing has to wait. Uses on further
  streams are declared (`Buffer.used_on`); after it is freed, such a block rests until these streams have passed
  that point. Blocks of streams that were closed, or dropped and are done, are for any stream.
* **Finalizers take no lock.** A buffer freed by the garbage collector is put directly into its bin, and on a
  queue that the arena counts at its next call; a collection may therefore start anywhere, inside the arena too.
* **Out of memory.** The cache is freed and the request retried once, then `OutOfMemoryError` tells the
  figures. No state is lost and the process goes on.
"""

from __future__ import annotations

import gc
import mmap
import operator
import os
import re
import threading
from bisect import insort
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, SupportsIndex, TypeAlias

import numpy as np

from lamina.runtime.errors import OutOfMemoryError, human_bytes
from lamina.runtime.fork import renew_after_fork
from lamina.runtime.uncopied import Uncopied

if TYPE_CHECKING:
    from lamina.runtime.stream import Event, OwnedQueue, Stream

    Queue: TypeAlias = "Stream | OwnedQueue"

_LARGE = 16 << 20  # from here on sizes are multiples of _GRAIN
_GRAIN = 2 << 20
MAX_BYTES = (1 << 63) - 1
_CAP_VARIABLE = "LAMINA_MEMORY_CAP"


class Resource(Protocol):
    """The source of an arena's memory.

    quantum: alignment and smallest block, a power of two. idle_limit: the most freed bytes that are kept when blocks
    of another size are requested; None: all, because the system is slow to supply memory.
    """

    quantum: int
    idle_limit: int | None

    def allocate(self, nbytes: int) -> tuple[int, object]:
        """Address of `nbytes` fresh bytes and the object that keeps them alive; MemoryError if there are none."""
        ...

    def free(self, pointer: int, owner: object) -> None:
        """Return the block at `pointer`; waits for the device, which may still be using it."""
        ...


class HostResource:
    """Pageable host memory, 64-byte aligned (one cache line, one AVX-512 register).

    Up to an eighth of the machine's memory may lie idle: other processes need the rest.
    """

    quantum = 64
    idle_limit: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8

    def allocate(self, nbytes: int) -> tuple[int, object]:
        """Address and owner of `nbytes` fresh, uninitialized bytes."""
        if nbytes >= _HUGE_PAGE and _ADVICE is not None:
            return _in_huge_pages(nbytes, _ADVICE)
        owner = np.empty(nbytes + self.quantum, np.uint8)
        pointer: int = owner.__array_interface__["data"][0]
        return -(-pointer // self.quantum) * self.quantum, owner

    def free(self, pointer: int, owner: object) -> None:
        """Nothing to do: the owner frees itself when it is dropped."""


#: The system is asked for memory in huge pages of this many bytes: one page fault instead of 512, which
#: take longer than writing the memory does. A remainder after the last whole one comes in small pages.
_HUGE_PAGE = 2 << 20
_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


def _in_huge_pages(nbytes: int, advice: int) -> tuple[int, object]:
    """Private memory of this process, aligned to huge pages. Raises MemoryError."""
    try:
        pages = mmap.mmap(-1, nbytes + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"the system gives no {nbytes} bytes: {error}") from None
    owner = np.frombuffer(pages, np.uint8)
    first: int = owner.__array_interface__["data"][0]
    pointer = -(-first // _HUGE_PAGE) * _HUGE_PAGE
    with suppress(OSError):  # a system without them
        pages.madvise(advice, pointer - first, nbytes // _HUGE_PAGE * _HUGE_PAGE)
    return pointer, owner


@lru_cache(maxsize=4096)
def size_class(nbytes: int, quantum: int) -> int:
    """The block size that serves `nbytes`: four sizes per power of two, multiples of 2 MiB when large.

    >>> [size_class(n, 64) for n in (1, 65, 130, 1000, 1025, (33 << 20) + 1)]
    [64, 128, 192, 1024, 1280, 35651584]
    """
    if nbytes <= quantum:
        return quantum
    step = _GRAIN if nbytes > _LARGE else max(1 << ((nbytes - 1).bit_length() - 3), quantum)
    return -(-nbytes // step) * step


# -------------------------------------------------------------------------------------------------- the arena
@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of an arena (bytes unless said otherwise)."""

    in_use: int  # in live buffers, size classes counted in full
    peak: int  # the maximum of in_use (since reset_peak)
    cached: int  # freed, ready for reuse or resting until a stream has passed
    reserved: int  # part of a reserve that no block has been carved from
    held: int  # taken from the system: in_use + cached + reserved
    cap: int | None  # limit of held
    allocations: int  # successful calls of allocate
    hits: int  # of these, served from the cache or the reserve
    live: int  # blocks in use

    def __str__(self) -> str:
        rate = self.hits / self.allocations if self.allocations else 0.0
        cap = "none" if self.cap is None else human_bytes(self.cap)
        return (
            f"in use {human_bytes(self.in_use)} (peak {human_bytes(self.peak)}), "
            f"cached {human_bytes(self.cached)}, reserved {human_bytes(self.reserved)}, cap {cap}, "
            f"{self.allocations} allocations, {rate:.0%} without asking the system"
        )


class Block:
    """A piece of memory, from the resource or carved from a reserve."""

    __slots__ = ("nbytes", "owner", "pointer", "region")

    def __init__(self, pointer: int, nbytes: int, owner: object, region: _Region | None = None) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.owner = owner
        self.region = region


class _Region:
    """A reserve: one large block that smaller ones are carved from, first fit; adjacent gaps are merged."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.gaps: list[tuple[int, int]] = [(0, block.nbytes)]  # (offset, nbytes), by offset

    @property
    def free(self) -> int:
        return sum(nbytes for _, nbytes in self.gaps)

    @property
    def whole(self) -> bool:
        return self.free == self.block.nbytes

    def carve(self, nbytes: int) -> Block | None:
        for place, (offset, gap) in enumerate(self.gaps):
            if gap >= nbytes:
                self.gaps[place : place + 1] = [(offset + nbytes, gap - nbytes)] if gap > nbytes else []
                return Block(self.block.pointer + offset, nbytes, None, self)
        return None

    def give_back(self, block: Block) -> None:
        insort(self.gaps, (block.pointer - self.block.pointer, block.nbytes))
        merged: list[tuple[int, int]] = []
        for offset, nbytes in self.gaps:
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + nbytes)
            else:
                merged.append((offset, nbytes))
        self.gaps = merged


class Bin:
    """The freed blocks of one size that were allocated for one stream, or (queue None) that no queued work uses.

    queue: the stream's queue, which may outlive the stream object. freed: the sizes that the arena has yet to count
    as freed. returned: leases of memory that other streams used.
    """

    __slots__ = ("blocks", "freed", "queue", "returned", "size")

    def __init__(self, arena: Arena, size: int, queue: Queue | None) -> None:
        self.size, self.queue = size, queue
        self.freed, self.returned = arena._freed, arena._returned
        self.blocks: list[Block] = []

    def put_back(self, block: Block) -> None:
        """Take a block that is free. It is counted as freed before it can be reused."""
        self.freed.append(self.size)
        self.blocks.append(block)


class Lease(Uncopied):
    """Ownership of a block: shared by a buffer and its views, returned with the last one.

    users: the other streams that used it.
    """

    __slots__ = ("block", "home", "users")

    def __init__(self, block: Block, home: Bin) -> None:
        self.block, self.home = block, home
        self.users: set[Stream] = set()

    @property
    def queue(self) -> Queue | None:
        """The queue of the stream that it was allocated for."""
        return self.home.queue

    def __del__(self) -> None:
        # May run in any thread, inside a locked arena too: appending is atomic and takes no lock.
        home = self.home
        if not self.users:
            home.put_back(self.block)
        else:
            home.returned.append((self.block, home, self.users))


@dataclass(slots=True)
class _Resting:
    """A freed block that other streams may still be using."""

    block: Block
    home: Bin
    users: set[Stream]  # to be marked with an event as soon as they capture no graph
    events: list[Event] = field(default_factory=list)

    def passed(self, wait: bool) -> bool:
        """Whether all users have passed their use; `wait` waits for those that have been marked."""
        self.users = {user for user in self.users if not user.closed}  # closing waits
        ready = {user for user in self.users if not user.capturing}
        self.events += [user.record() for user in ready]
        self.users -= ready
        if wait:
            for event in self.events:
                event.synchronize()
        return not self.users and all(event.query() for event in self.events)


class Arena:
    """A cache of memory over a `Resource`, shared by all threads of the process.

    Args:
        name: the name of the memory in error messages ("cuda:0").
        resource: the source.
        cap: the most bytes to hold, cached ones included (None: no limit).
    """

    def __init__(self, name: str, resource: Resource, cap: int | None = None) -> None:
        self.name = name
        self._resource, self._quantum = resource, resource.quantum
        self._lock = threading.RLock()
        self._freed: deque[int] = deque()
        self._returned: deque[tuple[Block, Bin, set[Stream]]] = deque()
        self._bins: dict[tuple[Queue | None, int], Bin] = {}
        self._ending: set[Queue] = set()  # those of the bins that may be over some day
        self._resting: list[_Resting] = []
        self._regions: list[_Region] = []
        self._cap = cap
        self._in_use = self._peak = self._held = 0
        self._allocations = self._misses = self._blocks = 0
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: another thread may have held the lock."""
        self._lock = threading.RLock()

    # ---- requests
    def allocate(self, nbytes: int, stream: Stream | None = None) -> Lease:
        """A block of at least `nbytes` (> 0), for use on `stream`.

        Raises:
            OutOfMemoryError: cap or memory exhausted, after the cache was freed and the request retried.
        """
        return self.lease(self.bin_of(nbytes, stream), nbytes)

    def bin_of(self, nbytes: int, stream: Stream | None) -> Bin:
        """The bin of blocks for this many bytes (> 0) on a stream."""
        queue, size = None if stream is None else stream.queue, size_class(nbytes, self._quantum)
        found = self._bins.get((queue, size))
        if found is None:
            if queue is not None and queue.ends:
                self._ending.add(queue)
            found = self._bins.setdefault((queue, size), Bin(self, size, queue))
        return found

    def _every_bin(self) -> list[Bin]:
        return list(self._bins.values())  # atomic: other threads may add one

    def lease(self, home: Bin, nbytes: int) -> Lease:
        """A block of a bin's size for a request of `nbytes`, owned. Raises OutOfMemoryError."""
        return Lease(self.take(home, nbytes), home)

    def take(self, home: Bin, nbytes: int) -> Block:
        """Likewise without an owner: the caller puts it back into the bin. Raises OutOfMemoryError."""
        with self._lock:
            freed = self._freed
            while freed:
                self._in_use -= freed.popleft()
            if self._returned or self._resting:
                self._drain()
            block = home.blocks.pop() if home.blocks else self._missing(home, nbytes)
            self._allocations += 1
            self._in_use += home.size
            if self._in_use > self._peak:
                self._peak = self._in_use
            return block

    def _missing(self, home: Bin, nbytes: int) -> Block:
        """A block for an empty bin."""
        self._take_over()
        if unused := self._bins.get((None, home.size)):
            with suppress(IndexError):
                return unused.blocks.pop()
        block = self._carve(home.size)
        if block is None:
            block = self._obtain(home.size, nbytes)
            self._misses += 1
        self._blocks += 1
        return block

    def _carve(self, size: int) -> Block | None:
        for region in self._regions:
            if block := region.carve(size):
                return block
        return None

    def _obtain(self, size: int, requested: int, *, carved: bool = True) -> Block:
        """A block from the resource; if that is exhausted, carved from a reserve."""
        limit = self._resource.idle_limit
        if limit is not None and self._cached > limit:
            self._release_cache(wait=False)
        try:
            return self._ask(size)
        except MemoryError:
            gc.collect()  # unreachable cycles may hold buffers
            self._release_cache(wait=True)
        if carved and (block := self._carve(size)):
            return block
        try:
            return self._ask(size)
        except MemoryError:
            raise OutOfMemoryError(
                self.name, requested=requested, in_use=self._in_use, cached=self._cached, cap=self._cap
            ) from None

    def _ask(self, size: int) -> Block:
        if self._cap is not None and self._held + size > self._cap:
            raise MemoryError
        pointer, owner = self._resource.allocate(size)
        self._held += size
        return Block(pointer, size, owner)

    @property
    def _cached(self) -> int:
        return self._held - self._in_use - sum(region.free for region in self._regions)

    # ---- returns
    def _count_freed(self) -> None:
        """Count the blocks freed since the last call."""
        while self._freed:
            self._in_use -= self._freed.popleft()
        if self._returned or self._resting:
            self._drain()

    def _drain(self) -> None:
        """Take back blocks used on other streams."""
        while self._returned:
            block, home, users = self._returned.popleft()
            self._in_use -= block.nbytes
            users = {user for user in users if user.queue is not home.queue and not user.closed}
            self._resting.append(_Resting(block, home, users))
        self._wake()

    def _take_over(self) -> None:
        """Let any stream have the blocks of streams that were closed, or dropped and are done. Their bins are
        forgotten; blocks still in use will return to those of no stream."""
        over = {queue for queue in list(self._ending) if queue.over()}
        if not over:
            return
        self._ending -= over
        for (queue, size), home in list(self._bins.items()):
            if queue in over:
                heir = self.bin_of(size, None)
                blocks, home.blocks, home.queue = home.blocks, heir.blocks, None
                while blocks:
                    heir.blocks.append(blocks.pop())
                del self._bins[queue, size]

    def _wake(self, wait: bool = False) -> None:
        """Put resting blocks whose users have passed back into their bins (`wait`: wait for them)."""
        resting, self._resting = deque(self._resting), []
        try:
            while resting:
                if resting[0].passed(wait):
                    rest = resting.popleft()
                    rest.home.blocks.append(rest.block)
                else:
                    self._resting.append(resting.popleft())
        finally:
            self._resting += resting  # if the driver refused

    def _release_cache(self, wait: bool) -> None:
        self._count_freed()
        self._wake(wait)
        for home in self._every_bin():
            while home.blocks:
                self._give_back(home.blocks.pop())
                self._blocks -= 1

    def _give_back(self, block: Block) -> None:
        if block.region is not None:
            block.region.give_back(block)
            return
        self._resource.free(block.pointer, block.owner)
        self._held -= block.nbytes

    # ---- control
    def reserve(self, nbytes: int) -> None:
        """Take memory from the system now, so that at least `nbytes` are held as a reserve.

        Later requests are carved from it without asking the system. Raises OutOfMemoryError.
        """
        wanted = checked_bytes("reserve", "nbytes", nbytes)
        with self._lock:
            missing = wanted - sum(region.block.nbytes for region in self._regions)
            if missing > 0:
                size = size_class(missing, self._resource.quantum)
                self._regions.append(_Region(self._obtain(size, wanted, carved=False)))

    def empty_cache(self) -> None:
        """Return all freed memory to the system, unused reserves included."""
        with self._lock:
            self._release_cache(wait=True)
            for region in self._regions:
                if region.whole:
                    self._give_back(region.block)
            self._regions = [region for region in self._regions if not region.whole]

    def set_cap(self, cap: int | None) -> None:
        """Limit the memory held to `cap` bytes (None: no limit); frees the cache if it is over.

        Live buffers are not touched: with more than `cap` in use, the next request fails.
        """
        if cap is not None and checked_bytes("set_cap", "cap", cap) == 0:
            raise ValueError("set_cap: cap must be at least 1 byte, or None for no limit; got 0")
        with self._lock:
            self._cap = cap
            if cap is not None and self._held > cap:
                self.empty_cache()

    def reset_peak(self) -> None:
        """Restart `Statistics.peak` from the current use."""
        with self._lock:
            self._count_freed()
            self._peak = self._in_use

    def statistics(self) -> Statistics:
        """The current figures of the arena."""
        with self._lock:
            self._count_freed()
            idle = len(self._resting) + sum(len(home.blocks) for home in self._every_bin())
            return Statistics(
                in_use=self._in_use,
                peak=self._peak,
                cached=self._cached,
                reserved=sum(region.free for region in self._regions),
                held=self._held,
                cap=self._cap,
                allocations=self._allocations,
                hits=self._allocations - self._misses,
                live=self._blocks - idle,
            )


# ------------------------------------------------------------------------------------------------------- caps
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B?|B)?", re.IGNORECASE)
_FACTORS = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str) -> int:
    """A human-readable size in bytes: "4096", "512MiB", "1.5G" (all powers of 1024).

    Raises:
        ValueError: not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write e.g. 4096, 512MiB or 1.5GiB")
    unit = (match[2] or "").upper()[:1]
    return int(float(match[1]) * _FACTORS[unit])


def cap_from_environment(device: str) -> int | None:
    """The cap that LAMINA_MEMORY_CAP sets for `device` ("cuda:0").

    The variable holds one size for every device ("8GiB") or a list ("cpu=4GiB,cuda:1=20GiB,cuda=40GiB"), in
    which a device's own entry takes precedence over its kind's.
    """
    text = os.environ.get(_CAP_VARIABLE, "").strip()
    if not text:
        return None
    try:
        if "=" not in text:
            return parse_bytes(text)
        entries = dict(part.strip().split("=", 1) for part in text.split(","))
        size = entries.get(device, entries.get(device.split(":")[0]))
        return None if size is None else parse_bytes(size)
    except ValueError as error:
        raise ValueError(f"{_CAP_VARIABLE}={text!r}: {error}") from None


def checked_bytes(call: str, argument: str, value: SupportsIndex) -> int:
    """`value` as a byte count: a whole number from 0 to 2^63 - 1, else TypeError or ValueError."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{call}: {argument} must be a whole number of bytes, got {value!r}") from None
    if not 0 <= number <= MAX_BYTES:
        raise ValueError(f"{call}: {argument} must be between 0 and 2^63 - 1 bytes, got {number}")
    return number
