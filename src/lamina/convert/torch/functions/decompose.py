"""Eigenvalues and singular values, with Lamina's sign convention for vectors; factors and linear systems."""

from __future__ import annotations

from typing import Any

import torch

from lamina.convert.torch.functions.step import TorchStep, writes
from lamina.ops.primitives.decompose import OneTriangle, SingularValues, SymmetricEigen
from lamina.ops.primitives.factorize import CholeskyFactor, LinearSolve, LogDeterminant, TriangularSolve


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
    return torch.linalg.cholesky_ex(low + torch.tril(low, -1).mT)


@writes(LinearSolve)
def linear_solve(step: TorchStep, a: Any, b: Any) -> Any:
    """torch.linalg.solve_ex."""
    return torch.linalg.solve_ex(a, b)


@writes(TriangularSolve)
def triangular_solve(step: TorchStep, a: Any, b: Any) -> Any:
    """torch.linalg.solve_triangular."""
    op: TriangularSolve = step.op
    return torch.linalg.solve_triangular(a, b, upper=op.upper, unitriangular=op.unit)


@writes(LogDeterminant)
def log_determinant(step: TorchStep, x: Any) -> Any:
    """torch.linalg.slogdet."""
    return torch.linalg.slogdet(x)


@writes(OneTriangle)
def one_triangle(step: TorchStep, x: Any) -> Any:
    """x, whose gradient is split evenly between both triangles."""
    even = (x + x.mT) * 0.5
    return x.detach() + (even - even.detach())


def _signs(v: Any) -> Any:
    """The signs that make the element of the largest magnitude of each column positive."""
    largest = torch.argmax(torch.abs(v), -2, keepdim=True)
    return torch.where(torch.gather(v, -2, largest) < 0, -1.0, 1.0).to(v.dtype)
