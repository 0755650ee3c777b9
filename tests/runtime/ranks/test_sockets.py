"""Communicators over sockets."""

import errno
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lamina.runtime.ranks.communicator import RankError
from lamina.runtime.ranks.sockets import SocketCommunicator, SocketMesh
from lamina.runtime.ranks.store import Store
from tests.helpers.rank_programs import check_world_and_pairs
from tests.helpers.ranks import free_port, run_ranks


@pytest.mark.feature("B032")
def test_ranks_give_each_other_what_they_should() -> None:
    assert run_ranks(check_world_and_pairs, 4) == [[]] * 4


def meshes(stores: list[Store]) -> list[SocketMesh]:
    """Ranks in threads of one process."""
    found: dict[int, SocketMesh] = {}

    def meet(rank: int) -> None:
        found[rank] = SocketMesh(stores[rank], rank, len(stores), 20.0)

    beside(*(partial(meet, rank) for rank in range(len(stores))))
    return [found[rank] for rank in range(len(stores))]


def beside(*functions: Callable[[], None]) -> None:
    """Each in a thread of its own."""
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_rank_that_is_silent_or_gone_is_named() -> None:
    server = Store("127.0.0.1", free_port(), serve=True, timeout=20.0)
    stores = [server.clone(), server]
    first, second = meshes(stores)
    first.timeout = 0.2
    comm = SocketCommunicator((0, 1), 0, first)
    with pytest.raises(RankError, match=r"rank 1 has not answered rank 0 for 0.2 s"):
        comm.receive(np.zeros(1), 1)
    second.close()
    with pytest.raises(RankError, match=r"rank 1 has ended: .*rank 0 waited for it"):
        comm.receive(np.zeros(1), 1)
    for held in (first, *stores):
        held.close()


def test_threads_use_groups_that_share_ranks_at_one_time() -> None:
    """Messages of one group are none of another's, whichever a rank turns to first."""
    server = Store("127.0.0.1", free_port(), serve=True, timeout=20.0)
    stores = [server, server.clone(), server.clone(), server.clone()]
    ranks = meshes(stores)
    groups = [(0, 1, 2, 3), (0, 1), (2, 3), (0, 2), (1, 3)]
    wrong: list[Any] = []

    def sums(mesh: SocketMesh, group: tuple[int, ...]) -> None:
        comm = SocketCommunicator(group, group.index(mesh.rank), mesh)
        for number in range(20):
            x = np.array([1000.0 * groups.index(group) + number])
            comm.all_reduce(x, "sum")
            if x[0] != len(group) * (1000.0 * groups.index(group) + number):
                wrong.append((mesh.rank, group, number, x))

    turned = [(mesh, groups if mesh.rank % 2 else groups[::-1]) for mesh in ranks]
    beside(*(partial(sums, mesh, group) for mesh, own in turned for group in own if mesh.rank in group))
    assert wrong == []
    for held in (*ranks, *stores[::-1]):
        held.close()


def test_a_rank_that_does_not_come_to_a_group_is_named() -> None:
    server = Store("127.0.0.1", free_port(), serve=True, timeout=20.0)
    stores = [server, server.clone(), server.clone()]
    ranks = meshes(stores)
    ranks[0].timeout = 0.2
    with pytest.raises(RankError, match=r"rank 2 has not answered rank 0 for 0.2 s"):
        SocketCommunicator((0, 2), 0, ranks[0]).receive(np.zeros(1), 1)
    for held in (*ranks, *stores[::-1]):
        held.close()


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (np.zeros(5, np.float32), "5 float32"),  # what it has more would be taken for the next message
        (np.zeros(2, np.float32), "2 float32"),
        (np.zeros(0, np.float32), "0 float32"),
        (np.zeros(3, np.int32), "3 int32"),
        (np.zeros(3, ml_dtypes.bfloat16), "3 bfloat16"),
    ],
)
def test_what_is_not_awaited_is_named(sent: Any, text: str) -> None:
    server = Store("127.0.0.1", free_port(), serve=True, timeout=20.0)
    stores = [server, server.clone()]
    first, second = meshes(stores)
    SocketCommunicator((0, 1), 1, second).send(sent, 0)
    with pytest.raises(
        RankError, match=rf"rank 1 sends rank 0 {text}, where 3 float32 are awaited: both must"
    ):
        SocketCommunicator((0, 1), 0, first).receive(np.zeros(3, np.float32), 1)
    for held in (first, second, *stores):
        held.close()


def test_ranks_that_do_not_come_or_come_twice_or_count_otherwise_are_named() -> None:
    with closing(Store("127.0.0.1", free_port(), serve=True, timeout=20.0)) as store:
        with pytest.raises(TimeoutError, match=r"of 3 ranks rank 1, 2 did not come to rank 0 within 0.1 s"):
            SocketMesh(store, 0, 3, 0.1)
        with pytest.raises(
            ValueError, match="another process is rank 0 already: each needs a RANK of its own"
        ):
            SocketMesh(store, 0, 3, 0.1)
        with pytest.raises(ValueError, match="rank 1 is one of 2 ranks, rank 0 one of 3: WORLD_SIZE must be"):
            SocketMesh(store, 1, 2, 0.1)


def is_sent_away(stranger: socket.socket, word: bytes) -> bool:
    """Whether a connection ends behind a word: it is closed, or reset where the word was longer than what was read of
    it, perhaps before the stranger has ended its own side."""
    stranger.settimeout(10.0)
    try:
        stranger.sendall(word)
        stranger.shutdown(socket.SHUT_WR)
        return stranger.recv(1) == b""
    except OSError as error:
        return error.errno in (errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE)


@pytest.mark.parametrize(
    "word", [b"", b"lamina store 2\n", b"lamina ranks 2\n" + bytes(16) + b"\0\0\0\1" + bytes(8), b"\0\0\0\1"]
)
def test_strangers_are_no_ranks(word: bytes) -> None:
    """Somebody comes to rank 0 in front of rank 1: nobody that speaks, a client in search of its store, a rank of
    another world, a bare number."""
    server = Store("127.0.0.1", free_port(), serve=True, timeout=20.0)
    found: list[SocketMesh] = []
    first = threading.Thread(target=lambda: found.append(SocketMesh(server, 0, 2, 20.0)))
    first.start()
    store = server.clone()
    address, port = store.get("rank/0").decode().split()
    with socket.create_connection((address, int(port))) as stranger:
        assert is_sent_away(stranger, word)
    second = SocketMesh(store, 1, 2, 20.0)
    first.join()
    out = np.zeros(3, np.float32)
    sent = found[0].submit(found[0].exchange, {1: np.arange(3, dtype=np.float32)}, {})
    second.exchange({}, {0: out})
    sent.result()
    assert out.tolist() == [0.0, 1.0, 2.0]
    for held in (found[0], second, store, server):
        held.close()
