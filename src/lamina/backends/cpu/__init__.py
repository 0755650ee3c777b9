"""Backend `cpu`: oneDNN where it has a kernel, generated loops where they pay, NumPy for the rest.

Plans choose layouts: activations channels-last or blocked, filters as each kernel prefers; elementwise ops and
pooling keep the layout of their operand. Without oneDNN (it is built for x86-64) everything runs on NumPy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial

from lamina import onednn
from lamina.backends import Backend, NoKernel, NonDeterministicError, Plan
from lamina.backends.cpu import (
    attention,
    concat,
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
from lamina.backends.cpu.loops import (
    axis_map,
    columns,
    ctc,
    elementwise,
    gather,
    grid_sample,
    loss,
    lu,
    nll_loss,
    rearrange,
    scan,
    sort,
    table,
)
from lamina.backends.cpu.loops import norm as norm_loops
from lamina.backends.cpu.loops import reduce as reduce_loops
from lamina.backends.cpu.loops import softmax as softmax_loops
from lamina.backends.cpu.widened import in_float32
from lamina.backends.custom import run_plan
from lamina.backends.reference import numpy_plan, reorder_plan
from lamina.ops.core import Op, inferred
from lamina.ops.custom import CustomOp
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.runtime import Device
from lamina.spec import Policy, Spec

__all__ = [
    "CpuBackend",
    "attention",
    "axis_map",
    "backend",
    "columns",
    "concat",
    "conv",
    "ctc",
    "dropout",
    "elementwise",
    "fused",
    "gather",
    "grid_sample",
    "kernels",
    "loss",
    "lrn",
    "lu",
    "matmul",
    "nll_loss",
    "norm",
    "norm_loops",
    "pointwise",
    "pool",
    "quantize",
    "rearrange",
    "reduce",
    "reduce_loops",
    "reorder",
    "rnn",
    "scan",
    "shape",
    "softmax",
    "softmax_loops",
    "sort",
    "update",
]

_log = logging.getLogger("lamina.backends.cpu")


class CpuBackend(Backend):
    """Plans ops for the processor.

    `LAMINA_DNNL=none` in the environment, or a machine without a build of oneDNN, leaves everything to NumPy.
    """

    name = "cpu"

    def choose(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """oneDNN's kernel (a custom op's Python function), generated loops, or else the op's NumPy reference.

        Raises NoKernel for steps that cannot be fused, and what `op.infer` raises.
        """
        inferred(op, *[s.open for s in specs])
        if isinstance(op, CustomOp) and op.has_run:
            return run_plan(op, specs, self.device)
        try:
            return self._compiled(op, specs, policy)
        except NonDeterministicError:
            raise
        except NoKernel:
            if self.has_kernel(type(op)):
                with suppress(NoKernel):
                    return in_float32(op, specs, self, policy)
            large = any(s.numel >= table.LEAST for s in specs)
            if isinstance(op, Fused) or (isinstance(op, FusedElementwise) and large):
                raise  # the parts are faster one by one
        return numpy_plan(op, specs)

    def _compiled(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """oneDNN's kernel, or else generated loops. Raises NoKernel."""
        known = self.has_kernel(type(op))
        if not table.answers(op):
            if not known:
                raise NoKernel(f"cpu: oneDNN has no kernel for {op}")
            return kernels.plan(op, specs, self.device, policy)
        try:
            if known:
                return kernels.plan(op, specs, self.device, policy)
        except NonDeterministicError:
            raise
        except NoKernel:
            pass  # loops are tried below
        found = table.loops.plan(op, specs, self.device, policy)
        try:  # with the loops' operand layouts: replanning on a plan's own inputs must give the same plan
            return kernels.plan(op, found.inputs, self.device, policy) if known else found
        except NoKernel:
            return found

    def reorder(self, source: Spec, target: Spec) -> Plan:
        """By oneDNN where it generates code; else a copy by runs, oneDNN's loops, or NumPy for the rest.

        Half types that the processor does not compute in are copied by oneDNN at 25 to 50 ns an element, by own loops
        and NumPy at 1 to 2.
        """
        blocked = source.fixed.physical.is_blocked or target.fixed.physical.is_blocked
        if not has_onednn():
            makers: tuple[Callable[[Spec, Spec], Plan], ...] = (rearrange.relaid,)
        elif not reorder.one_by_one(source, target):
            plain = () if blocked else (reorder.generated,)
            makers = (*plain, rearrange.relaid, reorder.reorder)
        else:
            makers = () if blocked else (partial(rearrange.relaid, by_runs=False), reorder.reorder)
        for make in makers:
            with suppress(NoKernel):
                return make(source, target)
        return reorder_plan(source, target)

    def supports(self, op: type[Op]) -> str:
        """ "onednn" where oneDNN has a kernel for the usual cases, else "numpy"."""
        if op is Fused and not has_onednn():
            return ""
        return (kernels.source(op) if has_onednn() else "") or "numpy"

    def joins(self, op: Op, specs: Sequence[Spec]) -> bool:
        """Whether it can be a step of a generated loop."""
        return elementwise.joins(op, specs)

    def has_kernel(self, op: type[Op]) -> bool:
        """Whether oneDNN, or this backend's own code beside it, computes the op."""
        return has_onednn() and kernels.get(op) is not None


@lru_cache(maxsize=1)
def has_onednn() -> bool:
    """Whether oneDNN can be opened; logs once when it cannot."""
    found = onednn.available()
    if not found:
        _log.warning("oneDNN was not found: the cpu backend runs on NumPy, which is slow for convolutions")
    return found


def backend(device: Device) -> CpuBackend:
    """The cpu backend, oneDNN opened. Raises ValueError for a device that is not the host."""
    if device.kind != "cpu":
        raise ValueError(f"the cpu backend runs on the cpu, not on {device}")
    has_onednn()
    return CpuBackend(device)
