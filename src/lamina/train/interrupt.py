"""Ctrl-C as a request: a training step is never cut in half, so that what is saved after it is whole."""

from __future__ import annotations

import signal
from types import FrameType

from lamina.train.preemption import Preemption


class Interrupt(Preemption):
    """While it is entered, the first Ctrl-C makes `asked` true, on all ranks of the group after the same step, as of
    `Preemption`; the second one interrupts its process at once, as ever.

    Only on the main thread, which gets signals, and only where nobody else handles them.
    """

    signals = (signal.SIGINT,)
    default = staticmethod(signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._own:
            raise KeyboardInterrupt
        super()._note(number, frame)
