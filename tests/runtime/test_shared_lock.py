"""Many readers, or one writer."""

import sys
import threading
import time

import pytest

from lamina.runtime.shared_lock import SharedLock, swift_turns


def test_readers_wait_for_nobody() -> None:
    lock, both = SharedLock(), threading.Barrier(2, timeout=30)

    def work() -> None:
        with lock.shared():
            both.wait()  # passes only where the other one is within, too

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not both.broken


def test_a_writer_is_alone() -> None:
    lock, within, seen = SharedLock(), [0, 0], list[tuple[int, int]]()

    def work(number: int) -> None:
        for turn in range(50):
            if (turn + number) % 5:
                with lock.shared():
                    within[0] += 1
                    seen.append((0, within[1]))
                    within[0] -= 1
            else:
                with lock.exclusive():
                    within[1] += 1
                    time.sleep(1e-4)
                    seen.append((within[0], within[1] - 1))
                    within[1] -= 1

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 400
    assert set(seen) == {(0, 0)}


def test_a_writer_goes_before_later_readers() -> None:
    lock, order = SharedLock(), list[str]()
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with lock.shared():
            inside.set()
            assert leave.wait(30)

    def writer() -> None:
        with lock.exclusive():
            order.append("writer")

    def newcomer() -> None:
        with lock.shared():
            order.append("newcomer")

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert inside.wait(30)
    for work, waits in ((writer, lambda: lock._claims == 1), (newcomer, lambda: True)):
        threads.append(threading.Thread(target=work))
        threads[-1].start()
        while not waits():
            time.sleep(1e-3)
    leave.set()
    for thread in threads:
        thread.join()
    assert order == ["writer", "newcomer"]


def test_an_error_within_lets_others_go_on() -> None:
    lock = SharedLock()
    for enter in (lock.exclusive, lock.shared):
        with pytest.raises(ZeroDivisionError), enter():
            raise ZeroDivisionError
    with lock.exclusive():
        pass
    with lock.shared():
        pass


def test_turns_are_swift_until_nobody_wants_it() -> None:
    usual = sys.getswitchinterval()
    with swift_turns():
        with swift_turns():
            assert sys.getswitchinterval() < usual
        assert sys.getswitchinterval() < usual
    assert sys.getswitchinterval() == usual
