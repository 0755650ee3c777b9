"""Normalization: batch, layer, RMS, group and instance norm, with their gradients as ops.

All apply one formula over different axes, with mean and inverse deviation rstd over some axes of x:

    y = (x - mean) * rstd * scale + bias,    rstd = 1 / sqrt(variance + epsilon)

Statistics, scale and bias have x's compute dtype: float32 for half types. Running statistics are inputs and outputs,
so that a compiled step updates them in place. Sources: Ioffe and Szegedy 2015 (batch), Ba et al. 2016 (layer),
Ulyanov et al. 2016 (instance), Wu and He 2018 (group), Zhang and Sennrich 2019 (RMS). Counterparts: the graph API's
norm forward and backward operations, cudnnBatchNormalizationForwardTraining and related functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from lamina.ops.arguments import checked, within
from lamina.ops.core import Arg, Array, BatchAxes, Op, Sample, bind, call, first_axis, listing, operand
from lamina.ops.primitives.marker import stop_gradient
from lamina.ops.primitives.pointwise import where
from lamina.ops.primitives.reduce import Reduce
from lamina.spec import DTypeError, Shape, ShapeError, Spec, as_shape, bfloat16, float16, float32, float64

Values = Sequence[Any]


class Frame(NamedTuple):
    """Which elements of x share a mean, and which share a scale.

    split: x's shape, with the channels possibly split into groups. axes: the axes of `split` that a mean is over.
    scale: the scale's shape, as broadcast over `split`. stats: the shape in which statistics are stored.
    """

    split: Shape
    axes: tuple[int, ...]
    scale: Shape
    stats: Shape

    @property
    def size(self) -> int:
        """The number of elements that share a mean."""
        return prod(self.split[a] for a in self.axes)

    @property
    def kept(self) -> Shape:
        """The shape of statistics, as broadcast over `split`."""
        return tuple(1 if a in self.axes else n for a, n in enumerate(self.split))

    @property
    def others(self) -> tuple[int, ...]:
        """The axes over which the gradients of scale and bias are summed."""
        return tuple(a for a, n in enumerate(self.scale) if n == 1)


def channel_frame(shape: Shape) -> Frame:
    """Batch norm's: each channel of [N, C, *S]."""
    ones = (1, shape[1], *(1,) * (len(shape) - 2))
    return Frame(shape, (0, *range(2, len(shape))), ones, (shape[1],))


class _Norm(Op):
    """Common base of the ops."""

    arity = None

    def expect(self, inputs: Sequence[Spec], count: int, names: str) -> None:
        """Raise unless there are `count` inputs and the first has a float dtype."""
        if len(inputs) != count:
            raise TypeError(f"{self.name}: takes {count} operands ({names}), got {listing(inputs)}")
        self.check_float(inputs[0])

    def alike(self, x: Spec, **others: Spec) -> None:
        """Raise unless all have the shape and dtype of x."""
        for name, spec in others.items():
            if spec.shape != x.shape:
                raise ShapeError(f"{self.name}: {name} {spec} must have the shape of x {x}")
            if spec.dtype != x.dtype:
                raise DTypeError(
                    f"{self.name}: {name} is {spec.dtype} but x is {x.dtype}; cast one with ops.cast"
                )

    def bounded(self, relu: bool, hi: float | None) -> None:
        """Raise unless the upper bound is valid for the relu."""
        if hi is not None and not (relu and hi > 0):
            raise ValueError(f"{self.name}: hi={hi} must be positive, and needs relu=True (got relu={relu})")

    def small(self, x: Spec, shape: Shape, **others: Spec) -> None:
        """Raise unless all have this shape and x's compute dtype."""
        for name, spec in others.items():
            if spec.shape != shape:
                raise ShapeError(f"{self.name}: {name} {spec} must have shape {shape} for x {x}")
            if spec.dtype != x.dtype.compute:
                raise DTypeError(
                    f"{self.name}: {name} must be {x.dtype.compute} for x of {x.dtype}, got {spec.dtype}; "
                    "cast with ops.cast"
                )


# ------------------------------------------------------------------------------------------------ the formulas


def _gradient(
    frame: Frame, g: Array, x: Array, scale: Array, mean: Array | None, rstd: Array, moving: bool = True
) -> tuple[Array, Array, Array]:
    """dx, dscale and dbias in NumPy; `mean` None: no mean was subtracted. moving: the statistics depend on x."""
    g, x = g.reshape(frame.split), x.reshape(frame.split)
    rstd = rstd.reshape(frame.kept)
    apart = (x - mean.reshape(frame.kept)) if mean is not None else x
    normal, weighted = apart * rstd, g * scale.reshape(frame.scale)
    dscale, dbias = (np.sum(v, frame.others).reshape(scale.shape) for v in (g * normal, g))
    if moving:
        by = max(frame.size, 1)
        slope = np.sum(weighted * normal, frame.axes, keepdims=True) / by
        level = np.sum(weighted, frame.axes, keepdims=True) / by if mean is not None else 0
        weighted = weighted - level - normal * slope
    return weighted * rstd, dscale, dbias


class _Second(NamedTuple):
    """The gradients of the operands of `_gradient`."""

    g: Any
    x: Any
    scale: Any
    mean: Any
    rstd: Any


def _second(frame: Frame, arriving: Values, operands: Values, moving: bool = True) -> _Second:
    """The vjp of `_gradient` in ops: from the gradients of dx, dscale and dbias (or None).

    With n = (x - mean) rstd, w = g scale, A = <gradient of dx> rstd:  dx = rstd q,  q = w - mean(w) - n mean(w n).
    """
    g, x, scale, mean, rstd = operands
    shape, kind, small = x.shape, x.dtype, scale.shape
    g, x = (v.cast(rstd.dtype).reshape(frame.split) for v in (g, x))
    stats, rstd, weight = rstd.shape, rstd.reshape(frame.kept), scale.reshape(frame.scale)
    apart = x if mean is None else x - mean.reshape(frame.kept)
    normal, weighted, by = apart * rstd, g * weight, 1.0 / max(frame.size, 1)
    to_dx, to_scale, to_bias = arriving
    parts: list[Any] = [None, None, None]  # of g, weighted and normal
    from_rstd = None
    if to_dx is not None:
        a = to_dx.cast(rstd.dtype).reshape(frame.split)
        q, inner = weighted, a * rstd
        parts[1] = inner
        if moving:
            slope = (weighted * normal).sum(frame.axes, keepdim=True) * by
            back = (inner * normal).sum(frame.axes, keepdim=True) * by
            q, parts[1] = q - normal * slope, inner - back * normal
            if mean is not None:
                q = q - weighted.mean(frame.axes, keepdim=True)
                parts[1] = parts[1] - inner.mean(frame.axes, keepdim=True)
            parts[2] = -(inner * slope) - back * weighted
        from_rstd = (a * q).sum(frame.axes, keepdim=True)
    if to_scale is not None:
        b = to_scale.reshape(frame.scale)
        parts[0], parts[2] = b * normal, _plus(parts[2], b * g)
    if to_bias is not None:
        parts[0] = _plus(parts[0], to_bias.reshape(frame.scale).expand(frame.split))
    by_g = _plus(parts[0], None if parts[1] is None else parts[1] * weight)
    by_x = None if parts[2] is None else parts[2] * rstd
    by_scale = None if parts[1] is None else call(Reduce("sum", frame.others), parts[1] * g).reshape(small)
    total = None if by_x is None else by_x.sum(frame.axes, keepdim=True)
    if parts[2] is not None:
        from_rstd = _plus(from_rstd, (parts[2] * apart).sum(frame.axes, keepdim=True))
    return _Second(
        None if by_g is None else by_g.reshape(shape).cast(kind),
        None if by_x is None else by_x.reshape(shape).cast(kind),
        by_scale,
        None if total is None or mean is None else (-total).reshape(stats),
        None if from_rstd is None else from_rstd.reshape(stats),
    )


def _plus(a: Any, b: Any) -> Any:
    """a + b, where None is zero."""
    return b if a is None else a if b is None else a + b


def _through_statistics(
    frame: Frame, x: Any, mean: Any, rstd: Any, to_mean: Any, to_rstd: Any, to_variance: Any = None
) -> Any:
    """The part of x's gradient that arrives through mean, rstd and variance; None if there is none."""
    wide = x.cast(rstd.dtype).reshape(frame.split)
    apart = wide if mean is None else wide - mean.reshape(frame.kept)
    by, found = 1.0 / frame.size, None
    if to_rstd is not None:  # drstd/dvariance = -rstd³ / 2
        to_variance = _plus(to_variance, to_rstd * rstd * rstd * rstd * -0.5)
    if to_variance is not None:
        found = apart * (to_variance * (2 * by)).reshape(frame.kept)
    if to_mean is not None:
        found = _plus(found, (to_mean * by).reshape(frame.kept).expand(frame.split))
    return None if found is None else found.reshape(x.shape).cast(x.dtype)


# ---------------------------------------------------------------------------------------------------- batch norm

_BATCH = ("x", "scale", "bias", "running_mean", "running_var", "residual")


@dataclass(frozen=True)
class BatchNorm(_Norm):
    """(x [N, C, *S], scale [C], bias [C], running_mean [C], running_var [C]) -> (y, mean, rstd, next mean, next var).

    Mean and variance are over N and S. y = (x - mean) * rstd * scale + bias with rstd = 1 / sqrt(variance + epsilon).
    The running statistics move by `momentum` towards mean and the unbiased variance (divided by n - 1), as in torch.
    relu: y is clamped at 0, and at `hi` if given. residual: a sixth operand like x is added before relu (cuDNN's
    BnAddRelu). Needs at least two elements per channel.
    """

    epsilon: float
    momentum: float = 0.1
    relu: bool = False
    residual: bool = False
    hi: float | None = None
    inplace = {3: 3, 4: 4}
    alone = inplace

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        self.expect(inputs, 5 + self.residual, ", ".join(_BATCH[: 5 + self.residual]))
        self.bounded(self.relu, self.hi)
        x = inputs[0]
        frame = self.frame(x)
        self.small(x, frame.stats, **dict(zip(_BATCH[1:5], inputs[1:5], strict=True)))
        if self.residual:
            self.alike(x, residual=inputs[5])
        small = Spec(frame.stats, x.dtype.compute)
        return (x.open, small, small, small, small)

    def frame(self, x: Spec) -> Frame:
        """Each channel is normalized by itself. Raises ShapeError."""
        if x.ndim < 2:
            raise ShapeError(f"{self.name}: x must be [N, C, *spatial], got {x}")
        frame = channel_frame(x.shape)
        if frame.size < 2:
            raise ShapeError(f"{self.name}: needs more than one value per channel in training, got {x}")
        return frame

    def vjp(self, grads: Values, inputs: Values, outputs: Values) -> Values:
        x, scale, bias = inputs[:3]
        y, mean, rstd = outputs[:3]
        found: list[Any] = [None] * len(inputs)
        if grads[0] is not None:
            op = BatchNormGrad(self.relu, self.relu and self.residual, hi=self.hi)
            extra = (y,) if op.residual else (bias,) if self.relu else ()
            found[0], found[1], found[2], *rest = bind(op, grads[0], x, scale, mean, rstd, *extra)
            if self.residual:
                found[5] = rest[0] if rest else grads[0]
        frame, share = channel_frame(x.shape), self.momentum
        to_mean, to_variance = grads[1], None
        if grads[3] is not None:
            found[3], to_mean = grads[3] * (1 - share), _plus(to_mean, grads[3] * share)
        if grads[4] is not None:
            found[4] = grads[4] * (1 - share)
            to_variance = grads[4] * (share * frame.size / (frame.size - 1))
        if any(g is not None for g in grads[1:]):
            found[0] = _plus(
                found[0], _through_statistics(frame, x, mean, rstd, to_mean, grads[2], to_variance)
            )
        return found

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        x, scale, bias, running_mean, running_var = inputs[:5]
        frame = channel_frame(x.shape)
        mean, var = np.mean(x, frame.axes), np.var(x, frame.axes)
        rstd = 1 / np.sqrt(var + self.epsilon)
        y = _affine(
            frame, x, mean, rstd, scale, bias, inputs[5] if self.residual else None, self.relu, self.hi
        )
        moved = var * (frame.size / (frame.size - 1))
        running = ((running_mean, mean), (running_var, moved))
        return y, mean, rstd, *((1 - self.momentum) * old + self.momentum * new for old, new in running)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, x in enumerate(_BATCH_SHAPES):
            op = cls(1e-5, 0.1 if i % 2 else 0.3, i % 3 == 1, i % 4 >= 2)
            big: tuple[Arg, ...] = (Arg(x),) if op.residual else ()
            yield from _samples(op, (Arg(x),), x[1:2], "nnnp", big)
        yield from _samples(cls(1e-3, 1.0, True, True), (Arg((5, 3, 4)),), (3,), "nnnp", (Arg((5, 3, 4)),))
        yield from _samples(cls(1e-3, 0.1, True, hi=0.7), (Arg((3, 8, 5)),), (8,), "nnnp")


_BATCH_SHAPES: tuple[Shape, ...] = (
    (4, 3, 2, 5), (2, 8, 3, 3), (6, 5), (2, 16, 7, 5), (1, 4, 2, 3, 3), (3, 33, 5), (9, 40, 11, 13),
)  # fmt: skip


def _samples(
    op: Op, big: tuple[Arg, ...], shape: Shape, kinds: str, after: tuple[Arg, ...] = ()
) -> Iterator[Sample]:
    """Once with one dtype for all operands, once with half-type large ones. kinds: n normal, p positive."""
    for dtype, dtypes in ((None, (float64, float32)), (float32, (float16, bfloat16))):
        small = (Arg(shape, dtype, low=0.5, high=2.0) if kind == "p" else Arg(shape, dtype) for kind in kinds)
        yield Sample(op, (*big, *small, *after), dtypes)


def _affine(
    frame: Frame,
    x: Array,
    mean: Array | None,
    rstd: Array,
    scale: Array,
    bias: Array | None,
    residual: Array | None = None,
    relu: bool = False,
    hi: float | None = None,
) -> Array:
    apart = x.reshape(frame.split)
    if mean is not None:
        apart = apart - mean.reshape(frame.kept)
    y = apart * (rstd.reshape(frame.kept) * scale.reshape(frame.scale))
    if bias is not None:
        y = y + bias.reshape(frame.scale)
    y = y.reshape(x.shape)
    if residual is not None:
        y = y + residual
    y = np.asarray(np.maximum(y, 0) if relu else y)
    return y if hi is None else np.minimum(y, y.dtype.type(hi))


@dataclass(frozen=True)
class BatchNormInfer(_Norm):
    """(x [N, C, *S], scale, bias, mean, var, all [C]) -> (x - mean) / sqrt(var + epsilon) * scale + bias.

    relu, residual, hi: as in BatchNorm, the residual being operand 5.
    """

    epsilon: float
    relu: bool = False
    residual: bool = False
    hi: float | None = None
    inplace = {0: 0}

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        names = (*_BATCH[:3], "mean", "var", "residual")
        self.expect(inputs, 5 + self.residual, ", ".join(names[: 5 + self.residual]))
        self.bounded(self.relu, self.hi)
        x = inputs[0]
        if x.ndim < 2:
            raise ShapeError(f"{self.name}: x must be [N, C, *spatial], got {x}")
        self.small(x, x.shape[1:2], **dict(zip(names[1:5], inputs[1:5], strict=True)))
        if self.residual:
            self.alike(x, residual=inputs[5])
        return (x.open,)

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        x, *rest = axes
        if self.residual and rest.pop() != x:
            return None
        return first_axis((x, *rest))

    def vjp(self, grads: Values, inputs: Values, outputs: Values) -> Values:
        x, scale, bias, mean, var = inputs[:5]
        rstd = (var + self.epsilon).rsqrt()
        op = BatchNormGrad(self.relu, self.relu and self.residual, moving=False, hi=self.hi)
        extra = (outputs[0],) if op.residual else (bias,) if self.relu else ()
        dx, dscale, dbias, *rest = bind(op, grads[0], x, scale, mean, rstd, *extra)
        found = [dx, dscale, dbias, -(dbias * scale * rstd), dscale * scale * rstd * rstd * -0.5]
        return [*found, rest[0] if rest else grads[0]] if self.residual else found

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        x, scale, bias, mean, var = inputs[:5]
        rstd = 1 / np.sqrt(var + self.epsilon)
        residual = inputs[5] if self.residual else None
        return (_affine(channel_frame(x.shape), x, mean, rstd, scale, bias, residual, self.relu, self.hi),)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, x in enumerate((*_BATCH_SHAPES, (1, 3), (0, 3, 2))):
            op = cls(1e-5, i % 3 == 1, i % 4 >= 2, 0.8 if i == 4 else None)
            after: tuple[Arg, ...] = (Arg(x),) if op.residual else ()
            yield from _samples(op, (Arg(x),), x[1:2], "nnnp", after)


@dataclass(frozen=True)
class BatchNormGrad(_Norm):
    """(g, x [N, C, *S], scale, mean, rstd, all [C]) -> (dx, dscale [C], dbias [C]): gradients of batch norm.

    moving: mean and rstd depend on x, else they are constants (inference). relu: g is first masked where the output
    was not positive, or not below `hi`. The mask comes from operand 5: the bias [C], from which the output is
    recomputed, or with `residual` the output y, shaped like x; the masked g is then the fourth output, the residual's
    gradient.
    """

    relu: bool = False
    residual: bool = False
    moving: bool = True
    hi: float | None = None
    inplace = {0: 0}

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        names = ("g", "x", "scale", "mean", "rstd", "y" if self.residual else "bias")[: 5 + self.relu]
        self.expect(inputs, len(names), ", ".join(names))
        self.bounded(self.relu, self.hi)
        if self.residual and not self.relu:
            raise ValueError(f"{self.name}: residual=True without relu: the residual's gradient is g itself")
        g, x = inputs[:2]
        if x.ndim < 2:
            raise ShapeError(f"{self.name}: x must be [N, C, *spatial], got {x}")
        self.alike(x, g=g)
        given = dict(zip(names[2:], inputs[2:], strict=True))
        if self.residual:
            self.alike(x, y=given.pop("y"))
        self.small(x, x.shape[1:2], **given)
        small = Spec(x.shape[1:2], x.dtype.compute)
        return (x.open, small, small, *((x.open,) if self.residual else ()))

    def vjp(self, grads: Values, inputs: Values, outputs: Values) -> Values:
        g, x, scale, mean, rstd = inputs[:5]
        keep = self._positive(inputs)
        masked = g if keep is None else where(keep, g, 0.0)
        found = _second(channel_frame(x.shape), grads[:3], (masked, x, scale, mean, rstd), self.moving)
        by_g = _plus(found.g, grads[3] if self.residual else None)
        if keep is not None and by_g is not None:
            by_g = where(keep, by_g, 0.0)
        return [by_g, *found[1:], *((None,) if self.relu else ())]

    def _positive(self, inputs: Values) -> Any:
        """Where the output was positive and below `hi`; None without relu."""
        if not self.relu:
            return None
        if self.residual:
            y = inputs[5]
        else:
            _, x, scale, mean, rstd, bias = inputs
            shape = channel_frame(x.shape).scale
            slope, mean, bias = (v.reshape(shape) for v in (rstd * scale, mean, bias))
            y = (x.cast(rstd.dtype) - mean) * slope + bias
        return y > 0.0 if self.hi is None else (y > 0.0) & (y < self.hi)

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        g, x, scale, mean, rstd = inputs[:5]
        frame = channel_frame(x.shape)
        if self.relu:
            y = inputs[5] if self.residual else _affine(frame, x, mean, rstd, scale, inputs[5])
            g = np.where((y > 0) if self.hi is None else (y > 0) & (y < self.hi), g, 0)
        found = _gradient(frame, g, x, scale, mean, rstd, self.moving)
        return (*found, g) if self.residual else found

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for i, x in enumerate(_BATCH_SHAPES):
            op = cls(i % 3 > 0, i % 3 == 2, i != 3, 0.9 if i in (2, 4) else None)
            after: tuple[Arg, ...] = (Arg(x, differentiable=False),) if op.residual else ()
            yield from _samples(
                op, (Arg(x), Arg(x)), x[1:2], "nnp" + "n" * (op.relu and not op.residual), after
            )


# ------------------------------------------------------------------------------------- layer, RMS and group norm


class _Rows(_Norm):
    """Forward norms with per-sample statistics. Subclasses define which elements share what."""

    epsilon: float
    #: Whether the mean is subtracted and a bias is added.
    centred: ClassVar[bool] = True

    def frame(self, x: Spec) -> Frame:
        """The sharing of statistics and scales. Raises ShapeError."""
        raise NotImplementedError

    def scales(self, x: Shape) -> Shape:
        """The shape of scale and bias."""
        raise NotImplementedError

    def free_axes(self, rank: int) -> Sequence[int]:
        """Axes of x, for its rank, along which nothing is shared, and which the statistics also have."""
        raise NotImplementedError

    def grad(self) -> Op:
        """The gradient's op."""
        raise NotImplementedError

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        names = ("x", "scale", "bias")[: 2 + self.centred]
        self.expect(inputs, len(names), ", ".join(names))
        x = inputs[0]
        frame = self.frame(x)
        self.small(x, self.scales(x.shape), **dict(zip(names[1:], inputs[1:], strict=True)))
        return (x.open, *(Spec(frame.stats, x.dtype.compute),) * (1 + self.centred))

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        return first_axis(axes, 2 + self.centred, self.free_axes(inputs[0].ndim))

    def vjp(self, grads: Values, inputs: Values, outputs: Values) -> Values:
        x, found = inputs[0], [None] * len(inputs)
        if grads[0] is not None:
            found = list(bind(self.grad(), grads[0], x, inputs[1], *outputs[1:]))
        if any(g is not None for g in grads[1:]):
            mean, to_mean = (outputs[1], grads[1]) if self.centred else (None, None)
            more = _through_statistics(self.frame(x.spec), x, mean, outputs[-1], to_mean, grads[-1])
            found[0] = _plus(found[0], more)
        return found

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        x, scale, *bias = inputs
        frame = self.frame(Spec(x.shape, float64))
        split = x.reshape(frame.split)
        mean = np.mean(split, frame.axes) if self.centred else None
        var = np.var(split, frame.axes) if self.centred else np.mean(np.square(split), frame.axes)
        rstd = 1 / np.sqrt(var + self.epsilon)
        y = _affine(frame, x, mean, rstd, scale, bias[0] if bias else None)
        return (y, *(() if mean is None else (mean.reshape(frame.stats),)), rstd.reshape(frame.stats))


class _RowsGrad(_Norm):
    """Gradients of norms with per-sample statistics: (g, x, scale, mean, rstd) -> (dx, dscale, dbias)."""

    centred: ClassVar[bool] = True
    inplace = {0: 0}

    def frame(self, x: Spec) -> Frame:
        """The sharing of statistics and scales. Raises ShapeError."""
        raise NotImplementedError

    def scales(self, x: Shape) -> Shape:
        """The shape of scale and bias."""
        raise NotImplementedError

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        names = ("g", "x", "scale", "mean", "rstd") if self.centred else ("g", "x", "scale", "rstd")
        self.expect(inputs, len(names), ", ".join(names))
        g, x, scale, *stats = inputs
        self.alike(x, g=g)
        frame, small = self.frame(x), self.scales(x.shape)
        self.small(x, small, scale=scale)
        self.small(x, frame.stats, **dict(zip(names[3:], stats, strict=True)))
        return (x.open, *(Spec(small, x.dtype.compute),) * (1 + self.centred))

    def vjp(self, grads: Values, inputs: Values, outputs: Values) -> Values:
        g, x, scale, *stats = inputs
        mean, rstd = stats if self.centred else (None, stats[0])
        arriving = grads if self.centred else (*grads, None)
        found = _second(self.frame(x.spec), arriving, (g, x, scale, mean, rstd))
        return list(found) if self.centred else [*found[:3], found.rstd]

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        g, x, scale, *stats = inputs
        mean, rstd = stats if self.centred else (None, stats[0])
        dx, dscale, dbias = _gradient(self.frame(Spec(x.shape, float64)), g, x, scale, mean, rstd)
        dx = dx.reshape(x.shape)
        return (dx, dscale, dbias) if self.centred else (dx, dscale)


def _last_axes(op: Op, x: Spec, rank: int) -> Frame:
    """Layer norm's frame: the last `rank` axes."""
    if not 1 <= rank <= x.ndim or 0 in x.shape[x.ndim - rank :]:
        raise ShapeError(f"{op.name}: x {x} must have {rank} or more axes, the last {rank} not empty")
    lead = x.ndim - rank
    return Frame(x.shape, tuple(range(lead, x.ndim)), (1,) * lead + x.shape[lead:], x.shape[:lead])


def _groups(op: Op, x: Spec, groups: int) -> Frame:
    """Group norm's frame: [N, groups, C / groups, *S]."""
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups or 0 in x.shape[1:]:
        raise ShapeError(
            f"{op.name}: x must be [N, C, *spatial] with C a multiple of groups={groups}, got {x}"
        )
    n, c, *spatial = x.shape
    split = (n, groups, c // groups, *spatial)
    return Frame(
        split, tuple(range(2, len(split))), (1, groups, c // groups, *(1,) * len(spatial)), (n, groups)
    )


_ROW_CASES: tuple[tuple[Shape, int], ...] = (
    ((3, 5), 1), ((2, 3, 4, 6), 2), ((4, 33), 1), ((2, 7, 48), 1), ((5, 1000), 1), ((17,), 1), ((0, 3), 1),
)  # fmt: skip
_GROUP_CASES: tuple[tuple[Shape, int], ...] = (
    ((2, 6, 3, 2), 3), ((3, 4, 5), 4), ((2, 8), 1), ((2, 16, 7, 5), 2), ((1, 6, 2, 3, 3), 6), ((3, 12, 9, 8), 4),
)  # fmt: skip


@dataclass(frozen=True)
class LayerNorm(_Rows):
    """(x, scale, bias) -> (y, mean, rstd): rows over the last `rank` axes normalized; statistics per row."""

    rank: int
    epsilon: float

    def frame(self, x: Spec) -> Frame:
        return _last_axes(self, x, self.rank)

    def scales(self, x: Shape) -> Shape:
        return x[len(x) - self.rank :]

    def free_axes(self, rank: int) -> Sequence[int]:
        return range(rank - self.rank)

    def grad(self) -> Op:
        return LayerNormGrad(self.rank)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, rank in _ROW_CASES:
            yield from _samples(cls(rank, 1e-5), (Arg(shape),), shape[-rank:], "nn")


@dataclass(frozen=True)
class LayerNormGrad(_RowsGrad):
    """(g, x, scale, mean, rstd) -> (dx, dscale, dbias): the gradients of LayerNorm."""

    rank: int

    def frame(self, x: Spec) -> Frame:
        return _last_axes(self, x, self.rank)

    def scales(self, x: Shape) -> Shape:
        return x[len(x) - self.rank :]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, rank in _ROW_CASES:
            yield from _gradient_samples(cls(rank), shape, shape[-rank:], shape[:-rank])


@dataclass(frozen=True)
class RmsNorm(_Rows):
    """(x, scale) -> (y, rstd): x * rstd * scale, rstd = 1 / sqrt(mean of x² over the last `rank` axes + epsilon)."""

    rank: int
    epsilon: float
    centred = False

    def frame(self, x: Spec) -> Frame:
        return _last_axes(self, x, self.rank)

    def scales(self, x: Shape) -> Shape:
        return x[len(x) - self.rank :]

    def free_axes(self, rank: int) -> Sequence[int]:
        return range(rank - self.rank)

    def grad(self) -> Op:
        return RmsNormGrad(self.rank)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, rank in _ROW_CASES:
            yield from _samples(cls(rank, 1e-6), (Arg(shape),), shape[-rank:], "n")


@dataclass(frozen=True)
class RmsNormGrad(_RowsGrad):
    """(g, x, scale, rstd) -> (dx, dscale): the gradients of RmsNorm."""

    rank: int
    centred = False

    def frame(self, x: Spec) -> Frame:
        return _last_axes(self, x, self.rank)

    def scales(self, x: Shape) -> Shape:
        return x[len(x) - self.rank :]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, rank in _ROW_CASES:
            yield from _gradient_samples(cls(rank), shape, shape[-rank:], shape[:-rank])


@dataclass(frozen=True)
class GroupNorm(_Rows):
    """(x [N, C, *S], scale [C], bias [C]) -> (y, mean [N, groups], rstd [N, groups]).

    Each sample's channels are split into `groups`, each normalized separately; groups = C is instance norm.
    """

    groups: int
    epsilon: float

    def frame(self, x: Spec) -> Frame:
        return _groups(self, x, self.groups)

    def scales(self, x: Shape) -> Shape:
        return x[1:2]

    def free_axes(self, rank: int) -> Sequence[int]:
        return (0,)

    def grad(self) -> Op:
        return GroupNormGrad(self.groups)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, groups in _GROUP_CASES:
            yield from _samples(cls(groups, 1e-5), (Arg(shape),), shape[1:2], "nn")


@dataclass(frozen=True)
class GroupNormGrad(_RowsGrad):
    """(g, x [N, C, *S], scale [C], mean [N, groups], rstd [N, groups]) -> (dx, dscale, dbias): of GroupNorm."""

    groups: int

    def frame(self, x: Spec) -> Frame:
        return _groups(self, x, self.groups)

    def scales(self, x: Shape) -> Shape:
        return x[1:2]

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape, groups in _GROUP_CASES:
            yield from _gradient_samples(cls(groups), shape, shape[1:2], (shape[0], groups))


def _gradient_samples(op: _RowsGrad, shape: Shape, scale: Shape, stats: Shape) -> Iterator[Sample]:
    for dtype, dtypes in ((None, (float64, float32)), (float32, (float16, bfloat16))):
        mean = (Arg(stats, dtype),) if op.centred else ()
        rstd = Arg(stats, dtype, low=0.5, high=2.0)
        yield Sample(op, (Arg(shape), Arg(shape), Arg(scale, dtype), *mean, rstd), dtypes)


# ---------------------------------------------------------------------------- functions, as in torch.nn.functional


def _filled(x: Any, given: Any, shape: Shape, value: float) -> Any:
    """A scale, bias or statistic in x's compute dtype: the given one, else all `value`."""
    wide = x.dtype.compute
    return np.full(shape, value, wide.numpy) if given is None else operand(given).cast(wide)


def _kept_type(fresh: Any, given: Any) -> Any:
    """A new running statistic in the dtype of the old one."""
    return fresh.cast(operand(given).dtype)


@checked
def batch_norm(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    mode: Literal["spatial", "per_activation", "spatial_persistent"] = "spatial",
    relu: bool = False,
    residual: Any = None,
) -> Any:
    """input [N, C, *S] normalized per channel, as torch.nn.functional.batch_norm.

    In training each channel is normalized by its own mean and variance, and running statistics that are tensors are
    updated in place, as in torch; traced values cannot be, see `batch_norm_with_statistics`, which returns the
    updated ones. Otherwise the running statistics normalize. Other arguments and errors: as there.
    """
    y, *after = batch_norm_with_statistics(
        input, running_mean, running_var, weight, bias, training, momentum, eps,
        mode=mode, relu=relu, residual=residual,
    )  # fmt: skip
    if training:
        _overwrite("batch_norm", (running_mean, running_var), after)
    return y


def _overwrite(what: str, old: Sequence[Any], new: Sequence[Any]) -> None:
    """Write the updated running statistics to the tensors, as constants for derivatives, as in torch. Raises
    TypeError for other operands.
    """
    for x, value in zip(old, new, strict=True):
        if x is not None and not hasattr(x, "copy_"):
            raise TypeError(
                f"{what}: running statistics of type {type(x).__name__} cannot be overwritten; "
                f"{what}_with_statistics gives the next ones back"
            )
        if x is not None:
            x.copy_(stop_gradient(value))


@checked
def batch_norm_with_statistics(
    input: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    mode: Literal["spatial", "per_activation", "spatial_persistent"] = "spatial",
    relu: bool = False,
    residual: Any = None,
) -> tuple[Any, Any, Any]:
    """(y, next running mean, next running variance) of `batch_norm`, without modifying its arguments.

    In training each channel of input [N, C, *S] is normalized by its own mean and variance, and the running
    statistics move by `momentum` towards them (the variance as the unbiased one); otherwise, and for an empty input,
    the running statistics normalize and are unchanged. They may be None in training, and stay None. weight, bias:
    ones and zeros by default. Statistics, weight and bias are [C] and used in float32 for half types.

    mode: "spatial"; "per_activation" normalizes each element [C, *S] over N alone, and its operands have that shape;
    "spatial_persistent" is cuDNN's name for a faster spatial kernel, which the policy selects here. relu: clamp y at
    0. residual: like input, added before that; both are fused into the same kernels. Raises ShapeError, DTypeError,
    ValueError for inference without running statistics or an unknown mode.
    """
    x = operand(input, "batch_norm")
    _check_eps("batch_norm", eps, momentum)
    if (running_mean is None) != (running_var is None) or (running_mean is None and not training):
        raise ValueError("batch_norm: inference needs running_mean and running_var, training both or neither")
    if x.ndim < 2:
        raise ShapeError(f"batch_norm: input must be [N, C, *spatial], got {x.spec}")
    if mode == "per_activation" and x.ndim > 2:
        return _per_activation(
            x, (running_mean, running_var, weight, bias), training, momentum, eps, relu, residual
        )
    small = x.shape[1:2]
    added = () if residual is None else (operand(residual),)
    pair = _filled(x, weight, small, 1), _filled(x, bias, small, 0)
    state = _filled(x, running_mean, small, 0), _filled(x, running_var, small, 1)
    if not training or 0 in x.shape:  # an empty batch has no statistics: the running ones are unchanged
        y = call(BatchNormInfer(float(eps), relu, bool(added)), x, *pair, *state, *added)
        return y, running_mean, running_var
    y, _, _, mean, var = bind(
        BatchNorm(float(eps), float(momentum), relu, bool(added)), x, *pair, *state, *added
    )
    if running_mean is None:
        return y, None, None
    return y, _kept_type(mean, running_mean), _kept_type(var, running_var)


def _per_activation(
    x: Any, small: Values, training: bool, momentum: float, eps: float, relu: bool, residual: Any
) -> tuple[Any, Any, Any]:
    """Every element of a sample as a channel of its own."""
    flat = (x.shape[0], prod(x.shape[1:]))
    for name, v in zip(("running_mean", "running_var", "weight", "bias"), small, strict=True):
        if v is not None and operand(v).shape != x.shape[1:]:
            raise ShapeError(
                f"batch_norm: {name} {operand(v).spec} must have shape {x.shape[1:]} per activation"
            )
    mean, var, weight, bias = (None if v is None else operand(v).reshape(flat[1:]) for v in small)
    added = None if residual is None else operand(residual).reshape(flat)
    y, mean, var = batch_norm_with_statistics(
        x.reshape(flat), mean, var, weight, bias, training, momentum, eps, relu=relu, residual=added
    )
    mean, var = (None if v is None else v.reshape(x.shape[1:]) for v in (mean, var))
    return y.reshape(x.shape), mean, var


@checked
def layer_norm(
    input: Any, normalized_shape: int | Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """input normalized over its last axes, of sizes normalized_shape; torch.nn.functional.layer_norm.

    weight, bias: of shape normalized_shape, ones and zeros by default. Raises ShapeError, DTypeError.
    """
    x, small = _rows("layer_norm", input, normalized_shape)
    _check_eps("layer_norm", eps)
    return call(
        LayerNorm(len(small), float(eps)), x, _filled(x, weight, small, 1), _filled(x, bias, small, 0)
    )


@checked
def rms_norm(
    input: Any, normalized_shape: int | Sequence[int], weight: Any = None, eps: float | None = None
) -> Any:
    """input divided by its root mean square over the last axes; torch.nn.functional.rms_norm.

    weight: of shape normalized_shape, ones by default. eps: by default the machine epsilon of input's compute dtype.
    Raises ShapeError, DTypeError.
    """
    x, small = _rows("rms_norm", input, normalized_shape)
    _check_eps("rms_norm", 0.0 if eps is None else eps)
    epsilon = float(np.finfo(x.dtype.compute.numpy).eps) if eps is None else float(eps)
    return call(RmsNorm(len(small), epsilon), x, _filled(x, weight, small, 1))


def _rows(what: str, input: Any, normalized_shape: int | Sequence[int]) -> tuple[Any, Shape]:
    x, small = operand(input, what), as_shape(normalized_shape, f"{what}: normalized_shape")
    if not small or x.shape[x.ndim - len(small) :] != small or len(small) > x.ndim:
        raise ShapeError(f"{what}: normalized_shape {small} must be the last sizes of input {x.spec}")
    return x, small


@checked
def group_norm(input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """input [N, C, *S] with each of num_groups groups of channels normalized; torch.nn.functional.group_norm.

    weight, bias: [C], ones and zeros by default. Raises ShapeError, DTypeError.
    """
    x = operand(input, "group_norm")
    _check_eps("group_norm", eps)
    small = x.shape[1:2]
    op = GroupNorm(int(num_groups), float(eps))
    return call(op, x, _filled(x, weight, small, 1), _filled(x, bias, small, 0))


def _check_eps(what: str, eps: float, momentum: float = 0.0) -> None:
    """Raise ValueError for invalid numbers: a negative or infinite eps, a momentum outside [0, 1]."""
    within(what, "eps", eps, 0)
    within(what, "momentum", momentum, 0, 1)


@checked
def instance_norm(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """Each channel of each sample of input [N, C, *S] normalized, as torch.nn.functional.instance_norm.

    Running statistics that are tensors are updated in place, as in torch; traced values cannot be, see
    `instance_norm_with_statistics`, which returns the updated ones.
    """
    y, *after = instance_norm_with_statistics(
        input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )
    if use_input_stats:
        _overwrite("instance_norm", (running_mean, running_var), after)
    return y


@checked
def instance_norm_with_statistics(
    input: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, Any, Any]:
    """(y, next running mean, next running variance) of `instance_norm`, without modifying its arguments.

    Running statistics, if given, move towards the averages over N; with use_input_stats=False they normalize instead.
    weight, bias: [C]. Raises as batch_norm does.
    """
    x = operand(input, "instance_norm")
    _check_eps("instance_norm", eps, momentum)
    if not use_input_stats:
        return batch_norm_with_statistics(x, running_mean, running_var, weight, bias, False, momentum, eps)
    if x.ndim < 3 or prod(x.shape[2:]) < 2:
        raise ShapeError(
            f"instance_norm: needs more than one spatial element, [N, C, *spatial], got {x.spec}"
        )
    y = group_norm(x, x.shape[1], weight, bias, eps)
    if running_mean is None or running_var is None:
        return y, running_mean, running_var
    axes = tuple(range(2, x.ndim))
    wide = x.cast(x.dtype.compute)
    fresh = wide.mean(axes).mean(0), wide.var(axes).mean(0)
    old = (operand(v) for v in (running_mean, running_var))
    mean, var = (o * (1 - momentum) + f.cast(o.dtype) * momentum for o, f in zip(old, fresh, strict=True))
    return y, mean, var
