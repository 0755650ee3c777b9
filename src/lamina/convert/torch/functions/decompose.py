"""Eigenvalues and singular values, with Lamina's sign convention for vectors; factors and linear systems."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lamina.convert.torch.functions.step import TorchStep, writes
from lamina.ops.primitives.decompose import OneTriangle, SingularValues, SymmetricEigen
from lamina.ops.primitives.determinant import Cofactors, Determinant
from lamina.ops.primitives.factorize import CholeskyFactor, LinearSolve, LogDeterminant, TriangularSolve
from lamina.ops.primitives.lu import PivotedFactor, RowOrder
from lamina.ops.primitives.qr import CompleteOrthogonalFactor, OrthogonalFactor, TriangularFactor


@writes(SymmetricEigen)
def symmetric_eigen(step: TorchStep, x: Any) -> Any:
    """torch.linalg.eigh."""
    found = torch.linalg.eigh((x + x.mT) * 0.5)
    return found[0], found[1] * _signs(found[1])


@writes(SingularValues)
def singular_values(step: TorchStep, x: Any) -> Any:
    """torch.linalg.svd of N columns."""
    found = torch.linalg.svd(x, full_matrices=False)
    v = found[2].mT
    return found[0] * _signs(v), found[1], v * _signs(v)


@writes(CholeskyFactor)
def cholesky_factor(step: TorchStep, x: Any) -> Any:
    """torch.linalg.cholesky_ex of the lower triangle, which alone has a gradient."""
    low = torch.tril(x)
    return _two(torch.linalg.cholesky_ex(low + torch.tril(low, -1).mT))


@writes(LinearSolve)
def linear_solve(step: TorchStep, a: Any, b: Any) -> Any:
    """torch.linalg.solve_ex, whose info has the leading axes of A alone."""
    found = torch.linalg.solve_ex(a, b)
    return found[0], torch.broadcast_to(found[1], step.sizes(lambda n: tuple(n.outputs[1].shape)))


@writes(TriangularSolve)
def triangular_solve(step: TorchStep, a: Any, b: Any) -> Any:
    """torch.linalg.solve_triangular."""
    op: TriangularSolve = step.op
    return torch.linalg.solve_triangular(a, b, upper=op.upper, unitriangular=op.unit)


@writes(LogDeterminant)
def log_determinant(step: TorchStep, x: Any) -> Any:
    """torch.linalg.slogdet."""
    return _two(torch.linalg.slogdet(x))


@writes(Determinant)
def determinant(step: TorchStep, x: Any) -> Any:
    """torch.linalg.det."""
    return torch.linalg.det(x)


@writes(Cofactors)
def cofactors(step: TorchStep, x: Any) -> Any:
    """det(U V^T) U cof(diag(s)) V^T."""
    u, s, vh = torch.linalg.svd(x)
    unit = step.constant(np.eye(step.sizes(lambda n: n.inputs[0].shape[-1]), dtype=np.bool_))
    others = torch.where(unit, 1.0, s.unsqueeze(-2))
    turned = torch.linalg.det(u @ vh).detach().sign().unsqueeze(-1)
    return (u * (torch.prod(others, -1) * turned).unsqueeze(-2)) @ vh


@writes(PivotedFactor)
def pivoted_factor(step: TorchStep, x: Any) -> Any:
    """torch.linalg.lu_factor_ex."""
    return _two(torch.linalg.lu_factor_ex(x))


@writes(RowOrder)
def row_order(step: TorchStep, pivots: Any) -> Any:
    """The permutation of torch.lu_unpack, as the row of each one in its columns, or in its rows."""
    op: RowOrder = step.op
    lead = [-1] * (step.specs[0].ndim - 1)
    packed = pivots.to(torch.float32).unsqueeze(-2).expand(*lead, op.rows, -1)  # its shape alone counts
    permutation = torch.lu_unpack(packed, pivots, unpack_data=False)[0]
    return torch.argmax(permutation, -1 if op.inverse else -2).to(torch.int32)


@writes(OrthogonalFactor)
def orthogonal_factor(step: TorchStep, x: Any) -> Any:
    """torch.linalg.qr."""
    return _two(torch.linalg.qr(x))


@writes(TriangularFactor)
def triangular_factor(step: TorchStep, x: Any) -> Any:
    """The R of torch.linalg.qr, which has a gradient beside its Q alone."""
    return torch.linalg.qr(x)[1]


@writes(CompleteOrthogonalFactor)
def complete_orthogonal_factor(step: TorchStep, x: Any) -> Any:
    """torch.linalg.qr."""
    return _two(torch.linalg.qr(x, "complete"))


@writes(OneTriangle)
def one_triangle(step: TorchStep, x: Any) -> Any:
    """x, whose gradient is split evenly between both triangles."""
    even = (x + x.mT) * 0.5
    return x.detach() + (even - even.detach())


def _two(found: Any) -> Any:
    """The first two results of a function: while it is recorded, its tuple is a single proxy."""
    return found[0], found[1]


def _signs(v: Any) -> Any:
    """The signs that make the element of the largest magnitude of each column positive."""
    largest = torch.argmax(torch.abs(v), -2, keepdim=True)
    return torch.where(torch.gather(v, -2, largest) < 0, -1.0, 1.0).to(v.dtype)
