"""When targets are class labels: one rule for the accuracy of training and of evaluation."""

from __future__ import annotations

#: Labels that count neither as correct nor as wrong by default; losses ignore the same ones.
IGNORED = -100


def are_labels(outputs: tuple[int, ...], targets: tuple[int, ...], kind: str) -> bool:
    """Whether targets are labels for outputs: integers of shape (N, …) for (N, C, …), one per sample or one per
    pixel.

    At least two classes: with one output per sample (N, 1, …) the task is binary; as a class it would always be
    right.
    outputs, targets: their shapes. kind: the NumPy kind letter of the targets' dtype.
    """
    return kind in "iu" and len(outputs) > 1 and outputs[1] != 1 and outputs[:1] + outputs[2:] == targets
