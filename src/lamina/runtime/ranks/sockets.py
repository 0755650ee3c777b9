"""Communicators over TCP sockets, for ranks that no MPI brought together: one connection for each pair of ranks.

Made for a machine or a few, and for what is not heavy (GPUs talk by NCCL): each rank holds a socket to every other.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from lamina.runtime.ranks.communicator import Communicator, Pending, RankError, not_awaited
from lamina.runtime.ranks.store import Store, receive_exactly

Array = np.ndarray[Any, Any]
#: By rank the pieces of memory that are still to be sent or filled.
_Left = dict[int, list[memoryview]]
#: What a rank says to one below it, in front of the store's name and its rank: as long as what a client says to a
#: store, which may knock here while it looks for its own.
_HELLO = b"lamina ranks 1\n"
_RANK = struct.Struct(">I")
#: Seconds that who has connected may take to say it.
_GREETING = 20.0
#: Before each message: how many elements it has, and of which type.
_HEAD = struct.Struct(">Q16s")


class SocketMesh:
    """This rank's sockets to all others of the world, and the thread that uses them in the order of the calls.

    store: where ranks tell each other their addresses. timeout: seconds without a byte after which a rank is
    given up.
    """

    def __init__(self, store: Store, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.peers: dict[int, socket.socket] = {}
        _check_alone(store, rank, size)
        self._thread = ThreadPoolExecutor(1, "lamina ranks")
        try:
            self._meet(store, size, timeout)
        except BaseException:
            self.close()
            raise
        for connection in self.peers.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)

    def _meet(self, store: Store, size: int, timeout: float) -> None:
        """Connect to the ranks below this one, and take the connections of those above."""
        with socket.socket() as listener:
            listener.bind(("", 0))
            listener.listen(size)
            store.set(f"rank/{self.rank}", f"{_own_address(store)} {listener.getsockname()[1]}".encode())
            for peer in range(self.rank):
                self.peers[peer] = self._to(peer, store)
            end = time.monotonic() + timeout
            while len(self.peers) < size - 1:
                self._accept(listener, store.name, end)

    def _accept(self, listener: socket.socket, name: bytes, end: float) -> None:
        """Take the connection of a rank above this one, or send a stranger away. Raises TimeoutError, which names
        those that did not come."""
        try:
            listener.settimeout(max(end - time.monotonic(), 1e-3))
            connection, _ = listener.accept()
        except TimeoutError:
            missing = ", ".join(str(r) for r in range(self.rank + 1, self.size) if r not in self.peers)
            raise TimeoutError(
                f"init: of {self.size} ranks rank {missing} did not come to rank {self.rank} within "
                f"{self.timeout:g} s: was it started, with the same MASTER_ADDR and MASTER_PORT?"
            ) from None
        connection.settimeout(_GREETING)
        try:
            for word in (_HELLO, name):
                if receive_exactly(connection, len(word)) != word:
                    raise ConnectionError("it is no rank of this world")
            (peer,) = _RANK.unpack(receive_exactly(connection, _RANK.size))
        except OSError:
            connection.close()
        else:
            self.peers[peer] = connection

    def _to(self, peer: int, store: Store) -> socket.socket:
        address, port = store.get(f"rank/{peer}").decode().split()
        connection = socket.create_connection((address, int(port)), self.timeout)
        connection.sendall(_HELLO + store.name + _RANK.pack(self.rank))
        return connection

    def submit(self, call: Callable[..., None], *args: Any) -> Future[None]:
        """Run a call behind those before it."""
        return self._thread.submit(call, *args)

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """Send and receive at once; keys are ranks of the world. Raises RankError, also for what is not awaited."""
        left_out = {peer: [memoryview(_head(x)), _bytes_of(x)] for peer, x in sends.items()}
        heads = {peer: bytearray(_HEAD.size) for peer in receives}
        left_in = {peer: [memoryview(heads[peer]), _bytes_of(x)] for peer, x in receives.items()}
        with selectors.DefaultSelector() as selector:
            for peer in {*left_out, *left_in}:
                selector.register(self.peers[peer], _events(peer, left_out, left_in), peer)
            while selector.get_map():
                ready = selector.select(self.timeout)
                if not ready:
                    silent = ", ".join(map(str, sorted({*left_out, *left_in})))
                    raise RankError(f"rank {silent} has not answered rank {self.rank} for {self.timeout:g} s")
                for key, events in ready:
                    self._progress(key.data, events, left_out, left_in)
                    if key.data in heads and len(left_in.get(key.data, ())) < 2:  # its head is here
                        self._check(key.data, bytes(heads.pop(key.data)), receives[key.data])
                    wanted = _events(key.data, left_out, left_in)
                    if not wanted:
                        selector.unregister(key.fileobj)
                    elif wanted != key.events:
                        selector.modify(key.fileobj, wanted, key.data)

    def _check(self, peer: int, head: bytes, awaited: Array) -> None:
        """Raise RankError where a message is of another size or type than the array that awaits it."""
        if head != _head(awaited):
            count, name = _HEAD.unpack(head)
            sent = f"{count} {name.decode(errors='replace')}".rstrip("\0")
            raise not_awaited(peer, self.rank, sent, awaited)

    def _progress(self, peer: int, events: int, left_out: _Left, left_in: _Left) -> None:
        """Move what can be moved now."""
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
        """End the thread and all connections."""
        self._thread.shutdown()
        for connection in self.peers.values():
            connection.close()


class SocketCommunicator(Communicator):
    """The ranks of one group, over the world's mesh."""

    transport = "tcp"

    def __init__(self, ranks: Sequence[int], rank: int, mesh: SocketMesh) -> None:
        super().__init__(ranks, rank)
        self._mesh = mesh

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """In the mesh's thread, behind what was started before."""
        self._mesh.submit(self._exchange, sends, receives).result()

    def _exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        self._mesh.exchange(
            {self.ranks[r]: x for r, x in sends.items()}, {self.ranks[r]: x for r, x in receives.items()}
        )

    def start_all_reduce(self, x: Array, reduction: str) -> Pending:
        """In the mesh's thread."""
        behind = _InThread(self.ranks, self.rank, self._mesh)
        return _Started(self._mesh.submit(behind.all_reduce, x, reduction))

    def start_reduce_scatter(self, x: Array, out: Array, reduction: str) -> Pending:
        """In the mesh's thread."""
        behind = _InThread(self.ranks, self.rank, self._mesh)
        return _Started(self._mesh.submit(behind.reduce_scatter, x, out, reduction))


class _InThread(SocketCommunicator):
    """The same group for what runs in the mesh's thread already."""

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        self._exchange(sends, receives)


class _Started:
    """A call in the mesh's thread."""

    def __init__(self, call: Future[None]) -> None:
        self._call = call

    def wait(self) -> None:
        self._call.result()


def _check_alone(store: Store, rank: int, size: int) -> None:
    """Raise ValueError where another process says that it is this rank, or the first one counts other ranks."""
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


def _own_address(store: Store) -> str:
    """The address of this machine towards the store's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((store.address, store.port))
        return str(probe.getsockname()[0])


def _bytes_of(x: Array) -> memoryview:
    """The bytes of a row-major array."""
    return x.reshape(-1).view(np.uint8).data


def _head(x: Array) -> bytes:
    """What is told before an array."""
    return _HEAD.pack(x.size, x.dtype.name.encode())


def _behind(left: list[memoryview], count: int) -> list[memoryview]:
    """What is left of pieces of memory behind so many bytes."""
    for i, piece in enumerate(left):
        if count < len(piece):
            return [piece[count:], *left[i + 1 :]]
        count -= len(piece)
    return []


def _events(peer: int, left_out: _Left, left_in: _Left) -> int:
    return selectors.EVENT_WRITE * (peer in left_out) | selectors.EVENT_READ * (peer in left_in)
