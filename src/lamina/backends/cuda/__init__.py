"""The CUDA backend: cuDNN's graph plans for convolutions and products, own kernels for everything else."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import Backend, Plan
from lamina.backends.cuda import (
    attention,
    conv,
    conv_norm,
    dropout,
    embedding,
    fused,
    group,
    loss,
    lrn,
    matmul,
    norm,
    norm_pool,
    pointwise,
    pool,
    quantize,
    random,
    reduce,
    rnn,
    shape,
    softmax,
    update,
)
from lamina.backends.cuda.table import kernels
from lamina.ops.core import Op
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Modules that fill the table.
FAMILIES = (
    attention,
    conv,
    conv_norm,
    dropout,
    embedding,
    fused,
    group,
    loss,
    lrn,
    matmul,
    norm,
    norm_pool,
    pointwise,
    pool,
    quantize,
    random,
    reduce,
    rnn,
    shape,
    softmax,
    update,
)


class CudaBackend(Backend):
    """Plans ops for one NVIDIA GPU."""

    name = "cuda"

    def plan(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """The plan for op on inputs of these specs. Raises NoKernel."""
        return kernels.plan(op, specs, self.device, policy)

    def reorder(self, source: Spec, target: Spec) -> Plan:
        """The plan that copies a tensor from one layout to another."""
        return shape.reorder(source, target, self.device)

    def supports(self, op: type[Op]) -> str:
        """Where the op's kernel comes from, "" when there is none."""
        return kernels.source(op)


def backend(device: Device) -> Backend:
    """The backend of a CUDA device."""
    return CudaBackend(device)
