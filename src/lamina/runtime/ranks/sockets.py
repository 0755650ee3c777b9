"""Communicators over TCP sockets, for ranks without MPI: one connection for each pair of ranks.

Made for one or a few machines, and for light traffic (GPUs use NCCL): each rank holds a socket to every
other, and one for each group in which they communicate.
"""

from __future__ import annotations

import hashlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from lamina.runtime.ranks.communicator import Communicator, Pending, RankError, not_awaited
from lamina.runtime.ranks.listening import listening
from lamina.runtime.ranks.store import Store, receive_exactly

Array = np.ndarray[Any, Any]
#: By rank, the pieces of memory that are still to be sent or filled.
_Left = dict[int, list[memoryview]]
#: The greeting of a rank to a lower one, followed by the store's name and its identity: as long as the greeting of a
#: store's client, which may connect here while it looks for its store.
_HELLO = b"lamina ranks 2\n"
#: The connecting rank, and the group.
_WHO = struct.Struct(">I8s")
#: Seconds that a new connection may take to identify itself.
_GREETING = 20.0
#: Header of each message: number of elements, and their type.
_HEAD = struct.Struct(">Q16s")


class _Lines:
    """A rank's sockets to others, by rank, and the thread that uses them in the order of the calls.

    timeout: seconds without a byte after which a rank is given up.
    """

    def __init__(self, rank: int, timeout: float) -> None:
        self.rank, self.timeout = rank, timeout
        self.peers: dict[int, socket.socket] = {}
        self._thread = ThreadPoolExecutor(1, "lamina ranks")

    def _line(self, peer: int) -> socket.socket:
        """The socket to a rank."""
        return self.peers[peer]

    def submit(self, call: Callable[..., None], *args: Any) -> Future[None]:
        """Queue a call."""
        return self._thread.submit(call, *args)

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """Send and receive concurrently; keys are ranks of the world. Raises RankError, also for unexpected
        messages."""
        left_out = {peer: [memoryview(_head(x)), _bytes_of(x)] for peer, x in sends.items()}
        heads = {peer: bytearray(_HEAD.size) for peer in receives}
        left_in = {peer: [memoryview(heads[peer]), _bytes_of(x)] for peer, x in receives.items()}
        with selectors.DefaultSelector() as selector:
            for peer in {*left_out, *left_in}:
                selector.register(self._line(peer), _events(peer, left_out, left_in), peer)
            while selector.get_map():
                ready = selector.select(self.timeout)
                if not ready:
                    silent = ", ".join(map(str, sorted({*left_out, *left_in})))
                    raise RankError(f"rank {silent} has not answered rank {self.rank} for {self.timeout:g} s")
                for key, events in ready:
                    self._progress(key.data, events, left_out, left_in)
                    if key.data in heads and len(left_in.get(key.data, ())) < 2:  # its header is complete
                        self._check(key.data, bytes(heads.pop(key.data)), receives[key.data])
                    wanted = _events(key.data, left_out, left_in)
                    if not wanted:
                        selector.unregister(key.fileobj)
                    elif wanted != key.events:
                        selector.modify(key.fileobj, wanted, key.data)

    def _check(self, peer: int, head: bytes, awaited: Array) -> None:
        """Raise RankError if a message differs in size or type from the array that expects it."""
        if head != _head(awaited):
            count, name = _HEAD.unpack(head)
            sent = f"{count} {name.decode(errors='replace')}".rstrip("\0")
            raise not_awaited(peer, self.rank, sent, awaited)

    def _progress(self, peer: int, events: int, left_out: _Left, left_in: _Left) -> None:
        """Transfer as much as possible without blocking."""
        try:
            if events & selectors.EVENT_READ:
                count = self.peers[peer].recvmsg_into(left_in[peer])[0]
                if not count:
                    raise ConnectionResetError("its connection is closed")
                left_in[peer] = _behind(left_in[peer], count)
            if events & selectors.EVENT_WRITE:
                left_out[peer] = _behind(left_out[peer], self.peers[peer].sendmsg(left_out[peer]))
        except BlockingIOError:
            pass
        except OSError as error:
            raise RankError(f"rank {peer} has ended: {error} (rank {self.rank} waited for it)") from error
        for left in (left_out, left_in):
            if peer in left and not left[peer]:
                del left[peer]

    def close(self) -> None:
        """Stop the thread and close all connections."""
        self._thread.shutdown()
        for connection in self.peers.values():
            connection.close()


class SocketMesh(_Lines):
    """This rank's sockets to all others of the world, and those of groups, which are opened on demand.

    store: where ranks publish their addresses. timeout: seconds without a byte after which a rank is
    given up.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        _check_alone(store, rank, size)
        super().__init__(rank, timeout)
        self.size, self._store = size, store
        self._name = _channel_name(range(size))
        self._groups: list[_GroupLines] = []
        # Group connections that were accepted but not requested yet; whether a thread is accepting some.
        self._arrived: dict[tuple[int, bytes], socket.socket] = {}
        self._changed, self._accepting = threading.Condition(), False
        self._listener = listening("")
        try:
            self._meet()
        except BaseException:
            self.close()
            raise

    def lines(self, ranks: Sequence[int]) -> _Lines:
        """The sockets of a group's ranks: groups have sockets and a thread of their own, so that threads of a process
        which use several at once neither wait for each other nor receive each other's messages."""
        if tuple(ranks) == tuple(range(self.size)):
            return self
        self._groups.append(_GroupLines(self, ranks))
        return self._groups[-1]

    def connection(self, peer: int, channel: bytes) -> socket.socket:
        """A new connection to a rank, which requests the same. Raises RankError if it does not in time."""
        if peer < self.rank:
            return _ready(self._to(peer, channel))
        end = time.monotonic() + self.timeout
        while (found := self._waited_for(peer, channel)) is None:
            try:
                self._accept(end)
            except TimeoutError:
                raise RankError(
                    f"rank {peer} has not answered rank {self.rank} for {self.timeout:g} s"
                ) from None
            finally:
                with self._changed:
                    self._accepting = False
                    self._changed.notify_all()
        return _ready(found)

    def _waited_for(self, peer: int, channel: bytes) -> socket.socket | None:
        """A connection that was accepted, maybe by another thread; None: this thread must accept the next one."""
        key = peer, channel
        with self._changed:
            self._changed.wait_for(lambda: key in self._arrived or not self._accepting, self.timeout)
            found = self._arrived.pop(key, None)
            self._accepting = self._accepting or found is None
            return found

    def _meet(self) -> None:
        """Connect to the ranks below this one, and accept the connections of those above."""
        address = f"{self._store.own_address} {self._listener.getsockname()[1]}"
        self._store.set(f"rank/{self.rank}", address.encode())
        for peer in range(self.rank):
            self.peers[peer] = self._to(peer, self._name)
        end = time.monotonic() + self.timeout
        while missing := [r for r in range(self.size) if r != self.rank and r not in self.peers]:
            try:
                self._accept(end)
            except TimeoutError:
                raise TimeoutError(
                    f"init: of {self.size} ranks rank {', '.join(map(str, missing))} did not come to rank "
                    f"{self.rank} within {self.timeout:g} s: was it started, with the same MASTER_ADDR and "
                    "MASTER_PORT?"
                ) from None
        for connection in self.peers.values():
            _ready(connection)

    def _accept(self, end: float) -> None:
        """Accept the connection of a rank above this one, or reject a stranger. Raises TimeoutError."""
        self._listener.settimeout(max(end - time.monotonic(), 1e-3))
        connection, _ = self._listener.accept()
        connection.settimeout(_GREETING)
        try:
            for word in (_HELLO, self._store.name):
                if receive_exactly(connection, len(word)) != word:
                    raise ConnectionError("it is no rank of this world")
            peer, channel = _WHO.unpack(receive_exactly(connection, _WHO.size))
        except OSError:
            connection.close()
            return
        if channel == self._name:
            self.peers[peer] = connection
        else:
            self._arrived[peer, channel] = connection

    def _to(self, peer: int, channel: bytes) -> socket.socket:
        address, port = self._store.get(f"rank/{peer}").decode().split()
        connection = socket.create_connection((address, int(port)), self.timeout)
        connection.sendall(_HELLO + self._store.name + _WHO.pack(self.rank, channel))
        return connection

    def close(self) -> None:
        """Stop the threads and close all connections."""
        for lines in self._groups:
            lines.close()
        super().close()
        self._listener.close()
        for connection in self._arrived.values():
            connection.close()


class _GroupLines(_Lines):
    """The sockets of a group, each opened at its first use by the two ranks."""

    def __init__(self, mesh: SocketMesh, ranks: Sequence[int]) -> None:
        super().__init__(mesh.rank, mesh.timeout)
        self._mesh, self._name = mesh, _channel_name(ranks)

    def _line(self, peer: int) -> socket.socket:
        if peer not in self.peers:
            self.peers[peer] = self._mesh.connection(peer, self._name)
        return self.peers[peer]


class SocketCommunicator(Communicator):
    """The ranks of one group. lines: of the group, or the mesh, which opens them."""

    transport = "tcp"

    def __init__(self, ranks: Sequence[int], rank: int, lines: _Lines) -> None:
        super().__init__(ranks, rank)
        self._lines = lines.lines(ranks) if isinstance(lines, SocketMesh) else lines

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """In the group's thread, after all operations started before."""
        self._lines.submit(self._exchange, sends, receives).result()

    def _exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        self._lines.exchange(
            {self.ranks[r]: x for r, x in sends.items()}, {self.ranks[r]: x for r, x in receives.items()}
        )

    def start_all_reduce(self, x: Array, reduction: str) -> Pending:
        """In the group's thread."""
        behind = _InThread(self.ranks, self.rank, self._lines)
        return _Started(self._lines.submit(behind.all_reduce, x, reduction))

    def start_reduce_scatter(self, x: Array, out: Array, reduction: str) -> Pending:
        """In the group's thread."""
        behind = _InThread(self.ranks, self.rank, self._lines)
        return _Started(self._lines.submit(behind.reduce_scatter, x, out, reduction))


class _InThread(SocketCommunicator):
    """The same group for code that runs in the group's thread already."""

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        self._exchange(sends, receives)


class _Started:
    """A call in the group's thread."""

    def __init__(self, call: Future[None]) -> None:
        self._call = call

    def wait(self) -> None:
        self._call.result()


def _check_alone(store: Store, rank: int, size: int) -> None:
    """Raise ValueError if another process claims this rank, or rank 0 has another number of ranks."""
    if rank == 0:
        store.set("size", str(size).encode())
    elif (first := int(store.get("size"))) != size:
        raise ValueError(
            f"init: rank {rank} is one of {size} ranks, rank 0 one of {first}: WORLD_SIZE must be the same everywhere"
        )
    if store.add(f"came/{rank}") > 1:
        raise ValueError(
            f"init: another process is rank {rank} already: each needs a RANK of its own, from 0 to {size - 1}; what "
            "a rank itself starts (workers that load data) is none: call init under if __name__ == '__main__':"
        )


def _channel_name(ranks: Sequence[int]) -> bytes:
    """The name of a group's connections, the same on all of its ranks."""
    return hashlib.blake2b(repr(tuple(ranks)).encode(), digest_size=8).digest()


def _ready(connection: socket.socket) -> socket.socket:
    """The connection, made nonblocking."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def _bytes_of(x: Array) -> memoryview:
    """The bytes of a row-major array."""
    return x.reshape(-1).view(np.uint8).data


def _head(x: Array) -> bytes:
    """The header of an array's message."""
    return _HEAD.pack(x.size, x.dtype.name.encode())


def _behind(left: list[memoryview], count: int) -> list[memoryview]:
    """The remaining pieces of memory after this many bytes."""
    for i, piece in enumerate(left):
        if count < len(piece):
            return [piece[count:], *left[i + 1 :]]
        count -= len(piece)
    return []


def _events(peer: int, left_out: _Left, left_in: _Left) -> int:
    return selectors.EVENT_WRITE * (peer in left_out) | selectors.EVENT_READ * (peer in left_in)
