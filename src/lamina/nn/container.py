"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from lamina.nn.module import Module


class _Numbered(Module):
    """Modules under the names "0", "1", …, in order."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Module]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return list(self._modules.values())[index]

    def append(self, module: Module) -> None:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)


class Sequential(_Numbered):
    """Modules one after another. Takes modules, or one mapping of names to modules."""

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        for index, entry in enumerate(modules):
            named = entry.items() if isinstance(entry, Mapping) else [(str(index), entry)]
            for name, module in named:
                self.add_module(name, module)

    def forward(self, x: Any) -> Any:
        """Each module on the result of the one before."""
        for module in self:
            x = module(x)
        return x


class ModuleList(_Numbered):
    """A list of modules whose parameters belong to the owner. It has no forward of its own."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        for module in modules:
            self.append(module)


class Identity(Module):
    """Returns what it is given."""

    def forward(self, x: Any) -> Any:
        """x itself."""
        return x
