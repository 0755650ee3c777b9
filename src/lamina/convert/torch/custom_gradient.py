"""Results with a custom gradient rule, under PyTorch's autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def with_rule(
    rule: Callable[..., Sequence[Any]],
    arguments: int,
    results: int,
    operands: Sequence[torch.Tensor],
    constants: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """The results among the operands (arguments, results, kept), whose gradient is given by the rule.

    rule: (*kept, *gradients of the results, *constants) -> one gradient or None for each argument.
    """
    made: tuple[torch.Tensor, ...] = _WithRule.apply(rule, tuple(constants), arguments, results, *operands)
    return made


class _WithRule(torch.autograd.Function):
    """(rule, constants, arguments, results, *operands) -> the results unchanged."""

    @staticmethod
    def forward(
        ctx: Any, rule: Any, constants: Any, arguments: int, results: int, *operands: Any
    ) -> tuple[Any, ...]:
        ctx.rule, ctx.constants, ctx.results = rule, constants, results
        ctx.save_for_backward(*operands[arguments + results :])
        return tuple(x.clone() for x in operands[arguments : arguments + results])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        kept = ctx.saved_tensors
        found = ctx.rule(*kept, *grads, *ctx.constants)
        return (*[None] * 4, *found, *[None] * (ctx.results + len(kept)))
