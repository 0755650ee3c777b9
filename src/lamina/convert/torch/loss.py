"""Losses: ATen encodes the reduction as a number.

The exporter has no shapes for the CTC loss, whose table depends on the labels' lengths, and no graph of the Gaussian
one, which inspects the variances' values: `lamina::ctc_loss` and `lamina::gaussian_nll_loss` replace them while a
network's graph is made.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lamina import ops
from lamina.convert.torch.node import TorchCall, converts, defined, dtype_of
from lamina.convert.torch.targets import example

REDUCTIONS = ("none", "mean", "sum")
#: ATen's name where it differs from the function's.
NAMES = {"cross_entropy_loss": "cross_entropy", "nll_loss_nd": "nll_loss", "nll_loss2d": "nll_loss"}
LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cross_entropy",
          "ctc_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss",
          "multi_margin_loss", "multilabel_margin_loss", "nll_loss", "poisson_nll_loss", "smooth_l1_loss",
          "soft_margin_loss", "triplet_margin_loss", "gaussian_nll_loss", "multilabel_soft_margin_loss")  # fmt: skip


class LossMode(TorchFunctionMode):
    """Within the block PyTorch's CTC loss and its Gaussian one are replaced by those of the graph."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or its replacement."""
        if func not in _STAND_INS:
            return func(*args, **(kwargs or {}))
        stands, tensors = _STAND_INS[func]
        given = inspect.signature(func).bind(*args, **(kwargs or {}))
        given.apply_defaults()
        named = given.arguments
        for name in tensors:
            named[name] = torch.as_tensor(named[name])
        return getattr(torch.ops.lamina, stands)(*named.values())


def _ctc_loss(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int, reduction: str,
              zero_infinity: bool) -> torch.Tensor:  # fmt: skip
    samples = log_probs.shape[1:-1] if reduction == "none" else ()
    return log_probs.new_empty(samples)


defined(
    "ctc_loss",
    "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, str reduction, "
    "bool zero_infinity) -> Tensor",
    _ctc_loss,
)


def _gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool, eps: float, reduction: str
) -> torch.Tensor:
    shape = torch.broadcast_shapes(input.shape, target.shape) if reduction == "none" else ()
    return input.new_empty(shape)


defined(
    "gaussian_nll_loss",
    "(Tensor input, Tensor target, Tensor var, bool full, float eps, str reduction) -> Tensor",
    _gaussian_nll_loss,
)


#: The function -> its replacement, and its arguments that may be numbers and become tensors.
_STAND_INS = {
    torch.nn.functional.ctc_loss: ("ctc_loss", ("input_lengths", "target_lengths")),
    torch.nn.functional.gaussian_nll_loss: ("gaussian_nll_loss", ("var",)),
}


@converts(*LOSSES, *NAMES, "lamina::ctc_loss", "lamina::gaussian_nll_loss")
def loss(call: TorchCall) -> Any:
    """The function of lamina.ops of this name, with its own argument names. What it computes in float32 of half types
    (cross-entropy) is rounded as PyTorch's."""
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
    found = function(**{k: v for k, v in given.items() if k in known or v is not None})
    seen = example(call.node)
    is_half = isinstance(seen, torch.Tensor) and seen.dtype in (torch.bfloat16, torch.float16)
    return ops.cast(found, dtype_of(seen.dtype)) if is_half else found
