"""C enums in Python: an int, looked up by name, that accepts values of newer libraries."""

from __future__ import annotations

from collections.abc import Mapping
from enum import EnumType, IntEnum
from typing import Any

__all__ = ["CEnum"]


class _CEnumType(EnumType):
    """Creates thousands of members several times as fast as `EnumType`, which checks each name for special cases.

    Every int in the body of a generated enum is a member; a repeated value is an alias of the same member.
    """

    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], /, **_: Any) -> Any:  # type: ignore[override]
        return {} if _is_generated(bases) else super().__prepare__(name, bases)

    def __new__(metacls, cls: str, bases: tuple[type, ...], body: Any, /, **_: Any) -> Any:
        if not _is_generated(bases):
            return super().__new__(metacls, cls, bases, body)
        values = {n: value for n, value in body.items() if type(value) is int and not n.startswith("__")}
        rest = EnumType.__prepare__(cls, bases)
        for name in body.keys() - values.keys():
            rest[name] = body[name]
        made = super().__new__(metacls, cls, bases, rest)
        _fill(made, values)
        return made


def _is_generated(bases: tuple[type, ...]) -> bool:
    """Whether a class with these bases is a generated enum, not their base."""
    return any(isinstance(base, _CEnumType) for base in bases)


def _fill(cls: Any, values: Mapping[str, int]) -> None:
    """Create the members of a class that has none yet."""
    members, by_value, names = cls._member_map_, cls._value2member_map_, cls._member_names_
    for name, value in values.items():
        member = by_value.get(value)
        if member is None:
            member = by_value[value] = int.__new__(cls, value)
            member._name_, member._value_, member.__objclass__ = name, value, cls
            member._sort_order_ = len(names)
            names.append(name)
        members[name] = member
        type.__setattr__(cls, name, member)


class CEnum(IntEnum, metaclass=_CEnumType):
    """Base of the generated enums.

    `cudnnTensorFormat['CUDNN_TENSOR_NCHW']` looks up by name, `cudnnTensorFormat(0)` by value. A value
    unknown to the header (the library is newer) becomes an unnamed member instead of an error.
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
        """The constant's name for messages: `CUDNN_DATA_FLOAT`, or the number if it has none."""
        member = cls._value2member_map_.get(value)
        return str(value) if member is None else str(member._name_)
