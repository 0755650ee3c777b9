"""C enums in Python: an int, looked up by name, that survives values of newer libraries."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["CEnum"]


class CEnum(IntEnum):
    """Base of the generated enums.

    `cudnnTensorFormat['CUDNN_TENSOR_NCHW']` looks up by name, `cudnnTensorFormat(0)` by value. A value that
    the header did not know (the library is newer) becomes an unnamed member instead of an error.
    """

    @classmethod
    def _missing_(cls, value: object) -> CEnum | None:
        if not isinstance(value, int):
            return None
        member = int.__new__(cls, value)
        member._name_, member._value_ = f"{cls.__name__}_{value}", value
        return member

    @classmethod
    def label(cls, value: int) -> str:
        """The constant's name for messages: `CUDNN_DATA_FLOAT`, or the number where there is none."""
        member = cls._value2member_map_.get(value)
        return str(value) if member is None else str(member._name_)
