"""Mode switches of a graph, and functions of subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from lamina import ops
from lamina.convert.torch.node import TorchCall, aliases, converts, dtype_of, is_operand, known, read
from lamina.ops.core import bind
from lamina.ops.primitives.marker import CustomGradient
from lamina.spec import DType


@converts("_set_grad_enabled", "set_grad_enabled")
def set_grad_enabled(call: TorchCall) -> Any:
    """Enable or disable gradients from here on."""
    call.modes.with_gradient = bool(next(iter(call.cells.values())))


@converts("_enter_autocast")
def enter_autocast(call: TorchCall) -> Any:
    """Enter a region of autocast."""
    kind, dtype, enabled, *_ = call.cells.values()
    call.modes.autocast.enter(_half(kind, dtype, enabled))


@converts("_exit_autocast")
def exit_autocast(call: TorchCall) -> Any:
    """Leave it."""
    call.modes.autocast.exit()


@converts("wrap_with_set_grad_enabled")
@aliases
def with_grad(call: TorchCall) -> Any:
    """A subgraph with gradients, or without."""
    enabled, body, *args = call.cells.values()
    return call.run(body, args, with_gradient=bool(enabled))


@converts("wrap_with_autocast")
@aliases
def with_autocast(call: TorchCall) -> Any:
    """A subgraph in a region of autocast."""
    kind, dtype, enabled, _, body, *args = call.cells.values()
    call.modes.autocast.enter(_half(kind, dtype, enabled))
    try:
        return call.run(body, args)
    finally:
        call.modes.autocast.exit()


def _half(kind: Any, dtype: Any, enabled: Any) -> DType | None:
    """The type in which a region computes, by default that of its device type; None if it is disabled."""
    return dtype_of(dtype or torch.get_autocast_dtype(str(kind))) if enabled else None


@converts("wrap", "tag_activation_checkpoint", "invoke_subgraph", "wrap_activation_checkpoint", "hints_wrapper",
          "checkpoint", "wrap_with_hints")  # fmt: skip
@aliases
def wrapped(call: TorchCall) -> Any:
    """A subgraph, inlined: what is saved for the gradient is decided by the plan."""
    body, *args = (v for k, v in call.cells.items() if k.isdigit() and not isinstance(v, str))
    return call.run(body, args)


@converts("cond")
@aliases
def branch(call: TorchCall) -> Any:
    """One of two subgraphs; both, selected by the condition, if it is known only at run time."""
    _, yes, no, args = call.cells.values()
    truth = call["0"]
    value = truth if isinstance(truth, bool) else known(truth)
    if value is not None:
        return call.run(yes if value else no, args)
    pairs = zip(call.run(yes, args), call.run(no, args), strict=True)
    return tuple(ops.where(truth.reshape(()), a.read(), b.read()) for a, b in pairs)


@converts("autograd_function_apply")
def gradient_of_its_own(call: TorchCall) -> Any:
    """A torch.autograd.Function: the subgraph of its forward pass, that of its backward pass for the gradient."""
    if call.get("dirty_idx"):
        raise call.error("writes to its arguments (mark_dirty)")
    forward, backward, *cells = (v for k, v in call.cells.items() if k.isdigit())
    args = read(cells)
    results, saved = call.run(forward, cells, with_gradient=False)
    single = not isinstance(results, (tuple, list))
    outputs = [ops.operand(read(y)) for y in ([results] if single else results)]
    held = read(list(saved))
    places, kept = (
        [i for i, x in enumerate(values) if is_operand(x) and (x.dtype.is_float or values is held)]
        for values in (args, held)
    )

    def rule(values: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        whole = list(held)
        for i, x in zip(kept, values, strict=True):
            whole[i] = x
        arriving = [ops.zeros_like(y) if g is None else g for y, g in zip(outputs, grads, strict=True)]
        found = read(call.run(backward, [*arriving, *whole], with_gradient=True))
        return [found[i] for i in places]

    op = CustomGradient(rule, len(places), len(outputs))
    marked = bind(op, *(args[i] for i in places), *outputs, *(held[i] for i in kept))
    constant = call.get("non_differentiable_idx") or ()
    found = [ops.stop_gradient(y) if i in constant else y for i, y in enumerate(marked)]
    return found[0] if single else tuple(found)


@converts("_assert", "_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range",
          "sym_constrain_range_for_size", "_check", "_check_is_size", "_functional_assert_async",
          "_log_api_usage_once",
          "_functional_assert_scalar", "check_is_size")  # fmt: skip
def checked(call: TorchCall) -> Any:
    """PyTorch's assertions; ops check their operands themselves."""
    return None


@converts("sym_not", "sym_int", "sym_float", "sym_max", "sym_min", "sym_ite", "sym_sum", "_sym_sqrt")
def of_sizes(call: TorchCall) -> Any:
    """Arithmetic on sizes, which are numbers here, and on numbers of tensors."""
    target: Any = call.node.target
    given = [call[name] for name in call.cells]
    of_tensors = _OF_TENSORS.get(call.name) if any(map(is_operand, given)) else None
    return (of_tensors or target)(*given)


def _to(dtype: str, x: Any) -> Any:
    return ops.cast(x, dtype)


#: What stands for functions of numbers where one of these is a tensor without axes.
_OF_TENSORS: dict[str, Callable[..., Any]] = {
    "sym_not": ops.logical_not,
    "sym_float": partial(_to, "float64"),
    "sym_int": partial(_to, "int64"),
    "sym_max": ops.maximum,
    "sym_min": ops.minimum,
    "sym_ite": ops.where,
    "_sym_sqrt": ops.sqrt,
}
