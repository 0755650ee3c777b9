"""Why a training run ends before it is done."""

import math


class DivergedError(ArithmeticError):
    """The loss or a parameter is infinite or not a number; the message says since which step, and what is kept.

    step: the number of the step whose loss it was, counted from 0. loss: its value.
    """

    def __init__(self, message: str, step: int = -1, loss: float = math.nan) -> None:
        super().__init__(message)
        self.step, self.loss = step, loss


class ResumeError(ValueError):
    """A run is to go on otherwise than it began; the message names each difference with both values."""
