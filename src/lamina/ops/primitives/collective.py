"""Collective operations over the ranks of a group.

Every rank of the group runs the same ones in the same order: their effect is "collective", so that no pass drops,
merges, repeats or reorders them. The group is a value; the transport is up to the backend (MPI, TCP, NCCL). Gradients
are those of the sum of all ranks' results. For a group of one an op is the identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from lamina.ops.core import NUMBERS, Arg, Array, Effect, Op, Sample, call, inferred
from lamina.ops.primitives.pointwise import eq
from lamina.spec import DTYPES, FLOATS, DType, DTypeError, Group, Shape, ShapeError, Spec, contiguous, float32

Reduction = Literal["sum", "mean", "max", "min"]
_SHAPES: tuple[Shape, ...] = ((3, 5), (2, 3, 4, 4), (0, 3), (), (33,))


@dataclass(frozen=True)
class Collective(Op, abstract=True):
    """Base class of collectives. `reference` is the result when all ranks have the same input."""

    group: Group
    effect: ClassVar[Effect] = "collective"
    dtypes: ClassVar[tuple[DType, ...]] = DTYPES
    #: Whether each output may reuse its input's memory in any dense layout: only elements at the same position
    #: combine. All ranks must use the same layout.
    at_place: ClassVar[bool] = False

    def operands(self, specs: Sequence[Spec]) -> tuple[Spec, ...]:
        """The layouts that operands need: row-major, or any gapless one for elementwise collectives."""
        return tuple(
            s.fixed
            if self.at_place and s.tag is not None and not s.physical.is_blocked
            else replace(s, layout=contiguous(s.shape))
            for s in specs
        )

    def results(self, operands: Sequence[Spec]) -> tuple[Spec, ...]:
        """The layouts of results. Raises what `infer` raises."""
        found = inferred(self, *operands)
        return tuple(operands) if self.at_place else tuple(s.fixed for s in found)

    def aliases(self, count: int) -> dict[int, int]:
        """For a number of operands: result -> the operand whose memory it may reuse."""
        return {i: i for i in range(count)} if self.at_place else dict(self.inplace)

    def __str__(self) -> str:
        return super().__str__().replace(f"group={self.group}", str(self.group))

    def _apart(self, x: Spec) -> Shape:
        """The shape after a leading axis of ranks. Raises ShapeError."""
        if x.ndim < 1 or x.shape[0] != self.group.size:
            raise ShapeError(
                f"{self.name}: axis 0 must have one part for each of the {self.group.size} ranks, got {x}"
            )
        return x.shape[1:]


@dataclass(frozen=True)
class _Reducing(Collective, abstract=True):
    """A collective with a reduction: sum, mean, max or min over the ranks."""

    reduction: Reduction = "sum"
    dtypes = NUMBERS

    def _check(self, *inputs: Spec) -> None:
        self.check_float(*inputs)
        if self.reduction == "mean" and not inputs[0].dtype.is_float:
            raise DTypeError(
                f"{self.name}: the mean of {inputs[0]} is no integer; cast it with ops.cast, or sum"
            )

    def _differentiable(self) -> None:
        if self.reduction not in ("sum", "mean"):
            raise NotImplementedError(f"{self.name}: {self.reduction} has no gradient")

    def _all(self, x: Array) -> Array:
        return x * self.group.size if self.reduction == "sum" else x


@dataclass(frozen=True)
class AllReduce(_Reducing):
    """Every rank gets the reduction of all ranks' x. The gradient is the same reduction of the gradients."""

    inplace = {0: 0}
    at_place = True

    def infer(self, x: Spec) -> tuple[Spec]:
        self._check(x)
        return (x.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        (g,), (x,), (y,) = grads, inputs, outputs
        if self.reduction in ("sum", "mean"):
            return (call(self, g),)
        hit = eq(x, y).cast(x.dtype)  # equal elements share the gradient
        total = AllReduce(self.group, "sum")
        return (hit * call(total, g) / call(total, hit),)

    def reference(self, x: Array) -> tuple[Array]:
        return (self._all(x),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(Group(0)), shape, dtypes=FLOATS)
        yield Sample.of(cls(Group(0), "mean"), (4,), dtypes=FLOATS)
        yield Sample.of(cls(Group(0), "max"), (2, 3), dtypes=FLOATS)


@dataclass(frozen=True)
class Arrived(Collective):
    """(started, others…) -> started, once it has arrived; the others are started before waiting for it."""

    arity = None
    differentiable = False
    inplace = {0: 0}

    def infer(self, *inputs: Spec) -> tuple[Spec]:
        return (inputs[0].open,)

    def reference(self, *inputs: Array) -> tuple[Array]:
        return (inputs[0],)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield Sample.of(cls(Group(0)), (3, 5), dtypes=(float32,))
        yield Sample.of(cls(Group(0)), (3, 5), (2,), dtypes=(float32,))


@dataclass(frozen=True)
class StartAllReduce(_Reducing):
    """Any number of tensors of one dtype, reduced over all ranks asynchronously in one collective: results may only
    be read after `Arrived`."""

    arity = None
    differentiable = False
    at_place = True

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        for x in inputs:
            self._check(x)
        return tuple(x.open for x in inputs)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return tuple(self._all(x) for x in inputs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(Group(0), "mean"), shape, (3, 2), dtypes=FLOATS)


@dataclass(frozen=True)
class AllReduceEach(StartAllReduce):
    """Any number of tensors, each reduced over all ranks. A graph moves them in buckets of up to `bucket_bytes`, each
    started as soon as its last tensor is ready."""

    bucket_bytes: int = 25 << 20
    differentiable = True

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        self._differentiable()
        return [None if g is None else call(AllReduce(self.group, self.reduction), g) for g in grads]


@dataclass(frozen=True)
class AllGather(Collective):
    """x [...] -> [ranks, ...]: all ranks' x on every rank. The gradient is `ReduceScatter`."""

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        return (self.result((self.group.size, *x.shape), x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(ReduceScatter(self.group, "sum"), grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        return (np.stack([x] * self.group.size),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(Group(0)), shape, dtypes=FLOATS)


@dataclass(frozen=True)
class ReduceScatter(_Reducing):
    """x [ranks, ...] -> [...]: rank i gets the reduction of all ranks' x[i]. The gradient of a sum is `AllGather`."""

    def infer(self, x: Spec) -> tuple[Spec]:
        self._check(x)
        return (self.result(self._apart(x), x.dtype),)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        self._differentiable()
        g = call(AllGather(self.group), grads[0])
        return (g / float(self.group.size) if self.reduction == "mean" else g,)

    def reference(self, x: Array) -> tuple[Array]:
        return (self._all(x[0]),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(Group(0)), (1, *shape), dtypes=FLOATS)
        yield Sample.of(cls(Group(0), "mean"), (1, 4), dtypes=FLOATS)


@dataclass(frozen=True)
class AllGatherEach(Collective):
    """Any number of tensors x [...] -> [ranks, ...], each gathered from all ranks. A graph moves them in buckets of
    up to `bucket_bytes` of a rank's own data, each started as soon as its last tensor is ready."""

    bucket_bytes: int = 25 << 20
    arity = None

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        for x in inputs:
            self.check_float(x)
        return tuple(self.result((self.group.size, *x.shape), x.dtype) for x in inputs)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return [None if g is None else call(ReduceScatter(self.group, "sum"), g) for g in grads]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return tuple(np.stack([x] * self.group.size) for x in inputs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(Group(0)), shape, (3, 2), dtypes=FLOATS)


@dataclass(frozen=True)
class StartReduceScatter(_Reducing):
    """Any number of tensors x [ranks, ...] -> [...] of one dtype, each reduced to this rank's part, asynchronously:
    results may only be read after `Arrived`, and the inputs stay alive until then."""

    arity = None
    differentiable = False

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        for x in inputs:
            self._check(x)
        return tuple(self.result(self._apart(x), x.dtype) for x in inputs)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return tuple(self._all(x[0]) for x in inputs)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(Group(0), "mean"), (1, *shape), (1, 3, 2), dtypes=FLOATS)


@dataclass(frozen=True)
class ReduceScatterEach(StartReduceScatter):
    """Any number of tensors x [ranks, ...] -> [...], each reduced to this rank's part. A graph moves them in buckets
    of up to `bucket_bytes`, each started as soon as its last tensor is ready."""

    bucket_bytes: int = 25 << 20
    differentiable = True

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        self._differentiable()
        one = ReduceScatter(self.group, self.reduction)
        return [None if g is None else one.vjp([g], [x], [])[0] for g, x in zip(grads, inputs, strict=True)]


@dataclass(frozen=True)
class Broadcast(Collective):
    """Every rank gets the x of the group's rank `root`. The gradient is `ReduceTo`."""

    root: int = 0
    inplace = {0: 0}

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        _check_place(self, "root", self.root)
        return (x.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(ReduceTo(self.group, "sum", self.root), grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        return (x,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(Group(0)), shape, dtypes=FLOATS)


@dataclass(frozen=True)
class ReduceTo(_Reducing):
    """Rank `root` of the group gets the reduction of all ranks' x, the others 0. The gradient is `Broadcast`."""

    root: int = 0
    inplace = {0: 0}

    def infer(self, x: Spec) -> tuple[Spec]:
        self._check(x)
        _check_place(self, "root", self.root)
        return (x.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        self._differentiable()
        g = call(Broadcast(self.group, self.root), grads[0])
        return (g / float(self.group.size) if self.reduction == "mean" else g,)

    def reference(self, x: Array) -> tuple[Array]:
        return (self._all(x),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(Group(0)), shape, dtypes=FLOATS)


@dataclass(frozen=True)
class AllToAll(Collective):
    """x [ranks, ...] -> [ranks, ...]: part i of the result is rank i's part for this rank. Its own gradient."""

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        self._apart(x)
        return (x.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(self, grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        return (np.stack([x[0]] * self.group.size),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(Group(0)), (1, *shape), dtypes=FLOATS)


@dataclass(frozen=True)
class Exchange(Collective):
    """Send x to rank `to` of the group and receive the result from rank `source`: 0 if that is None.

    Only the named ranks participate: with only `to` it is a send, with only `source` a receive. The gradient goes in
    the opposite direction.
    """

    to: int | None = None
    source: int | None = None

    def infer(self, x: Spec) -> tuple[Spec]:
        self.check_float(x)
        _check_place(self, "to", self.to)
        _check_place(self, "source", self.source)
        return (x.open,)

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        return (call(Exchange(self.group, self.source, self.to), grads[0]),)

    def reference(self, x: Array) -> tuple[Array]:
        return (np.zeros_like(x) if self.source is None else x,)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in _SHAPES:
            yield Sample.of(cls(Group(0), 0, 0), shape, dtypes=FLOATS)
        yield Sample.of(cls(Group(0)), Arg((4,)), dtypes=FLOATS)


def _check_place(op: Collective, name: str, place: int | None) -> None:
    """Raise ValueError for a rank index outside the group."""
    if place is not None and not 0 <= place < op.group.size:
        raise ValueError(f"{op.name}: {name}={place} is no place in a group of {op.group.size} ranks")
