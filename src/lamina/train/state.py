"""What a training step keeps from one batch to the next: parameters, buffers, the optimizer's state and others."""

from __future__ import annotations

from dataclasses import dataclass, field

from lamina.distributed.shards import Shards
from lamina.nn import Module
from lamina.nn.parameter import become
from lamina.optim.groups import ParameterGroups, TrainedParameter
from lamina.runtime import Device
from lamina.spec.precision import Precision
from lamina.tensors import Tensor, zeros
from lamina.train.options import Options
from lamina.train.scaling import initial_scale
from lamina.train.trained import TrainedModules


@dataclass
class State:
    """The whole training state, by name, as this rank holds it.

    masters: with a sharded optimizer, this rank's pieces of the wide (master) weights, which `parameters` has
        rounded.
    """

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    scale: dict[str, Tensor] = field(default_factory=dict)
    gathered: dict[str, Tensor] = field(default_factory=dict)
    averaged: dict[str, Tensor] = field(default_factory=dict)
    errors: dict[str, Tensor] = field(default_factory=dict)
    masters: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, trained: TrainedModules, precision: Precision, options: Options, home: Device | None
    ) -> State:
        """The state of a network and its loss, whose parameters and buffers move to home (None: stay where they are)
        and get the type of the weights, except buffers of the loss; `extend` adds the optimizer's.

        Raises ValueError for a network without parameters, for ranks with different networks, and for averages
        beside shards of half types.
        """
        parameters, buffers = dict(trained.named_parameters()), dict(trained.named_buffers())
        if not parameters:
            net = trained.net
            raise ValueError(f"train_step: {type(net).__name__} has no parameters{_why_none(net)}")
        averaged = {} if options.averaged is None else options.averaged.state_dict()
        kept = {id(x) for x in trained.buffers_of_loss().values()}
        for held in (*parameters.values(), *buffers.values(), *averaged.values()):
            converted = held.dtype.is_float and id(held) not in kept
            become(held, home, precision.master if converted else None)
        random = {name: g.state for name, g in trained.generators().items()}
        scale = {"scale": initial_scale()} if precision.scaled else {}
        state = cls(parameters, buffers, {}, random, scale, averaged=averaged)
        if options.parallel is not None:
            named = [(f"{n} {x.spec.open}", "") for n, x in state.named().items()]
            options.parallel.check_alike("train_step: parameters, buffers and generators", named)
            options.parallel.same_as_first([*parameters.values(), *state.buffers.values(), *random.values()])
        if options.shard_optimizer and averaged and precision.compute != precision.master:
            raise ValueError(
                "train_step: averaged= needs the float32 parameters whole on each rank, which in "
                f"{precision} shard_optimizer=True keeps in shards; leave one of them out"
            )
        return state

    def named(self) -> dict[str, Tensor]:
        """Every tensor under its group's name and its own, in a fixed order."""
        groups = vars(self).items()
        return {f"{group}/{name}": x for group, tensors in groups for name, x in tensors.items()}

    def trained(self, groups: ParameterGroups) -> list[tuple[str, TrainedParameter]]:
        """The trained parameters, by their names here."""
        known = [(name, groups.entries.get(id(p))) for name, p in self.parameters.items()]
        return [(name, e) for name, e in known if e is not None and e.is_trained]

    def extend(
        self,
        trained: TrainedModules,
        groups: ParameterGroups,
        precision: Precision,
        options: Options,
        home: Device | None,
    ) -> None:
        """Add the state of parameters that are trained now: optimizer state, accumulated gradients.

        Raises ValueError for an optimizer that trains parameters that neither the network nor its loss has.
        """
        known = {id(p) for p in self.parameters.values()}
        if foreign := [e.name for e in groups.entries.values() if id(e.param) not in known]:
            raise ValueError(
                f"train_step: the optimizer trains {', '.join(foreign[:4])}, which neither "
                f"{type(trained.net).__name__} nor its loss has; give a loss with parameters as a module, and for "
                "several networks write a step of your own (lamina.jit)"
            )
        entries = self.trained(groups)
        if options.shards is not None:
            read_wide = trained.masters()
            for name, entry in entries:
                entry.share(options.shards)
                entry.held()  # of the wide parameter
                if id(entry.param) not in read_wide:
                    self._share_master(name, precision, options.shards)
        for name, entry in entries:
            for part, held in zip(entry.group.rule.parts, entry.held(), strict=True):
                self.optimizer[f"{name}.{part}"] = held
            if options.accumulate > 1 and name not in self.gathered:
                self.gathered[name] = entry.gathered(precision.master)
            if options.keeps_errors and name not in self.errors:
                self.errors[name] = zeros(entry.param.shape, dtype=precision.master, device=home)
        if options.accumulate > 1 and "count" not in self.gathered:
            self.gathered["count"] = zeros((), device=home)

    def _share_master(self, name: str, precision: Precision, shards: Shards) -> None:
        """Keep this rank's piece of a wide parameter that the network reads only in the compute type."""
        param = self.parameters[name]
        if name not in self.masters and param.dtype != precision.compute:
            self.masters[name] = shards.own(param)
            become(param, None, precision.compute)

    def check_types(self, trained: TrainedModules, precision: Precision) -> None:
        """Raises RuntimeError for parameters and buffers whose dtype was changed after the step was made."""
        free = trained.buffers_of_loss()
        for name, held in (self.parameters | self.buffers).items():
            wanted = precision.compute if name in self.masters else precision.master
            if held.dtype.is_float and held.dtype != wanted and name not in free:
                raise RuntimeError(
                    f"train_step: {name} of {trained} is {held.dtype}, but the step, in precision "
                    f"{precision}, keeps it in {wanted}; make a new step after double(), half() or to(dtype), "
                    f"with the precision that is meant, or convert the network back to {wanted}"
                )

    def check_parameters(self, trained: TrainedModules) -> None:
        """Raises RuntimeError where the network has other parameters or buffers than when the step was made."""
        now = {**dict(trained.named_parameters()), **dict(trained.named_buffers())}
        then = self.parameters | self.buffers
        others = [n for n in now.keys() | then.keys() if now.get(n) is not then.get(n)]
        if others:
            raise RuntimeError(
                f"train_step: {', '.join(sorted(others)[:4])} of {trained} was replaced, added or "
                "removed after the step was made, which trains what was there; make a new step (and optimizer), or "
                "write values with copy_ or load_state_dict"
            )


def _why_none(net: Module) -> str:
    """Why a network may have no parameters, behind an error's text."""
    if any(hasattr(m, "becomes") for m in net.modules()):
        return " yet: call it once on a tensor, so that its lazy layers get theirs"
    hidden = ", ".join(net.unregistered())
    return f"; {hidden} holds modules in a plain list: use nn.ModuleList" if hidden else ""
