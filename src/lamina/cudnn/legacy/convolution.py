"""Convolution: its window and arithmetic, its three directions, and what is fused with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from lamina.c import cudnn as c
from lamina.cudnn.legacy.activation import Activation
from lamina.cudnn.legacy.algorithms import STEMS
from lamina.cudnn.legacy.algorithms import algorithm as by_name
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call, spatial_rank, spread
from lamina.cudnn.legacy.filter import FilterDescriptor
from lamina.cudnn.legacy.flags import (
    ConvolutionMode,
    DataType,
    MathType,
    Name,
    ReorderType,
    TensorFormat,
    flag,
)
from lamina.cudnn.legacy.handles import scratch
from lamina.cudnn.legacy.tensor import TensorDescriptor, from_c, matching
from lamina.cudnn.legacy.transform import TensorTransform

_MAX = 6  # CUDNN_DIM_MAX - 2 spatial axes
_Side: TypeAlias = tuple[TensorDescriptor | FilterDescriptor, Memory]


class ConvolutionSettings(NamedTuple):
    """What `Convolution.get` and `Deconvolution.get` return."""

    pad: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    mode: ConvolutionMode
    compute_type: DataType
    math_type: MathType
    reorder: ReorderType


class ConvolutionBase(Descriptor):
    """The C convolution descriptor and the operations that `Convolution` and `Deconvolution` have alike.

    A deconvolution is the convolution with its two sides exchanged: forward is the data gradient.
    """

    kind = "ConvolutionDescriptor"
    _transposed: ClassVar[bool]

    def __init__(
        self,
        *,
        pad: int | Sequence[int] = 0,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        mode: Name = "cross_correlation",
        compute_type: Name = "float32",
        math_type: Name = "default",
        reorder: Name = "default",
        spatial: int = 2,
    ) -> None:
        super().__init__()
        rank = spatial_rank(spatial, pad=pad, stride=stride, dilation=dilation)
        window = [
            spread(name, value, rank)
            for name, value in (("pad", pad), ("stride", stride), ("dilation", dilation))
        ]
        kind = flag(DataType, compute_type)
        call(c.cudnnSetConvolutionNdDescriptor, self, rank, *window, flag(ConvolutionMode, mode), kind)
        call(c.cudnnSetConvolutionGroupCount, self, groups)
        call(c.cudnnSetConvolutionMathType, self, flag(MathType, math_type))
        call(c.cudnnSetConvolutionReorderType, self, flag(ReorderType, reorder))

    def get(self) -> ConvolutionSettings:
        """Read from cuDNN (cudnnGetConvolutionNdDescriptor, ...GroupCount, ...MathType, ...ReorderType)."""
        found = call(c.cudnnGetConvolutionNdDescriptor, self, _MAX)
        return ConvolutionSettings(
            tuple(found.padA),
            tuple(found.strideA),
            tuple(found.dilationA),
            call(c.cudnnGetConvolutionGroupCount, self),
            found.mode,
            found.computeType,
            call(c.cudnnGetConvolutionMathType, self),
            call(c.cudnnGetConvolutionReorderType, self),
        )

    def replace(self, **changes: Any) -> Self:
        """A new object with some settings changed: `convolution.replace(math_type=found.math_type)`."""
        return type(self)(**{**self.get()._asdict(), **changes})

    # ---- the three C directions; each reads two operands on both sides of the window and writes a third
    def scratch_size(
        self, direction: str, handle: AnyHandle, first: Any, second: Any, result: Any, name: Name
    ) -> int:
        """Bytes that C's call of a direction ("forward", "backward_data", "backward_filter") needs.

        first, second, result: descriptors of what it reads and writes, in C's order.
        """
        if direction not in STEMS:
            raise ValueError(f"scratch_size: direction must be one of {', '.join(STEMS)}, got {direction!r}")
        function: Callable[..., int] = getattr(c, f"cudnnGet{STEMS[direction]}WorkspaceSize")
        return call(function, handle, first, second, self, result, by_name(direction, name))

    def _run(
        self,
        direction: str,
        handle: AnyHandle,
        operands: tuple[_Side, _Side, _Side],
        scale: tuple[float, float],
        name: Name,
        workspace: Memory | tuple[Memory, int],
    ) -> None:
        """The call itself: operands are descriptors with memory."""
        function: Callable[..., None] = getattr(c, f"cudnn{STEMS[direction]}")
        (first, second, result), algo = operands, by_name(direction, name)
        described = (first[0], second[0], result[0])
        space = scratch(handle, workspace, lambda: self.scratch_size(direction, handle, *described, algo))
        call(function, handle, scale[0], *first, *second, self, algo, *space, scale[1], *result)

    # ---- operations
    def forward_workspace(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        w_desc: FilterDescriptor,
        y_desc: TensorDescriptor,
        algorithm: Name = "deterministic",
    ) -> int:
        """Bytes that `forward` needs with that algorithm."""
        if self._transposed:
            return self.scratch_size("backward_data", handle, w_desc, x_desc, y_desc, algorithm)
        return self.scratch_size("forward", handle, x_desc, w_desc, y_desc, algorithm)

    def forward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        w_desc: FilterDescriptor,
        w: Memory,
        y_desc: TensorDescriptor,
        y: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
        algorithm: Name = "deterministic",
        workspace: Memory | tuple[Memory, int] = None,
    ) -> None:
        """y = alpha * conv(x, w) + beta * y.

        Args:
            handle: where and on which stream.
            x_desc, x, w_desc, w, y_desc, y: descriptors and device memory.
            alpha, beta: scale of the result, and of what y holds before.
            algorithm: see `algorithm`; `Search` finds the fastest.
            workspace: scratch memory; omitted, the handle provides it.

        C: cudnnConvolutionForward; of a deconvolution cudnnConvolutionBackwardData.
        """
        data, filters, result = (x_desc, x), (w_desc, w), (y_desc, y)
        rest = ((alpha, beta), algorithm, workspace)
        if self._transposed:
            self._run("backward_data", handle, (filters, data, result), *rest)
        else:
            self._run("forward", handle, (data, filters, result), *rest)

    def backward_data_workspace(
        self,
        handle: AnyHandle,
        *,
        w_desc: FilterDescriptor,
        dy_desc: TensorDescriptor,
        dx_desc: TensorDescriptor,
        algorithm: Name = "deterministic",
    ) -> int:
        """Bytes that `backward_data` needs."""
        if self._transposed:
            return self.scratch_size("forward", handle, dy_desc, w_desc, dx_desc, algorithm)
        return self.scratch_size("backward_data", handle, w_desc, dy_desc, dx_desc, algorithm)

    def backward_data(
        self,
        handle: AnyHandle,
        *,
        w_desc: FilterDescriptor,
        w: Memory,
        dy_desc: TensorDescriptor,
        dy: Memory,
        dx_desc: TensorDescriptor,
        dx: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
        algorithm: Name = "deterministic",
        workspace: Memory | tuple[Memory, int] = None,
    ) -> None:
        """dx = alpha * (gradient by x) + beta * dx. Arguments as `forward`.

        C: cudnnConvolutionBackwardData; of a deconvolution cudnnConvolutionForward.
        """
        filters, gradient, result = (w_desc, w), (dy_desc, dy), (dx_desc, dx)
        rest = ((alpha, beta), algorithm, workspace)
        if self._transposed:
            self._run("forward", handle, (gradient, filters, result), *rest)
        else:
            self._run("backward_data", handle, (filters, gradient, result), *rest)

    def backward_filter_workspace(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        dy_desc: TensorDescriptor,
        dw_desc: FilterDescriptor,
        algorithm: Name = "deterministic",
    ) -> int:
        """Bytes that `backward_filter` needs."""
        if self._transposed:
            x_desc, dy_desc = dy_desc, x_desc
        return self.scratch_size("backward_filter", handle, x_desc, dy_desc, dw_desc, algorithm)

    def backward_filter(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        dy_desc: TensorDescriptor,
        dy: Memory,
        dw_desc: FilterDescriptor,
        dw: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
        algorithm: Name = "deterministic",
        workspace: Memory | tuple[Memory, int] = None,
    ) -> None:
        """dw = alpha * (gradient by w) + beta * dw (cudnnConvolutionBackwardFilter). Arguments as `forward`."""
        data, gradient = (x_desc, x), (dy_desc, dy)
        sides = (gradient, data) if self._transposed else (data, gradient)
        self._run("backward_filter", handle, (*sides, (dw_desc, dw)), (alpha, beta), algorithm, workspace)

    def backward_bias(
        self,
        handle: AnyHandle,
        *,
        dy_desc: TensorDescriptor,
        dy: Memory,
        db_desc: TensorDescriptor,
        db: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """db = alpha * (sum of dy over all but C) + beta * db; db is 1, C, 1, 1.

        cudnnConvolutionBackwardBias.
        """
        call(c.cudnnConvolutionBackwardBias, handle, alpha, dy_desc, dy, beta, db_desc, db)


class Convolution(ConvolutionBase):
    """Window and arithmetic of a convolution; x is N×C×H×W, w is K×(C/groups)×R×S, y is N×K×P×Q.

    Args:
        pad: zeros on both sides of each spatial axis: one number, or one per axis.
        stride, dilation: likewise.
        groups: C and K fall into so many parts, each convolved by itself.
        mode: "cross_correlation", or "convolution" (the filter is flipped).
        compute_type: type of the sums: "float32", "float64", "float16", or "int32" for int8.
        math_type: "default", "tensor_op", "tensor_op_math_allow_conversion" or "fma" (no tensor cores).
        reorder: "default", or "no" if int8x32 filters are ordered ahead (`FilterDescriptor.reorder`).
        spatial: how many spatial axes there are if pad, stride and dilation are single numbers.
    """

    _transposed = False

    def output_dims(self, x_desc: TensorDescriptor, w_desc: FilterDescriptor) -> tuple[int, ...]:
        """Sizes of y, in the order of x's format (cudnnGetConvolutionNdForwardOutputDim)."""
        found = call(c.cudnnGetConvolutionNdForwardOutputDim, self, x_desc, w_desc, x_desc.rank)
        return from_c(found, x_desc.format)

    def output(
        self, x_desc: TensorDescriptor, w_desc: FilterDescriptor, *, data_type: Name | None = None
    ) -> TensorDescriptor:
        """The packed descriptor of y, in x's format and, unless said otherwise, its type."""
        return matching(x_desc, self.output_dims(x_desc, w_desc), data_type)

    def bias_activation_forward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        w_desc: FilterDescriptor,
        w: Memory,
        bias_desc: TensorDescriptor,
        bias: Memory,
        activation: Activation,
        y_desc: TensorDescriptor,
        y: Memory,
        z_desc: TensorDescriptor | None = None,
        z: Memory = None,
        alpha1: float = 1.0,
        alpha2: float | None = None,
        algorithm: Name = "deterministic",
        workspace: Memory | tuple[Memory, int] = None,
    ) -> None:
        """y = activation(alpha1 * conv(x, w) + alpha2 * z + bias) (cudnnConvolutionBiasActivationForward).

        Args:
            bias_desc, bias: 1, K, 1, 1; float32 where x is int8.
            activation: "relu", or "identity" (with algorithm "small" only).
            z_desc, z: what is added, shaped as y; left out, nothing is.
            alpha2: scale of z; 1 if there is a z, else 0.
            handle, x_desc, x, w_desc, w, y_desc, y, alpha1, algorithm, workspace: as for `forward`.
        """
        algo = by_name("forward", algorithm)
        space = scratch(
            handle, workspace, lambda: self.scratch_size("forward", handle, x_desc, w_desc, y_desc, algo)
        )
        added = (y_desc, y) if z_desc is None else (z_desc, z)  # C wants some z even where it is not read
        factor = float(z_desc is not None) if alpha2 is None else alpha2
        call(
            c.cudnnConvolutionBiasActivationForward, handle, alpha1, x_desc, x, w_desc, w, self, algo, *space,
            factor, *added, bias_desc, bias, activation, y_desc, y,
        )  # fmt: skip

    def im2col(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        w_desc: FilterDescriptor,
        columns: Memory,
    ) -> None:
        """Write the matrix whose product with the filters is the convolution (cudnnIm2Col).

        columns: N·P·Q × C·R·S elements of x's type.
        """
        call(c.cudnnIm2Col, handle, x_desc, x, w_desc, self, columns)

    # ---- folding
    def folded_backward_data(
        self,
        handle: AnyHandle,
        *,
        w_desc: FilterDescriptor,
        dy_desc: TensorDescriptor,
        dx_desc: TensorDescriptor,
        format: Name = "nchw",
    ) -> FoldedBackwardData:
        """Descriptors for a strided data gradient as one of stride 1 (cudnnGetFoldedConvBackwardDataDescriptors).

        The strides are folded into channels: transform w and dy by the first two transforms, take the folded
        gradient, unfold it by the last. `format` is that of the folded tensors.
        """
        order = flag(TensorFormat, format)
        made = FoldedBackwardData(
            FilterDescriptor.empty(),
            TensorDescriptor.empty(order),
            Convolution.empty(),
            TensorDescriptor.empty(order),
            TensorTransform.empty(),
            TensorTransform.empty(),
            TensorTransform.empty(),
            TensorTransform.empty(),
        )
        function = c.cudnnGetFoldedConvBackwardDataDescriptors
        call(function, handle, w_desc, dy_desc, self, dx_desc, order, *made)
        return made


class FoldedBackwardData(NamedTuple):
    """The descriptors of a folded data gradient, filled in by the library."""

    w_desc: FilterDescriptor
    dy_desc: TensorDescriptor
    convolution: Convolution
    dx_desc: TensorDescriptor
    fold_w: TensorTransform
    pad_dy: TensorTransform
    fold_dx: TensorTransform
    unfold_dx: TensorTransform
