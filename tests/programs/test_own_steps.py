"""Steps that users write themselves, by PyTorch's names, against PyTorch: an actor and critics with slow twins,
low-rank updates of frozen layers, third derivatives in an equation, a filter of logits that is written in place."""

import copy
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from tests.helpers.programs import LAMINA, Library, close, pytorch

RNG = np.random.default_rng(11)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def layers(lib: Library, *sizes: int) -> Any:
    made = [m for i, o in pairwise(sizes) for m in (lib.nn.Linear(i, o), lib.nn.Tanh())]
    return lib.nn.Sequential(*made[:-1])


def alike(*sizes: int) -> tuple[Any, Any]:
    theirs = layers(pytorch(), *sizes)
    mine = layers(LAMINA, *sizes)
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    return mine, theirs


# ---- soft actor-critic: what is sampled, two critics, a temperature, slow twins that are written by `data`


def sampled(policy: Any, x: Any, noise: Any, lib: Any) -> Any:
    mean, log_std = policy(x).chunk(2, -1)
    log_std = log_std.clamp(-5, 2)
    action = lib.tanh(mean + log_std.exp() * noise)
    odds = (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
    return action, odds - lib.log(1 - action**2 + 1e-6).sum(-1)


def critics_loss(one: Any, two: Any, x: Any, wanted: Any, lib: Any) -> Any:
    return lib.mse_loss(one(x).squeeze(-1), wanted) + lib.mse_loss(two(x).squeeze(-1), wanted)


def actor_loss(policy: Any, one: Any, two: Any, x: Any, noise: Any, heat: Any, lib: Any) -> Any:
    action, odds = sampled(policy, x, noise, lib)
    both = lib.cat([x, action], -1)
    return (heat.exp() * odds - lib.minimum(one(both), two(both)).squeeze(-1)).mean(), odds


@pytest.mark.torch
def test_soft_actor_critic() -> None:
    import torch

    lib = pytorch().ops
    (policy, its), (one, a), (two, b) = alike(4, 16, 4), alike(6, 16, 1), alike(6, 16, 1)
    slow, slow_its = [copy.deepcopy(n) for n in (one, two)], [copy.deepcopy(n) for n in (a, b)]
    heat, its_heat = nn.Parameter(lm.zeros(1)), torch.zeros(1, requires_grad=True)
    rules = [
        optim.Adam(p, lr=3e-3) for p in ([*one.parameters(), *two.parameters()], policy.parameters(), [heat])
    ]
    its_rules = [
        torch.optim.Adam(p, lr=3e-3)
        for p in ([*a.parameters(), *b.parameters()], its.parameters(), [its_heat])
    ]

    @lm.jit
    def step(x: Any, action: Any, reward: Any, after: Any, first: Any, second: Any) -> Any:
        then, odds = sampled(policy, after, first, ops)
        both = ops.cat([after, then], -1)
        best = ops.minimum(slow[0](both), slow[1](both)).squeeze(-1)
        wanted = (reward + 0.9 * (best - heat.exp() * odds)).detach()
        given = ops.cat([x, action], -1)
        found = lm.value_and_grad(critics_loss, argnums=(0, 1))(one, two, given, wanted, ops)
        rules[0].step([*found[1][0].values(), *found[1][1].values()])
        (loss, odds), grads = lm.value_and_grad(actor_loss, has_aux=True)(
            policy, one, two, x, second, heat, ops
        )
        rules[1].step(grads)
        odds = odds.detach()
        last, grads = lm.value_and_grad(lambda heat: -(heat.exp() * (odds - 2)).mean())(heat)
        rules[2].step([grads])
        for twin, net in zip(slow, (one, two), strict=True):
            for p, q in zip(twin.parameters(), net.parameters(), strict=True):
                p.data.mul_(0.9).add_(q.data, alpha=0.1)
        return found[0], loss, last

    def its_step(x: Any, action: Any, reward: Any, after: Any, first: Any, second: Any) -> Any:
        with torch.no_grad():
            then, odds = sampled(its, after, first, lib)
            both = torch.cat([after, then], -1)
            best = torch.minimum(slow_its[0](both), slow_its[1](both)).squeeze(-1)
            wanted = reward + 0.9 * (best - its_heat.exp() * odds)
        losses = [critics_loss(a, b, torch.cat([x, action], -1), wanted, lib)]
        update(its_rules[0], losses[0])
        loss, odds = actor_loss(its, a, b, x, second, its_heat.detach(), lib)
        update(its_rules[1], loss)
        last = -(its_heat.exp() * (odds.detach() - 2)).mean()
        update(its_rules[2], last)
        for twin, net in zip(slow_its, (a, b), strict=True):
            for p, q in zip(twin.parameters(), net.parameters(), strict=True):
                p.data.mul_(0.9).add_(q.data, alpha=0.1)
        return losses[0], loss, last

    for _ in range(4):
        batch = [floats(*s) for s in ((8, 4), (8, 2), (8,), (8, 4), (8, 2), (8, 2))]
        for mine, theirs in zip(step(*batch), its_step(*map(torch.tensor, batch)), strict=True):
            assert mine.item() == pytest.approx(theirs.item(), rel=1e-4, abs=1e-5)
    for net, its_net in zip(slow, slow_its, strict=True):
        for p, q in zip(net.parameters(), its_net.parameters(), strict=True):
            close(p.numpy(), q.detach().numpy(), 1e-4, "slow twins", 1e-2)


def update(rule: Any, loss: Any) -> None:
    rule.zero_grad()
    loss.backward()
    rule.step()


# ---- an equation with a third derivative (Korteweg and de Vries): gradients of gradients, and along one direction


def residual(net: Any, x: Any) -> Any:
    def u(z: Any) -> Any:
        return net(z)[:, 0]

    east = ops.zeros_like(x)
    east[:, 0] = 1

    def along(f: Any) -> Any:
        return lambda z: lm.jvp(f, (z,), (east,))[1]

    later = lm.jvp(u, (x,), (1 - east,))[1]
    return ((later + u(x) * along(u)(x) + along(along(along(u)))(x)) ** 2).mean()


@pytest.mark.torch
def test_an_equation_with_a_third_derivative() -> None:
    import torch

    mine, theirs = alike(2, 12, 1)
    x = floats(9, 2)
    at = torch.tensor(x, requires_grad=True)

    def slope(y: Any) -> Any:
        return torch.autograd.grad(y.sum(), at, create_graph=True)[0]

    u = theirs(at)[:, 0]
    first = slope(u)
    third = slope(slope(first[:, 0])[:, 0])[:, 0]
    wanted = ((first[:, 1] + u * first[:, 0] + third) ** 2).mean()
    slopes = torch.autograd.grad(wanted, list(theirs.parameters()), allow_unused=True)
    for way in (lm.value_and_grad(residual), lm.jit(lm.value_and_grad(residual))):
        value, found = way(mine, lm.tensor(x))
        assert value.item() == pytest.approx(wanted.item(), rel=1e-4)
        for g, w in zip(found.values(), slopes, strict=True):
            close(g.numpy(), np.zeros(g.shape) if w is None else w.numpy(), 1e-3, "gradient", 1e-2)


# ---- words that are kept: the k likeliest, then those that together have a share, written in place


def kept(logits: Any, lib: Any) -> Any:
    logits = logits * 2
    least = logits.topk(5)[0][:, -1:]
    logits[logits < least] = -math.inf
    ordered, places = logits.sort(descending=True)
    drop = ordered.softmax(-1).cumsum(-1) > 0.9
    drop[:, 1:] = drop[:, :-1].clone()
    drop[:, 0] = False
    return logits.masked_fill_(drop.scatter(1, places, drop), -math.inf).softmax(-1)


@pytest.mark.torch
def test_a_filter_of_logits_in_place() -> None:
    import torch

    logits = floats(4, 12)
    wanted = kept(torch.tensor(logits), torch).numpy()
    close(kept(lm.tensor(logits), ops).numpy(), wanted, 1e-5, "at once", 1)
    close(lm.jit(lambda x: kept(x, ops))(logits).numpy(), wanted, 1e-5, "compiled", 1)


# ---- low-rank updates of frozen layers; gradients compiled apart from the optimizer


def adapted(lib: Library) -> Any:
    class Adapted(lib.nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = lib.nn.Parameter(lib.tensor(np.full((2, base.in_features), 0.1, np.float32)))
            self.up = lib.nn.Parameter(lib.tensor(np.zeros((base.out_features, 2), np.float32)))

        def forward(self, x: Any) -> Any:
            return self.base(x) + (x @ self.down.t() @ self.up.t()) * 2.0

    net = layers(lib, 5, 8, 3)
    for name, part in list(net.named_children()):
        if isinstance(part, lib.nn.Linear):
            setattr(net, name, Adapted(part))
    return net


@pytest.mark.torch
def test_low_rank_updates() -> None:
    import torch

    theirs, mine = adapted(pytorch()), adapted(LAMINA)
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    trained = [p for p in theirs.parameters() if p.requires_grad]
    rule, own = torch.optim.AdamW(trained, lr=0.02), optim.AdamW(mine.parameters(), lr=0.02)
    x, y = floats(12, 5), RNG.integers(0, 3, 12)
    slope = lm.jit(lm.value_and_grad(lambda net, x, y: ops.cross_entropy(net(x), y)))
    for _ in range(4):
        loss, grads = slope(mine, x, y)
        own.step(grads)
        wanted = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        update(rule, wanted)
        assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    for part, its in zip(mine.children(), theirs.children(), strict=True):
        if hasattr(part, "base"):
            part.base.weight.data.add_(2.0 * (part.up @ part.down))
            merged = its.base.weight + 2.0 * (its.up @ its.down)
            close(part.base.weight.numpy(), merged.detach().numpy(), 1e-4, "merged", 1e-2)
