"""Work in threads that nobody waits for yet."""

import threading

import pytest

from lamina.runtime.ahead import Ahead


def waited(ahead: Ahead) -> None:
    """Until nothing is under way."""
    assert ahead._threads is not None
    ahead._threads.shutdown()


def test_all_is_done_and_errors_are_nobodys() -> None:
    ahead, done = Ahead("counting"), list[object]()

    def fails() -> None:
        done.append("fails")
        raise ValueError("asked for later again")

    ahead.begin(fails)
    for number in range(20):
        ahead.begin(lambda number=number: done.append(number))  # type: ignore[misc]
    waited(ahead)
    assert set(done) == {"fails", *range(20)}
    assert ahead._given == ahead._done == 0


def test_a_line_tells_how_far_it_is_where_it_takes_long(capsys: pytest.CaptureFixture[str]) -> None:
    told = threading.Event()
    for patience, expected in ((0.0, "lamina: counting: 1 of 2\n"), (60.0, "")):
        ahead = Ahead("counting", patience)
        told.clear()
        ahead.begin(lambda: told.wait(30))
        ahead.begin(told.set)
        waited(ahead)
        assert capsys.readouterr().err == expected


def test_a_forked_child_begins_anew() -> None:
    ahead, done = Ahead("counting"), threading.Event()
    ahead.begin(done.set)
    waited(ahead)
    ahead.renew()
    assert ahead._threads is None
    done.clear()
    ahead.begin(done.set)
    assert done.wait(30)


@pytest.mark.parametrize(("cores", "spare", "threads"), [(4, 0, 4), (4, 1, 3), (1, 1, 1), (500, 1, 32)])
def test_cores_are_left_to_others(
    monkeypatch: pytest.MonkeyPatch, cores: int, spare: int, threads: int
) -> None:
    monkeypatch.setattr("lamina.runtime.ahead.usable_cores", lambda: cores)
    ahead = Ahead("counting", spare=spare)
    ahead.begin(lambda: None)
    assert ahead._threads is not None
    assert ahead._threads._max_workers == threads
    waited(ahead)
