"""Adaptive softmax over a very large number of classes, with clusters of rare ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from lamina import ops
from lamina.nn.container import ModuleList, Sequential
from lamina.nn.linear import Linear
from lamina.nn.module import Module, T
from lamina.ops.arguments import DTypeLike
from lamina.ops.core import operand
from lamina.runtime import Device
from lamina.spec import ShapeError


class AdaptiveResult(NamedTuple):
    """The result of AdaptiveLogSoftmaxWithLoss: each label's log-probability, and their negative mean."""

    output: Any
    loss: Any


class AdaptiveLogSoftmaxWithLoss(Module):
    """The log-likelihood of labels, with rare classes in clusters of decreasing capacity (Grave et al. 2017).

    in_features: D of the input [N, D] or [D]. n_classes: the number of classes. cutoffs: increasing; classes below
    the first have their own logits, those between two cutoffs form a cluster, which has one logit; so classes are
    ordered from frequent to rare. div_value: cluster i uses D / div_value^(i + 1) features. head_bias: whether the
    first layer has a bias. All clusters are computed for all inputs, as shapes must not depend on values; parameters
    are as few as torch's. Raises ValueError for cutoffs that are not increasing or outside 1 … n_classes - 1.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        cutoffs: Sequence[int],
        div_value: float = 4.0,
        head_bias: bool = False,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        ends = [int(c) for c in cutoffs]
        if not ends or ends != sorted(set(ends)) or ends[0] < 1 or ends[-1] > n_classes - 1:
            raise ValueError(
                "AdaptiveLogSoftmaxWithLoss: cutoffs must increase within 1 … n_classes - 1 = "
                f"{n_classes - 1}, got {cutoffs!r}"
            )
        self.in_features, self.n_classes, self.div_value, self.head_bias = (
            in_features, n_classes, div_value, head_bias,
        )  # fmt: skip
        self.cutoffs = [*ends, n_classes]
        self.shortlist_size, self.n_clusters = ends[0], len(ends)
        self.head = Linear(in_features, ends[0] + len(ends), bias=head_bias)
        self.tail = ModuleList([self._cluster(i) for i in range(len(ends))])
        self.to(device, dtype)

    def _cluster(self, i: int) -> Sequential:
        inside = max(int(self.in_features // self.div_value ** (i + 1)), 1)
        size = self.cutoffs[i + 1] - self.cutoffs[i]
        return Sequential(Linear(self.in_features, inside, bias=False), Linear(inside, size, bias=False))

    def forward(self, input: T, target: T) -> AdaptiveResult:
        """input [N, D] or [D] and integer labels [N] or []: (log-probabilities of the labels, the loss [])."""
        x, labels = operand(input), operand(target)
        if x.ndim not in (1, 2) or labels.shape != x.shape[:-1]:
            raise ShapeError(
                "AdaptiveLogSoftmaxWithLoss: input [N, D] and labels [N], or [D] and [], got "
                f"{x.spec} and {labels.spec}"
            )
        output = -ops.nll_loss(self.log_prob(x), labels, reduction="none")
        return AdaptiveResult(output, -output.mean())

    def log_prob(self, input: T) -> T:
        """The log-probabilities of all classes: (…, D) -> (…, n_classes)."""
        first = ops.log_softmax(self.head(input), -1)
        sizes = [self.shortlist_size, *(1,) * self.n_clusters]
        frequent, *clusters = ops.split(first, sizes, -1)
        inside: list[Any] = [ops.log_softmax(layers(input), -1) for layers in self.tail]
        parts = [frequent, *(a + b for a, b in zip(clusters, inside, strict=True))]
        y: T = ops.cat(parts, -1)
        return y

    def predict(self, input: T) -> T:
        """The most likely class of each input, int64: (…, D) -> (…)."""
        return ops.argmax(self.log_prob(input), -1)
