"""Parameter: a tensor that a module owns; and the values that replace it while a module is traced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

from lamina.ops.core import recorder
from lamina.runtime import Device
from lamina.spec import DType
from lamina.tensors import Tensor, tensors_changed, writable


class Parameter(Tensor):
    """A trainable tensor. Assigned to an attribute of a module, it becomes one of its parameters.

    Its identity is stable: moving or converting the module changes the tensor in place, so optimizers and compiled
    programs that hold it keep holding the module's parameter. The same applies to augmented assignment: `p -= lr * g`
    writes the parameter.
    """

    __slots__ = ("_frozen",)
    _frozen: bool

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        source = writable(data)
        super().__init__(source.buffer, source.spec)
        self._frozen = not requires_grad

    @property
    def requires_grad(self) -> bool:
        """Whether it is trained. A frozen parameter has no gradient, which costs nothing, and no update."""
        return not getattr(self, "_frozen", False)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self._frozen = not value
        settings_changed()

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Freeze it with False, train it with True."""
        self.requires_grad = requires_grad
        return self

    def __iadd__(self, other: Any) -> Self:  # type: ignore[override, misc]
        return self.copy_(self + other)

    def __isub__(self, other: Any) -> Self:  # type: ignore[override, misc]
        return self.copy_(self - other)

    def __imul__(self, other: Any) -> Self:  # type: ignore[override, misc]
        return self.copy_(self * other)

    def __itruediv__(self, other: Any) -> Self:  # type: ignore[override, misc]
        return self.copy_(self / other)

    def __ipow__(self, other: Any) -> Self:  # type: ignore[override, misc]
        return self.copy_(self**other)

    def _attributes(self) -> dict[str, Any]:
        return {**super()._attributes(), "_frozen": not self.requires_grad}


class Buffer(Tensor):
    """A tensor that is state but not trained. Assigned to an attribute of a module, it becomes one of its buffers.

    persistent: whether it is part of the state_dict. Equivalent to `Module.register_buffer`.
    """

    __slots__ = ("persistent",)
    persistent: bool

    def __init__(self, data: Any, *, persistent: bool = True) -> None:
        source = writable(data)
        super().__init__(source.buffer, source.spec)
        self.persistent = persistent

    def _attributes(self) -> dict[str, Any]:
        return {**super()._attributes(), "persistent": self.persistent}


def become(held: Tensor, where: Device | str | None, dtype: DType | str | None) -> None:
    """Move and convert a tensor in place: the same object with new memory."""
    moved = held.to(where, dtype)
    if moved is not held:
        Tensor.__init__(held, moved.buffer, moved.spec)
        tensors_changed()


_changes = itertools.count(1)
_settings = 0


def settings_changed() -> int:
    """A module's mode, number or submodule was set, or a parameter was frozen; returns the new `settings_version`."""
    global _settings
    _settings = next(_changes)
    return _settings


def settings_version() -> int:
    """A number that changes whenever a module's mode, number or submodule is set or a parameter is frozen: caches
    that depend on these compare it."""
    return _settings


#: id of a tensor -> the value that replaces it in the current trace; and how other tensors are read.
_standing: ContextVar[dict[int, Any] | None] = ContextVar("lamina_substitution", default=None)
_others: ContextVar[Callable[[Tensor], Any] | None] = ContextVar("lamina_others", default=None)


@contextmanager
def standing_in(
    pairs: Mapping[int, Any], others: Callable[[Tensor], Any] | None = None
) -> Iterator[dict[int, Any]]:
    """Within the block, `read` returns the operand that replaces a tensor, and the result of `others` for tensors
    without one. Yields the mapping, including writes: after the block it holds the new values of states."""
    mapping = {**(_standing.get() or {}), **pairs}
    token, before = _standing.set(mapping), _others.set(others or _others.get())
    try:
        yield mapping
    finally:
        _others.reset(before)
        _standing.reset(token)


def check_unwritten(
    who: str, names: Mapping[int, str], before: Mapping[int, Any], after: Mapping[int, Any]
) -> None:
    """Raises TypeError if the traced function wrote to a state, for programs that keep none.

    names: of the states, by id; before: the values that stood for them; after: those that do now (`standing_in`).
    """
    by = recorder()
    for key, name in names.items():
        now = after[key]
        if now is not before[key] or (by is not None and by.read(now) is not now):
            raise TypeError(
                f"{who}: forward writes to {name!r}, and a program in inference mode keeps no state from call to "
                "call: make the state an argument and a result, or use lamina.jit"
            )


def traces() -> bool:
    """Whether a module is being traced: values replace its tensors."""
    return bool(_standing.get())


def read(held: Tensor) -> Any:
    """The tensor, or the traced value that replaces it."""
    mapping = _standing.get()
    if mapping is None:
        return held
    if id(held) in mapping:
        return mapping[id(held)]
    others = _others.get()
    return held if others is None else others(held)


def write(held: Tensor, value: Any) -> None:
    """Update a state: in place when running eagerly, in the trace if a value replaces it."""
    mapping = _standing.get()
    if mapping is not None and id(held) in mapping:
        mapping[id(held)] = value
    elif not isinstance(value, Tensor) and recorder() is None:
        raise TypeError(
            f"a module's state cannot be updated by {value!r}: its tensor takes no part in this trace; "
            "trace the module with nn.functional_call, or switch it to eval()"
        )
    else:
        held.copy_(value)
