"""Host arrays on their way to a GPU: through pinned memory, on a stream of their own, beside the call before."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from lamina.runtime import Buffer, Device, Event, Stream, copy, pinned

#: Bytes up to which an array goes straight to its place, in the call's own stream: it is there sooner than the way
#: beside the call before, with its events, is queued.
_SMALL = 1 << 16


class Staging:
    """The way of one input to the device. `fill` may be called by several threads at once, `send` by one at a time.

    Two pinned buffers in turn, so that the next array can be written while the last one is under way (more where
    more threads fill at once); of a large array a buffer on the device, filled on a stream of its own, from which the
    input's place is filled within the device.
    """

    def __init__(self, device: Device, nbytes: int) -> None:
        self._nbytes, self._platform = nbytes, device.platform
        self._turns: deque[tuple[Buffer, Event]] = deque(self._pair() for _ in range(2))
        self._large = nbytes > _SMALL
        if self._large:
            self._arrived = device.allocate(nbytes)
            self._way = device.stream()
            self._free = Event()  # the call has taken the last array over

    def _pair(self) -> tuple[Buffer, Event]:
        return pinned(self._nbytes), Event()

    def fill(self, array: np.ndarray[Any, Any]) -> Staged:
        """Copy array into pinned memory; it may change when this returns."""
        try:
            buffer, sent = self._turns.popleft()
        except IndexError:  # other threads have them all
            buffer, sent = self._pair()
        if sent.recorded:
            sent.synchronize()
        if self._nbytes:
            _HOST.platform.copy(buffer.pointer, array.ctypes.data, self._nbytes, _HOST.default_stream)
        return Staged(self, buffer, sent)

    def send(self, staged: Staged, target: Buffer, stream: Stream) -> None:
        """Queue the copy to target; `stream` waits for it."""
        buffer, sent = staged.buffer, staged.sent
        if not self._large:
            if self._nbytes:
                self._platform.copy(target.pointer, buffer.pointer, self._nbytes, stream)
            stream.record(sent)
            self._turns.append((buffer, sent))
            return
        self._way.wait(self._free)
        copy(self._arrived, buffer, self._nbytes, stream=self._way)
        stream.wait(self._way.record(sent))
        self._turns.append((buffer, sent))
        copy(target, self._arrived, self._nbytes, stream=stream)
        stream.record(self._free)


class Staged(NamedTuple):
    """A host array in pinned memory, its turn to come."""

    staging: Staging
    buffer: Buffer
    sent: Event

    def send(self, target: Buffer, stream: Stream) -> None:
        """Queue the copy to target; `stream` waits for it."""
        self.staging.send(self, target, stream)


_HOST = Device("cpu")
