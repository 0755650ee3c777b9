"""Networks of fields that the other files do not have, as users write them, against PyTorch: tags of words by a
conditional random field, training for small integers, times of survival, a synthesizer, summaries that copy words,
capsules, motion between two pictures, layers whose weights another network makes."""

import math
from typing import Any

import numpy as np
import pytest

from tests.helpers.programs import Library, Program, check, run_beside

RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def numbers(high: int, *shape: int, low: int = 0) -> Any:
    return RNG.integers(low, high, shape)


def squared(lib: Library, y: Any, targets: Any) -> Any:
    return lib.ops.mse_loss(y, targets)


def classified(lib: Library, y: Any, targets: Any) -> Any:
    return lib.ops.cross_entropy(y, targets)


# ---- tags of words: a bidirectional LSTM under a conditional random field, with masks


def tagger(lib: Library) -> Any:
    class Tagger(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = lib.nn.Embedding(30, 8, padding_idx=0)
            self.lstm = lib.nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
            self.scores = lib.nn.Linear(12, 5)
            self.steps = lib.nn.Parameter(lib.tensor(np.zeros((5, 5), np.float32)))
            self.steps.data.uniform_(-0.1, 0.1)
            for name, p in self.lstm.named_parameters():
                if "weight_hh" in name:
                    lib.nn.init.orthogonal_(p)
                elif "bias" in name:
                    size = p.size(0)
                    p.data[size // 4 : size // 2].fill_(1.0)  # forget gates are open at first

        def forward(self, words: Any, mask: Any) -> Any:
            y, _ = self.lstm(self.words(words))
            return self.scores(y.masked_fill(~mask.unsqueeze(-1), 0.0)), self.steps

    return Tagger()


def tagged(lib: Library, y: Any, targets: Any) -> Any:
    (scores, steps), (tags, mask) = y, targets
    inside = mask.float()
    path = scores[:, 0].gather(1, tags[:, :1]).squeeze(1)
    ends = scores[:, 0]
    for i in range(1, scores.shape[1]):
        own = scores[:, i].gather(1, tags[:, i : i + 1]).squeeze(1)
        path = path + (steps[tags[:, i - 1], tags[:, i]] + own) * inside[:, i]
        after = lib.ops.logsumexp(ends.unsqueeze(2) + steps + scores[:, i].unsqueeze(1), dim=1)
        ends = lib.ops.where(mask[:, i].unsqueeze(1), after, ends)
    return (lib.ops.logsumexp(ends, dim=1) - path).mean()


def sentences() -> Any:
    mask = np.arange(6)[None] < np.array([6, 4, 2, 1])[:, None]
    return (numbers(30, 4, 6, low=1) * mask, mask), (numbers(5, 4, 6), mask)


# ---- training for small integers: ranges are buffers that forward writes, rounding is passed straight through


def integers(lib: Library) -> Any:
    def rounded(x: Any, scale: Any) -> Any:
        return x + (lib.ops.clamp(lib.ops.round(x / scale), -8, 7) * scale - x).detach()

    class Quantized(lib.nn.Conv2d):
        def __init__(self, *sizes: int, **options: int) -> None:
            super().__init__(*sizes, **options)
            self.register_buffer("largest", lib.tensor(np.float32(1.0)))
            self.register_buffer("calls", lib.tensor(np.int64(0)))

        def forward(self, x: Any) -> Any:
            scale = self.weight.detach().abs().amax(dim=(1, 2, 3), keepdim=True) / 7
            if self.training:
                self.largest.mul_(0.9).add_(x.detach().abs().max(), alpha=0.1)
                self.calls += 1
            x, weight = rounded(x, self.largest.clone() / 7), rounded(self.weight, scale)
            return lib.ops.conv2d(
                x, weight, self.bias, stride=self.stride, padding=self.padding, groups=self.groups
            )

    return lib.nn.Sequential(
        Quantized(1, 4, 3, padding=1), lib.nn.ReLU(), Quantized(4, 8, 3, stride=2, groups=2), lib.nn.ReLU(),
        lib.nn.Flatten(), lib.nn.Linear(72, 4),
    )  # fmt: skip


# ---- times of survival: Cox's partial likelihood, with losses by rank


def survival(lib: Library) -> Any:
    net = lib.nn.Sequential(
        lib.nn.Linear(6, 16), lib.nn.SELU(), lib.nn.AlphaDropout(0.0), lib.nn.Linear(16, 1, bias=False)
    )

    def start(module: Any) -> None:
        if isinstance(module, lib.nn.Linear):
            lib.nn.init.kaiming_normal_(module.weight, nonlinearity="linear")
            if module.bias is not None:
                module.bias.data.fill_(0.01)

    return net.apply(start)


def survived(lib: Library, risk: Any, targets: Any) -> Any:
    time, event = targets
    order = lib.ops.argsort(time, descending=True)
    risk, event = risk.squeeze(-1)[order], event[order].float()
    return -((risk - lib.ops.logcumsumexp(risk, dim=0)) * event).sum() / event.sum().clamp(min=1)


# ---- a synthesizer: harmonics whose phases are sums over all samples


def synthesizer(lib: Library) -> Any:
    class Synthesizer(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = lib.nn.GRU(2, 8, batch_first=True)
            self.shares = lib.nn.Linear(8, 6)

        def forward(self, pitch: Any, loudness: Any) -> Any:
            y, _ = self.gru(lib.ops.cat([pitch / 300, loudness], -1))
            y = self.shares(y)
            loud = 2 * lib.ops.sigmoid(y[..., :1]) ** math.log(10) + 1e-7
            harmonics = lib.tensor(np.arange(1, 6))
            shares = lib.ops.sigmoid(y[..., 1:]) * ((pitch * harmonics) < 1000).float()
            shares = (loud * shares / (shares.sum(-1, keepdim=True) + 1e-7)).transpose(1, 2)
            shares = lib.ops.interpolate(shares, scale_factor=16, mode="linear")
            pitch = lib.ops.interpolate(pitch.transpose(1, 2), size=160, mode="nearest")
            phase = lib.ops.cumsum(2 * math.pi * pitch / 16000, dim=-1)
            return (shares * lib.ops.sin(phase * harmonics.view(1, -1, 1))).sum(1)

    return Synthesizer()


# ---- summaries that copy words: attention that covers the source, and one vocabulary for words and copies


def pointer(lib: Library) -> Any:
    nn, ops = lib.nn, lib.ops

    class Pointer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(26, 8)
            self.reader = nn.GRU(8, 5, batch_first=True, bidirectional=True)
            self.cell = nn.LSTMCell(8, 10)
            self.keys, self.query = nn.Linear(10, 10, bias=False), nn.Linear(10, 10)
            self.covered, self.score = nn.Linear(1, 10, bias=False), nn.Linear(10, 1, bias=False)
            self.copies, self.out = nn.Linear(28, 1), nn.Linear(20, 20)

        def forward(self, source: Any, lengths: Any, given: Any) -> Any:
            memory, h = self.reader(self.words(source))
            h = ops.cat([h[-2], h[-1]], dim=-1)
            state = (h, ops.zeros_like(h))
            mask = lib.tensor(np.arange(source.size(1))).expand(*source.size()) < lengths.unsqueeze(1)
            coverage, twice, outputs = memory.new_zeros(*source.size()), 0.0, []
            for i in range(given.size(1)):
                x = self.words(given[:, i])
                state = self.cell(x, state)
                scores = self.keys(memory) + self.query(state[0]).unsqueeze(1)
                scores = self.score(ops.tanh(scores + self.covered(coverage.unsqueeze(-1)))).squeeze(-1)
                share = scores.masked_fill(mask == 0, -1e9).softmax(-1)
                twice = twice + ops.minimum(share, coverage).sum(1)
                coverage = coverage + share
                context = ops.bmm(share.unsqueeze(1), memory).squeeze(1)
                copy = ops.sigmoid(self.copies(ops.cat([context, state[0], x], 1)))
                words = self.out(ops.cat([context, state[0]], -1)).softmax(-1)
                words = ops.pad((1 - copy) * words, (0, 6))
                outputs.append(words.scatter_add(1, source, copy * share))
            return ops.stack(outputs, 1), twice

    return Pointer()


def summed_up(lib: Library, y: Any, targets: Any) -> Any:
    odds, twice = y
    found = lib.ops.log(odds.gather(2, targets.unsqueeze(2)).squeeze(2) + 1e-12)
    mask = targets.ne(0)
    return -(found * mask).sum() / mask.sum() + twice.mean()


# ---- capsules: routing by agreement, a picture made anew


def capsules(lib: Library) -> Any:
    nn, ops = lib.nn, lib.ops

    def squash(x: Any) -> Any:
        square = x.norm(dim=-1, keepdim=True) ** 2
        return square / (1 + square) * x / (square.sqrt() + 1e-8)

    class Capsules(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(1, 8, 5), nn.Conv2d(8, 8, 3, stride=2)
            self.weight = nn.Parameter(lib.tensor(0.1 * floats(1, 18, 4, 6, 4)))
            self.picture = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 144))

        def forward(self, x: Any, label: Any = None) -> Any:
            u = squash(self.second(ops.relu(self.first(x))).view(x.size(0), -1, 4)[:, :18])
            votes = (self.weight @ u[:, :, None, :, None]).squeeze(-1)
            fixed, odds = votes.detach(), x.new_zeros(x.size(0), 18, 4)
            for _ in range(2):
                found = squash((odds.softmax(dim=2).unsqueeze(-1) * fixed).sum(dim=1))
                odds = odds + ops.einsum("bijd,bjd->bij", fixed, found)
            found = squash((odds.softmax(dim=2).unsqueeze(-1) * votes).sum(1))
            label = found.norm(dim=-1).argmax(dim=1) if label is None else label
            chosen = found * ops.one_hot(label, num_classes=4)[..., None]
            return found, self.picture(chosen.reshape(x.size(0), -1)), x

    return Capsules()


def agreed(lib: Library, y: Any, targets: Any) -> Any:
    found, picture, x = y
    length = (found**2).sum(-1).sqrt()
    is_there = lib.ops.one_hot(targets, num_classes=4).to(length.dtype)
    margin = (
        is_there * lib.ops.relu(0.9 - length).pow(2) + 0.5 * (1 - is_there) * lib.ops.relu(length - 0.1) ** 2
    )
    return margin.sum(1).mean() + 5e-3 * lib.ops.mse_loss(picture, x.flatten(1), reduction="sum")


def digits() -> Any:
    labels = numbers(4, 3)
    return (floats(3, 1, 12, 12), labels), labels


# ---- motion between two pictures: correlation, a warped picture


def motion(lib: Library) -> Any:
    nn, ops = lib.nn, lib.ops

    class Motion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(6, 6, 3, padding=1)
            )
            self.flow = nn.Sequential(
                nn.Conv2d(15, 8, 3, padding=2, dilation=2), nn.LeakyReLU(0.1), nn.Conv2d(8, 2, 3, padding=1)
            )

        def forward(self, a: Any, b: Any) -> Any:
            height, width = a.shape[-2:]
            x, y = self.features(a), ops.pad(self.features(b), (1, 1, 1, 1))
            h, w = x.shape[-2:]
            costs = [
                (x * y[:, :, i : i + h, j : j + w]).mean(1, keepdim=True) for i in range(3) for j in range(3)
            ]
            flow = self.flow(ops.cat([*costs, x], 1))
            flow = 2 * ops.interpolate(flow, size=(height, width), mode="bilinear", align_corners=False)
            axes = (lib.tensor(np.arange(n)) for n in (height, width))
            rows, columns = ops.meshgrid(*axes, indexing="ij")
            place = ops.stack([columns, rows], 0).float()[None] + flow
            grid = [2 * place[:, 0] / max(width - 1, 1) - 1, 2 * place[:, 1] / max(height - 1, 1) - 1]
            warped = ops.grid_sample(
                b, ops.stack(grid, -1), mode="bilinear", padding_mode="border", align_corners=True
            )
            return flow, warped

    return Motion()


def moved(lib: Library, y: Any, targets: Any) -> Any:
    flow, warped = y
    steps = (flow[:, :, 1:] - flow[:, :, :-1]).abs().mean() + (flow[..., 1:] - flow[..., :-1]).abs().mean()
    return (((warped - targets) ** 2 + 1e-6) ** 0.45).mean() + 0.1 * steps


# ---- a network that makes the filters of another one, for each sample its own


def hyper(lib: Library) -> Any:
    class Hyper(lib.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make = lib.nn.Sequential(lib.nn.Linear(5, 16), lib.nn.Tanh(), lib.nn.Linear(16, 114))
            self.norm = lib.nn.BatchNorm2d(6, affine=False)
            self.head = lib.nn.Linear(6 * 8 * 8, 4)

        def forward(self, x: Any, z: Any) -> Any:
            count, channels, height, width = x.shape
            weight, bias = self.make(z).split([108, 6], dim=-1)
            y = lib.ops.conv2d(
                x.reshape(1, count * channels, height, width),
                weight.reshape(count * 6, channels, 3, 3),
                bias.reshape(-1),
                padding=1,
                groups=count,
            )
            return self.head(self.norm(y.view(count, 6, height, width)).relu().flatten(start_dim=1))

    return Hyper()


PROGRAMS = {
    "tagger": Program(tagger, tagged, [sentences() for _ in range(2)]),
    "integers": Program(
        integers, classified, [(floats(8, 1, 8, 8), numbers(4, 8)) for _ in range(2)], lr=0.02
    ),
    "survival": Program(
        survival, survived, [(floats(12, 6), (np.abs(floats(12)), RNG.random(12) > 0.3)) for _ in range(2)]
    ),
    "synthesizer": Program(
        synthesizer,
        squared,
        [((np.abs(floats(2, 10, 1)) * 200 + 100, floats(2, 10, 1)), floats(2, 160)) for _ in range(2)],
    ),
    "pointer": Program(
        pointer,
        summed_up,
        [((numbers(20, 3, 6, low=1), np.array([6, 4, 2]), numbers(20, 3, 3, low=1)), numbers(26, 3, 3))],
    ),
    "capsules": Program(capsules, agreed, [digits() for _ in range(2)], lr=0.02),
    "motion": Program(
        motion, moved, [((floats(2, 3, 12, 10), floats(2, 3, 12, 10)), floats(2, 3, 12, 10))], lr=0.02
    ),
    "hyper": Program(
        hyper, classified, [((floats(3, 2, 8, 8), floats(3, 5)), numbers(4, 3)) for _ in range(2)], lr=0.02
    ),
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
