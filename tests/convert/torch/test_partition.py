"""Graphs in parts, of which PyTorch runs some."""

import copy
import logging
from typing import Any

import pytest

from tests.convert.torch.test_user_networks import losses, made

GOES_BACK = True

pytestmark = [
    pytest.mark.torch,
    pytest.mark.feature("B024"),
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf"
    ),  # Dynamo looks at it
]


def test_what_is_not_known_goes_back_to_pytorch(caplog: Any) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.a(x))
            return self.b(h * torch.special.airy_ai(h.detach())[0])

    torch.manual_seed(1)
    model, x = Net(), torch.randn(3, 4)
    with caplog.at_level(logging.WARNING, "lamina.convert"):
        y = compiled(model)(x)
    assert any("special_airy_ai" in r.message and "test_partition.py" in r.message for r in caplog.records)
    torch.testing.assert_close(y, model(x))
    y.sum().backward()
    found = model.a.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(found, model.a.weight.grad)


@pytest.mark.filterwarnings("ignore:<class 'torch.autograd.function.Function'>")  # Dynamo makes one
def test_a_gradient_of_the_users_own() -> None:
    """A function of several results runs by PyTorch, with what takes them apart; gradients go through it."""
    import torch

    from tests.helpers.torch_training import compiled

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> Any:
            ctx.save_for_backward(w)
            return 2 * x * w, x - w

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> Any:
            (w,) = ctx.saved_tensors
            return 5 * g * w + h, g  # not the derivative: what is given here is what counts

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        a, b = Twice.apply(x * 3, w)
        first, second = torch.sigmoid(a).chunk(2)
        return (first * second).sum() + b.square().sum()

    torch.manual_seed(0)
    x, w = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    y = compiled(program)(x, w)
    assert y.requires_grad
    torch.testing.assert_close(torch.autograd.grad(y, (x, w)), torch.autograd.grad(program(x, w), (x, w)))


def test_writes_to_what_needs_a_gradient() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x * w
        h.mul_(2)
        h[:, 0] *= 3
        return (h * h).sum()

    x, w = torch.randn(4, 3), torch.randn(3, requires_grad=True)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(program)(x, w), w), torch.autograd.grad(program(x, w), w)
    )
    leaf = torch.randn(4, 3, requires_grad=True)

    def inner(h: torch.Tensor) -> torch.Tensor:
        h.mul_(2)
        return (h * h).sum()

    torch.testing.assert_close(
        torch.autograd.grad(compiled(inner)(leaf * 1), leaf), torch.autograd.grad(inner(leaf * 1), leaf)
    )


def test_writes_to_memory_that_another_argument_shares(caplog: Any) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x.sum() + y * 3

    run = compiled(program)
    for first, second in ((slice(0, 5), slice(5, 8)), (slice(0, 5), slice(3, 6)), (slice(3, 8), slice(2, 5))):
        a = torch.arange(8.0)
        b = a.clone()
        torch.testing.assert_close(run(b[first], b[second]), program(a[first], a[second]))
        torch.testing.assert_close(b, a)
    said = [r.getMessage() for r in caplog.records if r.name == "lamina.convert"]
    assert any("an argument that it writes shares memory with another argument" in s for s in said)


def test_levels_of_torch_func_without_gradients_stay_with_pytorch_whole() -> None:
    """No part of ours lies between the calls that enter and leave a level."""
    import torch

    from tests.helpers.torch_training import compiled

    def one(z: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = torch.linalg.eigvals(z.outer(z)).real.sum()
        return (z * 2).tanh() * scale

    def program(x: torch.Tensor) -> torch.Tensor:
        return (torch.vmap(one)(x * 2) + 1).sin()

    x = torch.randn(2, 3, requires_grad=True)
    run, wanted = compiled(program), program(x)
    for _ in range(2):
        found = run(x)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(
            *[torch.autograd.grad(y.sum(), x, retain_graph=True) for y in (found, wanted)]
        )


def test_regions_without_gradients_in_parts() -> None:
    """What runs between no_grad and its end has no gradient, whoever runs it, and the caller's mode stays."""
    import torch

    from tests.helpers.torch_training import compiled

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
            self.register_buffer("mean", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.a(x))
            with torch.no_grad():
                k = h * torch.special.airy_ai(h.detach())[0]
                self.mean.mul_(0.5).add_(k.mean(0), alpha=0.5)
                k = k * self.mean
            return self.b(h * k)

    torch.manual_seed(1)
    x = torch.randn(3, 4)
    torch.manual_seed(1)
    model, plain = Net(), Net()
    plain.load_state_dict(model.state_dict())
    y, wanted = compiled(model)(x), plain(x)
    torch.testing.assert_close(y, wanted)
    y.sum().backward()
    wanted.sum().backward()
    assert torch.is_grad_enabled()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    torch.testing.assert_close(model.mean, plain.mean)


def test_a_graph_whose_sizes_follow_from_its_numbers_runs_whole() -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_training import compiled

    def padded(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        y = F.pad(x.sin(), (count, count), mode="reflect")
        return (y[..., : y.shape[-1]] * 2).cos()

    x, count = torch.linspace(0, 1, 12).reshape(1, 2, 6), torch.tensor(2)
    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        torch.testing.assert_close(compiled(padded)(x, count), padded(x, count))


def test_a_closed_function_with_a_gradient_of_its_own_stays() -> None:
    """The graph of its forward pass would have another gradient."""
    import torch

    from tests.helpers.torch_training import compiled

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x + 1.0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 7.0

    @torch.compiler.allow_in_graph
    def function(x: Any) -> Any:
        return Twice.apply(x)

    x = torch.randn(5, requires_grad=True)
    y = compiled(lambda x: function(x * 2.0) + 0.5)(x)
    torch.testing.assert_close(y, x * 2.0 + 1.5)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.full((5,), 14.0))
    assert Twice.apply(x).grad_fn is not None  # functions with own gradients are what they were


def test_a_closed_function_that_asks_for_numbers_stays() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    @torch.compiler.allow_in_graph
    def scaled(x: Any) -> Any:
        return x * float(x.detach().abs().max().item())

    x = torch.randn(5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(lambda x: torch.tanh(scaled(x)))(x), torch.tanh(scaled(x)))


def test_a_closed_function_is_not_the_one_of_pytorch_that_has_its_name() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    @torch.compiler.allow_in_graph
    def relu(input: Any) -> Any:
        return input * 3

    @torch.compiler.allow_in_graph
    def sum(input: Any) -> Any:
        return input * 5

    x = torch.randn(5)
    torch.testing.assert_close(compiled(lambda x: relu(x) + sum(x))(x), x * 8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["branches_on_numbers"])
def test_networks_of_users_run_in_parts(name: str) -> None:
    """Functions of functions, and branches on numbers: what is between is PyTorch's, the steps are the same."""
    from tests.helpers.torch_training import compiled

    (net, inputs), (twin, _) = made(name), made(name)
    assert losses(twin, compiled(twin), inputs) == pytest.approx(losses(net, net, inputs), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("way", ["relu_", "a view", "no_grad", "data"])
def test_what_writes_to_an_argument_that_needs_a_gradient_runs_alone_in_pytorch(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    layer = torch.nn.Linear(4, 3)

    def written(x: torch.Tensor) -> torch.Tensor:
        if way == "relu_":
            torch.nn.functional.relu(x, inplace=True)
        elif way == "a view":
            x[:, 1:].mul_(2.0)
        elif way == "data":
            layer.weight.data.clamp_(-0.1, 0.1)
        else:
            with torch.no_grad():
                layer.weight *= 0.5
        return torch.tanh(layer(x).sin())

    values, weight = torch.randn(5, 4), layer.weight.detach().clone()
    gradients = []
    for run in (written, compiled(written, fullgraph=True)):
        with torch.no_grad():
            layer.weight.copy_(weight)
        leaf = values.clone().requires_grad_()
        x = leaf * 1.0
        y = run(x)
        found = torch.autograd.grad(y.square().sum() + x.sum(), [leaf, layer.weight, layer.bias])
        gradients.append((y, x, layer.weight.detach().clone(), *found))
    for wanted, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted)
    (said,) = {r.getMessage().partition(" (File")[0] for r in caplog.records if r.name == "lamina.convert"}
    name = {"relu_": "torch.nn.functional.relu", "no_grad": "_operator.imul", "data": "Tensor.clamp_"}
    assert said == f"backend='lamina': PyTorch runs {name.get(way, 'Tensor.mul_')}"


def test_a_parameter_written_before_it_is_read_has_its_gradient(caplog: pytest.LogCaptureFixture) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    def program(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            layer.weight.mul_(0.9)
        return layer(x).sin()

    layer, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    other = copy.deepcopy(layer)
    for net, run in ((layer, program), (other, compiled(program))):
        run(net, x).sum().backward()
    torch.testing.assert_close(other.weight.grad, layer.weight.grad)
    torch.testing.assert_close(other.weight, layer.weight)
    assert "writes to an argument that needs a gradient" in caplog.text
