"""What a program tells those who watch it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from lamina.ops.arguments import checked
from lamina.runtime.ranks.progress import progress


@checked
def patience(seconds: float, doing: str) -> AbstractContextManager[None]:
    """Within the block other ranks may wait for this one for so many seconds without taking it for hung.

    doing: what it does, such as "evaluating"; the others' error says so where it takes longer. Raises ValueError for
    seconds that are not above 0.
    """
    if not seconds > 0:
        raise ValueError(f"patience: seconds must be above 0, got {seconds}")
    return progress.patience(seconds, doing)
