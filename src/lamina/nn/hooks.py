"""Hooks: functions that see, and may change, what goes into a module and what comes out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from lamina.nn.mixed_precision import computed

Hook = Callable[..., Any]
_numbers = itertools.count()


class _Entry(NamedTuple):
    hook: Hook
    with_kwargs: bool


class Hooks:
    """The hooks of one module, in the order in which they are called. changed: called when there are others."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.before: dict[int, _Entry] = {}
        self.after: dict[int, _Entry] = {}
        self.saved: dict[int, _Entry] = {}
        self.loading: dict[int, _Entry] = {}
        self.loaded: dict[int, _Entry] = {}
        self.changed = changed

    def add(self, when: str, hook: Hook, with_kwargs: bool, prepend: bool) -> HookHandle:
        """Add a hook "before" or "after" the module's function, in front of the others with prepend.

        Or one of its state: when it was "saved" to a dict, before ("loading") and after ("loaded") it is loaded.
        """
        number, table = next(_numbers), getattr(self, when)
        entry = {number: _Entry(hook, with_kwargs)}
        setattr(self, when, {**entry, **table} if prepend else {**table, **entry})
        self.changed()
        return HookHandle(self, number)

    def run(self, when: str, *given: Any) -> None:
        """The hooks of the state: each is called with what is given."""
        for entry in tuple(getattr(self, when).values()):
            if entry.hook(*given) is not None:
                raise TypeError(
                    f"{entry.hook!r}: a hook of a state_dict changes what it is given and returns nothing"
                )

    def call(self, module: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The module's function between its hooks."""
        for entry in self.before.values():
            if entry.with_kwargs:
                changed = entry.hook(module, inputs, options)
                inputs, options = (inputs, options) if changed is None else changed
            else:
                changed = entry.hook(module, inputs)
                if changed is not None:
                    inputs = changed if isinstance(changed, tuple) else (changed,)
        output = computed(module.forward, inputs, options)
        for entry in self.after.values():
            given = (inputs, options, output) if entry.with_kwargs else (inputs, output)
            changed = entry.hook(module, *given)
            output = output if changed is None else changed
        return output


class HookHandle:
    """A hook that was registered: `remove` takes it off again; as a context it is there within the block."""

    def __init__(self, hooks: Hooks, number: int) -> None:
        self._hooks, self._number = hooks, number

    def remove(self) -> None:
        """Take the hook off; once is enough."""
        hooks = self._hooks
        for table in (hooks.before, hooks.after, hooks.saved, hooks.loading, hooks.loaded):
            if table.pop(self._number, None) is not None:
                hooks.changed()

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()
