"""Distances and similarities of vectors, as layers. Names and arguments as in torch.nn."""

from __future__ import annotations

from lamina import ops
from lamina.nn.module import Module, T


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along an axis."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim, self.eps = dim, eps

    def forward(self, x1: T, x2: T) -> T:
        """x1, x2 of shapes that broadcast to one: the result has that without the axis."""
        return ops.cosine_similarity(x1, x2, self.dim, self.eps)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"dim={self.dim}, eps={self.eps}"


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: T, x2: T) -> T:
        """x1, x2 (…, D) -> (…), or (…, 1) with keepdim."""
        return ops.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"p={self.norm}, eps={self.eps}, keepdim={self.keepdim}"
