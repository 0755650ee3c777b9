"""How far a process is: steps, collectives, work that takes long, and the agreement when to stop."""

import threading

import pytest

from lamina.runtime.ranks.progress import Progress, group_name


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


def test_threads_are_each_in_a_collective_of_their_own() -> None:
    """One that ends first takes nothing of another's with it, and none is a part of another thread's."""
    progress = Progress()
    first, second = threading.Event(), threading.Event()

    def other() -> None:
        with progress.collective("all_gather", "0,2"):
            first.set()
            second.wait(10.0)

    thread = threading.Thread(target=other)
    with progress.collective("all_reduce"):
        thread.start()
        first.wait(10.0)
        assert (progress.op, progress.within) == ("all_reduce", True)
    assert (progress.op, progress.facts()["group"], progress.within) == ("all_gather", "0,2", False)
    second.set()
    thread.join()
    assert progress.op == ""
    assert progress.facts()["counts"] == {"world": 1, "0,2": 1}


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


def test_a_course_is_known_by_its_last_operations_and_some_before() -> None:
    one, other = Progress(), Progress()
    for number in range(600):
        one.comes_to("world", f"all_reduce of float32[{number % 3}]")
        other.comes_to("world", f"all_reduce of float32[{number % 3 if number else 7}]")
    found = one.facts()["courses"]["world"]
    assert [n for n, _, _ in found] == [256, 512, *range(537, 601)]
    assert found[-1][2] == "all_reduce of float32[2]"
    pairs = zip(found, other.facts()["courses"]["world"], strict=True)
    assert all(a[1] != b[1] for a, b in pairs)  # one difference is in all that follow


def test_what_is_new_is_told_at_once() -> None:
    progress, told = Progress(), list[int]()
    progress.tell = lambda: told.append(progress.courses["world"].count)
    for what in ("a", "b", "a", "b"):
        progress.comes_to("world", what)
    progress.tell_next(2)  # of a program that has not run before
    for what in ("a", "b", "a"):
        progress.comes_to("world", what)
    assert told == [1, 2, 5, 6]


def test_sizes_of_steps_are_told_where_they_change() -> None:
    progress, told = Progress(), list[int]()
    progress.tell = lambda: told.append(progress.parts["world"].calls)
    for samples in (8, 8, 5, 8, None):
        progress.trains_on("world", samples)
    assert progress.facts()["parts"] == {"world": (5, [(1, 8), (3, 5), (4, 8), (5, None)])}
    assert told == [1, 3, 5]  # at once what is new


def test_groups_are_called_alike_on_all_ranks() -> None:
    assert (group_name((0, 1), 2), group_name((0, 1), 3)) == ("world", "0,1")


def test_what_was_decided_first_stays_until_this_rank_has_stopped() -> None:
    progress = Progress()
    progress.begin_step(0)
    progress.decide(1, "SIGINT")
    progress.decide(5, "SIGTERM")
    assert (progress.is_over, progress.why) == (True, "SIGINT")
    progress.stop()
    assert (progress.is_over, progress.stopped) == (False, "SIGINT")
    progress.decide(2, "SIGTERM")
    progress.begin_step(1)
    assert progress.is_over


def test_who_asks_whether_it_is_over_waits_for_the_agreement() -> None:
    progress = Progress()
    progress.begin_step(0)
    progress.hold()
    said = list[bool]()
    thread = threading.Thread(target=lambda: said.append(progress.is_over))
    thread.start()
    thread.join(0.05)
    assert (thread.is_alive(), said) == (True, [])
    progress.decide(1, "SIGTERM")
    thread.join(10)
    assert said == [True]
