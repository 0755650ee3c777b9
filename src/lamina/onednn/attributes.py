"""Attributes of a primitive: post-ops, scales, arithmetic mode, scratchpad."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.c import dnnl
from lamina.onednn.memory import MemoryDesc
from lamina.onednn.owned import Owned

FPMATH = {
    name: dnnl.dnnl_fpmath_mode_t[f"dnnl_fpmath_mode_{name}"]
    for name in ("strict", "bf16", "f16", "tf32", "any")
}


@dataclass(frozen=True)
class Eltwise:
    """dst = f(dst): "relu", "tanh", "linear" (alpha * x + beta), … with the function's alpha and beta."""

    function: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Binary:
    """dst = dst f operand, f "add", "mul", …; the operand has shape `desc`, where axes of size 1 broadcast."""

    function: str
    desc: MemoryDesc


@dataclass(frozen=True)
class Sum:
    """dst = result + scale * (previous value of dst)."""

    scale: float = 1.0


PostOp = Eltwise | Binary | Sum


class Attributes(Owned):
    """Attributes of a primitive: dnnl_primitive_attr_create and its setters.

    Args:
        post_ops: applied to the result one after another. The operand of the i-th, a Binary, is passed as
            argument `post_op_argument(i)` at execution.
        scales: argument -> mask of axes along which the scale varies (0: one scale). The scale itself is the
            float32 memory passed as argument `scale_argument(argument)` at execution.
        fpmath: "strict", or what float32 operands may be rounded to: "bf16", "f16", "tf32", "any".
        user_scratchpad: the scratchpad is passed at execution instead of being allocated by the library.
    """

    __slots__ = ("fpmath", "post_ops", "scales")

    def __init__(
        self,
        post_ops: Sequence[PostOp] = (),
        *,
        scales: Mapping[int, int] | None = None,
        fpmath: str = "strict",
        user_scratchpad: bool = True,
    ) -> None:
        if fpmath not in FPMATH:
            raise ValueError(f"Attributes: fpmath must be one of {', '.join(FPMATH)}, got {fpmath!r}")
        super().__init__(dnnl.dnnl_primitive_attr_create(), dnnl.dnnl_primitive_attr_destroy)
        self.post_ops, self.scales, self.fpmath = tuple(post_ops), dict(scales or {}), fpmath
        if user_scratchpad:
            mode = dnnl.dnnl_scratchpad_mode_t.dnnl_scratchpad_mode_user
            dnnl.dnnl_primitive_attr_set_scratchpad_mode(self.handle, mode)
        if fpmath != "strict":
            dnnl.dnnl_primitive_attr_set_fpmath_mode(self.handle, FPMATH[fpmath])
        for argument, mask in self.scales.items():
            dnnl.dnnl_primitive_attr_set_scales_mask(self.handle, argument, mask)
        if self.post_ops:
            self._set_post_ops()

    def _set_post_ops(self) -> None:
        chain = Owned(dnnl.dnnl_post_ops_create(), dnnl.dnnl_post_ops_destroy)
        for step in self.post_ops:
            _append(chain.handle, step)
        dnnl.dnnl_primitive_attr_set_post_ops(self.handle, chain.handle)

    def _describe(self) -> str:
        return ", ".join(map(str, self.post_ops))


def post_op_argument(index: int) -> int:
    """The execution argument of the second operand of the post-op at `index`."""
    return dnnl.DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE * (index + 1) | dnnl.DNNL_ARG_SRC_1


def scale_argument(argument: int) -> int:
    """The execution argument of the scale of `argument`."""
    return dnnl.DNNL_ARG_ATTR_SCALES | argument


def eltwise_kind(function: str) -> dnnl.dnnl_alg_kind_t:
    """The algorithm of an elementwise function. Raises ValueError."""
    return _algorithm("eltwise", function)


def binary_kind(function: str) -> dnnl.dnnl_alg_kind_t:
    """The algorithm of a binary function. Raises ValueError."""
    return _algorithm("binary", function)


def _algorithm(family: str, function: str) -> dnnl.dnnl_alg_kind_t:
    name = f"dnnl_{family}_{function}"
    if name not in dnnl.dnnl_alg_kind_t.__members__:
        raise ValueError(f"oneDNN has no {family} function {function!r}")
    return dnnl.dnnl_alg_kind_t[name]


def _append(chain: int, step: PostOp) -> None:
    if isinstance(step, Eltwise):
        dnnl.dnnl_post_ops_append_eltwise(chain, eltwise_kind(step.function), step.alpha, step.beta)
    elif isinstance(step, Binary):
        dnnl.dnnl_post_ops_append_binary(chain, binary_kind(step.function), step.desc.handle)
    else:
        undefined = dnnl.dnnl_data_type_t.dnnl_data_type_undef  # the destination's own
        dnnl.dnnl_post_ops_append_sum(chain, step.scale, 0, undefined)
