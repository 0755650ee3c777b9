"""A pool gives each call an item of its own, makes more on demand, and can be emptied while calls go on."""

import threading
import time

import pytest

from lamina.runtime.pool import Pool
from tests.helpers.many_threads import in_threads


class Item:
    def __init__(self) -> None:
        self.users = 0


def test_one_caller_gets_the_same_item_again() -> None:
    pool = Pool(Item, 4)
    first = pool.take()
    pool.give(first)
    assert pool.take() is first
    assert len(pool.items) == 1


def test_an_item_has_one_user_and_there_are_no_more_than_the_bound() -> None:
    pool, most = Pool(Item, 3), []

    def work(k: int) -> None:
        for _ in range(300):
            item = pool.take()
            item.users += 1
            most.append(item.users)
            if k % 2:
                time.sleep(0)
            item.users -= 1
            pool.give(item)

    in_threads(work, 8)
    assert set(most) == {1}
    assert 1 <= len(pool.items) <= 3


def test_all_items_are_held_while_others_wait() -> None:
    pool, under_way, held = Pool(Item, 3), set[Item](), []

    def work(k: int) -> None:
        for _ in range(100):
            if k == 0:
                with pool.all() as items:
                    held.append(len(items))
                    assert len(items) == len(pool.items)
                    assert not under_way
            else:
                item = pool.take()
                under_way.add(item)
                under_way.discard(item)
                pool.give(item)

    in_threads(work, 6)
    assert len(held) == 100


def test_without_memory_for_more_the_calls_share_what_there_is() -> None:
    made: list[Item] = []

    def make() -> Item:
        if made:
            raise MemoryError
        made.append(Item())
        return made[0]

    pool = Pool(make, 8)

    def work(k: int) -> None:
        for _ in range(50):
            item = pool.take()
            time.sleep(0)
            pool.give(item)

    in_threads(work, 4)
    assert pool.items == made
    assert pool.bound == 1


def test_what_making_the_first_raises_is_raised_and_tried_again() -> None:
    answers = iter([MemoryError(), ValueError(), Item()])

    def make() -> Item:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    pool = Pool(make, 2)
    for error in (MemoryError, ValueError):
        with pytest.raises(error):
            pool.take()
    pool.give(pool.take())
    assert len(pool.items) == 1


def test_a_waiting_call_goes_on_when_an_item_comes_back() -> None:
    pool = Pool(Item, 1)
    item, got = pool.take(), []
    waiter = threading.Thread(target=lambda: got.append(pool.take()))
    waiter.start()
    time.sleep(0.05)
    assert not got
    pool.give(item)
    waiter.join(10)
    assert got == [item]


def test_who_collects_all_gives_up_after_a_while() -> None:
    """And leaves what it had: calls that wait for an item get one."""
    pool = Pool(object, 2)
    first, second = pool.take(), pool.take()
    pool.give(first)
    with pytest.raises(TimeoutError), pool.all(1e-3):
        raise AssertionError("a call goes on")
    assert pool.take() is first
    for item in (first, second):
        pool.give(item)
    with pool.all(1e-3) as items:
        assert len(items) == 2
        with pytest.raises(TimeoutError), pool.all(1e-3):
            raise AssertionError("another one has them")
    assert pool.take() in (first, second)


@pytest.mark.parametrize("held", [5e-5, 1e-3])
@pytest.mark.parametrize("more", [1, 3])
@pytest.mark.parametrize("bound", [1, 2])
def test_who_waits_is_not_overtaken_for_long(bound: int, more: int, held: float) -> None:
    """By calls that take an item again as soon as they gave theirs back, however short they hold it."""
    pool, count = Pool(Item, bound), bound + more
    calls = [0] * count

    def work(k: int) -> None:
        while min(calls) < 20 and calls[k] < 200_000:
            item = pool.take()
            time.sleep(held)  # others stand in line meanwhile
            pool.give(item)
            calls[k] += 1

    in_threads(work, count)
    assert min(calls) >= 20
    assert max(calls) < 200_000


def test_late_calls_are_served_in_their_order() -> None:
    pool, served = Pool(Item, 1), list[int]()
    item = pool.take()

    def work(k: int) -> None:
        mine = pool.take()
        served.append(k)
        pool.give(mine)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(5)]
    for count, thread in enumerate(threads, 1):
        thread.start()
        end = time.monotonic() + 60
        while len(pool._late) < count and time.monotonic() < end:
            time.sleep(1e-3)
    pool.give(item)
    assert pool.take() is item  # behind them
    assert served == [0, 1, 2, 3, 4]
    for thread in threads:
        thread.join(10)
