"""The setup of a training run, as plain values: recorded in checkpoints, and compared on resuming.

A setup maps names to numbers, strings, flags or lists of them. Names with a dot belong together, such as
"optimizer.momentum".
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, runtime_checkable

from lamina.optim import Optimizer
from lamina.optim.scaled import planned_rate
from lamina.train.errors import ResumeError
from lamina.train.step import Step

Setup = Mapping[str, Any]
#: The learning rate is recorded at these steps to distinguish schedules.
_PROBES = (0, *(2**n for n in range(17)))

_ABSENT = object()


@runtime_checkable
class Described(Protocol):
    """Data that describes itself: data.Batches, and data.Prefetch of them."""

    def describe(self) -> Mapping[str, Any]:
        """Sizes, order and content, as plain values."""
        ...


def step_setup(step: Step) -> dict[str, Any]:
    """The setup of a training step: the optimizer with its settings, the learning rate over time, loss
    and clipping."""
    return {
        **_optimizer_setup(step.optimizer, "optimizer"),
        "lr": [planned_rate(step.optimizer, number) for number in _PROBES],
        "loss": _name_of(step.loss_fn),
        "clip_norm": step.options.clip_norm,
        "clip_value": step.options.clip_value,
        "accumulate": step.options.accumulate,
        **_groups_setup(step.optimizer),
    }


def _name_of(function: Any) -> str:
    """The name of a function, of the function that a `functools.partial` calls, or of an object's class."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__name__))


def _optimizer_setup(optimizer: Optimizer, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {name: type(optimizer).__name__}
    for field, value in vars(optimizer).items():
        if isinstance(value, Optimizer):
            found |= _optimizer_setup(value, f"{name}.{field}")
        elif (
            field not in ("lr", *optimizer.changed)
            and not field.startswith("_")
            and isinstance(value, bool | int | float | str | tuple)
        ):
            found[f"{name}.{field}"] = value
    return found


def _groups_setup(optimizer: Optimizer) -> dict[str, Any]:
    """The setup of parameter groups: each one's hyperparameters, rates and parameters' names."""
    found: dict[str, Any] = {}
    for i, group in enumerate(optimizer.param_groups if optimizer.is_bound else ()):
        if isinstance(group.rule, Optimizer):
            found |= _optimizer_setup(group.rule, f"optimizer.group{i}")
        found[f"lr.group{i}"] = [planned_rate(group.rule, number) for number in _PROBES]
        found[f"optimizer.group{i}.params"] = tuple(group.params)
    return found


def changed_numbers(optimizer: Optimizer) -> dict[str, Any]:
    """The hyperparameters of an optimizer and its groups that were set again after construction, by their setup
    names.

    A setup leaves these out: they are state, which a checkpoint restores.
    """
    return {name: getattr(rule, field) for name, rule, field in _changed_of(optimizer)}


def take_numbers(optimizer: Optimizer, kept: Setup, setup: Setup, override: Collection[str]) -> None:
    """Restore hyperparameters: those that the saved run had changed (kept), and those changed by now that the saved
    run still had at their initial values (setup); except those overridden."""
    for rule_name, rule in _rules(optimizer):
        for field in inspect.signature(type(rule).__init__).parameters:
            name = f"{rule_name}.{field}"
            known = kept if name in kept else setup if field in rule.changed else {}
            if name in known and not _overridden(name, override):
                value = known[name]
                setattr(rule, field, tuple(value) if isinstance(value, list) else value)


def _changed_of(optimizer: Optimizer) -> Iterator[tuple[str, Optimizer, str]]:
    """The setup name, the rule and the field of each hyperparameter that was set again and that JSON
    can represent."""
    for name, rule in _rules(optimizer):
        for field in sorted(rule.changed):
            if isinstance(getattr(rule, field, _ABSENT), bool | int | float | str | tuple | None):
                yield f"{name}.{field}", rule, field


def _rules(optimizer: Optimizer) -> Iterator[tuple[str, Optimizer]]:
    """An optimizer and those that it wraps, then those of its groups, which inherit the values that they do
    not set."""
    groups = optimizer.param_groups if optimizer.is_bound else ()
    named = [("optimizer", optimizer), *((f"optimizer.group{i}", g.rule) for i, g in enumerate(groups))]
    while named:
        name, rule = named.pop(0)
        if isinstance(rule, Optimizer):
            yield name, rule
            inner = [(f"{name}.{n}", x) for n, x in vars(rule).items() if isinstance(x, Optimizer)]
            named = [*inner, *named]


def data_setup(data: Iterable[Any], epochs: int) -> dict[str, Any]:
    """The setup of data: the number of epochs, and the data's description (nothing, where it has no `describe`)."""
    described = data.describe() if isinstance(data, Described) else {}
    return {"epochs": epochs, **{f"data.{name}": value for name, value in described.items()}}


def check_same(old: Setup, new: Setup, override: Collection[str], where: str) -> None:
    """Raise ResumeError where values that both setups contain differ, except those overridden."""
    wrong = {name: _difference(old[name], new[name]) for name in new if name in old}
    if wrong.get("data.batch_size"):
        wrong.pop("data.content", None)  # a digest of the first batch, meaningless for another batch size
    told = [
        f"{name} {text}" for name, text in sorted(wrong.items()) if text and not _overridden(name, override)
    ]
    if told:
        raise ResumeError(
            f"{where}: the run began otherwise: {'; '.join(told)}. Go on as it began, or name what shall differ: "
            f"override={sorted({text.split()[0] for text in told})} (lamina train: --override)"
        )


def _overridden(name: str, override: Collection[str]) -> bool:
    return any(known in ("all", name) or name.startswith(f"{known}.") for known in override)


def _difference(old: Any, new: Any) -> str:
    """Both values where they differ; for lists over the steps, those of the first step that differs."""
    old, new = _plain(old), _plain(new)
    if old == new:
        return ""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new) == len(_PROBES):
        step, was, now = next((s, a, b) for s, a, b in zip(_PROBES, old, new, strict=True) if a != b)
        return f"at step {step} was {was!r}, is {now!r}"
    return f"was {old!r}, is {new!r}"


def _plain(value: Any) -> Any:
    """As JSON returns it: tuples become lists."""
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value
