"""Loops that users write around a network, against PyTorch: a flow equation whose terms are derivatives, a solver
that chooses its steps, agents that learn from what they did, words drawn one by one, clusters, training for small
integers, averages of weights at a rate of their own."""

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from tests.helpers.programs import LAMINA, pytorch

pytestmark = pytest.mark.torch
RNG = np.random.default_rng(31)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def layers(lib: Any, *sizes: int) -> Any:
    made = [m for i, o in pairwise(sizes) for m in (lib.nn.Linear(i, o), lib.nn.Tanh())]
    return lib.nn.Sequential(*made[:-1])


def alike(make: Any) -> tuple[Any, Any]:
    """A network of each library, with the same weights."""
    theirs, mine = make(pytorch()), make(LAMINA)
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    return mine, theirs


def same(found: Any, wanted: Any, tolerance: float = 1e-4) -> None:
    wanted = wanted.detach().numpy() if hasattr(wanted, "detach") else np.asarray(wanted)
    least = tolerance * max(1e-3, float(np.abs(wanted).max()))
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=least)


# ---- a flow equation (Burgers): first and second derivatives of the network in its inputs, sample by sample


def test_a_flow_equation() -> None:
    import torch

    mine, theirs = alike(lambda lib: layers(lib, 2, 12, 12, 1))
    points = floats(20, 2)

    def wanted() -> Any:
        x = torch.tensor(points, requires_grad=True)
        u = theirs(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope[:, 0].sum(), x, create_graph=True)
        return ((slope[:, 1] + u[:, 0] * slope[:, 0] - 0.01 * bend[:, 0]) ** 2).mean()

    def loss(net: Any, x: Any) -> Any:
        def u(p: Any) -> Any:
            return net(p).squeeze(-1)

        slope, bend = lm.vmap(lm.grad(u))(x), lm.vmap(lm.hessian(u))(x)
        return ((slope[:, 1] + net(x)[:, 0] * slope[:, 0] - 0.01 * bend[:, 0, 0]) ** 2).mean()

    value, grads = lm.value_and_grad(loss)(mine, lm.tensor(points))  # op by op
    first = wanted()
    same(value, first)
    slopes = torch.autograd.grad(first, list(theirs.parameters()), allow_unused=True)
    for (name, _), slope in zip(theirs.named_parameters(), slopes, strict=True):
        if slope is not None:
            same(grads[name], slope)
    rule, own = torch.optim.Adam(theirs.parameters(), 1e-2), optim.Adam(mine.parameters(), lr=1e-2)

    @lm.jit
    def step(x: Any) -> Any:
        value, grads = lm.value_and_grad(loss)(mine, x)
        own.step(grads)
        return value

    for _ in range(10):
        rule.zero_grad()
        value = wanted()
        value.backward()
        rule.step()
        same(step(points), value)


# ---- a solver that chooses its steps (Bogacki and Shampine): branches on numbers, and a gradient through it all


def solved(net: Any, y: Any) -> Any:
    t, h = 0.0, 0.3
    while t < 1 - 1e-9:
        h = min(h, 1 - t)
        a = net(y)
        b = net(y + h / 2 * a)
        c = net(y + 3 * h / 4 * b)
        after = y + h / 9 * (2 * a + 3 * b + 4 * c)
        error = float((h * (-5 / 72 * a + b / 12 + c / 9 - net(after) / 8)).abs().max().detach())
        if error < 1e-3:
            y, t = after, t + h
        h *= min(2.0, max(0.3, 0.9 * (1e-3 / (error + 1e-12)) ** (1 / 3)))
    return y


def test_a_solver_that_chooses_its_steps() -> None:
    import torch

    mine, theirs = alike(lambda lib: layers(lib, 2, 8, 2))
    start = floats(3, 2)
    wanted = solved(theirs, torch.tensor(start))
    same(solved(mine, lm.tensor(start)), wanted, 1e-5)
    wanted.pow(2).sum().backward()
    grads = lm.grad(lambda net: solved(net, lm.tensor(start)).pow(2).sum())(mine)
    for name, p in theirs.named_parameters():
        same(grads[name], p.grad)


# ---- an agent with a policy and a value (PPO): advantages, a clipped ratio, entropy, a clipped norm


def agent(lib: Any) -> Any:
    class Agent(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = layers(lib, 4, 16, 16)
            self.policy, self.value = lib.nn.Linear(16, 3), lib.nn.Linear(16, 1)
            lib.nn.init.orthogonal_(self.policy.weight, gain=0.01)
            lib.nn.init.constant_(self.policy.bias, 0.0)

        def forward(self, x: Any) -> Any:
            h = self.body(x).tanh()
            return self.policy(h), self.value(h).squeeze(-1)

    return Agent()


def advantages(values: Any, rewards: Any, ended: Any) -> Any:
    found, running = np.zeros_like(rewards), 0.0
    for t in reversed(range(len(rewards))):
        going_on = 1 - ended[t]
        after = values[t + 1] if t + 1 < len(values) else 0.0
        running = rewards[t] + 0.99 * after * going_on - values[t] + 0.99 * 0.95 * going_on * running
        found[t] = running
    return found


def surrogate(lib: Any, net: Any, seen: Any, actions: Any, before: Any, gains: Any, returns: Any) -> Any:
    logits, values = net(seen)
    odds = lib.log_softmax(logits, -1)
    gains = (gains - gains.mean()) / (gains.std() + 1e-8)
    ratio = lib.exp(odds.gather(1, actions.unsqueeze(1)).squeeze(1) - before)
    gained = lib.minimum(ratio * gains, lib.clamp(ratio, 0.8, 1.2) * gains).mean()
    entropy = -(odds.exp() * odds).sum(-1).mean()
    return -gained + 0.5 * ((values - returns) ** 2).mean() - 0.01 * entropy


def test_an_agent_with_a_policy_and_a_value() -> None:
    import torch

    mine, theirs = alike(agent)
    seen, actions, rewards = floats(16, 4), RNG.integers(0, 3, 16), floats(16)
    ended = (RNG.random(16) < 0.2).astype(np.float32)
    with torch.no_grad():
        logits, values = theirs(torch.tensor(seen))
        before = torch.log_softmax(logits, -1).gather(1, torch.tensor(actions)[:, None]).squeeze(1).numpy()
    same(mine(lm.tensor(seen))[1], values, 1e-5)
    gains = advantages(values.numpy(), rewards, ended)
    batch = (seen, actions, before, gains, gains + values.numpy())
    rule = torch.optim.Adam(theirs.parameters(), 3e-3, eps=1e-5)
    own = optim.Adam(mine.parameters(), lr=3e-3, eps=1e-5)

    @lm.jit
    def step(*batch: Any) -> Any:
        loss, grads = lm.value_and_grad(lambda net: surrogate(ops, net, *batch))(mine)
        nn.utils.clip_grad_norm_(grads, 0.5)
        own.step(grads)
        return loss

    for _ in range(10):
        rule.zero_grad()
        loss = surrogate(torch, theirs, *map(torch.tensor, batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        rule.step()
        same(step(*batch), loss)


# ---- an agent that values its actions (DQN): a slow twin that is written in place, the best of equal actions


def test_an_agent_that_values_its_actions() -> None:
    import torch

    mine, theirs = alike(lambda lib: layers(lib, 4, 16, 2))
    twin, their_twin = copy.deepcopy(mine), copy.deepcopy(theirs)
    rule, own = torch.optim.RMSprop(theirs.parameters(), 1e-3), optim.RMSprop(mine.parameters(), lr=1e-3)

    def error(lib: Any, net: Any, slow: Any, seen: Any, action: Any, reward: Any, after: Any) -> Any:
        value = net(seen).gather(1, action.unsqueeze(1)).squeeze(1)
        best = slow(after).max(1)[0].detach()
        return lib.smooth_l1_loss(value, reward + 0.9 * best)

    @lm.jit
    def step(*batch: Any) -> Any:
        loss, grads = lm.value_and_grad(lambda net: error(ops, net, twin, *batch))(mine)
        own.step(grads)
        return loss

    for number in range(10):
        batch = (floats(8, 4), RNG.integers(0, 2, 8), floats(8), floats(8, 4))
        rule.zero_grad()
        loss = error(torch.nn.functional, theirs, their_twin, *map(torch.tensor, batch))
        loss.backward()
        rule.step()
        same(step(*batch), loss)
        for slow, net in ((twin, mine), (their_twin, theirs)):
            for p, q in zip(slow.parameters(), net.parameters(), strict=True):
                p.data.mul_(0.9).add_(0.1 * q.data)
            if number == 5:
                slow.load_state_dict(net.state_dict())


# ---- words drawn one by one: rotary positions, what was seen is kept, the k likeliest and those that have a share


def words(lib: Any) -> Any:
    class Words(lib.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = lib.nn.Embedding(11, 8), lib.nn.LayerNorm(8)
            self.qkv, self.out = lib.nn.Linear(8, 24, bias=False), lib.nn.Linear(8, 11)

        def forward(self, tokens: Any, held: Any, angles: Any) -> Any:
            x = self.embed(tokens)
            n, length, _ = x.shape
            q, k, v = (z.view(n, length, 2, 4).transpose(1, 2) for z in self.qkv(self.norm(x)).chunk(3, -1))
            c, s = lib.ops.cat([angles.cos()] * 2, -1), lib.ops.cat([angles.sin()] * 2, -1)
            q, k = (z * c + lib.ops.cat((-z[..., 2:], z[..., :2]), -1) * s for z in (q, k))
            if held is not None:
                k, v = lib.ops.cat([held[0], k], 2), lib.ops.cat([held[1], v], 2)
            y = lib.ops.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
            return self.out(x + y.transpose(1, 2).reshape(n, length, 8)), (k, v)

    return Words()


def shares(lib: Any, logits: Any) -> Any:
    values, _ = lib.topk(logits / 0.7, 5)
    logits = (logits / 0.7).masked_fill(logits / 0.7 < values[..., -1:], -float("inf"))
    ordered, places = lib.sort(logits, descending=True, dim=-1)
    late = lib.cumsum(lib.softmax(ordered, -1), -1) > 0.8
    late = lib.cat([lib.zeros_like(late[..., :1]), late[..., :-1]], -1)
    return lib.softmax(logits.masked_fill(late.scatter(-1, places, late), -float("inf")), -1)


def test_words_drawn_one_by_one() -> None:
    import torch

    mine, theirs = alike(words)
    tokens = RNG.integers(0, 11, (2, 4))
    held = their_held = None
    position, generator = 0, lm.Generator().manual_seed(3)
    for _ in range(6):
        places = np.arange(position, position + tokens.shape[1], dtype=np.float32)
        angles = (places[:, None] * 10000.0 ** (-np.arange(2) / 2)).astype(np.float32)
        logits, held = mine(lm.tensor(tokens), held, lm.tensor(angles))
        wanted, their_held = theirs(torch.tensor(tokens), their_held, torch.tensor(angles))
        same(logits, wanted, 1e-5)
        odds = shares(ops, logits[:, -1])
        same(odds, shares(torch, wanted[:, -1]), 1e-5)
        position += tokens.shape[1]
        tokens = ops.multinomial(odds, 1, generator=generator).numpy()
        assert (np.take_along_axis(odds.numpy(), tokens, 1) > 0).all()


# ---- clusters: the nearest middle, then bells with covariances (expectation and maximization)


def bells(lib: Any, linalg: Any, x: Any, middles: Any, unit: Any) -> Any:
    for _ in range(5):  # k-means
        nearest = lib.cdist(x, middles).argmin(1)
        middles = lib.stack([x[nearest == k].mean(0) for k in range(3)])
    widths, weights = lib.stack([unit] * 3), middles[:, 0] * 0 + 1 / 3
    for _ in range(4):
        factor = linalg.cholesky(widths)
        z = linalg.solve_triangular(factor, (x[None] - middles[:, None]).mT, upper=False)
        scale = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        share = lib.softmax(-0.5 * (z**2).sum(1) - scale + weights.log()[:, None], 0)
        count = share.sum(1)
        middles = (share @ x) / count[:, None]
        apart = x[None] - middles[:, None]
        widths = lib.einsum("kn,kni,knj->kij", share, apart, apart) / count[:, None, None] + 1e-4 * unit
        weights = count / count.sum()
    return nearest, middles, widths, weights


def test_clusters() -> None:
    import torch

    x = np.concatenate([floats(20, 2) + np.float32(c) for c in ((0, 0), (4, 4), (0, 5))])
    start, unit = x[[0, 25, 45]], np.eye(2, dtype=np.float32)
    found = bells(ops, lm.linalg, *map(lm.tensor, (x, start, unit)))
    wanted = bells(torch, torch.linalg, *map(torch.tensor, (x, start, unit)))
    for a, b in zip(found, wanted, strict=True):
        same(a, b)


# ---- training for small integers, by scales of channels; averages of weights at a rate of their own


def rounded(lib: Any) -> Any:
    class Rounded(lib.nn.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            fake = lib.ops.fake_quantize_per_channel_affine
            scale = self.weight.detach().abs().amax(1) / 7
            zeros = scale.detach().to(lib.tensor(np.zeros(1, np.int32)).dtype) * 0
            return lib.ops.linear(x, fake(self.weight, scale, zeros, 0, -8, 7), self.bias)

    return lib.nn.Sequential(Rounded(4, 8), lib.nn.BatchNorm1d(8), lib.nn.ReLU(), Rounded(8, 2))


def test_small_integers_and_averages() -> None:
    import torch
    from torch.optim import swa_utils

    mine, theirs = alike(rounded)
    mean, their_mean = lm.train.AveragedModel(mine), swa_utils.AveragedModel(theirs)
    rule, own = torch.optim.SGD(theirs.parameters(), 0.1), optim.SGD(mine.parameters(), lr=0.1)
    their_rate = swa_utils.SWALR(rule, 0.02, anneal_epochs=3)
    rate = optim.lr_scheduler.SWALR(own, 0.02, anneal_epochs=3)
    step = lm.train_step(mine, ops.cross_entropy, own)
    batches = [(floats(8, 4), RNG.integers(0, 2, 8)) for _ in range(3)]
    for number in range(10):
        x, y = batches[number % 3]
        rule.zero_grad()
        loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        rule.step()
        same(step(x, y), loss)
        if number >= 4:
            their_mean.update_parameters(theirs)
            mean.update_parameters(mine)
            their_rate.step()
            rate.step()
    swa_utils.update_bn([torch.tensor(x) for x, _ in batches], their_mean)
    lm.train.update_bn([x for x, _ in batches], mean)
    x = batches[0][0]
    same(mean.eval()(lm.tensor(x)), their_mean.eval()(torch.tensor(x)))
