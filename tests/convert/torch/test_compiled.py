"""Forward and backward passes in contexts: several under way, kept graphs, parameters that move, refusals."""

import copy
import io
from collections.abc import Callable
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


def test_a_head_that_no_loss_was_taken_of_has_no_gradient() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    class Heads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.a, self.b = (torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = self.trunk(x).relu()
            return self.a(x), self.b(x)

    model = Heads()
    twin, x = copy.deepcopy(model), torch.randn(3, 4)
    seen: list[torch.Tensor] = []
    twin.b.bias.register_hook(seen.append)
    run = compiled(twin)
    for which in (0, 1, 0):
        for net, call in ((model, model), (twin, run)):
            net.zero_grad()
            call(x)[which].square().sum().backward()
        assert (twin.a.weight.grad is None, twin.b.weight.grad is None) == (which == 1, which == 0)
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            if p.grad is not None:
                torch.testing.assert_close(q.grad, p.grad, atol=1e-5, rtol=1e-4)
    assert all(isinstance(g, torch.Tensor) for g in seen)  # a hook is never called with None


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


@pytest.mark.parametrize(
    "copied",
    [lambda x: x.clone(), lambda x: x.t().contiguous().t(), lambda x: x * 1, lambda x: x.new_tensor(x)],
    ids=["clone", "contiguous", "times one", "new_tensor"],
)
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
def test_a_copy_of_a_buffer_is_what_it_was_before_the_buffer_was_overwritten(
    copied: Callable[[Any], Any],
) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    class Queue(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 4)
            self.register_buffer("queue", torch.randn(4, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) @ copied(self.queue)  # type: ignore[no-any-return]

    model, x = Queue(), torch.randn(3, 6)
    run, queue, weight = compiled(model), model.queue.clone(), model.layer.weight
    wanted = torch.autograd.grad(model(x).square().sum(), weight)[0]
    for _ in range(2):
        model.queue.copy_(queue)
        loss = run(x).square().sum()
        model.queue[:, :3] = 0
        torch.testing.assert_close(torch.autograd.grad(loss, weight)[0], wanted)


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


def _chain(layers: int) -> Any:
    """Layers with batch norm, whose computing is nothing: four parameters and three buffers each."""
    from torch import nn

    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(4, 4), nn.BatchNorm1d(4))])


def _operators(layers: int) -> dict[str, int]:
    """How often a step calls each of PyTorch's operators, its optimizer aside."""
    import torch

    from tests.helpers.torch_training import compiled

    model, x = _chain(layers), torch.randn(4, 4)
    run = compiled(model)
    for _ in range(3):
        model.zero_grad()
        run(x).sum().backward()
    model.zero_grad()
    with torch.autograd.profiler.profile() as profile:
        run(x).sum().backward()
    return {e.key: e.count for e in profile.key_averages() if e.key.startswith("aten::")}


def test_a_step_calls_one_operator_for_each_parameter_beside_autograds_own() -> None:
    """Nothing is copied, allocated or read out for each parameter or buffer."""
    few, many = _operators(3), _operators(13)
    parameters = 4 * 10
    grown = {k: n - few.get(k, 0) for k, n in many.items() if n != few.get(k, 0)}
    assert grown == {"aten::detach": 2 * parameters}  # autograd itself detaches what becomes a gradient
    assert sum(few.values()) - few["aten::detach"] < 30


def test_gradients_become_the_parameters_as_they_are() -> None:
    """Small ones lie in one piece of memory, large ones and those of other strides each in their own."""
    import torch
    from torch import nn

    from tests.helpers.torch_training import compiled

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 6 * 6, 300))
    model[0].to(memory_format=torch.channels_last)
    twin, x = copy.deepcopy(model), torch.randn(2, 3, 8, 8)
    run = compiled(model)
    seen = []
    for step in range(3):
        model.zero_grad()
        twin.zero_grad()
        y = run(x)
        with torch.autograd.profiler.profile() as profile:
            y.square().sum().backward()
        assert step == 0 or "aten::clone" not in {e.key for e in profile.key_averages()}
        twin(x).square().sum().backward()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            assert p.grad.stride() == p.stride()
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-3)
        where = {n: p.grad.untyped_storage().data_ptr() for n, p in model.named_parameters()}
        small = {where[n] for n in ("0.bias", "1.weight", "1.bias", "3.bias")}
        assert len(small) == 1
        assert len({where["0.weight"], where["3.weight"], *small}) == 3
        seen.append(small)
    assert seen[1] == seen[2]  # what was set to None is used again


def test_gradients_that_are_held_are_not_overwritten() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    model = _chain(2)
    twin, run, held, wanted = copy.deepcopy(model), compiled(model), [], []
    for step in range(6):
        x = torch.randn(5, 4)
        for net, call in ((model, run), (twin, twin)):
            net.zero_grad(set_to_none=step % 3 == 2)  # zeros in place, else
            for scale in (1, 2):
                call(x * scale).pow(3).sum().backward()
        held.append([p.grad for p in model.parameters()])
        wanted.append([p.grad.clone() for p in twin.parameters()])
        if step % 3 != 1:
            held.pop()
            wanted.pop()
        else:
            for p in model.parameters():
                p.grad = None
    for got, right in zip(held, wanted, strict=True):
        for g, h in zip(got, right, strict=True):
            torch.testing.assert_close(g, h, rtol=1e-3, atol=1e-3)


def test_running_statistics_are_written_where_they_lie() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    model = _chain(2)
    twin, run = copy.deepcopy(model), compiled(model)
    run(torch.randn(4, 4))
    twin.load_state_dict(model.state_dict())
    places = [b.data_ptr() for b in model.buffers()]
    x, other = torch.randn(4, 4), torch.randn(6, 4)[:4]
    versions = [b._version for b in model.buffers()]
    first = run(x).pow(3).sum()
    assert [b._version for b in model.buffers()] == [v + 1 for v in versions]
    second = run(other).pow(3).sum()
    found = []
    for y in (first, second, first, second):  # the last two run forward passes again, which update nothing
        model.zero_grad()
        y.backward(retain_graph=True)
        found.append([p.grad.clone() for p in model.parameters()])
    for k, y in enumerate((twin(x), twin(other))):
        twin.zero_grad()
        y.pow(3).sum().backward()
        wanted = [p.grad for p in twin.parameters()]
        torch.testing.assert_close(found[k], wanted, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found[k + 2], wanted, rtol=1e-3, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(run(x), twin(x), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))
    assert [b.data_ptr() for b in model.buffers()] == places


def test_running_statistics_that_lie_elsewhere_in_each_call() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    model = _chain(2)
    twin, run = copy.deepcopy(model), compiled(model)
    for step in range(8):
        for b in model.buffers():
            b.data = b.data.clone()
        x = torch.randn(4, 4)
        torch.testing.assert_close(run(x), twin(x), rtol=1e-3, atol=1e-4)
        assert model[1].num_batches_tracked == step + 1
        torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))


def test_checkpoints_around_compiled_layers_whose_parameters_move() -> None:
    """Layers of one program: it begins to copy parameters between a forward pass and its recomputation, which has to
    save as many tensors.
    """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    from lamina.convert.torch.compiled import MOVES
    from tests.helpers.torch_training import compiled

    layers = [nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(MOVES)]
    x, wanted = torch.randn(4, 6, requires_grad=True), []
    for made in (layers, [compiled(layer) for layer in layers]):
        for _ in range(2):
            y = x
            for layer in made:
                y = y + checkpoint(layer, y, use_reentrant=False)
            found = torch.autograd.grad(
                y.square().sum(), [x, *(p for layer in layers for p in layer.parameters())]
            )
            wanted = wanted or found
            torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-4)
