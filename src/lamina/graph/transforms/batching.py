"""`vmap`: vectorizes a function of one sample, by the batching rule of each op.

The function is traced once, for one sample, and its ops are applied to all samples at once: tensors are computed,
within another trace the ops are recorded there. For each op the first applicable way is taken: the op on operands
with one more axis in front (elementwise ops, `Op.stacked`), the samples folded into one of its own axes that keeps
them apart (`Op.batch_axes`, `Op.folded`), or a loop over the samples.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple

from lamina import _tree, ops
from lamina._renamed import renamed
from lamina._tree import Structure
from lamina.graph.ir.capture import Capture
from lamina.graph.ir.graph import Node, Value, computed, mark, reachable, traced_for
from lamina.graph.transforms.arguments import is_plain_record, named_function
from lamina.ops.arguments import shown
from lamina.ops.core import BatchAxis, Op, Operand, bind, inferred, is_number, operand, recorder, recording
from lamina.ops.primitives.generator import sample_by_sample
from lamina.ops.primitives.marker import CustomGradient, DrawnFor, Marker
from lamina.runtime import is_array
from lamina.spec import DTypeError, Shape, ShapeError, Spec
from lamina.spec.policies import policy as use_policy
from lamina.tensors import Tensor, tensor

#: Limit on the foldings of samples into axes that are tried for one op.
_MOST_WAYS = 64


class Batched(NamedTuple):
    """The counterpart of a value of the function: for all samples (along axis 0), or one shared by all."""

    operand: Any
    batched: bool


@renamed(in_axes="in_dims", out_axes="out_dims")
def vmap(fn: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0) -> Callable[..., Any]:
    """Vectorize a function of one sample over many, as torch.func.vmap and jax.vmap.

    Args:
        fn: takes and returns tensors, and nested tuples, lists and dicts of them. It is traced once, so its
            branches must not depend on tensor values.
        in_dims: the axis of the samples, for all positional arguments, or one entry for each, in the argument's own
            structure or a prefix of it; None for an argument shared by all samples. Arguments that are no
            arrays (numbers, strings, modules) and named arguments are passed unchanged.
        out_dims: the axis of the samples, for all results or in their structure; None for a result shared by all
            samples.

    Tensors that fn closes over (a network's parameters) are shared by all samples. vmap nests with `grad`, `jvp`,
    `jit` and itself, in either order: vmap(grad(loss), (None, 0)) gives a gradient for each sample. Random numbers
    drawn for a sample's value (dropout, `rand_like(x)`, `multinomial(x, 1)`) differ between samples; those that
    depend on no sample (`rand(3)`) are shared. An op without a batched form is applied to one sample after the
    other. Raises ValueError for sizes that differ, ShapeError for an axis out of range, TypeError for state that fn
    updates sample by sample (running statistics), naming the op.
    """
    named_function(fn, "vmap")

    @wraps(fn, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        arguments = _Mapped.of(args, in_dims)
        capture, by = Capture(), recorder()
        capture.lasts = by is not None and by.lasts
        start = mark()
        own = (x.device for x in arguments.given if isinstance(x, (Tensor, Value)))
        one = [x for x in arguments.samples if x is not None]
        with (
            traced_for(next(own, None)),
            recording(capture),
            capture.attributes_apart(one),
            sample_by_sample(),
        ):
            result = fn(*arguments.standing(), **kwargs)
            leaves, structure = _tree.flatten(result, open_dataclasses=True)
            traced = [capture.read(x) if _is_tensor(x) else x for x in leaves]
            del result, leaves
        capture.leave_behind()
        if by is not None:
            for holds in capture.guards:  # the surrounding record depends on the same conditions
                by.guard(holds)
        batcher = _Batcher(arguments, capture, start)
        asked = _axes(structure, out_dims, "out_dims")
        outputs = [v for v in traced if isinstance(v, Value)]
        found = iter(batcher.run([*outputs, *capture.written.values()]))
        made = [
            _out(next(found), axis, batcher.size)
            if isinstance(v, Value)
            else _constant(v, axis, batcher.size)
            for v, axis in zip(traced, asked, strict=True)
        ]
        batcher.write(capture, list(found))
        return _tree.unflatten(structure, made)

    return run


def _is_tensor(x: Any) -> bool:
    return is_array(x) or isinstance(x, Operand)


# ---------------------------------------------------------------------------------------------------------- arguments


class _Mapped(NamedTuple):
    """Flattened positional arguments: each leaf as given, and the value of one sample (None: the leaf itself)."""

    structure: Structure
    given: list[Any]
    samples: list[Value | None]
    size: int

    @classmethod
    def of(cls, args: tuple[Any, ...], in_dims: Any) -> _Mapped:
        """Raises ValueError and ShapeError for axes and sizes that do not fit."""
        given, structure = _tree.flatten(args, is_plain_record, open_dataclasses=True)
        asked = in_dims if not isinstance(in_dims, list) else tuple(in_dims)
        axes = _axes(structure, asked, "in_dims")
        names = _tree.names(structure, "args")
        samples: list[Value | None] = []
        sizes: dict[str, int] = {}
        for i, (x, axis, name) in enumerate(zip(given, axes, names, strict=True)):
            if axis is None or not _is_tensor(x):
                samples.append(None)
                continue
            x = operand(x)
            sizes[name] = x.shape[_in_range(axis, x.spec, f"in_dims: {name}")]
            given[i] = _moved(x, axis % x.ndim, 0)
            samples.append(Value(Spec(given[i].shape[1:], x.dtype), name=name))
        if not sizes:
            raise ValueError(
                f"vmap: no argument has an axis of samples: in_dims is {in_dims}, of {len(args)} arguments"
            )
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} {n}" for name, n in sizes.items())
            raise ValueError(
                f"vmap: all arguments must have equally many samples along in_dims, got {listed}"
            )
        size = next(iter(sizes.values()))
        if size == 0:
            raise ValueError(f"vmap: {next(iter(sizes))} has no samples along in_dims {in_dims}")
        return cls(structure, given, samples, size)

    def standing(self) -> tuple[Any, ...]:
        """The arguments of one sample."""
        leaves = [x if v is None else v for x, v in zip(self.given, self.samples, strict=True)]
        found: tuple[Any, ...] = _tree.unflatten(self.structure, leaves)
        return found


def _axes(structure: Structure, asked: Any, what: str) -> list[int | None]:
    """The axis for each leaf: `asked` is one axis for all, or a tree that is a prefix of the structure."""
    if structure.kind is None:
        return [_axis(asked, what)]
    if asked is None or not isinstance(asked, tuple | list | dict):
        axis = _axis(asked, what)
        return [axis for _ in _tree.names(structure, "")]
    if structure.kind is dict:
        entries = [asked.get(k, _MISSING) for k in structure.keys] if isinstance(asked, dict) else []
    else:
        entries = list(asked) if not isinstance(asked, dict) else []
    if len(entries) != len(structure.branches) or any(e is _MISSING for e in entries):
        raise ValueError(f"vmap: {what} {asked!r} does not fit the structure {structure}")
    return [axis for b, e in zip(structure.branches, entries, strict=True) for axis in _axes(b, e, what)]


_MISSING = object()


def _axis(asked: Any, what: str) -> int | None:
    if asked is None or (isinstance(asked, int) and not isinstance(asked, bool)):
        return asked
    raise TypeError(
        f"vmap: {what} must be an int, None, or a tuple, list or dict of these, got {shown(asked)}"
    )


def _in_range(axis: int, spec: Spec, where: str) -> int:
    if not -spec.ndim <= axis < spec.ndim:
        raise ShapeError(f"vmap: {where} is {spec}, which has no axis {axis}")
    return axis


def _out(found: Batched, axis: int | None, size: int) -> Any:
    """A result with its samples along an axis."""
    y = found.operand
    if axis is None:
        if found.batched:
            raise ValueError(
                f"vmap: out_dims is None for a result {y.spec} that differs from sample to sample; name the axis"
            )
        return y
    if not found.batched:
        y = ops.expand(y, (size, *y.shape))
    return _moved(y, 0, _in_range(axis, y.spec, "out_dims: a result") % y.ndim)


def _constant(result: Any, axis: int | None, size: int) -> Any:
    """A number that does not depend on the samples, repeated for each; anything but numbers unchanged."""
    if axis is None or not is_number(result):
        return result
    return _out(Batched(tensor(result), False), axis, size)


def _moved(x: Any, source: int, target: int) -> Any:
    """x with one axis moved."""
    if source == target:
        return x
    order = [a for a in range(x.ndim) if a != source]
    order.insert(target, source)
    return ops.permute(x, order)


# --------------------------------------------------------------------------------------------------------------- ops


class _Batcher:
    """Applies the ops of a trace of one sample to all samples."""

    def __init__(self, arguments: _Mapped, capture: Capture, start: float) -> None:
        self.size, self.start = arguments.size, start
        self.found: dict[Value, Batched] = {}
        self.apart: set[Value] = set()  # generator states from which each sample draws separately
        for x, v in zip(arguments.given, arguments.samples, strict=True):
            if v is not None:
                self.found[v] = Batched(x, True)
        for key, v in capture.inputs.items():
            self.found[v] = Batched(capture.tensors[key], False)

    def run(self, outputs: Sequence[Value]) -> list[Batched]:
        """The outputs for all samples."""
        for node in reachable(outputs):
            if node.serial >= self.start:
                with use_policy(node.policy):
                    self.found.update(zip(node.outputs, self.node(node), strict=True))
        return [self.read(v) for v in outputs]

    def read(self, value: Value) -> Batched:
        """The counterpart of a value; one of another trace, or a constant, is shared by all samples."""
        if value in self.found:
            return self.found[value]
        # The variable of a surrounding derivative may be a constant, known by its identity.
        return Batched(value if value.constant is None or recorder() is not None else value.constant, False)

    def node(self, node: Node) -> list[Batched]:
        given = [self.read(v) for v in node.inputs]
        if any(v in self.apart for v in node.inputs):
            numbers = self.drawn(node, given)
            if numbers is not None:
                return numbers
        if not any(x.batched for x in given):
            return [Batched(y, False) for y in _applied(node.op, [x.operand for x in given])]
        if isinstance(node.op, CustomGradient):
            op = _batched_rule(node.op, [x.batched for x in given], self.size)
            full = [self.full(x, v.shape) for x, v in zip(given, node.inputs, strict=True)]
            return [Batched(y, True) for y in _applied(op, full)]
        if isinstance(node.op, DrawnFor) and not given[0].batched:
            self.apart.update(node.outputs)
        if isinstance(node.op, Marker):
            made = _applied(node.op, [x.operand for x in given])
            flags = node.op.passed([x.batched for x in given])
            return [Batched(y, b) for y, b in zip(made, flags, strict=True)]
        if node.op.effect == "collective":
            raise TypeError(f"vmap: {node.op.name} takes all ranks, once; leave it out of the function")
        if node.op.effect != "pure":
            raise TypeError(
                f"vmap: {node.op.name} updates state, which has one value for all samples; leave the update out of "
                "the function, or update with the mean over the samples"
            )
        specs = [v.spec for v in node.inputs]
        return self.at_once(node.op, given, specs) or self.one_by_one(node.op, given, node.outputs)

    def drawn(self, node: Node, given: Sequence[Batched]) -> list[Batched] | None:
        """Separate random numbers for each sample from a shared state; None if the op draws none."""
        specs = [v.spec for v in node.inputs]
        states = [v in self.apart for v in node.inputs]
        found = None
        if node.op.draws:
            found = node.op.stacked(self.size, specs, [not state for state in states])
        elif not any(x.batched for x in given):  # the state in another rank
            self.apart.update(node.outputs)
        if found is None:
            return None
        operands = [
            x.operand if state else self.full(x, s.shape)
            for x, s, state in zip(given, specs, states, strict=True)
        ]
        return self.stacked(node.op, found, operands, specs)

    def at_once(self, op: Op, given: Sequence[Batched], specs: Sequence[Spec]) -> list[Batched] | None:
        """All samples in one op; None if there is no such form."""
        some = [x.batched for x in given]
        if op.elementwise:
            return self.elementwise(op, given, specs)
        found = op.stacked(self.size, specs, some)
        if found is not None:
            return self.stacked(op, found, [x.operand for x in given], specs)
        folded = self.folded(op, given, specs)
        if folded is not None:
            return folded
        full = [self.full(x, s.shape) for x, s in zip(given, specs, strict=True)]
        if not all(some):
            found = op.stacked(self.size, specs, [True] * len(given))
            if found is not None:
                return self.stacked(op, found, full, specs)
            folded = self.folded(op, [Batched(x, True) for x in full], specs)
            if folded is not None:
                return folded
        return self.by_channels(op, full, specs)

    def elementwise(self, op: Op, given: Sequence[Batched], specs: Sequence[Spec]) -> list[Batched] | None:
        """The samples' axis in front, ranks made equal; expanded in full if the op does not broadcast."""
        rank = max(s.ndim for s in specs)
        aligned = [
            ops.reshape(x.operand, (self.size, *(1,) * (rank - s.ndim), *s.shape)) if x.batched else x.operand
            for x, s in zip(given, specs, strict=True)
        ]
        if not _accepts(op, aligned):
            aligned = [self.full(x, s.shape) for x, s in zip(given, specs, strict=True)]
            if not _accepts(op, aligned):
                return None
        return [Batched(y, True) for y in _applied(op, aligned)]

    def stacked(self, op: Op, many: Op, operands: Sequence[Any], specs: Sequence[Spec]) -> list[Batched]:
        """Apply an op to operands with the samples in front."""
        small = inferred(op, *specs)
        made = _applied(many, operands)
        return [Batched(y, y.ndim > s.ndim) for y, s in zip(made, small, strict=True)]

    def folded(self, op: Op, given: Sequence[Batched], specs: Sequence[Spec]) -> list[Batched] | None:
        """The op itself, with the samples folded into axes along which it treats each index alike."""
        small = inferred(op, *specs)
        choices = [range(s.ndim) if x.batched else (None,) for x, s in zip(given, specs, strict=True)]
        ways: Iterator[tuple[int | None, ...]] = itertools.product(*choices)
        for way in itertools.islice(ways, _MOST_WAYS):
            axes = [None if a is None else BatchAxis(a, s.shape[a]) for a, s in zip(way, specs, strict=True)]
            large = [_larger(s, a, self.size) for s, a in zip(specs, way, strict=True)]
            where = op.batch_axes(large, axes)
            if where is None or not self.fits(op, large, small, where):
                continue
            operands = [
                x.operand if a is None else _fold(x.operand, a) for x, a in zip(given, way, strict=True)
            ]
            made = _applied(op, operands)
            return [
                Batched(y, False) if b is None else Batched(_unfold(y, b.axis, self.size), True)
                for y, b in zip(made, where, strict=True)
            ]
        return None

    def fits(
        self, op: Op, large: Sequence[Spec], small: Sequence[Spec], where: Sequence[BatchAxis | None]
    ) -> bool:
        """Whether the op on folded operands gives the samples' outputs folded: its own sizes are for one sample."""
        try:
            found = inferred(op, *large)
        except (ShapeError, DTypeError):
            return False
        return all(
            b is not None and y == _larger(s, b.axis, self.size) and b.size == s.shape[b.axis]
            for y, s, b in zip(found, small, where, strict=True)
        )

    def by_channels(self, op: Op, operands: Sequence[Any], specs: Sequence[Spec]) -> list[Batched] | None:
        """A form of the op that keeps the samples apart in the axes that it names."""
        found = op.folded(self.size)
        if found is None:
            return None
        folded = [x if a is None else _fold(x, a) for x, a in zip(operands, found.inputs, strict=True)]
        made = _applied(found.op, folded)
        return [Batched(_unfold(y, a, self.size), True) for y, a in zip(made, found.outputs, strict=True)]

    def one_by_one(self, op: Op, given: Sequence[Batched], outputs: Sequence[Value]) -> list[Batched]:
        """A loop over the samples."""
        made = [
            _applied(op, [x.operand[i] if x.batched else x.operand for x in given]) for i in range(self.size)
        ]
        return [Batched(ops.stack([each[k] for each in made]), True) for k in range(len(outputs))]

    def full(self, x: Batched, shape: Shape) -> Any:
        """The operand with a sample axis, expanded if it is shared."""
        return x.operand if x.batched else ops.expand(x.operand, (self.size, *shape))

    def write(self, capture: Capture, values: Sequence[Batched]) -> None:
        """Perform the function's writes. Raises TypeError if they differ from sample to sample."""
        for (key, traced), found in zip(capture.written.items(), values, strict=True):
            target = capture.tensors[key]
            if found.batched:
                made = traced.behind.node
                by = made.op.name if made is not None else "a sample"
                raise TypeError(
                    f"vmap: fn updates a tensor {target.spec} with what {by} gives for each sample, but it has one "
                    "value for all of them (running statistics: call eval() on the module first)"
                )
            target.copy_(found.operand)


def _applied(op: Op, operands: Sequence[Any]) -> Sequence[Any]:
    """The outputs of op: computed, or recorded within a trace."""
    if recorder() is None and not any(isinstance(x, Value) for x in operands):
        return computed(op, operands)
    return bind(op, *operands)


def _accepts(op: Op, operands: Sequence[Any]) -> bool:
    """Whether op accepts operands of these shapes."""
    try:
        inferred(op, *(x.spec for x in operands))
    except (ShapeError, DTypeError):
        return False
    return True


def _batched_rule(op: CustomGradient, batched: Sequence[bool], size: int) -> CustomGradient:
    """A custom gradient for many samples: its rule is batched like any function."""

    def rule(kept: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
        given = [i for i, g in enumerate(grads) if g is not None]
        some: list[int] = []

        def one(kept: Sequence[Any], arriving: Sequence[Any]) -> Any:
            filled: list[Any] = [None] * len(grads)
            for i, g in zip(given, arriving, strict=True):
                filled[i] = g
            found = op.rule(kept, filled)
            some[:] = [i for i, g in enumerate(found) if g is not None]
            return tuple(found[i] for i in some)

        made = vmap(one)(tuple(kept), tuple(grads[i] for i in given))
        found: list[Any] = [None] * op.arguments
        for i, g in zip(some, made, strict=True):
            found[i] = g
        return found

    return CustomGradient(rule, op.arguments, op.results)


def _larger(spec: Spec, axis: int | None, size: int) -> Spec:
    if axis is None:
        return spec
    shape = list(spec.shape)
    shape[axis] *= size
    return Spec(tuple(shape), spec.dtype)


def _fold(x: Any, axis: int) -> Any:
    """[size, …] with the sample axis merged into another one, each sample's indices contiguous."""
    moved = _moved(x, 0, axis)
    shape = moved.shape
    return ops.reshape(moved, (*shape[:axis], shape[axis] * shape[axis + 1], *shape[axis + 2 :]))


def _unfold(y: Any, axis: int, size: int) -> Any:
    """The inverse: the sample axis split off and moved to the front."""
    shape = y.shape
    apart = ops.reshape(y, (*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :]))
    return _moved(apart, axis, 0)
