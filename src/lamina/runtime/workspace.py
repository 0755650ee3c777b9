"""Workspace memory shared by all calls on one stream."""

from __future__ import annotations

import threading

from lamina.runtime.arena import checked_bytes, size_class
from lamina.runtime.compute_device import Device
from lamina.runtime.memory import Buffer
from lamina.runtime.stream import Stream, StreamLike, as_stream

_GRAIN = 2 << 20


class Workspaces:
    """One growing workspace per stream of a device.

    Work on one stream runs in order, so it can share one workspace; each stream has its own.

    Args:
        device: whose memory.
        cap: the most bytes that one workspace may have (None: the arena's limit).
        reserve: bytes that each workspace has from the start.
    """

    def __init__(self, device: Device, *, cap: int | None = None, reserve: int = 0) -> None:
        self.device = device
        self.cap = None if cap is None else checked_bytes("Workspaces", "cap", cap)
        self.reserve = checked_bytes("Workspaces", "reserve", reserve)
        self._buffers: dict[Stream, Buffer] = {}
        self._lock = threading.Lock()

    def get(self, nbytes: int, stream: StreamLike | None = None) -> Buffer:
        """At least `nbytes` of scratch for work on `stream`, with arbitrary contents.

        The buffer stays the same until more is requested on that stream. A captured graph must keep it
        (`CapturedGraph.keep`).

        Raises:
            ValueError: more than the cap. OutOfMemoryError: the arena has no more.
        """
        size = checked_bytes("workspace", "nbytes", nbytes)
        if self.cap is not None and size > self.cap:
            raise ValueError(f"workspace: {size} bytes asked for on {self.device}, the cap is {self.cap}")
        where = as_stream(stream, self.device)
        with self._lock:
            present = self._buffers.get(where)
            if present is None or present.nbytes < size:
                present = self._grow(where, size)
            return present

    def _grow(self, stream: Stream, size: int) -> Buffer:
        self._buffers.pop(stream, None)  # before the request: the old block may serve it, or make room
        wanted = size_class(max(size, self.reserve, 1), _GRAIN)
        if self.cap is not None:
            wanted = min(wanted, max(self.cap, size))
        buffer = self.device.allocate(wanted, stream=stream)
        self._buffers[stream] = buffer
        return buffer

    def sizes(self) -> dict[Stream, int]:
        """Bytes of each stream's workspace."""
        with self._lock:
            return {stream: buffer.nbytes for stream, buffer in self._buffers.items()}

    def clear(self) -> None:
        """Release all workspaces."""
        with self._lock:
            self._buffers.clear()
