"""How far a process is: steps, collectives, work that takes long, and the agreement when to stop."""

import threading

import pytest

from lamina.runtime.ranks.progress import Progress


def test_collectives_are_counted_by_group() -> None:
    progress = Progress()
    progress.begin_step(7)
    with progress.collective("all_reduce"), progress.collective("all_gather"):  # one is a part of the other
        found = progress.facts()
        assert (found["step"], found["op"], found["group"]) == (7, "all_reduce", "world")
        assert found["since"] >= 0
    with progress.collective("barrier", "0,2"):
        pass
    with progress.collective("all_reduce", counted=False):
        pass
    assert progress.facts()["counts"] == {"world": 1, "0,2": 1}
    assert progress.facts()["op"] == ""


def test_a_collective_that_fails_is_over() -> None:
    progress = Progress()
    with pytest.raises(OSError, match="gone"), progress.collective("barrier"):
        raise OSError("gone")
    assert progress.op == ""


def test_long_work_says_what_it_is() -> None:
    progress = Progress()
    with progress.patience(60, "planning"):
        assert progress.facts()["doing"] == "planning"
        assert 59 < progress.facts()["patience"] <= 60
    assert progress.facts()["patience"] == 0


def test_ranks_stop_after_the_last_step_that_one_has_begun() -> None:
    ahead, behind = Progress(), Progress()
    for number in range(3):
        ahead.begin_step(number)
    for number in range(2):
        behind.begin_step(number)
    begun = [ahead.hold(), behind.hold()]
    assert begun == [3, 2]
    for progress in (ahead, behind):
        progress.decide(max(begun), "SIGTERM")
    assert ahead.is_over
    assert not behind.is_over
    behind.begin_step(2)
    assert behind.is_over
    assert behind.why == "SIGTERM"


def test_no_step_begins_while_ranks_agree() -> None:
    progress = Progress()
    progress.begin_step(0)
    progress.hold()
    begun = threading.Event()
    thread = threading.Thread(target=lambda: (progress.begin_step(1), begun.set()))
    thread.start()
    assert not begun.wait(0.05)
    assert progress.calls == 1
    progress.decide(2, "SIGTERM")
    thread.join()
    assert progress.is_over
    assert progress.hold() == 2  # asked again, it is decided already
    progress.begin_step(2)
