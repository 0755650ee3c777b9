"""Modules that stay PyTorch's inside a converted network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def network() -> Any:
    """Convolution, a block with a norm and writes in place, a head."""
    from torch import nn

    block = nn.Sequential(nn.ReLU(inplace=True), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3))
    return nn.Sequential(nn.Conv2d(2, 4, 3), block, nn.Flatten(), nn.Linear(4 * 4, 3))


def is_block(module: Any) -> bool:
    from torch import nn

    return isinstance(module, nn.Sequential) and len(module) == 3


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_results_gradients_and_state_are_those_of_torch(mode: str) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    net, x = network().train(mode == "train"), torch.randn(5, 2, 6, 6)
    converted = from_torch(net, x, share=False, exclude=is_block)
    assert converted.report.stays == {"1": (1, "Sequential")}
    assert "1 (Sequential) stays PyTorch's" in str(converted.report)
    assert not any("batch_norm" in name for name in converted.report.calls)
    assert list(converted.state_dict()) == list(net.state_dict())
    found = check(net, converted, x)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found
    assert max(found.state.values()) < 1e-5, found


def test_a_compiled_step_trains_what_stays_too() -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch, to_torch

    torch.manual_seed(0)
    net, x, labels = network().train(), torch.randn(5, 2, 6, 6), torch.tensor([0, 1, 2, 0, 1])
    converted = from_torch(net, x, share=False, exclude=is_block)
    step = lm.train_step(converted, lm.nn.CrossEntropyLoss(), lm.optim.SGD(lr=0.1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        mine = float(step(x.numpy(), labels.numpy()))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        assert mine == pytest.approx(loss.item(), rel=1e-4)
    back = to_torch(converted).state_dict()
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(back[name].numpy(), value.numpy(), rtol=1e-3, atol=1e-5)


def test_what_it_drops_the_gradient_drops_too() -> None:
    import torch
    from torch import nn

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(200))
            self.drop = nn.Dropout(0.5)

        def forward(self, x: Any) -> Any:
            return self.drop(x * self.scale), self.drop(x)

    net, x = Net().train(), torch.ones(2, 200)
    converted = from_torch(net, x, exclude=lambda m: isinstance(m, nn.Dropout))
    before = torch.get_rng_state()

    def total(net: Any) -> Any:
        y, z = net(lm.tensor(x.numpy()))
        return y.sum(), (y, z)

    (_, (y, z)), grads = lm.value_and_grad(total, has_aux=True)(converted)
    np.testing.assert_array_equal(grads["scale"].numpy(), y.numpy().sum(0))
    assert (y.numpy() != z.numpy()).any()
    assert set(np.unique(y.numpy())) == {0.0, 2.0}
    assert torch.equal(before, torch.get_rng_state())
    net.eval()
    np.testing.assert_array_equal(converted.eval()(x)[0].numpy(), x.numpy())


def test_lists_stay_by_their_modules_and_inputs_and_results_may_be_nested() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, pair: Any, scale: float = 1.0) -> Any:
            y = (
                (h := self.a(pair["x"])) * torch.special.airy_ai(h.detach())[0] * scale
            )  # what has no counterpart
            return {"y": y, "more": (pair["ids"] + 1, None, 7)}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pairs = nn.ModuleList([Pair(), Pair()])

        def forward(self, x: Any, ids: Any) -> Any:
            for pair in self.pairs:
                found = pair({"x": x, "ids": ids}, scale=0.5)
                x, ids = found["y"], found["more"][0] + found["more"][2]
            return x, ids

    net, x, ids = Net(), torch.randn(4, 3), torch.arange(4)
    converted = from_torch(net, x, ids, share=False, exclude=lambda m: isinstance(m, nn.ModuleList))
    assert converted.report.stays == {"pairs.0": (1, "Pair"), "pairs.1": (1, "Pair")}
    assert converted(x, ids)[1].numpy().tolist() == [16, 17, 18, 19]
    found = check(net, converted, x, ids)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found
    assert converted(x[:2], ids[:2])[0].shape == (2, 3)


def test_errors_say_what_to_do() -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    net, x = network(), torch.randn(5, 2, 6, 6)
    with pytest.raises(
        ValueError, match="exclude is true for the whole network, Sequential: nothing is left"
    ):
        from_torch(net, x, exclude=lambda m: True)
    with pytest.raises(TypeError, match=r"exclude is a function of a module .*, got \['block'\]"):
        from_torch(net, x, exclude=["block"])
    converted = from_torch(net, x, exclude=is_block)
    with pytest.raises(TypeError, match="torch_module_grad"):
        lm.grad(lambda v: lm.grad(lambda w: converted(w).sum())(v).sum())(lm.tensor(x.numpy()))
    assert "forward" not in vars(net[1])


def test_functions_with_a_gradient_of_their_own_stay_and_checkpoints_do_not() -> None:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    import lamina as lm
    from lamina.convert.torch import TorchConversionError, explain, from_torch

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.sign()

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0] * 2

    class Given(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, function: Any, x: Any) -> Any:
            return function(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(5, 5)

        def forward(self, x: Any) -> Any:
            return Double.apply(checkpoint(self.a, x, use_reentrant=True))

    net, x = Net(), torch.randn(4, 5)
    assert explain(net, x).stays == {"Double": (1, "autograd.Function")}
    grads = lm.grad(lambda network: network(lm.tensor(x.numpy())).sum())(from_torch(net, x, share=False))
    net(x.clone().requires_grad_()).sum().backward()  # reentrant checkpoints know no other way
    for name, p in net.named_parameters():
        np.testing.assert_allclose(grads[name].numpy(), p.grad.numpy(), rtol=1e-5)
    net.register_forward_hook(lambda module, inputs, y: Given.apply(module.a, y))
    with pytest.raises(
        TorchConversionError, match="Given calls a function that it is given.*: exclude the module"
    ):
        from_torch(net, x, fullgraph=True)
    assert torch.equal(Double.apply(x), x.sign())


def test_functions_with_a_gradient_of_their_own_are_written_to_onnx_by_their_forward_pass() -> None:
    import torch
    from torch import nn

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, steps: float) -> Any:
            return torch.round(x * steps) / steps

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads[0], None

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(3, 4)

        def forward(self, x: Any) -> Any:
            return Rounded.apply(self.line(x), 4.0)

    net, x = Net().eval(), torch.randn(2, 3)
    model = lm.convert.to_onnx(from_torch(net, x, share=False), x.numpy())
    np.testing.assert_allclose(lm.convert.from_onnx(model)(x.numpy()).numpy(), net(x).detach().numpy())
    left = from_torch(nn.Sequential(net, nn.Linear(4, 2)).eval(), x, exclude=lambda m: isinstance(m, Net))
    with pytest.raises(ValueError, match="only PyTorch can compute it"):
        lm.convert.to_onnx(left, x.numpy())


def assigning() -> tuple[Any, Any, Any]:
    """A network whose targets are assigned by NumPy, as detectors do, with a loss of the pairs of a batch, which it
    selects by labels; what stays of it, and its inputs.
    """
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Matcher(nn.Module):
        @torch.no_grad()
        def forward(self, scores: Any, labels: Any) -> Any:
            costs = scores.detach().cpu().numpy()
            return [(torch.as_tensor(np.argsort(c[:, 0])[:2]), n) for c, n in zip(costs, labels, strict=True)]

    class Pairs(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            first, second = torch.where(y[:, None] == y)
            return F.pairwise_distance(x[first], x[second]).mean() if len(first) else x.sum() * 0

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores, self.matcher, self.pairs = nn.Linear(3, 4), Matcher(), Pairs()

        def forward(self, x: Any, labels: Any) -> Any:
            scores, loss = self.scores(x), 0.0
            for row, (places, n) in zip(scores, self.matcher(scores, labels), strict=True):
                loss = loss + F.cross_entropy(row[places], n)
            return loss + self.pairs(scores.mean(1), labels[:, 0])

    x, labels = torch.randn(3, 5, 3), torch.tensor([[1, 0], [2, 3], [1, 1]])
    return Net(), lambda m: isinstance(m, (Matcher, Pairs)), (x, labels)


def test_modules_that_stay_may_read_values_if_their_results_have_fixed_shapes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    import copy

    import torch

    import lamina as lm
    from lamina.convert.torch import check, from_torch

    torch.manual_seed(0)
    net, stays, inputs = assigning()
    converted = from_torch(net, *inputs, share=False, exclude=stays)
    assert not [r for r in caplog.records if r.levelname == "ERROR"]
    found = check(net, converted, *inputs)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-5, found
    step = lm.train_step(converted, lambda y, _: y, lm.optim.SGD(lr=0.1))
    given, unused = tuple(lm.tensor(x.numpy()) for x in inputs), lm.zeros(3)
    twin = copy.deepcopy(net)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = twin(*inputs)
        loss.backward()
        optimizer.step()
        assert abs(float(step(given, unused)) - loss.item()) < 1e-4


def test_layers_that_are_dropped_at_random_can_stay() -> None:
    import numpy as np
    import torch
    from torch import nn

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Dropped(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if torch.rand(1) < 0.5 else x * 0

    net, x = nn.Sequential(Dropped(), nn.Identity()), torch.ones(2, 3)
    converted = from_torch(net, x, exclude=lambda m: isinstance(m, Dropped))
    forward = lm.jit(converted)
    given = lm.tensor(np.ones((2, 3), np.float32))
    assert {float(forward(given).sum()) for _ in range(30)} == {0.0, 12.0}
    gradients = lm.grad(lambda v: converted(v).sum())
    assert {float(gradients(given).sum()) for _ in range(30)} == {0.0, 12.0}


def test_modules_that_stay_return_what_the_graph_knows() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import TorchConversionError, from_torch

    class Returns(nn.Module):
        def __init__(self, result: Any) -> None:
            super().__init__()
            self.result = result

        def forward(self, x: Any) -> Any:
            x.numpy()  # PyTorch's exporter has no values
            return self.result(x)

    def converted(result: Any) -> Any:
        net = nn.Sequential(Returns(result), nn.Identity())
        return from_torch(net, torch.rand(4), exclude=lambda m: isinstance(m, Returns), fullgraph=True)

    with pytest.raises(TorchConversionError, match=r"0 \(Returns\) returns NumPy's arrays"):
        converted(lambda x: x.numpy())
    for result in (lambda x: x[x > -1], lambda x: (x, bool(x[0] > -1))):
        net = converted(result)
        net(torch.rand(4))
        with pytest.raises(TorchConversionError, match=r"0 \(Returns\) stays PyTorch's and returned"):
            net(torch.tensor([-2.0, 1, 1, 1]))

    def writes(x: Any) -> Any:
        return x.mul_(2) if x[0] < 0 else x + 1

    with pytest.raises(TorchConversionError, match="wrote an input at some values only"):
        converted(writes)(torch.tensor([-2.0, 1, 1, 1]))
