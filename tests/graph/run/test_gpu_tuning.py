"""Tuning between steps on a GPU: plans compete, winners are recorded, what is learnt is kept."""

from pathlib import Path

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.backends.cuda.select import formulations, known
from lamina.cudnn import PlanStore
from lamina.graph.run import tuning
from lamina.train import Step

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((24, 40, 37, 41)).astype(np.float32)  # sizes that no other test has
LABELS = RNG.integers(0, 4, 24)


def step_of(tuning: bool = True) -> Step:
    nn.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(40, 88, 3), nn.BatchNorm2d(88), nn.ReLU(), nn.Conv2d(88, 56, 3, stride=2), nn.ReLU()
    )
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(56, 4))
    sgd = optim.SGD(0.01, 0.9)
    return lm.train_step(
        nn.Sequential(net, head),
        ops.cross_entropy,
        sgd,
        device="cuda",
        precision="bf16",
        tuning=tuning,
    )


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlanStore:
    """An empty one, and no database."""
    made = PlanStore("here", "1", tmp_path)
    for module in (formulations, known):
        monkeypatch.setattr(module, "plan_store", lambda device: made)
    for name in ("database_of", "database_of_kin"):
        monkeypatch.setattr(known, name, lambda device: None)
    monkeypatch.setattr(tuning, "APART", 8)
    monkeypatch.setattr(tuning, "BEGIN", 0.0)
    for name in ("AS_LONG", "PAYBACK", "LATE"):  # the network is small: everything is tried
        monkeypatch.setattr(tuning, name, 1e9)
    return made


@pytest.mark.feature("F081", "B009", "B010")
def test_training_goes_on_while_plans_compete(store: PlanStore) -> None:
    x, y = lm.tensor(IMAGES, device="cuda"), lm.tensor(LABELS, device="cuda")
    fixed = step_of(tuning=False)
    expected = [fixed(x, y).item() for _ in range(100)]
    step, losses = step_of(), list[float]()
    for _ in range(100_000):
        losses.append(step(x, y).item())
        if step.tuning.done and not step.tuning.open:
            break
    assert step.tuning.ended == ""
    assert step.tuning.open == 0
    assert step.tuning.done >= 5  # two convolutions, their gradients
    np.testing.assert_allclose(losses[:100], expected, rtol=0.1, atol=0.1)
    assert len(store.entries()) >= step.tuning.won
    for _ in range(3 * tuning.APART):
        loss = step(x, y).item()
    assert np.isfinite(loss)
    assert step.tuning.swaps >= min(1, step.tuning.won)
    assert step.executable.is_captured


@pytest.mark.feature("F093")
def test_nothing_changes_where_the_same_bits_are_wanted(store: PlanStore) -> None:
    with lm.policy(deterministic=True):
        runs = []
        for _ in range(2):
            step = step_of()
            runs.append([step(IMAGES, LABELS).item() for _ in range(60)])
    assert runs[0] == runs[1]
    assert step.tuning == tuning.TuningState()
    assert store.entries() == []
