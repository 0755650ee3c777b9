"""Support code for oneDNN's generated module: library search, typed queries, blobs."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from typing import Any, Final

from lamina.c._library import Library, Version, shared_object, wheel_file
from lamina.c.errors import DnnlError, dnnl_class

__all__ = ["Dnnl"]

_PATTERN = r"libdnnl\.(so|\d*\.?dylib)(\.\d+)*|dnnl\.dll"

# kind of result (usually the suffix of the query's name) -> the C type that it writes
_SCALARS: Final[Mapping[str, Any]] = {
    "s32": c_int,
    "s64": c_int64,
    "f32": c_float,
    "f64": c_double,
    "I": c_uint,
    "md": c_size_t,
    "pd": c_size_t,
    "handle": c_size_t,
}
#: The opaque pointers among them, with their classes.
_OPAQUE: Final[Mapping[str, str]] = {"md": "dnnl_memory_desc_t", "pd": "dnnl_primitive_desc_t"}
_NDIMS, _PADDED = 256, 12  # dnnl_query_ndims_s32; entries of a dnnl_dims_t
_INNER_NBLKS, _BLOB_SIZE = 263, 12  # dnnl_query_inner_nblks_s32, dnnl_query_cache_blob_id_size_s64
_DST, _DIFF_DST, _SRC = 133, 134, 129  # dnnl_query_{dst,diff_dst,src}_md


def _wheel() -> str | None:
    return wheel_file("onednn-cpu-gomp", r"libdnnl\.so\.\d+")


class Dnnl(Library):
    """libdnnl: an already loaded one, else `LAMINA_DNNL`, the wheel, the platform's."""

    def __init__(self, *, query_types: Mapping[int, str], **tables: Any) -> None:
        super().__init__(
            "oneDNN",
            environment="LAMINA_DNNL",
            pattern=_PATTERN,
            names=shared_object("dnnl", 3),
            finders={"onednn-cpu-gomp wheel": _wheel},
            supported=((3, 0, 0), (4, 0, 0)),
            **tables,
        )
        self._query_types = query_types

    def read_version(self, library: ctypes.CDLL) -> Version:
        """From the structure that `dnnl_version` returns."""
        function = library["dnnl_version"]
        function.restype, function.argtypes = POINTER(c_int * 3), []
        major, minor, patch = function().contents
        return major, minor, patch

    def exception(self, status: int, function: str, arguments: str, hints: Iterable[str]) -> DnnlError:
        """The class of this status."""
        return dnnl_class(status)(status, function, "; ".join(hints), arguments)

    # -- queries ------------------------------------------------------------------------------------------

    def query_memory_desc(self, call: Any, what: int) -> Any:
        """The typed result of a memory descriptor query; `call(slot)` runs it into a ctypes slot."""

        def rank() -> int:
            return _number(call, _NDIMS)

        return self._query(call, what, rank, rank)

    def query_primitive_desc(self, call: Any, what: int, descriptor: int) -> Any:
        """The typed result of a primitive descriptor query."""

        def rank() -> int:
            for kind in (_DST, _DIFF_DST, _SRC):
                desc = self.symbols.dnnl_primitive_desc_query_md(descriptor, kind, 0)
                ndims = c_int()
                if desc:
                    self.symbols.dnnl_memory_desc_query(desc, _NDIMS, byref(ndims))
                if ndims.value:
                    return ndims.value
            return _PADDED + 2

        return self._query(call, what, rank, lambda: rank() - 2)

    def _query(self, call: Any, what: int, rank: Any, spatial: Any) -> Any:
        kind = self._query_types.get(what)
        if kind is None:
            raise ValueError(f"query {what} has no result that can be returned; see dnnl_query_t")
        if kind in _SCALARS:
            slot = _SCALARS[kind]()
            call(what, slot)
            return self._enums[_OPAQUE[kind]](slot.value) if kind in _OPAQUE else slot.value
        if kind.endswith("_t"):
            slot = c_int()
            call(what, slot)
            return self._enums[kind](slot.value)
        if kind == "str":
            text = c_char_p()
            call(what, text)
            return (text.value or b"").decode()
        if kind == "blob":
            return self._blob(call, what)
        if kind == "factors":
            return _values(call, what, c_float, spatial())
        length = {"dims": rank, "spatial": spatial}.get(kind, lambda: _number(call, _INNER_NBLKS))()
        return _values(call, what, c_int64, length)

    def _blob(self, call: Any, what: int) -> bytes:
        size, address = c_int64(), c_void_p()
        call(_BLOB_SIZE, size)
        call(what, address)
        return ctypes.string_at(address.value, size.value) if address.value else b""


def _number(call: Any, what: int) -> int:
    slot = c_int()
    call(what, slot)
    return slot.value


def _values(call: Any, what: int, element: Any, length: int) -> list[Any]:
    """`length` values at the address that the query writes."""
    address = c_void_p()
    call(what, address)
    if not address.value:
        return []
    return list((element * length).from_address(address.value))
