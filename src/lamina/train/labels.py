"""When targets are class labels: one rule for the accuracy of training and of evaluation."""

from __future__ import annotations

#: Labels that count neither as right nor as wrong, unless another number is said; those that losses leave out.
IGNORED = -100


def are_labels(outputs: tuple[int, ...], targets: tuple[int, ...], kind: str) -> bool:
    """Whether targets are labels for outputs: integers of shape (N, …) for (N, C, …), one a sample or one a pixel.

    Of two classes or more: one output a sample (N, 1, …) is a binary one's; as a class it would always be right.
    outputs, targets: their shapes. kind: NumPy's letter for the targets' kind of dtype.
    """
    return kind in "iu" and len(outputs) > 1 and outputs[1] != 1 and outputs[:1] + outputs[2:] == targets
