"""Losses with parameters and buffers of their own, which a training step trains with the network's."""

import copy
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import lamina as lm
from lamina import nn, ops, optim
from tests.helpers.planned import H200

rng = np.random.default_rng(0)
X = rng.standard_normal((20, 8, 3)).astype(np.float32)
Y = rng.standard_normal((20, 8, 2)).astype(np.float32)


class Weighted(nn.Module):
    """The errors of outputs (N, 2), each with an uncertainty that is learned. seen: the calls in training."""

    log_var: nn.Parameter
    seen: Any

    def __init__(self) -> None:
        self.log_var = nn.Parameter(np.zeros(2, np.float32))
        self.register_buffer("seen", lm.zeros(()))

    def forward(self, y: Any, t: Any) -> Any:
        if self.training:
            self.seen.add_(1)
        return ops.sum(ops.exp(-self.log_var) * ops.mean((y - t) ** 2, 0) + self.log_var)


def linear() -> nn.Linear:
    nn.manual_seed(0)
    return nn.Linear(3, 2)


def by_torch(
    make_optimizer: Callable[[list[Any]], Any],
    accumulate: int = 1,
    clip_norm: float | None = None,
    double: bool = False,
) -> tuple[list[float], list[Any], list[Any]]:
    """The losses of 20 steps, the gradients of each, and the trained weight, bias and log_var."""
    torch = pytest.importorskip("torch")
    net, log_var = torch.nn.Linear(3, 2), torch.nn.Parameter(torch.zeros(2))
    with torch.no_grad():
        for p, own in zip(net.parameters(), linear().parameters(), strict=True):
            p.copy_(torch.tensor(own.numpy()))
    net, log_var = (net.double(), torch.nn.Parameter(log_var.double())) if double else (net, log_var)
    params = [*net.parameters(), log_var]
    optimizer, losses, grads = make_optimizer(params), [], []
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        error = ((net(torch.tensor(x, dtype=log_var.dtype)) - torch.tensor(y)) ** 2).mean(0)
        loss = (torch.exp(-log_var) * error + log_var).sum()
        (loss / accumulate).backward()
        losses.append(loss.item())
        if (i + 1) % accumulate == 0:
            if clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(params, clip_norm)
            grads.append([p.grad.numpy().copy() for p in params])
            optimizer.step()
            optimizer.zero_grad()
    return losses, grads, [p.detach().numpy() for p in params]


@pytest.mark.torch
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("settings", [{}, {"accumulate": 2}, {"clip_norm": 0.5}])
def test_twenty_steps_equal_torch(backend: str, settings: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    losses, grads, params = by_torch(partial(torch.optim.AdamW, lr=0.05), **settings)
    net, loss = linear(), Weighted()
    optimizer = optim.AdamW([*net.parameters(), *loss.parameters()], lr=0.05)
    step = lm.train_step(net, loss, optimizer, device="cpu", backend=backend, keep_grads=True, **settings)
    updates = iter(grads)
    for i, (x, y) in enumerate(zip(X, Y, strict=True)):
        assert step(x, y).item() == pytest.approx(losses[i], rel=1e-4, abs=1e-5)
        assert step.grads is not None
        if not step.waiting:
            for own, wanted in zip(step.grads.values(), next(updates), strict=True):
                np.testing.assert_allclose(own.numpy(), wanted, rtol=1e-3, atol=1e-5)
    for p, wanted in zip((*net.parameters(), loss.log_var), params, strict=True):
        np.testing.assert_allclose(p.numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert list(step.grads or ()) == ["weight", "bias", "loss_fn.log_var"]
    assert loss.seen.item() == 20


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp64"])
def test_a_loss_keeps_the_type_of_the_weights(precision: str) -> None:
    torch = pytest.importorskip("torch")
    losses, _, params = by_torch(partial(torch.optim.SGD, lr=0.01), double=True)
    net, loss = linear(), Weighted()
    step = lm.train_step(net, loss, optim.SGD(lr=0.01), device="cpu", precision=precision)
    for scale in step.state.scale.values():
        scale.copy_(lm.tensor([256.0, 0.0]))  # no step overflows
    tolerance = {"bf16": 2e-2, "fp16": 2e-3, "fp64": 1e-6}[precision]
    for x, y, wanted in zip(X.astype("float64"), Y, losses, strict=True):
        assert step(x, y).item() == pytest.approx(wanted, rel=tolerance)
    np.testing.assert_allclose(loss.log_var.numpy(), params[2], rtol=tolerance, atol=tolerance / 10)
    assert str(loss.log_var.dtype) == ("float64" if precision == "fp64" else "float32")
    assert str(loss.seen.dtype) == "float32"


def test_a_learned_temperature_is_not_rounded_in_half_precision() -> None:
    class Tempered(nn.Module):
        def __init__(self) -> None:
            self.scale = nn.Parameter(np.ones((), np.float32))

        def forward(self, y: Any, t: Any) -> Any:
            return self.scale + 0 * ops.mean(y)

    loss = Tempered()
    step = lm.train_step(linear(), loss, optim.SGD(lr=1e-3), device="cpu", precision="bf16")
    found = [step(X[0], Y[0]).item() for _ in range(3)]  # in bfloat16 1 - 0.001 is 1
    assert found == pytest.approx([1, 0.999, 0.998], abs=1e-6)


def test_functions_read_modules_and_parameters() -> None:
    first, second, bias = Weighted(), nn.ModuleList([Weighted()]), nn.Parameter(np.zeros((), np.float32))
    teacher = nn.Linear(3, 2)
    kept = teacher.weight.numpy().copy()

    class Own:
        def __init__(self) -> None:
            self.criterion = first

        def __call__(self, y: Any, t: Any) -> Any:
            return self.criterion(y, t)

    def several(y: Any, t: Any) -> Any:
        x = teacher(lm.ones((1, 3)))
        return first(y, t) + second[0](y * 2, t) + (bias - 1) ** 2 + ops.mean(x)

    cases: list[tuple[Any, list[Any], set[str]]] = [
        (several, [first, second, bias], {"first.log_var", "second.0.log_var", "bias"}),
        (several, [first], {"first.log_var"}),
        (partial(lambda criterion, y, t: criterion(y, t), first), [first], {"0.log_var"}),
        (Own(), [first], {"criterion.log_var"}),
        (first.forward, [first], {"log_var"}),
    ]
    for loss, trained, names in cases:
        net = linear()
        own = [p for x in trained for p in (x.parameters() if isinstance(x, nn.Module) else [x])]
        before = [p.numpy().copy() for p in own]
        step = lm.train_step(net, loss, optim.SGD([*net.parameters(), *own], lr=0.1), device="cpu")
        step(X[0], Y[0])
        assert set(step.state.parameters) == {"weight", "bias", *(f"loss_fn.{n}" for n in names)}
        assert not any(np.array_equal(p.numpy(), x) for p, x in zip(own, before, strict=True))
    np.testing.assert_array_equal(teacher.weight.numpy(), kept)


def test_an_optimizer_without_parameters_trains_those_of_a_loss_that_is_a_module() -> None:
    class Distilled(Weighted):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = nn.Linear(3, 2).half().requires_grad_(False)

    net, loss = linear(), Distilled()
    step = lm.train_step(net, loss, optim.SGD(lr=0.1), device="cpu")
    step(X[0], Y[0])
    assert loss.log_var.numpy().all()
    assert "loss_fn.teacher.weight" not in step.state.parameters  # frozen: it stays as it is
    assert str(loss.teacher.weight.dtype) == "float16"
    held = Weighted()
    step = lm.train_step(net, lambda y, t: held(y, t), optim.SGD(lr=0.1), device="cpu")
    step(X[0], Y[0])
    assert not held.log_var.numpy().any()  # of a function, the optimizer says which


def test_names_where_the_network_has_them() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.loss_fn = Weighted()
            self.inner = linear()

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    net, other = Net(), Weighted()
    step = lm.train_step(net, net.loss_fn, optim.SGD(lr=0.1), device="cpu")
    assert list(step.state.parameters) == ["loss_fn.log_var", "inner.weight", "inner.bias"]
    assert list(step.state.buffers) == ["loss_fn.seen"]
    step = lm.train_step(net, other, optim.SGD(lr=0.1), device="cpu")
    assert list(step.state.parameters)[-1] == "loss_fn_.log_var"


def test_what_neither_has_is_named() -> None:
    net, loss, other = linear(), Weighted(), nn.Linear(2, 2)
    optimizer = optim.SGD([*net.named_parameters(), ("other.weight", other.weight)], lr=0.1)
    with pytest.raises(ValueError, match="trains other.weight, which neither Linear nor its loss has"):
        lm.train_step(net, loss, optimizer, device="cpu")
    step = lm.train_step(net, loss, optim.SGD(lr=0.1), device="cpu")
    step(X[0], Y[0])
    loss.log_var = nn.Parameter(np.zeros(2, np.float32))
    with pytest.raises(RuntimeError, match=r"loss_fn.log_var of Linear and its loss was replaced"):
        step(X[0], Y[0])


def test_modes_and_averages() -> None:
    net, loss = linear(), Weighted()
    averaged = lm.train.AveragedModel(net, avg_fn=lm.train.get_ema_avg_fn(0.5))
    step = lm.train_step(net, loss, optim.SGD(lr=0.1), device="cpu", averaged=averaged)
    step(X[0], Y[0])
    first = net.weight.numpy().copy()
    loss.eval()
    step(X[0], Y[0])
    assert loss.seen.item() == 1
    np.testing.assert_allclose(averaged.module.weight.numpy(), (first + net.weight.numpy()) / 2, rtol=1e-6)


def batches() -> list[tuple[Any, Any]]:
    return list(zip(X[:4], Y[:4], strict=True))


def test_fit_validates_by_the_current_parameters_and_resumes(tmp_path: Path) -> None:
    def run(epochs: int, start: Any = None) -> tuple[Any, Any, Any]:
        net, loss = linear(), Weighted()
        optimizer = optim.Adam([*net.parameters(), *loss.parameters()], lr=0.05)
        step = lm.train_step(net, loss, optimizer, device="cpu")
        given = {} if start is None else {"start": lm.train.load_checkpoint(start, step)}
        history = lm.fit(
            step, batches(), epochs, validation=batches(), checkpoint=tmp_path / f"{epochs}",
            console=Console(file=io.StringIO()), override=["epochs"], **given,
        )  # fmt: skip
        return net, loss, history

    whole = run(3)
    net, loss, history = run(1)
    found = history.epochs[-1].validation.loss
    wanted = np.mean(
        [copy.deepcopy(loss).eval()(net(lm.tensor(x)), lm.tensor(y)).item() for x, y in batches()]
    )
    assert found == pytest.approx(wanted, rel=1e-5)
    assert loss.seen.item() == 4  # not by validation
    again = run(3, tmp_path / "1")
    np.testing.assert_array_equal(again[1].log_var.numpy(), whole[1].log_var.numpy())
    assert again[1].seen.item() == 12
    assert again[2].epochs[-1].validation.loss == whole[2].epochs[-1].validation.loss


def test_older_checkpoints_hold_nothing_of_a_loss_without_parameters(tmp_path: Path) -> None:
    class Centered(nn.Module):
        def __init__(self) -> None:
            self.register_buffer("center", lm.zeros((2,)))

        def forward(self, y: Any, t: Any) -> Any:
            return ops.mean((y - self.center - t) ** 2)

    def step(loss: Any) -> Any:
        return lm.train_step(linear(), loss, optim.SGD(lr=0.1), device="cpu")

    lm.train.save_checkpoint(tmp_path / "old", step(lambda y, t: ops.mse_loss(y, t)))
    lm.train.load_checkpoint(tmp_path / "old", step(Centered()), override=["loss"])
    with pytest.raises(ValueError, match=r"parameters/loss_fn.log_var is missing"):
        lm.train.load_checkpoint(tmp_path / "old", step(Weighted()), override=["loss"])
    loss = Centered()
    loss.center.fill_(3)
    lm.train.save_checkpoint(tmp_path / "new", step(loss))
    other = Centered()
    lm.train.load_checkpoint(tmp_path / "new", step(other))
    assert other.center.numpy().tolist() == [3, 3]


def test_steps_are_planned_for_absent_gpus() -> None:
    net, loss = linear(), Weighted()
    step = lm.train_step(net, loss, optim.SGD(lr=0.1), device=H200, precision="bf16")
    program = step.program(lm.spec.Spec((8, 3), lm.float32), lm.spec.Spec((8, 2), lm.float32))
    assert "loss_fn.log_var" in program.reached
