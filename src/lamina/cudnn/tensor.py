"""The tensor descriptor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, data_type, integers, named

_REORDERING = c.cudnnBackendTensorReordering_t


class Tensor(Descriptor):
    """Sizes, strides and element type of a tensor in a graph (CUDNN_BACKEND_TENSOR_DESCRIPTOR).

    Args:
        dimensions: sizes, in the order N, C, spatial (K, C, spatial for a filter), whatever the memory order.
        strides: one per dimension, in elements; channels last has stride 1 at C.
        data_type: "bfloat16", "float32", …, a dtype of NumPy, PyTorch or Lamina, or a cudnnDataType_t.
        uid: the number that the variant pack binds an address to; unique in its graph.
        virtual: lives only inside the graph; no memory is bound to it.
        alignment: bytes that its address is a multiple of.
        by_value: the address bound to it is that of one number on the host.
        vector_count, vectorized_dimension: elements that are contiguous, and along which dimension
            (int8 formats: 4 or 32 along 1).
        reordering: "none", "int8x32", "f16x16", "f8_128x4".
        ragged_offset: tensor of where each batch entry begins, [N + 1, 1, 1, 1], in elements.
    """

    kind = c.cudnnBackendDescriptorType_t.CUDNN_BACKEND_TENSOR_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "uid": attribute("TENSOR_UNIQUE_ID"),
        "data_type": attribute("TENSOR_DATA_TYPE", "DATA_TYPE", enum=c.cudnnDataType_t),
        "dimensions": attribute("TENSOR_DIMENSIONS", many=True),
        "strides": attribute("TENSOR_STRIDES", many=True),
        "alignment": attribute("TENSOR_BYTE_ALIGNMENT"),
        "virtual": attribute("TENSOR_IS_VIRTUAL", "BOOLEAN"),
        "by_value": attribute("TENSOR_IS_BY_VALUE", "BOOLEAN"),
        "vector_count": attribute("TENSOR_VECTOR_COUNT"),
        "vectorized_dimension": attribute("TENSOR_VECTORIZED_DIMENSION"),
        "reordering": attribute("TENSOR_REORDERING_MODE", "TENSOR_REORDERING_MODE", enum=_REORDERING),
        "ragged_offset": attribute("TENSOR_RAGGED_OFFSET_DESC", "BACKEND_DESCRIPTOR"),
        "ragged_multiplier": attribute("TENSOR_RAGGED_OFFSET_MULTIPLIER"),
    }

    def __init__(
        self,
        *,
        dimensions: Sequence[int],
        strides: Sequence[int],
        data_type: str | int,
        uid: int,
        virtual: bool = False,
        alignment: int = 16,
        by_value: bool = False,
        vector_count: int | None = None,
        vectorized_dimension: int | None = None,
        reordering: str | int | None = None,
        ragged_offset: Tensor | None = None,
        ragged_multiplier: int | None = None,
    ) -> None:
        self.dimensions, self.strides = (
            integers("Tensor: dimensions", dimensions),
            integers("Tensor: strides", strides),
        )
        if len(self.dimensions) != len(self.strides):
            raise ValueError(f"tensor: {len(self.dimensions)} dimensions but {len(self.strides)} strides")
        self.data_type, self.uid, self.virtual = _type(data_type), uid, virtual
        super().__init__(
            uid=uid,
            data_type=self.data_type,
            dimensions=self.dimensions,
            strides=self.strides,
            alignment=alignment,
            virtual=True if virtual else None,
            by_value=True if by_value else None,
            vector_count=vector_count,
            vectorized_dimension=vectorized_dimension,
            reordering=None
            if reordering is None
            else named(_REORDERING, "CUDNN_TENSOR_REORDERING_", reordering, "reordering"),
            ragged_offset=ragged_offset,
            ragged_multiplier=ragged_multiplier,
        )

    def like(self, **changes: Any) -> Tensor:
        """The same tensor with some arguments of the constructor changed."""
        kept = {name: value for name, value in self.values.items() if name not in changes}
        return Tensor(**(kept | changes))

    @property
    def by_value(self) -> bool:
        """Whether it is one number on the host."""
        return bool(self._values.get("by_value"))


_type = data_type
