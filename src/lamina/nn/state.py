"""Implementation of `state_dict` and `load_state_dict`, and of the hooks by which modules customize their part.

A module has torch's methods: `_save_to_state_dict` and `_load_from_state_dict` for its own entries, and
`get_extra_state` with `set_extra_state` for anything but tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from lamina.nn.matching import unmatched
from lamina.nn.parameter import Parameter
from lamina.ops.core import Operand, recorder
from lamina.spec import DTypeError, ShapeError
from lamina.tensors import Tensor, as_tensor

#: The name of a module's extra state in the state_dict, after its path.
EXTRA = "_extra_state"
#: The ids of the modules whose own entries are read by default, while a state is loaded.
_as_ever: ContextVar[set[int] | None] = ContextVar("lamina_loaded_as_ever", default=None)


class Mismatch(NamedTuple):
    """The keys that `load_state_dict(strict=False)` could not match."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class WithState:
    """The part of `Module` used here; a subclass may override it."""

    _parameters: dict[str, Any]
    _buffers: dict[str, Tensor | None]
    _transient: set[str]

    def get_extra_state(self) -> Any:
        """State besides tensors, stored under "_extra_state". To be overridden together with `set_extra_state`.

        Raises RuntimeError unless a subclass overrides it.
        """
        raise RuntimeError(f"{type(self).__name__} has no extra state: it defines no get_extra_state")

    def set_extra_state(self, state: Any) -> None:
        """Load the result of `get_extra_state`. Raises RuntimeError unless a subclass overrides it."""
        raise RuntimeError(f"{type(self).__name__} takes no extra state: it defines no set_extra_state")

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Add the module's own entries, without submodules', to a state."""
        destination.update((prefix + name, held) for name, held in own_entries(self))
        if _defines(self, "get_extra_state"):
            destination[prefix + EXTRA] = self.get_extra_state()

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Mark the module's own entries to be read from a state, once everything is known to fit.

        An override may change state_dict before it calls this one; if it does not call it, it handles the entries
        itself. Its additions to the lists are reported with the other mismatches.
        """
        if (known := _as_ever.get()) is not None:
            known.add(id(self))


def own_entries(module: WithState) -> Iterator[tuple[str, Tensor]]:
    """A module's own parameters and persistent buffers."""
    kept = ((n, b) for n, b in module._buffers.items() if n not in module._transient)
    yield from ((n, x) for n, x in (*module._parameters.items(), *kept) if x is not None)


def saved(net: Any, destination: dict[str, Any] | None, prefix: str, keep_vars: bool) -> dict[str, Any]:
    """The state of a network, added to `destination`."""
    found: dict[str, Any] = {} if destination is None else destination
    for path, module in net.named_modules(remove_duplicate=False):
        module._save_to_state_dict(found, prefix + _before(path), keep_vars)
    for path, module in _hooked(net):
        module._own_hooks().run("saved", module, found, prefix + _before(path), {})
    return found


def loaded(net: Any, given: Mapping[str, Any], strict: bool, assign: bool = False) -> Mismatch:
    """Load a state into a network; see `Module.load_state_dict`."""
    state, metadata = _by_todays_names(net, dict(given)), {"assign_to_params_buffers": assign}
    for path, module in reversed(_hooked(net)):
        module._own_hooks().run("loading", module, state, _before(path), metadata, strict, [], [], [])
    own, extra, mismatch, errors = _asked(net, state, strict, metadata)
    later = {_before(path) + name for path, m in net.named_modules() for name in m.later_names}
    have = {id(own[k]) for k in own if k in state}
    known = {*own, *extra}
    mismatch.missing_keys[:0] = [
        k for k in own if k not in state and k not in later and id(own[k]) not in have
    ]
    mismatch.missing_keys.extend(k for k in extra if k not in state)
    hooked = _hooked(net)
    if strict and any(mismatch) and not any(m._own_hooks().loaded for _, m in hooked):
        raise KeyError(unmatched(type(net).__name__, dict.fromkeys(known) | own, state, *mismatch))
    values = {k: _adopted(k, state[k]) for k in own if k in state}
    errors += [f"{k} is {own[k].shape}, got {v.shape}" for k, v in values.items() if v.shape != own[k].shape]
    if errors:
        raise ShapeError(f"{type(net).__name__}.load_state_dict: {'; '.join(errors)}")
    if assign:
        _assign(net, own, values)
    else:
        _copy(own, values)
    for key, module in extra.items():
        if key in state:
            module.set_extra_state(state[key])
    for _, module in hooked:
        module._own_hooks().run("loaded", module, mismatch)
    if strict and any(mismatch):
        raise KeyError(unmatched(type(net).__name__, dict.fromkeys(known) | own, state, *mismatch))
    return mismatch


def _copy(own: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Write values over the tensors of the same names."""
    for key, value in values.items():
        is_elsewhere = isinstance(value, Tensor) and value.device != own[key].device
        own[key].data.copy_(
            value.to(own[key].device) if is_elsewhere else value
        )  # without affecting derivatives, as in torch


def _assign(net: Any, own: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Put values in the place of the tensors of the same names, under all names of a shared one."""
    if recorder() is not None:
        raise TypeError(
            f"{type(net).__name__}.load_state_dict: assign=True replaces parameters, which a function that is "
            "compiled or differentiated cannot do: load before, or without assign, which writes values"
        )
    made = {id(own[key]): _in_place_of(own[key], key, value) for key, value in values.items()}
    for key, held in own.items():
        if id(held) in made:
            path, _, name = key.rpartition(".")
            module = net.get_submodule(path)
            if name in module._parameters:
                module.register_parameter(name, made[id(held)])
            else:
                module.register_buffer(name, made[id(held)])


def _in_place_of(held: Tensor, key: str, value: Tensor) -> Tensor:
    """A value as a parameter, as frozen as the one that is there, or as a buffer."""
    if not isinstance(held, Parameter):
        return value
    if held.requires_grad and not value.dtype.is_float:
        raise DTypeError(
            f"load_state_dict: {key} is {value.dtype}, and only floats are trained: freeze the parameter "
            "(requires_grad_(False)), or load without assign, which converts"
        )
    same = isinstance(value, Parameter) and value.requires_grad == held.requires_grad
    return value if same else Parameter(value, held.requires_grad)  # the giver's own stays as frozen as it is


def _asked(
    net: Any, state: dict[str, Any], strict: bool, metadata: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any], Mismatch, list[str]]:
    """What to read from a state, by name, after asking each module's `_load_from_state_dict`: tensors, and the
    modules whose extra state it is; mismatches so far; and the errors that they report."""
    found, errors = Mismatch([], []), list[str]()
    token = _as_ever.set(set())
    try:
        for path, module in net.named_modules():
            module._load_from_state_dict(state, _before(path), metadata, strict, *found, errors)
        as_ever = _as_ever.get() or set()
    finally:
        _as_ever.reset(token)
    own: dict[str, Tensor] = {}
    extra: dict[str, Any] = {}
    elsewhere: set[str] = set()  # read by overrides
    for path, module in net.named_modules(remove_duplicate=False):
        prefix = _before(path)
        if id(module) not in as_ever:
            below = tuple(prefix + name + "." for name in module._modules)
            elsewhere |= {k for k in state if k.startswith(prefix) and not k.startswith(below)}
            continue
        own.update((prefix + name, held) for name, held in own_entries(module))
        if _defines(module, "set_extra_state"):
            extra[prefix + EXTRA] = module
    found.unexpected_keys[:0] = [k for k in state if k not in own and k not in extra and k not in elsewhere]
    return own, extra, found, errors


def _hooked(net: Any) -> list[tuple[str, Any]]:
    """The modules with hooks, with their names, submodules first."""
    return [(p, m) for p, m in net.named_modules() if "_lamina_hooks" in m.__dict__][::-1]


def _by_todays_names(net: Any, state: dict[str, Any]) -> dict[str, Any]:
    """The state with entries of older files renamed to today's names."""
    for path, module in net.named_modules():
        for old, new in module.older_names.items():
            prefix = _before(path)
            pattern = re.compile(re.escape(prefix) + old)
            found = {key: pattern.match(key) for key in state}
            state = {
                prefix + m.expand(new) + key[m.end() :] if (m := found[key]) else key: value
                for key, value in state.items()
            }
    return state


def _defines(module: WithState, name: str) -> bool:
    """Whether a subclass overrides the method of this name."""
    return getattr(type(module), name) is not getattr(WithState, name)


def _before(path: str) -> str:
    """The prefix of a module's entries."""
    return f"{path}." if path else ""


def _adopted(key: str, value: Any) -> Any:
    """An array of any library as a tensor; PyTorch's parameters are detached first. Values of a compiled function are
    kept, and written at each of its calls."""
    if isinstance(value, Operand) and recorder() is not None:
        return value
    try:
        return as_tensor(value.detach() if hasattr(value, "detach") else value)
    except TypeError as error:
        raise TypeError(f"load_state_dict: {key}: {error}") from error
