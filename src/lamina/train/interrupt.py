"""Ctrl-C as a request: a training step is never interrupted midway, so that a state saved after it is consistent."""

from __future__ import annotations

import signal
from types import FrameType

from lamina.train.preemption import Preemption


class Interrupt(Preemption):
    """Within this context the first Ctrl-C makes `asked` true, on all ranks of the group after the same step, as with
    `Preemption`; the second one interrupts its process immediately, as usual.

    Only on the main thread, which gets signals, and only where no other handler is installed.
    """

    signals = (signal.SIGINT,)
    default = staticmethod(signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._own:
            raise KeyboardInterrupt
        super()._note(number, frame)
