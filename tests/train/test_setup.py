"""What a checkpoint says of its run is compared when the run goes on: each difference is named with both values."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.train import Position, ResumeError, Step, fit, load_checkpoint, save_checkpoint
from lamina.train.setup import check_same, data_setup, step_setup

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((48, 4)).astype(np.float32), RNG.integers(0, 3, 48)


def make(optimizer: optim.Optimizer | None = None, loss: Any = ops.cross_entropy, **kwargs: Any) -> Step:
    nn.manual_seed(1)
    chosen = optimizer or optim.SGD(optim.schedule.cosine(0.1, 12), 0.9)
    return lm.train_step(nn.Linear(4, 3), loss, chosen, device="cpu", backend="reference", **kwargs)


def batches(batch_size: int = 8, **changes: Any) -> data.Batches:
    return data.arrays(X, Y, batch_size=batch_size, **{"seed": 1, **changes})


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A run of two epochs that was stopped after its fourth batch of six."""
    file = tmp_path / "c"
    fit(make(), batches(), 2, checkpoint=file, max_steps=4, progress=False)
    return file


@pytest.mark.feature("B029")
@pytest.mark.parametrize(
    ("step", "text"),
    [
        (lambda: make(optim.SGD(optim.schedule.cosine(0.1, 12), 0.8)), "optimizer.momentum was 0.9, is 0.8"),
        (lambda: make(optim.SGD(optim.schedule.cosine(0.2, 12), 0.9)), "lr at step 0 was 0.1, is 0.2"),
        (lambda: make(optim.SGD(optim.schedule.cosine(0.1, 13), 0.9)), "lr at step 1 was 0.0982"),
        (lambda: make(clip_norm=1.0), "clip_norm was None, is 1.0"),
        (lambda: make(loss=nn.CrossEntropyLoss()), "loss was 'cross_entropy', is 'CrossEntropyLoss'"),
        (
            lambda: make(optim.Regularized(optim.SGD(optim.schedule.cosine(0.1, 12), 0.9))),
            "optimizer was 'SGD', is 'Regularized'",
        ),
    ],
)
def test_another_step(begun: Path, step: Callable[[], Step], text: str) -> None:
    before = {k: v.numpy().copy() for k, v in step().state.named().items()}
    other = step()
    with pytest.raises(ResumeError, match="the run began otherwise: ") as error:
        load_checkpoint(begun, other)
    assert text in str(error.value)
    assert f"override=['{text.split()[0]}'" in str(error.value)
    for name, held in other.state.named().items():
        np.testing.assert_array_equal(held.numpy(), before[name])  # nothing was taken over
    assert load_checkpoint(begun, other, override=["optimizer", "lr", "clip_norm", "loss"]) == Position(0, 4)
    assert load_checkpoint(begun, step(), override=["all"]) == Position(0, 4)


@pytest.mark.feature("B029")
@pytest.mark.parametrize(
    ("changes", "epochs", "text"),
    [
        ({"batch_size": 4}, 2, "data.batch_size was 8, is 4"),
        ({"seed": 2}, 2, "data.seed was 1, is 2"),
        ({"shuffle": False}, 2, "data.shuffle was True, is False"),
        ({"drop_last": True}, 2, "data.drop_last was False, is True"),
        ({}, 3, "epochs was 2, is 3"),
    ],
)
def test_other_data(begun: Path, changes: Any, epochs: int, text: str) -> None:
    step = make()
    start = load_checkpoint(begun, step)
    with pytest.raises(ResumeError, match=text):
        fit(step, batches(**changes), epochs, start=start, progress=False)
    with pytest.raises(ResumeError, match=text):  # a thread that reads ahead changes nothing
        fit(step, data.prefetch(batches(**changes)), epochs, start=start, progress=False)
    name = text.split()[0]
    found = fit(step, batches(**changes), epochs, start=start, override=[name, "data"], progress=False)
    assert found.position == Position(epochs, 0)


def test_other_samples(begun: Path) -> None:
    step = make()
    start = load_checkpoint(begun, step)
    with pytest.raises(ResumeError, match=r"data.content was '[0-9a-f]{16}', is '[0-9a-f]{16}'"):
        fit(step, data.arrays(X + 1, Y, batch_size=8, seed=1), 2, start=start, progress=False)
    with pytest.raises(ResumeError, match="data.samples was 48, is 40"):
        fit(step, data.arrays(X[:40], Y[:40], batch_size=8, seed=1), 2, start=start, progress=False)


def test_another_batch_size_goes_on_at_the_same_sample(begun: Path) -> None:
    """Four batches of 8 are eight of 4 and two of 16."""
    for size, left in ((4, 4), (16, 1)):
        step = make()
        start = load_checkpoint(begun, step)
        found = fit(step, batches(size), 2, start=start, override=["data"], progress=False)
        assert len(found.losses) == left + 48 // size


def test_another_batch_size_is_all_that_is_to_be_overridden(begun: Path) -> None:
    """The digest of the first batch differs with its size, and says nothing then."""
    step = make()
    start = load_checkpoint(begun, step)
    with pytest.raises(ResumeError, match=r"data.batch_size was 8, is 16\. .*override=\['data.batch_size'\]"):
        fit(step, batches(16), 2, start=start, progress=False)
    found = fit(step, batches(16), 2, start=start, override=["data.batch_size"], progress=False)
    assert len(found.losses) == 1 + 48 // 16


def test_the_same_run_goes_on(begun: Path) -> None:
    step = make()
    start = load_checkpoint(begun, step)
    assert len(fit(step, data.prefetch(batches()), 2, start=start, progress=False).losses) == 8


def test_data_that_says_nothing_is_not_compared(begun: Path) -> None:
    step = make()
    start = load_checkpoint(begun, step)
    assert data_setup(list(batches()), 2) == {"epochs": 2}
    assert len(fit(step, list(batches()), 2, start=start, progress=False).losses) == 8


def test_a_position_of_ones_own_is_not_compared() -> None:
    assert len(fit(make(), batches(), 2, start=Position(1, 3), progress=False).losses) == 3


def test_every_optimizer_says_its_settings() -> None:
    found = step_setup(make(optim.AdamW(0.1, betas=(0.8, 0.9))))
    assert (found["optimizer"], found["optimizer.betas"]) == ("AdamW", (0.8, 0.9))
    found = step_setup(make(optim.Regularized(optim.SGD(0.1, 0.7), l1=0.5)))
    assert (found["optimizer.l1"], found["optimizer.optimizer"]) == (0.5, "SGD")
    assert found["optimizer.optimizer.momentum"] == 0.7


def test_each_group_says_its_settings_rates_and_parameters() -> None:
    """Numbers and schedules of a group are compared like the optimizer's."""

    def made(momentum: float = 0.7, lr: float = 0.5) -> Step:
        net = nn.Linear(4, 3)
        groups = [{"params": "bias", "momentum": momentum, "lr": lr}]
        return lm.train_step(
            net, ops.cross_entropy, optim.SGD(0.1).over(net, groups), device="cpu", backend="reference"
        )

    found = step_setup(made())
    assert (found["optimizer.group0"], found["optimizer.group0.momentum"]) == ("SGD", 0.7)
    assert found["optimizer.group1.momentum"] == 0.0
    assert (found["optimizer.group0.params"], found["optimizer.group1.params"]) == (("bias",), ("weight",))
    assert (set(found["lr.group0"]), set(found["lr.group1"])) == ({0.5}, {0.1})
    with pytest.raises(ResumeError, match=r"optimizer\.group0\.momentum was 0\.7, is 0\.9"):
        check_same(found, step_setup(made(momentum=0.9)), (), "c")


def test_a_loss_has_the_name_of_what_it_calls() -> None:
    assert step_setup(make(loss=partial(partial(ops.cross_entropy))))["loss"] == "cross_entropy"
    assert step_setup(make(loss=nn.CrossEntropyLoss()))["loss"] == "CrossEntropyLoss"


def test_tuples_are_the_lists_that_json_gives() -> None:
    check_same({"betas": [0.9, 0.99]}, {"betas": (0.9, 0.99)}, (), "c")
    with pytest.raises(
        ResumeError, match=r"c: the run began otherwise: a was 1, is 2; b was \[0.9\], is \[0.8\]"
    ):
        check_same({"a": 1, "b": [0.9]}, {"a": 2, "b": (0.8,)}, ["c"], "c")


@pytest.mark.feature("B029")
def test_numbers_that_were_changed_come_back(tmp_path: Path) -> None:
    def made() -> Step:
        nn.manual_seed(1)
        net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
        rule = optim.AdamW(0.1).over(net, [{"params": "0", "weight_decay": 0.2}])
        return lm.train_step(net, ops.cross_entropy, rule, device="cpu", backend="reference")

    whole, step = made(), made()
    for one in (whole, step):
        one(X, Y)
        one.optimizer.betas = (0.5, 0.9)
        one.optimizer.param_groups[0]["weight_decay"] = 0.5
        one(X, Y)
    save_checkpoint(tmp_path / "c", step)
    other = made()
    load_checkpoint(tmp_path / "c", other)
    assert [g["weight_decay"] for g in other.optimizer.param_groups] == [0.5, 0.01]
    assert [g["betas"] for g in other.optimizer.param_groups] == [(0.5, 0.9), (0.5, 0.9)]
    assert [other(X, Y).item() for _ in range(3)] == [whole(X, Y).item() for _ in range(3)]


@pytest.mark.feature("B029")
def test_numbers_that_were_changed_elsewhere_are_as_they_were(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", make())
    for override, expected in (([], 0.9), (["optimizer.momentum"], 0.5)):
        step = make()
        step.optimizer.momentum = 0.5
        load_checkpoint(tmp_path / "c", step, override=override)
        assert step.optimizer.momentum == expected
