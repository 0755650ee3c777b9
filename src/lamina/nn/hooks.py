"""Hooks: functions that observe, and may change, a module's inputs and outputs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from lamina.nn.mixed_precision import computed

Hook = Callable[..., Any]
_numbers = itertools.count()


class _Entry(NamedTuple):
    hook: Hook
    with_kwargs: bool
    always: bool = False

    def after(self, module: Any, inputs: tuple[Any, ...], options: dict[str, Any], output: Any) -> Any:
        """Call a hook that follows the module's function."""
        given = (inputs, options, output) if self.with_kwargs else (inputs, output)
        return self.hook(module, *given)


class Hooks:
    """The hooks of one module, in call order. changed: called when the set of hooks changes."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.before: dict[int, _Entry] = {}
        self.after: dict[int, _Entry] = {}
        self.saved: dict[int, _Entry] = {}
        self.loading: dict[int, _Entry] = {}
        self.loaded: dict[int, _Entry] = {}
        self.changed = changed

    def add(
        self, when: str, hook: Hook, with_kwargs: bool, prepend: bool, always: bool = False
    ) -> HookHandle:
        """Add a hook "before" or "after" the module's function, ahead of the others with prepend.

        always: called after the function, whether or not it fails.

        Or a state hook: called when the state was "saved" to a dict, before ("loading") or after ("loaded") it is
        loaded.
        """
        number, table = next(_numbers), getattr(self, when)
        entry = {number: _Entry(hook, with_kwargs, always)}
        setattr(self, when, {**entry, **table} if prepend else {**table, **entry})
        self.changed()
        return HookHandle(self, number)

    def run(self, when: str, *given: Any) -> None:
        """Call the state hooks with the given arguments."""
        for entry in tuple(getattr(self, when).values()):
            if entry.hook(*given) is not None:
                raise TypeError(
                    f"{entry.hook!r}: a hook of a state_dict changes what it is given and returns nothing"
                )

    def call(self, module: Any, inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The module's function between its hooks. If one of these fails, hooks marked `always` are still called."""
        output, after = None, dict(self.after)
        try:
            for entry in self.before.values():
                inputs, options = _changed(entry, module, inputs, options)
            output = computed(module.forward, inputs, options)
            while after:
                entry = after.pop(next(iter(after)))
                changed = entry.after(module, inputs, options, output)
                output = output if changed is None else changed
        except Exception:
            for entry in after.values():
                if entry.always:
                    _call_all_the_same(entry, module, inputs, options, output)
            raise
        return output


def _changed(
    entry: _Entry, module: Any, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A module's inputs after a hook that precedes it."""
    if entry.with_kwargs:
        changed = entry.hook(module, inputs, options)
        return (inputs, options) if changed is None else changed
    changed = entry.hook(module, inputs)
    if changed is None:
        return inputs, options
    return changed if isinstance(changed, tuple) else (changed,), options


def _call_all_the_same(
    entry: _Entry, module: Any, inputs: tuple[Any, ...], options: dict[str, Any], output: Any
) -> None:
    """Call a hook of a module that has failed. Exceptions become warnings: the first error must stay visible."""
    try:
        entry.after(module, inputs, options, output)
    except Exception as error:
        warnings.warn(
            f"{entry.hook!r}: a hook with always_call=True raised {type(error).__name__}: {error}, after its module "
            "had failed",
            stacklevel=3,
        )


class HookHandle:
    """A registered hook: `remove` unregisters it; as a context manager it is active within the block."""

    def __init__(self, hooks: Hooks, number: int) -> None:
        self._hooks, self._number = hooks, number

    def remove(self) -> None:
        """Unregister the hook; repeated calls have no effect."""
        hooks = self._hooks
        for table in (hooks.before, hooks.after, hooks.saved, hooks.loading, hooks.loaded):
            if table.pop(self._number, None) is not None:
                hooks.changed()

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()
