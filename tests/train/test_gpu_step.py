"""Training on a GPU: the same losses as on the CPU, one CUDA graph per step, every precision, exact resume."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.cli import main
from lamina.train import AveragedModel, Position, fit, get_ema_avg_fn, load_checkpoint

pytestmark = pytest.mark.gpu


def run(
    device: str, steps: int, net: Any = nn.AlexNet, size: int = 224, **kwargs: Any
) -> tuple[list[float], Any]:
    nn.manual_seed(0)
    total = 60
    rate = optim.schedule.warm_up(optim.schedule.cosine(0.003, total), 50)
    chosen = optim.SGD(rate, momentum=0.9, weight_decay=5e-4)
    step = lm.train_step(net(), ops.cross_entropy, chosen, device=device, **kwargs)
    batches = data.digits(16, size, seed=0).epoch(0)
    return [step(x, y).item() for (x, y), _ in zip(batches, range(steps), strict=False)], step


@pytest.mark.feature("F110", "F111")
def test_the_first_20_losses_equal_the_cpus_with_dropout_on() -> None:
    expected, _ = run("cpu", 20)
    found, step = run("cuda", 20)
    np.testing.assert_allclose(found, expected, rtol=1e-3)
    assert step.executable.is_captured


@pytest.mark.feature("B016")
def test_a_step_is_one_cuda_graph_and_another_shape_gets_its_own() -> None:
    _, step = run("cuda", 3)
    assert step.executable.is_captured
    x, y = next(iter(data.digits(8, 224)))
    for _ in range(3):
        step(x, y)
    assert [p.executable.is_captured for p in step._programs] == [True, True]


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
@pytest.mark.feature("B017")
def test_every_precision_learns(precision: str) -> None:
    losses, step = run("cuda", 80, nn.LeNet, 28, precision=precision)
    assert np.isfinite(losses).all()
    assert np.mean(losses[-10:]) < 0.7 * np.mean(losses[:10])
    if precision == "fp16":
        assert step.state.scale["scale"].tolist()[1] > 0


@pytest.mark.feature("B017")
def test_double_precision_equals_the_cpus() -> None:
    expected, _ = run("cpu", 5, nn.LeNet, 28, precision="fp64")
    found, _ = run("cuda", 5, nn.LeNet, 28, precision="fp64")
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.feature("B029")
def test_resume_on_a_gpu(tmp_path: Path) -> None:
    def make(seed: int) -> Any:
        nn.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10))
        return lm.train_step(net, ops.cross_entropy, optim.SGD(0.05, 0.9), device="cuda")

    batches = data.digits(64, 8)
    with lm.policy(deterministic=True):
        whole = fit(make(1), batches, 2, progress=False).losses
        begun = fit(make(1), batches, 2, max_steps=15, checkpoint=tmp_path / "c", progress=False).losses
        second = make(5)
        position = load_checkpoint(tmp_path / "c", second)
        assert position == Position(0, 15)
        rest = fit(second, batches, 2, start=position, progress=False).losses
    assert begun + rest == whole


def test_a_network_moves_between_devices() -> None:
    net = nn.LeNet()
    x = np.random.default_rng(0).standard_normal((2, 1, 28, 28)).astype(np.float32)
    expected = net(x).numpy()
    held = next(net.parameters())
    assert net.to("cuda").eval()(lm.tensor(x, device="cuda")).device.kind == "cuda"
    np.testing.assert_allclose(net(lm.tensor(x, device="cuda")).numpy(), expected, rtol=1e-3, atol=1e-5)
    assert next(net.parameters()) is held
    np.testing.assert_array_equal(net.to("cpu")(x).numpy(), expected)


def test_dropout_masks_equal_the_cpus() -> None:
    masks = []
    for device in ("cpu", "cuda"):
        layer = nn.Dropout(0.4, generator=nn.Generator(5))
        masks.append([layer(lm.ones((37, 11), device=device)).numpy() for _ in range(3)])
    np.testing.assert_array_equal(masks[0], masks[1])


@pytest.mark.feature("F110")
def test_alexnet_reaches_97_percent_by_its_default_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losses = tmp_path / "losses.json"
    assert main(["train", "alexnet", "--data", "digits", "--device", "cuda", "--losses", str(losses)]) == 0
    assert json.loads(losses.read_text())["test"] >= 0.97, capsys.readouterr().out


def own_step(device: str) -> tuple[list[float], Any, Any]:
    """A step of one's own with groups, schedules, clipping, averages: losses, the function, the optimizer."""
    nn.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).to(device)
    averaged = AveragedModel(net, avg_fn=get_ema_avg_fn(0.9))
    rule = optim.AdamW(lr=lambda step: 0.02 / (step + 1), weight_decay=0.1)
    optimizer = rule.over(net, [{"params": lambda name, p: p.ndim < 2, "weight_decay": 0.0, "lr": 0.01}])

    @lm.jit
    def step(x: Any, y: Any, update: bool) -> Any:
        loss, grads = lm.value_and_grad(lambda net: ops.cross_entropy(net(x), y))(net)
        norm = nn.utils.clip_grad_norm_(grads, 1.0)
        optimizer.accumulate(grads)
        if update:
            optimizer.step()
            averaged.update_parameters(net)
        return loss, norm

    rng = np.random.default_rng(0)
    losses = []
    for i in range(12):
        x, y = rng.standard_normal((8, 6)).astype(np.float32), rng.integers(0, 3, 8)
        losses.append(step(x, y, i % 2 == 1)[0].item())
    losses.append(float(np.abs(averaged.module[0].weight.numpy()).sum()))
    return losses, step, optimizer


@pytest.mark.feature("B016", "B028")
def test_a_step_of_ones_own_is_captured_and_equals_the_cpus() -> None:
    expected, _, _ = own_step("cpu")
    found, step, optimizer = own_step("cuda")
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert [p.executable.is_captured for p in step._programs] == [True, True]
    assert optimizer.bound.number == 6
    state = optimizer.state_dict().items()
    states = [x for name, x in state if name != "step" and not name.startswith("param_groups.")]  # numbers
    assert len(states) > 6
    assert all(x.device.kind == "cuda" for x in states)


@pytest.mark.feature("B028")
def test_groups_accumulation_and_averages_equal_the_cpus() -> None:
    def losses(device: str) -> list[float]:
        nn.manual_seed(0)
        net = nn.LeNet(in_channels=1, num_classes=10)
        averaged = AveragedModel(net)
        optimizer = optim.SGD(lr=0.02, momentum=0.9).over(
            net,
            [{"params": lambda name, p: p.ndim < 2, "lr": lambda step: 0.04 / (step + 1), "momentum": 0.0}],
        )
        step = lm.train_step(
            net, ops.cross_entropy, optimizer, device=device, accumulate=2, averaged=averaged, clip_value=0.5
        )
        batches = data.digits(16, 28, seed=0).epoch(0)
        found = [step(x, y).item() for (x, y), _ in zip(batches, range(8), strict=False)]
        assert [p.executable.is_captured for p in step._programs] == [device == "cuda"] * 2
        return [*found, *(float(np.abs(p.numpy()).sum()) for p in averaged.parameters())]

    np.testing.assert_allclose(losses("cuda"), losses("cpu"), rtol=1e-3)
