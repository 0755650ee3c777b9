"""Messages of a program to its watchdog."""

from __future__ import annotations

from contextlib import AbstractContextManager

from lamina.ops.arguments import checked
from lamina.runtime.ranks.progress import progress


@checked
def patience(seconds: float, doing: str) -> AbstractContextManager[None]:
    """Within the block other ranks may wait for this one for this many seconds without considering it hung.

    doing: its activity, such as "evaluating"; the others' error names it if it takes longer. Raises ValueError
    unless seconds is above 0.
    """
    if not seconds > 0:
        raise ValueError(f"patience: seconds must be above 0, got {seconds}")
    return progress.patience(seconds, doing)
