"""Losses: ATen says the reduction as a number."""

from __future__ import annotations

import inspect
from typing import Any

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts

REDUCTIONS = ("none", "mean", "sum")
#: ATen's name where it differs from the function's.
NAMES = {"cross_entropy_loss": "cross_entropy", "nll_loss_nd": "nll_loss", "nll_loss2d": "nll_loss"}
LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy",
          "ctc_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss",
          "multi_margin_loss", "multilabel_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
          "soft_margin_loss", "triplet_margin_loss", "gaussian_nll_loss", "multilabel_soft_margin_loss")  # fmt: skip


@converts(*LOSSES, *NAMES)
def loss(call: TorchCall) -> Any:
    """The function of lamina.ops of this name, by its own arguments' names."""
    function = getattr(ops, NAMES.get(call.name, call.name))
    known = inspect.signature(function).parameters
    given = {k: call[k] for k in call.cells}
    for old in ("size_average", "reduce"):
        if given.pop(old, None) is not None:
            raise call.error(f"the argument {old}; use reduction")
    if "self" in given:
        given["input"] = given.pop("self")
    if isinstance(given.get("reduction"), int):
        given["reduction"] = REDUCTIONS[given["reduction"]]
    return function(**{k: v for k, v in given.items() if k in known or v is not None})
