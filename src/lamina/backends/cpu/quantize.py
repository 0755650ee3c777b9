"""8-bit inference: int8 by oneDNN (VNNI and AMX where the processor has them), float8 as float32,
and so int8 where the processor lacks these.

oneDNN takes the scale of each output channel as that of the weights, and the scale of a `Quantize` after the
convolution as that of the result: a chain of layers stays in int8. CPUs have no float8 arithmetic: values are
widened, which is exact, and multiplied in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from lamina import onednn
from lamina.backends import Call, NoKernel, Packed, Plan, Run
from lamina.backends.cpu.conv import Filter, conv
from lamina.backends.cpu.library import (
    FLOATS,
    Chain,
    Location,
    Refused,
    at_input,
    at_output,
    attempt,
    data_type,
    flat,
    kernels,
    open_desc,
    single,
    spec_of,
)
from lamina.backends.cpu.matmul import matmul
from lamina.backends.cpu.post import Post
from lamina.backends.cpu.reorder import reorder
from lamina.backends.cpu.window import Isa, sliding
from lamina.backends.reference import array_at
from lamina.c import dnnl
from lamina.onednn import ARG, Attributes, MemoryDesc, PrimitiveDesc, scale_argument
from lamina.ops.core import Op
from lamina.ops.primitives.conv import Conv
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.quantize import Dequantize, Quantize, QuantizedConv, QuantizedMatmul
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float8_e4m3fn, float32, int8, uint8

#: The descriptor of one scale.
_ONE = (1,)
#: All values of an 8-bit type, by their bits.
_WIDE = {
    kind: np.arange(256, dtype=np.uint8).view(kind.numpy).astype(np.float32) for kind in (float8_e4m3fn, int8)
}


@kernels(Quantize, Dequantize, source="onednn")
def scaled(op: Quantize | Dequantize, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """A copy to or from int8 with a scale, in the operand's layout. float8 is left to NumPy."""
    x = specs[0].fixed if specs[0].tag is not None else specs[0].open.fixed
    (out,) = op.infer(*(s.open for s in specs))
    y = Spec(x.shape, out.dtype, x.physical)
    if not {x.dtype, y.dtype} <= {int8, *FLOATS} or x.numel == 0:
        raise NoKernel(f"cpu: oneDNN does not scale {x} to {y}")
    before, after = flat(x), flat(y)
    assert before is not None
    assert after is not None
    argument = ARG.DST if isinstance(op, Quantize) else ARG.SRC
    try:
        made = onednn.reorder(before, after, attributes=Attributes(scales={argument: 0}))
    except Refused:
        raise NoKernel(f"cpu: oneDNN cannot scale {x} to {y}") from None
    operands = {
        ARG.SRC: (before, at_input(0)),
        ARG.DST: (after, at_output()),
        scale_argument(argument): (MemoryDesc(_ONE), at_input(1)),
    }
    return single(made, [x, specs[1].open.fixed], [y], operands)


@kernels(QuantizedConv, QuantizedMatmul, source="onednn")
def eight_bits(
    op: QuantizedConv | QuantizedMatmul, specs: Sequence[Spec], device: Device, policy: Policy
) -> Plan:
    """Convolutions and products of 8-bit numbers."""
    if specs[0].dtype != int8 or not adds_in_32_bits():
        return _widened(op, specs, device, policy)
    return eights(op, specs, (), policy)


@lru_cache(maxsize=1)
def adds_in_32_bits() -> bool:
    """Whether the processor multiplies and adds 8-bit integers exactly (AVX-VNNI, or VNNI of AVX-512)."""
    isa = int(dnnl.dnnl_get_effective_cpu_isa())
    kinds = (int(Isa.dnnl_cpu_isa_avx2_vnni), int(Isa.dnnl_cpu_isa_avx512_core_vnni))
    return any(isa & kind == kind for kind in kinds)


def eights(
    op: QuantizedConv | QuantizedMatmul, specs: Sequence[Spec], steps: Sequence[Op], policy: Policy
) -> Plan:
    """int8, with fused steps: bias, activation, sums, and a `Quantize` at the end."""
    x, w, scale, *extra = specs
    if x.dtype != int8 or 0 in (x.numel, w.numel):
        raise NoKernel(f"cpu: oneDNN has no 8-bit arithmetic for {x} and {w}")
    if not adds_in_32_bits():
        raise NoKernel(
            "cpu: without VNNI oneDNN adds pairs of 8-bit products in 16 bits, where they saturate"
        )
    (y,) = op.infer(x.open, w.open, scale.open)
    last = steps[-1] if steps and isinstance(steps[-1], Quantize) else None
    if last is not None and last.dtype != int8:
        raise NoKernel(f"cpu: oneDNN does not round to {last.dtype}")
    post = Post.of(steps[:-1] if last else steps, extra, y, op)
    out = Spec(y.shape, int8 if last else float32)
    make = _conv if isinstance(op, QuantizedConv) else _product
    return make(op, [x, w, scale, *extra], post, out)  # type: ignore[arg-type]


def _scales(weights_mask: int, out: Spec) -> dict[int, int]:
    """The scaled operands: the weights by output channel, and an int8 result."""
    return {ARG.WEIGHTS: weights_mask} | ({ARG.DST: 0} if out.dtype == int8 else {})


def _conv(op: QuantizedConv, specs: Sequence[Spec], post: Post, out: Spec) -> Plan:
    x, w, scale, *extra = specs
    filters = Filter.of(w, op.window)
    y = Spec(out.shape, float32)  # the type of the steps' operands
    tag = {3: "acb", 4: "acdb", 5: "acdeb"}[x.ndim]
    made = attempt(
        lambda: onednn.convolution_forward(
            open_desc(x, tag),
            filters.any,
            post.bias_desc(float32),
            open_desc(out, tag),
            sliding(op.window),
            prop="inference",
            attributes=post.attributes(y, tag, extra, _scales(3 if op.window.groups > 1 else 1, out)),
        )
    )
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {x} and {w}")
    result = spec_of(made.dst, out.dtype)
    arranged = post.specs(Spec(y.shape, float32, result.layout), extra)

    def plan(prepared: bool) -> Plan:
        chain = Chain([spec_of(made.src, int8), w, scale.open.fixed, *_all(arranged, extra)], [result])
        if prepared:
            chain.inputs[1], weights = filters.packed(made.weights), (made.weights, at_input(1))
        else:
            chain.inputs[1], weights = filters.read(chain, made.weights, at_input(1))
        chain.run(made, {ARG.WEIGHTS: weights, **_operands(made, post, scale, len(extra), out)})
        return chain.plan()

    if filters.named(made.weights) is not None:
        return plan(prepared=False)
    return replace(plan(prepared=False), packed=Packed(1, filters.pack(made.weights), plan(prepared=True)))


def _product(op: QuantizedMatmul, specs: Sequence[Spec], post: Post, out: Spec) -> Plan:
    a, b, scale, *extra = (s.open.fixed for s in specs)
    y = Spec(out.shape, float32).fixed
    across = MemoryDesc((b.shape[1], b.shape[0]), "s8", strides=(1, b.shape[1]))
    bias = MemoryDesc((1, b.shape[0])) if post.bias else None

    def described(weights: MemoryDesc) -> PrimitiveDesc | None:
        return attempt(
            lambda: onednn.matmul(
                MemoryDesc(a.shape, "s8"),
                weights,
                MemoryDesc(out.shape, data_type(out.dtype)),
                bias=bias,
                attributes=post.attributes(y, "ab", extra, _scales(2, out)),
            )
        )

    def plan(made: PrimitiveDesc, lies: Spec) -> Plan:
        inputs = [a, lies, scale, *_all(post.specs(y, extra), extra)]
        weights = {ARG.WEIGHTS: (made.weights, at_input(1))}
        return single(made, inputs, [out.fixed], weights | _operands(made, post, scale, len(extra), out))

    made = described(across)
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {a} and {b}")
    found, liked = plan(made, b), described(MemoryDesc(across.dims, "s8", tag="any"))
    if liked is None or liked.weights == made.weights:
        return found
    packed = Spec((liked.weights.nbytes,), uint8).fixed
    operands = {ARG.SRC: (across, at_input(0)), ARG.DST: (liked.weights, at_output())}
    pack = single(onednn.reorder(across, liked.weights), [b], [packed], operands)
    return replace(found, packed=Packed(1, pack, plan(liked, packed)))


def _all(arranged: Sequence[Spec], extra: Sequence[Spec]) -> list[Spec]:
    """The steps' operands in their layouts, and the scale of a `Quantize` after them."""
    return [*arranged[: len(extra)], *(s.open.fixed for s in extra[len(arranged) :])]


def _operands(
    made: PrimitiveDesc, post: Post, scale: Spec, extras: int, out: Spec
) -> dict[int, tuple[MemoryDesc, Location]]:
    """The execution arguments except for the weights."""
    found: dict[int, tuple[MemoryDesc, Location]] = {
        ARG.SRC: (made.src, at_input(0)),
        ARG.DST: (made.dst, at_output()),
        scale_argument(ARG.WEIGHTS): (MemoryDesc(scale.shape), at_input(2)),
    }
    if out.dtype == int8:
        found[scale_argument(ARG.DST)] = (MemoryDesc(_ONE), at_input(2 + extras))
    return found | post.operands(made, first=3)


def _widened(
    op: QuantizedConv | QuantizedMatmul, specs: Sequence[Spec], device: Device, policy: Policy
) -> Plan:
    """8-bit operands as float32 in workspace, the weights multiplied by their scales, and the float32 kernel.

    Integers are summed by the direct algorithm, which adds no errors of its own.
    """
    policy = replace(policy, algorithm="fallback") if specs[0].dtype == int8 else policy
    given = [s.open.fixed for s in specs]
    wide = [Spec(s.shape, float32) for s in given[:2]]
    if isinstance(op, QuantizedConv):
        inner = conv(Conv(op.window), wide, device, policy)
    else:
        inner = matmul(Matmul(False, True), wide, device, policy)
    chain = Chain(given, list(inner.outputs))
    plain = [chain.temporary(s.nbytes) for s in wide]
    chain.call(_widen(given, wide, plain))
    places = [
        _as_wanted(chain, s.fixed, wanted, p) for s, wanted, p in zip(wide, inner.inputs, plain, strict=True)
    ]
    scratch = chain.temporary(inner.workspace)

    def multiply(call: Call) -> Run:
        addresses = tuple(p.address(call) for p in places)
        return inner.bind(Call(addresses, call.outputs, scratch.address(call)))

    chain.call(multiply)
    return chain.plan(f"float32 for {specs[0].dtype}: {inner.label}")


def _widen(given: Sequence[Spec], wide: Sequence[Spec], places: Sequence[Location]) -> Callable[[Call], Run]:
    """Copy x and w as float32, row-major, w times its scales."""

    def bind(call: Call) -> Run:
        x, w, scale = (array_at(p, s) for p, s in zip(call.inputs, given, strict=True))
        to, weights = (array_at(p.address(call), s.fixed) for p, s in zip(places, wide, strict=True))
        factors, table = scale.reshape(-1, *(1,) * (w.ndim - 1)), _WIDE[given[0].dtype]

        def run() -> None:
            np.take(table, x.view(np.uint8), out=to, mode="clip")
            np.take(table, w.view(np.uint8), out=weights, mode="clip")
            np.multiply(weights, factors, out=weights)

        return run

    return bind


def _as_wanted(chain: Chain, source: Spec, wanted: Spec, place: Location) -> Location:
    """The place where a kernel finds a row-major operand in the layout that it needs."""
    if source.same_memory(wanted):
        return place
    moved, to = reorder(source, wanted), chain.temporary(wanted.nbytes)
    chain.call(lambda call: moved.bind(Call((place.address(call),), (to.address(call),), 0)))
    return to
