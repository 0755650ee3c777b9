"""What a training step trains: the network, and what its loss has of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from types import MethodType
from typing import Any

from lamina.graph.ir.surroundings import reads_of
from lamina.nn import Generator, Module
from lamina.optim import Optimizer
from lamina.tensors import Tensor

#: What the names of a loss's tensors begin with.
_LOSS = "loss_fn"


class TrainedModules:
    """The network with the modules of its loss, as one module: their tensors are the state of a step.

    The network's tensors have its own names, those of the loss begin with "loss_fn" and, in a function that reads
    modules or parameters, the name of the variable. Of the loss belong to it the parameters that the optimizer trains
    (if it was made without parameters: of a loss that is a module, those that are not frozen), and buffers; other
    tensors, a teacher's for instance, are read as they are.
    """

    def __init__(self, net: Module, loss_fn: Callable[..., Any], optimizer: Optimizer) -> None:
        self.net = net
        own = {id(p) for p in net.parameters()}
        chosen = optimizer.bound.entries.keys() - own if optimizer.is_bound else None
        parts = _parts_of(loss_fn, chosen or set(), self._prefix())
        self.losses = {name: x for name, x in parts.items() if isinstance(x, Module)}
        self._alone = {name: x for name, x in parts.items() if isinstance(x, Tensor)}
        if chosen is None:
            every = [p for m in self.losses.values() for p in m.parameters()]
            chosen = {id(p) for p in every if p.requires_grad} - own
        self._trained = chosen

    def _prefix(self) -> str:
        """What the names of the loss begin with; longer where the network has a module of that name."""
        name, taken = _LOSS, {n for n, _ in self.net.named_children()}
        while name in taken:
            name += "_"
        return name

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The network's, then those of the loss that are trained."""
        yield from self.net.named_parameters()
        inner = (x for prefix, m in self.losses.items() for x in m.named_parameters(prefix))
        found: list[tuple[str, Tensor]] = [*inner, *self._alone.items()]
        yield from _once([(name, p) for name, p in found if id(p) in self._trained])

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The network's, then the loss's."""
        yield from self.net.named_buffers()
        yield from self.buffers_of_loss().items()

    def buffers_of_loss(self) -> dict[str, Tensor]:
        """Those that the network does not have; they keep their dtypes."""
        own = {id(x) for x in self.net.buffers()}
        found = (x for prefix, m in self.losses.items() for x in m.named_buffers(prefix))
        return dict(_once([(name, x) for name, x in found if id(x) not in own]))

    def generators(self) -> dict[str, Generator]:
        """By name: the network's by their places, then those that only the loss has."""
        found = {str(i): g for i, g in enumerate(self.net.generators())}
        known = {id(g) for g in found.values()}
        for prefix, module in self.losses.items():
            others = [g for g in module.generators() if id(g) not in known]
            known |= {id(g) for g in others}
            found |= {f"{prefix}.{i}": g for i, g in enumerate(others)}
        return found

    def modules(self) -> Iterator[Module]:
        """Of the network and the loss."""
        for module in (self.net, *self.losses.values()):
            yield from module.modules()

    def masters(self) -> set[int]:
        """The ids of tensors that are read in the master type: a loss is computed in it."""
        return self.net.masters() | self._trained

    def __str__(self) -> str:
        name = type(self.net).__name__
        return f"{name} and its loss" if self.losses or self._alone else name


def _parts_of(
    loss_fn: Callable[..., Any], chosen: AbstractSet[int], prefix: str
) -> dict[str, Module | Tensor]:
    """What a loss has of its own, by the names that those of its tensors begin with: the loss itself if it is a
    module, or, of a function, the modules and parameters that it reads and of which some (ids) are chosen.
    """
    itself = loss_fn.__self__ if isinstance(loss_fn, MethodType) else loss_fn
    if isinstance(itself, Module):
        return {prefix: itself}
    found: dict[str, Module | Tensor] = {}
    for path, part in _read_by(loss_fn) if chosen else ():
        held = part.parameters() if isinstance(part, Module) else [part]
        if any(id(p) in chosen for p in held) and all(part is not x for x in found.values()):
            name = f"{prefix}.{path}"
            while name in found:
                name += "_"
            found[name] = part
    return found


def _read_by(function: Callable[..., Any]) -> Iterator[tuple[str, Module | Tensor]]:
    """The modules and tensors that a function reads, by name: its variables, also within lists and dicts, and what a
    partial gives it."""
    values = [(str(read.variable or read.name), read.now()) for read in reads_of(function)]
    if isinstance(function, partial):
        values += [("func", function.func), *function.keywords.items()]
        values += [(str(i), x) for i, x in enumerate(function.args)]
    for name, value in values:
        inner: Iterable[tuple[Any, Any]] = enumerate(value) if isinstance(value, list | tuple) else ()
        inner = value.items() if isinstance(value, dict) else inner
        for path, x in ((name, value), *((f"{name}.{key}", x) for key, x in inner)):
            if isinstance(x, Module | Tensor):
                yield path, x


def _once(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    """Each tensor under its first name."""
    found: dict[int, tuple[str, Tensor]] = {}
    for name, x in named:
        found.setdefault(id(x), (name, x))
    return list(found.values())
