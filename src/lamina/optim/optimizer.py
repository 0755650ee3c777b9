"""The optimizer base class: state per parameter, and an update written in ops."""

from __future__ import annotations

import inspect
from abc import ABCMeta, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import copy
from numbers import Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lamina.graph.transforms.arguments import HasParameters
from lamina.ops.arguments import Checked, checked
from lamina.ops.core import Array, bind, recorder
from lamina.ops.primitives.update import Update
from lamina.optim.groups import FollowingRate, ParameterGroup, ParameterGroups, Params
from lamina.optim.schedule import Schedule
from lamina.tensors import Tensor, full, run_in_place, tensor

#: torch's options for how an update is computed: here it is always one program for all tensors.
_HOW = ("foreach", "fused", "capturable")


class _TakesParameters(ABCMeta):
    """Makes `SGD(net.parameters(), lr=0.1)` mean `SGD(lr=0.1).over(net.parameters())`, as in torch."""

    def __call__(cls, *args: Any, **numbers: Any) -> Any:
        if cls.__abstractmethods__:
            raise TypeError(
                f"{cls.__name__}: an optimizer defines update(self, param, grad, state, rate), which returns the new "
                "parameter and its new state; and, if it keeps a state, parts, the names of its tensors, and "
                "init(self, param), which returns the first ones. step, which is inherited, calls update for each "
                "parameter: parameters hold no gradients (p.grad) that a step of its own could read"
            )
        numbers = {name: value for name, value in numbers.items() if name not in _HOW}
        given = numbers.pop("params", None)
        if given is None and args and _are_parameters(args[0]):
            given, args = args[0], args[1:]
        given = list(given) if isinstance(given, Iterator) else given
        if _takes_params(cls):
            args = (given, *args)
        made = super().__call__(*args, **numbers)
        arguments = inspect.signature(made.__init__).bind(*args, **numbers).arguments
        own = {name: value for name, value in arguments.items() if name != "params"}
        object.__setattr__(made, "_arguments", own)
        return made if given is None else made.over(given)


def _takes_params(kind: Any) -> bool:
    """Whether a class is made as in torch: __init__(self, params, lr, ...)."""
    return "params" in inspect.signature(kind.__init__).parameters


def _are_parameters(x: Any) -> bool:
    return isinstance(x, HasParameters | Tensor | Iterator | list | tuple | dict)


#: Attributes of torch's optimizers that these lack, and what to write instead.
_INSTEAD = {
    "zero_grad": "gradients are those of one call and are given to step: leave the line out, or gather several by "
    "accumulate(grads)",
    "state": "state_dict() gives the moments by name",
    "defaults": "a number is an attribute (optimizer.momentum), or that of a group (optimizer.param_groups[0]['lr'])",
}


#: Attributes that an optimizer keeps when a hyperparameter is changed.
_ITS_OWN = ("lr", "changed", "_arguments", "_groups", "_own")


class Optimizer(Checked, metaclass=_TakesParameters):
    """Declares the per-parameter state, and how a step updates parameter and state.

    `SGD(lr=0.1)` is a rule: it holds no parameters and no state, and its user (`train_step`) keeps these.
    `SGD(net.parameters(), lr=0.1)`, or `SGD(lr=0.1).over(net)`, trains parameters: it keeps their states, and `step`
    updates them by gradients. Parameter groups, each with its own hyperparameters, are given as in torch by a list of
    dicts, or selected by `over(net, groups)`.

    Parameters of a half type (`net.to("bfloat16")`) are updated in float32, the dtype of their states, and rounded.

    `foreach=`, `fused=` and `capturable=` of torch's optimizers are accepted and ignored: they only select how the
    same update is computed.

    `lr` and the other hyperparameters may be set at any time, also per group, and take effect at the next step. In
    compiled programs the rate is an input. So is each numeric hyperparameter of an `UpdateOptimizer` from its first
    change on, for which programs are recompiled once, and again when a number becomes zero or nonzero; flags
    (`nesterov`), and hyperparameters of other optimizers, are compiled in.
    """

    lr: float | Schedule

    _arguments: Mapping[str, Any]
    _groups: ParameterGroups | None = None
    _own: frozenset[str] = frozenset()  # arguments in which a group differs from its optimizer
    #: The hyperparameters that were set since construction.
    changed: frozenset[str] = frozenset()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say what to write instead. Raises AttributeError."""
            hint = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r}{hint}", name=name, obj=self
            )

    def __init__(self, lr: Any, defaults: Mapping[str, Any] | None = None) -> None:
        """With defaults as torch's: `super().__init__(params, {"lr": lr, "beta": beta})`, from the __init__ of a
        class that takes params first; each becomes an attribute (`self.beta`), and the parameters are bound to the
        rule that is made."""
        if defaults is None and (lr is None or _are_parameters(lr)):
            raise TypeError(
                f"{type(self).__name__}: Optimizer.__init__ takes lr, or params and a dict of the hyperparameters, "
                'with "lr" among them: super().__init__(params, {"lr": lr, ...})'
            )
        numbers = {"lr": lr} if defaults is None else dict(defaults)
        if "lr" not in numbers:
            raise TypeError(
                f'{type(self).__name__}: the defaults have no "lr", only {", ".join(map(repr, numbers))}'
            )
        for name, value in numbers.items():
            setattr(self, name, value)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the state tensors per parameter, which a class may set as an attribute; none without `init`."""
        if type(self).init is Optimizer.init:
            return ()
        raise NotImplementedError(f"{type(self).__name__} does not say which state it keeps: set parts")

    @property
    def elementwise(self) -> tuple[bool, ...] | None:
        """For each of `parts`, whether it has one number per element, so that pieces of a parameter can be updated
        separately; None if an element's update depends on other elements."""
        return None

    # ---- parameters
    def over(self, params: Params, groups: Sequence[Mapping[str, Any]] = ()) -> Self:
        """An optimizer with the same rule that trains these parameters and keeps their states.

        params: a module, several modules, parameters, (name, parameter) pairs, or torch's list of dicts, each with
            "params" and the group's own hyperparameters.
        groups: dicts of the same kind that select among params: "params" is a pattern of names ("head.*", or a
            module's path "head"), a predicate of name and parameter, a module or parameters. A parameter is in the
            first group that selects it; the rest uses the optimizer's own hyperparameters. "frozen": True
            freezes.
        A group's "lr" may be a schedule; without one it follows the optimizer's.
        Raises TypeError and ValueError for non-parameters, for one in two groups, for an empty selection, or for a
        hyperparameter that the optimizer does not have.
        """
        made = copy(self)
        object.__setattr__(made, "_groups", ParameterGroups(made, params, groups))
        return made

    @checked
    def having(self, numbers: Mapping[str, Any]) -> Self:
        """The same rule with other hyperparameters; its rate follows this one's unless `numbers` has one."""
        named = inspect.signature(type(self).__init__).parameters
        unknown = [name for name in numbers if name not in named and name != "lr"]
        if unknown:
            raise TypeError(
                f"{type(self).__name__}: a group sets {', '.join(unknown)}; its numbers are "
                f"{', '.join(name for name in named if name not in ('self', 'params'))}"
            )
        own = {name: value for name, value in numbers.items() if name != "lr"}
        made: Self = type(self)(**{**self._arguments, **own})
        made._set_rate(numbers.get("lr", FollowingRate(self)))
        object.__setattr__(made, "_own", frozenset(own))
        return made

    @property
    def is_bound(self) -> bool:
        """Whether it trains parameters, and keeps their states."""
        return self._groups is not None

    @property
    def bound(self) -> ParameterGroups:
        """Its parameters and their states. Raises RuntimeError for an unbound rule."""
        if self._groups is None:
            kind = type(self).__name__
            raise RuntimeError(
                f"{kind}: this optimizer has no parameters: make it with them, {kind}(net.parameters(), lr=...)"
            )
        return self._groups

    @property
    def param_groups(self) -> list[ParameterGroup]:
        """The groups, each with `params`, `lr` and its hyperparameters: `optimizer.param_groups[1].lr = 0.01`."""
        return self.bound.groups

    @checked
    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Train further parameters from the next step on.

        param_group: "params", a module or parameters, and the group's own hyperparameters. Raises TypeError and
        ValueError as `over` does, and for parameters that are already trained.
        """
        self.bound.add_param_group(param_group)

    def step(self, grads: Any = None) -> None:
        """Update the parameters in place, by gradients or by the mean of those gathered by `accumulate`.

        grads: the result of `lamina.grad` or `value_and_grad` for modules (also a tuple for several), a dict by the
        parameters' names, or a list in their order. Parameters without a gradient (None, or omitted), those that the
        differentiated function does not depend on (their zeros are None in torch), and frozen ones are unchanged: no
        weight decay, no momentum. Immediate on tensors; within `lamina.jit` it is part of the compiled program, which
        reads the rates at each call. Raises RuntimeError without parameters, ValueError and ShapeError for gradients
        of other parameters.
        """
        self.bound.step(grads)

    def accumulate(self, grads: Any) -> None:
        """Accumulate gradients, in the forms that `step` accepts, for the next `step()`, which takes their mean."""
        self.bound.accumulate(grads)

    def state_dict(self) -> dict[str, Tensor]:
        """The states of its parameters by name, accumulated gradients, the number of updates, and the groups' rates
        and hyperparameters ("param_groups.0.lr"; schedules are not included)."""
        return self.bound.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict` from an optimizer with the same parameters; also rates and hyperparameters,
        if included. A state of torch's optimizer of the same name is also accepted. Raises ValueError."""
        self.bound.load_state_dict(state)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the rate, a hyperparameter, or a new attribute. Raises AttributeError for any other existing attribute,
        ValueError and TypeError for an invalid value, RuntimeError within a compiled function, where it would only
        take effect once, during tracing.
        """
        kind, is_made = type(self).__name__, "_arguments" in vars(self)
        is_number = is_made and name in inspect.signature(type(self).__init__).parameters
        if is_number or (is_made and name == "lr"):
            self._refuse_when_traced(name)
        if name == "lr":
            self._set_rate(value)
        elif is_number:
            self._change(name, value)
        elif name in vars(self):
            raise AttributeError(
                f"{kind}.{name} is {vars(self)[name]!r} for good, since compiled steps hold it (what may be set "
                f"later is "
                f"what it was made with): make a new {kind}"
            )
        else:
            object.__setattr__(self, name, value)

    def _set_rate(self, value: float | Schedule) -> None:
        kind = type(self).__name__
        if not callable(value) and not isinstance(value, Real):
            raise TypeError(f"{kind}: lr must be a number or a schedule, got {value!r}")
        if not callable(value) and not value >= 0:
            raise ValueError(f"{kind}: lr must be at least 0, got {value}")
        object.__setattr__(self, "lr", value)

    def _refuse_when_traced(self, name: str) -> None:
        if (by := recorder()) is not None and by.lasts:
            raise RuntimeError(
                f"{type(self).__name__}.{name} is set within a compiled function, which runs once, when it is "
                "traced, and not in each call: set it, or step the scheduler, outside of the function, whose calls "
                f"ask for {name}; or give the optimizer a schedule as its lr"
            )

    def _change(self, name: str, value: Any) -> None:
        """Become as if constructed with the new value; groups without their own value follow."""
        if vars(self).get(name) == value:
            return
        arguments = {**self._arguments, name: value}
        made = type(self)(**arguments)
        if made.parts != self.parts:
            raise ValueError(
                f"{type(self).__name__}.{name}: with {value!r} it keeps {', '.join(made.parts)} of each parameter, "
                f"not {', '.join(self.parts)}: make a new optimizer"
            )
        self._become(made)
        vars(self).update(_arguments=arguments, changed=self.changed | {name})
        for group in self._groups.groups if self._groups is not None else ():
            rule = group.rule
            if isinstance(rule, Optimizer) and rule is not self and name not in rule._own:
                rule._change(name, value)

    def _become(self, other: Self) -> None:
        """Take over another one's hyperparameters."""
        vars(self).update({n: x for n, x in vars(other).items() if n not in _ITS_OWN})
        vars(self)["_changes"] = vars(self).get("_changes", 0) + 1

    @property
    def compiled(self) -> Hashable:
        """The compilation key of programs: they are invalid once it changes."""
        return int(vars(self).get("_changes", 0))

    @property
    def moving(self) -> tuple[float, ...]:
        """The hyperparameters besides the rate that programs receive at each step."""
        return ()

    def given(self, step: int) -> Array:
        """The rate at a step, float64 (), or followed by `moving` (1 + n,)."""
        rate = self.rate(step)
        return np.array([rate, *self.moving] if self.moving else rate, np.float64)

    def rate(self, step: int) -> float:
        """The learning rate of step number `step` (0, 1, 2, …)."""
        return float(self.lr(step) if callable(self.lr) else self.lr)

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """The initial state, on the parameter's device; one tensor per name in `parts`. Without parts: none."""
        if self.parts:
            kind = type(self).__name__
            raise NotImplementedError(
                f"{kind} does not say how {', '.join(self.parts)} begin: define init(param)"
            )
        return ()

    def updates_in_place(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> bool:
        """Do one step at once in the memory of parameter and state, if it can be done so: whether it was."""
        return False

    @abstractmethod
    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """The parameter and its state after one step. rate: as in `given`; a bare rate is a float32 scalar unless a
        parameter of the group is wider."""


class UpdateOptimizer(Optimizer):
    """An optimizer whose step is a single op, which declares the state; backends run it over many tensors at once.

    op: the update, built by `__init__` from the hyperparameters. Those changed since then are not in it: they are
    passed with the rate.
    """

    op: Update
    _now: Update  # with its current hyperparameters
    _moved: frozenset[str] = frozenset()  # the hyperparameters that were changed

    @property
    def parts(self) -> tuple[str, ...]:
        """Moments, then scalars, and "step" if steps are counted."""
        return self.op.kept()

    def _become(self, other: Self) -> None:
        """Take over another one's hyperparameters; those that differ move from now on."""
        before, after = vars(self).get("_now", self.op).numbers(), other.op.numbers()
        moved = self._moved | {name for name, value in after.items() if before.get(name, value) != value}
        super()._become(other)
        vars(self).update(op=other.op.moved(moved), _now=other.op, _moved=moved)

    @property
    def compiled(self) -> Hashable:
        """The op, without the moving hyperparameters."""
        return self.op

    @property
    def moving(self) -> tuple[float, ...]:
        """The hyperparameters that were changed, in the order of `op.moving`."""
        return tuple(getattr(self._now, name) for name in self.op.moving)

    @property
    def elementwise(self) -> tuple[bool, ...] | None:
        """True for moments, False for scalars; None for a rule that reads norms of the whole tensor."""
        return None if self.op.norms else tuple(part in self.op.moments for part in self.parts)

    def first(self, part: str) -> float:
        """The initial value of a moment or scalar."""
        return 0.0

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """Moments shaped like the parameter, then float64 scalars, and the int64 step count."""
        op, where = self.op, param.device
        moments = [full(param.shape, self.first(n), param.dtype, where) for n in op.moments]
        scalars = [tensor(np.full((), self.first(n)), device=where) for n in op.scalars]
        counts = [tensor(np.zeros((), np.int64), device=where)] if op.counted else []
        return (*moments, *scalars, *counts)

    def updates_in_place(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> bool:
        """Do one step at once in the memory of parameter and state, if it can be done so: whether it was."""
        is_own = type(self).update is not UpdateOptimizer.update
        return not is_own and run_in_place(self.op, (param, grad, *state, rate))

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """One step: the new parameter and its new state."""
        new, *after = bind(self.op, param, grad, *state, rate)
        return new, tuple(after)


def check_at_least_zero(optimizer: Optimizer, **numbers: float) -> None:
    """Raise ValueError naming the optimizer, the argument and its value unless all are at least 0."""
    for name, value in numbers.items():
        if not value >= 0:
            raise ValueError(f"{type(optimizer).__name__}: {name} must be at least 0, got {value}")


def check_betas(optimizer: Optimizer, betas: tuple[float, float]) -> tuple[float, float]:
    """Two numbers in [0, 1). Raises ValueError naming the optimizer."""
    if len(betas) != 2 or not all(0 <= b < 1 for b in betas):
        raise ValueError(f"{type(optimizer).__name__}: betas must be in [0, 1), got {betas}")
    return float(betas[0]), float(betas[1])
