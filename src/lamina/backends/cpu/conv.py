"""Convolution and its gradients: Winograd's algorithm where it pays, else oneDNN's direct algorithm.

Activations are channels-last where that is fastest, filters have the layout that each kernel prefers. A mirrored
filter (true convolution) and a grouped one without an expressible layout pass through workspace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from lamina import onednn
from lamina.backends import Call, NoKernel, Packed, Plan, Run
from lamina.backends.cpu import winograd
from lamina.backends.cpu.flat_axes import in_front
from lamina.backends.cpu.library import (
    Chain,
    Location,
    at_input,
    at_output,
    attempt,
    computes,
    data_type,
    kernels,
    open_desc,
    spec_of,
)
from lamina.backends.cpu.post import Post
from lamina.backends.cpu.timing import fastest
from lamina.backends.cpu.window import activation_tags, sliding, ungrouped
from lamina.onednn import ARG, MemoryDesc, PrimitiveDesc
from lamina.ops.core import Op, inferred
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.window import Window
from lamina.runtime import Device, host_array
from lamina.spec import Policy, Spec, uint8


@kernels(Conv, source="onednn")
def conv(op: Conv, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """y from x, w."""
    return forward(op, specs, Post(), (), policy)


def forward(op: Conv, specs: Sequence[Spec], post: Post, extra: Sequence[Spec], policy: Policy) -> Plan:
    """Convolution with fused steps, whose operands are the inputs after x and w; made once per problem.

    It does not depend on the operands' present layouts: fusion is decided before layouts are known.
    """
    problem = op, tuple([s.open for s in specs]), post, tuple([s.open for s in extra])
    if _is_timed(policy):
        return _forward(*problem, policy)
    return _known_forward(*problem, _read_of(policy))


def _forward(op: Conv, specs: Sequence[Spec], post: Post, extra: Sequence[Spec], policy: Policy) -> Plan:
    x, w = specs
    computes(x, w)
    turned = in_front(op, specs, extra, lambda op, specs, extra: _forward(op, specs, post, extra, policy))
    if turned is not None:
        return turned
    found = winograd.forward(op, specs, post, extra, policy) or _direct(op, specs, post, extra, policy)
    prepared = winograd.prepared(op, specs, post, extra, policy)
    return found if prepared is None else replace(found, packed=prepared)


def _direct(op: Conv, specs: Sequence[Spec], post: Post, extra: Sequence[Spec], policy: Policy) -> Plan:
    """oneDNN's convolution."""
    x, w = specs
    (y,) = inferred(op, x.open, w.open)
    filters = Filter.of(w, op.window)
    made = _chosen(
        op,
        x,
        policy,
        (ARG.SRC, ARG.DST),
        lambda tag: onednn.convolution_forward(
            open_desc(x, tag),
            filters.any,
            post.bias_desc(y.dtype),
            open_desc(y, tag),
            sliding(op.window),
            prop="inference",
            attributes=post.attributes(y, tag, extra),
        ),
    )
    return _reading(made, filters, (ARG.SRC, x), (ARG.DST, y), post, extra)


_known_forward = lru_cache(maxsize=1024)(_forward)


@lru_cache(maxsize=64)
def _read_of(policy: Policy) -> Policy:
    """The part of a policy that planning reads where nothing is timed."""
    direct = policy.algorithm == "fallback"
    return Policy(algorithm="fallback" if direct else "auto", workspace_limit=policy.workspace_limit)


@kernels(ConvDataGrad, source="onednn")
def conv_data_grad(op: ConvDataGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """dx from g, w."""
    g, w = specs
    computes(g, w)
    turned = in_front(op, specs, (), lambda op, specs, _: conv_data_grad(op, specs, device, policy))
    if turned is not None:
        return turned
    found = winograd.data_grad(op, specs, policy)
    if found is not None:
        return found
    (x,) = inferred(op, g.open, w.open)
    computes(x)
    filters = Filter.of(w, op.window)
    made = _chosen(
        op,
        g,
        policy,
        (ARG.DIFF_DST, ARG.DIFF_SRC),
        lambda tag: onednn.convolution_backward_data(
            open_desc(x, tag),
            filters.any,
            open_desc(g, tag),
            sliding(op.window),
            hint=_hint(x, filters, g, op.window, tag),
        ),
    )
    return _reading(made, filters, (ARG.DIFF_DST, g), (ARG.DIFF_SRC, x), Post(), ())


@kernels(ConvFilterGrad, source="onednn")
def conv_filter_grad(op: ConvFilterGrad, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """dw from x, g."""
    x, g = specs
    computes(x, g)
    turned = in_front(op, specs, (), lambda op, specs, _: conv_filter_grad(op, specs, device, policy))
    if turned is not None:
        return turned
    found = winograd.filter_grad(op, specs, policy)
    if found is not None:
        return found
    (w,) = inferred(op, x.open, g.open)
    filters = Filter.of(w, op.window)
    made = _chosen(
        op,
        x,
        policy,
        (ARG.SRC, ARG.DIFF_DST),
        lambda tag: onednn.convolution_backward_weights(
            open_desc(x, tag),
            filters.any,
            None,
            open_desc(g, tag),
            sliding(op.window),
            hint=_hint(x, filters, g, op.window, tag),
        ),
    )
    chain = Chain([spec_of(made.src, x.dtype), spec_of(made.diff_dst, g.dtype)], [w])
    target, finish = filters.write(chain, made.diff_weights, at_output())
    operands = {
        ARG.SRC: (made.src, at_input(0)),
        ARG.DIFF_DST: (made.diff_dst, at_input(1)),
        ARG.DIFF_WEIGHTS: (made.diff_weights, target),
    }
    chain.run(made, operands)
    finish()
    return chain.plan()


def _reading(
    made: PrimitiveDesc,
    filters: Filter,
    source: tuple[int, Spec],
    result: tuple[int, Spec],
    post: Post,
    extra: Sequence[Spec],
) -> Plan:
    """The plan of a direction that reads the filter, input 1: forward, or the gradient of the data.

    Args:
        source, result: the kernel's argument for input 0 and output 0, with its spec.
        post, extra: fused steps, and the specs of the inputs after the filter.
    """
    (reads, x), (writes, y) = source, result
    given, written = made.argument(reads), made.argument(writes)
    out = spec_of(written, y.dtype)

    def plan(prepared: bool) -> Plan:
        chain = Chain([spec_of(given, x.dtype), filters.spec, *post.specs(out, extra)], [out])
        if prepared:
            chain.inputs[1], weights = filters.packed(made.weights), (made.weights, at_input(1))
        else:
            chain.inputs[1], weights = filters.read(chain, made.weights, at_input(1))
        operands = {reads: (given, at_input(0)), ARG.WEIGHTS: weights, writes: (written, at_output())}
        chain.run(made, operands | post.operands(made, first=2))
        return chain.plan()

    if filters.named(made.weights) is not None or (made.weights == filters.plain and not filters.flip):
        return plan(prepared=False)
    return replace(plan(prepared=False), packed=Packed(1, filters.pack(made.weights), plan(prepared=True)))


def _chosen(
    op: Op, like: Spec, policy: Policy, ends: Sequence[int], create: Callable[[str], PrimitiveDesc]
) -> PrimitiveDesc:
    """The kernel for the best layout of activations that has one; found by timing if the policy asks for it.

    ends: the arguments that are activations.
    """
    candidates = _candidates(like, ends, create)
    made = fastest(candidates) if _is_timed(policy) else next(candidates, None)
    if made is None:
        raise NoKernel(f"cpu: oneDNN has no kernel for {op} on {like}")
    return made


def _is_timed(policy: Policy) -> bool:
    """Whether kernels compete: not where results must be reproducible, since winners are not remembered."""
    return policy.algorithm == "fastest" and not policy.deterministic


def _candidates(
    like: Spec, ends: Sequence[int], create: Callable[[str], PrimitiveDesc]
) -> Iterator[PrimitiveDesc]:
    """oneDNN's first choice for each layout of activations, best first.

    Layouts with partly filled channel blocks only where there is no other: readers rely on zero padding, which
    kernels of other ops may leave unwritten.
    """
    padded, given = list[PrimitiveDesc](), False
    for tag in activation_tags(like):
        made = attempt(create, tag)
        if made is None:
            continue
        if any(_is_padded(made.argument(end)) for end in ends):
            padded.append(made)
        else:
            given = True
            yield made
    if not given:
        yield from padded


def _is_padded(memory: MemoryDesc) -> bool:
    return memory.padded_dims != memory.dims


def _hint(x: Spec, filters: Filter, y: Spec, window: Window, tag: str) -> PrimitiveDesc:
    """A forward convolution of the same sizes: the hint that backward primitive descriptors need."""
    return onednn.convolution_forward(
        open_desc(x, tag), filters.any, None, open_desc(y, tag), sliding(window), prop="training"
    )


@dataclass(frozen=True)
class Filter:
    """A filter [K, C / g, *k] in oneDNN's form: [g, K / g, C / g, *k] with groups, never mirrored."""

    spec: Spec
    groups: int
    flip: bool
    dims: tuple[int, ...]

    @classmethod
    def of(cls, spec: Spec, window: Window) -> Filter:
        """The filter of a convolution with this window."""
        g, shape = window.groups, spec.shape
        dims = shape if g == 1 else (g, shape[0] // g, *shape[1:])
        return cls(spec.open, g, window.flip, dims)

    @property
    def any(self) -> MemoryDesc:
        """The layout left to the primitive."""
        return MemoryDesc(self.dims, data_type(self.spec.dtype), tag="any")

    @property
    def plain(self) -> MemoryDesc:
        """Row-major."""
        return MemoryDesc(self.dims, data_type(self.spec.dtype))

    def named(self, wanted: MemoryDesc) -> Spec | None:
        """The filter's spec in a layout of the primitive; None where the layout cannot be expressed or elements
        move."""
        if self.flip or not wanted.is_strided:
            return None
        if self.groups == 1:
            found = spec_of(wanted, self.spec.dtype)
        else:
            layout = ungrouped(wanted.strides, wanted.blocks, self.dims)
            if layout is None:
                return None
            found = Spec(self.spec.shape, self.spec.dtype, layout)
        return found if found.nbytes == wanted.nbytes else None  # int8 filters may carry sums behind them

    def read(
        self, chain: Chain, wanted: MemoryDesc, source: Location
    ) -> tuple[Spec, tuple[MemoryDesc, Location]]:
        """The spec in which the filter is read, and the operand for a primitive that needs the layout `wanted`."""
        spec = self.named(wanted)
        if spec is not None:
            return spec, (wanted, source)
        if wanted == self.plain and not self.flip:
            return self.spec.fixed, (wanted, source)
        inside = chain.temporary(wanted.nbytes)
        self._prepare(chain, wanted, source, inside)
        return self.spec.fixed, (wanted, inside)

    def packed(self, wanted: MemoryDesc) -> Spec:
        """The result of `pack`: the bytes of the filter in a layout that cannot be expressed."""
        return Spec((wanted.nbytes,), uint8).fixed

    def pack(self, wanted: MemoryDesc) -> Plan:
        """The plan that reorders a row-major filter to the layout `wanted`."""
        chain = Chain([self.spec.fixed], [self.packed(wanted)])
        self._prepare(chain, wanted, at_input(0), at_output())
        return chain.plan()

    def _prepare(self, chain: Chain, wanted: MemoryDesc, source: Location, target: Location) -> None:
        """Append the steps that reorder a row-major filter to the layout `wanted`, mirrored if necessary."""
        if self.flip and wanted == self.plain:
            chain.call(self._mirror(source, target))
            return
        if self.flip:
            mirrored = chain.temporary(self.plain.nbytes)
            chain.call(self._mirror(source, mirrored))
            source = mirrored
        operands = {ARG.SRC: (self.plain, source), ARG.DST: (wanted, target)}
        chain.run(onednn.reorder(self.plain, wanted), operands)

    def write(self, chain: Chain, given: MemoryDesc, target: Location) -> tuple[Location, Callable[[], None]]:
        """Where a primitive writes the filter in the layout `given`, and a function that appends the steps after
        it."""
        spec = self.named(given)
        chain.outputs[target.where] = spec or self.spec.fixed
        if spec is not None:
            return target, _nothing
        inside = chain.temporary(given.nbytes)
        straight = chain.temporary(self.plain.nbytes) if self.flip else target

        def finish() -> None:
            chain.run(
                onednn.reorder(given, self.plain),
                {ARG.SRC: (given, inside), ARG.DST: (self.plain, straight)},
            )
            if self.flip:
                chain.call(self._mirror(straight, target))

        return inside, finish

    def _mirror(self, source: Location, target: Location) -> Callable[[Call], Run]:
        """Copy the row-major filter with its spatial axes reversed."""
        transposed = (slice(None), slice(None), *(slice(None, None, -1) for _ in self.spec.shape[2:]))

        def bind(call: Call) -> Run:
            shape, kind = self.spec.shape, self.spec.dtype.numpy
            old = host_array(source.address(call), shape, kind)[transposed]
            new = host_array(target.address(call), shape, kind)

            def run() -> None:
                np.copyto(new, old)

            return run

        return bind


def _nothing() -> None:
    """Append no steps."""
