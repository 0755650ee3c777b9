"""Tensor products composed of matrix products: einsum, tensordot, and the named ones."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np

from lamina.ops.arguments import Number, checked
from lamina.ops.core import floating, listing, operand
from lamina.ops.primitives.arrange import diagonal
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.elementary import pow
from lamina.ops.primitives.gather import index_select
from lamina.ops.primitives.matmul import bmm, matmul, mv, outer
from lamina.ops.primitives.norms import vector_norm
from lamina.ops.primitives.pointwise import add, clamp, mul, sqrt, where
from lamina.ops.primitives.reduce import mean, sum
from lamina.ops.primitives.shape import cat, expand, permute, slice_axis, transpose
from lamina.spec import ShapeError, int64, normalize_axis


def contracted(a: Any, b: Any) -> Any:
    """The products of matrices [B, M, K] and [B, K, N]; for integers as summed elementwise products."""
    if a.dtype.is_float:
        return matmul(a, b)
    return cast(sum(a.reshape((*a.shape, 1)) * b.reshape((b.shape[0], 1, *b.shape[1:])), 2), a.dtype)


# ---- einsum


@checked
def einsum(equation: Any, *operands: Any) -> Any:
    """Sums of products of elements in Einstein notation: "bij,bjk->bik"; "..." stands for leading axes.

    A label repeated within one operand takes its diagonal; without an arrow the labels that occur once are kept, in
    alphabetical order. Operands, as separate arguments or one sequence, are multiplied from left to right.
    torch.einsum, including its other form: einsum(a, [0, 1], b, [1, ...], [0, ...]) with labels 0 to 51 after each
    operand. Raises ValueError for an invalid equation, ShapeError for mismatched sizes.
    """
    if not isinstance(equation, str):
        equation, operands = _as_equation((equation, *operands))
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    xs = [operand(x, "einsum", f"operand {i}") for i, x in enumerate(given)]
    terms, result = _labels(equation, xs)
    pairs = [_diagonal(x, term) for x, term in zip(xs, terms, strict=True)]
    x, labels = pairs[0]
    for i, (y, others) in enumerate(pairs[1:], 1):
        later = {c for _, term in pairs[i + 1 :] for c in term} | set(result)
        x, labels = _product(x, labels, y, others, later)
    return _arranged(x, labels, result)


def _as_equation(given: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The equation, and the operands, from (operand, its labels, operand, its labels, …[, the result's labels])."""
    pairs = len(given) // 2
    if not pairs:
        raise ValueError(
            "einsum: begins with an equation, or with an operand and the list of its labels, got "
            f"{type(given[0]).__name__}"
        )
    terms = [_spelled(given[2 * i + 1]) for i in range(pairs)]
    result = f"->{_spelled(given[-1])}" if len(given) % 2 else ""
    return ",".join(terms) + result, tuple(given[0 : 2 * pairs : 2])


def _spelled(labels: Any) -> str:
    """Labels as letters, in their order. Raises ValueError for other values than numbers below 52 and "..."."""
    letters = dict(enumerate(ascii_uppercase + ascii_lowercase))
    if not isinstance(labels, (list, tuple)) or not all(c is Ellipsis or c in letters for c in labels):
        raise ValueError(
            f"einsum: labels are lists of whole numbers from 0 to 51, and of ..., got {labels!r}"
        )
    return "".join("..." if c is Ellipsis else letters[c] for c in labels)


def _labels(equation: str, xs: Sequence[Any]) -> tuple[list[list[str]], list[str]]:
    """The labels of each operand's axes and of the result's; axes of "..." are numbered from the back."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(xs):
        raise ValueError(f"einsum: {equation!r} names {len(texts)} operands, got {len(xs)}")
    terms = [_term(equation, text, x.ndim) for text, x in zip(texts, xs, strict=True)]
    dots = sorted({c for term in terms for c in term if c[0] == "."}, reverse=True)
    if arrow:
        known = {c for term in terms for c in term}
        result = [*dots] if right == "..." else _result(equation, right, dots)
        wrong = [c for c in result if c not in known]
        if wrong or len(set(result)) < len(result):
            raise ValueError(f"einsum: {right!r} must name labels of the operands once each, in {equation!r}")
        return terms, result
    letters = sorted(c for c in left if c.isalpha())
    return terms, [*dots, *(c for c in letters if letters.count(c) == 1)]


def _term(equation: str, text: str, rank: int) -> list[str]:
    """The labels of one operand's axes. Raises ValueError."""
    before, dots, after = text.partition("...")
    free = rank - len(before) - len(after)
    if not all(c.isalpha() for c in before + after) or free < 0 or (free and not dots):
        raise ValueError(f"einsum: {text!r} in {equation!r} does not fit an operand with {rank} axes")
    return [*before, *(f".{i:03}" for i in range(free, 0, -1)), *after]


def _result(equation: str, text: str, dots: Sequence[str]) -> list[str]:
    before, ellipsis, after = text.partition("...")
    if not all(c.isalpha() for c in before + after):
        raise ValueError(f"einsum: {text!r} is no result in {equation!r}")
    return [*before, *(dots if ellipsis else ()), *after]


def _diagonal(x: Any, term: Sequence[str]) -> tuple[Any, list[str]]:
    """Axes with the same label merged into one."""
    labels = list(term)
    for label in dict.fromkeys(term):
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            if x.shape[first] != x.shape[second]:
                raise ShapeError(
                    f"einsum: {label!r} stands for axes of {x.shape[first]} and {x.shape[second]}"
                )
            x = diagonal(x, 0, first, second)
            labels = [c for i, c in enumerate(labels) if i not in (first, second)] + [label]
    return x, labels


def _product(x: Any, xl: Sequence[str], y: Any, yl: Sequence[str], later: set[str]) -> tuple[Any, list[str]]:
    """The product of two operands, summed over the labels that are not needed later, and its labels."""
    size = _sizes(x, xl, y, yl)
    x, xl = _summed(x, xl, {c for c in xl if c not in yl and c not in later})
    y, yl = _summed(y, yl, {c for c in yl if c not in xl and c not in later})
    both = [c for c in xl if c in yl]
    # an axis of size 1 that meets a larger one does not take part in the matrix product: it broadcasts
    batch = [c for c in both if c in later]
    inner = [c for c in both if c not in later]
    rows, columns = [c for c in xl if c not in both], [c for c in yl if c not in both]
    a = _grouped(x, xl, (batch, rows, inner), size)
    b = _grouped(y, yl, (batch, inner, columns), size)
    found = contracted(a, b)
    labels = [*batch, *rows, *columns]
    return found.reshape([size[c] for c in labels]), labels


def _sizes(x: Any, xl: Sequence[str], y: Any, yl: Sequence[str]) -> dict[str, int]:
    """The size of each label; 1 broadcasts. Raises ShapeError."""
    size: dict[str, int] = {}
    for label, n in (*zip(xl, x.shape, strict=True), *zip(yl, y.shape, strict=True)):
        known = size.setdefault(label, n)
        if n != known and 1 not in (n, known):
            raise ShapeError(
                f"einsum: {label!r} stands for axes of {known} and {n} of {listing((x.spec, y.spec))}"
            )
        size[label] = n if known == 1 else known
    return size


def _summed(x: Any, labels: Sequence[str], gone: set[str]) -> tuple[Any, list[str]]:
    axes = [i for i, c in enumerate(labels) if c in gone]
    if axes:
        x = cast(sum(x, axes), x.dtype)
    return x, [c for c in labels if c not in gone]


def _grouped(x: Any, labels: Sequence[str], groups: Sequence[Sequence[str]], size: dict[str, int]) -> Any:
    """x with one axis per group of labels."""
    order = [c for group in groups for c in group]
    wide = expand(permute(x, [labels.index(c) for c in order]), [size[c] for c in order])
    return wide.reshape([prod(size[c] for c in group) for group in groups])


def _arranged(x: Any, labels: Sequence[str], result: Sequence[str]) -> Any:
    """The result's axes in order, the others summed."""
    x, labels = _summed(x, labels, set(labels) - set(result))
    return permute(x, [labels.index(c) for c in result])


@checked
def tensordot(a: Any, b: Any, dims: int | Sequence[Any] = 2) -> Any:
    """Products summed over axes: the last `dims` of a with the first of b, or the axes given by two lists.

    torch.tensordot. Raises ShapeError for axes of different sizes.
    """
    x, y = operand(a, "tensordot", "a"), operand(b, "tensordot", "b")
    if isinstance(dims, (int, np.integer)):
        if not 0 <= dims <= min(x.ndim, y.ndim):
            raise ShapeError(f"tensordot: dims must be in 0 … {min(x.ndim, y.ndim)}, got {dims}")
        left, right = list(range(x.ndim - int(dims), x.ndim)), list(range(int(dims)))
    else:
        left, right = (
            [
                normalize_axis(int(d), v.ndim, "tensordot")
                for d in (given if isinstance(given, Sequence) else [given])
            ]
            for given, v in zip(dims, (x, y), strict=True)
        )
    if [x.shape[i] for i in left] != [y.shape[i] for i in right]:
        raise ShapeError(f"tensordot: axes {left} of {x.spec} and {right} of {y.spec} differ in size")
    rows = [i for i in range(x.ndim) if i not in left]
    columns = [i for i in range(y.ndim) if i not in right]
    inner = prod(x.shape[i] for i in left)
    first = permute(x, [*rows, *left]).reshape((1, prod(x.shape[i] for i in rows), inner))
    second = permute(y, [*right, *columns]).reshape((1, inner, prod(y.shape[i] for i in columns)))
    return contracted(first, second).reshape([*(x.shape[i] for i in rows), *(y.shape[i] for i in columns)])


# ---- named products


def inner(input: Any, other: Any) -> Any:
    """Products summed over the last axis of both. torch.inner."""
    x, y = operand(input, "inner"), operand(other, "inner", "other")
    return mul(x, y) if 0 in (x.ndim, y.ndim) else tensordot(x, y, ([x.ndim - 1], [y.ndim - 1]))


def vdot(input: Any, other: Any) -> Any:
    """The dot product of two vectors."""
    return inner(input, other)


def kron(input: Any, other: Any) -> Any:
    """The Kronecker product: each element of input times all of other, as blocks. torch.kron."""
    x, y = operand(input, "kron"), operand(other, "kron", "other")
    rank = max(x.ndim, y.ndim)
    shapes = [(1,) * (rank - v.ndim) + v.shape for v in (x, y)]
    left = x.reshape([part for n in shapes[0] for part in (n, 1)])
    right = y.reshape([part for n in shapes[1] for part in (1, n)])
    return mul(left, right).reshape([a * b for a, b in zip(*shapes, strict=True)])


@checked
def cross(input: Any, other: Any, dim: int | None = None) -> Any:
    """The cross product of vectors of 3 along an axis: dim, or the first one of size 3. torch.cross."""
    x, y = operand(input, "cross"), operand(other, "cross", "other")
    shape = np.broadcast_shapes(x.shape, y.shape)
    if dim is None:
        dim = next((i for i, n in enumerate(x.shape) if n == 3), -1)
    axis = normalize_axis(dim, len(shape), "cross")
    if shape[axis] != 3:
        raise ShapeError(f"cross: axis {dim} must have 3 elements, got {listing((x.spec, y.spec))}")
    x, y = expand(x, shape), expand(y, shape)

    def turned(v: Any, by: int) -> Any:
        from_end = [slice_axis(v, axis, by, 3), slice_axis(v, axis, 0, by)]
        return cat(from_end, axis)

    return turned(x, 1) * turned(y, 2) - turned(x, 2) * turned(y, 1)


@checked
def addmv(input: Any, mat: Any, vec: Any, *, beta: Number = 1, alpha: Number = 1) -> Any:
    """beta * input + alpha * mat @ vec."""
    return _added(input, mv(mat, vec), beta, alpha)


@checked
def addr(input: Any, vec1: Any, vec2: Any, *, beta: Number = 1, alpha: Number = 1) -> Any:
    """beta * input + alpha * the outer product of two vectors."""
    return _added(input, outer(vec1, vec2), beta, alpha)


@checked
def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: Number = 1, alpha: Number = 1) -> Any:
    """beta * input + alpha * the sum of the products of two batches of matrices."""
    return _added(input, sum(bmm(batch1, batch2), 0), beta, alpha)


def _added(input: Any, product: Any, beta: Number, alpha: Number) -> Any:
    """beta * input + alpha * product; input is not read (nor its NaN) if beta is 0."""
    scaled = product if alpha == 1 else product * alpha
    if beta == 0:
        return scaled
    x = operand(input)
    return add(x if beta == 1 else x * beta, scaled)


@checked
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:
    """Powers of the elements of a vector, along a new last axis. torch.vander."""
    v = operand(x, "vander", "x")
    v = v if v.dtype.is_float else cast(v, int64)
    count = v.shape[-1] if N is None else N
    powers = np.arange(count) if increasing else np.arange(count)[::-1].copy()
    return pow(v.reshape((*v.shape, 1)), cast(operand(powers), v.dtype))


# ---- distances


@checked
def cdist(x1: Any, x2: Any, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Any:
    """The p-norm distances of all rows of x1 [..., P, M] from all of x2 [..., R, M]: [..., P, R]. torch.cdist.

    More than 25 Euclidean distances per row are computed by one matrix product, unless compute_mode is
    "donot_use_mm_for_euclid_dist"; "use_mm_for_euclid_dist" always uses it. The gradient is 0 where a distance is 0.
    """
    a, b = operand(x1, "cdist", "x1"), operand(x2, "cdist", "x2")
    modes = ("use_mm_for_euclid_dist_if_necessary", "use_mm_for_euclid_dist", "donot_use_mm_for_euclid_dist")
    if compute_mode not in modes:
        raise ValueError(
            f"cdist: compute_mode must be one of {', '.join(map(repr, modes))}, got {compute_mode!r}"
        )
    if p < 0 or min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[-1]:
        raise ShapeError(
            f"cdist: needs [..., P, M], [..., R, M] and p >= 0, got {listing((a.spec, b.spec))} and {p}"
        )
    many = max(a.shape[-2], b.shape[-2]) > 25
    if p == 2 and compute_mode != modes[2] and (many or compute_mode == modes[1]):
        return _euclidean(a, b)
    apart = a.reshape((*a.shape[:-1], 1, a.shape[-1])) - b.reshape((*b.shape[:-2], 1, *b.shape[-2:]))
    return vector_norm(apart, p, -1)


@checked
def pdist(input: Any, p: float = 2.0) -> Any:
    """The p-norm distances of all pairs of rows of [N, M], in order of the first row: [N (N - 1) / 2]. F.pdist.

    The gradient is 0 where a distance is 0.
    """
    x = operand(input, "pdist")
    if p < 0 or x.ndim != 2:
        raise ShapeError(f"pdist: needs [N, M] and p >= 0, got {x.spec} and {p}")
    first, second = np.triu_indices(x.shape[0], 1)
    return vector_norm(index_select(x, 0, first) - index_select(x, 0, second), p, -1)


def _euclidean(a: Any, b: Any) -> Any:
    """|a|^2 - 2 a b + |b|^2 by one product, clamped at 0."""
    squares = [sum(v * v, -1, True) for v in (a, b)]
    found = squares[0] + transpose(squares[1], -1, -2) - 2 * matmul(a, transpose(b, -1, -2))
    safe = found > 0
    return where(safe, sqrt(where(safe, found, 1.0)), 0.0)


@checked
def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """The covariance matrix of variables, one per row, over observations, one per column. torch.cov.

    correction: subtracted from the number of observations. fweights, aweights: the count and the weight of each.
    """
    x = floating(input, "cov")
    if x.ndim > 2:
        raise ShapeError(f"cov: takes at most two axes, got {x.spec}")
    x = x if x.ndim == 2 else x.reshape((1, x.spec.numel))
    count, weights = x.shape[1], None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is not None:
            w = operand(given, "cov", name)
            w = w if w.dtype.is_float else cast(w, x.dtype)
            if w.shape != (count,):
                raise ShapeError(f"cov: {name} must be [{count}], one for each observation, got {w.spec}")
            weights = w if weights is None else weights * w
    if weights is None:
        apart = x - mean(x, 1, True)
        freedom: Any = max(count - correction, 0)
        found = matmul(apart, transpose(apart, 0, 1))
        found = found * (1.0 / freedom) if freedom else found / (found * 0)
    else:
        total = sum(weights)
        apart = x - sum(x * weights, 1, True) / total
        own = weights if aweights is None else weights * operand(aweights)
        freedom = total - correction * sum(own) / total if aweights is not None else total - correction
        found = matmul(apart * weights, transpose(apart, 0, 1)) / clamp(freedom, min=0)
    return found.reshape(()) if found.shape == (1, 1) else found


def corrcoef(input: Any) -> Any:
    """The correlation matrix of variables, one per row. torch.corrcoef."""
    found = cov(input)
    if found.ndim == 0:
        return found / found
    spread = sqrt(diagonal(found))
    return clamp(found / spread.reshape((-1, 1)) / spread, -1.0, 1.0)
