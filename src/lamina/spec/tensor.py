"""Spec: shape, dtype and layout of a tensor, without its values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from lamina._cached import cached_property
from lamina.spec import layout as layouts
from lamina.spec.dtype import DType
from lamina.spec.errors import ShapeError
from lamina.spec.layout import Layout
from lamina.spec.shape import LIMIT, Shape, as_shape


@dataclass(frozen=True)
class Spec:
    """Shape, dtype and layout. `layout=None` leaves the layout to the plan that is made for it.

    Prints as f16[8,64,56,56], with the layout's tag where it is not row-major: f32[8,64,56,56]:acdb.
    """

    shape: Shape
    dtype: DType
    layout: Layout | None = None

    def __post_init__(self) -> None:
        shape = self.__dict__["shape"] = as_shape(self.shape)  # thousands of specs are made per program
        self.__dict__["numel"] = prod(shape)
        if not isinstance(self.dtype, DType) or not (self.layout is None or isinstance(self.layout, Layout)):
            raise TypeError(
                f"Spec: needs a DType and a Layout or None, got {self.dtype!r:.60} and {self.layout!r:.60}"
            )
        if self.numel * self.dtype.itemsize > LIMIT:
            raise ShapeError(f"{self.dtype}{list(self.shape)} has more than 2^63 - 1 bytes")
        if self.layout is not None and len(self.layout.strides) != len(self.shape):
            raise ShapeError(f"layout {self.layout} does not fit shape {self.shape}")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # plans are looked up by specs at every eager op
        return hash((self.shape, self.dtype, self.layout))

    def __reduce__(self) -> tuple[type[Spec], tuple[Shape, DType, Layout | None]]:
        return Spec, (self.shape, self.dtype, self.layout)  # cached hashes are valid in one process only

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @cached_property
    def numel(self) -> int:
        """The number of elements, padding not counted."""
        return prod(self.shape)

    @cached_property
    def physical(self) -> Layout:
        """The layout, row-major where it was left open."""
        return self.layout if self.layout is not None else layouts.contiguous(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Bytes in memory, the layout's padding included."""
        return layouts.physical_elements(self.physical, self.shape) * self.dtype.itemsize

    @cached_property
    def tag(self) -> str | None:
        """The layout's tag ("abcd", "acdb", "aBcd16b"), or None if it has gaps."""
        return layouts.tag(self.physical, self.shape)

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether the elements are row-major without gaps."""
        return self.tag == ROW_MAJOR[: self.ndim] or self.numel == 0

    @cached_property
    def open(self) -> Spec:
        """The same shape and dtype with the layout left open."""
        return self if self.layout is None else Spec(self.shape, self.dtype)

    @cached_property
    def overlaps(self) -> bool:
        """Whether several elements may share one address, as in broadcast and sliding views."""
        return self.tag is None and layouts.overlaps(self.physical, self.shape)

    @cached_property
    def fixed(self) -> Spec:
        """The same spec with the layout named, row-major where it was open."""
        return self if self.layout is not None else Spec(self.shape, self.dtype, self.physical)

    def with_tag(self, tag: str) -> Spec:
        """The same shape and dtype in the dense layout that a tag names."""
        return replace(self, layout=layouts.from_tag(tag, self.shape))

    def reshaped(self, shape: Shape) -> tuple[Spec, Spec]:
        """Itself in its present or a required layout, and the view of that memory in another shape with as many
        elements."""
        given, made = layouts.reshaped(self.physical, self.shape, shape)
        return Spec(self.shape, self.dtype, given), Spec(shape, self.dtype, made)

    def same_memory(self, other: Spec) -> bool:
        """Whether both put every element at the same address, so that no copy is needed between them."""
        if self is other:
            return True
        if self.shape != other.shape or self.dtype != other.dtype:
            return False
        return self.numel == 0 or layouts.same_memory(self.physical, other.physical, self.shape)

    def __str__(self) -> str:
        text = f"{self.dtype.short}[{','.join(map(str, self.shape))}]"
        if self.layout is None or self.is_contiguous:
            return text
        return f"{text}:{self.tag or 'strides' + str(self.layout.strides).replace(' ', '')}"

    __repr__ = __str__


ROW_MAJOR = "abcdefghijklmnopqrstuvwxyz"
