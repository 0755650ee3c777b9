"""A PyTorch function run as a graph of Lamina's ops, compared with PyTorch's results; imports torch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import lamina as lm
from lamina.convert.torch import FxProgram


class _Network(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def exported(function: Callable[..., Any], *inputs: Any) -> FxProgram:
    """The function as torch.export's training IR: overloads of ATen."""
    network = function if isinstance(function, torch.nn.Module) else _Network(function)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the flat weights of recurrent layers
        return FxProgram(torch.export.export(network, copies(inputs), strict=False).module())


def captured(function: Callable[..., Any], *inputs: Any) -> FxProgram:
    """The function as Dynamo passes it to a backend: functions and methods of torch."""
    found: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        found.append(graph)
        return graph

    torch._dynamo.reset()
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(*copies(inputs))
    return FxProgram(found[0])


def copies(inputs: Any) -> tuple[Any, ...]:
    return tuple(copy.deepcopy(x) for x in inputs)


def agree(
    function: Callable[..., Any], *inputs: Any, ways: Any = (exported, captured), tolerance: float = 2e-5
) -> None:
    """Outputs, and writes to the inputs, are PyTorch's, by both kinds of graphs."""
    for way in ways:
        program = way(function, *inputs)
        assert program.unknown() == [], way.__name__
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        given = copies(inputs)
        wanted = function(*given)
        found = program(*copies(tensors))
        close(list(found.outputs), torch.utils._pytree.tree_leaves(wanted), tolerance)
        changed = [x for x in given if isinstance(x, torch.Tensor)]
        for name, own, after in zip(program.inputs, tensors, changed, strict=True):
            if not torch.equal(own, after):
                close(found.changed[name], after, tolerance)


def close(found: Any, wanted: Any, tolerance: float = 2e-5) -> None:
    """Nested results are equal in structure, dtype and shape, and in value within the largest times a tolerance."""
    if isinstance(wanted, torch.Tensor):
        assert (str(found.dtype), found.shape) == (
            str(wanted.dtype).removeprefix("torch."),
            tuple(wanted.shape),
        )
        theirs = wanted.detach().double().numpy()
        scale = max(1.0, np.abs(theirs[np.isfinite(theirs)]).max(initial=0))
        np.testing.assert_allclose(found.numpy().astype(np.float64), theirs, tolerance, tolerance * scale)
    elif isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            close(a, b, tolerance)
    else:
        assert found == wanted or (isinstance(found, lm.Tensor) and found.item() == wanted)
