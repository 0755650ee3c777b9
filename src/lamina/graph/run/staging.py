"""Host arrays on their way to a GPU: through pinned memory, large ones on a stream that overlaps with the previous
call."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from lamina.runtime import Buffer, Device, Event, Stream, copy, pinned

#: Bytes up to which an array is copied straight to its place, in the call's own stream: that is faster than queuing
#: the overlapped copy with its events.
_SMALL = 1 << 16


class _Turn(NamedTuple):
    """Pinned memory, also viewed as a byte array, and the event after its latest read."""

    buffer: Buffer
    memory: np.ndarray[Any, Any]
    sent: Event


class Staging:
    """The upload path of one input. `fill` may be called by several threads at once, `send` by one at a time.

    Two pinned buffers alternate, so that the next array can be written while the last one is in flight (more where
    more threads fill at once); for large arrays there is also a buffer on the device, filled on a separate stream,
    from which the input's place is filled within the device.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        self._nbytes, self._platform = nbytes, device.platform
        self._turns = deque(self._new() for _ in range(2))  # the most recently used one last
        self.is_large = nbytes > _SMALL
        if self.is_large:
            self._arrived = device.allocate(nbytes)
            self._way = device.stream()
            self._free = Event()  # the call has copied the last array

    def _new(self) -> _Turn:
        buffer = pinned(self._nbytes)
        return _Turn(buffer, buffer.array((self._nbytes,), np.uint8), Event())

    def _turn(self) -> _Turn:
        """Memory that is no longer read: the most recently used one if possible, since a graph knows its address."""
        try:
            newest = self._turns.pop()
            if newest.sent.query():
                return newest
            self._turns.append(newest)
            oldest = self._turns.popleft()
        except IndexError:  # other threads use them all
            return self._new()
        oldest.sent.synchronize()
        return oldest

    def fill(self, array: np.ndarray[Any, Any]) -> Staged:
        """Copy array, row-major, into pinned memory; the array may change when this returns."""
        turn = self._turn()
        if self._nbytes:
            np.ndarray(array.shape, array.dtype, turn.memory)[...] = array
        return Staged(self, turn)

    def send(self, staged: Staged, target: Buffer, stream: Stream) -> None:
        """Queue the copy to target; `stream` waits for it."""
        buffer, sent = staged.buffer, staged.turn.sent
        if not self.is_large:
            if self._nbytes:
                self._platform.copy(target.pointer, buffer.pointer, self._nbytes, stream)
            self.is_read(staged, stream)
            return
        self._way.wait(self._free)
        copy(self._arrived, buffer, self._nbytes, stream=self._way)
        stream.wait(self._way.record(sent))
        self._turns.append(staged.turn)
        copy(target, self._arrived, self._nbytes, stream=stream)
        stream.record(self._free)

    def is_read(self, staged: Staged, stream: Stream) -> None:
        """Mark the end of the reads of the pinned memory on the stream: it is free afterwards."""
        stream.record(staged.turn.sent)
        self._turns.append(staged.turn)


class Staged(NamedTuple):
    """A host array in pinned memory, to be sent."""

    staging: Staging
    turn: _Turn

    @property
    def buffer(self) -> Buffer:
        """The pinned memory."""
        return self.turn.buffer

    @property
    def is_direct(self) -> bool:
        """Whether it is copied straight to its place."""
        return not self.staging.is_large

    def send(self, target: Buffer, stream: Stream) -> None:
        """Queue the copy to target; `stream` waits for it."""
        self.staging.send(self, target, stream)

    def is_read_on(self, stream: Stream) -> None:
        """Mark the end of its reads, which are queued on a stream."""
        self.staging.is_read(self, stream)
