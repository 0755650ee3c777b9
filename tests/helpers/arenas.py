"""Arenas on a resource that runs out on command, and streams whose work ends when a test says so."""

from typing import Any

from lamina.runtime import Arena, Buffer, Device, DeviceError
from lamina.runtime.memory import allocate

CPU = Device("cpu")
MIB = 1 << 20


class Limited:
    """A resource with `limit` bytes of imaginary memory; counts what it is asked."""

    quantum = 64

    def __init__(self, limit: int, idle_limit: int | None = None) -> None:
        self.limit, self.idle_limit = limit, idle_limit
        self.blocks: dict[int, int] = {}
        self.asked = 0
        self._next = 1 << 20

    def allocate(self, nbytes: int) -> tuple[int, object]:
        self.asked += 1
        if sum(self.blocks.values()) + nbytes > self.limit:
            raise MemoryError
        pointer, self._next = self._next, self._next + nbytes
        self.blocks[pointer] = nbytes
        return pointer, None

    def free(self, pointer: int, owner: object) -> None:
        del self.blocks[pointer]


class FakeEvent:
    def __init__(self) -> None:
        self.done = False

    def query(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.done = True


class FakeStream:
    """A stream whose work ends when the test says so."""

    ends = True

    def __init__(self) -> None:
        self.events: list[FakeEvent] = []
        self.closed = False
        self.capturing = False
        self.device = CPU

    @property
    def queue(self) -> Any:
        return self

    def over(self) -> bool:
        return self.closed

    def record(self) -> FakeEvent:
        if self.closed:
            raise DeviceError("closed")
        self.events.append(FakeEvent())
        return self.events[-1]


def take(arena: Arena, nbytes: int, stream: Any = None) -> Buffer:
    return allocate(arena, CPU, nbytes, stream, host=True)


def limited(limit: int = MIB, cap: int | None = None) -> tuple[Arena, Limited]:
    resource = Limited(limit)
    return Arena("cpu", resource, cap), resource
