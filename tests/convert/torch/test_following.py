"""What is trained follows PyTorch's module, on whose memory the converted network is."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]

X = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def network() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))


def loss(net: Any, x: Any) -> Any:
    return net(x).square().mean()


def by_gradient(transform: Callable[[Any], Any]) -> Callable[[Any], Callable[[], set[str]]]:
    def of(net: Any) -> Callable[[], set[str]]:
        run = transform(lm.value_and_grad(loss))
        return lambda: set(run(net, lm.tensor(X))[1])

    return of


def by_step(net: Any) -> Callable[[], set[str]]:
    step = lm.train_step(net, lambda y, t: ((y - t) ** 2).mean(), lm.optim.SGD(lr=0.1))

    def trained() -> set[str]:
        before = {n: p.numpy().copy() for n, p in net.named_parameters()}
        step(X, np.ones((4, 2), np.float32))
        return {n for n, p in net.named_parameters() if (before[n] != p.numpy()).any()}

    return trained


HOW = {"eager": by_gradient(lambda f: f), "jit": by_gradient(lm.jit), "step": by_step}
FIRST, LAST = {"0.weight", "0.bias"}, {"2.weight", "2.bias"}


@pytest.mark.parametrize("how", HOW)
def test_what_is_frozen_is_as_it_was_set_last_there_or_here(how: str) -> None:
    from lamina.convert.torch import from_torch

    source = network()
    net = from_torch(source)
    trained = HOW[how](net)
    assert trained() == FIRST | LAST
    source[0].requires_grad_(False)
    assert trained() == LAST
    net.get_submodule("0").requires_grad_(True)
    net.get_submodule("2").requires_grad_(False)
    assert trained() == FIRST
    source[2].requires_grad_(False)
    source[0].requires_grad_(True)
    assert trained() == FIRST
    source[2].requires_grad_(True)
    assert trained() == FIRST | LAST
    assert all(p.requires_grad for p in source.parameters())  # the module is left as it is


@pytest.mark.parametrize("way", ["share=False", "deepcopy", "pickle"])
def test_copies_follow_none(way: str) -> None:
    from lamina.convert.torch import from_torch

    source = network()
    source[2].requires_grad_(False)
    net = from_torch(source, share=way != "share=False")
    made = {"deepcopy": copy.deepcopy, "pickle": lambda n: pickle.loads(pickle.dumps(n))}.get(
        way, lambda n: n
    )(net)
    source.requires_grad_(False)
    assert {n for n, p in made.named_parameters() if p.requires_grad} == FIRST
    made.requires_grad_(True)
    assert all(p.requires_grad for p in made.parameters())
    if made is not net:
        assert not any(p.requires_grad for p in net.parameters())
