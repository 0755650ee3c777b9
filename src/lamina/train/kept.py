"""The state of a custom step, by names, as a checkpoint holds it: networks, optimizers, generators, tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from lamina.nn import Generator, Module
from lamina.nn.random import default_generator
from lamina.tensors import Tensor

_RANDOM = "random"


@runtime_checkable
class HasState(Protocol):
    """A module, an optimizer with parameters, a scheduler, or anything similar."""

    def state_dict(self) -> Mapping[str, Any]:
        """Its state by name."""

    def load_state_dict(self, state: Any) -> Any:
        """Load a state."""


class KeptObjects:
    """Objects by name. Raises TypeError for one without a state, ValueError for no objects or a name with "/"."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        if not objects:
            raise ValueError("checkpoint: there is nothing to keep: give networks and optimizers by names")
        for name, x in objects.items():
            if not isinstance(name, str) or not name or "/" in name or name == _RANDOM:
                raise ValueError(
                    f"checkpoint: {name!r} is no name: it must be a text without '/', not 'random'"
                )
            if not isinstance(x, HasState | Tensor | Generator):
                raise TypeError(
                    f"checkpoint: {name} is a {type(x).__name__}, which has no state_dict and load_state_dict; give "
                    "a network, an optimizer, a generator or a tensor"
                )
        self.objects = dict(objects)

    def _generators(self) -> list[Generator]:
        """Those of all networks, and the default one, each once."""
        found = [g for x in self.objects.values() if isinstance(x, Module) for g in x.generators()]
        return list({id(g): g for g in (*found, default_generator)}.values())

    def _tensors(self) -> dict[str, Tensor]:
        """Objects that are plain tensors."""
        found = {n: x for n, x in self.objects.items() if isinstance(x, Tensor)}
        found |= {n: x.state for n, x in self.objects.items() if isinstance(x, Generator)}
        return found | {f"{_RANDOM}/{i}": g.state for i, g in enumerate(self._generators())}

    def random(self) -> list[str]:
        """The names in the result of `state` that hold the positions of generators."""
        own = [n for n, x in self.objects.items() if isinstance(x, Generator)]
        return own + [f"{_RANDOM}/{i}" for i in range(len(self._generators()))]

    def _stateful(self) -> dict[str, HasState]:
        return {n: x for n, x in self.objects.items() if not isinstance(x, Tensor | Generator)}

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors by name, and the parts of each object that are not tensors, as JSON values."""
        tensors, plain = self._tensors(), dict[str, Any]()
        for name, x in self._stateful().items():
            given = x.state_dict()
            tensors |= {f"{name}/{k}": v for k, v in given.items() if isinstance(v, Tensor)}
            plain[name] = {k: v for k, v in given.items() if not isinstance(v, Tensor)}
        return tensors, plain

    def take(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> list[str]:
        """Load the result of `state`; or return the mismatch, where networks and tensors are left unchanged."""
        own = self._tensors()
        states = {n: self._state_of(n, tensors, plain) for n in self._stateful()}
        known = {f"{n}/{k}" for n, given in states.items() for k in given} | own.keys()
        wrong = [f"{n} is not known" for n in tensors if n not in known]
        wrong += [f"{n} is missing" for n in own if n not in tensors]
        modules = {n: x for n, x in self.objects.items() if isinstance(x, Module)}
        for name, module in modules.items():
            own |= {f"{name}/{k}": v for k, v in module.state_dict().items()}
            wrong += [f"{name}/{k} is missing" for k in module.state_dict() if k not in states[name]]
        for name in own.keys() & tensors.keys():
            if own[name].shape != tensors[name].shape:
                wrong.append(f"{name} has shape {tensors[name].shape}, wanted {own[name].shape}")
        if wrong:
            return wrong
        for name, x in self._stateful().items():  # optimizers check theirs, before networks are changed
            if name not in modules:
                try:
                    x.load_state_dict(states[name])
                except (KeyError, ValueError) as error:
                    return [f"{name}: {error}"]
        for name, module in modules.items():
            module.load_state_dict(states[name])
        for name, held in self._tensors().items():
            held.copy_(tensors[name].to(held.device))
        return []

    def _state_of(self, name: str, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> dict[str, Any]:
        start = f"{name}/"
        found = {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
        return found | dict(plain.get(name, {}))
