"""Collective operations on tensors and traced values: every rank of the group calls the same ones, in the same order.

Immediate on tensors, graph nodes on traced values; differentiable (the gradient is that of the sum of all
ranks' results). In a group of one each returns its input. `group=None` means all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, cast, overload

from lamina import _tree
from lamina.distributed.ranks import rank, world_group
from lamina.graph.transforms.arguments import Gradients
from lamina.ops.arguments import checked
from lamina.ops.core import Op, bind, operand
from lamina.ops.primitives.collective import (
    AllGather,
    AllReduce,
    AllReduceEach,
    AllToAll,
    Broadcast,
    Exchange,
    ReduceScatter,
    Reduction,
)
from lamina.spec.group import Group

X = TypeVar("X")
#: Bytes of small tensors that `all_reduce_each` sends together, as in PyTorch.
BUCKET_BYTES = 25 << 20


@checked
def all_reduce(
    input: X, reduction: Literal["sum", "mean", "max", "min"] = "sum", *, group: Group | None = None
) -> X:
    """The sum, mean, maximum or minimum of all ranks' input [...], on every rank; shape and dtype are preserved."""
    found: X = _of("all_reduce", AllReduce(_or_all(group), reduction), input)
    return found


@overload
def all_reduce_each(
    inputs: dict[str, X],
    reduction: Reduction = "mean",
    *,
    group: Group | None = None,
    bucket_bytes: int = ...,
) -> dict[str, X]: ...
@overload
def all_reduce_each(
    inputs: Sequence[X], reduction: Reduction = "mean", *, group: Group | None = None, bucket_bytes: int = ...
) -> list[X]: ...
@checked
def all_reduce_each(
    inputs: Sequence[Any] | dict[str, Any],
    reduction: Literal["sum", "mean", "max", "min"] = "mean",
    *,
    group: Group | None = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> list[Any] | dict[str, Any]:
    """Each of several tensors reduced over all ranks, such as the gradients of a custom training step.

    inputs: tensors, or a dict of them, such as `lamina.grad` returns for a module; then the result is one, too.

    In a compiled program they are sent in buckets of up to `bucket_bytes`, in the order in which they are
    computed: each transfer overlaps the computation of the next ones. Raises ValueError for bucket_bytes < 1.
    """
    if bucket_bytes < 1:
        raise ValueError(f"all_reduce_each: bucket_bytes must be at least 1, got {bucket_bytes}")
    if isinstance(inputs, dict):
        given, structure = _tree.flatten(inputs, lambda within: within is not inputs)
        found = all_reduce_each(given, reduction, group=group, bucket_bytes=bucket_bytes)
        if isinstance(inputs, Gradients):  # a parameter absent from one rank's loss may be in another's
            return Gradients(dict(zip(inputs, found, strict=True)), inputs.parameters)
        return cast(dict[str, Any], _tree.unflatten(structure, found))
    if not inputs:
        return []
    op = AllReduceEach(_or_all(group), reduction, bucket_bytes)
    return list(bind(op, *(operand(x, "all_reduce_each") for x in inputs)))


@checked
def all_gather(input: X, *, group: Group | None = None) -> X:
    """Every rank's input [...] as [ranks, ...]. Its gradient is the sum over ranks of this rank's part."""
    found: X = _of("all_gather", AllGather(_or_all(group)), input)
    return found


@checked
def reduce_scatter(
    input: X, reduction: Literal["sum", "mean", "max", "min"] = "sum", *, group: Group | None = None
) -> X:
    """Rank i gets the reduction of all ranks' part i, [...], of inputs [ranks, ...]. Raises ShapeError."""
    found: X = _of("reduce_scatter", ReduceScatter(_or_all(group), reduction), input)
    return found


@checked
def broadcast(input: X, src: int = 0, *, group: Group | None = None) -> X:
    """The input of rank `src`, on all ranks; it has the same shape everywhere. Raises ValueError for src out of
    range."""
    ranks = _or_all(group)
    found: X = _of("broadcast", Broadcast(ranks, _place("broadcast", "src", src, ranks)), input)
    return found


@checked
def all_to_all(input: X, *, group: Group | None = None) -> X:
    """Part i of the result is this rank's part of rank i's input; inputs are [ranks, ...]. Raises ShapeError."""
    found: X = _of("all_to_all", AllToAll(_or_all(group)), input)
    return found


@checked
def send_receive(input: X, dst: int | None, src: int | None, *, group: Group | None = None) -> X:
    """Send input to rank `dst`, and return what rank `src` sends, of the same shape and dtype; 0 if src is None.

    A ring: send_receive(x, (rank() + 1) % n, (rank() - 1) % n). Only the named ranks take part.
    Raises ValueError for ranks outside of the group, and if only one of the two is this rank.
    """
    ranks = _or_all(group)
    to = None if dst is None else _place("send_receive", "dst", dst, ranks)
    source = None if src is None else _place("send_receive", "src", src, ranks)
    if dst != src and rank() in (dst, src):
        raise ValueError(
            f"send_receive: dst={dst} and src={src} on rank {rank()}: what a rank sends itself it receives in the "
            "same call, as both"
        )
    found: X = _of("send_receive", Exchange(ranks, to, source), input)
    return found


def send(input: X, dst: int, *, group: Group | None = None) -> X:
    """Send input to rank `dst`, which calls `receive`. Returns zeros: in a graph of `lamina.trace` return them, so
    that it is sent; add them to a loss, so that its gradient comes back."""
    return send_receive(input, dst, None, group=group)


def receive(like: X, src: int, *, group: Group | None = None) -> X:
    """The tensor that rank `src` sends, of the shape and dtype of `like`."""
    return send_receive(like, None, src, group=group)


def _or_all(group: Group | None) -> Group:
    return world_group() if group is None else group


def _place(what: str, name: str, number: int, group: Group) -> int:
    """The index of a rank of the world in a group. Raises ValueError."""
    if number not in group.ranks:
        raise ValueError(f"{what}: {name}={number} is not among {group}")
    return group.ranks.index(number)


def _of(what: str, op: Op, x: Any) -> Any:
    return bind(op, operand(x, what))[0]
