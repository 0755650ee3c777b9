"""Schedules: their values at the steps that matter."""

import copy
import math
import pickle

import pytest

from lamina.optim import SGD, schedule


def test_constant_step_exponential() -> None:
    assert schedule.constant(0.1)(1000) == 0.1
    stairs = schedule.step(1.0, step_size=10, gamma=0.5)
    assert [stairs(i) for i in (0, 9, 10, 25)] == [1.0, 1.0, 0.5, 0.25]
    assert schedule.exponential(2.0, 0.9)(3) == pytest.approx(2.0 * 0.9**3)


def test_cosine() -> None:
    rate = schedule.cosine(1.0, 100, min_lr=0.2)
    assert rate(0) == 1.0
    assert rate(25) == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert rate(50) == pytest.approx(0.6)
    assert rate(100) == rate(150) == pytest.approx(0.2)


def test_warm_up() -> None:
    rate = schedule.warm_up(schedule.cosine(1.0, 10), 4)
    assert [rate(i) for i in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rate(14) == pytest.approx(0.0)


def test_one_cycle_equals_torchs() -> None:
    # torch 2.13: OneCycleLR(SGD, max_lr=1.0, total_steps=10), lr before steps 0 … 9
    expected = [
        0.04, 0.52, 1.0, 0.9504846320134737, 0.8117456539497631, 0.6112620219362893,
        0.38874197806371076, 0.18825834605023698, 0.04951936798652631, 0.000004,
    ]  # fmt: skip
    rate = schedule.one_cycle(1.0, 10)
    assert [rate(i) for i in range(10)] == pytest.approx(expected, rel=1e-4)


def test_an_optimizer_takes_a_number_or_a_schedule() -> None:
    assert SGD(0.5).rate(3) == 0.5
    assert SGD(schedule.step(1.0, 2)).rate(3) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "make",
    [lambda: schedule.cosine(1.0, 0), lambda: schedule.step(1.0, 0), lambda: schedule.one_cycle(1.0, 0)],
)
def test_bad_lengths_are_named(make: object) -> None:
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("name", ["div_factor", "final_div_factor"])
def test_rates_are_not_divided_by_nothing(name: str) -> None:
    with pytest.raises(ValueError, match=f"schedule.one_cycle: {name} must be > 0, got 0"):
        schedule.one_cycle(0.1, 5, **{name: 0})


@pytest.mark.parametrize(
    "rate",
    [
        schedule.constant(0.1),
        schedule.step(1.0, 3),
        schedule.exponential(1.0, 0.9),
        schedule.cosine(1.0, 9),
        schedule.warm_up(schedule.cosine(1.0, 9), 3),
        schedule.one_cycle(1.0, 9),
    ],
)
def test_schedules_and_optimizers_are_pickled_and_copied(rate: schedule.Schedule) -> None:
    optimizer = SGD(lr=rate, momentum=0.9)
    for other in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        assert [other.rate(i) for i in range(12)] == [rate(i) for i in range(12)]
        assert other.momentum == 0.9
