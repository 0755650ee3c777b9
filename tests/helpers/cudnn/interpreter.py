"""Interprets a cuDNN graph by NumPy in float64 from its descriptors: formulations can be tested without a GPU.

Operands are in flat memory in their layouts, so that sizes, strides, places and offsets of the graph matter. Tensors
without an address and without a producing operation cannot be read; memory that is never written stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import erf
from typing import Any

import numpy as np

from lamina.backends.cuda.launch.program import Fill, HostNumber, Place
from lamina.backends.cuda.select.formulations import Formulation, Problem
from lamina.cudnn import Graph, Tensor
from lamina.cudnn.attention import AttentionForward
from lamina.cudnn.convolution import ConvolutionBackwardData, ConvolutionBackwardFilter, ConvolutionForward
from lamina.cudnn.descriptor import Descriptor, data_type
from lamina.cudnn.matmul import MatmulOperation
from lamina.cudnn.pointwise import PointwiseOperation
from lamina.cudnn.reduction import ReductionOperation
from lamina.cudnn.shape import Reshape
from lamina.spec import Spec

Array = np.ndarray[Any, Any]
_erf = np.vectorize(erf, otypes=[np.float64])


class NotInterpretedError(Exception):
    """An operation that is not implemented here yet, or kernels outside of the graph."""


# ------------------------------------------------------------------------------------------------------------ memory


class Memory:
    """Inputs and outputs of a call, each flat, in the layout of its spec."""

    def __init__(self, problem: Problem, arrays: Sequence[Array]) -> None:
        self.workspace: dict[int, Array] = {}
        self.zeros: set[int] = set()
        self.specs = {"input": problem.inputs, "output": problem.outputs}
        self.flat = {kind: [_room(spec) for spec in specs] for kind, specs in self.specs.items()}
        for spec, flat, values in zip(problem.inputs, self.flat["input"], arrays, strict=True):
            _seen(flat, 0, spec.shape, spec.physical.strides)[...] = values

    def at(self, place: Place | HostNumber, tensor: Tensor) -> Array:
        """The memory behind a tensor of the graph."""
        if isinstance(place, HostNumber):
            return place.values[:1].astype(np.float64).reshape(tensor.dimensions)
        if place.kind == "workspace":
            empty = np.full(tensor.dimensions, 0.0 if place.offset in self.zeros else np.nan)
            return self.workspace.setdefault(place.offset, empty)
        flat, spec = self.flat[place.kind][place.index], self.specs[place.kind][place.index]
        start, rest = divmod(place.offset, spec.dtype.itemsize)
        assert rest == 0, f"{place} lies within an element"
        assert tensor.data_type == data_type(spec.dtype.name), f"{tensor} where {spec} lies"
        return _seen(flat, start, tensor.dimensions, tensor.strides)

    def outputs(self) -> list[Array]:
        """The results, in the order of their axes."""
        pairs = zip(self.specs["output"], self.flat["output"], strict=True)
        return [_seen(flat, 0, spec.shape, spec.physical.strides) for spec, flat in pairs]


def _room(spec: Spec) -> Array:
    return np.full(_extent(spec.shape, spec.physical.strides), np.nan)


def _extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _seen(flat: Array, start: int, shape: Sequence[int], strides: Sequence[int]) -> Array:
    """A view; an error if it exceeds the memory."""
    end = start + _extent(shape, strides)
    assert end <= flat.size, f"elements {start} to {end} of {flat.size}"
    steps = [s * flat.itemsize for s in strides]
    return np.lib.stride_tricks.as_strided(flat[start:], shape, steps)


# ------------------------------------------------------------------------------------------------------- operations


def interpret(formulation: Formulation, problem: Problem, arrays: Sequence[Array]) -> list[Array]:
    """The outputs of a formulation that consists only of a graph. Raises NotInterpretedError for others."""
    kernels = (
        *formulation.after,
        *formulation.steps,
        *(k for k in formulation.before if not isinstance(k, Fill)),
    )
    if formulation.graph is None or kernels:
        raise NotInterpretedError("kernels")
    graph, places = formulation.graph()
    memory = Memory(problem, arrays)
    for fill in formulation.before:
        assert isinstance(fill, Fill)
        assert fill.place.kind == "workspace"
        memory.zeros |= {fill.place.offset} if fill.byte == 0 else set()
    run_graph(graph, places, memory)
    return memory.outputs()


def run_graph(graph: Graph, places: Mapping[int, Place | HostNumber], memory: Memory) -> None:
    """Run the operations in their order; tensors with a place are read from memory and written there."""
    values: dict[int, Array] = {}

    def read(tensor: Tensor | None) -> Any:
        if tensor is None:
            return None
        known = values.get(tensor.uid)
        return memory.at(places[tensor.uid], tensor).copy() if known is None else known

    for operation in graph.operations:
        if type(operation) not in _MEANING:
            raise NotInterpretedError(type(operation).__name__)
        result, value = _MEANING[type(operation)](operation._values, read)
        assert np.shape(value) == tuple(result.dimensions), f"{operation}: {np.shape(value)}"
        values[result.uid] = value
        assert result.virtual == (result.uid not in places), f"{result} has an address or is virtual"
        if result.virtual and type(operation) in _SUMS:
            assert result.data_type in _WIDE, f"{result} holds sums on their way"
        if not result.virtual:
            memory.at(places[result.uid], result)[...] = value


_SUMS = (ConvolutionForward, ConvolutionBackwardData, ConvolutionBackwardFilter, MatmulOperation)
_WIDE = [data_type(name) for name in ("float32", "float64", "int32")]
Read = Callable[[Any], Any]
Parts = Mapping[str, Any]


def _scaled(given: Parts, value: Array) -> Array:
    assert given["beta"] == 0
    return float(given["alpha"]) * value


def _taps(given: Parts, x: Sequence[int], w: Sequence[int], y: Sequence[int]) -> Any:
    """For each tap of the filter its index, and the positions of its elements in the padded input."""
    window = given["convolution"]._values
    stride, dilation, pre, post = (window[k] for k in ("stride", "dilation", "pre", "post"))
    flip = window["mode"].name == "CUDNN_CONVOLUTION"
    around = [(0, 0), (0, 0), *zip(pre, post, strict=True)]
    for tap in product(*map(range, w[2:])):
        first = [(n - 1 - t if flip else t) * d for t, n, d in zip(tap, w[2:], dilation, strict=True)]
        ends = [f + s * (n - 1) + 1 for f, s, n in zip(first, stride, y[2:], strict=True)]
        padded = [n + lo + hi for n, lo, hi in zip(x[2:], pre, post, strict=True)]
        assert all(e <= n for e, n in zip(ends, padded, strict=True)), "a window leaves the padded input"
        cut = tuple(slice(f, e, s) for f, e, s in zip(first, ends, stride, strict=True))
        yield (slice(None), slice(None), *tap), (slice(None), slice(None), *cut), around


def _grouped(a: Array, groups: int, axis: int) -> Array:
    return a.reshape(*a.shape[:axis], groups, -1, *a.shape[axis + 1 :])


def _conv(given: Parts, read: Read) -> tuple[Tensor, Array]:
    x, w, y = read(given["x"]), read(given["w"]), given["y"]
    groups, total = x.shape[1] // w.shape[1], np.zeros(y.dimensions)
    for tap, cut, around in _taps(given, x.shape, w.shape, y.dimensions):
        seen = _grouped(np.pad(x, around)[cut], groups, 1)
        total += np.einsum("ngc...,goc->ngo...", seen, _grouped(w[tap], groups, 0)).reshape(total.shape)
    return y, _scaled(given, total)


def _conv_data(given: Parts, read: Read) -> tuple[Tensor, Array]:
    dy, w, dx = read(given["dy"]), read(given["w"]), given["dx"]
    groups, padded = dx.dimensions[1] // w.shape[1], None
    for tap, cut, around in _taps(given, dx.dimensions, w.shape, dy.shape):
        padded = (
            np.zeros([n + lo + hi for n, (lo, hi) in zip(dx.dimensions, around, strict=True)])
            if padded is None
            else padded
        )
        part = np.einsum("ngo...,goc->ngc...", _grouped(dy, groups, 1), _grouped(w[tap], groups, 0))
        padded[cut] += part.reshape(padded[cut].shape)
    assert padded is not None
    inner = tuple(slice(lo, lo + n) for n, (lo, _) in zip(dx.dimensions, around, strict=True))
    return dx, _scaled(given, padded[inner])


def _conv_filter(given: Parts, read: Read) -> tuple[Tensor, Array]:
    x, dy, dw = read(given["x"]), read(given["dy"]), given["dw"]
    groups, total = x.shape[1] // dw.dimensions[1], np.zeros(dw.dimensions)
    for tap, cut, around in _taps(given, x.shape, dw.dimensions, dy.shape):
        seen, slopes = _grouped(np.pad(x, around)[cut], groups, 1), _grouped(dy, groups, 1)
        total[tap] = np.einsum("ngcp,ngop->goc", _planed(seen), _planed(slopes)).reshape(total[tap].shape)
    return dw, _scaled(given, total)


def _planed(a: Array) -> Array:
    return a.reshape(*a.shape[:3], -1)


def _matmul(given: Parts, read: Read) -> tuple[Tensor, Array]:
    if any(given.get(name) is not None for name in ("m", "n", "k")):
        raise NotInterpretedError("products of varying sizes")
    return given["c"], np.matmul(read(given["a"]), read(given["b"]))


def _reduce(given: Parts, read: Read) -> tuple[Tensor, Array]:
    x, y = read(given["x"]), given["y"]
    axes = tuple(a for a, (n, m) in enumerate(zip(x.shape, y.dimensions, strict=True)) if m == 1 and n != 1)
    name = given["reduction"]._values["operator"].name.removeprefix("CUDNN_REDUCE_TENSOR_")
    return y, {"ADD": np.sum, "MAX": np.max, "MIN": np.min, "AVG": np.mean}[name](x, axis=axes, keepdims=True)


def _attention(given: Parts, read: Read) -> tuple[Tensor, Array]:
    if any(
        given.get(name) is not None
        for name in ("stats", "block_mask", "page_table_k", "length_q", "length_kv")
    ):
        raise NotInterpretedError("attention with masks or statistics")
    scores = np.matmul(read(given["q"]), read(given["k"]).swapaxes(-1, -2)) * read(given["scale"])
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return given["o"], np.matmul(weights / weights.sum(-1, keepdims=True), read(given["v"]))


def _reshape(given: Parts, read: Read) -> tuple[Tensor, Array]:
    """The same memory with other sizes and strides."""
    x, y = given["x"], given["y"]
    flat = np.full(_extent(x.dimensions, x.strides), np.nan)
    _seen(flat, 0, x.dimensions, x.strides)[...] = read(x)
    return y, _seen(flat, 0, y.dimensions, y.strides).copy()


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _relu(x: Array, p: Parts) -> Array:
    lower, upper, slope = (p.get(k) for k in ("relu_lower", "relu_upper", "relu_slope"))
    low = 0.0 if lower is None else lower
    kept = np.where(x > low, x, low + (slope or 0.0) * (x - low))
    return kept if upper is None else np.minimum(kept, upper)


def _gelu(x: Array) -> Array:
    return x * (1 + _erf(x / np.sqrt(2))) / 2


def _gelu_slope(x: Array) -> Array:
    return (1 + _erf(x / np.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def _tanh_of(x: Array) -> Array:
    return np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))


def _tanh_slope(x: Array) -> Array:
    t = _tanh_of(x)
    return (1 + t) / 2 + x / 2 * (1 - t * t) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x * x)


def _swish_slope(x: Array) -> Array:
    return _sigmoid(x) * (1 + x * _sigmoid(-x))


_ONE: dict[str, Callable[[Array, Parts], Array]] = {
    "RELU_FWD": _relu, "SIGMOID_FWD": lambda x, p: _sigmoid(x), "TANH_FWD": lambda x, p: np.tanh(x),
    "SOFTPLUS_FWD": lambda x, p: np.logaddexp(0, x), "GELU_FWD": lambda x, p: _gelu(x),
    "GELU_APPROX_TANH_FWD": lambda x, p: x * (1 + _tanh_of(x)) / 2, "SWISH_FWD": lambda x, p: x * _sigmoid(x),
    "ELU_FWD": lambda x, p: np.where(x > 0, x, p["elu_alpha"] * np.expm1(np.minimum(x, 0))),
    "NEG": lambda x, p: -x, "ABS": lambda x, p: np.abs(x), "IDENTITY": lambda x, p: x, "EXP": lambda x, p: np.exp(x),
    "LOG": lambda x, p: np.log(x), "SQRT": lambda x, p: np.sqrt(x), "RSQRT": lambda x, p: 1 / np.sqrt(x),
}  # fmt: skip
_TWO: dict[str, Callable[[Array, Array], Array]] = {
    "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "DIV": np.divide, "MIN": np.minimum, "MAX": np.maximum,
    "CMP_GE": lambda a, b: 1.0 * (a >= b), "CMP_GT": lambda a, b: 1.0 * (a > b),
}  # fmt: skip
#: The slope if the forward operand is x.
_SLOPES: dict[str, Callable[[Array], Array]] = {
    "RELU_BWD": lambda x: x > 0, "GELU_BWD": _gelu_slope, "GELU_APPROX_TANH_BWD": _tanh_slope,
    "SWISH_BWD": _swish_slope,
}  # fmt: skip


def _pointwise(given: Parts, read: Read) -> tuple[Tensor, Array]:
    parameters = given["pointwise"]._values
    name = parameters["mode"].name.removeprefix("CUDNN_POINTWISE_")
    x = read(given["x"]) * (1.0 if given.get("alpha1") is None else float(given["alpha1"]))
    if name in _SLOPES:
        return given["dx"], read(given["dy"]) * _SLOPES[name](x)
    if name in _ONE:
        return given["y"], _ONE[name](x, parameters)
    if name == "GEN_INDEX":
        axis = parameters["axis"]
        return given["y"], x * 0 + np.arange(x.shape[axis]).reshape(
            [-1 if a == axis else 1 for a in range(x.ndim)]
        )
    if name == "BINARY_SELECT":
        return given["y"], np.where(read(given["t"]) != 0, x, read(given["b"]))
    if name not in _TWO:
        raise NotInterpretedError(name)
    return given["y"], _TWO[name](
        x, read(given["b"]) * (1.0 if given.get("alpha2") is None else float(given["alpha2"]))
    )


_MEANING: dict[type[Descriptor], Callable[[Parts, Read], tuple[Tensor, Array]]] = {
    ConvolutionForward: _conv,
    ConvolutionBackwardData: _conv_data,
    ConvolutionBackwardFilter: _conv_filter,
    MatmulOperation: _matmul,
    ReductionOperation: _reduce,
    PointwiseOperation: _pointwise,
    Reshape: _reshape,
    AttentionForward: _attention,
}
