"""Norms with activations before or after them: the norms' passes, with functions applied on reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.elementwise.fused_elementwise import instructions
from lamina.backends.cuda.norm.batch_norm_of_activation_fusion import NormOfActivationGrad
from lamina.backends.cuda.norm.group_norm import group_norm, group_norm_grad
from lamina.backends.cuda.norm.norm import NormFunctions, batch_norm, batch_norm_grad, batch_norm_infer
from lamina.backends.cuda.norm.norm_activation_fusion import ActivatedNorm, ActivationNormGrad
from lamina.backends.cuda.registry import kernels
from lamina.ops.core import Op
from lamina.ops.primitives.norm import BatchNorm, BatchNormGrad, GroupNorm, GroupNormGrad
from lamina.runtime import Device, Machine
from lamina.spec import Policy, Spec


@kernels(ActivatedNorm, source="kernel")
def activated_norm(op: ActivatedNorm, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The same passes, with a function applied to what they read, and one to the norm's result.

    Raises NoKernel where a residual is added, or relu and another function follow; for a group norm, without
    contiguous positions, or with a function before the norm.
    """
    op.infer(*specs)
    norm, functions = op.norm, NormFunctions(op, op.before, op.behind)
    if isinstance(norm, GroupNorm):
        return group_norm(norm, specs, device, policy, functions)
    if norm.residual or (norm.relu and op.behind is not None):
        raise NoKernel(f"cuda computes functions of a bare norm's result alone, got {op}")
    if isinstance(norm, BatchNorm):
        return batch_norm(norm, specs, device, policy, functions)
    return batch_norm_infer(norm, specs, device, policy, functions)


@kernels(ActivationNormGrad, source="kernel")
def activation_norm_grad(
    op: ActivationNormGrad, specs: tuple[Spec, ...], device: Device, policy: Policy
) -> Plan:
    """The same passes, which compute the gradient of the norm's result while reading the incoming gradient.

    Unfused, the norm's result is stored, too: it is written in the forward pass, and read by the activation.
    """
    op.infer(*specs)
    functions = NormFunctions(op, behind=op.act)
    if isinstance(op.norm, GroupNormGrad):
        plan = group_norm_grad(op.norm, specs, device, policy, functions)
    else:
        plan = batch_norm_grad(op.norm, specs, device, policy, functions)
    work = instructions(op.act, 2, specs[1].dtype)
    inside, apart = [(work, 2), (work, 3)], [(0, 2), (0, 3), (work, 3), (0, 2)]
    return replace(plan, objection=_objection(op, inside, apart, specs[1], device.machine))


@kernels(NormOfActivationGrad, source="kernel")
def norm_of_activation_grad(
    op: NormOfActivationGrad, specs: tuple[Spec, ...], device: Device, policy: Policy
) -> Plan:
    """The same passes, which recompute the activation, and in the last one its gradient.

    Forward it is computed in both passes. Unfused, its result is written and read, as is the gradient of that.
    """
    op.infer(*specs)
    norm, behind = (op.norm, None) if isinstance(op.norm, BatchNormGrad) else (op.norm.norm, op.norm.act)
    if isinstance(norm, GroupNormGrad):
        raise NoKernel(f"cuda computes functions of what a batch norm normalizes alone, got {op}")
    functions = NormFunctions(op, op.before, behind, op.leaving)
    plan = batch_norm_grad(norm, specs, device, policy, functions)
    work, gradient = instructions(op.before, 1, specs[1].dtype), instructions(op.leaving, 2, specs[1].dtype)
    more = 0 if behind is None else instructions(behind, 2, specs[1].dtype)
    inside = [(work, 1), (work, 2), (work + more, 2), (work + gradient + more, 3)]
    apart = [(work, 2), (0, 1), (0, 2), (more, 2), (more, 3), (gradient, 3)]
    return replace(plan, objection=_objection(op, inside, apart, specs[1], device.machine))


def _objection(
    op: Op, inside: Sequence[tuple[int, int]], apart: Sequence[tuple[int, int]], x: Spec, machine: Machine
) -> str:
    """Why an op is expected to be faster unfused; "" where it is not.

    inside, apart: of the fused and unfused form, for each pass over x, the instructions per element, and how many
        tensors are read and written.
    """

    def seconds(passes: Sequence[tuple[int, int]]) -> float:
        kind = x.dtype.compute.name
        return sum(machine.seconds(2.0 * work * x.numel, n * x.nbytes, kind) for work, n in passes)

    return f"to compute {op} in every pass takes longer" if seconds(inside) > seconds(apart) else ""
