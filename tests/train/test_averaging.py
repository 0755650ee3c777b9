"""Averages of weights: by formula, in a function of one's own, within the step's program, and as torch has them."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.train import (
    AveragedModel,
    get_ema_avg_fn,
    get_swa_avg_fn,
    load_checkpoint,
    save_checkpoint,
    update_bn,
)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 3)).astype(np.float32)
Y = RNG.integers(0, 2, 8)


def network() -> nn.Sequential:
    nn.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def held(net: nn.Module) -> dict[str, Any]:
    return {n: x.numpy().copy() for n, x in (*net.named_parameters(), *net.named_buffers())}


@pytest.mark.parametrize("kind", ["ema", "swa"])
@pytest.mark.parametrize("use_buffers", [False, True])
@pytest.mark.parametrize("way", ["eager", "jit", "step", "fp16"])
@pytest.mark.feature("B028")
def test_averages(kind: str, use_buffers: bool, way: str) -> None:
    net = network()
    averaged = AveragedModel(
        net, avg_fn=get_ema_avg_fn(0.75) if kind == "ema" else None, use_buffers=use_buffers
    )
    step = lm.train_step(
        net,
        ops.cross_entropy,
        optim.SGD(lr=0.1),
        device="cpu",
        precision="fp16" if way == "fp16" else "fp32",
        averaged=averaged if way in ("step", "fp16") else None,
    )
    update = (
        lm.jit(lambda: averaged.update_parameters(net))
        if way == "jit"
        else lambda: averaged.update_parameters(net)
    )
    expected: dict[str, Any] = {}
    for number in range(4):
        step(X, Y)
        if way in ("eager", "jit"):
            update()
        now = held(net)
        share = 1.0 if number == 0 else 0.25 if kind == "ema" else 1 / (number + 1)
        for name, x in now.items():
            averages = x.dtype.kind == "f" and (use_buffers or "running" not in name)
            expected[name] = expected[name] + share * (x - expected[name]) if averages and number else x
    for name, x in held(averaged.module).items():
        np.testing.assert_allclose(x, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert averaged.n_averaged.item() == 4
    assert not averaged.module[0].weight.requires_grad
    assert averaged(X).shape == (8, 2)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.feature("B028")
def test_updates_that_are_skipped_enter_no_average(accumulate: int) -> None:
    nn.manual_seed(0)
    net = nn.Linear(3, 2)
    averaged = AveragedModel(net)
    options: Any = {"precision": "fp16", "averaged": averaged, "accumulate": accumulate}
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(lr=1.0), device="cpu", **options)
    updated = []
    for inputs in (X, np.full_like(X, 1e9), X):  # the gradients of the second overflow
        for _ in range(accumulate):
            step(inputs, Y)
        updated.append(net.weight.numpy().copy())
    np.testing.assert_array_equal(updated[1], updated[0])
    assert averaged.n_averaged.item() == 2
    np.testing.assert_allclose(averaged.module.weight.numpy(), (updated[0] + updated[2]) / 2, rtol=1e-6)


def test_statistics_are_computed_anew() -> None:
    net = network()
    net[1].eval()
    batches = [X[:3], X[3:]]
    update_bn([(b, None) for b in batches], net)
    inner = [net[0](b).numpy() for b in batches]
    np.testing.assert_allclose(
        net[1].running_mean.numpy(), np.mean([x.mean(0) for x in inner], 0), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        net[1].running_var.numpy(), np.mean([x.var(0, ddof=1) for x in inner], 0), rtol=1e-4
    )
    assert net[1].momentum == 0.1
    assert not net[1].training
    assert net[0].training


def test_averages_are_in_the_checkpoint(tmp_path: Any) -> None:
    def make() -> tuple[AveragedModel, Any]:
        net = network()
        averaged = AveragedModel(net)
        return averaged, lm.train_step(
            net, ops.cross_entropy, optim.SGD(lr=0.1), device="cpu", averaged=averaged
        )

    first, step = make()
    for _ in range(3):
        step(X, Y)
    save_checkpoint(tmp_path / "c", step)
    second, again = make()
    load_checkpoint(tmp_path / "c", again)
    for each in (step, again):
        each(X, Y)
    for name, x in held(first).items():
        np.testing.assert_array_equal(x, held(second)[name])


def test_errors() -> None:
    averaged = AveragedModel(network())
    with pytest.raises(
        ValueError, match="AveragedModel.update_parameters: Linear is another network: 0.bias"
    ):
        averaged.update_parameters(nn.Linear(2, 3))
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\], got 2"):
        get_ema_avg_fn(2.0)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_equals_torchs(kind: str) -> None:
    torch = pytest.importorskip("torch")
    from torch.optim import swa_utils

    net = nn.Linear(3, 2)
    other = torch.nn.Linear(3, 2)
    averaged = AveragedModel(net, avg_fn=get_ema_avg_fn(0.9) if kind == "ema" else get_swa_avg_fn())
    theirs = swa_utils.AveragedModel(
        other, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9) if kind == "ema" else None
    )
    for _ in range(4):
        state = {n: RNG.standard_normal(p.shape).astype(np.float32) for n, p in net.named_parameters()}
        net.load_state_dict(state)
        other.load_state_dict({n: torch.tensor(x) for n, x in state.items()})
        averaged.update_parameters(net)
        theirs.update_parameters(other)
    for name, p in theirs.module.named_parameters():
        np.testing.assert_allclose(averaged.module.state_dict()[name].numpy(), p.detach().numpy(), rtol=1e-5)


def test_it_is_copied_and_pickled() -> None:
    for made in (AveragedModel(network()), AveragedModel(network(), avg_fn=get_ema_avg_fn(0.5))):
        made.update_parameters(network())
        again = pickle.loads(pickle.dumps(made))
        for x in (made, again, copy.deepcopy(made)):
            x.update_parameters(nn.Sequential(*network()))
        assert [p.tolist() for p in again.parameters()] == [p.tolist() for p in made.parameters()]
