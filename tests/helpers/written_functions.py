"""An op's samples by its equivalent PyTorch functions: values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import torch

import lamina as lm
from lamina.backends.reference import run_reference
from lamina.convert.torch.functions import TorchStep, writer_of
from lamina.convert.torch.functions.step import WRITERS
from lamina.graph import Node, Value
from lamina.ops.core import REGISTRY, Array, Op, Sample, bind
from lamina.spec import DType, Spec, as_dtype, current_policy, float32, float64

#: Tolerance of float32 and half results against the float64 reference, relative to the largest element.
BOUNDS = {8: 1e-9, 4: 1e-5, 2: 2e-2, 1: 0.0}


def ops_of(family: Any) -> list[type[Op]]:
    """The ops that a module of functions exports."""
    return sorted(
        (op for op, f in WRITERS.items() if f.__module__ == family.__name__), key=lambda op: op.name
    )


def registered() -> list[type[Op]]:
    """All of Lamina's own ops."""
    return [op for op in REGISTRY.values() if op.__module__.startswith("lamina.ops.")]


def named() -> list[type[Op]]:
    """The ops that are looked up by name only."""
    return [
        op
        for op in registered()
        if op.elementwise and not fields(op) and op not in WRITERS and writer_of(op())
    ]


def all_wrong(ops: Iterable[type[Op]], **options: Any) -> list[str]:
    """The lines of `wrong` of several ops."""
    return [line for op in ops for line in wrong(op, **options)]


def step_of(op: Op, arrays: list[Array], *, computed: bool = False) -> TorchStep:
    """The op on operands that are constants, or (computed) outputs of other ops."""
    values = [Value(Spec(a.shape, as_dtype(a.dtype)), constant=lm.tensor(a)) for a in arrays]
    if computed:
        values = [Node(REGISTRY["identity"](), [v], current_policy()).outputs[0] for v in values]
    node = Node(op, values, current_policy())
    wanted = (True,) * len(node.outputs)

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return TorchStep(
        (node,), wanted, lambda numbers: None, call, lambda a: torch.from_numpy(np.array(a)), "cpu"
    )


def dtype_of(sample: Sample) -> DType:
    """The most precise type of a sample."""
    allowed = sample.dtypes or type(sample.op).dtypes
    return float64 if float64 in allowed else float32 if float32 in allowed else allowed[0]


def wrong(
    op: type[Op], *, computed: bool = False, takes: Callable[[Sample], bool] = lambda sample: True
) -> Iterator[str]:
    """One line for each sample supported by PyTorch whose results or gradients differ from the op's."""
    for sample in filter(takes, op.samples()):
        rng = np.random.default_rng(sum(map(ord, str(sample))))
        arrays = sample.draw(rng, dtype_of(sample))
        tensors = [torch.from_numpy(a.copy()) for a in arrays]
        moving = [
            computed or not op.name.startswith("batch_norm") or i not in (3, 4) for i in range(len(arrays))
        ]
        for t, arg, moves in zip(tensors, sample.args, moving, strict=True):
            t.requires_grad_(t.is_floating_point() and arg.differentiable and moves)
        step = step_of(sample.op, arrays, computed=computed)
        found = step.written(tensors)
        wanted = run_reference(sample.op, arrays, float64)
        for i, (y, w) in enumerate(zip(found, wanted, strict=False)):
            if y is not None and (problem := _apart(y, w, step.results[i])):
                yield f"{sample}: result {i}: {problem}"
        if op.differentiable:
            yield from (f"{sample}: {p}" for p in _gradients(sample.op, arrays, tensors, found))


def _apart(y: torch.Tensor, wanted: Array, spec: Spec) -> str:
    if (tuple(y.shape), str(y.dtype)) != (spec.shape, f"torch.{spec.dtype.name}"):
        return f"{y.dtype}{list(y.shape)} where infer says {spec}"
    a = y.detach().to(torch.float64).numpy()
    return _differ(a, np.asarray(wanted).astype(np.float64), BOUNDS[spec.dtype.itemsize])


def _differ(a: Array, b: Array, bound: float) -> str:
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite) or not np.array_equal(
        a[~finite], b[~finite], equal_nan=True
    ):
        return "other infinities"
    worst = float(np.abs(a - b)[finite].max(initial=0.0))
    return f"{worst:.1e} apart" if worst > bound * max(1.0, float(np.abs(b[finite]).max(initial=0.0))) else ""


def _gradients(op: Op, arrays: list[Array], tensors: list[torch.Tensor], found: list[Any]) -> Iterator[str]:
    """PyTorch's gradients of the results compared with those of `vjp`."""
    leaves = [t for t in tensors if t.requires_grad]
    slopes = [_slope(i, y) for i, y in enumerate(found)]
    terms = [(y * s).sum() for y, s in zip(found, slopes, strict=True) if s is not None]
    if not leaves or not terms:
        return
    theirs = iter(torch.autograd.grad(sum(terms[1:], terms[0]), leaves, allow_unused=True))
    operands = [lm.tensor(a) for a in arrays]
    outputs = bind(op, *operands)
    given = [_ours(slopes[i] if i < len(slopes) else None, y) for i, y in enumerate(outputs)]
    ours = op.vjp(given, operands, outputs)
    for i, t in enumerate(tensors):
        if t.requires_grad:
            g = next(theirs)
            a = np.zeros(t.shape) if g is None else g.detach().to(torch.float64).numpy()
            own = ours[i] if i < len(ours) else None
            b = np.zeros(t.shape) if own is None else np.asarray(own.numpy()).astype(np.float64)
            if problem := _differ(a, b, 30 * BOUNDS[t.element_size()]):
                yield f"gradient {i}: {problem}"


def _slope(i: int, y: Any) -> Any:
    if y is None or not y.requires_grad:
        return None
    return torch.from_numpy(np.random.default_rng(i).standard_normal(tuple(y.shape))).to(y.dtype)


def _ours(slope: Any, y: Any) -> Any:
    return None if slope is None else lm.tensor(slope.to(torch.float64).numpy()).cast(y.dtype)
