"""The second half of a training step, traced: from gradients to the next parameters, over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina import ops
from lamina.graph import Value
from lamina.graph.ir.graph import constant
from lamina.nn.mixed_precision import cast_float
from lamina.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from lamina.optim.groups import ParameterGroups, TrainedParameter
from lamina.spec import float32
from lamina.spec.precision import Precision
from lamina.train.options import Options
from lamina.train.scaling import all_finite, next_scale
from lamina.train.state import State


class UpdateTrace:
    """What becomes of the gradients: averaged over ranks, unscaled, accumulated, clipped, given to the optimizer.

    values: the traced state, by name.
    new: the next values of what was updated, by name.
    grads: the gradients, in the end as the optimizer received them.
    figures: the loss, the hits and the labels (if any), in the end over all ranks where these update together.
    good: a bool scalar, whether there is a gradient to update by, which a loss scale may have let overflow; None:
        always.
    """

    def __init__(
        self,
        state: State,
        groups: ParameterGroups,
        precision: Precision,
        options: Options,
        values: dict[str, Value],
    ) -> None:
        self._state, self._groups, self._precision, self._options = state, groups, precision, options
        self._shards, self._values = options.shards, values
        self._names: list[str] = []
        self.new: dict[str, Any] = {}
        self.grads: list[Any] = []
        self.figures: list[Any] = []
        self.good: Any = None

    def run(
        self,
        trained: Sequence[tuple[str, TrainedParameter]],
        grads: Sequence[Any],
        parameters: dict[str, Value],
        figures: Sequence[Any],
        updates: bool,
    ) -> None:
        """Trace it. trained: the parameters that have a gradient, in the order of grads. updates: whether these are
        updated, or gradients accumulated alone."""
        self._names = [name for name, _ in trained]
        self.grads, self.figures = list(grads), list(figures)
        alone = updates and self._options.accumulate == 1
        if alone:
            self._average_over_ranks()
        if "scale/scale" in self._values:
            self._unscale(averaged=alone and self._shards is None)
        if self._options.accumulate > 1:
            self._accumulate(updates)
        if not updates:
            return
        if not alone:
            self._average_over_ranks()
        self._clip()
        self._apply(trained, parameters)
        if self._shards is not None and self._options.keep_grads:
            shapes = [self._state.parameters[n].shape for n in self._names]
            self.grads = list(self._shards.whole_of_each(self.grads, shapes))

    def _average_over_ranks(self) -> None:
        """Gradients and the loss become means over the ranks, the hits sums; rounding errors are stored."""
        parallel = self._options.parallel
        if parallel is None:
            return
        wide = [cast_float(g, self._precision.master) for g in self.grads]
        kept = [f"errors/{n}" for n in self._names] if self._options.keeps_errors else []
        errors = [self._values[key] for key in kept] if self._options.keeps_errors else None
        loss, *hits = self.figures
        sums = [ops.cast(h, float32) for h in hits]
        means, others, left = parallel.averages(
            wide, [loss, *sums], errors, in_shards=self._shards is not None
        )
        self.new |= dict(zip(kept, left, strict=True)) if kept else {}
        self.grads = list(means)
        self.figures = [others[0], *(ops.cast(ops.round(m * parallel.size), "int64") for m in others[1:])]

    def _unscale(self, averaged: bool) -> None:
        """Divide the gradients by the loss scale, which grows or shrinks. averaged: whether all ranks have the same
        gradients; else they agree on whether all of these are finite."""
        scale, parallel = self._values["scale/scale"], self._options.parallel
        self.good = all_finite(self.grads)
        if parallel is not None and not averaged:
            self.good = parallel.all_agree(self.good)
        self.new["scale/scale"] = next_scale(scale, self.good)
        self.grads = [cast_float(g, self._precision.master) / scale[0] for g in self.grads]

    def _accumulate(self, updates: bool) -> None:
        """Add the gradients to the accumulated ones; if the parameters are updated now, take the mean of these."""
        keys = [f"gathered/{name}" for name in self._names]
        before, count = [self._values[key] for key in keys], self._values["gathered/count"]
        sums = [held + cast_float(g, held.dtype) for held, g in zip(before, self.grads, strict=True)]
        grown = count + 1.0
        if self.good is not None:
            sums = [ops.where(self.good, a, b) for a, b in zip(sums, before, strict=True)]
            grown = ops.where(self.good, grown, count)
        if not updates:
            self.new |= dict(zip(keys, sums, strict=True))
            self.new["gathered/count"] = grown
            return
        self.new |= {key: zeros_as(x) for key, x in zip(keys, sums, strict=True)}
        self.new["gathered/count"] = zeros_as(count)
        self.grads = [x / cast_float(ops.maximum(grown, 1.0), x.dtype) for x in sums]
        self.good = None if self.good is None else ops.gt(grown, 0.0)

    def _clip(self) -> None:
        """Clip the gradients by value, then by their norm, over all shards."""
        if self._options.clip_value is not None:
            clip_grad_value_(self.grads, self._options.clip_value)
        if self._options.clip_norm is not None:
            norm = get_total_norm(self.grads)
            norm = norm if self._shards is None else ops.sqrt(self._shards.total(ops.square(norm)))
            clip_grads_with_norm_(self.grads, self._options.clip_norm, norm)

    def _apply(self, trained: Sequence[tuple[str, TrainedParameter]], parameters: dict[str, Value]) -> None:
        """The optimizer's rule for each parameter; nothing changes without a good gradient."""
        after = []
        for (name, entry), g in zip(trained, self.grads, strict=True):
            held, rule = self._own_piece(name, parameters), entry.group.rule
            keys = [f"optimizer/{name}.{part}" for part in rule.parts]
            rate = self._values[f"rate{self._groups.groups.index(entry.group)}"]
            fresh, states = rule.update(held, g, tuple(self._values[k] for k in keys), rate)
            self.new |= {k: self._if_good(x, self._values[k]) for k, x in zip(keys, states, strict=True)}
            after.append(self._if_good(fresh, held))
        self.new |= self._whole_parameters(after)

    def _if_good(self, new: Any, old: Any) -> Any:
        return new if self.good is None else ops.where(self.good, new, old)

    def _own_piece(self, name: str, parameters: dict[str, Value]) -> Any:
        """The part of a parameter that this rank updates."""
        if self._shards is None:
            return parameters[name]
        master = self._values.get(f"masters/{name}")
        return self._shards.own(parameters[name]) if master is None else master

    def _whole_parameters(self, after: Sequence[Any]) -> dict[str, Any]:
        """The new parameters, from the parts that each rank has updated, and the new pieces of wide ones."""
        if self._shards is None:
            return {f"parameters/{n}": x for n, x in zip(self._names, after, strict=True)}
        masters = {
            f"masters/{n}": x for n, x in zip(self._names, after, strict=True) if n in self._state.masters
        }
        own = [self._state.parameters[n] for n in self._names]
        sent = [cast_float(x, p.dtype) for x, p in zip(after, own, strict=True)]
        whole = self._shards.whole_of_each(sent, [p.shape for p in own])
        return masters | {f"parameters/{n}": x for n, x in zip(self._names, whole, strict=True)}


def zeros_as(x: Any) -> Any:
    """Zeros of x's shape and dtype, as a constant."""
    return ops.expand(constant(np.zeros((), x.dtype.numpy)), x.shape)
