"""The store: values, waiting, numbers, strangers at its door."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from lamina.runtime.ranks.store import _TRIES, Store, _listener
from tests.helpers.ranks import free_port


@pytest.fixture
def store() -> Iterator[Store]:
    found = Store("127.0.0.1", free_port(), serve=True, timeout=20.0)
    yield found
    found.close()


def test_values_are_kept(store: Store) -> None:
    store.set("a", b"1" * 3_000_000)
    other = store.clone()
    assert other.get("a") == b"1" * 3_000_000
    assert other.look("b") is None
    store.set("b", b"")
    assert other.look("b") == b""
    assert [store.add("n", 3), other.add("n", -5)] == [3, -2]
    other.close()


def test_a_get_waits_for_its_value(store: Store) -> None:
    other, found = store.clone(), []
    waiting = threading.Thread(target=lambda: found.append(other.get("late")))
    waiting.start()
    store.set("late", b"x")
    waiting.join()
    assert found == [b"x"]
    other.close()


def test_a_get_in_vain_says_what_was_missing_and_the_client_goes_on(store: Store) -> None:
    with pytest.raises(TimeoutError, match=r"had no 'never' within 0.05 s"):
        store.get("never", timeout=0.05)
    store.set("now", b"x")
    assert store.get("now") == b"x"


def test_who_leaves_while_waiting_leaves_the_others_waiting(store: Store) -> None:
    """One of three that wait for a value gives up; the other two get it."""
    server, clients, found = store._server, [store.clone() for _ in range(3)], dict[int, bytes]()
    assert server is not None

    def wait(number: int) -> None:
        with suppress(TimeoutError):
            found[number] = clients[number].get("late", timeout=0.2 if number == 1 else 10.0)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    threads[1].join()
    end = time.monotonic() + 5
    while len(server._waiting["late"]) != 2 and time.monotonic() < end:
        time.sleep(1e-3)
    store.set("late", b"x")
    for thread in threads:
        thread.join()
    assert found == {0: b"x", 2: b"x"}
    for client in clients:
        client.close()


def test_strangers_are_sent_away(store: Store) -> None:
    with socket.create_connection(("127.0.0.1", store.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(20)
        assert stranger.recv(100) == b""
    store.set("still", b"here")


def test_a_port_that_is_taken_leaves_the_next(store: Store) -> None:
    with socket.socket() as taken:  # as torchrun's own store is, which answers nobody of ours
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        strangers = threading.Thread(target=lambda: [taken.accept()[0].close() for _ in range(1)])
        strangers.start()
        server = Store("127.0.0.1", port, serve=True, timeout=20.0)
        client = Store("127.0.0.1", port, timeout=20.0)
        strangers.join()
        assert client.port == server.port > port
        client.close()
        server.close()


def test_without_a_server_the_error_says_who_is_missing() -> None:
    port = free_port()
    with pytest.raises(ConnectionError, match=rf"no store at 127.0.0.1:{port} after 0.2 s .*rank 0 keeps it"):
        Store("127.0.0.1", port, timeout=0.2)


def test_when_the_server_ends_the_error_says_so(store: Store) -> None:
    other = store.clone()
    store.close()
    with pytest.raises(ConnectionError, match="is gone: rank 0 has ended"):
        other.get("a")
    other.close()


@pytest.mark.parametrize(("port", "tried"), [(0, [0]), (40000, list(range(40000, 40000 + _TRIES)))])
def test_where_no_port_is_free_the_error_says_which_were_tried(
    port: int, tried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[tuple[str, int]]()

    def taken(host: str, port: int) -> socket.socket:
        seen.append((host, port))
        raise OSError("Address already in use")

    monkeypatch.setattr("lamina.runtime.ranks.store.listening", taken)
    with pytest.raises(
        OSError, match=f"no free port from {port} to {tried[-1]}: set MASTER_PORT to another one"
    ):
        _listener("10.0.0.1", port)
    assert seen == [("10.0.0.1", number) for number in tried]
