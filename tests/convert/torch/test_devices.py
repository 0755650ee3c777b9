"""PyTorch's networks on each device: by themselves, compiled, served and trained, beside PyTorch on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import convert, ops, optim

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


class Body(nn.Module):
    """Layers by name, and a function of them and the input."""

    def __init__(self, run: Callable[..., Any], **layers: Any) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *given: Any) -> Any:
        return self.run(self, *given)


class Reads(nn.Module):
    """A layer whose Python code reads values: it stays PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        return self.layer(x) * (2.0 if x.sum().item() > 0 else 3.0)


def forces(net: Body, x: Any) -> Any:
    x = x.requires_grad_()
    energy = net.b(torch.tanh(net.a(x))).sum()
    (force,) = torch.autograd.grad(energy, x, create_graph=True)
    return torch.cat([force, energy.expand(len(x), 1)], 1)


def waves(net: Body, x: Any) -> Any:
    f = torch.fft.rfft(net.a(x))
    turned = torch.view_as_complex(torch.stack([f.real.tanh(), f.imag * f.abs()], -1))
    return torch.fft.irfft(turned, n=x.shape[-1]).relu()


def pooled(net: Body, x: Any, batch: Any) -> Any:
    """Sums over groups, as many as the largest index says; float32 (groups, 7)."""
    size = int(batch.max()) + 1
    return torch.zeros(size, 7, device=x.device).index_add(0, batch, net.a(x).relu())


def positions(net: Body, x: Any) -> Any:
    steps = torch.arange(x.shape[1], device=x.device)
    causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
    y = net.embed(x) + net.place(steps)
    q, k, v = net.qkv(y).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    return net.head(F.scaled_dot_product_attention(q, k, v, attn_mask=causal).transpose(1, 2).flatten(2))


def parts(net: Body, x: Any) -> Any:
    y = net.stem(x).chunk(3, 1)
    y = torch.cat([layer(part) for layer, part in zip(net.each, y, strict=True)], 1)
    return net.head(net.norm(y).relu().mean((2, 3)))


def resized(net: Body, x: Any) -> Any:
    y = F.interpolate(net.stem(x), scale_factor=1.7, mode="bilinear")
    y = F.pixel_shuffle(net.wide(y), 2)
    theta = torch.eye(2, 3, device=x.device).expand(len(x), 2, 3) * 0.9
    return F.grid_sample(y, F.affine_grid(theta, list(y.shape), align_corners=False), align_corners=False)


def arranged(net: Body, x: Any) -> Any:
    y = net.a(x)
    values, places = y.topk(3, -1)
    counts = torch.zeros_like(y).scatter_add(-1, places, values.exp())
    return torch.where(counts > 1, counts, y.cumsum(-1)) + y.sort(-1, descending=True)[0]


def selected(net: Body, x: Any) -> Any:
    y = net.a(x)
    keep = x[:, 0] > 0
    return torch.cat([y[keep] * 2, y[~keep] - 1])


def counted(net: Body, x: Any) -> Any:
    net.calls += 1
    y = net.a(x)
    y[:, 1:3] = y[:, :2] * 2
    return y / net.calls


def recurrent(net: Body, x: Any) -> Any:
    return net.head(net.rnn(x)[0])


def unfolded(net: Body, x: Any) -> Any:
    columns = F.unfold(net.stem(x), 3, padding=1, stride=2)
    return torch.einsum("bcl,bcm->blm", columns, columns).softmax(-1)


def ordinary(net: Body, x: Any) -> Any:
    return net.layers(x)


IMAGES, WORDS, ROWS = (2, 3, 13, 17), (3, 11), (5, 6)

NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "forces": (lambda: Body(forces, a=nn.Linear(6, 32), b=nn.Linear(32, 1)), ROWS),
    "waves": (lambda: Body(waves, a=nn.Linear(6, 6)), ROWS),
    "positions": (
        lambda: Body(
            positions,
            embed=nn.Embedding(20, 16),
            place=nn.Embedding(30, 16),
            qkv=nn.Linear(16, 48),
            head=nn.Linear(16, 5),
        ),
        WORDS,
    ),
    "parts": (
        lambda: Body(
            parts,
            stem=nn.Conv2d(3, 24, 3, padding=1),
            each=nn.ModuleList(nn.Conv2d(8, 8, k, padding=k // 2, groups=8) for k in (3, 5, 7)),
            norm=nn.BatchNorm2d(24),
            head=nn.Linear(24, 5),
        ),
        IMAGES,
    ),
    "resized": (lambda: Body(resized, stem=nn.Conv2d(3, 6, 3), wide=nn.Conv2d(6, 20, 1)), IMAGES),
    "arranged": (lambda: Body(arranged, a=nn.Linear(6, 9)), ROWS),
    "counted": (
        lambda: Body(counted, a=nn.Linear(6, 9), calls=nn.Buffer(torch.zeros(()))),
        ROWS,
    ),
    "recurrent": (
        lambda: Body(
            recurrent, rnn=nn.LSTM(6, 8, 2, batch_first=True, bidirectional=True), head=nn.Linear(16, 4)
        ),
        (3, 7, 6),
    ),
    "unfolded": (lambda: Body(unfolded, stem=nn.Conv2d(3, 4, 3)), IMAGES),
    "transposed": (
        lambda: Body(
            ordinary,
            layers=nn.Sequential(
                nn.Conv2d(3, 8, 3, stride=2),
                nn.GroupNorm(2, 8),
                nn.SiLU(),
                nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1),
                nn.InstanceNorm2d(4, affine=True),
                nn.Hardswish(),
                nn.AdaptiveAvgPool2d(3),
                nn.Flatten(),
                nn.LayerNorm(36),
                nn.Linear(36, 5),
            ),
        ),
        IMAGES,
    ),
    "volumes": (
        lambda: Body(
            ordinary,
            layers=nn.Sequential(
                nn.Conv3d(1, 6, 3, padding=1),
                nn.BatchNorm3d(6),
                nn.ReLU(),
                nn.MaxPool3d(2),
                nn.Conv3d(6, 4, 2),
            ),
        ),
        (2, 1, 7, 8, 9),
    ),
    "encoder": (
        lambda: Body(
            ordinary,
            layers=nn.TransformerEncoder(
                nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu"),
                2,
                enable_nested_tensor=False,
            ),
        ),
        (2, 9, 16),
    ),
}


def given(shape: tuple[int, ...], seed: int = 1) -> Any:
    """Random numbers, or word indices for `WORDS`."""
    torch.manual_seed(seed)
    return torch.randint(0, 20, shape) if shape == WORDS else torch.randn(shape)


def close(found: Any, wanted: Any, most: float = 2e-5) -> None:
    """Equal within rounding, relative to the largest element."""
    found, wanted = (
        x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else x.numpy() for x in (found, wanted)
    )
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max(initial=0) <= most * max(1.0, np.abs(wanted).max(initial=0))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_torchs(name: str, device: str) -> None:
    """Their own weights on the CPU and on the device; by themselves, compiled and served, in two batch sizes."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    net = make().eval()
    for there in (net, make().eval().to(device)):
        there.load_state_dict(net.state_dict())
        found = convert.from_torch(there, share=False).to(device)
        ways = [found, lm.jit(found)]
        if name != "counted":  # which keeps state from call to call
            ways.append(lm.infer.Predictor(found, device=device))
        for size in (shape[0], shape[0] + 2):
            x = given((size, *shape[1:])) if shape != WORDS else given(WORDS, size)
            for way in ways:
                own = make().eval()
                own.load_state_dict(net.state_dict())
                if name == "counted":
                    found.load_state_dict(net.state_dict())
                close(way(lm.tensor(x.numpy(), device=device)), own(x.clone()))


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_train_as_torchs(name: str, device: str) -> None:
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    net = make().train()
    found = convert.from_torch(net, share=False)
    rule = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    step = lm.train_step(found, lambda y, _: (y * y).mean(), optim.SGD(lr=0.05, momentum=0.9), device=device)
    for seed in range(4):
        x = given(shape, seed)
        rule.zero_grad()
        loss = (net(x.clone()) ** 2).mean()
        loss.backward()
        rule.step()
        assert float(step(x, np.zeros(shape[0]))) == pytest.approx(loss.item(), rel=2e-4)
    for own, parameter in zip(net.parameters(), found.parameters(), strict=True):
        close(parameter, own, 1e-3)


def test_sizes_by_values(device: str) -> None:
    """Groups and masks: a program for each number, told apart on the device."""
    torch.manual_seed(0)
    pools, selects = Body(pooled, a=nn.Linear(6, 7)), Body(selected, a=nn.Linear(6, 7))
    there = [convert.from_torch(m, share=False).to(device) for m in (pools, selects)]
    compiled = [lm.jit(net) for net in there]
    for size in (6, 4, 6, 9):
        x, batch = torch.randn(20, 6), torch.arange(20) // size
        rows, groups = (lm.tensor(a.numpy(), device=device) for a in (x, batch))
        for pool, select in (there, compiled):
            close(pool(rows, groups), pools(x, batch))
            close(select(rows), selects(x))


def test_parts_that_stay_in_pytorch(device: str) -> None:
    """Their code reads values on the device, in the graph that is made, too."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 6), Reads(), nn.ReLU(), nn.Linear(6, 3)).to(device)
    found = convert.from_torch(
        net, torch.randn(4, 5, device=device), exclude=lambda m: isinstance(m, Reads), share=False
    )
    compiled = lm.jit(found)
    for _ in range(4):
        x = torch.randn(4, 5, device=device)
        for way in (found, compiled):
            close(way(lm.tensor(x)), net(x))


class Rounded(torch.autograd.Function):
    """Rounded to quarters; the gradient goes through (straight-through estimator)."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 2


def test_parts_that_stay_in_pytorch_train(device: str) -> None:
    """Excluded modules and functions with a gradient of their own, between CUDA graphs from the second step on."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(5, 6),
        Body(lambda _, x: Rounded.apply(x.tanh())),
        Reads(),
        nn.BatchNorm1d(6),
        nn.Linear(6, 3),
    ).to(device)
    found = convert.from_torch(net, exclude=lambda m: isinstance(m, Reads), share=False)
    rule = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    step = lm.train_step(found, ops.cross_entropy, optim.SGD(lr=0.05, momentum=0.9), device=device)
    for seed in range(6):
        torch.manual_seed(seed)
        x, labels = torch.randn(8, 5, device=device), torch.randint(0, 3, (8,), device=device)
        rule.zero_grad()
        loss = F.cross_entropy(net(x), labels)
        loss.backward()
        rule.step()
        assert float(step(x, labels)) == pytest.approx(loss.item(), rel=2e-5)
    for own, parameter in zip(net.parameters(), found.parameters(), strict=True):
        close(parameter, own, 1e-4)


def test_a_loss_with_parameters(device: str) -> None:
    def losses(place: str) -> Any:
        rng = np.random.default_rng(3)
        net, weights = lm.nn.Linear(8, 4), lm.nn.Parameter(lm.zeros(2))
        net.weight.data.copy_(lm.tensor(rng.standard_normal((4, 8)).astype(np.float32) * 0.3))
        net.bias.data.zero_()

        def loss(y: Any, labels: Any) -> Any:
            keep = labels >= 0
            cost = ops.cross_entropy(y[keep], labels[keep])
            return cost * (-weights[0]).exp() + (y * y).mean() * (-weights[1]).exp() + weights.sum()

        step = lm.train_step(net, loss, optim.Adam([*net.parameters(), weights], lr=0.05), device=place)
        batches = [
            (rng.standard_normal((12, 8)).astype(np.float32), rng.integers(-1, 4, 12)) for _ in range(6)
        ]
        return [float(step(*batch)) for batch in batches] + weights.detach().numpy().tolist()

    assert losses(device) == pytest.approx(losses("cpu"), rel=1e-5)
