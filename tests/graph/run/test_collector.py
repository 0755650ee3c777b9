"""The garbage collector waits within blocks of all threads, and goes on as it was."""

import gc
import threading

import pytest

from lamina.graph.run.collector import collector_paused


def test_it_goes_on_after_the_last_block() -> None:
    assert gc.isenabled()
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_errors_and_other_threads() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(10)
    with pytest.raises(ZeroDivisionError), collector_paused():
        _ = 1 / 0
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
