"""State that `forward` carries between calls in plain attributes: a graph contains it as constants.

Parameters and buffers are a graph's state. A count, a tensor that is not a buffer, a hidden state, the statistics of
a batch norm in a list are not: each call reads their values at trace time, and writes to them are lost. So the traced
run's changes to them are undone, and the user is warned.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from operator import is_
from typing import Any, NamedTuple, Self

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from lamina.convert.torch.source import HOOKS, OF_EVERY_MODULE
from lamina.graph.ir.surroundings import (
    DEEPEST,
    PLAIN,
    Read,
    is_advanced,
    is_carried,
    is_users_object,
    users_frame,
)

_ABSENT = object()
#: Mutable containers, and the class of functions with a result cache.
_OPEN = (list, dict, set, deque)
_MEMORY = type(lru_cache(len))
#: Functions that only read the shape or the dtype of their second argument.
_AS_OTHERS = ("to", "type_as", "expand_as", "view_as", "reshape_as")


class Dependent(TorchFunctionMode):
    """Within the block it collects the tensors that are computed from the values of others (not only from their
    shapes: tables, masks).
    """

    def __init__(self, given: Iterable[Any]) -> None:
        super().__init__()
        self._found = {id(x): x for x in given}  # kept alive, so that no id is reused

    def __contains__(self, value: Any) -> bool:
        """Whether one of the tensors in a value is among them."""
        return any(id(x) in self._found for x in tree_leaves(value))

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function; its results are recorded."""
        found = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        of_shape = name.endswith("_like") or name.startswith("new_")
        read = args[:1] if name in _AS_OTHERS else (args, kwargs)
        if not of_shape and read in self:
            written = args[0] if name == "__setitem__" else None
            self._found |= {id(x): x for x in tree_leaves((found, written)) if isinstance(x, torch.Tensor)}
        return found


class _Held(NamedTuple):
    """A tensor reachable from an attribute, and its values."""

    owner: str
    name: str
    tensor: torch.Tensor
    version: int
    values: torch.Tensor


class Carried:
    """The changes of a module's plain attributes by its runs. To be created before them.

    reads: further values that its functions read (variables around them, attributes of other objects).
    """

    def __init__(self, module: torch.nn.Module, reads: Iterable[Read] = ()) -> None:
        self._parts = [(part, dict(_plain(part))) for part in module.modules()]
        tables = [vars(part)[name] for part, _ in self._parts for name in HOOKS]
        self._hooks = [(table, dict(table)) for table in tables]
        self._held = list(_tensors_of(module))
        self._contents = Containers(module, [read.now() for read in reads])
        self._found: dict[str, None] = {}
        self._left: dict[str, None] = {}

    def look(self, made: Dependent) -> None:
        """Inspect the assignments after a run, before they are undone."""
        for part, before in self._parts:
            for name, value in _plain(part):
                old = before.get(name, _ABSENT)
                if value is not old and _is_carried(type(part), name, old, value, made):
                    self._found[f"{type(part).__name__}.{name}"] = None

    def leave(self, buffers: Iterable[str]) -> None:
        """Buffers of these names change their shapes, which a graph's state does not."""
        self._left |= dict.fromkeys(buffers)

    def take_back(self) -> None:
        """Restore attributes, the tensors reachable from them, and hooks."""
        for table, registered in self._hooks:
            if list(table) != list(registered):
                table.clear()
                table.update(registered)
        for part, before in self._parts:
            for name in [n for n, _ in _plain(part) if n not in before]:
                del vars(part)[name]
            vars(part).update(before)
        self._contents.take_back()
        for held in self._held:
            if held.tensor._version != held.version:
                self._found[f"{held.owner}.{held.name}"] = None
                with torch.no_grad():
                    held.tensor.copy_(held.values)
                torch._C._autograd._unsafe_set_version_counter((held.tensor,), (held.version,))

    def warn(self) -> None:
        """Warn of the carried state."""
        for name in self._found:
            warnings.warn(
                f"from_torch: {name} is carried from call to call, which the converted network does not do: each "
                "call reads what it held when the graph was made, and what forward keeps there is lost; make it a "
                "buffer that is written (register_buffer, copy_), register the module that owns it (nn.ModuleList), "
                "make it an argument and a result, or let "
                'torch.compile(module, backend="lamina") run the module in parts',
                stacklevel=users_frame(),
            )
        for name in self._left:
            warnings.warn(
                f"from_torch: forward replaces the buffer {name!r} by one of another shape, and computes nothing "
                "with what it held: it keeps its value in the converted network",
                stacklevel=users_frame(),
            )


class Containers:
    """The contents of the containers reachable from a module and its functions, and these functions' caches.

    A table that `forward` caches by size (`self.tables[n]`, `functools.lru_cache`) would hold fake tensors of the
    traced run, which have no values: the module's next call, or the next graph, would read those.
    """

    def __init__(self, module: torch.nn.Module, values: Iterable[Any]) -> None:
        self._seen: dict[int, Any] = {id(x): x for x in (*module.parameters(), *module.buffers())}
        self._before: list[tuple[Any, Any]] = []
        self._memories: list[tuple[Any, Any]] = []
        for part in module.modules():
            self._seen[id(part)] = part
        for part in module.modules():
            for _, value in _plain(part):
                self._add(value, 0)
        for value in (*values, *_beside(module)):
            self._add(value, 0)

    def take_back(self) -> None:
        """Restore containers that hold fake tensors; clear functions' caches that have grown.

        Other changes may be another thread's, or intended effects of a call.
        """
        for container, before in self._before:
            if not _same_elements(container, before) and _holds_fake(container):
                container.clear()
                (container.extend if isinstance(container, list | deque) else container.update)(before)
        for function, kept in self._memories:
            if function.cache_info().misses != kept.misses:
                function.cache_clear()

    def _add(self, value: Any, depth: int) -> None:
        if id(value) in self._seen or depth > DEEPEST or isinstance(value, (*PLAIN, torch.Tensor)):
            return
        self._seen[id(value)] = value
        if isinstance(value, _MEMORY):
            self._memories.append((value, value.cache_info()))
        elif isinstance(value, tuple):
            self._add_all(value, depth)
        elif isinstance(value, _OPEN):
            before = value.copy()
            self._before.append((value, before))
            self._add_all(list(before.values()) if isinstance(before, dict) else before, depth)
        elif isinstance(value, torch.nn.Module) or is_users_object(value):
            self._add(vars(value), depth)

    def _add_all(self, values: Iterable[Any], depth: int) -> None:
        for x in values:
            self._add(x, depth + 1)


def _beside(module: torch.nn.Module) -> Iterator[Any]:
    """Containers, and functions with a cache, of the classes of a module's parts and of the modules that
    define them."""
    kinds = {base: None for kind in set(map(type, module.modules())) for base in kind.__mro__}
    own = [kind for kind in kinds if not kind.__module__.startswith(("torch.", "lamina.", "builtins"))]
    files = {
        name: vars(sys.modules[name]) for name in (kind.__module__ for kind in own) if name in sys.modules
    }
    for table in (*map(vars, own), *files.values()):
        for name, value in list(table.items()):
            value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            if isinstance(value, (*_OPEN, _MEMORY)) and not name.startswith("__"):
                yield value


def _same_elements(container: Any, before: Any) -> bool:
    """Whether a container holds the same objects as its copy."""
    if len(container) != len(before):
        return False
    if isinstance(container, set):
        return bool(container == before)
    if isinstance(container, dict):
        return all(map(is_, container, before)) and all(map(is_, container.values(), before.values()))
    return all(map(is_, container, before))


def _holds_fake(container: Any) -> bool:
    """Whether a container holds a fake tensor of the exporter."""
    held = container.values() if isinstance(container, dict) else container
    return any(isinstance(x, FakeTensor | FunctionalTensor) for x in tree_leaves(list(held)))


class Seeds:
    """Within the block it detects seeding of PyTorch's generator, and restores the generator afterwards."""

    def __enter__(self) -> Self:
        self._state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(_NOBODYS_SEED)
        self.given = False
        return self

    def __exit__(self, *_: object) -> None:
        self.given = torch.default_generator.initial_seed() != _NOBODYS_SEED
        torch.default_generator.set_state(self._state)

    def warn(self, kind: type) -> None:
        """Warn of the seeding."""
        if self.given:
            warnings.warn(
                f"from_torch: {kind.__name__} calls torch.manual_seed in forward, which the converted network does "
                "not do: it draws by Lamina's generator, other numbers in each call; call lamina.manual_seed before "
                "it, or give the random numbers as an argument",
                stacklevel=users_frame(),
            )


#: A seed that programs are unlikely to use.
_NOBODYS_SEED = 0x6C616D696E61


def _is_carried(kind: type, name: str, old: Any, value: Any, made: Dependent) -> bool:
    """Whether a later call reads what this one assigned to an attribute: a value computed from its inputs, a number
    that it advanced, or a flag that it set. Numbers that record the size of a table do not count.
    """
    if not is_carried(kind, name):
        return False
    if isinstance(value, PLAIN):
        moved = not isinstance(old, PLAIN) or value != old
        return moved and (isinstance(value, bool) or is_advanced(kind, name))
    return value in made


def _plain(part: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """A module's own attributes, without its state and those of every module."""
    return ((n, x) for n, x in list(vars(part).items()) if n not in OF_EVERY_MODULE)


def _tensors_of(module: torch.nn.Module) -> Iterator[_Held]:
    """The tensors reachable from plain attributes of a module and its parts, including those of modules in lists."""
    registered = [*module.parameters(), *module.buffers(), *module.modules()]
    seen = {id(x): x for x in registered}
    for part in module.modules():
        for name, value in _plain(part):
            for x in _reached(value, seen):
                if not x.is_inference():  # these have no version
                    yield _Held(type(part).__name__, name, x, x._version, x.detach().clone())


def _reached(value: Any, seen: dict[int, Any]) -> Iterator[torch.Tensor]:
    """The tensors in a value, each once."""
    if not isinstance(value, (torch.Tensor, torch.nn.Module, list, tuple, set, dict)) or id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, torch.nn.Module):
        value = vars(value)
    # By an iterator: a class of tuples may refuse to tell its length.
    for x in list(iter(value.values() if isinstance(value, dict) else value)):
        yield from _reached(x, seen)
