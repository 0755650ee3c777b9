"""User programs, written once and run by two libraries: Lamina and PyTorch, by their common names.

A program is a class whose code takes its layers from `lib.nn` and its functions from `lib.ops`; it is made for each
library, starts from the same weights and uses the same batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import lamina as lm
from lamina import nn, ops, optim
from lamina._tree import leaves
from tests.helpers.second_device import SECOND, known

#: For outputs, gradients and losses over the steps: relative to the largest value. A gradient that is exactly 0
#: mathematically (of a bias before a norm) is compared with a hundredth of the largest gradient of all.
FORWARD, GRADIENT, LOSS = 1e-5, 1e-4, 1e-4


class Library(NamedTuple):
    """A program's source of layers, functions and optimizers."""

    nn: Any
    ops: Any
    tensor: Callable[[Any], Any]


class Program(NamedTuple):
    """A network for a library, its loss, and its batches.

    make: the network. loss: (library, outputs, targets) -> scalar. batches: [(inputs, targets)], each an array or a
    tuple of arrays, used one after the other in turn.
    """

    make: Callable[[Library], Any]
    loss: Callable[[Library, Any, Any], Any]
    batches: list[tuple[Any, Any]]
    lr: float = 0.05
    adam: bool = False


def lamina(device: str) -> Library:
    """Lamina; the program creates its own tensors on a device."""
    return Library(nn, ops, partial(lm.tensor, device=device))


LAMINA = lamina("cpu")


def pytorch() -> Library:
    """PyTorch, with its functions looked up in torch."""
    import torch

    class Functions:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch.nn.functional, name, None) or getattr(torch, name)

    return Library(torch.nn, Functions(), torch.tensor)


def check(program: Program, device: str = "cpu", steps: int = 10) -> None:
    """Compare outputs, gradients and the losses of some steps with PyTorch."""
    import torch

    torch.manual_seed(0)
    theirs_lib = pytorch()
    theirs, mine = program.make(theirs_lib), program.make(lamina(device))
    mine.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    mine.to(device)
    _same_outputs(program, theirs_lib, theirs, mine, device)
    if program.adam:
        rule: Any = torch.optim.AdamW(theirs.parameters(), program.lr, weight_decay=0.01)
        own: Any = optim.AdamW(lr=program.lr, weight_decay=0.01)
    else:
        rule = torch.optim.SGD(theirs.parameters(), program.lr, momentum=0.9)
        own = optim.SGD(lr=program.lr, momentum=0.9)
    step = lm.train_step(mine, lambda y, t: program.loss(lamina(device), y, t), own, device=device)
    wanted, found = [], []
    for number in range(steps):
        inputs, targets = program.batches[number % len(program.batches)]
        rule.zero_grad()
        value = program.loss(theirs_lib, theirs(*_torch(inputs)), _one(_torch(targets)))
        value.backward()
        rule.step()
        wanted.append(value.item())
        found.append(float(step(inputs, targets)))
    np.testing.assert_allclose(found, wanted, rtol=LOSS, err_msg="losses")
    assert wanted[0] != wanted[-1], "nothing is learned"


def _same_outputs(program: Program, lib: Library, theirs: Any, mine: Any, device: str) -> None:
    import torch

    inputs, targets = program.batches[0]
    outputs = theirs(*_torch(inputs))
    loss = program.loss(lib, outputs, _one(_torch(targets)))
    names = [name for name, _ in theirs.named_parameters()]
    slopes = torch.autograd.grad(loss, list(theirs.parameters()), allow_unused=True)
    slopes = [
        torch.zeros_like(p) if g is None else g for p, g in zip(theirs.parameters(), slopes, strict=True)
    ]
    largest = max(float(g.abs().max()) for g in slopes)
    held = [lm.tensor(x, device=device) for x in _arrays(inputs)]
    goals = _one([lm.tensor(x, device=device) for x in _arrays(targets)])

    def run(net: Any) -> Any:
        y = net(*held)
        return program.loss(lamina(device), y, goals), y

    found, y = lm.grad(run, has_aux=True)(mine)
    for a, b in zip(leaves(y), _leaves(outputs), strict=True):
        close(a.numpy(), b, FORWARD, "output", 1e-3)
    assert sorted(found) == sorted(names)
    for name, slope in zip(names, slopes, strict=True):
        close(found[name].numpy(), slope.numpy(), GRADIENT, name, largest / 100)


def run_beside(program: Program) -> tuple[list[Any], list[Any]]:
    """Outputs and gradients of a program on the host, and on a second device, where all of them must be."""
    state: Any = None
    results = []
    for device in (lm.Device("cpu"), SECOND):
        with known():
            lib = Library(nn, ops, partial(lm.tensor, device=device))
            net = program.make(lib)
            state = state or {k: v.numpy().copy() for k, v in net.state_dict().items()}
            net.load_state_dict(state)
            net.to(device)
            inputs, targets = ([lm.tensor(x, device=device) for x in _arrays(a)] for a in program.batches[0])
            y, grads = _eager(program, lib, net, inputs, _one(targets))
        found = [*leaves(y), *grads.values()]
        assert all(x.device == device for x in found)
        results.append([x.numpy() for x in found])
    return results[0], results[1]


def _eager(program: Program, lib: Library, net: Any, inputs: list[Any], targets: Any) -> tuple[Any, Any]:
    def run(net: Any) -> Any:
        y = net(*inputs)
        return program.loss(lib, y, targets), y

    grads, y = lm.grad(run, has_aux=True)(net)
    return y, grads


def close(found: Any, wanted: Any, tolerance: float, what: str, least: float) -> None:
    """Equal within a tolerance relative to the largest value, or to `least` if that is larger."""
    largest = max(float(np.abs(wanted).max()), least)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * largest, err_msg=what)


def _arrays(given: Any) -> list[Any]:
    return list(given) if isinstance(given, tuple) else [given]


def _torch(given: Any) -> list[Any]:
    import torch

    return [torch.tensor(x) for x in _arrays(given)]


def _one(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def _leaves(outputs: Any) -> list[Any]:
    several = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    return [y.detach().numpy() for y in several]
