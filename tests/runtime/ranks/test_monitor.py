"""The monitor hears ranks, keeps values for them, lets them agree, and listens to nobody else."""

import select
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lamina.runtime.ranks.monitor import Line, RankMonitor
from lamina.runtime.ranks.verdict import Limits


@pytest.fixture
def monitor() -> Iterator[RankMonitor]:
    made = RankMonitor(2, Limits(600.0))
    made.start()
    yield made
    made.close()


def join(monitor: RankMonitor, rank: int, token: str | None = None) -> Line:
    host, port, secret = monitor.address.split(":")
    line = Line(socket.create_connection((host, int(port))))
    line.send(rank=rank, token=secret if token is None else token, place=f"process {rank}")
    return line


def heard(line: Line, kind: str) -> dict[str, Any]:
    """The next message of a kind."""
    while True:
        assert select.select([line.connection], [], [], 30)[0], f"no {kind}"
        messages = line.receive()
        assert messages is not None, "closed"
        for message in messages:
            if kind in message:
                return message


def leave(*lines: Line) -> None:
    for line in lines:
        line.connection.close()


def test_values_are_given_when_they_are_known(monitor: RankMonitor) -> None:
    first, second = join(monitor, 0), join(monitor, 1)
    assert heard(first, "welcome") == {"welcome": -1, "timeout": 600.0}
    second.send(get=["shard/0", 5])
    first.send(set=["shard/0", {"file": "a"}])
    assert heard(second, "answer") == {"answer": 5, "value": {"file": "a"}}
    second.send(get=["shard/0", 6])
    assert heard(second, "answer")["answer"] == 6
    leave(first, second)


def test_ranks_agree_on_the_last_step(monitor: RankMonitor) -> None:
    first, second = join(monitor, 0), join(monitor, 1)
    heard(first, "welcome"), heard(second, "welcome")
    second.send(stop="SIGTERM")
    for line, begun in ((first, 8), (second, 7)):
        assert heard(line, "hold")
        line.send(begun=begun)
    for line in (first, second):
        assert heard(line, "last") == {"last": 9, "why": "SIGTERM"}
    leave(first, second)


def test_a_rank_that_raises_is_told_to_all(monitor: RankMonitor) -> None:
    first, second = join(monitor, 0), join(monitor, 1)
    heard(first, "welcome"), heard(second, "welcome")
    second.send(at={"step": 3, "op": "", "counts": {}}, failed="raised ValueError: bad")
    assert heard(first, "verdict")["verdict"]["reason"] == "raised ValueError: bad"
    assert (
        str(monitor.verdict)
        == "rank 1 (process 1) raised ValueError: bad; it was in step 3, in no collective operation"
    )
    late = join(monitor, 0)  # whoever joins later hears it, too
    assert heard(late, "verdict")["verdict"]["rank"] == 1
    leave(first, second, late)


def test_a_launcher_says_how_a_process_ended(monitor: RankMonitor) -> None:
    first, second = join(monitor, 0), join(monitor, 1)
    heard(first, "welcome"), heard(second, "welcome")
    leave(second)
    monitor.ended(1, "was killed by SIGKILL")
    assert "was killed by SIGKILL" in heard(first, "verdict")["verdict"]["reason"]
    leave(first)


def test_a_status_is_told_of_a_rank_that_left_well(monitor: RankMonitor) -> None:
    """sys.exit(3) leaves the others, and then ends the process."""
    first, second = join(monitor, 0), join(monitor, 1)
    heard(first, "welcome"), heard(second, "welcome")
    second.send(at={"step": 3, "op": "", "counts": {}}, bye=True)
    leave(second)
    while 1 in monitor._lines:
        time.sleep(0.01)
    monitor.ended(1, "ended with exit status 3")
    assert heard(first, "verdict")["verdict"]["reason"] == "ended with exit status 3"
    leave(first)


@pytest.mark.parametrize("says", ["raised ValueError: bad", ""])
def test_what_a_rank_said_last_is_read_before_the_launcher_is_believed(says: str) -> None:
    """A monitor whose thread has not come to it yet; a child may keep the connection open."""
    monitor = RankMonitor(2, Limits(600.0))
    line = join(monitor, 1)
    monitor._accept()
    for key, _ in monitor._selector.select(30):
        key.data()
    if says:
        line.send(failed=says)
        leave(line)
    monitor.ended(1, "ended with exit status 1")
    assert monitor.verdict is None
    while says and monitor._lines:
        for key, _ in monitor._selector.select(30):
            key.data()
    monitor._judge(time.monotonic() + (0 if says else 2))
    assert (says or "ended with exit status 1") in str(monitor.verdict)
    monitor._end()
    monitor.close()
    leave(line)


def test_a_connection_that_breaks_is_a_fault_and_a_good_end_is_none(monitor: RankMonitor) -> None:
    first, second = join(monitor, 0), join(monitor, 1)
    heard(first, "welcome"), heard(second, "welcome")
    first.send(bye=True)
    leave(first)
    leave(second)
    assert monitor.decided.wait(30)
    assert monitor.verdict is not None
    assert monitor.verdict.rank == 1
    assert "without a word" in monitor.verdict.reason


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b'{"rank":0,"token":"x"}\n',
        b'{"rank":9,"token":"x"}\n',
        b'{"rank":"0"}\n',
    ],
)
def test_strangers_are_not_listened_to(monitor: RankMonitor, words: bytes) -> None:
    host, port, _ = monitor.address.split(":")
    with socket.create_connection((host, int(port)), 30) as stranger:
        stranger.sendall(words)
        assert stranger.recv(100) == b""
    line = join(monitor, 0)
    assert heard(line, "welcome")
    assert not monitor.ranks[1].joined
    leave(line)


def test_bad_messages_of_a_rank_change_nothing(monitor: RankMonitor) -> None:
    line = join(monitor, 0)
    heard(line, "welcome")
    line.send(set=3, get=["a"], begun="x", nonsense=1)
    line.send(set=["a", 1], get=["a", 2])
    assert heard(line, "answer") == {"answer": 2, "value": 1}
    leave(line)


def test_a_monitor_that_was_stopped_blames_nobody_for_it() -> None:
    monitor = RankMonitor(1, Limits(1.0))
    monitor.ranks[0].joined = True
    monitor.ranks[0].heard = time.monotonic() - 100
    monitor._forgive(time.monotonic())
    monitor._judge(time.monotonic())
    assert monitor.verdict is None
    monitor.close()


def test_who_left_and_comes_again_is_watched_again(monitor: RankMonitor) -> None:
    """After `shutdown` and `init`: who is done is not missed."""
    line = join(monitor, 1)
    heard(line, "welcome")
    line.send(bye=True)
    leave(line)
    again = join(monitor, 1)
    heard(again, "welcome")
    assert not monitor.ranks[1].done
    leave(again)
