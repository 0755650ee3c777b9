"""A key-value store in rank 0, by which processes without MPI meet.

Protocol: a client sends `HELLO` and receives it back with the store's random name; then each request is (kind, key,
value) with lengths before key and value, each answer a value preceded by its length. Integers are big-endian.
No received data is executed.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from lamina.runtime.ranks.listening import listening

HELLO = b"lamina store 2\n"
_SET, _GET, _LOOK, _ADD = range(4)
_HEAD = struct.Struct(">BIQ")
_LENGTH = struct.Struct(">Q")
#: The length in an answer without a value.
_NONE = 2**64 - 1
#: Ports above the given one that the server tries if that is taken (torchrun serves a store of its
#: own there).
_TRIES = 16
#: Longest key and value: longer ones are no request of the protocol.
_LIMIT = 1 << 30
#: Bytes of a store's name.
_NAME = 16
#: Names of stores that this process has left: when it rejoins the others, the last one may still answer.
_left: set[bytes] = set()


class Store:
    """A client of the store at (address, port); with `serve` also the server, in a thread.

    Threads may share it, one request at a time; for long waits use a `clone`. timeout: seconds that a
    request waits. name: random bytes, those of its server.
    Raises ConnectionError if there is no answer within the timeout, OSError if the port cannot be taken.
    """

    def __init__(self, address: str, port: int, *, serve: bool = False, timeout: float = 300.0) -> None:
        self.address, self.timeout = address, timeout
        self._server = _Server(address, port) if serve else None
        self.port = self._server.port if self._server else port
        self._last = self.port if serve else port + _TRIES - 1
        self._lock = threading.Lock()
        self._socket = self._connected()

    @property
    def own_address(self) -> str:
        """The address of this machine from which the store is reached."""
        return str(self._socket.getsockname()[0])

    def clone(self) -> Store:
        """Another client of the same server."""
        return Store(self.address, self.port, timeout=self.timeout)

    def set(self, key: str, value: bytes) -> None:
        """Set the value of a key, replacing an existing one."""
        self._ask(_SET, key, value, self.timeout)

    def get(self, key: str, timeout: float | None = None) -> bytes:
        """The value of a key, once some process has set it. Raises TimeoutError."""
        found = self._ask(_GET, key, b"", self.timeout if timeout is None else timeout)
        assert found is not None
        return found

    def look(self, key: str) -> bytes | None:
        """The value of a key, None if it is not set yet."""
        return self._ask(_LOOK, key, b"", self.timeout)

    def add(self, key: str, amount: int = 1) -> int:
        """Add to the number of a key, initially 0; returns the sum."""
        found = self._ask(_ADD, key, amount.to_bytes(8, "big", signed=True), self.timeout)
        assert found is not None
        return int.from_bytes(found, "big", signed=True)

    def close(self) -> None:
        """Close the connection, and the server if it is this one's."""
        _left.add(self.name)
        self._socket.close()
        if self._server is not None:
            self._server.close()

    def _ask(self, kind: int, key: str, value: bytes, timeout: float) -> bytes | None:
        name = key.encode()
        with self._lock:
            try:
                self._socket.settimeout(timeout)
                self._socket.sendall(_HEAD.pack(kind, len(name), len(value)) + name + value)
                (length,) = _LENGTH.unpack(receive_exactly(self._socket, _LENGTH.size))
                return None if length == _NONE else receive_exactly(self._socket, length)
            except TimeoutError:
                self._socket.close()  # the answer may still come: it is no answer to the next request
                self._socket = self._connected()
                raise TimeoutError(
                    f"the store at {self.address}:{self.port} had no {key!r} within {timeout:g} s"
                ) from None
            except OSError as error:
                raise ConnectionError(
                    f"the store at {self.address}:{self.port} is gone: rank 0 has ended ({error})"
                ) from None

    def _connected(self) -> socket.socket:
        """A connection to the first port at which a store answers. Other services are given up after one second
        at first, later after more: a machine may be busy."""
        end, port, last = time.monotonic() + self.timeout, self.port, "nobody answers"
        patience = 1.0
        while time.monotonic() < end:
            try:
                found, self.name = _greeted(self.address, port, patience)
                self.port = self._last = port
                return found
            except TimeoutError as error:
                last, patience = str(error), min(2 * patience, 16.0)
            except OSError as error:
                last = str(error)
            port = port + 1 if port < self._last else self.port
            time.sleep(0.01 if port != self.port else 0.05)
        raise ConnectionError(
            f"no store at {self.address}:{self.port} after {self.timeout:g} s ({last}): rank 0 keeps it, did it "
            f"start?"
        )


def _greeted(address: str, port: int, timeout: float) -> tuple[socket.socket, bytes]:
    """A connection to the store at this port, and its name. Raises OSError if there is none, or something else."""
    found = socket.create_connection((address, port), timeout)
    try:
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.sendall(HELLO)
        if receive_exactly(found, len(HELLO)) != HELLO:
            raise ConnectionError("somebody else answers there")
        name = receive_exactly(found, _NAME)
        if name in _left:
            raise ConnectionError("the store that was left there has not ended")
        return found, name
    except OSError:
        found.close()
        raise


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Exactly this many bytes. Raises ConnectionError if the other side closes before."""
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise ConnectionError("the other side ended")
        parts += part
    return bytes(parts)


class _Server:
    """The values, and the clients waiting for each, in one thread."""

    def __init__(self, address: str, port: int) -> None:
        self._listener = _listener(address, port)
        self.port: int = self._listener.getsockname()[1]
        self._name = os.urandom(_NAME)
        self._values: dict[str, bytes] = {}
        self._waiting: dict[str, list[_Client]] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._wake, woken = socket.socketpair()
        self._selector.register(woken, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="lamina store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wake.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    for held in list(self._selector.get_map().values()):
                        held.fileobj.close()  # type: ignore[union-attr]
                    self._selector.close()
                    return
                key.data()

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = _Client(connection, self._name, self._answer, self._drop)
        self._selector.register(connection, selectors.EVENT_READ, client.readable)

    def _drop(self, client: _Client) -> None:
        self._selector.unregister(client.connection)
        client.connection.close()
        for waiting in self._waiting.values():
            waiting[:] = [c for c in waiting if c is not client]

    def _answer(self, client: _Client, kind: int, key: str, value: bytes) -> None:
        if kind == _SET:
            self._put(key, value)
            client.reply(b"")
        elif kind == _ADD:
            total = int.from_bytes(self._values.get(key, b"\0"), "big", signed=True)
            total += int.from_bytes(value, "big", signed=True)
            self._put(key, total.to_bytes(8, "big", signed=True))
            client.reply(self._values[key])
        elif kind == _LOOK or key in self._values:
            client.reply(self._values.get(key))
        else:
            self._waiting.setdefault(key, []).append(client)

    def _put(self, key: str, value: bytes) -> None:
        self._values[key] = value
        for client in self._waiting.pop(key, ()):
            client.reply(value)


class _Client:
    """One connection of the server, with the received part of its next request."""

    def __init__(
        self,
        connection: socket.socket,
        name: bytes,
        answer: Callable[[_Client, int, str, bytes], None],
        drop: Callable[[_Client], None],
    ) -> None:
        self.connection, self._name, self._answer, self._drop = connection, name, answer, drop
        self._came = bytearray()
        self._greeted = False

    def readable(self) -> None:
        try:
            part = self.connection.recv(1 << 20)
        except OSError:
            part = b""
        self._came += part
        if not part or not self._whole_requests():
            self._drop(self)

    def reply(self, value: bytes | None) -> None:
        length = _NONE if value is None else len(value)
        with suppress(OSError):  # a closed connection is detected when reading
            self.connection.sendall(_LENGTH.pack(length) + (value or b""))

    def _whole_requests(self) -> bool:
        """Answer all complete requests; False for a connection that is no client."""
        if not self._greeted:
            if len(self._came) < len(HELLO):
                return HELLO.startswith(bytes(self._came))
            if self._came[: len(HELLO)] != HELLO:
                return False
            del self._came[: len(HELLO)]
            self._greeted = True
            with suppress(OSError):  # it may be gone already
                self.connection.sendall(HELLO + self._name)
        while len(self._came) >= _HEAD.size:
            kind, name, size = _HEAD.unpack_from(self._came)
            if kind > _ADD or name > _LIMIT or size > _LIMIT:
                return False
            if len(self._came) < (end := _HEAD.size + name + size):
                break
            key = bytes(self._came[_HEAD.size : _HEAD.size + name])
            value = bytes(self._came[_HEAD.size + name : end])
            del self._came[:end]
            self._answer(self, kind, key.decode(errors="replace"), value)
        return True


def _listener(address: str, port: int) -> socket.socket:
    """A listening socket at the port, or at one of the next if that is taken; 0 means any."""
    ports = range(port, port + (_TRIES if port else 1))
    for number in ports:
        with suppress(OSError):
            return listening(address, number)
    raise OSError(
        f"the store of rank 0 finds no free port from {port} to {ports[-1]}: set MASTER_PORT to another one"
    )
