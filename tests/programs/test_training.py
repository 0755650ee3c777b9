"""Programs as users of PyTorch write them: ten steps of losses are PyTorch's, with public names only."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.train import AveragedModel, get_ema_avg_fn

pytestmark = [pytest.mark.torch, pytest.mark.feature("B044")]
torch: Any = pytest.importorskip("torch")
F: Any = torch.nn.functional
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def same(net: nn.Module, other: Any) -> None:
    """Give a PyTorch network the weights of ours."""
    other.load_state_dict({n: torch.tensor(x.numpy().copy()) for n, x in net.state_dict().items()})


def compare(found: list[Any], expected: list[Any], tolerance: float = 1e-4) -> None:
    assert len(found) == len(expected) == 10
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-5)
    assert abs(found[-1] - found[0]) > 1e-4  # something was learnt


# ---- WGAN-GP: two networks, two optimizers, a gradient of a gradient


def test_wgan_with_gradient_penalty() -> None:
    def build(lib: Any) -> tuple[Any, Any]:
        critic = lib.Sequential(
            lib.Linear(6, 16), lib.LeakyReLU(0.2), lib.Linear(16, 16), lib.Tanh(), lib.Linear(16, 1)
        )
        generator = lib.Sequential(lib.Linear(4, 16), lib.ReLU(), lib.Linear(16, 6))
        return critic, generator

    (critic, generator), (c2, g2) = build(nn), build(torch.nn)
    same(critic, c2)
    same(generator, g2)
    of_critic = optim.Adam(critic.parameters(), lr=1e-2, betas=(0.5, 0.9))
    of_generator = optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.9))

    def critic_loss(critic: Any, real: Any, noise: Any, part: Any) -> Any:
        fake = lm.stop_gradient(generator(noise))
        slope = lm.grad(lambda x: ops.sum(critic(x)))(part * real + (1.0 - part) * fake)
        norms = ops.sqrt(ops.sum(ops.square(slope), 1))
        return ops.mean(critic(fake)) - ops.mean(critic(real)) + 10.0 * ops.mean(ops.square(norms - 1.0))

    @lm.jit
    def step(real: Any, noises: Any, parts: Any) -> Any:
        for i in range(2):  # two steps of the critic, then one of the generator, in one program
            first, grads = lm.value_and_grad(critic_loss)(critic, real, noises[i], parts[i])
            of_critic.step(grads)
        second, grads = lm.value_and_grad(lambda g: -ops.mean(critic(g(noises[2]))))(generator)
        of_generator.step(grads)
        return {"critic": first, "generator": second}

    a = torch.optim.Adam(c2.parameters(), lr=1e-2, betas=(0.5, 0.9))
    b = torch.optim.Adam(g2.parameters(), lr=1e-2, betas=(0.5, 0.9))

    def theirs(real: Any, noises: Any, parts: Any) -> tuple[float, float]:
        for i in range(2):
            fake = g2(noises[i]).detach()
            between = (parts[i] * real + (1 - parts[i]) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(c2(between).sum(), between, create_graph=True)
            penalty = ((slope.pow(2).sum(1).sqrt() - 1) ** 2).mean()
            first = c2(fake).mean() - c2(real).mean() + 10 * penalty
            a.zero_grad()
            first.backward()
            a.step()
        second = -c2(g2(noises[2])).mean()
        b.zero_grad()
        second.backward()
        b.step()
        return first.item(), second.item()

    found, expected = [], []
    for _ in range(10):
        data = floats(8, 6), floats(3, 8, 4), RNG.random((2, 8, 1), np.float32)
        one = step(*data)
        found.append([one["critic"].item(), one["generator"].item()])
        expected.append(theirs(*map(torch.tensor, data)))
    compare([x[0] for x in found], [x[0] for x in expected])
    compare([x[1] for x in found], [x[1] for x in expected])
    assert (of_critic.bound.number, of_generator.bound.number) == (20, 10)


# ---- siamese network, contrastive loss, two inputs


class Siamese(nn.Module):
    def __init__(self) -> None:
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 5)
        )

    def forward(self, a: Any, b: Any) -> Any:
        return self.body(a), self.body(b)


def test_siamese_with_two_inputs() -> None:
    net = Siamese()
    other = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 5),
    )
    same(net.body, other)

    def contrastive(outputs: Any, target: Any) -> Any:
        distance = ops.sqrt(ops.sum(ops.square(outputs[0] - outputs[1]), 1) + 1e-6)
        far = ops.square(ops.maximum(1.0 - distance, 0.0))
        return ops.mean(target["same"] * ops.square(distance) + (1 - target["same"]) * far)

    step = lm.train_step(net, contrastive, optim.SGD(lr=0.05, momentum=0.9), device="cpu")
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    found, expected = [], []
    for _ in range(10):
        a, b, equal = floats(6, 1, 8, 8), floats(6, 1, 8, 8), RNG.integers(0, 2, 6)
        found.append(step((a, b), {"same": equal}).item())
        distance = torch.sqrt(((other(torch.tensor(a)) - other(torch.tensor(b))) ** 2).sum(1) + 1e-6)
        t = torch.tensor(equal)
        loss = (t * distance**2 + (1 - t) * torch.clamp(1 - distance, min=0) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    compare(found, expected)


# ---- actor and critic: a shared body, two heads, two optimizers of two kinds, several losses


def test_actor_and_critic() -> None:
    def build(lib: Any) -> list[Any]:
        return [
            lib.Sequential(lib.Linear(5, 12), lib.Tanh()),
            lib.Linear(12, 3),
            lib.Sequential(lib.Linear(5, 12), lib.Tanh(), lib.Linear(12, 1)),
        ]

    (body, policy, value), others = build(nn), build(torch.nn)
    for net, other in zip((body, policy, value), others, strict=True):
        same(net, other)
    body2, policy2, value2 = others
    actor = optim.AdamW([body, policy], lr=1e-2, weight_decay=0.1)
    critic = optim.RMSprop(value, lr=1e-2)

    def actor_loss(nets: Any, states: Any, actions: Any, advantage: Any) -> Any:
        body, policy = nets
        log = ops.log_softmax(policy(body(states)), -1)
        chosen = ops.sum(log * ops.one_hot(actions, 3), 1)
        entropy = -ops.mean(ops.sum(ops.exp(log) * log, 1))
        return -ops.mean(chosen * advantage) - 0.01 * entropy, entropy

    @lm.jit
    def step(states: Any, actions: Any, returns: Any) -> Any:
        second, grads = lm.value_and_grad(
            lambda value: ops.mean(ops.square(ops.squeeze(value(states), -1) - returns))
        )(value)
        advantage = lm.stop_gradient(returns - ops.squeeze(value(states), -1))
        (first, entropy), both = lm.value_and_grad(actor_loss, has_aux=True)(
            (body, policy), states, actions, advantage
        )
        nn.utils.clip_grad_norm_(both, 0.5)
        critic.step(grads)
        actor.step(both)
        return first, second, [entropy]

    a = torch.optim.AdamW([*body2.parameters(), *policy2.parameters()], lr=1e-2, weight_decay=0.1)
    b = torch.optim.RMSprop(value2.parameters(), lr=1e-2)
    found, expected = [], []
    for _ in range(10):
        states, actions, returns = floats(7, 5), RNG.integers(0, 3, 7), floats(7)
        first, second, (entropy,) = step(states, actions, returns)
        found.append([first.item(), second.item(), entropy.item()])
        s, act, r = map(torch.tensor, (states, actions, returns))
        second2 = ((value2(s).squeeze(-1) - r) ** 2).mean()
        advantage = (r - value2(s).squeeze(-1)).detach()
        log = torch.log_softmax(policy2(body2(s)), -1)
        entropy2 = -(log.exp() * log).sum(1).mean()
        first2 = -(log.gather(1, act[:, None])[:, 0] * advantage).mean() - 0.01 * entropy2
        for o in (a, b):
            o.zero_grad()
        first2.backward()
        second2.backward()
        torch.nn.utils.clip_grad_norm_([*body2.parameters(), *policy2.parameters()], 0.5)
        b.step()
        a.step()
        expected.append([first2.item(), second2.item(), entropy2.item()])
    for i in range(3):
        compare([x[i] for x in found], [x[i] for x in expected])


# ---- accumulation


def test_accumulation_with_a_short_last_group() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    other = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    same(net, other)
    step = lm.train_step(net, ops.cross_entropy, optim.Adam(lr=0.02), accumulate=4, device="cpu")
    optimizer = torch.optim.Adam(other.parameters(), lr=0.02)
    found, expected = [], []
    for i in range(10):  # groups of 4, 4 and 2
        x, y = floats(6, 5), RNG.integers(0, 3, 6)
        found.append(step(x, y, update=True if i == 9 else None).item())
        loss = F.cross_entropy(other(torch.tensor(x)), torch.tensor(y))
        (loss / (4 if i < 8 else 2)).backward()
        if i in (3, 7, 9):
            optimizer.step()
            optimizer.zero_grad()
        expected.append(loss.item())
    compare(found, expected)
    assert step.number == 3
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=1e-4, atol=1e-6)


# ---- a ViT's recipe: groups by predicate, warm-up, clipping, EMA


class Block(nn.Module):
    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Any) -> Any:
        h = self.norm1(x)
        x = x + self.attn(h, h, h)[0]
        return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
    def __init__(self) -> None:
        self.patch = nn.Linear(12, 8)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(ops.mean(self.blocks(self.patch(x)), 1))


def torch_vit() -> Any:
    class TorchBlock(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = torch.nn.LayerNorm(8), torch.nn.LayerNorm(8)
            self.attn = torch.nn.MultiheadAttention(8, 2, batch_first=True)
            self.mlp = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))

        def forward(self, x: Any) -> Any:
            h = self.norm1(x)
            x = x + self.attn(h, h, h)[0]
            return x + self.mlp(self.norm2(x))

    class TorchVit(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = torch.nn.Linear(12, 8)
            self.blocks = torch.nn.Sequential(TorchBlock(), TorchBlock())
            self.head = torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(self.patch(x)).mean(1))

    return TorchVit()


def test_groups_by_predicate_clipping_and_averages() -> None:
    net, other = Vit(), torch_vit()
    same(net, other)
    rate = optim.schedule.warm_up(optim.schedule.cosine(0.02, 10), 3)
    optimizer = optim.AdamW(lr=rate, weight_decay=0.3).over(
        net,
        [
            {"params": "patch", "frozen": True},
            {"params": lambda name, p: p.ndim < 2, "weight_decay": 0.0},
            {"params": net.head.weight, "lr": lambda step: 2 * rate(step)},
        ],
    )
    averaged = AveragedModel(net, avg_fn=get_ema_avg_fn(0.8))
    step = lm.train_step(net, ops.cross_entropy, optimizer, clip_norm=0.5, averaged=averaged, device="cpu")
    other.patch.requires_grad_(False)
    named = [(n, p) for n, p in other.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in named if p.ndim < 2], "weight_decay": 0.0},
        {"params": [other.head.weight]},
        {"params": [p for n, p in named if p.ndim > 1 and n != "head.weight"]},
    ]
    theirs = torch.optim.AdamW(groups, lr=1.0, weight_decay=0.3)
    ema = torch.optim.swa_utils.AveragedModel(
        other, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    )
    found, expected = [], []
    for i in range(10):
        x, y = floats(6, 5, 12), RNG.integers(0, 4, 6)
        found.append(step(x, y).item())
        for g, factor in zip(theirs.param_groups, (1, 2, 1), strict=True):
            g["lr"] = factor * rate(i)
        loss = F.cross_entropy(other(torch.tensor(x)), torch.tensor(y))
        theirs.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in named], 0.5)
        theirs.step()
        ema.update_parameters(other)
        expected.append(loss.item())
    compare(found, expected)
    x = floats(6, 5, 12)
    np.testing.assert_allclose(
        averaged(x).numpy(), ema(torch.tensor(x)).detach().numpy(), rtol=1e-3, atol=1e-4
    )


# ---- characters: LSTM, truncated backpropagation, carried state, tied weights


class Characters(nn.Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(11, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.head = nn.Linear(8, 11)
        self.head.weight = self.embedding.weight

    def forward(self, x: Any, state: Any) -> Any:
        y, state = self.rnn(self.embedding(x), state)
        return self.head(y), state


def test_characters_with_carried_state() -> None:
    net = Characters()
    embedding, rnn, head = (
        torch.nn.Embedding(11, 8),
        torch.nn.LSTM(8, 8, batch_first=True),
        torch.nn.Linear(8, 11),
    )
    head.weight = embedding.weight
    other = torch.nn.ModuleDict({"embedding": embedding, "rnn": rnn, "head": head})
    same(net, other)
    optimizer = optim.SGD(net, lr=0.5, momentum=0.5)

    @lm.jit
    def step(x: Any, y: Any, state: Any) -> Any:
        def loss(net: Any) -> Any:
            logits, after = net(x, state)
            return ops.cross_entropy(ops.reshape(logits, (-1, 11)), ops.reshape(y, (-1,))), after

        (value, after), grads = lm.value_and_grad(loss, has_aux=True)(net)
        nn.utils.clip_grad_value_(grads, 0.05)
        optimizer.step(grads)
        return value, after

    theirs = torch.optim.SGD(other.parameters(), lr=0.5, momentum=0.5)
    text = RNG.integers(0, 11, (3, 10 * 6 + 1))
    state: Any = (np.zeros((1, 3, 8), np.float32), np.zeros((1, 3, 8), np.float32))
    held = tuple(map(torch.tensor, state))
    found, expected = [], []
    for i in range(10):
        x, y = text[:, 6 * i : 6 * i + 6], text[:, 6 * i + 1 : 6 * i + 7]
        value, state = step(x, y, state)
        found.append(value.item())
        out, held = rnn(embedding(torch.tensor(x)), held)
        loss = F.cross_entropy(head(out).reshape(-1, 11), torch.tensor(y).reshape(-1))
        theirs.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_value_(other.parameters(), 0.05)
        theirs.step()
        held = tuple(h.detach() for h in held)
        expected.append(loss.item())
    compare(found, expected)
    assert len(step._programs) == 2  # the first state is given as arrays, the others as tensors


# ---- sequence to sequence: several inputs in a dict, masks, a smaller last batch


class Translator(nn.Module):
    def __init__(self) -> None:
        self.source, self.target = nn.Embedding(9, 8), nn.Embedding(7, 8)
        self.encoder, self.decoder = nn.GRU(8, 8, batch_first=True), nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(16, 7)

    def forward(self, source: Any, target: Any, mask: Any) -> Any:
        memory, last = self.encoder(self.source(source))
        hidden, _ = self.decoder(self.target(target), last)
        scores = hidden @ ops.transpose(memory, 1, 2)
        weights = ops.softmax(ops.where(ops.unsqueeze(mask, 1), scores, -1e9), -1)
        return {"logits": self.out(ops.cat([hidden, weights @ memory], -1))}


def test_sequence_to_sequence_with_several_inputs() -> None:
    net = Translator()
    T = torch.nn
    other = T.ModuleDict(
        {
            "source": T.Embedding(9, 8),
            "target": T.Embedding(7, 8),
            "encoder": T.GRU(8, 8, batch_first=True),
            "decoder": T.GRU(8, 8, batch_first=True),
            "out": T.Linear(16, 7),
        }
    )
    same(net, other)

    def loss_fn(outputs: Any, targets: Any) -> Any:
        words, weights = targets
        each = ops.cross_entropy(
            ops.reshape(outputs["logits"], (-1, 7)), ops.reshape(words, (-1,)), reduction="none"
        )
        flat = ops.reshape(weights, (-1,))
        return ops.sum(each * flat) / ops.sum(flat)

    step = lm.train_step(net, loss_fn, optim.Adam(lr=0.02), device="cpu")
    theirs = torch.optim.Adam(other.parameters(), lr=0.02)
    found, expected = [], []
    for i in range(10):
        n = 5 if i % 3 else 3
        source, words = RNG.integers(0, 9, (n, 6)), RNG.integers(0, 7, (n, 5))
        mask = np.arange(6) < RNG.integers(2, 7, (n, 1))
        weights = (np.arange(4) < RNG.integers(1, 5, (n, 1))).astype(np.float32)
        inputs = {"source": source, "target": words[:, :-1], "mask": mask}
        found.append(step(inputs, (words[:, 1:], weights)).item())
        s, t, w = map(torch.tensor, (source, words, weights))
        memory, last = other["encoder"](other["source"](s))
        hidden, _ = other["decoder"](other["target"](t[:, :-1]), last)
        scores = (hidden @ memory.transpose(1, 2)).masked_fill(~torch.tensor(mask)[:, None], -1e9)
        logits = other["out"](torch.cat([hidden, scores.softmax(-1) @ memory], -1))
        each = F.cross_entropy(logits.reshape(-1, 7), t[:, 1:].reshape(-1), reduction="none")
        loss = (each * w.reshape(-1)).sum() / w.sum()
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        expected.append(loss.item())
    compare(found, expected)
    assert len(step._programs) == 2
