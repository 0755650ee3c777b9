"""Mixed precision within a block: networks compute in a half type, parameters, losses and updates stay in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from lamina import ops
from lamina._tree import flatten, unflatten
from lamina.graph.transforms.arguments import HasParameters
from lamina.nn.parameter import Parameter
from lamina.ops.arguments import DTypeLike
from lamina.ops.core import Operand, compute_type, computing_in, recorder
from lamina.runtime import is_array
from lamina.spec import DType, as_dtype, bfloat16, float16, float32, float64, policy
from lamina.spec.precision import Precision, as_precision
from lamina.tensors import as_tensor

_precision: ContextVar[Precision | None] = ContextVar("lamina_autocast", default=None)


@contextmanager
def autocast(
    precision: str | Precision | None = None,
    dtype: DTypeLike | None = None,
    enabled: bool = True,
    cache_enabled: bool | None = None,
    *,
    device_type: str | None = None,
) -> Iterator[None]:
    """Within the block a called network computes in the dtype of `precision`, as in `train_step`.

    Its floating-point inputs and its parameters are cast, except those of norms; its result is float32 again, so that
    losses are computed there. For custom steps under `lamina.jit`, and for eager calls. Gradients are float32, as the
    parameters.

    precision: "bf16", the default, or "tf32"; "fp32" disables an outer block, or a step's precision for a part of its
    network. Or, as torch's first argument, a device type, "cpu" or "cuda": the block applies to all. dtype: torch's
    alternative: bfloat16, or float32. enabled: False is "fp32". device_type, cache_enabled: accepted for torch's
    sake, without effect. Raises ValueError for "fp16", whose gradients need the loss scaling of `train_step`, for
    "fp64", which is the parameters' dtype: net.to("float64"), and for precision and dtype together.
    """
    kind = _asked(precision, dtype) if enabled else as_precision("fp32")
    if kind.scaled or kind.master != float32:
        instead = "train_step(precision='fp16') scales the loss" if kind.scaled else "net.to('float64')"
        raise ValueError(f"autocast: takes bf16, tf32 or fp32, got {kind}: {instead}")
    token = _precision.set(kind)
    try:
        with policy(tf32=kind.tf32):
            yield
    finally:
        _precision.reset(token)


def _asked(precision: str | Precision | None, dtype: DTypeLike | None) -> Precision:
    """The precision of a block. Raises ValueError for unknown names, and for unsupported dtypes."""
    is_device = isinstance(precision, str) and precision.partition(":")[0] in ("cpu", "cuda")
    if dtype is None:
        return as_precision("bf16" if precision is None or is_device else precision)
    if precision is not None and not is_device:
        raise ValueError(
            f"autocast: precision={precision!r} and dtype={dtype} say the same: give one of them"
        )
    named = {bfloat16: "bf16", float16: "fp16", float32: "fp32", float64: "fp64"}
    found = as_dtype(dtype)
    if found not in named:
        raise ValueError(f"autocast: dtype must be bfloat16 or float32, got {found}")
    return as_precision(named[found])


def precision_of(net: HasParameters, asked: str | Precision | None) -> Precision:
    """The requested precision, or by default that of a network's parameters: if all are float64 they stay so.

    Raises ValueError for an unknown name.
    """
    if asked is None:
        held = {p.dtype for _, p in net.named_parameters() if p.dtype.is_float}
        asked = "fp64" if held == {float64} else "fp32"
    return as_precision(asked)


def computed(forward: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """forward(*inputs, **options), in the block's precision, unless a caller already computes in it."""
    kind = _precision.get()
    if (by := recorder()) is not None:
        by.guard(_is_still(kind))
    if kind is None or compute_type() == kind.compute:
        return forward(*inputs, **options)
    args, kwargs = _cast((inputs, options), kind.compute)
    with computing_in(kind.compute):
        return _cast(forward(*args, **kwargs), kind.master)


def in_compute_type(held: Any, value: Any, *, keeps: bool) -> Any:
    """What a module reads for an entry that it holds, in the compute dtype. keeps: its parameters stay in the master
    one.
    """
    kind = compute_type()
    if kind is None or keeps or not isinstance(held, Parameter) or not value.dtype.is_float:
        return value
    return value if value.dtype == kind else ops.cast(value, kind)


def _cast(tree: Any, dtype: DType) -> Any:
    found, structure = flatten(tree)
    return unflatten(structure, [cast_float(x, dtype) for x in found])


def cast_float(x: Any, dtype: DType) -> Any:
    """x in dtype if it is an array of floats, else x."""
    if not isinstance(x, Operand):
        if not is_array(x):
            return x
        x = as_tensor(x)
    return ops.cast(x, dtype) if x.dtype.is_float and x.dtype != dtype else x


@lru_cache(maxsize=16)
def _is_still(kind: Precision | None) -> Callable[[], bool]:
    """Whether the block is unchanged: one function per block, so that a trace keeps it once."""
    return lambda: _precision.get() == kind
