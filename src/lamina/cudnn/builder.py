"""The operations of a graph: one method each, after the tensors that they take and give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamina.cudnn.attention import (
    AttentionBackward,
    AttentionForward,
    BandMatrixContract,
    BandMatrixExpand,
    DiagonalBandMask,
    PagedCacheLoad,
    RopeBackward,
    RopeForward,
    Softmax,
)
from lamina.cudnn.convolution import (
    Convolution,
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    ConvolutionForward,
)
from lamina.cudnn.descriptor import Descriptor
from lamina.cudnn.matmul import Matmul, MatmulOperation, MoeGroupedMatmul, MoeGroupedMatmulBackward
from lamina.cudnn.norm import NormBackward, NormForward
from lamina.cudnn.pointwise import Pointwise, PointwiseOperation
from lamina.cudnn.quantize import BlockScaleDequantize, BlockScaleQuantize
from lamina.cudnn.random import Rng, RngOperation
from lamina.cudnn.reduction import Reduction, ReductionOperation
from lamina.cudnn.resample import Resample, ResampleBackward, ResampleForward
from lamina.cudnn.shape import Concatenate, Reshape, Signal, Slice, Transpose
from lamina.cudnn.statistics import BnBackwardWeights, BnFinalize, GenStats
from lamina.cudnn.tensor import Tensor


def packed_strides(dimensions: Sequence[int], channels_last: bool = False) -> tuple[int, ...]:
    """Strides without gaps, in elements: row-major, or with dimension 1 innermost (NHWC for [N, C, H, W])."""
    rank = len(dimensions)
    order = [0, *range(2, rank), 1] if channels_last and rank > 2 else list(range(rank))
    strides, step = [0] * rank, 1
    for axis in reversed(order):
        strides[axis] = step
        step *= dimensions[axis]
    return tuple(strides)


class Operations:
    """Tensors and operations of one graph; every method adds one operation and gives its result.

    Args:
        compute: type of the arithmetic, unless an operation sets its own.
    """

    def __init__(self, compute: str | int = "float32") -> None:
        self.compute = compute
        self.operations: list[Descriptor] = []
        self.tensors: list[Tensor] = []
        self._by_uid: dict[int, Tensor] = {}  # those that operations use
        self._titles: list[str] = []

    # -- tensors --------------------------------------------------------------------------------------------

    def tensor(
        self,
        dimensions: Sequence[int],
        strides: Sequence[int],
        data_type: str | int,
        *,
        virtual: bool = False,
        alignment: int = 16,
        by_value: bool = False,
        **more: Any,
    ) -> Tensor:
        """A tensor with the next free uid (1, 2, …); `more`: further arguments of `Tensor`."""
        made = Tensor(
            dimensions=dimensions,
            strides=strides,
            data_type=data_type,
            uid=len(self.tensors) + 1,
            virtual=virtual,
            alignment=alignment,
            by_value=by_value,
            **more,
        )
        self.tensors.append(made)
        return made

    def scalar(self, rank: int = 4, data_type: str | int = "float32", *, by_value: bool = True) -> Tensor:
        """A tensor of one element; its address is that of a number on the host unless `by_value` is False."""
        ones = (1,) * rank
        return self.tensor(ones, ones, data_type, by_value=by_value)

    def packed(
        self, dimensions: Sequence[int], data_type: str | int, *, channels_last: bool = False, **more: Any
    ) -> Tensor:
        """A dense tensor: row-major, or with the second dimension innermost with `channels_last`."""
        return self.tensor(dimensions, packed_strides(dimensions, channels_last), data_type, **more)

    def like(self, tensor: Tensor, data_type: str | int | None = None) -> Tensor:
        """A virtual tensor of the same sizes and strides, in the compute type unless another is named."""
        kind = self.compute if data_type is None else data_type
        return self.tensor(tensor.dimensions, tensor.strides, kind, virtual=True)

    # -- operations -----------------------------------------------------------------------------------------

    def conv(
        self,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        *,
        stride: Sequence[int],
        pre: Sequence[int],
        post: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        flip: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """y = alpha * conv(x, w) + beta * y."""
        window = self._window(stride, pre, post, dilation, flip)
        self._add("conv", ConvolutionForward(window, x, w, y, alpha=alpha, beta=beta))
        return y

    def conv_data_grad(
        self,
        dy: Tensor,
        w: Tensor,
        dx: Tensor,
        *,
        stride: Sequence[int],
        pre: Sequence[int],
        post: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        flip: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """dx from dy and the filter."""
        window = self._window(stride, pre, post, dilation, flip)
        self._add("conv_data_grad", ConvolutionBackwardData(window, dy, w, dx, alpha=alpha, beta=beta))
        return dx

    def conv_filter_grad(
        self,
        x: Tensor,
        dy: Tensor,
        dw: Tensor,
        *,
        stride: Sequence[int],
        pre: Sequence[int],
        post: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        flip: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Tensor:
        """dw from x and dy."""
        window = self._window(stride, pre, post, dilation, flip)
        self._add("conv_filter_grad", ConvolutionBackwardFilter(window, x, dy, dw, alpha=alpha, beta=beta))
        return dw

    def _window(
        self,
        stride: Sequence[int],
        pre: Sequence[int],
        post: Sequence[int] | None,
        dilation: Sequence[int] | None,
        flip: bool,
    ) -> Convolution:
        return Convolution(
            stride=stride, pre=pre, post=post, dilation=dilation, compute=self.compute, flip=flip
        )

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        *,
        m: Tensor | None = None,
        n: Tensor | None = None,
        k: Tensor | None = None,
        padding: float | None = None,
    ) -> Tensor:
        """out = a @ b for [batch, M, K] and [batch, K, N]; m, n, k, padding: see `MatmulOperation`."""
        product = Matmul(compute=self.compute, padding=padding)
        self._add("matmul", MatmulOperation(product, a, b, out, m=m, n=n, k=k))
        return out

    def grouped_matmul(
        self, token: Tensor, weight: Tensor, first_token: Tensor, out: Tensor, **options: Any
    ) -> Tensor:
        """One product per expert; options: see `MoeGroupedMatmul`."""
        options.setdefault("compute", self.compute)
        self._add("grouped_matmul", MoeGroupedMatmul(token, weight, first_token, out, **options))
        return out

    def grouped_matmul_grad(
        self, doutput: Tensor, token: Tensor, first_token: Tensor, dweight: Tensor
    ) -> Tensor:
        """The gradient of `grouped_matmul` by its weight."""
        made = MoeGroupedMatmulBackward(doutput, token, first_token, dweight, compute=self.compute)
        self._add("grouped_matmul_grad", made)
        return dweight

    def pointwise(
        self,
        mode: str | int,
        x: Tensor,
        b: Tensor | None = None,
        out: Tensor | None = None,
        *,
        t: Tensor | None = None,
        alpha1: float | None = None,
        alpha2: float | None = None,
        **parameters: float | int | None,
    ) -> Tensor:
        """out = mode(x, b, t); for a gradient ("relu_bwd") x is the forward's operand and b is dy.

        Without `out` the result is virtual.
        """
        result = self.like(x) if out is None else out
        function = Pointwise(mode, compute=self.compute, **parameters)
        if function.is_backward:
            operation = PointwiseOperation(function, x=x, dy=b, dx=result, alpha1=alpha1, alpha2=alpha2)
        else:
            operation = PointwiseOperation(function, x=x, b=b, t=t, y=result, alpha1=alpha1, alpha2=alpha2)
        self._add(function.mode.name.removeprefix("CUDNN_POINTWISE_").lower(), operation)
        return result

    def reduce(
        self,
        operator: str | int,
        x: Tensor,
        y: Tensor,
        *,
        deterministic: bool | None = None,
        group_offset: Tensor | None = None,
    ) -> Tensor:
        """y = the reduction of x over the axes where y has size 1."""
        reduction = Reduction(operator, compute=self.compute, deterministic=deterministic)
        self._add("reduce", ReductionOperation(reduction, x, y, group_offset=group_offset))
        return y

    def pool(self, resample: Resample, x: Tensor, y: Tensor, index: Tensor | None = None) -> Tensor:
        """y = pooling or interpolation of x."""
        self._add("resample", ResampleForward(resample, x, y, index=index))
        return y

    def pool_grad(
        self,
        resample: Resample,
        dy: Tensor,
        dx: Tensor,
        *,
        index: Tensor | None = None,
        x: Tensor | None = None,
        y: Tensor | None = None,
    ) -> Tensor:
        """dx of pooling or interpolation."""
        self._add("resample_grad", ResampleBackward(resample, dy, dx, index=index, x=x, y=y))
        return dx

    def norm(self, mode: str | int, x: Tensor, y: Tensor, **operands: Any) -> Tensor:
        """y = the normalized x; operands: see `NormForward`."""
        self._add("norm", NormForward(mode, x, y, **operands))
        return y

    def norm_grad(self, mode: str | int, dy: Tensor, x: Tensor, dx: Tensor, **operands: Any) -> Tensor:
        """dx of a norm; operands: see `NormBackward`."""
        self._add("norm_grad", NormBackward(mode, dy, x, dx, **operands))
        return dx

    def gen_stats(self, x: Tensor, total: Tensor, squares: Tensor) -> tuple[Tensor, Tensor]:
        """Sum and sum of squares per channel."""
        self._add("gen_stats", GenStats(x, total, squares, compute=self.compute))
        return total, squares

    def bn_finalize(self, total: Tensor, squares: Tensor, **operands: Any) -> tuple[Tensor, Tensor]:
        """The scale and bias that apply a batch norm; operands: see `BnFinalize`."""
        made = BnFinalize(total, squares, compute=self.compute, **operands)
        self._add("bn_finalize", made)
        return operands["eq_scale"], operands["eq_bias"]

    def bn_weight_grad(self, dy: Tensor, x: Tensor, **operands: Any) -> tuple[Tensor, Tensor]:
        """dscale and dbias of a batch norm, and the factors of dx; operands: see `BnBackwardWeights`."""
        self._add("bn_weight_grad", BnBackwardWeights(dy, x, compute=self.compute, **operands))
        return operands["dscale"], operands["dbias"]

    def random(
        self,
        distribution: str | int,
        y: Tensor,
        seed: int | Tensor,
        *,
        offset: Tensor | None = None,
        **parameters: float | None,
    ) -> Tensor:
        """y = random numbers; parameters: see `Rng`."""
        self._add("random", RngOperation(Rng(distribution, **parameters), y, seed, offset=offset))
        return y

    def concatenate(
        self, inputs: Sequence[Tensor], y: Tensor, axis: int, *, inplace: int | None = None
    ) -> Tensor:
        """y = the inputs one after the other along an axis."""
        self._add("concatenate", Concatenate(inputs, y, axis, inplace=inplace))
        return y

    def reshape(self, x: Tensor, y: Tensor, *, mode: str | int | None = None) -> Tensor:
        """y = x in other sizes."""
        self._add("reshape", Reshape(x, y, mode=mode))
        return y

    def transpose(self, x: Tensor, y: Tensor, permutation: Sequence[int]) -> Tensor:
        """y = x with axes in another order."""
        self._add("transpose", Transpose(x, y, permutation))
        return y

    def slice(
        self,
        x: Tensor,
        y: Tensor,
        start: Sequence[int],
        limit: Sequence[int],
        step: Sequence[int] | None = None,
    ) -> Tensor:
        """y = x[start:limit:step, …]."""
        self._add("slice", Slice(x, y, start, limit, step))
        return y

    def signal(
        self, mode: str | int, flag: Tensor, value: int, *, x: Tensor | None = None, y: Tensor | None = None
    ) -> None:
        """Set a flag, or wait for one."""
        self._add("signal", Signal(mode, flag, value, x=x, y=y))

    def softmax(self, x: Tensor, y: Tensor, **operands: Any) -> Tensor:
        """y = softmax of x along its last axis; operands: see `Softmax`."""
        self._add("softmax", Softmax(x, y, **operands))
        return y

    def attention(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, **operands: Any) -> Tensor:
        """o = softmax(scale * q @ kᵀ) @ v as one operation; operands: see `AttentionForward`."""
        self._add("attention", AttentionForward(q, k, v, o, **operands))
        return o

    def attention_grad(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, **operands: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv; operands: see `AttentionBackward`."""
        self._add("attention_grad", AttentionBackward(do, q, k, v, o, **operands))
        return operands["dq"], operands["dk"], operands["dv"]

    def paged_load(self, container: Tensor, lengths: Tensor, table: Tensor, y: Tensor) -> Tensor:
        """y = pages in the order of a table."""
        self._add("paged_load", PagedCacheLoad(container, lengths, table, y))
        return y

    def band_mask(self, x: Tensor, b: Tensor, y: Tensor, **operands: Any) -> Tensor:
        """y = x within a band around the diagonal, b outside; operands: see `DiagonalBandMask`."""
        self._add("band_mask", DiagonalBandMask(x, b, y, **operands))
        return y

    def band_expand(self, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        """y = the matrix whose band is x; options: see `BandMatrixExpand`."""
        self._add("band_expand", BandMatrixExpand(x, y, **options))
        return y

    def band_contract(self, x: Tensor, y: Tensor, **options: Any) -> Tensor:
        """y = the band of a matrix; options: see `BandMatrixContract`."""
        self._add("band_contract", BandMatrixContract(x, y, **options))
        return y

    def rope(self, x: Tensor, frequencies: Tensor, y: Tensor, **options: Any) -> Tensor:
        """y = x rotated by its position; options: see `RopeForward`."""
        self._add("rope", RopeForward(x, frequencies, y, **options))
        return y

    def rope_grad(self, dy: Tensor, frequencies: Tensor, dx: Tensor, **options: Any) -> Tensor:
        """dx of `rope`."""
        self._add("rope_grad", RopeBackward(dy, frequencies, dx, **options))
        return dx

    def quantize(self, x: Tensor, y: Tensor, scale: Tensor, *, block: int) -> tuple[Tensor, Tensor]:
        """y and one scale per block from x."""
        self._add("quantize", BlockScaleQuantize(x, y, scale, block=block, compute=self.compute))
        return y, scale

    def dequantize(
        self,
        x: Tensor,
        scale: Tensor,
        y: Tensor,
        *,
        block: int | Sequence[int],
        negative: bool | None = None,
    ) -> Tensor:
        """y = x times the scale of its block."""
        made = BlockScaleDequantize(x, scale, y, block=block, compute=self.compute, negative=negative)
        self._add("dequantize", made)
        return y

    def _add(self, title: str, operation: Descriptor) -> None:
        for value in operation.values.values():
            for tensor in value if isinstance(value, tuple) else (value,):
                if isinstance(tensor, Tensor) and self._by_uid.setdefault(tensor.uid, tensor) is not tensor:
                    first = self._by_uid[tensor.uid]
                    raise ValueError(
                        f"{title}: two tensors have the uid {tensor.uid}, {first} and {tensor}; make them by one "
                        "graph, or give each a uid of its own"
                    )
        self.operations.append(operation)
        self._titles.append(title)
