"""A PyTorch module as a graph for one mode and one kind of inputs."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def test_inputs_are_tensors_and_the_rest() -> None:
    import torch

    from lamina.convert.torch.exporting import Inputs

    x, y = torch.ones(2), torch.zeros(3)
    inputs, tensors = Inputs.of(([x, 3], None), {"k": {"y": y}, "flag": True})
    assert tensors[0] is x
    assert tensors[1] is y
    assert inputs.arguments([1.0, 2.0]) == (([1.0, 3], None), {"k": {"y": 2.0}, "flag": True})
    assert inputs == Inputs.of(([y, 3], None), {"k": {"y": x}, "flag": True})[0]
    assert inputs != Inputs.of(([x, 4], None), {"k": {"y": y}, "flag": True})[0]


def test_numbers_of_other_types_are_other_inputs() -> None:
    """As arguments of a network 2, 2.0 and True are not the same: what is computed with them has other dtypes."""
    import torch

    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def forward(self, x: Any, by: Any, over: Any = 1.0) -> Any:
            return x * by, x / over

    x = torch.arange(1, 4)
    net = from_torch(Net(), x, 2)
    for by, over in (
        (2, 1.0),
        (2.0, 1.0),
        (1, 1),
        (True, 1),
        (1.0, 1),
        (2, 0.0),
        (2, -0.0),
        (2, float("nan")),
    ):
        for found, wanted in zip(net(x, by, over), Net()(x, by, over), strict=True):
            assert str(found.dtype) == str(wanted.dtype).removeprefix("torch.")
            np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    before = len(net._graphs)
    net(x, 2, float("nan"))
    assert len(net._graphs) == before


def test_a_graph_says_which_shapes_it_takes() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch.exporting import Inputs, export

    graph = export(nn.Linear(3, 2), *Inputs.of((torch.ones(4, 3),), {}))
    assert graph.takes([(7, 3)])
    assert not graph.takes([(7, 4)])
    assert not graph.takes([(1, 3, 3)])


def test_a_size_that_the_network_takes_as_a_number_is_fixed() -> None:
    """`int` of a size that may be any is a number of the graph, which holds for this size alone."""
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch
    from lamina.convert.torch.exporting import Inputs, export

    class Net(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x * int(y.shape[0])

    x, y = torch.ones(4, 3), torch.ones(2)
    graph = export(Net(), *Inputs.of((x, y), {}))
    assert graph.takes([(7, 3), (2,)])
    assert not graph.takes([(7, 3), (5,)])
    assert from_torch(Net(), x, y)(x, torch.ones(5)).numpy()[0, 0] == 5.0


def test_what_the_exporter_said_is_in_the_error() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import TorchConversionError
    from lamina.convert.torch.exporting import Inputs, export

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            raise RuntimeError("never so")

    with pytest.raises(TorchConversionError, match="Net: torch.export makes no graph of it.*\n.*never so"):
        export(Net(), *Inputs.of((torch.ones(4, 3),), {}))


def _masked() -> Any:
    """A network that asks for a number (the longest length), which the shape of its other input tells."""
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Any, lengths: Any) -> Any:
            import torch

            steps = int(lengths.max().item())
            mask = (torch.arange(steps) < lengths[:, None]).view(x.shape[:2])
            return {"y": self.head(x) * mask[..., None], "more": (steps, mask.sum(1), x)}

    return Net()


def test_numbers_that_shapes_tell_and_results_of_the_strict_exporter() -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import TorchConversionError, check, from_torch

    net, x = _masked(), torch.randn(2, 5, 3)
    lengths = torch.tensor([5, 3])
    converted = from_torch(net, x, lengths)
    found = converted(x, lengths)
    assert list(found) == ["y", "more"]
    assert found["more"][0] == 5
    assert found["more"][1].numpy().tolist() == [5, 3]
    assert check(net, converted, x, lengths).gradient < 1e-6
    compiled = lm.jit(converted)(lm.tensor(x.numpy()), lm.tensor(lengths.numpy()))
    torch.testing.assert_close(torch.from_numpy(compiled["y"].numpy()), net(x, lengths)["y"])
    with pytest.raises(TorchConversionError, match="item.*: is 4, and must be 5 for these shapes"):
        converted(x, torch.tensor([4, 3]))


def test_what_the_exporter_prints_of_tries_that_fail_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    import torch

    from lamina.convert.torch.exporting import Inputs, export

    export(_masked(), *Inputs.of((torch.randn(2, 5, 3), torch.tensor([5, 3])), {}))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("strict", [False, True])
def test_what_is_assigned_to_buffers_is_state(strict: bool) -> None:
    """Also where buffers change places, and where what one was is a result."""
    import numpy as np
    import torch
    from torch import nn

    import lamina as lm
    from lamina.convert.torch.carrying import Carried
    from lamina.convert.torch.exporting import Inputs, _exported, _Flat, exporting
    from lamina.convert.torch.known_numbers import KnownNumbers
    from lamina.convert.torch.raising import RaisingBranches

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("now", torch.zeros(3))
            self.register_buffer("before", torch.ones(3))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> Any:
            old = self.now
            self.before, self.now = self.now, x[0]
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            return (x - self.mean, old) if not strict else (x - self.mean, old * 1)

    net, x = nn.Sequential(Net()), torch.randn(4, 3)
    inputs, tensors = Inputs.of((x,), {})
    with exporting():
        branches = RaisingBranches(KnownNumbers(dict(net.named_buffers()).get))
        flat = _Flat(net, inputs, strict, Carried(net), branches)
        graph = _exported(flat, tensors, False)
    state = {f"0.{n}": lm.tensor(b.numpy()) for n, b in net[0].named_buffers()}
    (y, old), changed, written, _ = graph(state, [lm.tensor(x.numpy())])
    wanted, was = net(x)
    np.testing.assert_allclose(y.numpy(), wanted.numpy(), rtol=1e-6)
    assert not written
    np.testing.assert_array_equal(old.numpy(), was.numpy())
    for name, b in net[0].named_buffers():
        np.testing.assert_allclose(changed[f"0.{name}"].numpy(), b.numpy(), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("way", ["data *=", "data =", "data.mul_", "no_grad"])
def test_parameters_that_are_written_in_the_forward_pass(way: str) -> None:
    """Masked convolutions write their weight: its gradient is that of what was written."""
    import torch

    from lamina.convert.torch import check, from_torch

    class Masked(torch.nn.Conv1d):
        def __init__(self) -> None:
            super().__init__(2, 3, 3)
            self.register_buffer("mask", torch.tensor([1.0, 1.0, 0.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if way == "data *=":
                self.weight.data *= self.mask
            elif way == "data =":
                self.weight.data = self.weight.data * self.mask
            elif way == "data.mul_":
                self.weight.data.mul_(self.mask)
            else:
                with torch.no_grad():
                    self.weight *= self.mask
            return super().forward(x)

    net, x = Masked(), torch.randn(2, 2, 5)
    converted = from_torch(net, x, share=False)
    found = check(copy.deepcopy(net), converted, x)
    assert max(found.output, found.gradient) < 1e-5, found
    converted(x)
    masked = converted.state_dict()["weight"].numpy()
    assert (masked[..., 2] == 0).all()
    assert (masked[..., :2] == net.weight.detach().numpy()[..., :2]).all()


def test_data_keeps_its_shape() -> None:
    import torch

    from lamina.convert.torch import TorchConversionError, from_torch

    class Cut(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.bias.data = self.bias.data[:1]
            return super().forward(x)

    with pytest.raises(TorchConversionError, match=r"x\.data of \(3,\) torch.float32 becomes \(1,\)"):
        from_torch(Cut(2, 3), torch.zeros(1, 2), fullgraph=True)


def test_a_branch_on_numbers_is_named_with_its_line() -> None:
    import torch
    from torch import nn

    from lamina import Spec, float32
    from lamina.convert.torch import TorchConversionError, from_torch
    from lamina.graph import trace

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            if not torch.isfinite(x).all():
                x = x.clamp(-1, 1)
            return x

    with pytest.raises(
        TorchConversionError, match=r"test_exporting.py:\d+: if not torch.isfinite\(x\).all\(\):\)"
    ):
        trace(from_torch(Net()), Spec((2, 3), float32))  # for no call, whose numbers would tell


def test_a_module_that_is_moved_to_where_it_is_stays() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.classifier = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            self.classifier = self.classifier.to(x.dtype)
            return self.classifier(x)

    net, x = Router(), torch.randn(4, 3)
    before = nn.Module._apply
    assert check(net, from_torch(net, x, share=False), x).output < 1e-6
    assert nn.Module._apply is before
    assert net.double().classifier.weight.dtype == torch.float64


@pytest.mark.parametrize(
    "text",
    [
        "x[:, i[0, 1]] * 1", "torch.stack([x[b, i[b, 0] - 1] for b in range(2)])", "x[:, i[:, 1], :, i[0, 0]] * 1",
        "x[i.max(), ..., None, -i[0, 1]] * 1", "written(x, i)",
    ],
)  # fmt: skip
def test_elements_of_tensors_are_indexes(text: str) -> None:
    """Their numbers are not known when the graph is made: others give what PyTorch does, compiled too."""
    import numpy as np
    import torch
    from torch import nn

    import lamina as lm

    def written(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[:, i[0, 1]] = 0.5
        y[i[0, 0], ..., -i[1, 1]] = x[1, ..., 0]
        y[i[:, 0], i[0, 1]] += 1.0
        return y

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(6))

        def forward(self, x: Any, i: Any) -> Any:
            return eval(text, {"x": x * self.w, "i": i, "torch": torch, "written": written})

    torch.manual_seed(0)
    x, i, net = torch.randn(3, 4, 5, 6), torch.tensor([[0, 1], [2, 2]]), Net()
    made = lm.convert.from_torch(net, x, i)
    for call in (made, lm.jit(lambda x, i: made(x, i))):
        for j in (i, (i + 1) % 3):
            found = call(lm.tensor(x.numpy()), lm.tensor(j.numpy()))
            np.testing.assert_array_equal(found.numpy(), net(x, j).detach().numpy())
    assert lm.convert.check(net, made, x, (i + 1) % 3).gradient < 1e-6


def test_parameters_and_buffers_that_forward_finds_in_a_list_are_the_networks() -> None:
    """They are trained, and buffers have their current values."""
    import torch

    import lamina as lm
    from lamina.convert.torch import check, from_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 3))
            self.register_buffer("scale", torch.ones(3))
            self.register_buffer("calls", torch.zeros(2))
            self.own = {"weight": self.weight, "rest": [self.scale, self.calls, torch.ones(3)]}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale, calls, offset = self.own["rest"]
            calls.add_(1)
            return x @ self.own["weight"] * scale + offset

    torch.manual_seed(0)
    net, x = Net(), torch.randn(2, 4)
    converted = from_torch(net, x, share=False)
    found = check(net, converted, x)
    assert found.output < 1e-6, found
    assert found.gradient < 1e-6, found
    converted.scale.copy_(np.full(3, 2, np.float32))
    np.testing.assert_allclose(
        converted(lm.tensor(x.numpy())).numpy(), (x @ net.weight * 2 + 1).detach().numpy(), atol=1e-6
    )
    assert converted.calls.tolist() == [1, 1]
