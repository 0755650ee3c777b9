"""A convolution that sums its result while it writes it, then batch norm's last pass; against both apart.

cuDNN's pattern is a convolution with GEN_STATS behind it, which an H200 has engines for in half types, channels last.
Only `fastest` knows whether that convolution's engines lose more than the pass over its result costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lamina.backends import Call, Plan, Run
from lamina.backends.cuda.choice import Problem, Way, choose
from lamina.backends.cuda.conv_graph import Operands, window_arguments
from lamina.backends.cuda.norm import normalized
from lamina.backends.cuda.program import Place, scratch, source, target
from lamina.backends.cuda.table import kernels
from lamina.cudnn import Graph
from lamina.ops.conv_norm import ConvNorm
from lamina.runtime import Device
from lamina.spec import Policy, Spec, bfloat16, channels_last, float16


@dataclass(frozen=True)
class Part:
    """Another plan as a step, on some of the call's operands and in its workspace."""

    plan: Plan
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        given, made = (tuple(p.address(call) for p in places) for places in (self.inputs, self.outputs))
        return self.plan.bind(Call(given, made, call.workspace, call.stream))


@kernels(ConvNorm, source="cudnn")
def conv_norm(op: ConvNorm, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The faster of statistics behind the convolution and both apart; the label says which."""
    conv = kernels.plan(op.conv, specs[:2], device, policy)
    (y,) = conv.outputs
    norm = kernels.plan(op.norm, (y, *specs[2:]), device, policy)
    inputs, outputs = (*conv.inputs, *norm.inputs[1:]), (*norm.outputs, y)
    given = [target(5), *(source(i) for i in range(2, len(inputs)))]
    apart = Way(
        "apart",
        steps=(
            Part(conv, (source(0), source(1)), (target(5),)),
            Part(norm, tuple(given), tuple(target(i) for i in range(5))),
        ),
        scratch=max(conv.workspace, norm.workspace),
    )
    x, w = conv.inputs
    together = [statistics_way(op, Operands(op.conv.window, x, w, y), given)] if _takes(conv, norm) else []
    key = f"{op} {' '.join(map(str, inputs))}"
    label = f"conv+{norm.label.split()[1]}"
    problem = Problem(
        key, label, inputs, outputs, (apart, *together), float(op.flops(*inputs)), aliases={3: 4, 4: 5}
    )
    return choose(problem, device, policy)


def _takes(conv: Plan, norm: Plan) -> bool:
    """Whether cuDNN's pattern is worth asking for: half types, channels last, eight channels at a time."""
    (x, _), (y,) = conv.inputs, conv.outputs
    lies = all(s.ndim == 4 and s.physical == channels_last(s.shape) for s in (x, y)) and norm.inputs[0] == y
    return lies and y.dtype in (float16, bfloat16) and x.shape[1] % 8 == y.shape[1] % 8 == 0


def statistics_way(op: ConvNorm, o: Operands, given: list[Place]) -> Way:
    """Convolution and sums by cuDNN, then the statistics and the pass that applies them.

    given: places of the convolution's result, scale, bias, running mean and variance, and perhaps the residual.
    """
    channels = o.y.shape[1]

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        made = Graph()
        big = [made.tensor(s.shape, s.physical.strides, s.dtype.name) for s in (o.x, o.w, o.y)]
        made.conv(*big, **window_arguments(o.window))
        sums = [made.packed((1, channels, 1, 1), "float32", channels_last=True) for _ in range(2)]
        made.gen_stats(big[2], *sums)
        places = (source(0), source(1), given[0], scratch(), scratch(channels * 4))
        return made, {t.uid: place for t, place in zip((*big, *sums), places, strict=True)}

    after = normalized(op.norm, o.y, given, summed=True)
    return Way("statistics", graph, after=after, scratch=2 * channels * 4)
