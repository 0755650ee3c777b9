"""Loss layers hand their arguments to the functions; values and gradients: ModuleInfo and the functions' tests."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops

RNG = np.random.default_rng(0)
X, Y, Z = RNG.standard_normal((3, 6, 4)).astype(np.float32)
P, Q = RNG.uniform(0.1, 0.9, (2, 6, 4)).astype(np.float32)
SIGNS = RNG.choice([-1, 1], (6, 4))
LABELS = RNG.integers(0, 4, 6)
W = np.array([1, 2, 3, 4], np.float32)
CASES: list[tuple[nn.Module, tuple[Any, ...], Any]] = [
    (nn.BCELoss(W, reduction="sum"), (P, Q), ops.binary_cross_entropy(P, Q, W, reduction="sum")),
    (nn.KLDivLoss(reduction="batchmean"), (X, Q), ops.kl_div(X, Q, reduction="batchmean")),
    (nn.KLDivLoss(log_target=True), (X, Y), ops.kl_div(X, Y, log_target=True)),
    (
        nn.PoissonNLLLoss(False, True, eps=0.1),
        (P, Q),
        ops.poisson_nll_loss(P, Q, False, True, eps=0.1),
    ),
    (nn.GaussianNLLLoss(full=True, eps=0.5), (X, Y, P), ops.gaussian_nll_loss(X, Y, P, True, 0.5)),
    (
        nn.CosineEmbeddingLoss(0.2),
        (X, Y, SIGNS[:, 0]),
        ops.cosine_embedding_loss(X, Y, SIGNS[:, 0], 0.2),
    ),
    (nn.MarginRankingLoss(), (X, Y, SIGNS), ops.margin_ranking_loss(X, Y, SIGNS)),
    (nn.HingeEmbeddingLoss(), (X, SIGNS), ops.hinge_embedding_loss(X, SIGNS)),
    (
        nn.TripletMarginLoss(0.5, 1.0, 0.1, True, reduction="none"),
        (X, Y, Z),
        ops.triplet_margin_loss(X, Y, Z, 0.5, 1.0, 0.1, True, reduction="none"),
    ),
    (
        nn.TripletMarginWithDistanceLoss(distance_function=ops.cosine_similarity, margin=0.3, swap=True),
        (X, Y, Z),
        ops.triplet_margin_with_distance_loss(
            X, Y, Z, distance_function=ops.cosine_similarity, margin=0.3, swap=True
        ),
    ),
    (nn.MultiMarginLoss(2, 0.5, W), (X, LABELS), ops.multi_margin_loss(X, LABELS, 2, 0.5, W)),
    (nn.MultiLabelMarginLoss(), (X, SIGNS), ops.multilabel_margin_loss(X, SIGNS)),
    (nn.MultiLabelSoftMarginLoss(W), (X, Q), ops.multilabel_soft_margin_loss(X, Q, W)),
    (nn.SoftMarginLoss(), (X, SIGNS), ops.soft_margin_loss(X, SIGNS)),
]


@pytest.mark.feature("F096")
@pytest.mark.parametrize(("layer", "args", "wanted"), CASES, ids=lambda c: type(c).__name__)
def test_they_are_the_functions(layer: nn.Module, args: Any, wanted: lm.Tensor) -> None:
    np.testing.assert_array_equal(layer(*args).numpy(), wanted.numpy())


def test_errors() -> None:
    with pytest.raises(
        ValueError, match="KLDivLoss: reduction must be one of 'mean', 'sum', 'none', 'batchmean', got 'all'"
    ):
        nn.KLDivLoss(reduction="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="MultiMarginLoss: p must be 1 or 2, got 3"):
        nn.MultiMarginLoss(3)
    for kind in (nn.TripletMarginLoss, nn.TripletMarginWithDistanceLoss):
        with pytest.raises(ValueError, match="margin must be above 0, got 0"):
            kind(margin=0)
