"""Memory descriptors (shape, data type, layout) and memory objects (a descriptor over an address)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lamina._cached import cached_property
from lamina.c import dnnl
from lamina.onednn.engine import Engine, default_engine
from lamina.onednn.owned import Owned

Query = dnnl.dnnl_query_t
Kind = dnnl.dnnl_format_kind_t
Blocks = tuple[tuple[int, int], ...]

#: Data types by the names that oneDNN's logs use.
DATA_TYPES = {
    name: dnnl.dnnl_data_type_t[f"dnnl_{name}"]
    for name in ("f16", "bf16", "f32", "f64", "s32", "s8", "u8", "boolean")
}
_TYPE_NAMES = {int(value): name for name, value in DATA_TYPES.items()}


class MemoryDesc(Owned):
    """Shape, data type and layout of a tensor.

    MemoryDesc(dims, "f32")                        row-major
    MemoryDesc(dims, "f32", strides=(…))           strides in elements, one per axis
    MemoryDesc(dims, "f32", tag="aBcd16b")         a format tag, in letters (axis a, b, c…; capital: blocked)
    MemoryDesc(dims, "f32", tag="any")             left to the primitive
    MemoryDesc()                                   the empty descriptor: an operand that is not there

    Raises:
        ValueError: unknown data type or tag. DnnlError: the library refuses the combination.
    """

    def __init__(
        self,
        dims: Sequence[int] = (),
        data_type: str = "f32",
        *,
        strides: Sequence[int] | None = None,
        tag: str | None = None,
    ) -> None:
        dims = tuple(dims)
        super().__init__(_create(dims, data_type, strides, tag), dnnl.dnnl_memory_desc_destroy)
        if dims:  # values known already need not be queried
            self.ndim, self.dims, self.data_type = len(dims), dims, data_type
            self.format_kind = Kind.dnnl_format_kind_any if tag == "any" else Kind.dnnl_blocked
            if tag is None:
                self.blocks, self.strides = (), tuple(_row_major(dims) if strides is None else strides)

    @classmethod
    def copy_of(cls, handle: int, like: MemoryDesc | None = None) -> MemoryDesc:
        """A copy of the descriptor at `handle` (which belongs to a primitive descriptor).

        like: one of the same sizes and data type, so that they need not be queried.
        """
        made = cls.__new__(cls)
        Owned.__init__(made, dnnl.dnnl_memory_desc_clone(handle), dnnl.dnnl_memory_desc_destroy)
        if like is not None:
            made.ndim, made.dims, made.data_type = like.ndim, like.dims, like.data_type
        return made

    def _get(self, what: Query) -> Any:
        return dnnl.dnnl_memory_desc_query(self.handle, what)

    @cached_property
    def ndim(self) -> int:
        """The number of axes; 0 for the empty descriptor."""
        return int(self._get(Query.dnnl_query_ndims_s32))

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Sizes, one per axis."""
        return self._numbers(Query.dnnl_query_dims)

    @cached_property
    def padded_dims(self) -> tuple[int, ...]:
        """Sizes, with the padding that the last block of an axis holds."""
        return self._numbers(Query.dnnl_query_padded_dims)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next along each axis, or from block to block where it is blocked."""
        return self._numbers(Query.dnnl_query_strides) if self.is_strided else ()

    @cached_property
    def blocks(self) -> Blocks:
        """Inner blocks (axis, size), from outer to inner; () for plain layouts."""
        if not self.is_strided or not self._get(Query.dnnl_query_inner_nblks_s32):
            return ()
        sizes, axes = self._get(Query.dnnl_query_inner_blks), self._get(Query.dnnl_query_inner_idxs)
        return tuple(zip(axes, sizes, strict=True))

    def _numbers(self, what: Query) -> tuple[int, ...]:
        return tuple(self._get(what)) if self.ndim else ()

    @cached_property
    def data_type(self) -> str:
        """The element type: "f32", "bf16", …; "undef" for the empty descriptor."""
        return _TYPE_NAMES.get(int(self._get(Query.dnnl_query_data_type)), "undef")

    @cached_property
    def format_kind(self) -> Kind:
        """Whether the layout is given by strides and blocks, left open ("any"), opaque or undefined."""
        return Kind(self._get(Query.dnnl_query_format_kind))

    @property
    def is_strided(self) -> bool:
        """Whether strides and blocks describe the layout completely."""
        return self.format_kind == Kind.dnnl_blocked

    @property
    def is_any(self) -> bool:
        """Whether the layout is left to the primitive."""
        return self.format_kind == Kind.dnnl_format_kind_any

    @cached_property
    def nbytes(self) -> int:
        """Bytes that a memory of this descriptor takes, padding included."""
        return dnnl.dnnl_memory_desc_get_size(self.handle)

    @cached_property
    def tag(self) -> str:
        """The layout in letters, outermost axis first: "acdb", "aBcd16b"; "any", or "" where it has none."""
        if not self.is_strided:
            return "any" if self.is_any else ""
        blocked = {axis for axis, _ in self.blocks}
        order = sorted(range(self.ndim), key=lambda axis: (-self.strides[axis], axis))
        letters = "".join(chr(ord("A" if axis in blocked else "a") + axis) for axis in order)
        return letters + "".join(f"{size}{chr(ord('a') + axis)}" for axis, size in self.blocks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MemoryDesc):
            return NotImplemented
        return bool(dnnl.dnnl_memory_desc_equal(self.handle, other.handle))

    def __hash__(self) -> int:
        return hash((self.dims, self.data_type))

    def _describe(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return f"{self.data_type}[{','.join(map(str, self.dims))}]:{self.tag}" if self.ndim else "none"


def _create(dims: tuple[int, ...], data_type: str, strides: Sequence[int] | None, tag: str | None) -> int:
    if data_type not in DATA_TYPES:
        raise ValueError(f"MemoryDesc: unknown data type {data_type!r}; known: {', '.join(DATA_TYPES)}")
    kind = DATA_TYPES[data_type]
    if tag is None:
        steps = _row_major(dims) if strides is None else tuple(strides)
        if len(steps) != len(dims):
            raise ValueError(f"MemoryDesc: {len(steps)} strides {steps} for {len(dims)} axes {dims}")
        return dnnl.dnnl_memory_desc_create_with_strides(len(dims), dims, kind, steps)
    name = "dnnl_format_tag_any" if tag == "any" else f"dnnl_{tag}"
    if name not in dnnl.dnnl_format_tag_t.__members__:
        raise ValueError(f"MemoryDesc: oneDNN has no format tag {tag!r}")
    return dnnl.dnnl_memory_desc_create_with_tag(len(dims), dims, kind, dnnl.dnnl_format_tag_t[name])


def _row_major(dims: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(dims):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Memory(Owned):
    """A descriptor over memory at an address: dnnl_memory_create.

    Args:
        desc: shape, data type and layout; not "any".
        pointer: the address of the first byte; the caller keeps the memory alive.
        engine: the engine that reads and writes it.
        keep: kept alive as long as this object (the owner of the memory).
    """

    __slots__ = ("desc", "keep")

    def __init__(
        self, desc: MemoryDesc, pointer: int, engine: Engine | None = None, keep: object = None
    ) -> None:
        engine = engine or default_engine()
        handle = dnnl.dnnl_memory_create(desc.handle, engine.handle, pointer)
        super().__init__(handle, dnnl.dnnl_memory_destroy, engine.owner, keep)
        self.desc = desc

    @property
    def pointer(self) -> int:
        """The address."""
        return int(dnnl.dnnl_memory_get_data_handle(self.handle) or 0)

    @pointer.setter
    def pointer(self, address: int) -> None:
        dnnl.dnnl_memory_set_data_handle(self.handle, address)

    def _describe(self) -> str:
        return f"{self.desc} at {self.pointer:#x}"
