"""Signals that announce the end of a job (SIGTERM, SIGUSR1): all ranks stop after the same step, to resume later."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, ClassVar, Self

from lamina.distributed.ranks import all_gather_object, world_group
from lamina.runtime.ranks.processes import PREEMPTED
from lamina.runtime.ranks.progress import progress
from lamina.runtime.ranks.watchdog import watchdog
from lamina.spec import Group


class Preempted(SystemExit):
    """Training ended because of a signal, and the state needed to resume is saved; the exit status is 85."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = PREEMPTED

    def __str__(self) -> str:
        return str(self.args[0])


class Preemption:
    """Within this context SIGTERM and SIGUSR1 do not end the process: `asked` tells that a rank got one.

        with Preemption() as preemption:
            for batch in batches:
                step(*batch)
                if preemption.asked:
                    folder.save()
                    folder.wait()
                    raise Preempted(preemption.asked)

    Every rank reads `asked` after the same steps and gets the same answer. Where ranks have watchdogs and steps are
    those of `train_step`, nothing is communicated until a signal arrives: the watchdogs agree on the step after which
    all stop. Otherwise each reading is a collective operation. Only on the main thread, which gets signals, and only
    where no other handler is installed; elsewhere it responds to the other ranks' signals alone. group: by default
    all.
    """

    #: Signals that are handled, if `default` is their current handler.
    signals: ClassVar[Sequence[signal.Signals]] = (signal.SIGTERM, signal.SIGUSR1)
    default: ClassVar[Any] = signal.SIG_DFL

    def __init__(self, group: Group | None = None) -> None:
        self.group = world_group() if group is None else group
        self._own = self._agreed = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                if signal.getsignal(number) is self.default:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if self._agreed and self.group.size > 1:
            progress.stop()

    @property
    def asked(self) -> str:
        """The name of the signal after which all stop now, "" if there is none."""
        if not self._agreed:
            self._agreed = self._agreement()
        return self._agreed

    def _agreement(self) -> str:
        if self.group.size == 1:
            return self._own
        if watchdog() is not None and progress.calls:
            names = [number.name for number in self.signals]
            return progress.why if progress.is_over and progress.why in names else ""
        return next((name for name in all_gather_object(self._own, self.group) if name), "")

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._own:
            self._own = signal.Signals(number).name
            watching = watchdog()
            if watching is not None and self.group.size > 1:
                watching.ask_to_stop(self._own)
