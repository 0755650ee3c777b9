"""What the loss of a training step reads beside its arguments: its network's parameters, other modules, constants."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)

PENALTIES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda net: ops.sum(ops.square(net.weight)) + ops.sum(ops.square(net.bias)),
    "parameters": lambda net: sum(ops.sum(p**2) for p in net.parameters()),
    "named": lambda net: ops.stack([(p * p).sum() for _, p in net.named_parameters()]).sum(),
    "state": lambda net: ops.sum(ops.cat([ops.flatten(p) for p in net.state_dict().values()]) ** 2),
}


def linear() -> nn.Linear:
    nn.manual_seed(0)
    return nn.Linear(3, 3)


def by_hand(loss: Callable[[nn.Linear], Any], steps: int, lr: float = 0.1) -> tuple[list[float], nn.Linear]:
    """The losses of plain gradient descent, by `lm.value_and_grad`, in float64."""
    net, losses = linear().to("float64"), []
    for _ in range(steps):
        value, grads = lm.value_and_grad(loss)(net)
        losses.append(value.item())
        for name, p in net.named_parameters():
            p.copy_(p - lr * grads[name])
    return losses, net


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_penalty_on_parameters_has_a_gradient(name: str, precision: str) -> None:
    penalty, net = PENALTIES[name], linear()
    step = lm.train_step(
        net,
        lambda y, t: ops.mse_loss(y, t) + penalty(net),
        optim.SGD(lr=0.1),
        device="cpu",
        precision=precision,
    )
    x = X.astype(np.float64)
    wanted, other = by_hand(lambda net: ops.mse_loss(net(lm.tensor(x)), lm.tensor(x)) + penalty(net), 3)
    tolerance = {"fp32": 1e-5, "bf16": 3e-2, "fp16": 5e-3}[precision]
    np.testing.assert_allclose([step(X, X).item() for _ in range(3)], wanted, rtol=tolerance)
    np.testing.assert_allclose(net.weight.numpy(), other.weight.numpy(), atol=tolerance)


def test_a_network_that_is_called_again_in_the_loss() -> None:
    net = linear()
    step = lm.train_step(
        net, lambda y, t: ops.mse_loss(net(t * 2), t) + ops.mean(y), optim.SGD(lr=0.1), device="cpu"
    )
    x = X.astype(np.float64)
    wanted, _ = by_hand(
        lambda net: ops.mse_loss(net(lm.tensor(2 * x)), lm.tensor(x)) + ops.mean(net(lm.tensor(x))), 3
    )
    np.testing.assert_allclose([step(X, X).item() for _ in range(3)], wanted, rtol=1e-5)


def test_parameters_that_forward_reads_by_parameters() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            self.inner = linear()

        def forward(self, x: Any) -> Any:
            return self.inner(x), sum(ops.sum(p**2) for p in self.parameters())

    step = lm.train_step(Own(), lambda y, _: ops.mean(y[0]) + y[1], optim.SGD(lr=0.1), device="cpu")
    wanted, _ = by_hand(
        lambda net: ops.mean(net(lm.tensor(X.astype(np.float64)))) + PENALTIES["parameters"](net), 3
    )
    np.testing.assert_allclose([step(X, X).item() for _ in range(3)], wanted, rtol=1e-5)


def test_a_gradient_penalty_within_the_loss() -> None:
    net = linear()

    def loss(y: Any, t: Any) -> Any:
        slope = lm.grad(lambda x: ops.sum(ops.tanh(net(x))))(t)
        return ops.mean(ops.square(slope)) + 0 * ops.mean(y)

    step = lm.train_step(net, loss, optim.SGD(lr=0.1), device="cpu")

    def same(net: nn.Linear) -> Any:
        slope = lm.grad(lambda x: ops.sum(ops.tanh(net(x))))(lm.tensor(X.astype(np.float64)))
        return ops.mean(ops.square(slope))

    np.testing.assert_allclose([step(X, X).item() for _ in range(3)], by_hand(same, 3)[0], rtol=1e-5)


def test_a_teacher_is_read_as_it_is_then() -> None:
    net = nn.Sequential(linear(), nn.BatchNorm1d(3))
    teacher = copy.deepcopy(net).eval()
    step = lm.train_step(net, lambda y, t: ops.mse_loss(y, teacher(t)), optim.SGD(lr=0.0), device="cpu")

    def wanted() -> float:
        found = ops.mse_loss(copy.deepcopy(net)(lm.tensor(X)), teacher(lm.tensor(X)))
        return float(found)

    np.testing.assert_allclose(step(X, X).item(), wanted(), rtol=1e-5)
    for p in teacher.parameters():
        p.copy_(0.5 * p + 0.25)
    np.testing.assert_allclose(step(X, X).item(), wanted(), rtol=1e-5)
    teacher[1].running_mean.copy_(np.ones(3, np.float32))
    np.testing.assert_allclose(step(X, X).item(), wanted(), rtol=1e-5)
    assert len(step._programs) == 1
    teacher[1].eps = 1.0
    np.testing.assert_allclose(step(X, X).item(), wanted(), rtol=1e-5)


def test_another_module_is_updated_as_it_would_be() -> None:
    judge = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    net = linear()
    step = lm.train_step(net, lambda y, _: ops.mean(judge(y) ** 2), optim.SGD(lr=0.0), device="cpu")
    losses = {step(X, X).item() for _ in range(4)}
    assert len(losses) == 4  # other random numbers each time
    twin = nn.BatchNorm1d(3)
    for _ in range(4):
        twin(net(lm.tensor(X)))
    np.testing.assert_allclose(judge[0].running_mean.numpy(), twin.running_mean.numpy(), rtol=1e-5, atol=1e-7)
    assert judge[0].num_batches_tracked.item() == 4


def test_a_loss_with_a_buffer_and_constants() -> None:
    class Centered(nn.Module):
        center: Any

        def __init__(self) -> None:
            self.register_buffer("center", lm.zeros(3))

        def forward(self, y: Any, t: Any) -> Any:
            self.center = 0.5 * self.center + 0.5 * ops.mean(lm.stop_gradient(y), 0)
            return ops.mean(ops.square(y - self.center))

    net, loss, weights = linear(), Centered(), lm.tensor([1.0, 2.0, 3.0])
    whole = float(weights.sum())  # a constant's numbers are there
    step = lm.train_step(
        net, lambda y, t: loss(y, t) * (weights.sum().item() / whole), optim.SGD(lr=0.0), device="cpu"
    )
    center = np.zeros(3)
    y = net(lm.tensor(X)).numpy().astype(np.float64)
    for _ in range(3):
        center = 0.5 * center + 0.5 * y.mean(0)
        np.testing.assert_allclose(step(X, X).item(), np.square(y - center).mean(), rtol=1e-5)
    np.testing.assert_allclose(loss.center.numpy(), center, rtol=1e-5, atol=1e-7)


def test_what_a_loss_cannot_do() -> None:
    net, held = linear(), lm.zeros(3)
    of_another = optim.SGD(lr=0.1).over(linear())

    def stepping(y: Any, t: Any) -> Any:
        of_another.step([lm.zeros((3, 3)), lm.zeros(3)])
        return ops.mean(y)

    for loss, error, text in (
        (
            lambda y, t: ops.mean(y) + held.copy_(ops.mean(y, 0)).sum(),
            TypeError,
            "make it a buffer of a module",
        ),
        (lambda y, t: 3.0, TypeError, "loss_fn must give a scalar tensor, it gave 3.0"),
        (stepping, TypeError, "an optimizer steps within the step of another one"),
        (lambda y, t: ops.mean(y) * float(net.weight.sum()), TypeError, "has no numbers yet|are asked for"),
    ):
        with pytest.raises(error, match=text):
            lm.train_step(net, loss, optim.SGD(lr=0.1), device="cpu")(X, X)


def test_a_tensor_that_forward_makes_may_be_filled() -> None:
    class Filled(nn.Module):
        def __init__(self, fills: bool) -> None:
            self.linear, self.fills = nn.Linear(3, 4), fills
            self.register_buffer("calls", lm.zeros(1))

        def forward(self, x: Any) -> Any:
            self.calls = self.calls + 1
            y = self.linear(x)
            if not self.fills:
                return ops.cat([lm.zeros(2, 1), y[:, 1:] * 2], 1)
            out = lm.zeros(2, 4)
            out[:, 1:] = y[:, 1:]
            out.mul_(2)
            return out

    found = []
    for fills in (True, False):
        nn.manual_seed(0)
        net = Filled(fills)
        step = lm.train_step(net, lambda y, t: (y - t).square().mean(), optim.SGD(0.1), device="cpu")
        x = np.float32([[1, 2, 3], [-1, 0, 2]])
        found.append([float(step(x, np.ones((2, 4), np.float32))) for _ in range(3)])
        assert net.calls.item() == 3
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    assert found[0][2] < found[0][0]


def test_forward_writes_parts_of_values_and_of_buffers() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            self.head = nn.Linear(3, 3, bias=False)
            self.register_buffer("seen", lm.zeros(2, 3))

        def forward(self, x: Any) -> Any:
            y = self.head(x)
            y[0] = 1
            scores = y @ y.T
            scores.masked_fill_(scores < 0, -1e9)
            self.seen[1].add_(x.detach().sum(0))
            self.seen.data[0] = 4
            return y * scores.softmax(-1)[:, :1]

    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    net = Net()
    before = net.head.weight.numpy().copy()

    def formula(weight: Any) -> Any:
        y = ops.cat([lm.ones(1, 3), (lm.tensor(x) @ weight.T)[1:]])
        scores = y @ y.T
        return ops.mean(y * ops.where(scores < 0, -1e9, scores).softmax(-1)[:, :1])

    loss, slope = lm.value_and_grad(formula)(lm.tensor(before))
    step = lm.train_step(net, lambda y, _: ops.mean(y), optim.SGD(lr=0.5))
    assert step(x, None).item() == pytest.approx(loss.item(), rel=1e-5)
    np.testing.assert_allclose(net.head.weight.numpy(), before - 0.5 * slope.numpy(), rtol=1e-5, atol=1e-6)
    step(x, None)
    np.testing.assert_allclose(net.seen.numpy(), [[4] * 3, 2 * x.sum(0)], rtol=1e-5)


def test_forward_writes_neither_inputs_nor_parameters() -> None:
    class Net(nn.Module):
        def __init__(self, write: Any) -> None:
            self.head = nn.Linear(3, 3)
            self.write = write

        def forward(self, x: Any) -> Any:
            self.write(self, x)
            return self.head(x)

    def run(write: Any) -> None:
        lm.train_step(Net(write), lambda y, _: ops.mean(y), optim.SGD(lr=0.5))(X, None)

    with pytest.raises(TypeError, match="argument is its caller's"):
        run(lambda net, x: x[0].zero_())
    with pytest.raises(TypeError, match="are updated by it alone"):
        run(lambda net, x: net.head.weight.data.clamp_(-1, 1))


def test_a_number_around_the_loss_may_be_changed() -> None:
    """As the weight of a term is annealed."""
    net, weight, config = linear(), 1.0, {"shift": 0.0}
    step = lm.train_step(
        net, lambda y, t: ops.mse_loss(y, t) * weight + config["shift"], optim.SGD(lr=0.0), device="cpu"
    )
    first = step(X, X).item()
    weight = 0.25
    assert step(X, X).item() == pytest.approx(first / 4, rel=1e-6)
    config["shift"] = 1.0
    assert step(X, X).item() == pytest.approx(first / 4 + 1, rel=1e-6)
    step(X, X)
    assert len(step._programs) == 3


def test_the_state_of_a_loss_that_is_an_object_may_be_changed() -> None:
    class Annealed:
        def __init__(self) -> None:
            self.weight, self.steps = 1.0, 0

        def __call__(self, y: Any, t: Any) -> Any:
            return ops.mse_loss(y, t) * self.weight

        def advance(self) -> None:
            self.weight, self.steps = self.weight / 2, self.steps + 1

    loss = Annealed()
    step = lm.train_step(linear(), loss, optim.SGD(lr=0.0), device="cpu")
    first = step(X, X).item()
    loss.advance()
    assert step(X, X).item() == pytest.approx(first / 2, rel=1e-6)


def test_a_constant_that_is_written_over_counts_from_the_next_step() -> None:
    weights = lm.ones((4, 3))
    step = lm.train_step(
        linear(), lambda y, t: ops.mean(ops.square(y - t) * weights), optim.SGD(lr=0.0), device="cpu"
    )
    first = step(X, X).item()
    weights.mul_(2.0)
    assert step(X, X).item() == pytest.approx(first * 2, rel=1e-6)
    weights[1:].fill_(0.0)
    last = weights[0]
    assert step(X, X).item() < first * 2
    last.fill_(0.0)  # a part of it
    assert step(X, X).item() == 0
    step(X, X)
    assert len(step._programs) == 4


def test_a_part_of_a_parameter_that_a_loss_reads_is_trained_as_that() -> None:
    """A row of the weights, taken before the step: its penalty has a gradient."""
    net = nn.Linear(3, 2)
    row = net.weight[0]
    step = lm.train_step(
        net, lambda y, t: ops.mse_loss(y, t) + 10 * ops.sum(row * row), optim.SGD(lr=0.05), device="cpu"
    )
    x, t = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    w, b = net.weight.numpy().astype(np.float64), net.bias.numpy().astype(np.float64)
    step(x, t)
    y = x @ w.T + b
    w -= 0.05 * ((2 / y.size * (y - t)).T @ x + np.array([20 * w[0], 0 * w[0]]))
    np.testing.assert_allclose(net.weight.numpy(), w, atol=1e-5)


class Following(nn.Module):
    """A network with a frozen twin whose weights follow its own ones, as in MoCo, BYOL and Q-learning."""

    def __init__(self, by_data: bool) -> None:
        self.online, self.target, self.by_data = nn.Linear(3, 3), nn.Linear(3, 3), by_data
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        if not self.by_data:
            self.follow()
        else:
            for own, slow in zip(self.online.parameters(), self.target.parameters(), strict=True):
                slow.data = slow.data * 0.99 + own.data * 0.01
        return self.online(x) - self.target(x).detach()

    def follow(self) -> None:
        for own, slow in zip(self.online.parameters(), self.target.parameters(), strict=True):
            slow.data.mul_(0.99).add_(own.data, alpha=0.01)


@pytest.mark.parametrize("by_data", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_frozen_parameters_are_written_by_forward(precision: str, by_data: bool) -> None:
    """In half types too the average is kept in float32: a hundredth of a small change is less than a rounding."""
    net = Following(by_data)
    slow = net.target.weight.numpy().copy()
    step = lm.train_step(
        net, lambda y, _: ops.mean(ops.square(y - 1.0)), optim.SGD(lr=0.01), precision=precision
    )
    for _ in range(20):
        own = net.online.weight.numpy().copy()
        own = (
            own
            if precision == "fp32"
            else lm.tensor(own).to(step.precision.compute).numpy().astype(np.float32)
        )
        slow = slow * np.float32(0.99) + own * np.float32(0.01)
        step(X, None)
        np.testing.assert_allclose(
            net.target.weight.numpy(), slow, rtol=1e-5 if precision == "fp32" else 3e-4
        )
    assert not np.array_equal(net.online.weight.numpy(), net.target.weight.numpy())


def test_frozen_parameters_are_written_by_the_loss_and_counted_in_averages() -> None:
    net = Following(by_data=False)
    head = nn.Sequential(nn.Linear(3, 3))
    net.head = head
    averaged = lm.train.AveragedModel(net, avg_fn=lm.train.get_ema_avg_fn(0.0))

    def loss(y: Any, t: Any) -> Any:
        net.target.weight.data.fill_(0.5)
        return ops.mse_loss(net.target(y), t)

    step = lm.train_step(net, loss, optim.SGD(lr=0.01), averaged=averaged, accumulate=2)
    step(X, X)
    assert (net.target.weight.numpy() == 0.5).all()
    step(X, X)
    assert (averaged.module.target.weight.numpy() == 0.5).all()
