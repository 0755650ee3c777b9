"""Reduction over the axes in which the result has size 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, data_type, named
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


class Reduction(Descriptor):
    """Which reduction ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros").

    deterministic: the same bits every time (cuDNN 9.11).
    """

    kind = _KIND.CUDNN_BACKEND_REDUCTION_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "operator": attribute("REDUCTION_OPERATOR", "REDUCTION_OPERATOR_TYPE", enum=c.cudnnReduceTensorOp_t),
        "compute": attribute("REDUCTION_COMP_TYPE", "DATA_TYPE", enum=c.cudnnDataType_t),
        "deterministic": attribute("REDUCTION_IS_DETERMINISTIC", "BOOLEAN"),
    }

    def __init__(
        self, operator: str | int, *, compute: str | int = "float32", deterministic: bool | None = None
    ) -> None:
        kind = named(c.cudnnReduceTensorOp_t, "CUDNN_REDUCE_TENSOR_", operator, "reduction")
        super().__init__(operator=kind, compute=data_type(compute), deterministic=deterministic)


class ReductionOperation(Descriptor):
    """y = the reduction of x over the axes where y has size 1.

    group_offset: int32 tensor of where each group's rows begin; one result per group (cuDNN 9.24).
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "reduction": attribute("OPERATION_REDUCTION_DESC", "BACKEND_DESCRIPTOR", takes="REDUCTION"),
        "x": attribute("OPERATION_REDUCTION_XDESC", "BACKEND_DESCRIPTOR"),
        "y": attribute("OPERATION_REDUCTION_YDESC", "BACKEND_DESCRIPTOR"),
        "group_offset": attribute("OPERATION_REDUCTION_GROUP_OFFSET_DESC", "BACKEND_DESCRIPTOR"),
    }

    def __init__(
        self, reduction: Reduction, x: Tensor, y: Tensor, *, group_offset: Tensor | None = None
    ) -> None:
        super().__init__(reduction=reduction, x=x, y=y, group_offset=group_offset)
