"""Local response normalization: a thread per element; the neighbours' squares come from the caches."""

from __future__ import annotations

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    Launch,
    Place,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.norm.norm import resident
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.lrn import LocalResponseNorm, LocalResponseNormGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(LocalResponseNorm, source="kernel")
def local_response_norm(
    op: LocalResponseNorm, specs: tuple[Spec, ...], device: Device, policy: Policy
) -> Plan:
    """One kernel."""
    (out,) = op.infer(*specs)
    x = full(specs[0], resident(specs[0]))
    y = full(out, x.physical)
    launches = [_launch("local_response", op, x, source(), target())] if x.numel else []
    return kernel_plan(device, [x], [y], launches, label=op.name)


@kernels(LocalResponseNormGrad, source="kernel")
def local_response_norm_grad(
    op: LocalResponseNormGrad, specs: tuple[Spec, ...], device: Device, policy: Policy
) -> Plan:
    """Each element's term once, then their sums."""
    op.infer(*specs)
    x = full(specs[1], resident(specs[1], specs[0]))
    launches = [
        _launch("local_response_terms", op, x, source(0), source(1), scratch()),
        _launch("local_response_grad", op, x, source(0), source(1), scratch(), target()),
    ]
    return kernel_plan(
        device,
        [x, x],
        [x],
        launches if x.numel else [],
        label=op.name,
        workspace=x.numel * x.dtype.compute.itemsize,
        aliases={0: 0},
    )


def _launch(name: str, op: LocalResponseNorm | LocalResponseNormGrad, x: Spec, *places: Place) -> Launch:
    before, behind = op.reach
    index = index_type(x.numel)
    text = f"typedef {index} Index;\ntypedef {c_type(x.dtype)} T;\n"
    text += constants(
        TOTAL=f"{x.numel}LL",
        CHANNELS=x.shape[1],
        C_STRIDE=max(1, x.physical.strides[1]),
        BEFORE=before,
        BEHIND=behind,
        SLOPE=repr(op.alpha / op.size),
        BETA=repr(op.beta),
        K=repr(op.k),
        FACTOR=repr(2 * op.alpha * op.beta / op.size),
    )
    return looping(Program(name, "norm/lrn.cu", text), x.numel, places, each=4)
