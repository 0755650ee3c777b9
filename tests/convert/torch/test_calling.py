"""A network's own code, run call by call, beside PyTorch."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import convert, optim
from tests.convert.torch.test_devices import Body as Net
from tests.convert.torch.test_devices import Rounded

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def called(net: Any, *args: Any, stays: tuple[str, ...] = (), **kwargs: Any) -> Any:
    """What the code of a network gives."""
    from lamina.convert.torch.calling import run_code
    from lamina.convert.torch.converted import _State
    from lamina.convert.torch.exporting import Inputs
    from lamina.tensors import as_tensor

    inputs, tensors = Inputs.of(args, kwargs)
    operands = [as_tensor(x.detach()) for x in tensors]
    return run_code(net, stays, inputs, _State(convert.from_torch(net, share=False)), operands)


def close(found: Any, wanted: Any, most: float = 2e-6) -> None:
    """Equal within rounding, in all nested parts."""
    if isinstance(wanted, torch.Tensor):
        y, x = wanted.detach().numpy(), found.numpy()
        if np.iscomplexobj(y):
            y = np.stack([y.real, y.imag], -1)
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        assert np.abs(x.astype(np.float64) - y).max(initial=0) <= most * max(1, np.abs(y).max(initial=0))
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            close(found[name], wanted[name], most)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for x, y in zip(found, wanted, strict=True):
            close(x, y, most)
    else:
        assert found == wanted


X = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))


def loops(net: Any, x: Any) -> Any:
    y = net.a(x)
    steps = 0
    while y.detach().norm().item() > 1 and steps < 20:
        y, steps = torch.tanh(net.a(y)) * 0.5, steps + 1
    return y, steps


def rows(net: Any, x: Any) -> Any:
    found = [row[1:3] * 2 if row.sum() > 0 else -row[:2] for row in net.a(x)]
    z = torch.stack(found)
    z[0] += 1
    z[:, 1].mul_(3)
    return z, z.T @ z, x.split(2, 1)[1], 1 - x, 2 / (x.abs() + 1), x[:, [0, 2]], x[x[:, 0] > 0]


def results(net: Any, x: Any) -> Any:
    values, places = x.max(1)
    ordered = x.sort(dim=0, descending=True)
    whole, inverse, counts = torch.unique((x * 2).round(), return_inverse=True, return_counts=True)
    return {
        "max": values + places,
        "sorted": ordered.values,
        "unique": (whole, inverse, counts),
        "nonzero": (x > 0).nonzero(),
        "topk": torch.topk(x, 2).indices,
        "number": x.shape[0],
        "kept": [
            x.type(),
            x.get_device(),
            str(x.dtype),
            x.dim(),
            x.is_contiguous(),
            x.requires_grad,
            x.device.type,
            tuple(x.stride()),
        ],
    }


def reads(net: Any, x: Any) -> Any:
    y = net.a(x).detach()
    best = int(y.sum(1).argmax())
    others = [i for i in y[:, 0].argsort().tolist() if i != best]
    array = y.numpy()
    text = f"{y.mean():.3f}"
    return (
        y[best:],
        y[others],
        torch.from_numpy(np.sort(array, 0)),
        len(text) > 0,
        float(y.max()) > 0,
        best in others,
    )


def layers(net: Any, x: Any) -> Any:
    hidden, (state, _) = net.lstm(x[None])
    if state.sum() > 1e6:
        hidden = hidden * 2
    attended, weights = net.attention(hidden, hidden, hidden)
    encoded = net.encoder(attended)
    image = F.interpolate(x[None, None], scale_factor=2, mode="bilinear")
    return encoded, weights, F.max_pool2d(net.conv(image), 2), F.softmax(net.a(x), -1), F.gelu(x)


def made(net: Any, x: Any) -> Any:
    mask = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).tril()
    steps = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
    filled = x.new_zeros(3, 5).index_add(0, torch.tensor([0, 2, 2, 1, 0, 0]), x)
    picked = torch.full((2, 2), 3.0).to(x)
    picked[0] = torch.as_tensor([1.0, 2.0])
    return (
        x @ x.T * mask,
        x + steps,
        filled,
        picked,
        torch.linspace(0, 1, 4),
        torch.eye(3)[[2, 0]],
        x.type_as(steps).type(x.type()),
    )


def waves(net: Any, x: Any) -> Any:
    f = torch.fft.rfft(net.a(x))
    turned = f * torch.exp(1j * torch.ones(()))
    return torch.fft.irfft(turned, n=5), turned.abs(), turned


def shared(net: Any, x: Any) -> Any:
    x = x.clone()
    first, second = x[:3], x[3:]
    first += 1
    with torch.no_grad():
        second.zero_()
    view = x.view(-1)[4:9]
    view *= 2
    return x, first, view.sum(), x.data


NETWORKS: dict[str, Callable[[], Any]] = {
    "loops": lambda: Net(loops, a=nn.Linear(5, 5)),
    "rows": lambda: Net(rows, a=nn.Linear(5, 5)),
    "results": lambda: Net(results),
    "reads": lambda: Net(reads, a=nn.Linear(5, 5)),
    "layers": lambda: Net(
        layers,
        a=nn.Linear(5, 5),
        lstm=nn.LSTM(5, 8, 2, bidirectional=True, batch_first=True),
        attention=nn.MultiheadAttention(16, 2, batch_first=True),
        encoder=nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
        conv=nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
    ),
    "made": lambda: Net(made),
    "waves": lambda: Net(waves, a=nn.Linear(5, 5)),
    "shared": lambda: Net(shared),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_pytorchs(name: str) -> None:
    torch.manual_seed(0)
    net = NETWORKS[name]().eval()
    close(called(net, X).results, net(X.clone()))


def test_what_is_written() -> None:
    """Parameters, buffers, inputs, plain tensors and objects, as in PyTorch; the module's own state stays."""

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(5)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("last", torch.zeros(0))
            self.seen, self.history = torch.zeros(3), []

        def forward(self, x: Any) -> Any:
            y = self.norm(x)
            self.calls += 1
            self.last = y[int(self.calls)]
            self.seen[int(self.calls) % 3] += 1
            self.history.append(y.sum())
            x.mul_(2)
            return y * len(self.history) + self.history[0]

    torch.manual_seed(0)
    net = Counting()
    own = copy.deepcopy(net)
    converted = convert.from_torch(net, share=False)
    for seed in range(3):
        x = torch.randn(6, 5, generator=torch.Generator().manual_seed(seed))
        mine = lm.tensor(x.numpy())
        wanted = own(x)
        with pytest.warns(UserWarning, match="Counting runs call by call") if not seed else nullcontext():
            close(converted(mine), wanted)
        close(mine, x)
        for name, buffer in own.named_buffers():
            close(dict(converted.named_buffers())[name], buffer)
    assert torch.equal(net.seen, own.seen)
    assert net.calls == 0
    assert isinstance(net.last, torch.Tensor)


def differentiated(net: Any, x: Any) -> Any:
    y = Rounded.apply(net.a(x))
    if y.sum() > -1e6:
        y = torch.cat([y[:2], net.drop(y[2:])])
    assert y.requires_grad
    y.register_hook(lambda grad: grad * 0.5)
    with torch.no_grad():
        scale = y.abs().max()
    z = torch.utils.checkpoint.checkpoint(net.b, y / scale, use_reentrant=False)
    for i in range(int(scale) % 2 + 1):
        z[i] = z[i] * 3
    return z


def forces(net: Any, x: Any) -> Any:
    x = x.requires_grad_()
    energy = net.b(torch.tanh(net.a(x))).sum()
    if energy.item() > 1e6:
        energy = energy * 2
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return torch.cat([force, energy.expand(len(x), 1)], 1)


@pytest.mark.parametrize("function", [differentiated, forces, loops])
def test_gradients_are_pytorchs(function: Any) -> None:
    torch.manual_seed(0)
    net = Net(function, a=nn.Linear(5, 5), b=nn.Linear(5, 1), drop=nn.Dropout(0.0))
    converted = convert.from_torch(net, share=False)

    def loss(network: Any, x: Any) -> Any:
        found = network(x)
        found = found[0] if isinstance(found, tuple) else found
        return (found * found).sum()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(converted), "_by_graph", _no_graph)
        with pytest.warns(UserWarning, match="Body runs call by call.*for this test"):
            value, gradients = lm.value_and_grad(loss)(converted, lm.tensor(X.numpy()))
    wanted = loss(net, X.clone())
    wanted.backward()
    close(value, wanted, 1e-5)
    for name, p in net.named_parameters():
        close(gradients[name], torch.zeros_like(p) if p.grad is None else p.grad, 1e-5)


def _no_graph(*_: Any) -> Any:
    from lamina.convert.torch.exporting import NoGraphError

    raise NoGraphError("for this test")


def test_parts_that_stay_in_pytorch() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 5)

        def forward(self, x: Any) -> Any:
            return self.layer(x) * (2.0 if float(x.detach().numpy().sum()) > 0 else 3.0)

    torch.manual_seed(0)
    net = Net(lambda net, x: net.part(x) if x.mean() > 0 else -net.part(-x), part=Part())
    for x in (X, -X, X.abs()):
        close(called(net, x, stays=("part",)).results, net(x))


def test_packed_sequences() -> None:
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    def run(net: Any, x: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        y, count = pad_packed_sequence(net.rnn(packed)[0])
        return (y * 2 if y.sum() > 0 else y), count

    net = Net(run, rnn=nn.GRU(5, 4, bidirectional=True))
    x, lengths = torch.randn(7, 3, 5), torch.tensor([4, 7, 2])
    close(called(net, x, lengths).results, net(x, lengths))


def wandering(net: Any, x: Any) -> Any:
    """Another path in each call."""
    y = net.a(x)
    for _ in range(round(float(x[0, 0]))):
        y = torch.tanh(net.a(y))
    return y


def starting_with(number: int) -> Any:
    x = X.clone()
    x[0, 0] = number
    return x


@pytest.mark.parametrize("way", ["alone", "jit", "Predictor"])
def test_new_paths_in_each_call_end_in_calls_without_a_graph(way: str) -> None:
    torch.manual_seed(0)
    net = Net(wandering, a=nn.Linear(5, 5)).eval()
    converted = convert.from_torch(net, share=False)
    function = {"alone": lambda: converted, "jit": lambda: lm.jit(converted),
                "Predictor": lambda: lm.infer.Predictor(converted, device="cpu")}[way]()  # fmt: skip
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(12):
            x = starting_with(number)
            close(function(lm.tensor(x.numpy())), net(x))
    texts = [str(w.message) for w in caught]
    assert sum("Body runs call by call, uncompiled" in text for text in texts) == 1
    close(function(lm.tensor(starting_with(2).numpy())), net(starting_with(2)))
    with pytest.raises(convert.TorchConversionError):  # a record for no call
        convert.to_onnx(converted, X.numpy())


def test_few_paths_keep_their_graphs() -> None:
    torch.manual_seed(0)
    net = Net(wandering, a=nn.Linear(5, 5)).eval()
    function = lm.jit(convert.from_torch(net, share=False))
    for _ in range(2):
        for count, number in enumerate((1, 3, 2), 1):
            x = starting_with(number)
            close(function(lm.tensor(x.numpy())), net(x))
            assert len(function._programs) >= count  # compiled for its first call
    assert len(function._programs) == 3


def of_bytes(net: Any, x: Any) -> Any:
    """Computed by Python from more numbers than are compared in a call: no graph has that."""
    numbers = np.frombuffer(x.detach().numpy().tobytes(), np.float32)
    return net.a(x) * float(np.sort(numbers)[-3:].sum())


def test_a_whole_graph_can_be_asked_for() -> None:
    net, x = Net(of_bytes, a=nn.Linear(50, 2)), torch.randn(100, 50)
    with pytest.raises(convert.TorchConversionError, match="Body: torch.export makes no graph of it"):
        convert.from_torch(net, fullgraph=True)(x)
    with pytest.raises(convert.TorchConversionError, match="Body: torch.export makes no graph of it"):
        convert.from_torch(net, x, fullgraph=True)
    with pytest.warns(UserWarning, match="Body runs call by call"):
        converted = convert.from_torch(net, x)
    for way in (converted, lm.jit(converted)):
        close(way(lm.tensor(x.numpy())), net(x))
    with pytest.warns(UserWarning, match="Body runs call by call"):
        close(copy.deepcopy(converted)(lm.tensor(x.numpy())), net(x))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_steps_are_pytorchs(precision: str) -> None:
    """Computed op by op where no graph holds the code; buffers and numbers that are kept have those of the step."""

    def run(net: Any, x: Any) -> Any:
        y = of_bytes(net, x)
        net.last = y.detach().mean() + (0 if net.last is None else net.last)
        return net.norm(y) + net.last

    torch.manual_seed(0)
    net = Net(run, a=nn.Linear(50, 3), norm=nn.BatchNorm1d(3), last=None)
    converted = convert.from_torch(net, share=False)
    own = copy.deepcopy(net)
    rule = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    step = lm.train_step(
        converted,
        lambda y, t: ((y - t) ** 2).mean(),
        optim.SGD(lr=0.1, momentum=0.9),
        precision=precision,
        device="cpu",
    )
    most = 1e-5 if precision == "fp32" else 0.03
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)
        x, wanted = torch.randn(100, 50, generator=draw), torch.randn(100, 3, generator=draw)
        rule.zero_grad()
        loss = ((own(x) - wanted) ** 2).mean()
        loss.backward()
        rule.step()
        with pytest.warns(UserWarning, match="Body runs call by call") if not seed else nullcontext():
            assert float(step(x.numpy(), wanted.numpy())) == pytest.approx(loss.item(), rel=most)
    for (_, theirs), mine in zip(own.named_parameters(), converted.parameters(), strict=True):
        close(mine, theirs, most)
    close(dict(converted.named_buffers())["norm.running_mean"], own.norm.running_mean, most)
    assert len(step._programs) == 0


def test_a_function_without_a_counterpart_is_named_with_its_line() -> None:
    def run(net: Any, x: Any) -> Any:
        if x.sum() > -1e6:
            return torch.linalg.eig(x[:5])[0]
        return x

    with pytest.raises(
        convert.TorchConversionError,
        match=r"linalg.linalg_eig: gives complex numbers \(.*test_calling.py:\d+\)",
    ):
        called(Net(run), X)


def test_errors_leave_the_module_as_it_was() -> None:
    def run(net: Any, x: Any) -> Any:
        net.kept = x * 2
        net.norm(x)
        raise KeyError("mine")

    net = Net(run, norm=nn.BatchNorm1d(5), kept=nn.Buffer(torch.ones(2)))
    with pytest.raises(KeyError, match="mine"):
        called(net, X)
    assert torch.equal(net.kept, torch.ones(2))
    assert net.norm.num_batches_tracked == 0
    assert torch.nn.Linear(2, 2)(torch.ones(2)).shape == (2,)
    x = torch.ones(3, requires_grad=True)
    Rounded.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2, 2, 2]


def test_what_is_kept_and_used_outside_is_an_error() -> None:
    def run(net: Any, x: Any) -> Any:
        net.last = x * 2
        return x

    net = Net(run)
    called(net, X)
    with pytest.raises(TypeError, match="sum: a tensor that a converted network's code made"):
        net.last.sum()
    kept = called(Net(lambda own, x: net.last + x), X)  # in another run it is what it was
    close(kept.results, X * 3)


def test_calls_of_several_threads() -> None:
    torch.manual_seed(0)
    net = Net(wandering, a=nn.Linear(5, 5)).eval()
    converted = convert.from_torch(net, share=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(9):
            converted(starting_with(number))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for number in range(seed, seed + 8):
            x = starting_with(number)
            found = converted(lm.tensor(x.numpy())).numpy()
            if not np.allclose(found, net(x).detach().numpy(), atol=1e-6):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
