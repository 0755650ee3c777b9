"""Elementwise operations on two tensors."""

from __future__ import annotations

from typing import NamedTuple

from lamina.c import cudnn
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import DataType, Name, NanPropagation, TensorOp, flag
from lamina.cudnn.legacy.tensor import TensorDescriptor


class OpTensorSettings(NamedTuple):
    """What `OpTensor.get` returns."""

    op: TensorOp
    compute_type: DataType
    nan: NanPropagation


class OpTensor(Descriptor):
    """c = op(alpha1 * a, alpha2 * b) + beta * c (cudnnSetOpTensorDescriptor).

    Args:
        op: "add", "mul", "min", "max"; of a alone: "sqrt", and "not" (1 - a).
        compute_type: "float32", or "float64" for float64 tensors.
        nan: "not_propagate" or "propagate".
    """

    kind = "OpTensorDescriptor"

    def __init__(self, op: Name, *, compute_type: Name = "float32", nan: Name = "not_propagate") -> None:
        super().__init__()
        settings = flag(TensorOp, op), flag(DataType, compute_type), flag(NanPropagation, nan)
        call(cudnn.cudnnSetOpTensorDescriptor, self, *settings)

    def get(self) -> OpTensorSettings:
        """Read from cuDNN (cudnnGetOpTensorDescriptor)."""
        return OpTensorSettings(*call(cudnn.cudnnGetOpTensorDescriptor, self))

    def run(
        self,
        handle: AnyHandle,
        *,
        a_desc: TensorDescriptor,
        a: Memory,
        c_desc: TensorDescriptor,
        c: Memory,
        b_desc: TensorDescriptor | None = None,
        b: Memory = None,
        alpha1: float = 1.0,
        alpha2: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """c = op(alpha1 * a, alpha2 * b) + beta * c (cudnnOpTensor).

        Args:
            a_desc, a: first operand, of c's shape.
            b_desc, b: second operand, of c's shape or with ones, which are repeated; left out for "sqrt" and
                "not", which do not read it.
            c_desc, c: result; its type decides that of the factors. It may share a's memory, not b's
                (cuDNN answers BAD_PARAM).
            handle, alpha1, alpha2, beta: where, and the factors.
        """
        second = (a_desc, a) if b_desc is None else (b_desc, b)  # C wants one even where it is not read
        call(cudnn.cudnnOpTensor, handle, self, alpha1, a_desc, a, alpha2, *second, beta, c_desc, c)
