"""Tuning where ranks train together, each on a GPU: the same plans before the same step. Needs two GPUs."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import distributed, nn, ops, optim
from lamina.backends import Plan
from lamina.backends.cuda.select import formulations, known
from lamina.cudnn import PlanStore
from lamina.graph import Executable
from lamina.graph.run import rank_tuning, tuning
from lamina.runtime import devices
from tests.helpers.ranks import run_ranks

GPUS = len(devices()) - 1
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")]

#: Steps in which what was learnt last is put in.
BEHIND = 3000


def step_of(tunes: bool, options: dict[str, Any]) -> lm.train.Step:
    nn.manual_seed(1)
    net = nn.Sequential(
        nn.Conv2d(40, 88, 3), nn.BatchNorm2d(88), nn.ReLU(), nn.Conv2d(88, 56, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(56, 4),
    )  # fmt: skip
    sgd = optim.SGD(0.01, 0.9)
    given = {"precision": "bf16", "parallel": "data", **options}
    return lm.train_step(net, ops.cross_entropy, sgd, device="cuda", tuning=tunes, **given)


def empty_store(folder: Path) -> PlanStore:
    """Of all ranks, and no database; everything is tried at once, as the network is small."""
    made = PlanStore("here", "1", folder)
    for module in (formulations, known):
        module.plan_store = lambda device: made  # type: ignore[assignment]
    known.database_of = known.database_of_kin = lambda device: None  # type: ignore[assignment]
    for module in (tuning, rank_tuning):
        module.APART, module.BEGIN, module.AS_LONG, module.PAYBACK = 8, 0.0, 1e9, 1e9  # type: ignore[assignment]
    tuning.LATE = 1e9
    return made


def trained(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    """What a rank did, without tuning and with it."""
    store = empty_store(folder)
    rng = np.random.default_rng(distributed.rank())
    x = lm.tensor(rng.standard_normal((24, 40, 37, 41)).astype(np.float32), device="cuda")
    y = lm.tensor(rng.integers(0, 4, 24), device="cuda")
    fixed = step_of(False, options)
    plain = [fixed(x, y).item() for _ in range(100)]
    step, changes, losses = step_of(True, options), list[tuple[int, int]](), list[float]()
    change = Executable.change_plans

    def changed(executable: Executable, better: Mapping[Plan, Plan]) -> bool:
        changes.append((step.number, len(better)))
        return change(executable, better)

    Executable.change_plans = changed  # type: ignore[method-assign]
    for _ in range(100_000):  # all ranks know the same, and end behind the same step
        losses.append(step(x, y).item())
        if step.tuning.done and not step.tuning.open and len(losses) >= 100:
            break
    for _ in range(BEHIND):
        losses.append(step(x, y).item())
    whole = step.whole_state()
    parameters = [whole[n].numpy() for n in sorted(whole) if n.startswith("parameters/")]
    return {
        "plain": plain, "losses": losses, "changes": changes, "state": vars(step.tuning),
        "stored": len(store.entries()), "captured": step.executable.is_captured,
        "plans": [s.plan.label for s in step.executable.program.steps if s.plan.label.startswith("cudnn")],
        "parameters": hashlib.sha256(b"".join(p.tobytes() for p in parameters)).hexdigest(),
    }  # fmt: skip


@pytest.mark.feature("F081", "B009", "B010", "B032")
@pytest.mark.parametrize(
    "options",
    [{}, {"shard_optimizer": True, "clip_norm": 1.0}, {"accumulate": 2}],
    ids=["plain", "shards", "groups"],
)
def test_all_ranks_change_plans_before_the_same_step(tmp_path: Path, options: dict[str, Any]) -> None:
    found = run_ranks(trained, 2, args=(tmp_path, options))
    for one in found:
        assert (one["state"]["open"], one["state"]["ended"]) == (0, "")
        assert one["state"]["done"] >= 5
        assert one["stored"] >= one["state"]["won"]
        np.testing.assert_allclose(one["losses"][:100], one["plain"], rtol=0.1, atol=0.1)
        assert np.isfinite(one["losses"][-1])
        assert one["captured"]
        if not options.get("accumulate"):  # else one of the two programs may change at another time
            assert [at for at, _ in one["changes"]] == [at for at, _ in found[0]["changes"]]
            assert one["state"]["swaps"] >= min(1, one["state"]["won"])
        assert one["plans"] == found[0]["plans"]
        assert one["parameters"] == found[0]["parameters"]  # in every bit
