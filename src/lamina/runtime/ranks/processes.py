"""The ranks of one machine as processes: started, watched, terminated together, and restarted.

Each gets the variables that torchrun sets, so that PyTorch programs find them too, and a process group of its own.
None outlives the launcher: the kernel kills them when it is gone (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from lamina.runtime.ranks.monitor import RankMonitor
from lamina.runtime.ranks.verdict import Limits
from lamina.runtime.ranks.watchdog import ENDED, MONITOR

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
#: Number of a rank's last lines shown in a report.
_KEPT = 20
#: Bytes after which an incomplete line is passed on.
_LONGEST = 1 << 20
#: Signals that request the end of a job; the second one ends it at once.
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Signals forwarded to the ranks that end nothing here. Slurm announces a job's end by the first.
_PASSED = (signal.SIGUSR1, signal.SIGUSR2)
#: The exit status of a rank that has written a checkpoint on request of a signal, to continue later: no fault.
#: (HTCondor's status for a job that ended at a checkpoint.)
PREEMPTED = 85


@dataclass(frozen=True)
class Job:
    """A job to run. command: of each rank. hides_gpus: the ranks compute on CPUs.

    timeout: seconds within which all ranks have ended when one fails. patience: seconds that ranks have to exit
    when asked to (a checkpoint is written then). prefix: each line of output begins with the rank.
    """

    command: Sequence[str]
    ranks: int
    hides_gpus: bool = False
    timeout: float = 30.0
    patience: float = 30.0
    prefix: bool = False


@dataclass
class Process:
    """A rank's process, and the last lines that it wrote."""

    rank: int
    process: subprocess.Popen[bytes]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.process.poll() is not None

    @property
    def status(self) -> int:
        """The exit status as in a shell: 128 plus the signal's number if a signal killed it."""
        code = self.process.returncode
        return 128 - code if code < 0 else code

    @property
    def end(self) -> str:
        """How it ended, "" for success."""
        code = self.process.returncode
        if code < 0:
            return f"was killed by {_name_of(-code)}"
        return f"ended with exit status {code}" if code not in (0, PREEMPTED) else ""

    def signal(self, number: int) -> None:
        """Signal the process only."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it and all that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: the exit status, and a report of several lines, "" for success."""

    status: int
    report: str = ""
    asked: bool = False


class RankStarter:
    """Runs a job, with restarts, and forwards signals. For the main thread."""

    def __init__(
        self, job: Job, *, say: Callable[[str], None], environ: Mapping[str, str] | None = None
    ) -> None:
        self.job, self._say = job, say
        self._environ = dict(os.environ if environ is None else environ)
        self._processes: list[Process] = []
        self._signals: list[int] = []
        self._asked = 0  # the signal that requested the end
        self._deadline = float("inf")

    def run(self, restarts: int = 0) -> int:
        """The exit status: of the rank that failed first, 0 if none did."""
        before = {n: signal.signal(n, self._note) for n in (*_ENDING, *_PASSED)}
        try:
            for attempt in range(restarts + 1):
                outcome = self._attempt(attempt)
                if not outcome.status or outcome.asked:
                    break
                again = f"; starting all again ({attempt + 1} of {restarts})" if attempt < restarts else ""
                self._say(outcome.report + again)
            return outcome.status
        finally:
            for process in self._processes:
                process.kill()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: object) -> None:
        self._signals.append(number)

    # ---- one attempt
    def _attempt(self, attempt: int) -> Outcome:
        monitor = RankMonitor(self.job.ranks, Limits(self.job.timeout))
        with selectors.DefaultSelector() as outputs:
            try:
                self._processes = self._start(monitor, attempt, outputs)
                monitor.start()  # after the forks: a thread may hold locks that a forked child needs
                first = self._watch(monitor, outputs)
            finally:
                for process in self._processes:
                    process.kill()
                    process.process.wait()
                monitor.close()
            for key in list(outputs.get_map().values()):
                self._drain(outputs, key)
        return self._outcome(monitor, first)

    def _start(self, monitor: RankMonitor, attempt: int, outputs: selectors.BaseSelector) -> list[Process]:
        shared = self._environ | {
            "WORLD_SIZE": str(self.job.ranks), "LOCAL_WORLD_SIZE": str(self.job.ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), MONITOR: monitor.address,
            "LAMINA_RUN_ID": secrets.token_hex(8), "LAMINA_RESTART": str(attempt),
            "TORCHELASTIC_RESTART_COUNT": str(attempt), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        shared.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // self.job.ranks)))
        if self.job.hides_gpus:
            shared["CUDA_VISIBLE_DEVICES"] = ""
        started = []
        for rank in range(self.job.ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
            process = subprocess.Popen(
                self.job.command, env=shared | own, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, process_group=0, preexec_fn=_dies_with(os.getpid()),
            )  # fmt: skip
            started.append(Process(rank, process))
            self._processes = started
            for pipe, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                outputs.register(pipe, selectors.EVENT_READ, _Output(started[-1], target, self.job.prefix))
        return started

    def _watch(self, monitor: RankMonitor, outputs: selectors.BaseSelector) -> Process | None:
        """Wait until all ranks have ended; returns the process that failed first."""
        first: Process | None = None
        told: set[int] = set()
        self._deadline = float("inf")
        while len(told) < len(self._processes):
            for key, _ in outputs.select(0.05):
                self._drain(outputs, key)
            self._pass_on()
            for process in self._processes:
                if process.rank not in told and process.is_over:
                    told.add(process.rank)
                    monitor.ended(process.rank, "" if self._asked else process.end)
                    if process.end and first is None and process.status != ENDED:
                        first = process
            if not self._asked and (monitor.decided.is_set() or first is not None):
                self._end_others(monitor)
            if time.monotonic() > self._deadline:
                for process in self._processes:
                    process.kill()
        return first

    def _pass_on(self) -> None:
        """Forward received signals; the second request to end kills all at once."""
        while self._signals:
            number = self._signals.pop(0)
            for process in self._processes:
                process.signal(number)
            if number in _ENDING:
                self._deadline = time.monotonic() + (0.0 if self._asked else self.job.patience)
                self._asked = self._asked or number

    def _end_others(self, monitor: RankMonitor) -> None:
        """Watched ranks have time to report why they end; the others are sent SIGTERM now, and killed later.

        A rank at fault that has not ended, because it loops or is stopped, is killed now.
        """
        if self._deadline == float("inf"):
            self._deadline = time.monotonic() + monitor.limits.grace + 2 * monitor.limits.beat
            verdict = monitor.verdict
            if verdict is not None and verdict.rank >= 0 and not monitor.ranks[verdict.rank].end:
                self._processes[verdict.rank].kill()
            for process in self._processes:
                if not monitor.ranks[process.rank].joined:
                    process.signal(signal.SIGTERM)

    def _drain(self, outputs: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        pipe: IO[bytes] = key.fileobj  # type: ignore[assignment]
        while True:
            try:
                part = os.read(pipe.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not part:
                break
            key.data.write(part)
        key.data.end()
        outputs.unregister(pipe)
        pipe.close()

    # ---- the outcome
    def _outcome(self, monitor: RankMonitor, first: Process | None) -> Outcome:
        failed = [p for p in self._processes if p.end]
        preempted = not failed and any(p.status == PREEMPTED for p in self._processes)
        if preempted:
            return Outcome(PREEMPTED, "", asked=True)
        if self._asked:
            status = 128 + self._asked if failed else 0
            return Outcome(status, "", asked=True)
        verdict = monitor.verdict
        if not failed and verdict is None:
            return Outcome(0)
        blamed = self._processes[verdict.rank] if verdict is not None and verdict.rank >= 0 else first
        text = (
            str(verdict)
            if verdict is not None
            else f"rank {first.rank} {first.end}"
            if first
            else "a rank failed"
        )
        lines = [f"{text}. All {self.job.ranks} ranks have ended"]
        if blamed is not None and blamed.lines:
            lines.append(f"the last lines of rank {blamed.rank}:")
            lines += [f"  | {line}" for line in blamed.lines]
        status = (
            blamed.status if blamed is not None and blamed.end else max((p.status for p in failed), default=1)
        )
        return Outcome(status, "\n".join(lines))


class _Output:
    """Forwards a rank's output, whole lines at a time."""

    def __init__(self, process: Process, target: IO[str], prefix: bool) -> None:
        self._process, self._target = process, target
        self._prefix = f"[{process.rank}] ".encode() if prefix else b""
        self._rest = b""

    def write(self, part: bytes) -> None:
        lines = (self._rest + part).splitlines(keepends=True)  # a progress bar's end in \r
        self._rest = b"" if lines[-1].endswith((b"\r", b"\n")) else lines.pop()
        self._pass(lines)
        if len(self._rest) > _LONGEST:
            self.end()

    def end(self) -> None:
        if self._rest:
            self._pass([self._rest + b"\n"])
            self._rest = b""

    def _pass(self, lines: list[bytes]) -> None:
        texts = (line.decode(errors="replace").rstrip()[-500:] for line in lines)
        self._process.lines.extend(text for text in texts if text)
        self._put(b"".join(self._prefix + line for line in lines))

    def _put(self, data: bytes) -> None:
        with suppress(BrokenPipeError):
            self._target.flush()
            view = memoryview(data)
            while view:
                view = view[os.write(self._target.fileno(), view) :]


def _free_port() -> int:
    """A currently free port; rank 0 takes it, or one of the next."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_libc = ctypes.CDLL(None)


def _dies_with(parent: int) -> Callable[[], None]:
    """Runs first in a forked child: it asks to be killed when its parent is gone."""

    def prepare() -> None:
        _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent had ended before
            os._exit(1)

    return prepare
