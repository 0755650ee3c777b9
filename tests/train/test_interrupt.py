"""Ctrl-C as a request: noted once, at once the second time; nobody else's handling is touched."""

import signal
import threading

import pytest

from lamina.train.interrupt import Interrupt


def test_the_first_is_noted_and_the_second_interrupts() -> None:
    with Interrupt() as interrupt:
        assert not interrupt.asked
        signal.raise_signal(signal.SIGINT)
        assert interrupt.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_can_be_entered_again() -> None:
    interrupt = Interrupt()
    for _ in range(2):
        with interrupt:
            assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_comes_back_after_an_error() -> None:
    with pytest.raises(OSError, match="gone"), Interrupt():
        raise OSError("gone")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_somebody_elses_handler_is_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    assert not interrupt.asked


def test_other_threads_get_no_signals() -> None:
    found: list[str] = []

    def use() -> None:
        with Interrupt() as interrupt:
            found.append(interrupt.asked)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert found == [""]
