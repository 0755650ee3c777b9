"""Reductions over axes."""

from __future__ import annotations

from typing import NamedTuple

from lamina.c import cudnn
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import (
    DataType,
    IndicesType,
    Name,
    NanPropagation,
    ReduceIndices,
    ReduceOp,
    flag,
)
from lamina.cudnn.legacy.handles import Scratch, scratch, sized
from lamina.cudnn.legacy.tensor import TensorDescriptor


class ReduceSettings(NamedTuple):
    """What `ReduceTensor.get` returns."""

    op: ReduceOp
    compute_type: DataType
    nan: NanPropagation
    indices: ReduceIndices
    indices_type: IndicesType


class ReduceTensor(Descriptor):
    """c = alpha * reduce(a) + beta * c over the axes where c has size 1 (cudnnSetReduceTensorDescriptor).

    Args:
        op: "add", "mul", "min", "max", "amax" (of absolute values), "avg", "norm1" (sum of absolute values),
            "norm2" (root of the sum of squares) or "mul_no_zeros" (zeros are skipped).
        compute_type: "float32", or "float64" for float64 tensors.
        nan: "not_propagate" or "propagate".
        indices: "flattened" to get where each "min", "max" or "amax" was found, as the flat index within
            the reduced axes; "no".
        indices_type: "32bit", the only one that cuDNN 9 computes.
    """

    kind = "ReduceTensorDescriptor"

    def __init__(
        self,
        op: Name,
        *,
        compute_type: Name = "float32",
        nan: Name = "not_propagate",
        indices: Name = "no",
        indices_type: Name = "32bit",
    ) -> None:
        super().__init__()
        settings = flag(ReduceOp, op), flag(DataType, compute_type), flag(NanPropagation, nan)
        wanted = flag(ReduceIndices, indices), flag(IndicesType, indices_type)
        call(cudnn.cudnnSetReduceTensorDescriptor, self, *settings, *wanted)

    def get(self) -> ReduceSettings:
        """Read from cuDNN (cudnnGetReduceTensorDescriptor)."""
        return ReduceSettings(*call(cudnn.cudnnGetReduceTensorDescriptor, self))

    def indices_size(self, handle: AnyHandle, *, a_desc: TensorDescriptor, c_desc: TensorDescriptor) -> int:
        """Bytes of the indices, 0 where there are none (cudnnGetReductionIndicesSize)."""
        return call(cudnn.cudnnGetReductionIndicesSize, handle, self, a_desc, c_desc)

    def workspace(self, handle: AnyHandle, *, a_desc: TensorDescriptor, c_desc: TensorDescriptor) -> int:
        """Bytes of scratch that `run` needs (cudnnGetReductionWorkspaceSize)."""
        return call(cudnn.cudnnGetReductionWorkspaceSize, handle, self, a_desc, c_desc)

    def run(
        self,
        handle: AnyHandle,
        *,
        a_desc: TensorDescriptor,
        a: Memory,
        c_desc: TensorDescriptor,
        c: Memory,
        indices: Memory | tuple[Memory, int] = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        workspace: Memory | tuple[Memory, int] = None,
    ) -> None:
        """c = alpha * reduce(a) + beta * c (cudnnReduceTensor).

        Args:
            a_desc, a: what is reduced.
            c_desc, c: result, with size 1 at the reduced axes; its type decides that of the factors.
            indices: memory for uint32 indices, of `indices_size` bytes, where the descriptor asks for them.
            workspace: scratch; omitted, the handle provides it.
            handle, alpha, beta: where, and the factors.

        Raises:
            ValueError: the descriptor asks for indices and there is no memory for them.
        """
        places = sized("indices", indices)
        if indices is None and self.get().indices != ReduceIndices.CUDNN_REDUCE_TENSOR_NO_INDICES:
            raise ValueError("this ReduceTensor finds indices: pass indices, memory of indices_size() bytes")
        space: Scratch = scratch(
            handle, workspace, lambda: self.workspace(handle, a_desc=a_desc, c_desc=c_desc)
        )
        call(cudnn.cudnnReduceTensor, handle, self, *places, *space, alpha, a_desc, a, beta, c_desc, c)
