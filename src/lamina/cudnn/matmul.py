"""Matrix product of batches of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, data_type
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


class Matmul(Descriptor):
    """The arithmetic of a product (CUDNN_BACKEND_MATMUL_DESCRIPTOR)."""

    kind = _KIND.CUDNN_BACKEND_MATMUL_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "compute": attribute("MATMUL_COMP_TYPE", "DATA_TYPE", enum=c.cudnnDataType_t),
        "padding": attribute("MATMUL_PADDING_VALUE", "DOUBLE"),
    }

    def __init__(self, *, compute: str | int = "float32", padding: float | None = None) -> None:
        super().__init__(compute=data_type(compute), padding=padding)


class MatmulOperation(Descriptor):
    """c = a @ b for tensors [batch, M, K], [batch, K, N], [batch, M, N]; transposes are strides."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "matmul": attribute("OPERATION_MATMUL_DESC", "BACKEND_DESCRIPTOR"),
        "a": attribute("OPERATION_MATMUL_ADESC", "BACKEND_DESCRIPTOR"),
        "b": attribute("OPERATION_MATMUL_BDESC", "BACKEND_DESCRIPTOR"),
        "c": attribute("OPERATION_MATMUL_CDESC", "BACKEND_DESCRIPTOR"),
    }

    def __init__(self, matmul: Matmul, a: Tensor, b: Tensor, c: Tensor) -> None:
        super().__init__(matmul=matmul, a=a, b=b, c=c)
