"""Parameters that are computed from others on every read. Names as in torch.nn.utils.parametrize."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from lamina.nn.container import ModuleDict
from lamina.nn.module import Module
from lamina.nn.parameter import Parameter
from lamina.ops.arguments import checked
from lamina.ops.core import recorder
from lamina.spec import ShapeError


class ParametrizationList(Module):
    """The originals of one parameter, and the chain of modules that computes its value.

    The originals are the parameter `original`, or `original0`, `original1`, … if the first module's `right_inverse`
    returns several. The modules are named "0", "1", …
    """

    def __init__(self, first: Module, value: Parameter) -> None:
        inverse = getattr(first, "right_inverse", None)
        held = value if inverse is None else inverse(value)
        self.count = len(held) if isinstance(held, tuple | list) else 0
        for name, x in zip(self._names(), held if self.count else (held,), strict=True):
            self.register_parameter(
                name, x if isinstance(x, Parameter) else Parameter(x, value.requires_grad)
            )
        self.length = 0
        self.append(first)

    def _names(self) -> list[str]:
        return [f"original{i}" for i in range(self.count)] if self.count else ["original"]

    def append(self, parametrization: Module) -> None:
        """Append a module to the chain."""
        self.add_module(str(self.length), parametrization)
        self.length += 1

    def assign(self, value: Any) -> None:
        """Set the parameter's value: the originals become the results of the modules' `right_inverse`.

        Raises TypeError if a module has none, ShapeError for originals of another shape.
        """
        for i in reversed(range(self.length)):
            module = self._modules[str(i)]
            inverse = getattr(module, "right_inverse", None)
            if inverse is None:
                raise TypeError(
                    f"{type(module).__name__} has no right_inverse, so that a parameter which it computes cannot be "
                    "assigned: write over its original, or remove_parametrizations"
                )
            value = inverse(value)
        for name, new in zip(self._names(), value if self.count else (value,), strict=True):
            self.get_parameter(name).copy_(new)

    def forward(self) -> Any:
        """The parameter's value."""
        kept = _cached.get()
        if kept is None:
            return self._made()
        originals = [getattr(self, name) for name in self._names()]
        key = (id(self), id(recorder()), *map(id, originals))
        if key not in kept:
            kept[key] = (
                self,
                recorder(),
                originals,
                self._made(),
            )  # kept alive, so that no other object gets these ids
        return kept[key][-1]

    def _made(self) -> Any:
        value = self._modules["0"](*(getattr(self, name) for name in self._names()))
        for i in range(1, self.length):
            value = self._modules[str(i)](value)
        return value


#: Cached values of parametrized parameters within `cached`, by the parametrization and the originals that were read.
_cached: ContextVar[dict[Any, Any] | None] = ContextVar("lamina_parametrized", default=None)


@contextmanager
def cached() -> Iterator[None]:
    """Within the block a parametrized parameter is computed once and cached, whatever changes."""
    token = _cached.set({} if _cached.get() is None else _cached.get())
    try:
        yield
    finally:
        _cached.reset(token)


@checked
def register_parametrization(module: Module, tensor_name: str, parametrization: Module) -> Module:
    """Let a module compute another one's parameter: from now on `module.weight` is parametrization(original).

    The original is the module's parameter `parametrizations.<name>.original`. A parametrization with `right_inverse`
    maps values to originals. Several are applied in sequence. Register before creating a step or an optimizer. Raises
    ValueError unless name is a parameter, ShapeError if the value's shape differs.
    """
    held = module._modules.get("parametrizations")
    if held is not None and tensor_name in held._modules:
        held._modules[tensor_name].append(parametrization)
    else:
        value = module._parameters.get(tensor_name)
        if value is None:
            raise ValueError(
                f"register_parametrization: {type(module).__name__} has no parameter {tensor_name!r}"
            )
        made = ParametrizationList(parametrization, value)
        shape = made().shape
        if shape != value.shape:
            raise ShapeError(
                f"register_parametrization: {type(parametrization).__name__} makes of {tensor_name}, of shape "
                f"{value.shape}, one of shape {shape}"
            )
        delattr(module, tensor_name)
        if held is None:
            module.add_module("parametrizations", ModuleDict({}))
        module._modules["parametrizations"][tensor_name] = made
    return module


@checked
def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a parameter, or any, is parametrized."""
    held = module._modules.get("parametrizations")
    return held is not None and (tensor_name is None or tensor_name in held._modules)


@checked
def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make a parameter a plain one again: with its current value, or else its original. Raises ValueError."""
    held = module._modules.get("parametrizations")
    if held is None or tensor_name not in held._modules:
        raise ValueError(
            f"remove_parametrizations: {type(module).__name__}.{tensor_name} is not parametrized"
        )
    parts: Any = held._modules[tensor_name]
    if not leave_parametrized and parts.count:
        raise ValueError(f"remove_parametrizations: {tensor_name} has several originals; keep its value")
    value = 1.0 * parts() if leave_parametrized else parts.original
    del held._modules[tensor_name]
    if not held._modules:
        del module._modules["parametrizations"]
    module.register_parameter(tensor_name, value if isinstance(value, Parameter) else Parameter(value))
    return module
