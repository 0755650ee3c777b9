"""Errors that end a training run early."""

import math


class DivergedError(ArithmeticError):
    """The loss or a parameter is infinite or not a number; the message says since which step, and what is kept.

    step: the number of the step with this loss, counted from 0. loss: its value.
    """

    def __init__(self, message: str, step: int = -1, loss: float = math.nan) -> None:
        super().__init__(message)
        self.step, self.loss = step, loss


class ResumeError(ValueError):
    """A run would resume with settings other than its own; the message names each difference with both values."""
