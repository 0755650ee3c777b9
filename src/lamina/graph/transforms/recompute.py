"""`checkpoint`: intermediate results are recomputed for the gradient instead of being kept (rematerialization).

Chen et al. 2016, "Training deep nets with sublinear memory cost", with the segments chosen by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, overload

from lamina import _tree
from lamina.graph.ir.capture import EagerTape, as_recorded
from lamina.graph.ir.graph import Node, Value, constant, mark, reachable, tensor_of
from lamina.graph.transforms.arguments import is_nested, named_function
from lamina.graph.transforms.derivatives import vjp
from lamina.ops.core import Operand, bind, call, recorder
from lamina.ops.primitives.marker import CustomGradient
from lamina.ops.primitives.shape import After
from lamina.runtime import is_array
from lamina.spec.policies import policy as use_policy

P = ParamSpec("P")
R = TypeVar("R")


@overload
def checkpoint(fn: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def checkpoint(
    fn: Callable[..., R],
    first: Any,
    /,
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> R: ...
def checkpoint(
    fn: Callable[..., Any],
    /,
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    **kwargs: Any,
) -> Any:
    """fn, of which a gradient keeps only inputs and outputs: the intermediates are recomputed.

        h = lm.checkpoint(block)(h)
        h = lm.checkpoint(block, h)  # as torch.utils.checkpoint.checkpoint

    fn: a function or a module, of any arguments. It runs once; recomputed are the ops that it recorded,
    on the same numbers and with the same random words, so that results and gradients are those without it, bit by bit
    wherever kernels are deterministic, and running statistics are updated once. Tensors that fn closes over get their
    gradient. The memory of intermediates is free between the two passes (in compiled programs:
    `Executable.peak_bytes`), at the cost of about one more forward pass. Outside of a derivative it is fn.

    args, kwargs: if there are any, fn is called with them. use_reentrant, preserve_rng_state: as in torch; there
    is only one implementation, and random words are those of the forward pass: ValueError for
    preserve_rng_state=False.
    """
    named_function(fn, "checkpoint")
    if not preserve_rng_state:
        raise ValueError(
            "checkpoint: what is computed again has the same random words: leave preserve_rng_state=True"
        )
    run = _checkpointed(fn)
    return run(*args, **kwargs) if args or kwargs else run


def _checkpointed(fn: Callable[P, R]) -> Callable[P, R]:
    """fn, whose nodes are recomputed for its gradient."""

    @wraps(fn, updated=())
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not is_nested(args, kwargs):
            return fn(*args, **kwargs)
        start = mark()
        result = fn(*args, **kwargs)
        found, structure = _tree.flatten(result, open_dataclasses=True)
        outputs = [_value(x) if _is_tensor(x) else x for x in found]
        marked = iter(_marked([y for y in outputs if isinstance(y, Value)], start))
        made: R = _tree.unflatten(structure, [next(marked) if isinstance(y, Value) else y for y in outputs])
        return made

    return run


def _is_tensor(x: Any) -> bool:
    return is_array(x) or isinstance(x, Operand)


def _value(x: Any) -> Value:
    """The value that stands for a result in the current trace."""
    by = recorder()
    found = by.read(x) if by is not None else x if isinstance(x, Value) else constant(x)
    assert isinstance(found, Value)
    return found


def _marked(outputs: Sequence[Value], start: float) -> Sequence[Value]:
    """The results of a segment, whose gradient recomputes it."""
    nodes = [n for n in reachable(outputs) if n.serial >= start]
    own = {v for n in nodes for v in n.outputs}
    if not nodes:
        return outputs
    by = recorder()
    if isinstance(by, EagerTape) and all(tensor_of(y) is not None for y in outputs):
        by.forget(own - {*outputs, *by.written.values()})
        return outputs
    # On a tape a variable of differentiation may be a constant, known by its identity.
    fixed = not isinstance(by, EagerTape)
    read = (v for n in nodes for v in n.inputs if v not in own)
    kept = list(dict.fromkeys(v for v in read if not (fixed and v.constant is not None)))
    segment = _Segment(nodes, kept, outputs)
    with as_recorded():
        marked: Sequence[Value] = bind(
            CustomGradient(segment.gradients, len(kept), len(outputs)), *kept, *outputs, *kept
        )
    return marked


class _Segment:
    """The nodes between the inputs and outputs of a function."""

    def __init__(self, nodes: Sequence[Node], kept: Sequence[Value], outputs: Sequence[Value]) -> None:
        self.nodes, self.kept, self.outputs = nodes, kept, outputs

    def gradients(self, kept: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        """The gradients of the kept values: the segment is recomputed, but not before one of `grads` has arrived."""
        places = [i for i, v in enumerate(self.kept) if v.dtype.is_float]
        arriving = next(g for g in grads if g is not None)
        again = [call(After(), x, arriving) for x in kept]

        def run(*floats: Any) -> tuple[Any, ...]:
            whole = list(again)
            for i, x in zip(places, floats, strict=True):
                whole[i] = x
            made = self.replayed(whole)
            return tuple(y for y, g in zip(made, grads, strict=True) if g is not None)

        _, pull = vjp(run, *(again[i] for i in places))
        found = iter(pull(tuple(g for g in grads if g is not None)))
        return [next(found) if v.dtype.is_float else None for v in self.kept]

    def replayed(self, kept: Sequence[Any]) -> list[Any]:
        """The results for other kept values."""
        found: dict[Value, Any] = dict(zip(self.kept, kept, strict=True))
        for node in self.nodes:
            with use_policy(node.policy):
                made = bind(node.op, *(found.get(v, v) for v in node.inputs))
            found.update(zip(node.outputs, made, strict=True))
        return [found.get(y, y) for y in self.outputs]
