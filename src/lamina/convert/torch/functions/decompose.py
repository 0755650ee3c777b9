"""Eigenvalues and singular values, with Lamina's sign convention for vectors."""

from __future__ import annotations

from typing import Any

import torch

from lamina.convert.torch.functions.step import TorchStep, writes
from lamina.ops.primitives.decompose import OneTriangle, SingularValues, SymmetricEigen


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


@writes(OneTriangle)
def one_triangle(step: TorchStep, x: Any) -> Any:
    """x, whose gradient is split evenly between both triangles."""
    even = (x + x.mT) * 0.5
    return x.detach() + (even - even.detach())


def _signs(v: Any) -> Any:
    """The signs that make the element of the largest magnitude of each column positive."""
    largest = torch.argmax(torch.abs(v), -2, keepdim=True)
    return torch.where(torch.gather(v, -2, largest) < 0, -1.0, 1.0).to(v.dtype)
