"""Equivalent graphs for a refused one: other strides, padded channels, another type, two parts.

A change makes a new graph of a given one, or gives None where there is nothing to change. Results are unchanged
except for rounding; the caller converts the tensors (copy, cast, pad with zeros).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, TypeAlias

from lamina.c import cudnn as c
from lamina.c.errors import CudnnError
from lamina.cudnn.attention import Softmax
from lamina.cudnn.builder import packed_strides
from lamina.cudnn.convolution import (
    ConvolutionBackwardData,
    ConvolutionBackwardFilter,
    ConvolutionForward,
)
from lamina.cudnn.descriptor import Descriptor, data_type
from lamina.cudnn.matmul import MatmulOperation
from lamina.cudnn.norm import NormBackward, NormForward
from lamina.cudnn.reduction import ReductionOperation
from lamina.cudnn.shape import Concatenate, Reshape
from lamina.cudnn.tensor import Tensor

#: Operations of one graph.
Part: TypeAlias = tuple[Descriptor, ...]
#: The differences, in words, and the graph (or the two that run one after the other).
Rewritten: TypeAlias = tuple[tuple[str, ...], tuple[Part, ...]]

_FLOATS = {name: data_type(name) for name in ("float32", "bfloat16", "float16")}
_DOUBLE = data_type("float64")
#: Types whose values the half types hold, exactly or rounded.
_CASTABLE = {*_FLOATS.values(), _DOUBLE, data_type("int8"), data_type("uint8")}
_FILTERS = {ConvolutionForward: "w", ConvolutionBackwardData: "w", ConvolutionBackwardFilter: "dw"}
_INPUTS = {ConvolutionForward: "x", ConvolutionBackwardData: "dx", ConvolutionBackwardFilter: "x"}
_MULTIPLE = 8  # channels: a row of 16 bytes in half types
_MOST = 3  # changes at once


def rewrites(part: Part) -> Iterator[Rewritten]:
    """Equivalent graphs, those with the fewest changes first. Raises nothing: graphs that cannot be built are left
    out."""
    for count in range(1, _MOST + 1):
        for names, made in _changed(part, count):
            yield names, (made,)
        for names, made in _changed(part, count - 1):
            for name, parts in splits(made):
                yield (*names, name), parts


def _changed(part: Part, count: int) -> Iterator[tuple[tuple[str, ...], Part]]:
    """The graph with every set of `count` changes of different kinds."""
    for chosen in combinations(_CHANGES, count):
        if len({kind for kind, _ in chosen}) < count:
            continue
        names: list[str] = []
        made: Part | None = part
        for _, change in chosen:
            made = None if made is None else _try(change, made, names)
        if made is not None:
            yield tuple(names), made


def _try(change: Change, part: Part, names: list[str]) -> Part | None:
    try:
        found = change(part)
    except (CudnnError, ValueError):
        return None
    if found is None:
        return None
    names.append(found[0])
    return found[1]


Change: TypeAlias = Callable[[Part], tuple[str, Part] | None]


# ------------------------------------------------------------------------------------------------- descriptors


def remake(
    part: Part,
    tensor: Callable[[Tensor], Tensor],
    setting: Callable[[str, Any], Any] = lambda name, value: value,
) -> Part:
    """The same operations on other tensors, with other settings; shared tensors stay shared."""
    made: dict[int, Descriptor] = {}

    def change(name: str, value: Any) -> Any:
        if isinstance(value, Descriptor):
            if id(value) not in made:
                made[id(value)] = tensor(value) if isinstance(value, Tensor) else value.remade(change)
            return made[id(value)]
        if isinstance(value, tuple):
            return tuple(change(name, v) for v in value)
        return setting(name, value)

    return tuple(operation.remade(change) for operation in part)


def operands(operation: Descriptor) -> list[Tensor]:
    """The tensors of an operation."""
    found = []
    for value in operation.values.values():
        found += [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, Tensor)]
    return found


def all_tensors(part: Part) -> list[Tensor]:
    """The tensors of a graph, each once."""
    return list({id(t): t for operation in part for t in operands(operation)}.values())


def main_type(part: Part) -> int:
    """The type of the first tensor that is stored in memory."""
    return next((t.data_type for t in all_tensors(part) if not t.virtual), _FLOATS["float32"])


# ----------------------------------------------------------------------------------------------------- changes


def channels_last(part: Part) -> tuple[str, Part] | None:
    """[N, C, spatial] with dense channels (NHWC), filters likewise."""

    def change(tensor: Tensor) -> Tensor:
        if len(tensor.dimensions) < 4:
            return tensor
        return tensor.like(strides=packed_strides(tensor.dimensions, channels_last=True))

    if all(change(t).strides == t.strides for t in all_tensors(part)):
        return None
    return "channels last (NHWC)", remake(part, change)


def padded(part: Part) -> tuple[str, Part] | None:
    """Channels, or the rows and columns of matrices, padded to a multiple of 8."""
    sizes = _wanted_sizes(part)
    if not sizes:
        return None
    filters, inputs = _of_role(part, _FILTERS), _of_role(part, _INPUTS)

    def change(tensor: Tensor) -> Tensor:
        old = tensor.dimensions
        if len(old) == 3:
            new = tuple(n if axis == 0 else sizes.get(n, n) for axis, n in enumerate(old))
        else:
            sure = (
                tensor in filters or tensor in inputs
            )  # elsewhere a size of 1 is broadcast over the channels
            axes = (0, 1) if tensor in filters else (1,)
            new = tuple(
                sizes.get(n, n) if axis in axes and (n > 1 or sure) else n for axis, n in enumerate(old)
            )
        if new == old:
            return tensor
        last = len(old) > 3 and tensor.strides[1] == 1 and old[1] * max(old[2:]) > 1
        return tensor.like(dimensions=new, strides=_strides(tensor, new, last))

    made = remake(part, change)
    what = ", ".join(f"{old} to {new}" for old, new in sizes.items())
    kind = "channels" if any(len(t.dimensions) > 3 for t in all_tensors(part)) else "matrices"
    return f"{kind} padded from {what}", made


def _strides(tensor: Tensor, sizes: Sequence[int], last: bool) -> tuple[int, ...]:
    """Dense strides in the tensor's order of axes."""
    if len(sizes) > 3:
        return packed_strides(sizes, channels_last=last)
    order = sorted(range(len(sizes)), key=lambda axis: (-tensor.strides[axis], axis))
    strides, step = [0] * len(sizes), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= sizes[axis]
    return tuple(strides)


def _of_role(part: Part, roles: dict[Any, str]) -> list[Tensor]:
    return [operation.values[roles[type(operation)]] for operation in part if type(operation) in roles]


def _wanted_sizes(part: Part) -> dict[int, int]:
    """Size -> the next multiple of 8, for channels and matrix sizes that are no multiple."""
    if any(_mixes_channels(operation) for operation in part):
        return {}
    filters, inputs = _of_role(part, _FILTERS), _of_role(part, _INPUTS)
    if any(x.dimensions[1] != w.dimensions[1] for x, w in zip(inputs, filters, strict=True)):
        return {}  # groups: channels would have to be padded in each of them
    products = [operation for operation in part if isinstance(operation, MatmulOperation)]
    found: set[int] = {n for w in filters for n in w.dimensions[:2]}
    for product in products:
        found |= {n for t in operands(product) for n in t.dimensions[1:] if n > 1}
    if not filters and not products:
        found = {t.dimensions[1] for t in all_tensors(part) if len(t.dimensions) > 3 and t.dimensions[1] > 1}
    return {n: -(-n // _MULTIPLE) * _MULTIPLE for n in sorted(found) if n % _MULTIPLE}


def _mixes_channels(operation: Descriptor) -> bool:
    """Whether a result depends on the number of channels: zeros would change it."""
    if isinstance(operation, NormForward | NormBackward):
        modes = c.cudnnBackendNormMode_t
        return operation.values["mode"] not in (modes.CUDNN_BATCH_NORM, modes.CUDNN_INSTANCE_NORM)
    return isinstance(operation, ReductionOperation | Softmax | Concatenate | Reshape)


def in_type(name: str) -> Change:
    """The stored tensors in another float type; sums stay, or become, float32."""

    def change(part: Part) -> tuple[str, Part] | None:
        old, new = main_type(part), _FLOATS[name]
        if old == new or old not in _CASTABLE:
            return None

        def tensor(one: Tensor) -> Tensor:
            if one.virtual and one.data_type == _DOUBLE:
                return one.like(data_type=_FLOATS["float32"])
            return one.like(data_type=new) if one.data_type == old and not one.virtual else one

        return f"{name} tensors", remake(part, tensor, _compute_float)

    return change


def float_compute(part: Part) -> tuple[str, Part] | None:
    """Arithmetic and virtual tensors in float32."""
    single = _FLOATS["float32"]

    def tensor(one: Tensor) -> Tensor:
        return one.like(data_type=single) if one.virtual and one.data_type != single else one

    found: list[bool] = [tensor(t) is not t for t in all_tensors(part)]

    def setting(name: str, value: Any) -> Any:
        found.append(name == "compute" and value != single)
        return single if name == "compute" else value

    made = remake(part, tensor, setting)
    return ("float32 arithmetic", made) if any(found) else None


def _compute_float(name: str, value: Any) -> Any:
    return _FLOATS["float32"] if name == "compute" and value == _DOUBLE else value


_CHANGES: tuple[tuple[str, Change], ...] = (
    ("strides", channels_last),
    ("sizes", padded),
    ("arithmetic", float_compute),
    *(("type", in_type(name)) for name in ("bfloat16", "float16", "float32")),
)


# ------------------------------------------------------------------------------------------------------- parts


def splits(part: Part) -> Iterator[tuple[str, tuple[Part, Part]]]:
    """The graph in two: the tensors in between are stored in memory, in the graph's type."""
    kind = main_type(part)
    for place in range(1, len(part)):
        head, tail = part[:place], part[place:]
        between = {id(t) for t in all_tensors(head) if t.virtual} & {id(t) for t in all_tensors(tail)}

        def real(tensor: Tensor, crossing: set[int] = between) -> Tensor:
            return tensor.like(virtual=False, data_type=kind) if id(tensor) in crossing else tensor

        try:
            whole = remake(part, real)
        except CudnnError:
            continue
        yield f"split before {type(part[place]).__name__}", (whole[:place], whole[place:])
