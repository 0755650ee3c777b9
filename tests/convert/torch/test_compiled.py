"""Forward and backward passes in contexts: several under way, kept graphs, parameters that move, refusals."""

import copy
import io
from typing import Any

import pytest

pytestmark = [
    pytest.mark.torch,
    pytest.mark.feature("B024"),
    pytest.mark.filterwarnings(
        "ignore:The .grad attribute of a Tensor that is not a leaf"
    ),  # Dynamo looks at it
]


def test_several_forward_passes_before_backward() -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, compiled, gradients_of, images

    model = ConvNet()
    run = compiled(model)
    outputs = [run(images(i)[0]) for i in range(3)]
    kept = [y.detach().clone() for y in outputs]
    for i in (1, 0, 2):
        found = gradients_of(model, outputs[i])
        for a, b in zip(found, gradients_of(model, model(images(i)[0])), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
    for y, before in zip(outputs, kept, strict=True):
        assert torch.equal(y, before)


def test_gradients_accumulate_and_graphs_are_kept() -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, compiled, images

    model = ConvNet()
    twin = copy.deepcopy(model)
    for net, run in ((model, model), (twin, compiled(twin))):
        for i in range(3):
            run(images(i)[0]).square().sum().backward()
        y = run(images(4)[0])
        y.sum().backward(retain_graph=True)
        y.square().sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.sum().backward()
        del net
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("again", [False, True])
def test_gradients_need_what_a_written_buffer_was_before(again: bool) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    class Queue(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(3, 4, bias=False)
            self.register_buffer("kept", torch.ones(4, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.line(x) @ self.kept.clone()
            self.kept.add_(1)
            return y

    model = Queue()
    twin = copy.deepcopy(model)
    x = torch.ones(2, 3)
    for net, run in ((model, model), (twin, compiled(twin))):
        for _ in range(2):
            run(x).sum().backward(retain_graph=again)
        if again:
            y = run(x)
            y.sum().backward(retain_graph=True)
            y.sum().backward()
        assert net.kept[0, 0] == 4 if again else 3
    torch.testing.assert_close(twin.line.weight.grad, model.line.weight.grad)


def test_dropout_follows_pytorchs_seed() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    run, x = compiled(torch.nn.Dropout(0.3)), torch.ones(100, 100, requires_grad=True)
    torch.manual_seed(5)
    a, b = run(x), run(x)
    torch.manual_seed(5)
    again = run(x)
    assert torch.equal(a, again)
    assert not torch.equal(a, b)
    assert abs((a == 0).float().mean().item() - 0.3) < 0.02
    (g,) = torch.autograd.grad(b.sum(), x)
    assert torch.equal(g == 0, b == 0)


def test_state_is_saved_loaded_and_moved() -> None:
    import torch

    from tests.helpers.torch_training import ConvNet, compiled, images

    model, other = ConvNet(), ConvNet()
    run, x = compiled(model), images(0)[0]
    run(x)
    file = io.BytesIO()
    torch.save(other.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file))
    torch.testing.assert_close(run(x), other(x), atol=1e-5, rtol=1e-4)
    for _ in range(8):  # parameters that lie elsewhere each time
        for p in model.parameters():
            p.data = p.data.clone() * 1.1
        torch.testing.assert_close(run(x), copy.deepcopy(model)(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["convolutions", "products"])
def test_second_and_third_derivatives(kind: str) -> None:
    """A gradient penalty, as GANs have it, and (of products: PyTorch's batch norm has a wrong third derivative) a
    gradient of it that is differentiated again.
    """
    import torch
    from torch import nn

    from tests.helpers.torch_training import compiled

    torch.manual_seed(0)
    first, shape = (nn.Conv2d(2, 4, 3), (2, 2, 6, 6)) if kind == "convolutions" else (nn.Linear(3, 4), (4, 3))
    last = [nn.BatchNorm2d(4), nn.Conv2d(4, 1, 3)] if kind == "convolutions" else [nn.Linear(4, 1)]
    net, x0 = nn.Sequential(first, nn.Softplus(), *last), torch.randn(shape)
    found = []
    for run in (net, compiled(copy.deepcopy(net))):
        for _ in range(2):
            x = x0.clone().requires_grad_()
            y = run(x)
            (g,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
            penalty = (g.flatten(1).norm(dim=1) - 1).square().mean() + y.mean()
            second = torch.autograd.grad(penalty, [x, *run.parameters()], create_graph=True)
        if kind == "products":
            run.zero_grad()
            sum(s.square().sum() for s in second).backward()
        given = [p.grad for p in run.parameters() if p.grad is not None]
        found.append([g, *second, *given[:2], *run.buffers()])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3 * float(wanted.detach().abs().max()))


def test_a_second_derivative_drops_what_the_first_one_dropped() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    run, x = compiled(torch.nn.Dropout(0.5)), torch.linspace(1, 2, 50, requires_grad=True)
    y = run(x.pow(3))
    kept = (y / x.pow(3)).detach()
    assert 5 < (kept == 0).sum() < 45
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(g, 3 * x.square() * kept)
    (second,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(second, 6 * x * kept)


def test_a_second_derivative_of_what_was_overwritten_is_refused() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    x = torch.randn(4, 3)
    y = compiled(torch.nn.Linear(3, 2))(x).square().sum()
    x.add_(1)
    with pytest.raises(RuntimeError, match="overwritten since"):
        y.backward(create_graph=True)


def test_a_gradient_that_is_the_same_everywhere_has_zeros_for_its_own() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    x = torch.linspace(-1, 1, 8).reshape(1, 8).requires_grad_()
    run = compiled(torch.nn.Sequential(torch.nn.MaxPool1d(2), torch.nn.LeakyReLU(0.1)))
    (g,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(g.sum(), x)
    assert torch.equal(g.sort().values[0, :4], torch.zeros(4))
    assert torch.equal(second, torch.zeros(1, 8))


def test_what_has_no_second_derivative_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from lamina.convert.torch import compiled as own
    from tests.helpers.torch_training import compiled

    def refuses(*args: Any) -> Any:
        raise NotImplementedError("an_op has no gradient")

    monkeypatch.setattr(own, "derivative", refuses)
    layer, x = torch.nn.Linear(3, 2), torch.randn(4, 3, requires_grad=True)
    (g,) = torch.autograd.grad(compiled(layer)(x).square().sum(), x, create_graph=True)
    torch.testing.assert_close(g, torch.autograd.grad(layer(x).square().sum(), x)[0])
    with pytest.raises(own.DoubleBackwardError, match=r"create_graph=True.*: an_op has no gradient"):
        g.square().sum().backward()


def test_what_is_overwritten_before_backward_is_refused_as_by_pytorch() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    layer, x = torch.nn.Linear(3, 2), torch.randn(4, 3, requires_grad=True)
    y = compiled(layer)(x).sum()
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_graph_that_only_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No results to copy: PyTorch 2.11 refuses empty lists of tensors."""
    import torch

    from tests.helpers.torch_training import compiled

    own = torch._foreach_copy_

    def strict(places: Any, values: Any, *more: Any) -> Any:
        if not places:
            raise RuntimeError("Tensor list must have at least one tensor.")
        return own(places, values, *more)

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> None:
            self.total += x * 2

    monkeypatch.setattr(torch, "_foreach_copy_", strict)
    counter = Counter()
    run = compiled(counter)
    for _ in range(3):
        run(torch.ones(3))
    assert counter.total.tolist() == [6.0, 6.0, 6.0]


def test_a_graph_of_constants() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    assert compiled(lambda: torch.arange(4) * 2)().tolist() == [0, 2, 4, 6]


def test_gradients_asked_for_within_the_compiled_function() -> None:
    """As networks have them that give energies and forces: nothing of the backend itself is compiled."""
    import torch

    from tests.helpers.torch_training import compiled

    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def forces(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.clone().requires_grad_()
        energy = net(x)
        return energy.detach(), torch.autograd.grad(energy.sum(), x)[0]

    x = torch.linspace(-1, 1, 6).reshape(3, 2)
    run, wanted = compiled(forces), forces(x)
    for _ in range(2):
        torch.testing.assert_close(run(x), wanted)


def test_what_lies_as_its_place_is_copied_in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch copies a list one by one where one pair of it has other strides or another dtype."""
    import torch

    from lamina.convert.torch import compiled

    lists, copy = [], torch._foreach_copy_
    monkeypatch.setattr(
        torch, "_foreach_copy_", lambda to, given: (lists.append(len(to)), copy(to, given))[1]
    )
    one = torch.randn(4, 3, 1, 1).to(memory_format=torch.channels_last)
    turned = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    places = [compiled._plain(x) for x in (torch.randn(3), one, turned, torch.tensor([7]), torch.tensor(2.5))]
    assert places[1].stride() == (3, 1, 1, 1)
    found = [torch.empty(x.shape, dtype=x.dtype) for x in places]
    compiled._copy_all(places, found)
    assert sorted(lists) == [1, 1, 3]
    for x, y in zip(places, found, strict=True):
        torch.testing.assert_close(y, x)
