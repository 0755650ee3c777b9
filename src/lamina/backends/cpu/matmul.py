"""Matrix products.

Measured at 16 x 6400 x 4096 with row-major weights: y = x Wᵀ is fastest as a matmul primitive, g W and gᵀ x as
the backward passes of an inner product, which write and read W in place of a reordered copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lamina import onednn
from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import (
    at_input,
    at_output,
    attempt,
    computes,
    data_type,
    kernels,
    single,
)
from lamina.backends.cpu.post import Post
from lamina.onednn import ARG, MemoryDesc, PrimitiveDesc
from lamina.ops.matmul import Matmul
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Arguments of a, b and the product.
_Arguments = tuple[int, int, int]
_FORWARD: _Arguments = (ARG.SRC, ARG.WEIGHTS, ARG.DST)
_DATA: _Arguments = (ARG.DIFF_DST, ARG.WEIGHTS, ARG.DIFF_SRC)
_WEIGHTS: _Arguments = (ARG.DIFF_DST, ARG.SRC, ARG.DIFF_WEIGHTS)


@kernels(Matmul, source="onednn")
def matmul(op: Matmul, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """(..., M, K) x (..., K, N), each operand perhaps transposed; all row-major."""
    computes(*specs)
    a, b = (s.open.fixed for s in specs)
    y = op.infer(a, b)[0].fixed
    computes(y)
    for create, arguments in _formulations(op, a, b, y):
        made = attempt(create)
        if made is not None:
            return _plan(made, (a, b), y, arguments)
    return product(op, specs, Post(), ())


def _formulations(
    op: Matmul, a: Spec, b: Spec, y: Spec
) -> Sequence[tuple[Callable[[], PrimitiveDesc], _Arguments]]:
    """The product as a gradient of an inner product, where it has that form."""
    if a.ndim != 2 or op.transpose_b:
        return ()
    left, right, out = _plain(a), _plain(b), _plain(y)
    if op.transpose_a:  # gᵀ x

        def weights() -> PrimitiveDesc:
            hint = onednn.inner_product_forward(right, out, None, left)
            return onednn.inner_product_backward_weights(right, out, None, left, hint=hint)

        return ((weights, _WEIGHTS),)

    def data() -> PrimitiveDesc:  # g W
        hint = onednn.inner_product_forward(out, right, None, left)
        return onednn.inner_product_backward_data(out, right, left, hint=hint)

    return ((data, _DATA),)


def product(op: Matmul, specs: Sequence[Spec], post: Post, extra: Sequence[Spec]) -> Plan:
    """The matmul primitive, with fused steps whose operands are the inputs after a and b."""
    a, b = (s.open.fixed for s in specs)
    y = op.infer(a, b)[0].fixed
    made = attempt(
        lambda: onednn.matmul(
            _plain(a, op.transpose_a),
            _plain(b, op.transpose_b),
            _plain(y),
            bias=_bias(post, y),
            attributes=post.attributes(y, "abcdefghijkl"[: y.ndim], extra),
        )
    )
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {a} and {b}")
    return _plan(made, (a, b, *post.specs(y, extra)), y, _FORWARD, post)


def _plan(
    made: PrimitiveDesc, inputs: Sequence[Spec], y: Spec, arguments: _Arguments, post: Post | None = None
) -> Plan:
    first, second, result = arguments
    operands = {
        first: (made.argument(first), at_input(0)),
        second: (made.argument(second), at_input(1)),
        result: (made.argument(result), at_output()),
    }
    return single(made, inputs, [y], operands | (post.operands(made, first=2) if post else {}))


def _bias(post: Post, y: Spec) -> MemoryDesc | None:
    return MemoryDesc((*(1,) * (y.ndim - 1), y.shape[-1]), data_type(y.dtype)) if post.bias else None


def _plain(spec: Spec, transposed: bool = False) -> MemoryDesc:
    """A row-major operand; transposed: with its last two axes exchanged."""
    shape, strides = list(spec.shape), list(spec.physical.strides)
    if transposed:
        shape[-2:], strides[-2:] = shape[:-3:-1], strides[:-3:-1]
    return MemoryDesc(shape, data_type(spec.dtype), strides=strides)
