"""A product of rows from a layer norm or RMS norm as one op, where the kernel of `normed_matmul.py` pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from lamina.backends import Fusion, NoKernel, Plan
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.program import (
    WORKSPACE_ALIGNMENT,
    SubPlan,
    check_join,
    kernel_plan,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.matmul.matmul import is_transposed, product_of, transposed_layout
from lamina.backends.cuda.matmul.normed_matmul import NormedProduct
from lamina.backends.cuda.registry import fusions, kernels
from lamina.backends.pattern import PatternMatch, PatternNode, Results, either, made_by
from lamina.ops.core import Arg, Array, Op, Sample
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.norm import LayerNorm, RmsNorm
from lamina.ops.primitives.shape import Reshape
from lamina.runtime import Device
from lamina.spec import Policy, ShapeError, Spec, bfloat16, float16, float32


@dataclass(frozen=True)
class NormedMatmul(Op):
    """(x [M, K], scale [K], bias [K], b) -> norm(x) b [M, N]; b as for `product`, no bias for an RMS norm."""

    norm: LayerNorm | RmsNorm
    product: Matmul
    differentiable = False
    arity = None

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        x, *small, b = inputs
        if x.ndim != 2 or self.norm.rank != 1:
            raise ShapeError(f"{self.name}: rows [M, K] are normalized one by one, got {x} for {self.norm}")
        y, *_ = self.norm.infer(x, *small)
        return self.product.infer(y, b)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        *given, b = inputs
        y, *_ = self.norm.reference(*given)
        return self.product.reference(y, b)

    def flops(self, *inputs: Spec) -> int:
        return self.product.flops(inputs[0], inputs[-1])

    def __str__(self) -> str:
        return f"{self.name}({self.norm} > {self.product})"

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for norm, count in ((LayerNorm(1, 1e-5), 2), (RmsNorm(1, 1e-6), 1)):
            for m, k, n in ((16, 24, 32), (33, 136, 8), (1, 8, 40)):
                for transposed in (False, True):
                    b = Arg((n, k) if transposed else (k, n))
                    small = [Arg((k,), float32)] * count
                    op = cls(norm, Matmul(False, transposed))
                    yield Sample.of(op, (m, k), *small, b, dtypes=(float32, float16, bfloat16))


# -------------------------------------------------------------------------------------------------------- fusion


def _keeps_rows(node: PatternNode) -> bool:
    """Whether a reshape keeps the last axis, and makes a matrix."""
    (x,), (y,) = node.inputs, node.outputs
    return y.ndim == 2 and x.ndim > 0 and x.shape[-1] == y.shape[-1]


def _is_of_rows(node: PatternNode) -> bool:
    return bool(node.op.rank == 1)


def _normed(match: PatternMatch) -> Results | None:
    """The norm fused into the product, if its result has no other reader."""
    norm, product = match.node("norm"), match.root
    x, *small = match.inputs(norm)
    rows, b = match.inputs(product)
    if any(match.readers(v) for v in norm.outputs[1:]) or product.op.transpose_a:
        return None
    if x.shape != rows.shape:
        (x,) = match.apply(Reshape(rows.shape), x, at=norm)
    (y,) = match.apply(NormedMatmul(norm.op, product.op), x, *small, b, at=product)
    return {product.outputs[0]: y}


_norm = made_by(LayerNorm | RmsNorm, name="norm", where=_is_of_rows).read_once
_rows = either(made_by(Reshape, _norm, where=_keeps_rows).read_once, _norm)

NORMED_MATMUL = fusions.add(Fusion("normed_matmul", made_by(Matmul, _rows), _normed, NormedMatmul))


# ---------------------------------------------------------------------------------------------------------- plan


@kernels(NormedMatmul, source="kernel")
def normed_matmul(op: NormedMatmul, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The own kernel where it is expected to pay, else a norm and a product."""
    try:
        return normed_plan(op, specs, NONE, device)
    except NoKernel:
        return _apart(op, specs, device, policy)


def normed_plan(op: NormedMatmul, specs: Sequence[Spec], epilogue: Epilogue, device: Device) -> Plan:
    """The own kernel, with an epilogue. Raises NoKernel where it does not pay, and for other types."""
    x, *small, b = (s.open.fixed for s in specs[: 3 + op.norm.centred])
    if is_transposed(specs[2 + op.norm.centred]):
        b = full(b, transposed_layout(b))
    (out,) = op.infer(x, *small, b)
    c = out.fixed
    form = NormedProduct(product_of(op.product, x, b), op.norm, device.machine)
    if c.dtype not in (float16, bfloat16) or not form.fits or not form.pays:
        raise NoKernel(f"{op.name}: {x} times {b}: a norm and a product are faster, or no kernel has both")
    epilogue = replace(epilogue, extras=tuple(e.open for e in epilogue.extras))
    extras = epilogue.arranged(c.shape, c.physical)
    return kernel_plan(
        device,
        (x, *small, b, *extras),
        (c,),
        [form.launch(c, small[0], epilogue, aligned=True)],
        label="+".join((op.name, *(step.name for step in epilogue.steps))),
        plain=lambda: (form.launch(c, small[0], epilogue, aligned=False),),
    )


def _apart(op: NormedMatmul, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The norm to scratch memory, then the product; a graph keeps them separate."""
    *given, b = specs
    norm = kernels.plan(op.norm, given, device, policy)
    product = kernels.plan(op.product, (norm.outputs[0], b), device, policy)
    check_join(norm, product)
    ends = [0, *accumulate(round_up(s.nbytes, WORKSPACE_ALIGNMENT) for s in norm.outputs)]
    made = tuple(scratch(at) for at in ends[:-1])
    steps = [
        SubPlan(norm, tuple(source(i) for i in range(len(given))), made, ends[-1]),
        SubPlan(product, (made[0], source(len(given))), (target(),), ends[-1]),
    ]
    inputs = (*norm.inputs, product.inputs[1])
    room = ends[-1] + max(norm.workspace, product.workspace)
    plan = kernel_plan(device, inputs, product.outputs, steps, label=op.name, workspace=room)
    return replace(plan, parts=(norm, product))
