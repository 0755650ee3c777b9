"""Descriptors that declare each attribute once: a line gives its C name, type, default and place in the signature.

    class Scale(Declared):
        kind = cudnnBackendDescriptorType_t.CUDNN_BACKEND_OPERATION_SCALE_DESCRIPTOR
        x: Tensor = operand("XDESC")  # CUDNN_ATTR_OPERATION_SCALE_XDESC
        _: KW_ONLY
        factor: float = setting("FACTOR", "FLOAT", default=1.0)

The constructor, its signature and the table of attributes follow from the lines; type checkers read them as they
read a dataclass's. Attributes of an object read what was set and cannot be assigned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from inspect import Parameter, Signature, get_annotations
from typing import Any, Final, NoReturn, dataclass_transform

from lamina.cudnn.descriptor import Attribute, Descriptor, attribute

_REQUIRED: Final[Any] = Parameter.empty


@dataclass(frozen=True)
class Field:
    """One line: the C name behind the descriptor's own, or all of it, and the default."""

    c_name: str
    elements: str
    default: Any = _REQUIRED
    enum: type[IntEnum] | None = None
    convert: Callable[[Any], Any] | None = None
    name: str = ""

    def attribute(self, prefix: str) -> Attribute:
        """The row of the table of attributes."""
        c_name = self.c_name if self.c_name.startswith("OPERATION_") else prefix + self.c_name
        return attribute(c_name, self.elements, enum=self.enum)

    def converted(self, value: Any) -> Any:
        """The value as it is set."""
        return value if self.convert is None or value is None else self.convert(value)

    def __get__(self, owner: Declared | None, cls: type[Declared]) -> Any:
        return self if owner is None else owner.values.get(self.name)

    def __set__(self, owner: Declared, value: object) -> NoReturn:
        raise AttributeError(f"{type(owner).__name__}.{self.name} cannot change: make another descriptor")


def operand(c_name: str, *, default: Any = _REQUIRED) -> Any:
    """An attribute that is a descriptor, mostly a `Tensor`; one with a default may be left out."""
    return Field(c_name, "BACKEND_DESCRIPTOR", default)


def setting(
    c_name: str,
    elements: str = "INT64",
    *,
    default: Any = _REQUIRED,
    enum: type[IntEnum] | None = None,
    convert: Callable[[Any], Any] | None = None,
) -> Any:
    """An attribute with elements of CUDNN_TYPE_`elements`.

    enum: what its value is converted to when it is read. convert: applied to its value before it is set.
    """
    return Field(c_name, elements, default, enum, convert)


@dataclass_transform(frozen_default=True, field_specifiers=(operand, setting))
class Declared(Descriptor):
    """Base of descriptors of operations whose body declares the attributes; what follows `_: KW_ONLY` is by name."""

    __signature__: Signature

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        prefix = cls.kind.name.removeprefix("CUDNN_BACKEND_").removesuffix("DESCRIPTOR")
        lines, parameters, table = get_annotations(cls), [], {}
        by_name = list(lines)[list(lines).index("_") :] if "_" in lines else []
        for name in (line for line in lines if line != "_"):
            field = replace(cls.__dict__[name], name=name)
            setattr(cls, name, field)
            table[name] = field.attribute(prefix)
            place = Parameter.KEYWORD_ONLY if name in by_name else Parameter.POSITIONAL_OR_KEYWORD
            parameters.append(Parameter(name, place, default=field.default, annotation=lines[name]))
        cls.attributes, cls.__signature__ = table, Signature(parameters)

    def __init__(self, *operands: Any, **settings: Any) -> None:
        try:
            given = self.__signature__.bind(*operands, **settings)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
        given.apply_defaults()
        cls = type(self)
        for name, value in given.arguments.items():
            if value is None and getattr(cls, name).default is _REQUIRED:
                raise TypeError(f"{cls.__name__}: {name} is required, got None")
        super().__init__(**{n: getattr(cls, n).converted(value) for n, value in given.arguments.items()})
