"""Containers of modules and parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from operator import itemgetter
from typing import Any, Generic, Self, TypeVar, overload

from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter
from lamina.ops.core import recorder

M = TypeVar("M", bound=Module)
H = TypeVar("H")


class _Container(Module):
    """A container of modules or parameters, which is accessed rather than called."""

    def _seen(self, held: H) -> H:
        """Its contents. A trace is valid as long as they are the same."""
        if (by := recorder()) is not None and by.lasts:
            self._watched(by)
        return held


class _Numbered(_Container, Generic[M]):
    """Modules in order, named "0", "1", … unless given by a mapping; a list of modules."""

    _modules: dict[str, M]  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._seen(self._modules))

    def __iter__(self) -> Iterator[M]:
        return iter(self._seen(self._modules).values())

    @overload
    def __getitem__(self, index: int) -> M: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> M | Self:
        held = self._seen(self._modules)
        if isinstance(index, slice):
            part = type(self)()
            for name in list(held)[index]:
                part.add_module(name, held[name])
            return part
        return held[self._name(index)]

    def __setitem__(self, index: int, module: M) -> None:
        self.add_module(self._name(index), _checked(self, module))

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._modules)[index] if isinstance(index, slice) else [self._name(index)]
        for name in names:
            del self._modules[name]
        self._number(self._modules.values())

    def __add__(self, other: Iterable[M]) -> Self:
        """A new container with the modules of both."""
        return type(self)().extend(self).extend(other)

    def __iadd__(self, other: Iterable[M]) -> Self:
        return self.extend(other)

    def append(self, module: M) -> Self:
        """Add a module at the end."""
        self.add_module(str(len(self)), _checked(self, module))
        return self

    def extend(self, modules: Iterable[M]) -> Self:
        """Add modules at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: M) -> Self:
        """Insert a module before the one at `index`; later ones are renumbered."""
        held = list(self)
        held.insert(index, _checked(self, module))
        self._number(held)
        return self

    def pop(self, index: int = -1) -> M:
        """Remove and return a module; later ones are renumbered. Raises IndexError if there is none."""
        module = self[index]
        del self[index]
        return module

    def _name(self, index: int) -> str:
        """The name of the module at an index. Raises IndexError."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{type(self).__name__}: index {index} is out of range of {len(self)} modules")
        return list(self._modules)[index]

    def _number(self, modules: Iterable[M]) -> None:
        self.__dict__["_modules"] = {str(i): m for i, m in enumerate(list(modules))}
        self._note_exchange()


class Sequential(_Numbered[Module]):
    """Modules applied in sequence. Takes modules, or one mapping of names to modules."""

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        for index, entry in enumerate(modules):
            named = entry.items() if isinstance(entry, Mapping) else [(str(index), entry)]
            for name, module in named:
                self.add_module(name, _checked(self, module))

    def forward(self, x: T) -> T:
        """Each module applied to the result of the previous one."""
        for module in self:
            x = module(x)
        return x

    def __mul__(self, times: int) -> Self:
        """A new container repeating the same modules a number of times. Raises TypeError and ValueError."""
        return type(self)().extend(list(self) * _checked_times(times))

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Self:
        return self.extend(list(self) * (_checked_times(times) - 1))


def _checked_times(times: int) -> int:
    if isinstance(times, bool) or not isinstance(times, int):
        raise TypeError(f"Sequential: is multiplied by an int, got {times!r}")
    if times < 1:
        raise ValueError(f"Sequential: is multiplied by an int of at least 1, got {times}")
    return times


class ModuleList(_Numbered[M]):
    """A list of modules whose parameters are registered with the owner. It has no forward of its own."""

    def __init__(self, modules: Iterable[M] = ()) -> None:
        self.extend(modules)


class ModuleDict(_Container, Generic[M]):
    """A dict of modules whose parameters are registered with the owner. It has no forward of its own."""

    _modules: dict[str, M]  # type: ignore[assignment]

    def __init__(self, modules: Mapping[str, M] | Iterable[tuple[str, M]] = ()) -> None:
        self.update(modules)

    def __getitem__(self, key: str) -> M:
        return self._seen(self._modules)[key]

    def __setitem__(self, key: str, module: M) -> None:
        self.add_module(key, _checked(self, module))

    def __delitem__(self, key: str) -> None:
        del self._modules[key]
        self._note_exchange()

    def __len__(self) -> int:
        return len(self._seen(self._modules))

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen(self._modules))

    def __contains__(self, key: object) -> bool:
        return key in self._seen(self._modules)

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._seen(self._modules).keys()

    def values(self) -> ValuesView[M]:
        """The modules."""
        return self._seen(self._modules).values()

    def items(self) -> ItemsView[str, M]:
        """Names and modules."""
        return self._seen(self._modules).items()

    def update(self, modules: Mapping[str, M] | Iterable[tuple[str, M]]) -> None:
        """Add modules, or replace those of the same name."""
        for key, module in modules.items() if isinstance(modules, Mapping) else modules:
            self[key] = module

    def pop(self, key: str) -> M:
        """Remove and return a module. Raises KeyError if there is none."""
        module = self[key]
        del self[key]
        return module

    def clear(self) -> None:
        """Remove all modules."""
        self._modules.clear()
        self._note_exchange()


class ParameterList(_Container):
    """A list of parameters that are registered with the owner. Tensors and arrays become parameters."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.extend(values)

    def __len__(self) -> int:
        return len(self._seen(self._parameters))

    def __iter__(self) -> Iterator[Any]:
        return (getattr(self, name) for name in self._seen(self._parameters))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self._seen(self._parameters).values())[index])
        return getattr(self, self._name(index))

    def __setitem__(self, index: int, value: Any) -> None:
        self.register_parameter(self._name(index), as_parameter(value))

    def __iadd__(self, values: Iterable[Any]) -> Self:
        return self.extend(values)

    def append(self, value: Any) -> Self:
        """Add a parameter at the end."""
        self.register_parameter(str(len(self)), as_parameter(value))
        return self

    def extend(self, values: Iterable[Any]) -> Self:
        """Add parameters at the end."""
        for value in list(values):
            self.append(value)
        return self

    def _name(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(
                f"{type(self).__name__}: index {index} is out of range of {len(self)} parameters"
            )
        return str(index % len(self))


class ParameterDict(_Container):
    """A dict of parameters that are registered with the owner. Tensors and arrays become parameters."""

    def __init__(
        self, parameters: Mapping[str, Any] | ParameterDict | Iterable[tuple[str, Any]] = ()
    ) -> None:
        self.update(parameters)

    def __getitem__(self, key: str) -> Any:
        if key not in self._seen(self._parameters):
            raise KeyError(key)
        return getattr(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.register_parameter(key, as_parameter(value))

    def __delitem__(self, key: str) -> None:
        del self._parameters[key]
        self._note_exchange()

    def __len__(self) -> int:
        return len(self._seen(self._parameters))

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen(self._parameters))

    def __contains__(self, key: object) -> bool:
        return key in self._seen(self._parameters)

    def keys(self) -> KeysView[str]:
        """The names."""
        return self._seen(self._parameters).keys()

    def values(self) -> list[Any]:
        """The parameters."""
        return [self[name] for name in self._seen(self._parameters)]

    def items(self) -> list[tuple[str, Any]]:
        """Names and parameters."""
        return [(name, self[name]) for name in self._seen(self._parameters)]

    def update(self, parameters: Mapping[str, Any] | ParameterDict | Iterable[tuple[str, Any]]) -> None:
        """Add parameters, or replace those of the same name. Those of a plain mapping are sorted by name, as torch's,
        so that optimizers number them alike."""
        if isinstance(parameters, OrderedDict | ParameterDict):
            pairs: Iterable[tuple[str, Any]] = parameters.items()
        else:
            pairs = (
                sorted(parameters.items(), key=itemgetter(0))
                if isinstance(parameters, Mapping)
                else parameters
            )
        for key, value in pairs:
            self[key] = value

    def get(self, key: str, default: Any = None) -> Any:
        """The parameter of this name, or the default."""
        return default if key not in self._parameters else self[key]

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The parameter of this name, set to the default if there is none."""
        if key not in self:
            self[key] = default
        return self[key]

    def pop(self, key: str) -> Any:
        """Remove and return a parameter. Raises KeyError if there is none."""
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove and return the last parameter, with its name. Raises KeyError if there is none."""
        if not self:
            raise KeyError("ParameterDict: popitem of an empty one")
        key = next(reversed(self))
        return key, self.pop(key)

    def fromkeys(self, keys: Iterable[str], default: Any = None) -> Self:
        """A new container with these names, each mapped to the default."""
        return type(self)((key, default) for key in keys)

    def copy(self) -> Self:
        """A new container with the same parameters."""
        return type(self)(self._parameters.items())

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._seen(self._parameters))

    def __or__(self, other: Mapping[str, Any] | ParameterDict) -> Self:
        """A new container with the parameters of both; for equal names, the other's."""
        joined = self.copy()
        joined.update(other)
        return joined

    def __ior__(self, other: Mapping[str, Any] | ParameterDict) -> Self:
        self.update(other)
        return self

    def clear(self) -> None:
        """Remove all parameters."""
        self._parameters.clear()
        self._note_exchange()


def as_parameter(value: Any) -> Parameter | None:
    """A parameter unchanged, None for None, a tensor or array as a parameter."""
    return value if value is None or isinstance(value, Parameter) else Parameter(value)


class Identity(Module):
    """Returns its input; accepts any constructor arguments, as a placeholder for any layer."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def forward(self, x: T) -> T:
        """x itself."""
        return x


def _checked(owner: Module, module: M) -> M:
    """The module. Raises TypeError for anything else."""
    if not isinstance(module, Module):
        raise TypeError(f"{type(owner).__name__} holds modules, got {type(module).__name__}: {module!r:.60}")
    return module
