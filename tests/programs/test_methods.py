"""Programs from further fields: generation, graphs, mixtures, contrasts, differential equations, scenes, learning to
learn. Each against PyTorch: outputs, gradients, ten steps of losses."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from tests.helpers.programs import Library, Program, check, run_beside

RNG = np.random.default_rng(5)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def waves(*shape: int) -> Any:
    return (np.sin(np.arange(float(np.prod(shape)))) / 3).astype(np.float32).reshape(shape)


def squared(lib: Library, y: Any, targets: Any) -> Any:
    return lib.ops.mse_loss(y, targets)


# ------------------------------------------------------ diffusion: noise is predicted, time is embedded by sines


def diffusion(lib: Library) -> Any:
    class Block(lib.nn.Module):  # type: ignore[misc]
        def __init__(self, inside: int, outside: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = lib.nn.GroupNorm(4, inside), lib.nn.GroupNorm(4, outside)
            self.conv1 = lib.nn.Conv2d(inside, outside, 3, padding=1)
            self.conv2 = lib.nn.Conv2d(outside, outside, 3, padding=1)
            self.time = lib.nn.Linear(32, 2 * outside)
            self.skip = lib.nn.Conv2d(inside, outside, 1) if inside != outside else lib.nn.Identity()

        def forward(self, x: Any, t: Any) -> Any:
            h = self.conv1(lib.ops.silu(self.norm1(x)))
            scale, shift = self.time(lib.ops.silu(t))[:, :, None, None].chunk(2, dim=1)
            h = self.norm2(h) * (1 + scale) + shift
            return self.skip(x) + self.conv2(lib.ops.silu(h))

    class Unet(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("frequencies", lib.tensor(np.exp(-np.arange(8) / 2).astype(np.float32)))
            betas = np.linspace(1e-4, 0.02, 100)
            self.register_buffer("kept", lib.tensor(np.cumprod(1 - betas).astype(np.float32)))
            self.embed = lib.nn.Sequential(lib.nn.Linear(16, 32), lib.nn.SiLU(), lib.nn.Linear(32, 32))
            self.into = lib.nn.Conv2d(1, 8, 3, padding=1)
            self.down, self.middle, self.up = Block(8, 16), Block(16, 16), Block(24, 8)
            self.pool = lib.nn.Conv2d(16, 16, 3, stride=2, padding=1)
            self.attention = lib.nn.MultiheadAttention(16, 2, batch_first=True)
            self.out = lib.nn.Conv2d(8, 1, 3, padding=1)

        def forward(self, x: Any, t: Any, noise: Any) -> Any:
            kept = self.kept[t].view(-1, 1, 1, 1)
            x = kept.sqrt() * x + (1 - kept).sqrt() * noise
            angle = t.float()[:, None] * self.frequencies[None]
            when = self.embed(lib.ops.cat([angle.sin(), angle.cos()], dim=-1))
            first = self.into(x)
            h = self.middle(self.pool(self.down(first, when)), when)
            n, c, rows, columns = h.size()
            tokens = h.flatten(2).transpose(1, 2)
            h = h + self.attention(tokens, tokens, tokens)[0].transpose(1, 2).reshape(n, c, rows, columns)
            h = lib.ops.interpolate(h, scale_factor=2.0, mode="nearest")
            return self.out(self.up(lib.ops.cat([h, first], dim=1), when))

    return Unet()


def diffusion_batch() -> Any:
    noise = floats(3, 1, 8, 8)
    return (floats(3, 1, 8, 8), RNG.integers(0, 100, 3), noise), noise


DIFFUSION = Program(diffusion, squared, [diffusion_batch() for _ in range(2)], lr=1e-3, adam=True)


# ---------------------------------------------------------- a graph network: messages along edges, sums at nodes


def graph_network(lib: Library) -> Any:
    class Layer(lib.nn.Module):  # type: ignore[misc]
        """Attention among the neighbours (GAT), whose weights are a softmax over the edges of each node."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.message = lib.nn.Sequential(lib.nn.Linear(2 * width + 3, width), lib.nn.ELU())
            self.score = lib.nn.Linear(2 * width + 3, 1)
            self.update = lib.nn.GRUCell(width, width)

        def forward(self, x: Any, source: Any, goal: Any, edges: Any) -> Any:
            both = lib.ops.cat([x[source], lib.ops.index_select(x, 0, goal), edges], dim=1)
            score = lib.ops.leaky_relu(self.score(both), 0.2).squeeze(1)
            largest = x.new_full((x.size(0),), -1e9).scatter_reduce(0, goal, score.detach(), "amax")
            weight = (score - largest[goal]).exp()
            total = x.new_zeros(x.size(0)).index_add(0, goal, weight)
            message = self.message(both) * (weight / (total[goal] + 1e-6)).unsqueeze(1)
            place = goal.unsqueeze(1).expand(-1, x.size(1))
            return self.update(lib.ops.zeros_like(x).scatter_add(0, place, message), x)

    class Graphs(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = lib.nn.Embedding(7, 12)
            self.layers = lib.nn.ModuleList([Layer(12) for _ in range(3)])
            self.head = lib.nn.Sequential(lib.nn.Linear(24, 16), lib.nn.ReLU(), lib.nn.Linear(16, 1))

        def forward(self, atoms: Any, edges: Any, features: Any, graph: Any) -> Any:
            x = self.embed(atoms)
            for layer in self.layers:
                x = layer(x, edges[0], edges[1], features)
            count = x.new_zeros(4).index_add(0, graph, x.new_ones(x.size(0)))
            total = x.new_zeros(4, 12).index_add(0, graph, x)
            most = x.new_zeros(4, 12).scatter_reduce(
                0, graph[:, None].expand(-1, 12), x, "amax", include_self=False
            )
            return self.head(lib.ops.cat([total / count.clamp(min=1)[:, None], most], dim=1)).squeeze(-1)

    return Graphs()


def graphs_batch() -> Any:
    graph = np.sort(np.concatenate([np.arange(4), RNG.integers(0, 4, 15)]))
    pairs = [(i, j) for i in range(19) for j in range(19) if i != j and graph[i] == graph[j]]
    edges = np.array(pairs)[RNG.permutation(len(pairs))[:40]].T
    return (RNG.integers(0, 7, 19), edges, floats(40, 3), graph), floats(4)


GRAPHS = Program(graph_network, squared, [graphs_batch() for _ in range(2)])


# ---------------------------------------------------- a variational autoencoder; its noise comes with each batch


def variational(lib: Library) -> Any:
    class Vae(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = lib.nn.Sequential(
                lib.nn.Conv2d(1, 8, 4, stride=2, padding=1), lib.nn.LeakyReLU(0.1),
                lib.nn.Conv2d(8, 16, 4, stride=2, padding=1), lib.nn.BatchNorm2d(16), lib.nn.LeakyReLU(0.1),
                lib.nn.Flatten(),
            )  # fmt: skip
            self.mean, self.log_var = lib.nn.Linear(64, 5), lib.nn.Linear(64, 5)
            self.decoder = lib.nn.Sequential(
                lib.nn.Linear(5, 64), lib.nn.Unflatten(1, (16, 2, 2)),
                lib.nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), lib.nn.ReLU(),
                lib.nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
            )  # fmt: skip

        def forward(self, x: Any, noise: Any) -> Any:
            h = self.encoder(x)
            mean, log_var = self.mean(h), self.log_var(h)
            return self.decoder(mean + noise * lib.ops.exp(0.5 * log_var)), mean, log_var

    return Vae()


def evidence(lib: Library, outputs: Any, targets: Any) -> Any:
    y, mean, log_var = outputs
    fit = lib.ops.binary_cross_entropy_with_logits(y, targets, reduction="sum")
    divergence = -0.5 * lib.ops.sum(1 + log_var - mean.pow(2) - log_var.exp())
    return (fit + divergence) / y.size(0)


def vae_batch() -> Any:
    x = (RNG.random((4, 1, 8, 8)) > 0.5).astype(np.float32)
    return (x, floats(4, 5)), x


VARIATIONAL = Program(variational, evidence, [vae_batch() for _ in range(2)], lr=2e-3)


# -------------------------------- discrete codes (VQ-VAE): the nearest one, whose gradient goes straight through


def quantized(lib: Library) -> Any:
    class Quantized(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = lib.nn.Sequential(
                lib.nn.Conv1d(2, 8, 4, 2, 1), lib.nn.ReLU(), lib.nn.Conv1d(8, 6, 1)
            )
            self.codes = lib.nn.Embedding(9, 6)
            self.decoder = lib.nn.Sequential(
                lib.nn.ConvTranspose1d(6, 8, 4, 2, 1), lib.nn.Conv1d(8, 2, 3, 1, 1)
            )

        def forward(self, x: Any) -> Any:
            z = self.encoder(x).permute(0, 2, 1).contiguous()
            flat = z.view(-1, 6)
            distance = (
                flat.pow(2).sum(1, keepdim=True)
                - 2 * flat @ self.codes.weight.t()
                + self.codes.weight.pow(2).sum(1)
            )
            chosen = self.codes(distance.argmin(dim=1)).view_as(z)
            codes, commitment = lib.ops.mse_loss(chosen, z.detach()), lib.ops.mse_loss(z, chosen.detach())
            passed = z + (chosen - z).detach()
            return self.decoder(passed.permute(0, 2, 1)), codes + 0.25 * commitment

    return Quantized()


QUANTIZED = Program(
    quantized,
    lambda lib, y, t: lib.ops.mse_loss(y[0], t) + y[1],
    [(x, x) for x in (floats(3, 2, 12), floats(3, 2, 12))],
)


# --------------------------------------------------------- contrasts: two views of each sample (SimCLR, InfoNCE)


def contrastive(lib: Library) -> Any:
    class Projected(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = lib.nn.Sequential(
                lib.nn.Conv2d(3, 8, 3, 2, 1), lib.nn.BatchNorm2d(8), lib.nn.ReLU(), lib.nn.AdaptiveAvgPool2d(2),
                lib.nn.Flatten(), lib.nn.Linear(32, 16), lib.nn.BatchNorm1d(16), lib.nn.ReLU(),
                lib.nn.Linear(16, 8, bias=False),
            )  # fmt: skip
            self.scale = lib.nn.Parameter(lib.tensor(np.float32(1.5)))

        def forward(self, first: Any, second: Any) -> Any:
            z = lib.ops.normalize(self.body(lib.ops.cat([first, second])), dim=1)
            return z @ z.T * self.scale.exp()

    return Projected()


def other_view(lib: Library, scores: Any, targets: Any) -> Any:
    own = lib.tensor(np.eye(scores.shape[0], dtype=bool))
    return lib.ops.cross_entropy(scores.masked_fill(own, float("-inf")), targets)


PARTNERS = np.concatenate([np.arange(6, 12), np.arange(6)])
CONTRASTIVE = Program(
    contrastive, other_view, [((floats(6, 3, 8, 8), floats(6, 3, 8, 8)), PARTNERS) for _ in range(2)], lr=0.02
)


# ---------------------------------------- a mixture of experts: each token goes to the best two of five networks


def mixture(lib: Library) -> Any:
    class Experts(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.router = lib.nn.Linear(10, 5, bias=False)
            self.up = lib.nn.Parameter(lib.tensor(waves(5, 10, 16)))
            self.down = lib.nn.Parameter(lib.tensor(waves(5, 16, 10)))

        def forward(self, x: Any) -> Any:
            tokens = x.reshape(-1, x.shape[-1])
            odds = lib.ops.softmax(self.router(tokens), dim=-1)
            best, chosen = lib.ops.topk(odds, 2, dim=-1)
            best = best / best.sum(-1, keepdim=True)
            gates = lib.ops.zeros_like(odds).scatter(1, chosen, best)
            hidden = lib.ops.gelu(lib.ops.einsum("td,edh->teh", tokens, self.up))
            y = lib.ops.einsum("te,teh,ehd->td", gates, hidden, self.down)
            share = lib.ops.one_hot(chosen, 5).float().sum(1).mean(0)
            return y.view_as(x), 5 * (share * odds.mean(0)).sum()

    class Mixed(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = lib.nn.Embedding(13, 10), lib.nn.LayerNorm(10)
            self.experts, self.head = Experts(), lib.nn.Linear(10, 13)

        def forward(self, x: Any) -> Any:
            x = self.embed(x)
            y, balance = self.experts(self.norm(x))
            return self.head(x + y), balance

    return Mixed()


MIXTURE = Program(
    mixture,
    lambda lib, y, t: lib.ops.cross_entropy(y[0].flatten(0, 1), t.flatten()) + 0.01 * y[1],
    [(RNG.integers(0, 13, (3, 8)), RNG.integers(0, 13, (3, 8))) for _ in range(2)],
)


# ------------------------------------------ a normalizing flow (RealNVP): densities by determinants of couplings


def flow(lib: Library) -> Any:
    class Coupling(lib.nn.Module):  # type: ignore[misc]
        def __init__(self, turned: bool) -> None:
            super().__init__()
            self.turned = turned
            self.net = lib.nn.Sequential(lib.nn.Linear(3, 24), lib.nn.Tanh(), lib.nn.Linear(24, 6))

        def forward(self, x: Any) -> Any:
            a, b = x.split(3, dim=1)
            a, b = (b, a) if self.turned else (a, b)
            scale, shift = self.net(a).chunk(2, dim=-1)
            scale = lib.ops.tanh(scale)
            b = b * lib.ops.exp(scale) + shift
            return lib.ops.cat([b, a] if self.turned else [a, b], dim=1), scale.sum(dim=1)

    class Flow(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.couplings = lib.nn.ModuleList([Coupling(i % 2 == 1) for i in range(4)])
            self.log_scale = lib.nn.Parameter(lib.tensor(np.zeros(6, np.float32)))

        def forward(self, x: Any) -> Any:
            total = self.log_scale.sum()
            x = x * self.log_scale.exp()
            for coupling in self.couplings:
                x, change = coupling(x)
                total = total + change
            return -0.5 * (x.square() + np.log(2 * np.pi)).sum(-1) + total

    return Flow()


FLOW = Program(
    flow,
    lambda lib, y, t: -(y * t).mean(),
    [(floats(8, 6), np.ones(8, np.float32)) for _ in range(2)],
    lr=0.01,
)


# --------------------------------------------------- a differential equation whose right side is a network (RK4)


def differential(lib: Library) -> Any:
    class Field(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = lib.nn.Sequential(
                lib.nn.Linear(5, 20), lib.nn.Softplus(beta=2.0), lib.nn.Linear(20, 4)
            )

        def forward(self, t: float, y: Any) -> Any:
            return self.net(lib.ops.cat([y, lib.ops.full_like(y[:, :1], t)], dim=1))

    class Solved(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.into, self.field, self.out = lib.nn.Linear(2, 4), Field(), lib.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            y, h, path = self.into(x), 0.25, []
            for i in range(6):
                t = i * h
                k1 = self.field(t, y)
                k2 = self.field(t + h / 2, y + h / 2 * k1)
                k3 = self.field(t + h / 2, y + h / 2 * k2)
                k4 = self.field(t + h, y + h * k3)
                y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
                path.append(self.out(y))
            return lib.ops.stack(path, dim=1)

    return Solved()


DIFFERENTIAL = Program(differential, squared, [(floats(5, 2), floats(5, 6, 2)) for _ in range(2)], lr=0.02)


# ------------------------------------- a scene as a network (NeRF): places as waves, light summed along each ray


def scene(lib: Library) -> Any:
    class Scene(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("waves", lib.tensor((2.0 ** np.arange(4)).astype(np.float32)))
            self.first = lib.nn.Sequential(
                lib.nn.Linear(27, 32), lib.nn.ReLU(), lib.nn.Linear(32, 32), lib.nn.ReLU()
            )
            self.density, self.colour = lib.nn.Linear(32, 1), lib.nn.Linear(32 + 3, 3)

        def forward(self, origin: Any, ray: Any, depth: Any) -> Any:
            places = origin[:, None, :] + ray[:, None, :] * depth[:, :, None]
            angle = (places.unsqueeze(-1) * self.waves).flatten(-2)
            h = self.first(lib.ops.cat([places, angle.sin(), angle.cos()], dim=-1))
            along = lib.ops.normalize(ray, dim=-1).unsqueeze(1).expand_as(places)
            colour = lib.ops.sigmoid(self.colour(lib.ops.cat([h, along], dim=-1)))
            steps = depth[:, 1:] - depth[:, :-1]
            steps = lib.ops.cat([steps, lib.ops.full_like(steps[:, :1], 1e2)], dim=1)
            taken = 1 - lib.ops.exp(-lib.ops.relu(self.density(h)).squeeze(-1) * steps)
            left = lib.ops.cumprod(1 - taken + 1e-10, dim=1).roll(1, 1)
            left = lib.ops.cat([lib.ops.ones_like(left[:, :1]), left[:, 1:]], dim=1)
            return ((taken * left)[..., None] * colour).sum(dim=-2)

    return Scene()


def rays() -> Any:
    depth = np.sort(RNG.random((6, 12), np.float32) * 3 + 1, axis=1)
    return (floats(6, 3), floats(6, 3), depth), RNG.random((6, 3), np.float32)


SCENE = Program(scene, squared, [rays() for _ in range(2)])


# ---------------------------------------------------- clicks: bags of features, products of pairs, wide and deep


def clicks(lib: Library) -> Any:
    class Clicks(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.user, self.item = lib.nn.Embedding(11, 8), lib.nn.Embedding(17, 8)
            self.tags = lib.nn.EmbeddingBag(23, 8, mode="mean")
            self.wide = lib.nn.Embedding(17, 1)
            self.bottom = lib.nn.Sequential(lib.nn.Linear(4, 8), lib.nn.PReLU())
            self.top = lib.nn.Sequential(lib.nn.Linear(8 + 6, 12), lib.nn.Mish(), lib.nn.Linear(12, 1))

        def forward(self, user: Any, item: Any, tags: Any, numbers: Any) -> Any:
            dense = self.bottom(numbers)
            parts = lib.ops.stack([self.user(user), self.item(item), self.tags(tags), dense], dim=1)
            pairs = lib.ops.bmm(parts, parts.transpose(1, 2))
            rows, columns = np.tril_indices(4, -1)
            flat = pairs[:, rows.tolist(), columns.tolist()]
            return (self.top(lib.ops.cat([dense, flat], dim=1)) + self.wide(item)).squeeze(1)

    return Clicks()


CLICKS = Program(
    clicks,
    lambda lib, y, t: lib.ops.binary_cross_entropy_with_logits(
        y, t, pos_weight=lib.tensor(np.float32([3.0]))
    ),
    [
        (
            (RNG.integers(0, 11, 9), RNG.integers(0, 17, 9), RNG.integers(0, 23, (9, 4)), floats(9, 4)),
            RNG.integers(0, 2, 9).astype(np.float32),
        )
        for _ in range(2)
    ],
)


# ---------------------------------------------------------- a state-space model: a scan whose steps are selected


def scanned(lib: Library) -> Any:
    class Scan(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.into = lib.nn.Linear(6, 16)
            self.conv = lib.nn.Conv1d(8, 8, 3, groups=8, padding=2)
            self.select = lib.nn.Linear(8, 1 + 2 * 4)
            self.log_a = lib.nn.Parameter(lib.tensor(np.log(np.tile(np.arange(1.0, 5), (8, 1))).astype("f")))
            self.skip = lib.nn.Parameter(lib.tensor(np.ones(8, np.float32)))
            self.step = lib.nn.Linear(1, 8)
            self.out = lib.nn.Linear(8, 3)

        def forward(self, x: Any) -> Any:
            u, gate = self.into(x).chunk(2, dim=-1)
            u = lib.ops.silu(self.conv(u.transpose(1, 2))[..., : x.size(1)].transpose(1, 2))
            delta, b, c = lib.ops.split(self.select(u), [1, 4, 4], dim=-1)
            delta = lib.ops.softplus(self.step(delta))
            decay = lib.ops.exp(delta.unsqueeze(-1) * -self.log_a.exp())
            added = (delta * u).unsqueeze(-1) * b.unsqueeze(2)
            state, kept = x.new_zeros(x.size(0), 8, 4), []
            for t in range(x.size(1)):
                state = decay[:, t] * state + added[:, t]
                kept.append((state * c[:, t, None]).sum(-1))
            y = lib.ops.stack(kept, 1) + u * self.skip
            return self.out(y * lib.ops.silu(gate))

    return Scan()


SCAN = Program(scanned, squared, [(floats(3, 9, 6), floats(3, 9, 3)) for _ in range(2)])


PROGRAMS = {
    "diffusion": DIFFUSION,
    "graphs": GRAPHS,
    "variational": VARIATIONAL,
    "quantized": QUANTIZED,
    "contrastive": CONTRASTIVE,
    "mixture": MIXTURE,
    "flow": FLOW,
    "differential": DIFFERENTIAL,
    "scene": SCENE,
    "clicks": CLICKS,
    "scan": SCAN,
}

pytestmark = pytest.mark.feature("F106", "F112")


@pytest.mark.torch
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_torch(name: str) -> None:
    check(PROGRAMS[name])


@pytest.mark.gpu
@pytest.mark.torch
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_torch_on_cuda(name: str) -> None:
    check(PROGRAMS[name], "cuda")


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_that_a_program_makes_is_on_its_device(name: str) -> None:
    here, there = run_beside(PROGRAMS[name])
    for a, b in zip(here, there, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------ steps of a user's own, against PyTorch


def twins(build: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A network by Lamina and by PyTorch, with the same weights."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    mine, theirs = build(nn), build(torch.nn)
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    return mine, theirs


def perceptron(*widths: int) -> Callable[[Any], Any]:
    def build(lib: Any) -> Any:
        layers: list[Any] = []
        for a, b in pairwise(widths):
            layers += [lib.Linear(a, b), lib.Tanh()]
        return lib.Sequential(*layers[:-1])

    return build


@pytest.mark.torch
@pytest.mark.feature("B044")
def test_learning_to_learn() -> None:
    """MAML: tasks adapt the weights by a step of their own, and the gradient goes through that step."""
    import torch

    mine, theirs = twins(perceptron(2, 16, 16, 1))
    own, rule = optim.Adam(mine, lr=0.01), torch.optim.Adam(theirs.parameters(), lr=0.01)
    names = [name for name, _ in mine.named_parameters()]

    def adapted(values: Any, x: Any, y: Any) -> Any:
        def inner(values: Any) -> Any:
            return ops.mse_loss(nn.functional_call(mine, values, x), y)

        for _ in range(2):
            slopes = lm.grad(inner)(values)
            values = {name: values[name] - 0.1 * slopes[name] for name in names}
        return values

    @lm.jit
    def step(tasks: Any) -> Any:
        def outer(net: Any) -> Any:
            values, total = dict(net.named_parameters()), 0.0
            for x, y, x2, y2 in tasks:
                after = adapted(values, x, y)
                total = total + ops.mse_loss(nn.functional_call(net, after, x2), y2) / len(tasks)
            return total

        loss, grads = lm.value_and_grad(outer)(mine)
        own.step(grads)
        return loss

    found, wanted = [], []
    for _ in range(10):
        tasks = [(floats(5, 2), floats(5, 1), floats(7, 2), floats(7, 1)) for _ in range(3)]
        found.append(step(tasks).item())
        total: Any = 0.0
        for x, y, x2, y2 in ([torch.tensor(a) for a in task] for task in tasks):
            values = dict(theirs.named_parameters())
            for _ in range(2):
                loss = torch.nn.functional.mse_loss(torch.func.functional_call(theirs, values, (x,)), y)
                slopes = torch.autograd.grad(loss, list(values.values()), create_graph=True)
                values = {k: v - 0.1 * g for (k, v), g in zip(values.items(), slopes, strict=True)}
            total = (
                total
                + torch.nn.functional.mse_loss(torch.func.functional_call(theirs, values, (x2,)), y2) / 3
            )
        rule.zero_grad()
        total.backward()
        rule.step()
        wanted.append(total.item())
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.torch
@pytest.mark.feature("B044")
def test_a_small_network_learns_from_a_large_one() -> None:
    """Distillation: the teacher is frozen and in inference mode, its odds are softened by a temperature."""
    import torch

    def teacher(lib: Any) -> Any:
        return lib.Sequential(
            lib.Linear(6, 32), lib.BatchNorm1d(32), lib.ReLU(), lib.Dropout(0.5), lib.Linear(32, 4)
        )

    (big, big2), (small, small2) = twins(teacher), twins(perceptron(6, 8, 4))
    big.eval().requires_grad_(False)
    big2.eval().requires_grad_(False)
    before = {k: v.numpy().copy() for k, v in big.state_dict().items()}
    own = optim.SGD(small, lr=0.2, momentum=0.9, nesterov=True)
    rule = torch.optim.SGD(small2.parameters(), lr=0.2, momentum=0.9, nesterov=True)

    @lm.jit
    def step(x: Any, labels: Any) -> Any:
        def loss(net: Any) -> Any:
            y = net(x)
            soft = ops.kl_div(ops.log_softmax(y / 3, 1), ops.softmax(big(x) / 3, 1), reduction="batchmean")
            return 0.3 * ops.cross_entropy(y, labels) + 0.7 * 9 * soft

        value, grads = lm.value_and_grad(loss)(small)
        own.step(grads)
        return value

    found, wanted = [], []
    for _ in range(10):
        x, labels = floats(8, 6), RNG.integers(0, 4, 8)
        found.append(step(x, labels).item())
        y = small2(torch.tensor(x))
        with torch.no_grad():
            odds = torch.softmax(big2(torch.tensor(x)) / 3, 1)
        soft = torch.nn.functional.kl_div(torch.log_softmax(y / 3, 1), odds, reduction="batchmean")
        value = 0.3 * torch.nn.functional.cross_entropy(y, torch.tensor(labels)) + 0.7 * 9 * soft
        rule.zero_grad()
        value.backward()
        rule.step()
        wanted.append(value.item())
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
    for name, x in big.state_dict().items():
        np.testing.assert_array_equal(x.numpy(), before[name])


@pytest.mark.torch
@pytest.mark.feature("B044")
def test_values_of_actions_with_a_slow_twin() -> None:
    """Double Q-learning: the values that are learnt come from a network that follows slowly."""
    import torch

    mine, theirs = twins(perceptron(4, 16, 3))
    slow, slow2 = twins(perceptron(4, 16, 3))
    own = optim.RMSprop(mine, lr=0.01)
    rule = torch.optim.RMSprop(theirs.parameters(), lr=0.01)

    @lm.jit
    def step(state: Any, action: Any, reward: Any, after: Any, goes_on: Any) -> Any:
        best = mine(after).argmax(dim=1, keepdim=True)
        goal = reward + 0.9 * goes_on * slow(after).gather(1, best).squeeze(1)

        def loss(net: Any) -> Any:
            chosen = ops.gather(net(state), 1, action[:, None])[:, 0]
            return ops.smooth_l1_loss(chosen, goal.detach()), chosen - goal

        (value, error), grads = lm.value_and_grad(loss, has_aux=True)(mine)
        nn.utils.clip_grad_norm_(grads, 1.0)
        own.step(grads)
        for q, p in zip(slow.parameters(), mine.parameters(), strict=True):
            q.copy_(0.8 * q + 0.2 * p)
        return value, error

    found, wanted = [], []
    for _ in range(10):
        batch = (
            floats(8, 4),
            RNG.integers(0, 3, 8),
            floats(8),
            floats(8, 4),
            (RNG.random(8) > 0.3).astype("f"),
        )
        value, error = step(*batch)
        found.append([value.item(), float(abs(error).max())])
        state, action, reward, after, goes_on = map(torch.tensor, batch)
        with torch.no_grad():
            best = theirs(after).argmax(1, keepdim=True)
            goal = reward + 0.9 * goes_on * slow2(after).gather(1, best).squeeze(1)
        chosen = theirs(state).gather(1, action[:, None])[:, 0]
        loss = torch.nn.functional.smooth_l1_loss(chosen, goal)
        rule.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        rule.step()
        with torch.no_grad():
            for q, p in zip(slow2.parameters(), theirs.parameters(), strict=True):
                q.mul_(0.8).add_(p, alpha=0.2)
        wanted.append([loss.item(), (chosen - goal).detach().abs().max().item()])
    np.testing.assert_allclose(found, wanted, rtol=1e-4)
