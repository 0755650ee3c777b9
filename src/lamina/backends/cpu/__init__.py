"""Backend `cpu`: oneDNN for what it has, NumPy for the rest.

Plans choose layouts: activations channels-last or blocked, filters as each kernel wants them; elementwise ops and
pooling keep what they are given. Without oneDNN (it is built for x86-64) everything runs on NumPy.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

from lamina import onednn
from lamina.backends import Backend, NoKernel, Plan
from lamina.backends.cpu import (
    attention,
    conv,
    dropout,
    fused,
    lrn,
    matmul,
    norm,
    pointwise,
    pool,
    quantize,
    reduce,
    reorder,
    rnn,
    shape,
    softmax,
    update,
)
from lamina.backends.cpu.library import kernels
from lamina.backends.reference import numpy_plan, reorder_plan
from lamina.ops.core import Op
from lamina.ops.primitives.fused import Fused
from lamina.runtime import Device
from lamina.spec import Policy, Spec

__all__ = [
    "CpuBackend",
    "attention",
    "backend",
    "conv",
    "dropout",
    "fused",
    "kernels",
    "lrn",
    "matmul",
    "norm",
    "pointwise",
    "pool",
    "quantize",
    "reduce",
    "reorder",
    "rnn",
    "shape",
    "softmax",
    "update",
]

_log = logging.getLogger("lamina.backends.cpu")


class CpuBackend(Backend):
    """Plans ops for the processor.

    `LAMINA_DNNL=none` in the environment, or a machine that oneDNN is not built for, leaves everything to NumPy.
    """

    name = "cpu"

    def plan(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """oneDNN's kernel, or else the op's NumPy meaning.

        Raises NoKernel for steps that cannot be fused, and what `op.infer` raises.
        """
        op.infer(*(s.open for s in specs))
        if kernels.get(type(op)) is not None and has_onednn():
            try:
                return kernels.plan(op, specs, self.device, policy)
            except NoKernel:
                if isinstance(op, Fused):
                    raise
        if isinstance(op, Fused):
            raise NoKernel(f"cpu: no fusion without oneDNN for {op}")
        return numpy_plan(op, specs)

    def reorder(self, source: Spec, target: Spec) -> Plan:
        """A copy by oneDNN, or by NumPy for the types that it lacks."""
        if has_onednn():
            try:
                return reorder.reorder(source, target)
            except NoKernel:
                pass
        return reorder_plan(source, target)

    def supports(self, op: type[Op]) -> str:
        """ "onednn" where oneDNN has a kernel for the usual cases, else "numpy"."""
        if op is Fused and not has_onednn():
            return ""
        return (kernels.source(op) if has_onednn() else "") or "numpy"

    def has_kernel(self, op: type[Op]) -> bool:
        """Whether oneDNN, or code of this backend beside it, computes the op."""
        return has_onednn() and kernels.get(op) is not None


@lru_cache(maxsize=1)
def has_onednn() -> bool:
    """Whether oneDNN can be opened; says so once, in the log, when it cannot."""
    found = onednn.available()
    if not found:
        _log.warning("oneDNN was not found: the cpu backend runs on NumPy, which is slow for convolutions")
    return found


def backend(device: Device) -> CpuBackend:
    """The cpu backend. Raises ValueError for a device that is not the host."""
    if device.kind != "cpu":
        raise ValueError(f"the cpu backend runs on the cpu, not on {device}")
    return CpuBackend(device)
