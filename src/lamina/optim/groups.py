"""Parameter groups: the parameters that an optimizer trains, their hyperparameters, and their optimizer state."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Protocol, Self, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from lamina import ops
from lamina.graph.transforms.arguments import Gradients, HasParameters
from lamina.ops.arguments import shown
from lamina.ops.core import Array, Operand, Recorder, recorder, recording
from lamina.optim.schedule import Schedule
from lamina.runtime import Device, is_array
from lamina.spec import ShapeError, Spec, float32, float64
from lamina.tensors import Tensor, as_tensor, tensor, zeros

#: The parameters of an optimizer: a module, or parameters, named parameters, modules, or groups as dicts.
Params: TypeAlias = HasParameters | Tensor | Iterable[Any]
#: A selection of named parameters: a pattern of names (or a module's path), or a predicate of name and parameter.
Selector: TypeAlias = str | Callable[[str, Tensor], bool]


class UpdateRule(Protocol):
    """The rule that updates a parameter: an optimizer, as its groups see it."""

    lr: float | Schedule

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the state tensors per parameter."""

    @property
    def elementwise(self) -> tuple[bool, ...] | None:
        """For each of `parts`, whether it has one number per element of the parameter; None: not divisible."""

    @property
    def compiled(self) -> Hashable:
        """The compilation key of programs: they are invalid once it changes."""

    @property
    def moving(self) -> tuple[float, ...]:
        """The hyperparameters besides the rate that programs receive at each step."""

    def rate(self, step: int) -> float:
        """The learning rate of a step."""

    def given(self, step: int) -> Array:
        """The `rate` argument of `update`: the rate, followed by the moving hyperparameters."""

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """The state before the first step."""

    def updates_in_place(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> bool:
        """Do one step at once in the memory of parameter and state, if it can be done so: whether it was."""

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """The parameter and its state after one step."""

    def having(self, numbers: Mapping[str, Any]) -> Self:
        """The same rule with other hyperparameters."""


class Pieces(Protocol):
    """How ranks share a tensor, of which each stores one piece."""

    def own(self, x: Any) -> Any:
        """This rank's piece of a tensor."""

    def whole(self, piece: Any, shape: tuple[int, ...]) -> Any:
        """The tensor assembled from all ranks' pieces; a collective."""


#: The rates before the first scheduler, of groups and of optimizers without parameters.
INITIAL_RATES: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


class ParameterGroup:
    """Parameters that are trained with the same hyperparameters.

    params: by name. rule: the optimizer's class with this group's hyperparameters. `group["lr"]`,
    `group["weight_decay"]` and `group["params"]` read as in torch; `group["lr"] = rate` sets the rate,
    `group["momentum"] = 0.8` another hyperparameter, each from the next step on. `group["initial_lr"]` is the rate
    before the first scheduler.
    """

    def __init__(self, params: dict[str, Tensor], rule: UpdateRule) -> None:
        self.params, self.rule = params, rule

    @property
    def lr(self) -> float | Schedule:
        """The rate or schedule of this group, or the optimizer's if it has none; settable at any time."""
        return self.rule.lr.optimizer.lr if isinstance(self.rule.lr, FollowingRate) else self.rule.lr

    @lr.setter
    def lr(self, value: float | Schedule) -> None:
        self.rule.lr = value

    @property
    def given_spec(self) -> Spec:
        """The spec of its updates' rate: (1 + n,) with n moving numbers, else scalar; as wide as the widest
        parameter.
        """
        if moving := len(self.rule.moving):
            return Spec((1 + moving,), float64)
        return Spec((), float64 if any(p.dtype == float64 for p in self.params.values()) else float32)

    def given(self, number: int, spec: Spec) -> Array:
        """The values at an update, in the form of `given_spec`."""
        return self.rule.given(number).astype(spec.dtype.numpy, copy=False)

    def __getitem__(self, name: str) -> Any:
        if name == "initial_lr":
            if self not in INITIAL_RATES:
                raise KeyError("no scheduler was made of this group: it has no initial_lr")
            return INITIAL_RATES[self]
        return (
            list(self.params.values())
            if name == "params"
            else getattr(self if name == "lr" else self.rule, name)
        )

    def __setitem__(self, name: str, value: Any) -> None:
        if name == "initial_lr":
            INITIAL_RATES[self] = float(value)
            return
        if name not in self.keys() or name == "params":
            raise KeyError(
                f"a group of {type(self.rule).__name__} sets {', '.join(self.keys()[1:])}, not {name!r}"
            )
        setattr(self.rule, name, value)

    def setdefault(self, name: str, default: Any) -> Any:
        """`group[name]`, or if it is not set ("initial_lr") this default, which is then stored."""
        if name == "initial_lr" and self not in INITIAL_RATES:
            self[name] = default
        return self[name]

    def keys(self) -> list[str]:
        """The valid names of `group[name]`: "params", the rate and the optimizer's other hyperparameters."""
        numbers = inspect.signature(type(self.rule).__init__).parameters
        return ["params", *(name for name in numbers if name != "self" and hasattr(self.rule, name))]

    def items(self) -> list[tuple[str, Any]]:
        """The names with their values."""
        return [(name, self[name]) for name in self]

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def get(self, name: str, default: Any = None) -> Any:
        """`group[name]`, or the default if there is no such entry."""
        known = name in self.keys()
        return self[name] if known else default

    def __repr__(self) -> str:
        return f"ParameterGroup({len(self.params)} parameters, {self.rule})"


@dataclass(frozen=True)
class FollowingRate:
    """The rate of a group without its own: the optimizer's."""

    optimizer: UpdateRule

    def __call__(self, step: int) -> float:
        """The rate at a step."""
        return self.optimizer.rate(step)

    def __repr__(self) -> str:
        return repr(self.optimizer.lr)


@dataclass
class TrainedParameter:
    """One parameter with its group, and its optimizer data: the state and the accumulated gradient.

    pieces: the sharding of the state across ranks; each rank stores its piece of elementwise state.
    """

    name: str
    param: Tensor
    group: ParameterGroup
    state: tuple[Tensor, ...] = ()
    sum: Tensor | None = field(default=None)
    pieces: Pieces | None = None

    @property
    def is_trained(self) -> bool:
        """Whether it is not frozen."""
        return self.param.requires_grad

    def held(self) -> tuple[Tensor, ...]:
        """The state, created on first use and moved to the parameter's device."""
        if not self.state:
            with recording(None):
                param = self.param if self.pieces is None else self.pieces.own(self.param)
                self.state = self.group.rule.init(updated_as(param))
        if any(x.device != self.param.device for x in self.state):
            with recording(None):
                self.state = tuple([x.to(self.param.device) for x in self.state])
        return self.state

    def share(self, pieces: Pieces) -> None:
        """Store only this rank's pieces of the state from now on. Raises ValueError if updates need whole tensors."""
        elementwise = self.group.rule.elementwise
        if elementwise is None:
            raise ValueError(
                f"{self.group.rule} cannot keep its state in shards: how it updates one element of {self.name} "
                "depends on the others (a norm, a product), which other ranks have; take an optimizer that goes "
                "element by element, such as AdamW, or shard_optimizer=False"
            )
        if self.pieces is None and self.state:
            self.state = tuple(
                [pieces.own(x) if cut else x for x, cut in zip(self.state, elementwise, strict=True)]
            )
        self.pieces = pieces

    def whole_state(self) -> tuple[Tensor, ...]:
        """The unsharded state; if it is sharded, a collective."""
        if self.pieces is None or not self.state:
            return self.state
        shape, cuts = self.param.shape, self.group.rule.elementwise or ()
        return tuple(
            [self.pieces.whole(x, shape) if cut else x for x, cut in zip(self.state, cuts, strict=True)]
        )

    def take_state(self, whole: Sequence[Tensor]) -> None:
        """Set the state from an unsharded one."""
        cuts = self.group.rule.elementwise or ()
        for i, (held, x) in enumerate(zip(self.held(), whole, strict=True)):
            held.copy_(x if self.pieces is None or not cuts[i] else self.pieces.own(x))

    def begin_anew(self) -> None:
        """Reset the state to that before the first update."""
        if self.state:
            held = self.held()
            with recording(None):
                param = self.param if self.pieces is None else self.pieces.own(self.param)
                for x, first in zip(held, self.group.rule.init(updated_as(param)), strict=True):
                    x.copy_(first)

    def has_gradient(self) -> bool:
        """Whether there is an accumulated gradient that is nonzero."""
        return self.sum is not None and bool(ops.any(ops.ne(self.sum, 0.0)))

    def gathered(self, dtype: Any = None) -> Tensor:
        """The accumulated gradient, created on first use. dtype: by default the parameter's, or float32 if that is
        half.
        """
        if self.sum is None or self.sum.device != self.param.device:
            self.sum = _outside(self.param.shape, dtype or self.param.dtype.compute, self.param.device)
        return self.sum


def updated_as(param: Any) -> Any:
    """The parameter as an update reads it: half types are widened to float32, the dtype of their state."""
    wide = param.dtype.compute
    return param if wide is param.dtype else ops.cast(param, wide)


def _outside(shape: tuple[int, ...], dtype: Any, device: Device) -> Tensor:
    """Zeros that are created now even during a recording."""
    with recording(None):
        return zeros(shape, dtype=dtype, device=device)


class ParameterGroups:
    """The parameters of one optimizer in their groups, their states, and the number of updates so far.

    optimizer: the rule for parameters outside any group. params, groups: as in `Optimizer.over`.
    """

    def __init__(
        self, optimizer: UpdateRule, params: Params, groups: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.optimizer = optimizer
        self.number = 0
        self.groups: list[ParameterGroup] = []
        self.entries: dict[int, TrainedParameter] = {}
        self._count: Tensor | None = None  # number of accumulated gradients
        self._known: dict[Hashable, int] = {}
        self._compiled: tuple[tuple[Hashable, ...], int] = (), -1
        self._with_gradient: set[str] = set()  # names of parameters that got gradients since the last update
        items = params if isinstance(params, HasParameters | Tensor) else list(params)
        if isinstance(items, list) and items and all(isinstance(x, Mapping) for x in items):
            if groups:
                raise TypeError(f"{self._name}: groups are given twice, as params and as groups")
            self._add_listed(items)
        else:
            self._add_selected(_named(items, self._name), groups)
        if not self.entries:
            raise ValueError(f"{self._name}: there are no parameters to train: {_hint(items)}")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy refers to its own parameters, which are copied with it."""
        self.__dict__.update(state)
        self.entries = {id(e.param): e for e in self.entries.values()}

    @property
    def _name(self) -> str:
        return type(self.optimizer).__name__

    # ---- groups
    def _add_listed(self, listed: Sequence[Mapping[str, Any]]) -> None:
        """Groups that list their parameters, as in torch."""
        for given in listed:
            self.add_param_group(given)

    def add_param_group(self, given: Mapping[str, Any]) -> None:
        """Add a group that lists its parameters."""
        own, i = given.get("params"), len(self.groups)
        if own is None or isinstance(own, str) or (callable(own) and not isinstance(own, HasParameters)):
            raise TypeError(
                f"{self._name}: group {i} needs its parameters under 'params', got {shown(own)}; names and "
                f"predicates select among those of a network: {self._name}(lr=...).over(net, groups)"
            )
        found = _named(own if isinstance(own, HasParameters | Tensor) else list(own), self._name)
        self._add({f"{i}.{n}": p for n, p in found.items()}, given, i)

    def _add_selected(self, named: dict[str, Tensor], groups: Sequence[Mapping[str, Any]]) -> None:
        """Groups that select among named parameters; the rest uses the optimizer's own hyperparameters."""
        rest = dict(named)
        for i, given in enumerate(groups):
            if "params" not in given:
                raise TypeError(f"{self._name}: group {i} has no 'params': {shown(given)}")
            chosen = self._select(given["params"], named, rest, i)
            self._add(chosen, given, i)
            rest = {n: p for n, p in rest.items() if n not in chosen}
        if rest:
            self._take(ParameterGroup(rest, self.optimizer))

    def _select(
        self, by: Any, named: dict[str, Tensor], rest: dict[str, Tensor], index: int
    ) -> dict[str, Tensor]:
        if isinstance(by, str):
            found = {n: p for n, p in rest.items() if fnmatchcase(n, by) or n.startswith(f"{by}.")}
        elif callable(by) and not isinstance(by, HasParameters):
            found = {n: p for n, p in rest.items() if by(n, p)}
        else:
            own = _named(by if isinstance(by, HasParameters | Tensor) else list(by), self._name)
            ids = {id(p) for p in own.values()}
            found = {n: p for n, p in named.items() if id(p) in ids}
            if len(found) < len(ids) or any(n not in rest for n in found):
                raise ValueError(
                    f"{self._name}: group {index} has parameters that are not among those to train, or are in "
                    "a group before it"
                )
        if not found:
            raise ValueError(
                f"{self._name}: group {index} selects none of the parameters {', '.join(list(rest)[:8])}"
            )
        return found

    def _add(self, params: dict[str, Tensor], given: Mapping[str, Any], index: int) -> None:
        numbers = {name: value for name, value in given.items() if name not in ("params", "frozen")}
        if given.get("frozen", False):
            if numbers:
                raise ValueError(f"{self._name}: group {index} is frozen, so that {numbers} have no meaning")
            for p in params.values():
                p.requires_grad = False
        self._take(ParameterGroup(params, self.optimizer.having(numbers)))

    def _take(self, group: ParameterGroup) -> None:
        twice = [n for n, p in group.params.items() if id(p) in self.entries]
        if twice:
            raise ValueError(f"{self._name}: {', '.join(twice)} is in more than one group")
        named = {e.name: e.param for e in self.entries.values()}
        group.params = {_add(named, n, p, len(self.groups)): p for n, p in group.params.items()}
        for name, p in group.params.items():
            self.entries[id(p)] = TrainedParameter(name, p, group)
        self.groups.append(group)

    @property
    def compiled(self) -> int:
        """An integer compilation key of programs: the groups and their update rules."""
        key = tuple([group.rule.compiled for group in self.groups])
        if key != self._compiled[0]:  # mostly the same objects: then nothing is hashed
            self._compiled = key, self._known.setdefault(key, len(self._known))
        return self._compiled[1]

    def given(self, number: int, specs: Sequence[Spec]) -> list[Array]:
        """The per-group inputs of an update, for programs compiled for these specs."""
        return [group.given(number, spec) for group, spec in zip(self.groups, specs, strict=True)]

    def given_specs(self) -> list[Spec]:
        """The specs of per-group inputs of newly compiled programs: the rate, and the moving hyperparameters."""
        return [group.given_spec for group in self.groups]

    def rates(self, number: int) -> list[float]:
        """The rate of each group at an update."""
        return [group.rule.rate(number) for group in self.groups]

    # ---- updates
    def step(self, grads: Any = None) -> None:
        """Update the parameters by gradients, or by the mean of the accumulated ones."""
        pairs = self._gathered() if grads is None else self._pairs(grads)
        rates = dict(zip(map(id, self.groups), self._rates(), strict=True))
        now, there = recorder() is None, dict[tuple[int, Device], Tensor]()
        for entry, g in pairs:
            if entry.pieces is not None:
                raise RuntimeError(
                    f"{self._name}.step: the state of {entry.name} lies in shards, which a train_step with "
                    "shard_optimizer=True updates"
                )
            held, rule, rate = entry.held(), entry.group.rule, rates[id(entry.group)]
            before = updated_as(entry.param)
            if now and before is entry.param:
                place = id(entry.group), before.device
                there[place] = tensor(rate, device=before.device) if place not in there else there[place]
                if rule.updates_in_place(before, g, held, there[place]):
                    continue
            param, after = rule.update(before, g, held, rate)
            # Parameters are leaves: derivatives later in the same program stop at their new values.
            entry.param.copy_(ops.stop_gradient(param))
            for x, new in zip(held, after, strict=True):
                x.copy_(ops.stop_gradient(new))

    def _rates(self) -> list[Any]:
        """The current inputs of each group: numbers, or, in a recording, inputs that are refreshed at each call."""
        by = recorder()
        if by is None:
            given = self.given(self.number, self.given_specs())
            self.number += 1
            return given
        later, compiled = by.finally_(self._advance), self.compiled
        by.guard(lambda: self.compiled == compiled)

        def rate(index: int, spec: Spec) -> Callable[[], Any]:
            return lambda: self.groups[index].given(self.number + later, spec)

        return [by.feed(spec, rate(i, spec)) for i, spec in enumerate(self.given_specs())]

    def _advance(self) -> None:
        self.number += 1

    def accumulate(self, grads: Any) -> None:
        """Add gradients to those accumulated since the last update."""
        pairs, by = self._pairs(grads), recorder()
        for entry, g in pairs:
            total = entry.gathered()
            total.copy_(ops.add(total, ops.cast(g, total.dtype)))
        names = [entry.name for entry, _ in pairs]
        if by is None:
            self._with_gradient.update(names)
        else:
            self._gathered_within(by).update(names)
            by.finally_(partial(self._with_gradient.update, names))
        count = self._counted()
        count.copy_(ops.add(count, 1.0))

    def _counted(self) -> Tensor:
        device = next(iter(self.entries.values())).param.device
        if self._count is None or self._count.device != device:
            self._count = _outside((), "float32", device)
        return self._count

    def _gathered(self) -> Iterator[tuple[TrainedParameter, Any]]:
        """The means of the accumulated gradients, which are then cleared.

        Parameters without a gradient since the last update have none. A recorded program is valid as long as
        gradients of the same parameters are accumulated.
        """
        count, by = self._counted(), recorder()
        held = [e for e in self.entries.values() if e.sum is not None and e.is_trained]
        names = self._with_gradient if by is None else self._gathered_within(by)
        found = [e for e in held if e.name in names]
        names.clear()
        if by is not None:
            by.finally_(self._with_gradient.clear)
        if not found:
            raise ValueError(
                f"{self._name}.step: there are no gradients: give them, or call accumulate before"
            )
        most = ops.maximum(count, 1.0)
        means = [(e, ops.div(e.gathered(), ops.cast(most, e.param.dtype))) for e in found]
        for e in found:
            e.gathered().copy_(_zeros(e.gathered()))
        count.copy_(_zeros(count))
        return iter(means)

    def _gathered_within(self, by: Recorder) -> set[str]:
        """The parameters with gradients at this point of a trace, which starts with those that have one now."""

        def begun() -> set[str]:
            before = frozenset(self._with_gradient)
            by.guard(lambda: self._with_gradient == before)
            return set(before)

        found: set[str] = by.note(self, begun)
        return found

    # ---- assignment of gradients
    def _pairs(self, grads: Any) -> list[tuple[TrainedParameter, Any]]:
        """Trained parameters with their gradients, except those without one: None, or independent of the loss. Raises
        TypeError, ValueError, ShapeError."""
        found = self._by_identity(grads)
        if found is None:
            found = self._by_name(grads) if isinstance(grads, Mapping) else self._by_place(grads)
        trained = [(e, g) for e, g in found if e.is_trained]
        if not trained:
            raise ValueError(f"{self._name}.step: none of the gradients is of a parameter that it trains")
        pairs = [(e, g) for e, g in trained if g is not None]
        for e, g in pairs:
            if tuple(g.shape) != e.param.shape:
                raise ShapeError(
                    f"{self._name}.step: {e.name} is {e.param.shape}, its gradient {tuple(g.shape)}"
                )
        return pairs

    def _by_identity(self, grads: Any) -> list[tuple[TrainedParameter, Any]] | None:
        """For derivatives with respect to modules, identity tells which parameter each gradient belongs to."""
        if isinstance(grads, Gradients):
            absent = grads.absent
            given = [(grads.parameters[n], None if n in absent else g) for n, g in grads.items()]
            known = [(self.entries.get(id(p)), g) for p, g in given]
            return [(e, g) for e, g in known if e is not None]
        if not isinstance(grads, tuple | list) or not grads:
            return None
        parts = [self._by_identity(g) for g in grads]
        return None if any(p is None for p in parts) else [pair for p in parts for pair in p or ()]

    def _by_name(self, grads: Mapping[str, Any]) -> list[tuple[TrainedParameter, Any]]:
        by_name = {e.name: e for e in self.entries.values()}
        unknown = [n for n in grads if n not in by_name]
        if unknown:
            raise ValueError(
                f"{self._name}.step: gradients are named {', '.join(map(str, unknown[:4]))}, parameters "
                f"{', '.join(list(by_name)[:4])}, …: give the optimizer the module, {self._name}(net, lr=...)"
            )
        return [(by_name[n], g) for n, g in grads.items()]

    def _by_place(self, grads: Any) -> list[tuple[TrainedParameter, Any]]:
        given = [grads] if is_array(grads) or isinstance(grads, Operand) else grads
        trained = [e for e in self.entries.values() if e.is_trained]
        if not isinstance(given, tuple | list) or any(
            g is not None and not is_array(g) and not isinstance(g, Operand) for g in given
        ):
            raise TypeError(
                f"{self._name}.step: gradients are a dict by name, a list in the order of the parameters, or what "
                f"lamina.grad gives for a module; got {shown(grads)}"
            )
        if len(given) != len(trained):
            frozen = len(self.entries) - len(trained)
            raise ValueError(
                f"{self._name}.step: {len(given)} gradients for {len(trained)} parameters"
                + (f" and {frozen} frozen ones (requires_grad; nn.Parameter(x) is trained)" if frozen else "")
                + ": give them by name"
            )
        return list(zip(trained, given, strict=True))

    # ---- state
    def state_dict(self) -> dict[str, Tensor]:
        """The state of each updated parameter, by the names of both, the number of updates, and the groups' rates
        (except schedules) and other hyperparameters: "param_groups.0.lr".

        Sharded state is gathered: then this is a collective.
        """
        found = {"step": tensor(np.asarray(self.number, np.int64))}
        for i, group in enumerate(self.groups):
            found |= {f"param_groups.{i}.{n}": tensor(x) for n, x in _numbers(group).items()}
        for e in self.entries.values():
            found |= {
                f"{e.name}.{part}": x
                for part, x in zip(e.group.rule.parts, e.whole_state(), strict=bool(e.state))
            }
        gathered = {f"{e.name}.sum_of_gradients": e.sum for e in self.entries.values() if e.sum is not None}
        if self._count is not None:
            found |= {"gathered": self._count, **gathered}
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`, including rates and hyperparameters, as in torch; others are unchanged.

        Parameters absent from it, which had not been updated by then, start anew. A torch state is also accepted; its
        parameters are numbered in the order of the groups. Nothing is changed unless everything fits.
        """
        if "state" in state and "param_groups" in state:
            state = self._of_torch(state["state"], state["param_groups"])
        numbers = [_numbers(group) for group in self.groups]
        entries = list(self.entries.values())
        updated = [e for e in entries if any(f"{e.name}.{part}" in state for part in e.group.rule.parts)]
        sums = {n: e.gathered() for e in entries if (n := f"{e.name}.sum_of_gradients") in state}
        sums |= {"gathered": self._counted()} if "gathered" in state else {}
        self._check_fits(state, numbers, updated, sums)
        self._take_numbers(numbers, state)
        self.number = int(state["step"])
        for e in updated:
            e.take_state([_beside(state[f"{e.name}.{part}"], e.param) for part in e.group.rule.parts])
        loaded = set(map(id, updated))
        for e in entries:
            if id(e) not in loaded:
                e.begin_anew()
        self._take_sums(state, sums)

    def _check_fits(
        self,
        state: Mapping[str, Any],
        numbers: Sequence[Mapping[str, np.ndarray[Any, Any]]],
        updated: Sequence[TrainedParameter],
        sums: Mapping[str, Tensor],
    ) -> None:
        """Raises ValueError unless a state fits these groups, parameters and accumulated gradients, in their shapes.

        numbers: of each group. updated: the parameters that it has a state of.
        """
        wanted: dict[str, tuple[int, ...] | None] = {"step": None}  # None: any shape
        for i, (group, own) in enumerate(zip(self.groups, numbers, strict=True)):
            given = {n: own.get(n) for n in group if f"param_groups.{i}.{n}" in state}
            wanted |= {f"param_groups.{i}.{n}": None if x is None else x.shape for n, x in given.items()}
        for e in updated:
            cuts = e.group.rule.elementwise or ()
            for i, (part, x) in enumerate(zip(e.group.rule.parts, e.held(), strict=True)):
                wanted[f"{e.name}.{part}"] = e.param.shape if e.pieces is not None and cuts[i] else x.shape
        wanted |= {name: x.shape for name, x in sums.items()}
        shapes = {n: shape for n, shape in wanted.items() if shape is not None and n in state}
        wrong = sorted(wanted.keys() ^ set(state))
        wrong += [n for n, shape in shapes.items() if np.shape(state[n]) != shape]
        if wrong:
            raise ValueError(f"{self._name}.load_state_dict: does not fit: {', '.join(wrong[:8])}")

    def _take_sums(self, state: Mapping[str, Any], sums: Mapping[str, Tensor]) -> None:
        """Load accumulated gradients; missing ones are 0."""
        for name, held in sums.items():
            held.copy_(_beside(state[name], held))
        own = {f"{e.name}.sum_of_gradients": e.sum for e in self.entries.values()}
        for name, lacking in {**own, "gathered": self._count}.items():
            if lacking is not None and name not in sums:
                lacking.copy_(_zeros(lacking))
        self._with_gradient = {
            e.name for e in self.entries.values() if f"{e.name}.sum_of_gradients" in sums and e.has_gradient()
        }

    def _of_torch(self, states: Mapping[Any, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """torch's state, keyed by parameter number, with names instead. Raises ValueError for other groups."""
        sizes, own = [len(g["params"]) for g in groups], [len(g.params) for g in self.groups]
        if sizes != own:
            raise ValueError(
                f"{self._name}.load_state_dict: does not fit: groups of {sizes} parameters, {own} are trained"
            )
        found: dict[str, Any] = {"step": 0}
        for i, (group, theirs) in enumerate(zip(self.groups, groups, strict=True)):
            numbers = {n: theirs[n] for n in group if n != "params" and n in theirs}
            found |= {f"param_groups.{i}.{n}": x for n, x in numbers.items() if _is_numeric(x)}
            for param, number in zip(group.params.values(), theirs["params"], strict=True):
                e, kept = self.entries[id(param)], states.get(number) or {}
                found["step"] = max(found["step"], int(kept.get("step", 0)))
                given = {_IN_TORCH.get(part, part): part for part in group.rule.parts}
                taken = {part: kept[n] for n, part in given.items() if kept.get(n) is not None}
                if taken:
                    taken.setdefault("step", 1)  # torch does not count here: only whether it stepped matters
                    first = dict(zip(group.rule.parts, e.held(), strict=True))
                    found |= {f"{e.name}.{part}": taken.get(part, x) for part, x in first.items()}
        return found

    def _take_numbers(self, before: Sequence[Mapping[str, Any]], state: Mapping[str, Any]) -> None:
        """The rates and hyperparameters of a state. Raises ValueError for one that is fixed at construction."""
        try:
            for i, (group, own) in enumerate(zip(self.groups, before, strict=True)):
                given = {n: np.asarray(state[k]) for n in own if (k := f"param_groups.{i}.{n}") in state}
                _set_numbers(group, given)
        except (TypeError, ValueError):
            for group, own in zip(self.groups, before, strict=True):
                _set_numbers(group, own)
            raise


def _numbers(group: ParameterGroup) -> dict[str, np.ndarray[Any, Any]]:
    """A group's rate, unless it is a schedule, and its other numeric constructor arguments."""
    held = {n: x for n, x in group.items() if n != "params"}
    return {n: np.asarray(x) for n, x in held.items() if _is_numeric(x)}


def _is_numeric(x: Any) -> bool:
    return all(isinstance(y, int | float) for y in (x if isinstance(x, tuple | list) else (x,)))


#: Moments whose names differ in torch's optimizers.
_IN_TORCH = {"momentum": "momentum_buffer"}


def _set_numbers(group: ParameterGroup, numbers: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Set those that differ; a group that follows the optimizer's rate continues to do so."""
    for name, x in numbers.items():
        value: Any = tuple(x.tolist()) if x.ndim else x.item()
        if group[name] == value:
            continue
        if name == "lr" and isinstance(group.rule.lr, FollowingRate):
            group.rule.lr.optimizer.lr = value
        else:
            group[name] = value


def _beside(x: Any, other: Tensor) -> Tensor:
    """Values as a tensor on the device of another one."""
    return as_tensor(x).to(other.device)


def _named(items: Any, what: str) -> dict[str, Tensor]:
    """Parameters by name. Raises TypeError for anything else."""
    if isinstance(items, HasParameters):
        return dict(items.named_parameters())
    found: dict[str, Tensor] = {}
    for i, x in enumerate([items] if isinstance(items, Tensor) else items):
        if isinstance(x, HasParameters):
            for n, p in x.named_parameters():
                _add(found, f"{i}.{n}", p, i)
        elif isinstance(x, tuple) and len(x) == 2 and isinstance(x[0], str) and isinstance(x[1], Tensor):
            _add(found, x[0], x[1], i)
        elif isinstance(x, Tensor) and x.dtype.is_float:
            _add(found, str(i), x, i)
        else:
            raise TypeError(
                f"{what}: params[{i}] is no parameter, named parameter, module or group: {shown(x)}"
            )
    ids = [id(p) for p in found.values()]
    if len(set(ids)) < len(ids):
        raise ValueError(f"{what}: a parameter is given more than once")
    return found


def _add(named: dict[str, Tensor], name: str, x: Tensor, place: int) -> str:
    """Register a parameter; returns its name, suffixed by its position if taken: two networks may have a "weight"."""
    while name in named:
        name = f"{place}.{name}"
    named[name] = x
    return name


def _zeros(x: Tensor) -> Any:
    """Zeros like x, in a program a constant."""
    by, zero = recorder(), np.zeros((), x.dtype.numpy)
    one: Any = zero if by is None else by.read(zero)
    return ops.expand(one, x.shape)


def _hint(items: Any) -> str:
    return f"{type(items).__name__} has none (a lazy layer has its own once it was called)"
