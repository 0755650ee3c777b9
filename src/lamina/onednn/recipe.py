"""Primitive descriptors as plain data: their recipes as JSON values, and back.

Data that is read is untrusted: names, ranks and sizes are checked before the library sees them, and what it refuses
raises DnnlError. Layouts without a name (opaque ones, odd blocks) cannot be encoded.
"""

from __future__ import annotations

from math import prod
from typing import Any

from lamina.onednn.attributes import Attributes, Binary, Eltwise, PostOp, Sum
from lamina.onednn.memory import MemoryDesc
from lamina.onednn.primitive import PrimitiveDesc, Recipe
from lamina.onednn.primitives import remade

#: Settings with one number for each spatial axis.
_SPATIAL = ("strides", "dilates", "dilation", "padding_l", "padding_r", "kernel")
_MOST_AXES, _MOST_ELEMENTS, _MOST_SOURCES = 12, 1 << 40, 4096
_ENGINES = (["engine"], ["src_engine", "dst_engine"])


class RecipeError(ValueError):
    """A descriptor that cannot be encoded, or data that is no descriptor."""


def encode(made: PrimitiveDesc) -> list[Any]:
    """A descriptor as JSON values. Raises RecipeError."""
    r = made.recipe
    settings = {k: list(v) if isinstance(v, list | tuple) else _number(v) for k, v in r.settings.items()}
    return [
        r.title,
        {name: encode_desc(desc) for name, desc in r.operands.items()},
        [
            [_encode_step(p) for p in r.attributes.post_ops],
            list(r.attributes.scales.items()),
            r.attributes.fpmath,
        ],
        r.details,
        list(r.engines),
        None if r.hint is None else encode(r.hint),
        None if r.sources is None else [encode_desc(s) for s in r.sources],
        settings,
    ]


def decode(data: Any) -> PrimitiveDesc:
    """The descriptor of JSON values. Raises RecipeError, and DnnlError where the library refuses it."""
    title, operands, attributes, details, engines, hint, sources, settings = data
    _require(isinstance(title, str) and isinstance(details, str) and engines in _ENGINES, data)
    descs = {str(name): decode_desc(desc) for name, desc in operands.items()}
    given = None if sources is None else [d for s in sources if (d := decode_desc(s)) is not None]
    _require(given is None or len(given) == len(sources) <= _MOST_SOURCES, data)
    # Grouped weights have one axis more than the tensors that they apply to.
    rank = max((d.ndim for name, d in descs.items() if d is not None and "weights" not in name), default=0)
    recipe = Recipe(
        title,
        descs,
        _attributes(attributes),
        details,
        tuple(engines),
        None if hint is None else decode(hint),
        given,
        {str(k): _setting(k, v, rank, given) for k, v in settings.items()},
    )
    try:
        return remade(recipe)
    except (AttributeError, TypeError) as error:
        raise RecipeError(f"oneDNN has no primitive {title!r} with these arguments: {error}") from None


def encode_desc(desc: MemoryDesc | None) -> Any:
    """A memory descriptor as JSON values: type, sizes, and strides or a tag. Raises RecipeError."""
    if desc is None:
        return None
    if not desc.ndim:
        return []
    dims, kind = list(desc.dims), desc.data_type
    if desc.is_strided and not desc.blocks:
        return [kind, dims, list(desc.strides)]
    try:
        if desc.is_any or MemoryDesc(dims, kind, tag=desc.tag) == desc:
            return [kind, dims, desc.tag]
    except ValueError:
        pass
    raise RecipeError(f"oneDNN's layout {desc} has no name")


def decode_desc(data: Any) -> MemoryDesc | None:
    """The descriptor of JSON values. Raises RecipeError."""
    if data is None:
        return None
    if data == []:
        return MemoryDesc()
    kind, dims, layout = data
    _require(isinstance(dims, list) and 0 < len(dims) <= _MOST_AXES and isinstance(kind, str), data)
    _require(
        all(type(n) is int and n >= 0 for n in dims) and prod(max(n, 1) for n in dims) < _MOST_ELEMENTS, data
    )
    if isinstance(layout, str):
        return MemoryDesc(dims, kind, tag=layout)
    _require(isinstance(layout, list) and len(layout) == len(dims), data)
    _require(all(type(n) is int and 0 <= n < _MOST_ELEMENTS for n in layout), data)
    _require(sum((n - 1) * s for n, s in zip(dims, layout, strict=True)) < _MOST_ELEMENTS, data)
    return MemoryDesc(dims, kind, strides=layout)


def _encode_step(step: PostOp) -> list[Any]:
    if isinstance(step, Eltwise):
        return ["eltwise", step.function, float(step.alpha), float(step.beta)]
    if isinstance(step, Binary):
        return ["binary", step.function, encode_desc(step.desc)]
    return ["sum", float(step.scale)]


def _attributes(data: Any) -> Attributes:
    steps, scales, fpmath = data
    return Attributes(
        [_step(*s) for s in steps], scales={_integer(a): _integer(m) for a, m in scales}, fpmath=str(fpmath)
    )


def _step(kind: Any, *values: Any) -> PostOp:
    if kind == "eltwise":
        function, alpha, beta = values
        return Eltwise(str(function), float(alpha), float(beta))
    if kind == "binary":
        function, data = values
        desc = decode_desc(data)
        _require(desc is not None and desc.ndim > 0, values)
        assert desc is not None
        return Binary(str(function), desc)
    _require(kind == "sum", kind)
    return Sum(float(values[0]))


def _setting(name: Any, value: Any, rank: int, sources: Any) -> Any:
    """A number, or as many numbers as there are spatial axes, or sources."""
    if isinstance(value, list):
        count = (
            rank - 2 if name in _SPATIAL else len(sources) if name == "scales" and sources is not None else -1
        )
        _require(len(value) == count, {name: value})
        return [_number(v) for v in value]
    _require(name not in _SPATIAL and name != "scales", {name: value})
    return _number(value)


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecipeError(f"not a number: {value!r}")
    return float(value) if isinstance(value, float) else int(value)


def _integer(value: Any) -> int:
    _require(type(value) is int and abs(value) < 1 << 31, value)
    return int(value)


def _require(condition: Any, what: Any) -> None:
    if not condition:
        raise RecipeError(f"not a description of a primitive: {str(what)[:200]}")
