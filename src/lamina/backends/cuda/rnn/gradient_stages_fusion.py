"""A recurrent network's gradient in stages, where ranks add gradients: what is finished travels beside the rest.

The way back through the steps comes first, for all layers: its blocks, which wait for each other, fill the GPU, so
that a message beside them gets no room or lets them wait. It leaves the gradients of the gates. Gradients of weights
are products of these, an op for each matrix, uppermost layer first: a message goes beside the products behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from lamina.backends import Fusion, NoKernel, Plan
from lamina.backends.cuda.launch.program import (
    WORKSPACE_ALIGNMENT,
    Place,
    SubPlan,
    kernel_plan,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.registry import fusions, kernels
from lamina.backends.cuda.rnn import persistent
from lamina.backends.cuda.rnn.rnn import persistent_tiling, rnn_grad
from lamina.backends.pattern import PatternMatch, Results, made_by
from lamina.ops.core import Array, Sample
from lamina.ops.primitives.rnn import RnnGrad
from lamina.ops.primitives.shape import After, Pad, Reshape
from lamina.runtime import Device
from lamina.spec import Policy, Spec, uint8


@dataclass(frozen=True)
class RnnGradStage(RnnGrad):
    """Those results of `RnnGrad` that are finished in one stage, see `RnnGrad.stages`.

    Stage 0: its operands -> (dx, dh0, dc0, *gradients of biases, dgates). Later ones: its operands, with dgates
    behind the reserve, -> the gradients of matrices.
    reserve: whether the reserve is there, and dgates, uint8: what the backend keeps for the later stages.
    """

    stage: int = 0

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        if not 0 <= self.stage <= 2 * self.layers:
            raise ValueError(
                f"{self.name}: stage must be 0 to {2 * self.layers} for {self.layers} layers, got {self.stage}"
            )
        found = super().infer(*self._operands(inputs))
        return (*self._selected(found), *[Spec((0,), uint8)] * self._keeps)

    def flops(self, *inputs: Spec) -> int:
        """Stage 0 multiplies gradients of gates by all matrices, later ones by what these have read."""
        shapes = self.weight_shapes(inputs[0].shape[2])
        places = range(len(shapes)) if not self.stage else [i - 1 - self.states for i in self.places]
        products = sum(shapes[i][0] * shapes[i][1] for i in places if len(shapes[i]) == 2)
        return 2 * inputs[0].shape[0] * inputs[0].shape[1] * products

    def stages(self, count: int) -> Sequence[int]:
        return [0] * count

    def composed(self, *inputs: Any) -> tuple[Any, ...]:
        return self._selected(super().composed(*self._operands(inputs)))

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return (*self.composed(*inputs), *[np.zeros(0, np.uint8)] * self._keeps)

    @property
    def matrix(self) -> tuple[int, int]:
        """(layer, 0 for W_ih or 1 for W_hh) of which a later stage makes the gradient."""
        above, which = divmod(self.stage - 1, 2)
        return self.layers - 1 - above, which

    @property
    def _keeps(self) -> bool:
        return self.reserve and self.stage == 0

    @property
    def places(self) -> list[int]:
        """Which results of `RnnGrad` are made; of no use is what it leaves of the reserve."""
        count = 1 + self.states + len(self.weight_shapes(1))
        return [i for i, stage in enumerate(super().stages(count)[:count]) if stage == self.stage]

    def _selected(self, results: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(results[i] for i in self.places)

    def _operands(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Those of `RnnGrad`."""
        at = 4 + 2 * self.states
        return [*inputs[:at], *inputs[at + 1 :]] if self.reserve and self.stage else inputs

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for sample in super().samples():
            assert isinstance(sample.op, cls)
            for stage in range(2 * sample.op.layers + 1):
                yield replace(sample, op=replace(sample.op, stage=stage))


@kernels(RnnGradStage, source="cudnn")
def rnn_grad_stage(op: RnnGradStage, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """By own kernels and a library's product. Raises NoKernel for a reserve of cuDNN's, and for small products."""
    inputs = [s.open.fixed for s in specs]
    if not op.reserve:
        return _of_the_whole(op, inputs, device, policy)
    found = persistent_tiling(op, inputs, device, policy)
    if found is None:
        raise NoKernel(
            f"cuda: {op.name} has no kernel where cuDNN runs the network: {op.mode} on {inputs[0]}"
        )
    if op.stage:
        return persistent.matrix_gradient_plan(op, inputs, op.matrix, found, device, policy)
    return persistent.data_gradient_plan(op, inputs, found, device, policy)


def _of_the_whole(op: RnnGradStage, inputs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """All gradients, those of other stages in the workspace."""
    whole = rnn_grad(RnnGrad(**_known(op)), tuple(inputs), device, policy)
    wanted, places, offset = op.places, list[Place](), 0
    for i, spec in enumerate(whole.outputs):
        places.append(target(wanted.index(i)) if i in wanted else scratch(offset))
        offset += 0 if i in wanted else round_up(spec.nbytes, WORKSPACE_ALIGNMENT)
    step = SubPlan(whole, tuple(map(source, range(len(inputs)))), tuple(places), offset)
    outputs = [whole.outputs[i] for i in wanted]
    return kernel_plan(device, inputs, outputs, [step], label=op.name, workspace=offset + whole.workspace)


def _known(op: RnnGrad) -> dict[str, Any]:
    """The attributes of `RnnGrad`."""
    return {f.name: getattr(op, f.name) for f in fields(RnnGrad)}


def _keeps_a_reserve(node: Any) -> bool:
    return type(node.op) is RnnGrad and node.op.reserve


def _in_stages(match: PatternMatch) -> Results | None:
    """rnn_grad(…) -> an rnn_grad_stage for each of its stages, if messages take its results apart."""
    grad = match.root
    stages, inputs = grad.op.stages(len(grad.outputs)), match.inputs(grad)
    if len({message for value in grad.outputs for message in _messages(match, value)}) < 2:
        return None
    head, known = 4 + 2 * grad.op.states, _known(grad.op)
    results: dict[Any, Any] = {}
    for stage in range(max(stages) + 1):
        op = RnnGradStage(**known, stage=stage)
        made = match.apply(op, *inputs, at=grad, stage=stage)
        if not stage:
            inputs = (*inputs[:head], made[-1], *inputs[head:])
        wanted = [v for v, s in zip(grad.outputs, stages, strict=True) if s == stage]
        results.update(zip(wanted, made, strict=True))
    return results


def _messages(match: PatternMatch, value: Any) -> Iterator[Any]:
    """The collective operations that read a value, or what light ops make of it."""
    for node in match.readers(value):
        if node is not None and node.op.effect == "collective":
            yield node
        elif node is not None and (node.op.elementwise or isinstance(node.op, Reshape | Pad | After)):
            for made in node.outputs:
                yield from _messages(match, made)


RNN_GRADIENT_STAGES = fusions.add(
    Fusion("rnn_gradient_stages", made_by(RnnGrad, where=_keeps_a_reserve), _in_stages, op=RnnGradStage)
)
