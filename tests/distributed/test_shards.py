"""Tensors in pieces: cut, owned, joined again on any number of ranks."""

import math
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import distributed, nn, ops, optim
from lamina.distributed import Group
from lamina.distributed.shards import Shards
from tests.helpers.ranks import run_ranks


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (0, 2), (2, 3, 5)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_pieces_are_the_tensor(shape: tuple[int, ...], ranks: int) -> None:
    x = lm.tensor(np.arange(1, 1 + math.prod(shape), dtype=np.float32).reshape(shape))
    shards = [Shards(Group(*range(ranks)), place) for place in range(ranks)]
    own = [s.own(x).numpy() for s in shards]
    assert {p.shape for p in own} == {(-(-x.numpy().size // ranks),)}
    np.testing.assert_array_equal(shards[0].cut(x).numpy(), np.stack(own))
    joined = shards[0].joined(lm.tensor(np.stack(own)), shape).numpy()
    np.testing.assert_array_equal(joined, x.numpy())
    assert np.concatenate(own).sum() == x.numpy().sum()  # what fills up is 0


def at_once() -> tuple[Any, ...]:
    me, n = distributed.rank(), distributed.world_size()
    shards = Shards(Group(*range(n)), me, bucket_bytes=16)
    x = lm.tensor(np.arange(7, dtype=np.float32) + me)
    mean = shards.means([x, x * 2.0])
    whole = shards.whole_of_each(mean, [(7,), (7,)])
    return [w.numpy() for w in whole], shards.whole(shards.own(x * 0.0 + 3.0), (7,)).numpy()


def test_means_of_pieces_and_what_they_make() -> None:
    for (first, second), third in run_ranks(at_once, 2):
        np.testing.assert_array_equal(first, np.arange(7) + 0.5)
        np.testing.assert_array_equal(second, 2 * np.arange(7) + 1)
        np.testing.assert_array_equal(third, np.full(7, 3.0))


# ---- training


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 33), nn.SyncBatchNorm(33), nn.Tanh(), nn.Dropout(0.2), nn.Linear(33, 5))


X = np.random.default_rng(0).standard_normal((8, 12, 6)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 5, (8, 12))


def grouped(net: nn.Module) -> optim.Optimizer:
    """Groups with rates and numbers of their own, one with a schedule."""
    groups = [{"params": "0.*", "lr": optim.schedule.cosine(0.01, 6), "weight_decay": 0.1}]
    return optim.AdamW(lr=0.02).over(net, groups)


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda net: optim.AdamW(1e-2),
    "sgd": lambda net: optim.SGD(0.1, momentum=0.9, nesterov=True),
    "groups": grouped,
    "regularized": lambda net: optim.Regularized(optim.NAdam(1e-2), l1=1e-3),
    "adagrad": lambda net: optim.Adagrad(0.1),
}


def train(optimizer: str, options: dict[str, Any]) -> dict[str, Any]:
    nn.manual_seed(5)
    net = network()
    given = {"device": "cpu", "parallel": "data", **options}
    step = lm.train_step(net, ops.cross_entropy, OPTIMIZERS[optimizer](net), **given)
    n, me = distributed.world_size(), distributed.rank()
    part = slice(me * 12 // n, (me + 1) * 12 // n)
    losses = [float(step(x[part], y[part]).item()) for x, y in zip(X, Y, strict=True)]
    state, trained = step.state, sum(math.prod(p.shape) for p in net.parameters())
    moments = [x for x in state.optimizer.values() if x.ndim or step.shards is None]
    grads = step.grads and {k: v.numpy() for k, v in step.grads.items()}
    return {
        "losses": losses, "grads": grads, "state": {k: v.numpy() for k, v in step.whole_state().items()},
        "moments": sum(math.prod(x.shape) for x in moments) / trained,
        "bytes": sum(x.nbytes for x in (*moments, *state.masters.values())) / trained,
        "parameters": sum(x.nbytes for x in state.parameters.values()),
    }  # fmt: skip


def several(cases: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    return [train(optimizer, options) for optimizer, options in cases]


SLOW = pytest.mark.slow
CASES: list[tuple[str, dict[str, Any]]] = [
    ("adamw", {}),
    ("sgd", {"clip_norm": 0.2, "keep_grads": True}),
    ("groups", {"accumulate": 2, "clip_value": 0.01}),
    ("regularized", {}),
    ("adagrad", {}),
    ("adamw", {"precision": "bf16"}),
    ("adamw", {"precision": "fp16", "accumulate": 2}),
]


@pytest.mark.feature("B033")
@pytest.mark.parametrize(
    ("ranks", "count"), [(2, 2), pytest.param(2, len(CASES), marks=SLOW), pytest.param(4, 3, marks=SLOW)]
)
def test_training_in_shards_is_training(ranks: int, count: int) -> None:
    cases = CASES[:count]
    both = [*cases, *((name, {**options, "shard_optimizer": True}) for name, options in cases)]
    alone = several([case for case in cases if "precision" not in case[1]])  # the first ones
    for found in run_ranks(several, ranks, args=(both,)):
        plain, shared = found[: len(cases)], found[len(cases) :]
        for case, a, b in zip(cases, plain, shared, strict=True):
            np.testing.assert_allclose(b["losses"], a["losses"], rtol=1e-6, err_msg=f"{case}")
            assert a["state"].keys() == b["state"].keys()
            for name, x in a["state"].items():
                np.testing.assert_allclose(
                    b["state"][name], x, rtol=1e-5, atol=1e-7, err_msg=f"{case} {name}"
                )
            for name, x in (a["grads"] or {}).items():
                np.testing.assert_allclose(b["grads"][name], x, rtol=1e-5, atol=1e-8)
        for (_, options), one, b in zip(cases, alone, shared, strict=False):
            # The loss of a call that does not update is the rank's own.
            updates = slice(options.get("accumulate", 1) - 1, None, options.get("accumulate", 1))
            np.testing.assert_allclose(b["losses"][updates], one["losses"][updates], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.feature("B033")
def test_each_rank_keeps_its_part_of_the_memory() -> None:
    cases = [(name, {**o, "shard_optimizer": s}) for s in (False, True) for name, o in (CASES[0], CASES[5])]
    for fp32, bf16, fp32_shared, bf16_shared in run_ranks(several, 4, args=(cases,)):
        assert fp32["moments"] >= 2
        assert fp32_shared["moments"] == pytest.approx(0.5, rel=0.05)  # two moments on four ranks
        assert fp32_shared["bytes"] == pytest.approx(2 * 4 / 4, rel=0.1)
        assert bf16_shared["bytes"] == pytest.approx(3 * 4 / 4, rel=0.1)  # and the float32 parameters
        assert fp32_shared["parameters"] == fp32["parameters"]
        assert bf16_shared["parameters"] < 0.7 * bf16["parameters"]


def refusals() -> list[str]:
    found = []
    cases: list[tuple[optim.Optimizer, dict[str, Any]]] = [
        (optim.LAMB(0.1), {}),
        (optim.Adafactor(), {}),
        (optim.Regularized(optim.LARS(0.1), 0.1), {}),
        (optim.SGD(0.1), {"precision": "bf16", "averaged": lm.train.AveragedModel(network())}),
    ]
    for optimizer, options in cases:
        try:
            lm.train_step(
                network(),
                ops.cross_entropy,
                optimizer,
                device="cpu",
                parallel="data",
                shard_optimizer=True,
                **options,
            )
        except ValueError as error:
            found.append(str(error))
    bound = optim.SGD(net := nn.Linear(2, 2), lr=0.1)
    lm.train_step(net, ops.cross_entropy, bound, device="cpu", parallel="data", shard_optimizer=True)
    try:
        bound.step([np.zeros((2, 2), np.float32), np.zeros(2, np.float32)])
    except RuntimeError as error:
        found.append(str(error))
    return found


def test_what_needs_whole_tensors_is_refused() -> None:
    for found in run_ranks(refusals, 2):
        assert len(found) == 5
        for text, name in zip(found, ("LAMB", "Adafactor", "Regularized(LARS"), strict=False):
            assert text.startswith(name)
            assert "cannot keep its state in shards: how it updates one element of" in text
        assert "averaged= needs the float32 parameters whole on each rank" in found[3]
        assert found[4].startswith("SGD.step: the state of weight lies in shards")
    with pytest.raises(
        ValueError, match='shard_optimizer=True is for several ranks: give parallel="data", too'
    ):
        lm.train_step(nn.Linear(2, 2), ops.cross_entropy, optim.SGD(0.1), shard_optimizer=True)


# ---- what is kept


def bound_state(file: str) -> dict[str, Any]:
    """The optimizer's own state is that of one rank, and goes back into shards."""
    nn.manual_seed(5)
    net = network()
    optimizer = optim.AdamW(net, lr=1e-2)
    n, me = distributed.world_size(), distributed.rank()
    part = slice(me * 12 // n, (me + 1) * 12 // n)
    step = lm.train_step(
        net,
        ops.cross_entropy,
        optimizer,
        device="cpu",
        parallel="data",
        shard_optimizer=True,
        precision="bf16",
    )
    for x, y in zip(X[:3], Y[:3], strict=True):
        step(x[part], y[part])
    lm.train.save_checkpoint(f"{file}{n}", step)
    before = optimizer.state_dict()
    after = [float(step(x[part], y[part]).item()) for x, y in zip(X[3:], Y[3:], strict=True)]
    optimizer.load_state_dict(before)
    again = optimizer.state_dict()
    same = all(np.array_equal(before[name].numpy(), again[name].numpy()) for name in before)
    lm.train.load_checkpoint(f"{file}{n}", step)
    resumed = [float(step(x[part], y[part]).item()) for x, y in zip(X[3:], Y[3:], strict=True)]
    return {
        "same": same,
        "shapes": {k: v.shape for k, v in before.items()},
        "after": after,
        "resumed": resumed,
    }


def resumed(file: str, options: dict[str, Any]) -> list[float]:
    nn.manual_seed(9)
    net = network()
    step = lm.train_step(
        net,
        ops.cross_entropy,
        optim.AdamW(lr=1e-2),
        device="cpu",
        precision="bf16",
        parallel="data",
        **options,
    )
    lm.train.load_checkpoint(file, step)
    n, me = distributed.world_size(), distributed.rank()
    part = slice(me * 12 // n, (me + 1) * 12 // n)
    return [float(step(x[part], y[part]).item()) for x, y in zip(X[3:], Y[3:], strict=True)]


@pytest.mark.slow
@pytest.mark.feature("B033")
def test_states_are_kept_whole_and_go_on_on_any_number_of_ranks(tmp_path: Any) -> None:
    found = run_ranks(bound_state, 2, args=(str(tmp_path / "c"),))
    for one in found:
        assert one["same"]
        assert one["shapes"]["0.weight.exp_avg"] == (33, 6)
        assert one["resumed"] == one["after"]
    for ranks, options in ((1, {}), (3, {"shard_optimizer": True})):
        losses = (
            [resumed(str(tmp_path / "c2"), options)]
            if ranks == 1
            else run_ranks(resumed, ranks, args=(str(tmp_path / "c2"), options))
        )
        for one in losses:
            np.testing.assert_allclose(one, found[0]["after"], rtol=2e-2)
