"""Programs over structures that other files do not have, against PyTorch: mixtures of densities, series with gaps,
attention along edges, tours, hidden states, transport between sets, alignments, words beside their neighbours, boxes
on grids, masks at several depths. Outputs, gradients, ten steps of losses."""

import math
from typing import Any

import numpy as np
import pytest

from tests.helpers.programs import Library, Program, check, run_beside

RNG = np.random.default_rng(21)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def numbers(high: int, *shape: int) -> Any:
    return RNG.integers(0, high, shape)


def mean(lib: Library, y: Any, targets: Any) -> Any:
    return (y * targets).mean()


# ---- a mixture of densities: weights, means and widths of four bells for each sample


def bells(lib: Library) -> Any:
    class Bells(lib.nn.Module):
        def __init__(self, count: int = 4) -> None:
            super().__init__()
            self.count = count
            self.body = lib.nn.Sequential(lib.nn.Linear(1, 16), lib.nn.Tanh())
            self.weights = lib.nn.Linear(16, count)
            self.means, self.widths = lib.nn.Linear(16, count * 2), lib.nn.Linear(16, count * 2)

        def forward(self, x: Any) -> Any:
            h = self.body(x)
            widths = lib.ops.softplus(self.widths(h)).view(-1, self.count, 2) + 1e-3
            return lib.ops.log_softmax(self.weights(h), dim=-1), self.means(h).view(-1, self.count, 2), widths

    return Bells()


def likelihood(lib: Library, y: Any, targets: Any) -> Any:
    weights, means, widths = y
    z = (targets.unsqueeze(1) - means) / widths
    each = -0.5 * z.pow(2).sum(-1) - widths.log().sum(-1) - math.log(2 * math.pi)
    return -lib.ops.logsumexp(weights + each, dim=1).mean()


# ---- series with gaps (GRU-D): what is missing decays from the last value to the mean


def gaps(lib: Library) -> Any:
    class Gaps(lib.nn.Module):
        def __init__(self, size: int = 3, units: int = 5) -> None:
            super().__init__()
            self.cell = lib.nn.GRUCell(2 * size, units)
            self.decay = lib.nn.Parameter(lib.tensor(np.full(size, 0.1, np.float32)))
            self.forget, self.out = lib.nn.Linear(size, units), lib.nn.Linear(units, 1)
            self.register_buffer("middle", lib.tensor(np.zeros(size, np.float32)))

        def forward(self, x: Any, seen: Any, since: Any) -> Any:
            batch, steps, size = x.shape
            h, last = x.new_zeros(batch, 5), self.middle.expand(batch, size)
            found = []
            for t in range(steps):
                kept = lib.ops.exp(-lib.ops.relu(self.decay * since[:, t]))
                filled = seen[:, t] * x[:, t] + (1 - seen[:, t]) * (kept * last + (1 - kept) * self.middle)
                last = lib.ops.where(seen[:, t].bool(), x[:, t], last)
                h = h * lib.ops.exp(-lib.ops.relu(self.forget(since[:, t])))
                h = self.cell(lib.ops.cat((filled, seen[:, t]), -1), h)
                found.append(self.out(h))
            return lib.ops.stack(found, 1).squeeze(-1)

    return Gaps()


def where_known(lib: Library, y: Any, targets: Any) -> Any:
    wanted, known = targets
    return ((y - wanted) ** 2 * known).sum() / known.sum().clamp(min=1)


def known(share: float, *shape: int) -> Any:
    return (RNG.random(shape) < share).astype(np.float32)


# ---- attention along edges (GAT): a softmax over the edges of each node, by scatter


def edges(lib: Library) -> Any:
    class Layer(lib.nn.Module):
        def __init__(self, inside: int, outside: int, heads: int = 2) -> None:
            super().__init__()
            self.heads, self.outside = heads, outside
            self.values = lib.nn.Linear(inside, heads * outside, bias=False)
            self.ends = lib.nn.Parameter(lib.tensor(np.zeros((2, 1, heads, outside), np.float32)))
            lib.nn.init.xavier_uniform_(self.ends)

        def forward(self, x: Any, pairs: Any) -> Any:
            source, target = pairs[0], pairs[1]
            z = self.values(x).view(x.size(0), self.heads, self.outside)
            scores = (z * self.ends[0]).sum(-1)[source] + (z * self.ends[1]).sum(-1)[target]
            scores = lib.ops.leaky_relu(scores, 0.2)
            places = target.unsqueeze(-1).expand_as(scores)
            least = lib.ops.full_like(z[:, :, 0], float("-inf"))
            largest = least.scatter_reduce(0, places, scores, reduce="amax", include_self=True)
            shares = lib.ops.exp(scores - largest[target])
            total = lib.ops.zeros_like(largest).scatter_add(0, places, shares)
            shares = shares / (total[target] + 1e-16)
            found = lib.ops.zeros_like(z).index_add(0, target, z[source] * shares.unsqueeze(-1))
            return lib.ops.elu(found.flatten(1))

    class Net(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Layer(5, 4), Layer(8, 3)

        def forward(self, x: Any, pairs: Any) -> Any:
            return self.second(self.first(x, pairs), pairs)

    return Net()


def pairs_of(nodes: int, count: int) -> Any:
    return np.concatenate([numbers(nodes, 2, count), np.stack([np.arange(nodes)] * 2)], 1)


# ---- tours (a pointer network): which point comes next, those that were visited left out


def tours(lib: Library) -> Any:
    class Tours(lib.nn.Module):
        def __init__(self, units: int = 8) -> None:
            super().__init__()
            self.read = lib.nn.LSTM(2, units, batch_first=True)
            self.step = lib.nn.LSTMCell(2, units)
            self.keys = lib.nn.Linear(units, units, bias=False)
            self.query = lib.nn.Linear(units, units, bias=False)
            self.score = lib.nn.Linear(units, 1, bias=False)

        def forward(self, x: Any, order: Any) -> Any:
            points, (h, c) = self.read(x)
            h, c, at = h[0], c[0], lib.ops.zeros_like(x[:, 0])
            visited, found = lib.ops.zeros_like(x[:, :, 0]).bool(), []
            for t in range(x.size(1)):
                h, c = self.step(at, (h, c))
                scores = self.score(lib.ops.tanh(self.keys(points) + self.query(h).unsqueeze(1))).squeeze(-1)
                found.append(lib.ops.log_softmax(scores.masked_fill(visited, -1e9), -1))
                chosen = order[:, t]
                visited = visited.scatter(1, chosen.unsqueeze(1), True)
                at = x.gather(1, chosen.view(-1, 1, 1).expand(-1, 1, 2)).squeeze(1)
            return lib.ops.stack(found, 1).transpose(1, 2)

    return Tours()


def taken(lib: Library, y: Any, targets: Any) -> Any:
    return lib.ops.nll_loss(y, targets)


ORDERS = np.stack([RNG.permutation(5) for _ in range(4)])


# ---- hidden states: the likelihood of what is seen, step by step


def hidden(lib: Library) -> Any:
    class Hidden(lib.nn.Module):
        def __init__(self, states: int = 4, signs: int = 6) -> None:
            super().__init__()
            start = np.random.default_rng(1)
            for name, shape in (
                ("steps", (states, states)),
                ("shown", (states, signs)),
                ("first", (states,)),
            ):
                values = start.standard_normal(shape).astype(np.float32)
                setattr(self, name, lib.nn.Parameter(lib.tensor(values)))

        def forward(self, x: Any) -> Any:
            steps, shown = lib.ops.log_softmax(self.steps, 1), lib.ops.log_softmax(self.shown, 1)
            state = lib.ops.log_softmax(self.first, 0) + shown[:, x[:, 0]].T
            for t in range(1, x.shape[1]):
                state = lib.ops.logsumexp(state.unsqueeze(2) + steps, dim=1) + shown.t()[x[:, t]]
            return -lib.ops.logsumexp(state, 1)

    return Hidden()


# ---- transport between two sets (Sinkhorn): ten rounds of the duals


def transport(lib: Library) -> Any:
    class Transport(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = lib.nn.Linear(3, 3)

        def forward(self, x: Any, y: Any) -> Any:
            cost, heat = lib.ops.cdist(self.map(x), y, p=2) ** 2, 0.5
            a, b = lib.ops.zeros_like(cost[:, 0]), lib.ops.zeros_like(cost[0])
            for _ in range(10):
                a = heat * (-math.log(len(x)) - lib.ops.logsumexp((b[None] - cost) / heat, 1))
                b = heat * (-math.log(len(y)) - lib.ops.logsumexp((a[:, None] - cost) / heat, 0))
            return (lib.ops.exp((a[:, None] + b[None] - cost) / heat) * cost).sum()

    return Transport()


# ---- alignments (soft dynamic time warping): a table that is filled cell by cell


def alignment(lib: Library) -> Any:
    class Alignment(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = lib.nn.Linear(2, 2)

        def forward(self, x: Any, y: Any) -> Any:
            cost, heat = lib.ops.cdist(self.map(x), y) ** 2, 0.3
            rows, columns = cost.shape[1:]
            far = lib.ops.full_like(cost[:, 0, 0], 1e5)
            table = [[far] * (columns + 1) for _ in range(rows + 1)]
            table[0][0] = lib.ops.zeros_like(far)
            for i in range(1, rows + 1):
                for j in range(1, columns + 1):
                    ways = lib.ops.stack([table[i - 1][j], table[i][j - 1], table[i - 1][j - 1]], -1)
                    best = -heat * lib.ops.logsumexp(-ways / heat, -1)
                    table[i][j] = cost[:, i - 1, j - 1] + best
            return table[rows][columns]

    return Alignment()


# ---- words beside their neighbours (word2vec): bags of words, samples that are wrong


def neighbours(lib: Library) -> Any:
    class Words(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = lib.nn.EmbeddingBag(20, 8, mode="mean", padding_idx=0)
            self.words = lib.nn.Embedding(20, 8)
            self.words.weight.data.uniform_(-0.1, 0.1)

        def forward(self, around: Any, right: Any, wrong: Any) -> Any:
            v = self.bags(around)
            near = (v * self.words(right)).sum(-1)
            far = lib.ops.bmm(self.words(wrong), v.unsqueeze(2)).squeeze(2)
            return -(lib.ops.logsigmoid(near) + lib.ops.logsigmoid(-far).sum(1))

    return Words()


# ---- the hardest triplets of a batch: extrema of distances, whose gradient goes to one of equal ones


def features(lib: Library) -> Any:
    return lib.nn.Sequential(
        lib.nn.Linear(5, 16), lib.nn.BatchNorm1d(16), lib.nn.ReLU(), lib.nn.Linear(16, 6)
    )


def hardest(lib: Library, y: Any, labels: Any) -> Any:
    e = lib.ops.normalize(y, p=2, dim=1)
    apart = 1 - e @ e.T
    same = labels[:, None] == labels[None, :]
    near = apart.masked_fill(~same, -1.0).max(dim=1).values
    far = apart.masked_fill(same, 1.0).min(dim=1)[0]  # two samples that are one: equal distances
    return lib.ops.relu(near - far + 0.3).mean()


def twins() -> Any:
    x = floats(8, 5)
    return np.concatenate([x, x[:4]]), np.concatenate([np.arange(8) // 2, np.arange(4) // 2])


# ---- masks at several depths: Dice and cross-entropy, weighted


def depths(lib: Library) -> Any:
    def block(inside: int, outside: int) -> Any:
        return lib.nn.Sequential(
            lib.nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            lib.nn.InstanceNorm2d(outside, affine=True),
            lib.nn.LeakyReLU(0.01, inplace=True),
        )

    class Net(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = block(1, 4), block(4, 8), block(8, 8)
            self.up, self.joined = lib.nn.ConvTranspose2d(8, 8, 2, stride=2), block(16, 4)
            self.heads = lib.nn.ModuleList([lib.nn.Conv2d(c, 3, 1) for c in (4, 8)])

        def forward(self, x: Any) -> Any:
            b = self.second(lib.ops.max_pool2d(self.first(x), 2))
            c = self.third(lib.ops.max_pool2d(b, 2))
            y = self.joined(lib.ops.cat([self.up(c), b], 1))
            return [
                lib.ops.interpolate(head(z), size=x.shape[-2:], mode="bilinear", align_corners=False)
                for head, z in zip(self.heads, (y, c), strict=True)
            ]

    return Net()


def overlap(lib: Library, y: Any, labels: Any) -> Any:
    total = 0.0
    for weight, scores in zip((1.0, 0.5), y, strict=True):
        shares = scores.softmax(1)
        wanted = lib.ops.one_hot(labels, 3).permute(0, 3, 1, 2).to(shares.dtype)
        both = (shares * wanted).sum(dim=(2, 3))
        dice = 1 - ((2 * both + 1) / (shares.sum((2, 3)) + wanted.sum((2, 3)) + 1)).mean()
        total = total + weight * (dice + lib.ops.cross_entropy(scores, labels))
    return total


PROGRAMS = {
    "bells": Program(bells, likelihood, [(floats(8, 1), floats(8, 2))], 0.01),
    "gaps": Program(
        gaps,
        where_known,
        [((floats(4, 6, 3), known(0.6, 4, 6, 3), np.abs(floats(4, 6, 3))), (floats(4, 6), known(0.7, 4, 6)))],
    ),
    "edges": Program(
        edges,
        lambda lib, y, t: lib.ops.cross_entropy(y, t),
        [((floats(7, 5), pairs_of(7, 20)), numbers(6, 7))],
    ),
    "tours": Program(tours, taken, [((floats(4, 5, 2), ORDERS), ORDERS)]),
    "hidden": Program(hidden, mean, [(numbers(6, 5, 7), np.ones(5, np.float32))]),
    "transport": Program(
        transport, lambda lib, y, t: y * t, [((floats(6, 3), floats(7, 3)), np.float32(1.0))], 0.01
    ),
    "alignment": Program(
        alignment, mean, [((floats(3, 4, 2), floats(3, 5, 2)), np.ones(3, np.float32))], 0.005
    ),
    "neighbours": Program(
        neighbours, mean, [((numbers(20, 6, 4), numbers(20, 6), numbers(20, 6, 5)), np.ones(6, np.float32))]
    ),
    "hardest": Program(features, hardest, [twins()]),
    "depths": Program(depths, overlap, [(floats(2, 1, 16, 16), numbers(3, 2, 16, 16))], 0.01),
}


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
