"""Every default of the public interface is the committed one, and PyTorch's where PyTorch has the name."""

import inspect
import json
from collections.abc import Iterator
from typing import Any

import pytest

from lamina import nn, ops, optim
from lamina.nn import init
from lamina.optim import lr_scheduler
from tests.helpers import signatures

TABLE: dict[str, dict[str, dict[str, str]]] = json.loads(signatures.TABLE.read_text(encoding="utf-8"))
AGAIN = "if that is meant, python -m tests.helpers.signatures write"


@pytest.mark.parametrize("module", sorted(TABLE))
def test_defaults_are_as_committed(module: str) -> None:
    found = signatures.defaults().get(module, {})
    changed = {
        f"{name}: {argument}": (known, now)
        for name in TABLE[module] | found
        for argument in TABLE[module].get(name, {}) | found.get(name, {})
        if (known := TABLE[module].get(name, {}).get(argument)) != (now := found.get(name, {}).get(argument))
    }
    assert changed == {}, f"(as committed, as found): {AGAIN}"


def test_every_module_is_in_the_table() -> None:
    assert sorted(signatures.defaults()) == sorted(TABLE), AGAIN


#: What is meant to differ, and why.
OTHERWISE = {
    "None stands for the op's own": {
        "CosineEmbeddingLoss.margin", "HingeEmbeddingLoss.margin", "MarginRankingLoss.margin",
    },
    "torch guesses the axis and warns": {
        "LogSoftmax.dim", "Softmax.dim", "Softmin.dim", "log_softmax.dim", "softmax.dim", "softmin.dim",
    },
    "torch warns until an indexing is given": {"meshgrid.indexing"},
    "nothing is an empty sequence": {
        "ModuleDict.modules", "ModuleList.modules", "ParameterDict.parameters", "ParameterList.values",
    },
    "functions by their name": {
        "Transformer.activation", "TransformerDecoderLayer.activation", "TransformerEncoderLayer.activation",
    },
}  # fmt: skip


def shared() -> Iterator[tuple[str, Any, Any]]:
    """What has a signature here and in PyTorch: the name, Lamina's and torch's parameters."""
    import torch

    places = [
        (nn, torch.nn), (ops, torch.nn.functional), (ops, torch), (optim, torch.optim), (init, torch.nn.init),
        (lr_scheduler, torch.optim.lr_scheduler), (nn.utils, torch.nn.utils),
    ]  # fmt: skip
    for mine, theirs in places:
        for name in mine.__all__:
            try:
                both = [inspect.signature(getattr(place, name)).parameters for place in (mine, theirs)]
            except (AttributeError, TypeError, ValueError):
                continue  # torch has it not, or without a signature
            yield (name, *both)


@pytest.mark.torch
def test_defaults_are_those_of_torch() -> None:
    pytest.importorskip("torch")
    compared, different = 0, set()
    for name, mine, theirs in shared():
        for argument in mine.keys() & theirs.keys():
            values = mine[argument].default, theirs[argument].default
            if inspect.Parameter.empty not in values:
                compared += 1
                if values[0] != values[1] and repr(values[0]) != repr(values[1]):
                    different.add(f"{name}.{argument}")
    assert different == set().union(*OTHERWISE.values())
    assert compared > 550
