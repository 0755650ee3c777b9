"""Rates times a factor that may change while a run goes on."""

import pickle

import pytest

from lamina import nn, optim
from lamina.optim import schedule
from lamina.optim.scaled import ScaledRate, multiply_rate, planned_rate, rate_factor, scale_rate


def test_a_number_and_a_schedule_are_scaled_and_restored() -> None:
    plain, planned = optim.SGD(0.5), schedule.step(1.0, 2)
    scheduled = optim.Adam(planned)
    for optimizer, rates in ((plain, [0.5] * 4), (scheduled, [1, 1, 0.1, 0.1])):
        for factor in (0.5, 0.25, 1):
            scale_rate(optimizer, factor)
            assert [optimizer.rate(n) for n in range(4)] == pytest.approx([factor * r for r in rates])
            assert planned_rate(optimizer, 3) == pytest.approx(rates[3])
    assert plain.lr == 0.5
    assert scheduled.lr is planned


def test_groups_are_scaled_once() -> None:
    """One has a rate of its own, one follows the optimizer's."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [{"params": net[0].parameters(), "lr": 0.2}, {"params": net[1].parameters()}]
    optimizer = optim.SGD(groups, lr=0.4)
    for factor in (0.5, 0.25, 1):
        scale_rate(optimizer, factor)
        own, following = (g.rule for g in optimizer.param_groups)
        assert [own.rate(0), following.rate(0)] == pytest.approx([0.2 * factor, 0.4 * factor])
        assert [planned_rate(own, 0), planned_rate(following, 0)] == pytest.approx([0.2, 0.4])


def test_the_present_rates_are_multiplied() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [{"params": net[0].parameters(), "lr": 0.2}, {"params": net[1].parameters()}]
    optimizer = optim.SGD(groups, lr=0.4)
    assert rate_factor(optimizer) == 1
    for factor in (0.5, 0.25):
        multiply_rate(optimizer, 0.5)
        assert rate_factor(optimizer) == factor
        own, following = (g.rule for g in optimizer.param_groups)
        assert [own.rate(0), following.rate(0)] == pytest.approx([0.2 * factor, 0.4 * factor])
    optimizer.lr = 0.8  # set by hand: that is the present one
    multiply_rate(optimizer, 0.5)
    assert [optimizer.rate(0), own.rate(0), following.rate(0)] == pytest.approx([0.4, 0.2 / 8, 0.4])


def test_scaled_schedules_can_be_pickled() -> None:
    one = ScaledRate(schedule.cosine(0.1, 10), 0.5)
    assert pickle.loads(pickle.dumps(one))(5) == one(5) == pytest.approx(0.025)
