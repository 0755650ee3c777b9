"""`to_torch`: a Lamina network as PyTorch's module of the same names, with the same weights to the bit."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import numpy as np
import torch

from lamina.convert.torch.converted import ConvertedModule
from lamina.convert.torch.node import TorchConversionError
from lamina.nn import Module
from lamina.tensors import Tensor


def to_torch(network: Module) -> torch.nn.Module:
    """A PyTorch module with the network's parameters, buffers and modes: equal bits under equal names.

    A network that came by `from_torch` goes back as a copy of the module that it was. One made of layers of
    `lamina.nn` becomes the layers of torch.nn of the same names and arguments, in the same containers. Parameters
    lie on the CPU.

    Raises TorchConversionError for a class that torch.nn does not have, by its path: such a network goes out as
    ONNX (`lamina.convert.to_onnx`).
    """
    made = copy.deepcopy(network.source) if isinstance(network, ConvertedModule) else _layer(network, "")
    state = {name: _plain(held) for name, held in network.state_dict().items()}
    own = made.state_dict()
    if own.keys() != state.keys() or any(own[k].shape != state[k].shape for k in own):
        differing = sorted(own.keys() ^ state.keys()) or [k for k in own if own[k].shape != state[k].shape]
        raise TorchConversionError(f"to_torch: torch.nn keeps other states: {', '.join(differing[:5])}")
    for name, value in state.items():
        _place(made, name, value)
    modes = {path: part.training for path, part in network.named_modules()}
    for path, module in made.named_modules():
        module.training = modes.get(path, network.training)
    return made


def _layer(module: Module, path: str) -> torch.nn.Module:
    """The module of torch.nn of the same class, its children made the same way."""
    name = type(module).__name__
    theirs = getattr(torch.nn, name, None)
    if theirs is None or not type(module).__module__.startswith("lamina.nn"):
        raise TorchConversionError(
            f"to_torch: {path or 'the network'} is a {name}, which torch.nn does not have; networks with functions "
            "of their own go out as ONNX (lamina.convert.to_onnx)"
        )
    children = dict(module.named_children())
    if theirs is torch.nn.Sequential or theirs is torch.nn.ModuleList:
        made: torch.nn.Module = theirs()
        for key, child in children.items():
            made.add_module(key, _layer(child, f"{path}.{key}".lstrip(".")))
        return made
    if theirs is torch.nn.ModuleDict:
        return torch.nn.ModuleDict({k: _layer(c, f"{path}.{k}".lstrip(".")) for k, c in children.items()})
    built: torch.nn.Module = theirs(**_arguments(module, theirs, path))
    return built


def _arguments(module: Module, theirs: type[torch.nn.Module], path: str) -> dict[str, Any]:
    """What the constructor of torch.nn is given: the layer's own attributes of these names."""
    found: dict[str, Any] = {}
    taken = inspect.signature(theirs).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in taken.values())
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if name.startswith("_") or not (anything or name in taken):
            continue
        if name == "bias":
            found[name] = _has_bias(module)
        elif name in module.__dict__ and name not in module._parameters:
            found[name] = _listed(module.__dict__[name])
        elif parameter.default is parameter.empty:
            raise TorchConversionError(
                f"to_torch: {path or 'the network'}: a {type(module).__name__} does not keep its argument {name}, "
                "which torch.nn's takes; it goes out as ONNX (lamina.convert.to_onnx), its weights by state_dict"
            )
    return found


def _has_bias(module: Module) -> bool:
    """Whether a layer has any bias."""
    if isinstance(module.__dict__.get("bias"), bool):
        return bool(module.__dict__["bias"])
    return any("bias" in name and p is not None for name, p in module._parameters.items())


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, (tuple, list)) else value


def _plain(held: Tensor) -> torch.Tensor:
    """The values as a tensor of PyTorch, in memory of its own."""
    if str(held.dtype) == "bfloat16":  # NumPy has no such numbers: their bits travel
        return torch.from_numpy(np.ascontiguousarray(held.numpy()).view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(held.numpy()))


def _place(module: torch.nn.Module, name: str, value: torch.Tensor) -> None:
    """Give a parameter or buffer these values."""
    path, _, own = name.rpartition(".")
    part = module.get_submodule(path)
    held = part._parameters.get(own)
    if held is not None:
        held.data = value
    else:
        part._buffers[own] = value
