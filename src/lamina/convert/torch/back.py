"""`to_torch`: a Lamina network as a PyTorch module with the same names and bit-identical weights."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from lamina import ops
from lamina.convert.free_axes import Free
from lamina.convert.torch.converted import ConvertedModule
from lamina.convert.torch.memory import copied, real_form, torch_tensor
from lamina.convert.torch.network import WrittenNetwork, WrittenPart, signature_of, write_network
from lamina.convert.torch.node import TorchConversionError
from lamina.nn import Dropout, Module
from lamina.tensors import Tensor


def to_torch(network: Module, *examples: Any, dynamic: Free | None = None) -> torch.nn.Module:
    """A PyTorch module with the network's parameters, buffers and modes: equal bits under equal names.

    A network converted by `from_torch` becomes a copy of the original module. One made of layers of `lamina.nn`
    becomes the layers of torch.nn of the same names and arguments, in the same containers. Any other, with custom
    classes, is written as graphs of PyTorch's functions, in training and in inference mode, with shapes and dtypes
    given by examples of its inputs; random numbers are drawn from PyTorch's generator.

    examples, dynamic: as in `to_onnx`: specs, arrays or tensors, one for each argument, and the axes whose size is
    free. Parameters are on the CPU; shared layers and parameters stay shared.

    Raises TorchConversionError for a class that torch.nn lacks if there are no examples, with its path; for an op
    without a PyTorch function, with the op, its module and line; ValueError and TypeError for examples and axes that
    do not fit the network.
    """
    came = isinstance(network, ConvertedModule)
    made = copied(network.source) if came else _made(network, examples, dynamic)
    state = network.state_dict()
    own = _tensors(made)
    differing = sorted(own.keys() ^ state.keys()) or [
        k for k in own if real_form(own[k]).shape != state[k].shape
    ]
    if differing:
        raise TorchConversionError(f"to_torch: torch.nn keeps other states: {', '.join(differing[:5])}")
    placed: dict[int, torch.nn.Parameter] = {}
    for name, held in state.items():
        _place(made, name, held, placed)
    modes = {path: part.training for path, part in network.named_modules()}
    for path, module in made.named_modules():
        module.training = modes.get(path, network.training)
    return made


def _tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A module's state without what is no parameter and no buffer: extra states, settings that its class adds."""
    found = module.state_dict().items()
    return {n: x for n, x in found if isinstance(x, torch.Tensor) and n.rpartition(".")[2] != "_extra_state"}


def _made(network: Module, examples: tuple[Any, ...], dynamic: Free | None) -> torch.nn.Module:
    """The network as torch.nn layers, else, given examples, as graphs."""
    try:
        return _layer(network, "", {})
    except TorchConversionError:
        if not examples:
            raise
    written = WrittenNetwork(type(network).__name__, signature_of(network, examples, dynamic))
    _own(network, written, {id(network): written})
    write_network(network, written, examples, dynamic)
    return written


def _own(module: Module, part: torch.nn.Module, known: dict[int, torch.nn.Module]) -> None:
    """Add a module's own attributes to a part. known: the parts of modules by their ids."""
    for name, p in module._parameters.items():
        own = None if p is None else torch.nn.Parameter(torch_tensor(p), p.requires_grad)
        part.register_parameter(name, own)
    for name, held in module._buffers.items():
        part.register_buffer(
            name, None if held is None else torch_tensor(held), name not in module._transient
        )
    for name, child in module.named_children():
        if id(child) not in known:
            known[id(child)] = WrittenPart(type(child).__name__)
            _own(child, known[id(child)], known)
        part.add_module(name, known[id(child)])


def _layer(module: Module, path: str, known: dict[int, torch.nn.Module]) -> torch.nn.Module:
    """The torch.nn module of the same class, its children made the same way. known: by the ids of ours."""
    if id(module) not in known:
        known[id(module)] = _new_layer(module, path, known)
    return known[id(module)]


def _new_layer(module: Module, path: str, known: dict[int, torch.nn.Module]) -> torch.nn.Module:
    name = type(module).__name__
    theirs = getattr(torch.nn, name, None)
    if theirs is None or not type(module).__module__.startswith("lamina.nn"):
        raise TorchConversionError(
            f"to_torch: {path or 'the network'} is a {name}, which torch.nn does not have: give examples of the "
            "network's inputs, and it is written as a graph (to_torch(network, x))"
        )
    if theirs in (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict):
        made: torch.nn.Module = theirs()
        for key, child in module.named_children():
            made.add_module(key, _layer(child, f"{path}.{key}".lstrip("."), known))
        return made
    built: torch.nn.Module = theirs(**_arguments(module, theirs, path, known))
    for key, child in module.named_children():  # attributes changed since construction
        if type(built._modules.get(key)).__name__ == type(child).__name__:
            built._modules[key] = _layer(child, f"{path}.{key}".lstrip("."), known)
    return built


def _arguments(
    module: Module, theirs: type[torch.nn.Module], path: str, known: dict[int, torch.nn.Module]
) -> dict[str, Any]:
    """The constructor arguments of the torch.nn class: the layer's own attributes of these names."""
    found: dict[str, Any] = {}
    taken = inspect.signature(theirs).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if name.startswith("_") or not (anything or name in taken):
            continue
        if name == "bias":
            found[name] = _has_bias(module)
        elif name not in module._parameters and hasattr(module, name):
            found[name] = _argument(getattr(module, name), f"{path}.{name}".lstrip("."), known)
        elif parameter.default is parameter.empty:
            raise TorchConversionError(
                f"to_torch: {path or 'the network'}: a {type(module).__name__} does not keep its argument {name}, "
                "which torch.nn's takes; give examples of the network's inputs (to_torch(network, x))"
            )
    return found


def _has_bias(module: Module) -> bool:
    """Whether a layer, or one within it, has any bias; those of keys and values belong to another argument."""
    if isinstance(module.__dict__.get("bias"), bool):
        return bool(module.__dict__["bias"])
    own = (name.rpartition(".")[2] for name, _ in module.named_parameters())
    return any("bias" in name and name not in ("bias_k", "bias_v") for name in own)


def _argument(value: Any, path: str, known: dict[int, torch.nn.Module]) -> Any:
    """An attribute's counterpart: modules and functions are torch's of the same name."""
    if isinstance(value, Dropout):  # under the name of its rate
        return value.p
    if isinstance(value, Module):
        return _layer(value, path, known)
    if isinstance(value, (tuple, list)):
        return tuple(value)
    if not callable(value):
        return value
    name = getattr(value, "__name__", "")
    found = getattr(torch.nn.functional, name, None) if value is getattr(ops, name, None) else None
    if found is None:
        raise TorchConversionError(
            f"to_torch: {path} is {name or repr(value)}, a function that torch.nn.functional does not have: "
            "give examples of the network's inputs (to_torch(network, x))"
        )
    return found


def _place(module: torch.nn.Module, name: str, held: Tensor, placed: dict[int, torch.nn.Parameter]) -> None:
    """Set a parameter or buffer to these values. placed: the parameters already set, by the ids of ours."""
    path, _, own = name.rpartition(".")
    part = module.get_submodule(path)
    before = part._parameters.get(own)
    parameter = placed.get(id(held), before)
    if parameter is None:
        part._buffers[own] = _values(held, part._buffers[own])
        return
    if id(held) not in placed:
        parameter.data = _values(held, before)
        placed[id(held)] = parameter
    part._parameters[own] = parameter


def _values(held: Tensor, like: torch.Tensor | None) -> torch.Tensor:
    """A PyTorch tensor with these values; complex if the one it replaces is: pairs become its elements."""
    found = torch_tensor(held)
    return torch.view_as_complex(found) if like is not None and like.is_complex() else found
