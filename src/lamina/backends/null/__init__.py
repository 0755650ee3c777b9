"""Backend `null`: plans every op and computes nothing, so that huge models are planned on any machine.

Plans use row-major layouts and a workspace of the size that a library would plausibly need; running one touches no
byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from lamina.backends import Backend, Call, Plan, Run, passing_plan
from lamina.backends.reference import in_place
from lamina.ops.core import Op
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.shape import After, Reshape
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Bytes that a matrix product takes for partial sums, as cuBLASLt's default.
_MATMUL_WORKSPACE = 32 << 20
_CONV_WORKSPACE = 256 << 20


class Null(Backend):
    """Plans without kernels."""

    name = "null"

    def choose(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """The specs of `infer`, row-major where the layout is open. Raises what `infer` raises."""
        if isinstance(op, After):
            return passing_plan(specs, op.name)
        inputs = tuple(spec.fixed for spec in specs)
        outputs = tuple(spec.fixed for spec in op.infer(*inputs))
        view = isinstance(op, Reshape) and inputs[0].is_contiguous
        limit = policy.workspace_limit
        workspace = _workspace(op, inputs, outputs)
        return Plan(
            inputs,
            outputs,
            _bind,
            workspace=workspace if limit is None else min(workspace, limit),
            aliases=in_place(op, inputs, outputs),
            view=view,
            label="view" if view else f"null {op.name}",
        )

    def reorder(self, source: Spec, target: Spec) -> Plan:
        """A reorder without effect."""
        return Plan((source.fixed,), (target.fixed,), _bind, label="null reorder")

    def supports(self, op: type[Op]) -> str:
        """All ops: "null"."""
        return "null"


def _bind(call: Call) -> Run:
    return _nothing


def _nothing() -> None:
    """Touch no memory."""


def _workspace(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> int:
    """Convolutions: the unfolded input up to 256 MiB; products: up to 32 MiB; reductions: partial sums."""
    head = op.ops[0] if isinstance(op, Fused) else op
    if isinstance(head, (Conv, ConvDataGrad, ConvFilterGrad)):
        return _unfolded(head, inputs, outputs)
    if isinstance(head, Matmul):
        return min(_MATMUL_WORKSPACE, max(outputs[0].numel, 1) * 4)
    return outputs[0].numel * 4 if isinstance(head, Reduce) else 0


def _unfolded(
    op: Conv | ConvDataGrad | ConvFilterGrad, inputs: Sequence[Spec], outputs: Sequence[Spec]
) -> int:
    """Bytes of the im2col matrix, capped."""
    if isinstance(op, ConvFilterGrad):
        taps, positions, channels = prod(op.shape), prod(inputs[1].shape[2:]), inputs[0].shape[1]
    else:
        y = outputs[0] if isinstance(op, Conv) else inputs[0]
        taps, positions = prod(inputs[1].shape[2:]), prod(y.shape[2:])
        channels = inputs[1].shape[1] * op.window.groups
    rows = inputs[0].shape[0] * channels * taps * positions
    return min(_CONV_WORKSPACE, rows * inputs[0].dtype.itemsize)


def backend(device: Device) -> Null:
    """The null backend, for any device."""
    return Null(device)
