"""Matrix products.

Measured with weights W of 4096 x 6400 in float32, row-major, and 16 rows: y = x Wᵀ runs fastest as a matmul
primitive (6.3 ms, the time to read W; blocked weights 5.8, the same); gᵀ x as the weight gradient of an inner
product (4.2 ms, matmul 10.2); g W as a matmul that gives its transpose (7.6 ms, the data gradient of an inner product
9.5, matmul 11.2). With many rows all are equal. In half types matmul is fastest throughout.
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina import onednn
from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import (
    Chain,
    at_input,
    at_output,
    attempt,
    computes,
    data_type,
    kernels,
    ranked,
    single,
)
from lamina.backends.cpu.post import Post
from lamina.onednn import ARG, MemoryDesc, PrimitiveDesc
from lamina.ops.core import inferred
from lamina.ops.primitives.matmul import Matmul
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float32

#: From this many bytes of weights, and up to this many rows, a product takes the time to read the weights.
BEYOND_CACHES, FEW_ROWS = 16 << 20, 64
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
    y = inferred(op, a, b)[0].fixed
    computes(y)
    if a.ndim == 2 and a.dtype == float32 and not op.transpose_b:
        form = _weight_gradient if op.transpose_a else _transposed if _is_streamed(a, b) else _data_gradient
        found = form(a, b, y)
        if found is not None:
            return found
    return product(op, specs, Post(), ())


def _is_streamed(a: Spec, b: Spec) -> bool:
    """Whether the product is bound by reading b: few rows, and more bytes than caches hold."""
    return a.shape[0] <= FEW_ROWS and b.nbytes >= BEYOND_CACHES


def _weight_gradient(g: Spec, x: Spec, y: Spec) -> Plan | None:
    """gᵀ x as the weight gradient of an inner product."""
    left, right, out = _plain(g), _plain(x), _plain(y)

    def create() -> PrimitiveDesc:
        hint = onednn.inner_product_forward(right, out, None, left)
        return onednn.inner_product_backward_weights(right, out, None, left, hint=hint)

    made = attempt(create)
    return None if made is None else _plan(made, (g, x), y, _WEIGHTS)


def _data_gradient(g: Spec, w: Spec, y: Spec) -> Plan | None:
    """g W as the data gradient of an inner product."""
    left, right, out = _plain(g), _plain(w), _plain(y)

    def create() -> PrimitiveDesc:
        hint = onednn.inner_product_forward(out, right, None, left)
        return onednn.inner_product_backward_data(out, right, left, hint=hint)

    made = attempt(create)
    return None if made is None else _plan(made, (g, w), y, _DATA)


def _transposed(a: Spec, b: Spec, y: Spec) -> Plan | None:
    """(bᵀ aᵀ)ᵀ: the product is computed as its transpose in the workspace, then transposed back."""
    kind, (m, n) = data_type(y.dtype), y.shape
    across = MemoryDesc((n, m), kind)
    made = attempt(lambda: onednn.matmul(_plain(b, True), _plain(a, True), across))
    if made is None:
        return None
    chain = Chain([a, b], [y])
    inside = chain.temporary(y.nbytes)
    chain.run(
        made,
        {
            ARG.SRC: (made.src, at_input(1)),
            ARG.WEIGHTS: (made.weights, at_input(0)),
            ARG.DST: (across, inside),
        },
    )
    before, after = MemoryDesc((m, n), kind, strides=(1, m)), _plain(y)
    chain.run(onednn.reorder(before, after), {ARG.SRC: (before, inside), ARG.DST: (after, at_output())})
    return chain.plan(f"onednn {made.implementation} transposed")


def product(op: Matmul, specs: Sequence[Spec], post: Post, extra: Sequence[Spec]) -> Plan:
    """The matmul primitive, with fused steps whose operands are the inputs after a and b."""
    a, b = (s.open.fixed for s in specs)
    y = inferred(op, a, b)[0].fixed
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
    """A row-major operand; transposed: with its last two axes swapped. Raises NoKernel."""
    shape, strides = list(ranked(spec.shape)), list(spec.physical.strides)
    if transposed:
        shape[-2:], strides[-2:] = shape[:-3:-1], strides[:-3:-1]
    return MemoryDesc(shape, data_type(spec.dtype), strides=strides)
