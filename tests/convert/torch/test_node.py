"""A call as its handler sees it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def test_what_a_call_lacks_is_named() -> None:
    import torch

    from lamina.convert.torch import TorchCall, TorchConversionError

    graph = torch.fx.Graph()
    node = graph.call_function(torch.relu, (graph.placeholder("x"),))
    call = TorchCall(node, {"input": 1}, None, print, None)
    assert (call["input"], call.get("p", 3), call.either("self", "input")) == (1, 3, 1)
    with pytest.raises(TorchConversionError, match="relu: needs the argument p, has input"):
        call["p"]


def _said(handler: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Arguments that a handler gives a default of its own: their names, and the defaults that are literals."""
    for node in ast.walk(ast.parse(inspect.getsource(handler))):
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "call.get"
            and len(node.args) == 2
            and isinstance(node.args[0], ast.Constant)
        ):
            try:
                yield node.args[0].value, ast.literal_eval(node.args[1])
            except ValueError:
                continue


def _of_torch(name: str, argument: str) -> list[Any]:
    """What PyTorch's functions of a name say that an argument is where it is not given."""
    import torch

    found = []
    for place in (torch.nn.functional, torch.nn.init):
        try:
            parameter = inspect.signature(getattr(place, name)).parameters[argument]
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
        found += [parameter.default] if parameter.default is not parameter.empty else []
    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        for known in getattr(packet, overload)._schema.arguments:
            if known.name in (argument, "self" if argument == "input" else "") and known.has_default_value():
                found.append(known.default_value)
    return found


def test_what_handlers_take_for_an_argument_that_is_not_given_is_pytorchs_default() -> None:
    from lamina.convert.torch.node import HANDLERS

    names: dict[Any, list[str]] = {}
    for name, handler in HANDLERS.items():
        names.setdefault(handler, []).append(name)
    compared, wrong = 0, []
    for handler, own in names.items():
        for argument, value in _said(handler):
            theirs = [default for name in own for default in _of_torch(name, argument)]
            compared += bool(theirs)
            if theirs and value not in theirs:
                wrong.append(f"{handler.__name__}: {argument}={value!r}, PyTorch's: {theirs}")
    assert wrong == []
    assert compared > 40
