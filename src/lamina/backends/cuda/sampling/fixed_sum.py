"""Bitwise reproducible sums with terms in any order: in fixed point (`fixed_sum.cuh`)."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2

from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    WORKSPACE_ALIGNMENT,
    Bindable,
    Fill,
    Launch,
    Place,
    Program,
    c_type,
    constants,
    looping,
    scratch,
    target,
)
from lamina.spec import Spec

_FILE = "sampling/fixed_sum.cu"


def count_bits(terms: int) -> int:
    """COUNT_BITS of fixed_sum.cuh for at most `terms` terms per sum, none larger than the largest value."""
    return ceil(log2(max(terms, 2)))


def fixed_sum(
    values: Spec, at: Place, result: Spec, terms: int, add: Callable[[Place, Place], tuple[Launch, Launch]]
) -> tuple[list[Bindable], int]:
    """The steps that write `result` from the values at a place, and their workspace.

    add(sums, range): the launch that adds all terms to `sums`, 64 bits for each element of the result in memory
    order, and the one that then writes NaN where terms are not finite.
    """
    if not values.numel or not result.numel:
        return ([Fill(target(), 0, result.nbytes)] if result.numel else []), 0
    found, sums = scratch(), scratch(WORKSPACE_ALIGNMENT)
    text = (
        f"typedef {index_type(max(values.numel, result.numel))} Index;\ntypedef {c_type(values.dtype)} T;\n"
    )
    text += constants(TERMS=values.numel, SUMS=result.numel, COUNT_BITS=count_bits(terms))
    workspace = WORKSPACE_ALIGNMENT + 8 * result.numel
    adding, odd = add(sums, found)
    steps: list[Bindable] = [
        Fill(found, 0, workspace),
        looping(Program("fixed_largest", _FILE, text), values.numel, (at, found)),
        adding,
        looping(Program("fixed_result", _FILE, text), result.numel, (sums, found, target())),
        odd,
    ]
    return steps, workspace
