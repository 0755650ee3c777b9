"""PyTorch modules as Lamina modules."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099", "F100", "B023", "B027")]


def small() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 2)
    )


def images(n: int) -> Any:
    import torch

    return torch.randn(n, 3, 6, 6, generator=torch.Generator().manual_seed(n))


def test_parameters_are_shared_by_reference_or_copied() -> None:
    import torch

    from lamina.convert.torch import from_torch

    net = small()
    shared, copied = from_torch(net), from_torch(net, share=False)
    with torch.no_grad():
        net[0].weight.fill_(2.0)
    assert (shared.get_parameter("0.weight").numpy() == 2).all()
    assert not (copied.get_parameter("0.weight").numpy() == 2).any()
    shared.get_parameter("4.bias").copy_(np.ones(2, np.float32))
    assert net[4].bias.tolist() == [1, 1]


@pytest.mark.parametrize("form", ["one", "tuple", "named", "beside"])
def test_an_example_is_one_input_or_a_tuple_or_named(form: str) -> None:
    import torch

    from lamina.convert.torch import from_torch

    class Scaled(torch.nn.Module):
        def forward(self, x: Any, by: Any = None) -> Any:
            return x.flatten(1).sum(1) * (2.0 if by is None else by)

    x, by = images(2), torch.tensor([1.0, 3.0])
    given: dict[str, tuple[tuple[Any, ...], Any]] = {
        "one": ((), x), "tuple": ((), (x, by)), "named": ((), {"x": x, "by": by}), "beside": ((x,), {"by": by})
    }  # fmt: skip
    args, example = given[form]
    net = Scaled()
    converted = from_torch(net, *args, example=example)
    assert len(converted._graphs) == 1
    called, named = (
        (args, example) if form in ("named", "beside") else (example if form == "tuple" else (x,), {})
    )
    np.testing.assert_allclose(converted(*called, **named).numpy(), net(*called, **named).numpy(), rtol=1e-5)
    assert len(converted._graphs) == 1
    with pytest.raises(TypeError, match="from_torch: 1 positional inputs and example=Tensor: pass one"):
        from_torch(net, x, example=x)


def test_other_batches_need_no_other_graph_and_other_sizes_get_theirs() -> None:
    from torch import nn

    from lamina.convert.torch import from_torch
    from tests.helpers.torch_functions import close

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).eval()
    converted = from_torch(net, images(2))
    for n in (2, 5, 3):
        close(converted(images(n)), net(images(n)))
    assert len(converted._graphs) == 1
    close(converted(images(2)[..., :5]), net(images(2)[..., :5]))
    assert len(converted._graphs) == 2


@pytest.mark.parametrize("way", ["copy", "pickle"])
def test_copies_compute_the_same_on_their_own_weights(way: str) -> None:
    import copy
    import pickle

    from lamina.convert.torch import from_torch
    from tests.helpers.torch_functions import close

    net = small().eval()
    converted = from_torch(net, images(2))
    made = copy.deepcopy(converted) if way == "copy" else pickle.loads(pickle.dumps(converted))
    close(made(images(2)), net(images(2)))
    made.get_parameter("4.bias").fill_(7.0)
    assert not (converted.get_parameter("4.bias").numpy() == 7).any()
    close(converted(images(3)), net(images(3)))


def test_threads_share_a_network() -> None:
    from concurrent.futures import ThreadPoolExecutor

    from lamina.convert.torch import from_torch

    converted = from_torch(small().eval())  # its graphs are made by whoever asks first
    x = images(2).numpy()
    with ThreadPoolExecutor(8) as pool:
        found = [f.result().numpy() for f in [pool.submit(converted, x) for _ in range(64)]]
    assert all(np.array_equal(y, found[0]) for y in found)


def test_each_mode_has_its_graph() -> None:
    from lamina.convert.torch import from_torch
    from tests.helpers.torch_functions import close

    net = small()
    converted = from_torch(net, images(4), share=False)
    for mode in (True, False):
        close(converted.train(mode)(images(4)), net.train(mode)(images(4)))
    for name, buffer in net.named_buffers():
        close(converted.get_buffer(name), buffer)


def test_parts_have_modes_of_their_own() -> None:
    from lamina.convert.torch import from_torch
    from tests.helpers.torch_functions import close

    net = small().train()
    converted = from_torch(net, share=False)
    net[1].eval()
    converted.get_submodule("1").eval()
    close(converted(images(4)), net(images(4)))
    assert net.training


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_trains_in_a_compiled_step(precision: str) -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    torch.manual_seed(0)
    net = small().train()
    x, t = images(8), np.arange(8) % 2
    converted = from_torch(net, x, share=False)
    step = lm.train_step(converted, lm.nn.CrossEntropyLoss(), lm.optim.SGD(lr=0.1), precision=precision)
    losses = [step(x.numpy(), t).item() for _ in range(5)]
    optimizer, theirs = torch.optim.SGD(net.parameters(), 0.1), []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(net(x), torch.tensor(t))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    np.testing.assert_allclose(losses, theirs, rtol=1e-4 if precision == "fp32" else 0.1)


def test_it_serves_without_gradients() -> None:
    import lamina as lm
    from lamina.convert.torch import from_torch
    from tests.helpers.torch_functions import close

    net = small().eval()
    predictor = lm.infer.Predictor(from_torch(net, images(2)), device="cpu")
    close(predictor(images(4).numpy()), net(images(4)))


def test_what_has_no_counterpart_is_named_with_its_line() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import TorchConversionError, from_torch

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.special.airy_ai(x.detach())

    with pytest.raises(TorchConversionError, match=r"(?s)special_airy_ai.*test_converted.py"):
        from_torch(Net(), torch.randn(3, 3))
    with pytest.raises(TypeError, match=r"takes a torch.nn.Module, got int"):
        from_torch(3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_modules_are_refused_with_what_to_give() -> None:
    import torch

    from lamina.convert.torch import TorchConversionError, from_torch

    net, x = torch.nn.Linear(3, 2), torch.ones(1, 3)
    for made in (torch.jit.script(net), torch.jit.trace(net, x)):
        with pytest.raises(TorchConversionError, match=r"Linear is scripted or traced .* give the module"):
            from_torch(made, x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_parts_are_refused_by_their_path() -> None:
    import torch

    from lamina.convert import TorchConversionError, from_torch

    net = torch.nn.ModuleDict({"body": torch.nn.Sequential(torch.jit.script(small()), torch.nn.ReLU())})
    with pytest.raises(
        TorchConversionError, match=r"the part 'body.0' of ModuleDict: Sequential is scripted"
    ):
        from_torch(net)


@pytest.mark.parametrize("kind", ["buffer", "parameter", "module"])
def test_names_that_this_class_has_for_itself(kind: str) -> None:
    """What PyTorch's module registers as `state`, `source`, `graph`, … is that, and the class keeps its own."""
    import torch
    from torch import nn

    from lamina.convert import from_torch, to_torch
    from lamina.convert.torch import check

    names = sorted({*dir(from_torch(small())), *vars(from_torch(small()))} - {*dir(nn.Module())})
    assert {"state", "graph", "report", "source", "_training", "computes_in_master"} <= set(names)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            for i, name in enumerate(names):
                value = torch.full((3,), 1 + i / 100)
                if kind == "buffer":
                    self.register_buffer(name, value)
                elif kind == "parameter":
                    self.register_parameter(name, nn.Parameter(value))
                else:
                    self.add_module(name, nn.PReLU(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.first(x)
            for name in names:
                own = getattr(self, name)
                if kind == "buffer" and self.training:
                    setattr(self, name, own * 0.9 + 0.1 * x.detach().mean(0))
                x = own(x) if kind == "module" else x * own
            return x

    torch.manual_seed(0)
    for net in (Net(), nn.Sequential(Net(), nn.Linear(3, 2))):
        x = torch.randn(5, 3)
        for training in (False, True):
            converted = from_torch(net.train(training), x, share=False)
            found = check(net, converted, x)
            assert max(found.output, found.gradient, *found.state.values(), 0.0) < 1e-5, (training, found)
            assert list(converted.state_dict()) == list(net.state_dict())
            assert "Linear" in str(converted)
            back = to_torch(converted, x)
            torch.testing.assert_close(back(x), net(x))


def test_what_a_network_writes_over_its_parameters_is_kept() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    class Rescaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2, bias=False)

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                self.layer.weight.div_(2.0)
            return self.layer(x)

    net, x = Rescaled().eval(), torch.randn(4, 3)
    converted = from_torch(net, x, share=False)
    first = net.layer.weight.detach().clone()
    for times in (2, 4):
        np.testing.assert_allclose(
            converted(x).numpy(), (x @ (first / times).T).numpy(), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_array_equal(converted.layer.weight.numpy(), (first / times).numpy())


def test_a_dataclass_goes_in_and_comes_out() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    @dataclass
    class Batch:
        x: Any
        scale: float
        mask: Any = None

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, batch: Any) -> Any:
            return Batch(self.layer(batch.x * batch.mask), batch.scale, {"mean": batch.x.mean()})

    net, inputs = Net(), [Batch(torch.randn(4, 3), 2.0, torch.ones(3) * i) for i in (1, 2)]
    converted = from_torch(net, inputs[0], share=False)
    for given in inputs:
        found, wanted = converted(given), net(given)
        assert (type(found), found.scale) == (Batch, 2.0)
        np.testing.assert_allclose(found.x.numpy(), wanted.x.detach().numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.mask["mean"].numpy(), wanted.mask["mean"].numpy(), rtol=1e-5)
    parity = check(net, converted, inputs[1])
    assert len(parity.outputs) == 2
    assert parity.gradient < 1e-4


def test_a_result_of_a_dict_class_keeps_class_and_attributes() -> None:
    """Results of transformers are dicts whose entries are attributes: `out.loss`, in steps too."""
    import torch
    from torch import nn

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Output(OrderedDict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            super().__setitem__(key, value)
            super().__setattr__(key, value)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            y = self.layer(x)
            return Output(loss=(y**2).mean(), logits=y)

    source, x = Net(), torch.randn(4, 3)
    net, wanted = from_torch(source, share=False), source(x)
    for out in (net(x), lm.jit(net)(x.numpy())):
        assert (type(out), list(out)) == (Output, ["loss", "logits"])
        assert out.logits is out["logits"]
        np.testing.assert_allclose(out.logits.numpy(), wanted.logits.detach().numpy(), rtol=1e-5, atol=1e-6)
    slopes = lm.grad(lambda net: net(x).loss)(net)
    wanted.loss.backward()
    np.testing.assert_allclose(
        slopes["layer.weight"].numpy(), source.layer.weight.grad.numpy(), rtol=1e-5, atol=1e-6
    )


def test_what_a_network_writes_into_its_inputs_is_there() -> None:
    """A cache of keys that is handed in: in PyTorch's memory and in Lamina's, call by call."""
    import torch
    from torch import nn

    import lamina as lm

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key = nn.Linear(4, 4)

        def forward(self, x: Any, cache: Any, place: Any) -> Any:
            cache[:, place] = self.key(x).detach()
            return torch.softmax((cache * x[:, None]).sum(-1), -1)

    torch.manual_seed(0)
    net, x = Attention(), torch.randn(2, 4)
    theirs, mine, own = torch.zeros(2, 3, 4), torch.zeros(2, 3, 4), lm.zeros((2, 3, 4))
    made = lm.convert.from_torch(net, x, torch.zeros(2, 3, 4), torch.tensor(0))
    for step in range(3):
        wanted = net(x + step, theirs, torch.tensor(step)).detach().numpy()
        found = made(x + step, mine, torch.tensor(step)).numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        found = made(lm.tensor((x + step).numpy()), own, lm.tensor(np.array(step))).numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), atol=1e-6)
    np.testing.assert_allclose(own.numpy(), theirs.numpy(), atol=1e-6)


def test_a_network_that_writes_its_input_is_compared_on_the_same() -> None:
    import torch
    from torch import nn

    from lamina.convert import check, from_torch

    class Doubles(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mul_(2) + 1

    x = torch.ones(2, 3)
    assert check(Doubles(), from_torch(Doubles(), torch.ones(2, 3)), x).output == 0
    assert x.tolist() == [[1.0] * 3] * 2


def test_inputs_that_are_written_lie_apart() -> None:
    """What is written into one is not seen in another, as with PyTorch: refused, before anything has changed."""
    import torch

    from lamina.convert.torch import TorchConversionError, from_torch

    class Net(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x.mul_(2) + y

    x = torch.arange(12.0).reshape(3, 4)
    net = from_torch(Net(), x, x.clone())
    for pair in ((x, x), (x, x[1]), (x[:, 1:], x[:, :3])):
        with pytest.raises(TorchConversionError, match="input 0 .* shares memory with its input 1"):
            net(*pair)
    assert torch.equal(x, torch.arange(12.0).reshape(3, 4))
    own = x.clone()
    found = net(own[:, :2], own[:, 2:])  # the same memory, no element in common
    np.testing.assert_array_equal(found.numpy(), (2 * x[:, :2] + x[:, 2:]).numpy())
    assert torch.equal(own[:, :2], 2 * x[:, :2])
    read = from_torch(torch.nn.Bilinear(4, 4, 2), x, x)
    assert read(x, x).shape == (3, 2)


def test_tensors_around_a_compiled_function_that_a_network_writes() -> None:
    """A cache that the function does not take as an argument: each call of the program writes it."""
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def forward(self, cache: Any, x: Any) -> Any:
            return cache.add_(x).sum() + x

    net, cache, step = from_torch(Net()), lm.zeros(3), lm.ones(3)
    run = lm.jit(lambda x: net(cache, step) + x)
    assert [run(lm.zeros(())).tolist() for _ in range(2)] == [[4.0] * 3, [7.0] * 3]
    assert cache.tolist() == [2.0] * 3


def test_modules_of_lamina_are_not_put_in_place_of_parts() -> None:
    """The network's graphs would not call them."""
    from torch import nn

    import lamina as lm
    from lamina.convert.torch import from_torch

    net = from_torch(nn.Sequential(OrderedDict(body=nn.Linear(3, 3), act=nn.ReLU())))
    for name in ("act", "body", "other"):
        with pytest.raises(
            TypeError, match=rf"Sequential\.{name} cannot become a GELU.*replace {name} in the PyTorch"
        ):
            setattr(net, name, lm.nn.GELU())
    assert net.body.weight.shape == (3, 3)
