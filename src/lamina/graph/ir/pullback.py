"""The gradient of one op as steps that run on tensors, traced once for each kind of call.

Eager differentiation asks each node's op for its `vjp`. The ops called there are the same for the same op, specs
and policy, so they are recorded once, reduced to the requested gradients, and from then on only run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from lamina.graph.ir.graph import Node, Value, constant, reachable, tensor_of, traced_for
from lamina.ops.core import Op, recording
from lamina.ops.primitives.marker import Marker
from lamina.runtime import Device
from lamina.spec import Policy, Spec, current_policy
from lamina.spec.policies import policy as use_policy
from lamina.tensors import Tensor

#: Bytes of constants that a recorded gradient may keep.
_KEPT = 1 << 16


class RegisterStep(NamedTuple):
    """An op between registers: those of its operands and outputs, and those that are dead after it."""

    op: Op
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    dead: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Pullback:
    """Steps on registers: incoming gradients, inputs, outputs, constants, then the steps' results.

    reads: which of the given tensors (gradients, inputs, outputs) are read. results: the gradients of the inputs.
    """

    reads: frozenset[int]
    constants: tuple[Tensor, ...]
    steps: tuple[RegisterStep, ...]
    results: tuple[int | None, ...]
    size: int

    def __call__(self, given: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the inputs; None for those not requested."""
        held: list[Any] = [*given, *self.constants]
        held += [None] * (self.size - len(held))
        for op, reads, writes, dead in self.steps:
            for i, y in zip(writes, Tensor.bind_op(op, [held[i] for i in reads]), strict=False):
                held[i] = y
            for i in dead:
                held[i] = None
        return [None if i is None else held[i] for i in self.results]


def pulled(node: Node, grads: Sequence[Tensor | None], asked: Sequence[bool]) -> Sequence[Any]:
    """The computed gradients of a tape's node, for those of its inputs that are requested."""
    program = _program_of(node, grads, tuple(asked))
    with nullcontext() if node.policy is current_policy() else use_policy(node.policy):
        if program is None:
            inputs, outputs = map(tensor_of, node.inputs), map(tensor_of, node.outputs)
            return node.op.vjp(grads, tuple(inputs), tuple(outputs))
        values = (*node.inputs, *node.outputs)
        read = program.reads
        held = [tensor_of(v) if i in read else None for i, v in enumerate(values, len(grads))]
        return program([*grads, *held])


def _program_of(node: Node, grads: Sequence[Tensor | None], asked: tuple[bool, ...]) -> Pullback | None:
    """None if the gradient is a user function, which may look at numbers."""
    if isinstance(node.op, Marker) or not type(node.op).__module__.startswith("lamina.ops."):
        return None
    places: dict[int, int] = {}
    return _pullback(
        node.op,
        tuple([v.spec for v in node.inputs]),
        tuple([v.spec for v in node.outputs]),
        tuple([places.setdefault(id(v), i) for i, v in enumerate(node.inputs)]),
        tuple([g is not None for g in grads]),
        asked,
        next(g.device for g in grads if g is not None),
        node.policy,
    )


@lru_cache(maxsize=4096)
def _pullback(
    op: Op,
    inputs: tuple[Spec, ...],
    outputs: tuple[Spec, ...],
    places: tuple[int, ...],
    arrived: tuple[bool, ...],
    asked: tuple[bool, ...],
    device: Device,
    policy: Policy,
) -> Pullback | None:
    """places: for each input the first one that is the same value. None if it cannot be cached."""
    grads = [Value(s) if there else None for s, there in zip(outputs, arrived, strict=True)]
    own = [Value(s) for s in inputs]
    xs, ys = [own[i] for i in places], [Value(s) for s in outputs]
    with use_policy(policy), recording(None), traced_for(device):
        found = op.vjp(grads, tuple(xs), tuple(ys))
    if not isinstance(found, tuple | list) or len(found) != len(inputs):
        return None
    results = [
        None if g is None or not there else g if isinstance(g, Value) else constant(g)
        for g, there in zip(found, asked, strict=True)
    ]
    return _recorded([*grads, *xs, *ys], results, device)


def _recorded(
    given: Sequence[Value | None], results: Sequence[Value | None], device: Device
) -> Pullback | None:
    """The nodes between the given values and the results, without duplicates."""
    nodes = reachable([v for v in results if v is not None])
    read = [*(v for n in nodes for v in n.inputs), *(v for v in results if v is not None)]
    constants = list({v: None for v in read if v.constant is not None})
    tensors = tuple(v.constant.to(device) for v in constants if v.constant is not None)
    if sum(x.nbytes for x in tensors) > _KEPT:
        return None
    register: dict[Value, int] = {}
    for i, v in enumerate((*given, *constants)):
        if v is not None:
            register.setdefault(v, i)
    size = len(given) + len(constants)
    made: dict[tuple[Op, tuple[int, ...]], tuple[int, ...]] = {}
    used = set(read)
    for node in nodes:
        op = node.op.prune([v in used for v in node.outputs])
        key = op, tuple([register[v] for v in node.inputs])
        if key not in made:
            made[key] = tuple(range(size, size + len(node.outputs)))
            size += len(node.outputs)
        register.update(zip(node.outputs, made[key], strict=True))
    ends = tuple(None if v is None else register[v] for v in results)
    reads = frozenset(register[v] for v in read if register[v] < len(given))
    return Pullback(reads, tensors, _ordered(made, ends), ends, size)


def _ordered(
    made: dict[tuple[Op, tuple[int, ...]], tuple[int, ...]], ends: Sequence[int | None]
) -> tuple[RegisterStep, ...]:
    """The steps, each with the registers that it is the last to read."""
    steps, alive = [], {i for i in ends if i is not None}
    for (op, reads), writes in reversed(made.items()):
        dead = tuple({*reads, *writes} - alive)
        alive |= {*reads}
        steps.append(RegisterStep(op, reads, writes, dead))
    return tuple(reversed(steps))
