"""Which rank is to blame: every rule by its text, and that nobody is blamed too early."""

from typing import Any

import pytest

from lamina.runtime.ranks import verdict
from lamina.runtime.ranks.verdict import Blame, Courses, Limits, Rank, judge, uneven

LIMITS = Limits(30.0)


def rank(number: int, now: float = 0.0, **facts: Any) -> Rank:
    made = Rank(number, now, now, f"process {40 + number} on node", joined=True)
    made.update({"step": 4, "op": "", "group": "", "since": 0.0, "counts": {"world": 8}, **facts}, now)
    return made


def waiting(number: int, since: float, count: int = 9, **facts: Any) -> Rank:
    return rank(
        number, **{"op": "all_reduce", "group": "world", "since": since, "counts": {"world": count}} | facts
    )


def text(ranks: list[Rank], now: float) -> str:
    found = judge(ranks, now, LIMITS)
    return "" if found is None else str(found)


def test_all_ends_within_the_timeout() -> None:
    limits = Limits(30.0)
    assert limits.silent + limits.beat + limits.grace < 30
    assert limits.stalled + limits.beat + limits.grace < 30


def test_who_ended_badly() -> None:
    bad = waiting(1, 0.1)
    bad.end = "was killed by SIGKILL"
    assert text([rank(0), bad], 0.0) == (
        "rank 1 (process 41 on node) was killed by SIGKILL; it was in step 4, in all_reduce (number 9 of all ranks)"
    )
    assert text([rank(0), bad], 0.6).endswith("(number 9 of all ranks), as it said 0.6 s before")


def test_who_is_silent() -> None:
    ranks = [rank(0, 20.0), rank(1, 4.0)]
    assert text(ranks, 19.0) == ""
    assert text(ranks, 20.0).startswith(
        "rank 1 (process 41 on node) has been silent for 16 s: its process is stopped"
    )
    ranks[1].done = True  # it has ended well
    assert text(ranks, 20.0) == ""


def test_who_does_not_come_to_a_collective() -> None:
    late = rank(2, doing="", patience=0.0)
    assert text([waiting(0, 20.0), waiting(1, 20.0), late], 0.0) == ""
    assert text([waiting(0, 22.0), waiting(1, 22.0), late], 0.0) == (
        "rank 2 (process 42 on node) has not come to all_reduce (number 9 of all ranks) of step 4, in which rank 0 "
        "has waited for 22 s; it was in step 4, in no collective operation"
    )
    first = text([waiting(0, 22.0, step=-1), rank(2, doing="", patience=0.0)], 0.0)
    assert "has not come to all_reduce (number 9 of all ranks), in which rank 0 has waited for 22 s" in first
    late.update({**late.facts, "doing": "planning a program", "patience": 11.0}, 0.0)
    assert text([waiting(0, 22.0), waiting(1, 22.0), late], 10.0) == ""
    assert "in step 4, planning a program" in text([waiting(0, 22.0), waiting(1, 22.0), late], 12.0)


def test_who_is_through_with_what_took_long_has_time_to_come() -> None:
    late = rank(2, doing="evaluating", patience=300.0)
    for now, blamed in ((100.0, False), (120.9, False), (121.1, True)):
        late.update({**late.facts, "doing": "", "patience": 0.0}, now)
        found = text([waiting(0, now, now=now), waiting(1, now, now=now), late], now)
        assert found.startswith("rank 2 (process 42 on node) has not come to all_reduce") == blamed
    come = waiting(2, 0.1, now=121.1)
    assert text([waiting(0, 121.0, now=121.1), come], 121.1) == ""


def test_only_members_of_a_group_are_waited_for() -> None:
    counts = {"world": 8, "0,1": 3}
    first = waiting(0, 25.0, group="0,1", counts=counts)
    second, other = rank(1, counts={"world": 8, "0,1": 2}), rank(2)
    found = judge([first, second, other], 0.0, LIMITS)
    assert found is not None
    assert found.rank == 1
    assert "(number 3 of ranks 0,1)" in str(found)


def test_a_partner_that_does_not_answer() -> None:
    first = waiting(0, 25.0, op="send_receive", group="0,2", counts={})
    assert "rank 2 (process 42 on node) has not come to send_receive (ranks 0,2)" in text(
        [first, rank(1), rank(2)], 0.0
    )


def test_who_ended_is_not_waited_for() -> None:
    gone = rank(1)
    gone.done = True
    assert text([waiting(0, 1.0), gone], 0.0) == ""
    assert text([waiting(0, 3.0, now=2.0), gone], 2.0) == ""
    assert "rank 1 (process 41 on node) ended without coming to all_reduce" in text(
        [waiting(0, 3.0, now=2.1), gone], 2.1
    )


def test_all_hang() -> None:
    assert text([waiting(0, 25.0), waiting(1, 24.0)], 0.0) == (
        "all ranks hang in all_reduce (number 9 of all ranks) of step 4 for 25 s"
    )
    assert text([waiting(0, 25.0), waiting(1, 5.0)], 0.0) == ""


def test_who_is_steps_behind() -> None:
    """Without a collective of the host: the device waits."""
    ranks = [rank(0, step=5), rank(1, step=4)]
    for r in ranks:
        r.heard = 22.0
    assert "rank 1 (process 41 on node) has not come to step 5, in which rank 0 has waited for 22 s" in text(
        ranks, 22.0
    )
    ranks[0].moved = 10.0
    assert text(ranks, 22.0) == ""


@pytest.mark.parametrize("timeout", [2.0, 30.0, 600.0])
def test_verdicts_travel(timeout: float) -> None:
    made = Blame.of(rank(1, 1.0), "is bad", 3.0)
    assert Blame(**made.facts()) == made
    assert Limits(timeout).beat <= 1.0


def test_a_word_that_comes_while_it_is_judged_is_no_patience() -> None:
    ranks = [waiting(0, 22.0), waiting(1, 22.0), rank(2, now=0.001, patience=0.0)]
    assert text(ranks, 0.0).startswith("rank 2 (process 42 on node) has not come to all_reduce")
    ranks[2] = rank(2, now=0.001, patience=5.0)
    assert text(ranks, 0.0) == ""


def test_who_does_something_else_is_named_with_both_operations() -> None:
    courses = Courses()
    first = rank(0, courses={"world": [[4, 11, "barrier"], [5, 12, "all_reduce (sum) of float32[5]"]]})
    second = rank(1, courses={"world": [[3, 10, "barrier"], [4, 11, "barrier"]], "1,2": [[1, 9, "barrier"]]})
    assert courses.differ(first) is None
    assert courses.differ(second) is None
    second.update({"step": 7, "courses": {"world": [[5, 13, "all_gather of float32[5]"]]}}, 1.0)
    found = courses.differ(second)
    assert found is not None
    assert (found.rank, found.step, found.op) == (-1, 7, "all_gather of float32[5]")
    assert str(found) == (
        "rank 1 comes to all_gather of float32[5] as operation 5 of all ranks, where rank 0 comes to all_reduce "
        "(sum) of float32[5]: ranks must run the same program, whose branches do not depend on the rank"
    )
    third = rank(2, courses={"1,2": [[1, 8, "barrier"]]})
    assert str(courses.differ(third)).startswith(
        "rank 2 comes to operation 1 of ranks 1,2 by another way than rank 1:"
    )


def test_parts_are_compared_where_both_are_known() -> None:
    """Steps that only one has made, sizes that nobody can say and other groups' are not compared."""
    first = rank(0, parts={"world": [4, [[1, 8], [3, None], [4, 8]]]})
    second = rank(1, parts={"world": [3, [[1, 8], [3, 5]]], "1,2": [1, [[1, 2]]]})
    assert uneven(second, [first, second]) is None
    second.update({"step": 7, "parts": {"world": [4, [[1, 8], [3, 5]]]}}, 1.0)
    found = uneven(second, [first, second])
    assert found is not None
    assert (found.rank, found.step) == (-1, 7)
    assert "rank 1 trains on 5 samples where rank 0 trains on 8, in call 4 of their steps" in str(found)


def test_nobody_is_blamed_at_a_limit() -> None:
    """Limits are of what is well: a rank is to blame behind them."""
    assert text([rank(0, 20.0), rank(1, 5.0)], 20.0) == ""
    assert text([rank(0, 20.0), rank(1, 4.99)], 20.0) != ""
    assert text([waiting(0, 21.0), rank(1)], 0.0) == ""
    assert text([waiting(0, 21.01), rank(1)], 0.0) != ""
    gone = rank(1, -9.0)
    gone.done = True
    assert text([waiting(0, 2.0), gone], 0.0) == ""
    assert text([waiting(0, 2.01), gone], 0.0) != ""
    assert text([waiting(0, 21.0), waiting(1, 21.0)], 0.0) == ""
    assert text([waiting(0, 21.01), waiting(1, 21.01)], 0.0) != ""
    behind = [rank(0, step=5), rank(1, step=4)]
    behind[0].heard = behind[1].heard = 21.0
    assert text(behind, 21.0) == ""
    assert text(behind, 21.01) != ""


def test_who_is_ahead_and_has_ended_waits_for_nobody() -> None:
    ranks = [rank(0, step=5), rank(1, step=4)]
    for r in ranks:
        r.heard = 22.0
    ranks[0].done = True
    assert text(ranks, 22.0) == ""
    ranks[1].heard = ranks[0].heard
    assert text([ranks[1]], 22.0) == ""  # alone
    same = [rank(0, step=5), rank(1, step=5)]
    for r in same:
        r.heard = 22.0
    assert text(same, 22.0) == ""


def test_a_rank_that_has_not_joined_is_not_silent() -> None:
    late = Rank(1, 0.0, 0.0)
    assert text([rank(0, 100.0), late], 100.0) == ""
    assert (late.where, late.step, late.op, late.waits(9.0)) == ("", -1, "", 0.0)


def test_where_a_rank_is() -> None:
    assert rank(0, step=0).where == "in step 0, in no collective operation"
    assert rank(0, step=-1).where == "before the first step, in no collective operation"
    assert rank(0, step=1, doing="planning").where == "in step 1, planning"


def test_limits_are_parts_of_the_timeout() -> None:
    short, usual, long = Limits(3.0), Limits(), Limits(600.0)
    assert [(x.beat, x.silent, x.grace) for x in (short, usual, long)] == [
        (0.1, 1.5, 0.5),
        (1.0, 15.0, 5.0),
        (1.0, 300.0, 5.0),
    ]
    assert [round(x.stalled, 9) for x in (short, usual, long)] == [2.1, 21.0, 420.0]


def test_a_word_is_a_move_if_it_tells_something_new() -> None:
    found = rank(0)
    for change, moved in (
        ({}, 0.0),
        ({"since": 3.0}, 0.0),
        ({"step": 5}, 3.0),
        ({"op": "barrier"}, 4.0),
        ({"patience": 2.0}, 5.0),
    ):
        now = moved or found.heard + 1
        found.update({**found.facts, **change}, now)
        assert (found.moved, found.heard) == (moved, now)


def test_only_so_many_operations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "_KEPT", 2)
    courses = Courses()
    assert courses.differ(rank(0, courses={"world": [[n, n, "barrier"] for n in range(4)]})) is None
    assert (
        courses.differ(rank(1, courses={"world": [[0, 7, "barrier"], [1, 7, "barrier"]]})) is None
    )  # forgotten
    assert courses.differ(rank(2, courses={"world": [[1, 9, "barrier"]]})) is not None


def test_patience_is_counted_from_the_word() -> None:
    found = rank(0, 100.0, patience=5.0)
    assert [found.is_patient(now) for now in (99.0, 104.9, 105.0)] == [True, True, False]


def test_a_rank_and_seconds_are_named_as_they_are() -> None:
    assert str(Blame.of(rank(0, 3.0), "is bad", 5.0)) == (
        "rank 0 (process 40 on node) is bad; it was in step 4, in no collective operation, as it said 2.0 s before"
    )
    assert str(Blame(-1, "all hang")) == "all hang"
    assert Blame(-1, "all hang").facts() == {
        "rank": -1, "reason": "all hang", "step": -1, "op": "", "where": "", "place": "", "ago": 0.0
    }  # fmt: skip
    for ago, told in ((0.04, ""), (0.05, ", as it said 0.1 s before")):
        assert str(Blame(2, "is bad", where="in step 1", ago=ago)) == f"rank 2 is bad; it was in step 1{told}"
    found = judge([waiting(0, 22.0), waiting(1, 21.0)], 0.0, LIMITS)
    assert found is None
    found = judge([waiting(0, 22.0), waiting(1, 21.5)], 0.0, LIMITS)
    assert found is not None
    assert (found.rank, found.step, found.op) == (-1, 4, "all_reduce")


def test_of_two_that_stand_still_the_time_of_the_later_one_counts() -> None:
    ranks = [rank(0, 100.0, step=5), rank(1, 100.0, step=4)]
    ranks[0].moved, ranks[1].moved = 70.0, 79.0
    assert text(ranks, 100.0) == ""
    ranks[1].moved = 78.0
    assert "waited for 22 s" in text(ranks, 100.0)
