"""A rank that dies, hangs or raises: every other one ends with one error that names rank, operation and step."""

import atexit
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lamina.runtime.ranks import watchdog
from lamina.runtime.ranks.monitor import RankMonitor
from lamina.runtime.ranks.progress import progress
from lamina.runtime.ranks.verdict import Blame, Limits, Rank
from lamina.runtime.ranks.watchdog import RankError, Watchdog
from tests.helpers import ROOT

pytestmark = pytest.mark.feature("B034")

#: Ranks that wait for each other in a barrier of the monitor's values; `FAULT` is what rank 1 does in step 3.
PROGRAM = """
import os, signal, sys, time
from lamina.runtime.ranks import progress as p, watchdog as w
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dog = w.watch(os.environ["LAMINA_MONITOR"], rank)
for step in range(5):
    p.progress.begin_step(step)
    if step == 3 and rank == 1:
        FAULT
    with w.collective("all_reduce"):
        dog.set(f"{step}/{rank}", 1)
        for other in range(size):
            WAIT
w.unwatch()
print("well")
"""
LAUNCH = """
import sys
from lamina.runtime.ranks.processes import Job, RankStarter
job = Job([sys.executable, "-c", sys.argv[1]], 3, hides_gpus=True, timeout=float(sys.argv[2]), prefix=True)
sys.exit(RankStarter(job, say=lambda text: print("REPORT", text, flush=True)).run())
"""
#: Out of Python's reach: a call of C that returns after ten minutes.
BLOCKED = """
            if step == 3: __import__("ctypes").PyDLL(None).usleep(0) or __import__("ctypes").CDLL(None).sleep(600)
            dog.get(f"{step}/{other}", 600)"""


def run(fault: str, timeout: float, wait: str = 'dog.get(f"{step}/{other}", 600)') -> tuple[int, str, float]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", LAUNCH, PROGRAM.replace("FAULT", fault).replace("WAIT", wait.strip()), str(timeout)],
        env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


def errors(out: str) -> dict[int, str]:
    """The one error of each rank; more are a fault."""
    found = re.findall(r"^\[(\d)\] rank \1: RankError: (.*)$", out, re.MULTILINE)
    assert len(dict(found)) == len(found), out
    return {int(rank): text for rank, text in found}


def test_without_a_fault_all_end_well() -> None:
    status, out, _ = run("pass", 30)
    assert (status, sorted(out.splitlines())) == (0, [f"[{r}] well" for r in range(3)])


@pytest.mark.parametrize(
    ("fault", "timeout", "reason", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", 30.0, "was killed by SIGKILL", 137),
        ("raise ValueError('bad luck')", 30.0, "raised ValueError: bad luck", 1),
        pytest.param("sys.exit(9)", 30.0, "ended with exit status 9", 9, marks=pytest.mark.slow),
        pytest.param(
            "os.kill(os.getpid(), signal.SIGSTOP)", 3.0, "has been silent for", 137, marks=pytest.mark.slow
        ),
        pytest.param("time.sleep(600)", 3.0, "has not come to all_reduce", None, marks=pytest.mark.slow),
    ],
    ids=["killed", "raises", "exits", "stopped", "hangs"],
)
def test_every_other_rank_ends_with_one_error(
    fault: str, timeout: float, reason: str, status: int | None
) -> None:
    code, out, seconds = run(fault, timeout)
    assert code == status or (status is None and code in (75, 137)), out  # ended by its watchdog, or killed
    found = errors(out)
    for rank in (0, 2):
        assert re.match(rf"rank 1 \(process \d+ on [^)]*\) {reason}", found[rank])
        # The others hear of it in the step before, where rank 1 was the first to leave it.
        assert re.search(rf"; rank {rank} was in step [23](, in all_reduce)?$", found[rank])
    assert "Traceback" not in "".join(
        line for line in out.splitlines() if not line.startswith(("[1]", "  |"))
    )
    assert "REPORT rank 1" in out
    assert seconds < 60  # of which most is the start


#: What a rank may loop in: Python that swallows errors, and C that never lets go of the interpreter's lock. (In a
#: loop without a call, Python 3.11 raises what a signal's handler raises before the loop, where no `try` holds it.)
LOOPS = {
    "swallows errors": """
        while True:
            try: time.sleep(600)
            except BaseException: pass""",
    "holds the lock": """
        __import__("ctypes").PyDLL(None).sleep(600)""",
}


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_a_rank_that_loops_is_killed_at_the_verdict(loop: str) -> None:
    began = time.monotonic()
    assert run("pass", 9.0)[0] == 0
    start = time.monotonic() - began
    code, out, seconds = run(LOOPS[loop].strip(), 9.0)
    assert code == 137, out
    assert {0, 2} <= errors(out).keys()
    assert "REPORT rank 1 (process" in out
    assert seconds - start < 9.0 + 1


@pytest.mark.slow
def test_a_call_that_cannot_be_interrupted_is_ended_from_outside() -> None:
    code, out, _ = run("os.kill(os.getpid(), signal.SIGKILL)", 6.0, BLOCKED)
    assert code == 137
    assert {0, 2} <= errors(out).keys()


def test_watching_twice_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(watchdog, "_current", [type("Held", (), {"rank": 4})()])
    with pytest.raises(RuntimeError, match="rank 4 is watched already"):
        watchdog.watch("127.0.0.1:1:x", 0)


def test_errors_of_arguments_stay_what_they_are(tmp_path: Path) -> None:
    from lamina.runtime.ranks.watchdog import collective

    for kind in (ValueError, OSError):
        with pytest.raises(kind, match="as it was"), collective("barrier"):
            raise kind("as it was")


def test_the_monitor_stays_until_the_others_have_ended() -> None:
    """Who holds it and ends first would take the verdict along that others have not read yet."""
    monitor = RankMonitor(4, Limits(30.0), holder=0)
    now = time.monotonic()
    monitor.ranks = [Rank(number, now, now, joined=number < 3) for number in range(4)]
    monitor.ranks[1].end = "was killed"
    monitor.start()
    found = Watchdog(monitor.address, 0, monitor)
    threading.Timer(0.2, lambda: setattr(monitor.ranks[2], "end", "is gone")).start()
    found._wait_for_others(20.0)
    assert 0.15 < time.monotonic() - now < 15
    found.close()


def test_the_signal_raises_the_verdict_until_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    monitor = RankMonitor(1, Limits(30.0), holder=0)
    monitor.start()
    dog = Watchdog(monitor.address, 0, monitor)
    nothing: Any = None
    dog._raise(0, nothing)  # there is no verdict
    dog.error = RankError("rank 1 is bad")
    with pytest.raises(RankError, match="rank 1 is bad"):
        dog._raise(0, nothing)
    dog._tell()
    dog._tell()
    assert capsys.readouterr().err == "rank 0: RankError: rank 1 is bad\n"
    dog._raise(0, nothing)
    dog.error = None
    dog.close()


@pytest.mark.parametrize("main", [True, False])
def test_the_main_thread_alone_is_interrupted(main: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the watch begins in it: Python handles signals there only."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(progress, "tell", progress.tell)
    before = signal.getsignal(watchdog._SIGNAL)
    monitor = RankMonitor(1, Limits(30.0), holder=0)
    monitor.start()
    dog = Watchdog(monitor.address, 0, monitor)
    try:
        if main:
            dog.start()
        else:
            thread = threading.Thread(target=dog.start)
            thread.start()
            thread.join()
        assert dog._raises == main
        assert (signal.getsignal(watchdog._SIGNAL) == dog._raise) == main
        assert sys.excepthook == dog._uncaught
        assert progress.tell == dog._report
        assert dog._thread.is_alive()
    finally:
        signal.signal(watchdog._SIGNAL, before)
        atexit.unregister(dog._exit)
        dog.close()
    assert not dog._thread.is_alive()


def test_a_monitor_that_ends_closes_connections_that_said_nothing() -> None:
    monitor = RankMonitor(1, Limits(30.0), holder=0)
    monitor.start()
    host, port, _ = monitor.address.rsplit(":", 2)
    with socket.create_connection((host, int(port)), 30.0) as silent:
        end = time.monotonic() + 20
        while len(monitor._selector.get_map()) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        monitor.close()
        silent.settimeout(20.0)
        assert silent.recv(1) == b""


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"step": -1, "op": ""}, "before the first step"),
        ({"step": 0, "op": ""}, "in step 0"),
        ({"step": 3, "op": "barrier"}, "in step 3, in barrier"),
    ],
)
def test_an_error_says_where_this_rank_was(
    facts: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog.progress, "facts", lambda: facts)
    assert watchdog._here() == text


def test_an_error_is_due_to_what_it_was_raised_from() -> None:
    cause, other = OSError("gone"), OSError("else")
    try:
        try:
            raise cause
        except OSError as error:
            raise ValueError("shut") from error
    except ValueError as error:
        shut = error
    assert watchdog._is_due_to(shut, cause)
    assert watchdog._is_due_to(cause, cause)
    assert not watchdog._is_due_to(shut, other)
    assert not watchdog._is_due_to(None, cause)


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("text", ["", "rank 1 is bad"])
def test_a_process_that_leaves_says_its_error_once(
    text: str, failed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And ends with the status of who failed itself, or of who ends because of another one."""
    monitor = RankMonitor(1, Limits(30.0), holder=0)
    monitor.start()
    dog, status = Watchdog(monitor.address, 0, monitor), list[int]()
    monkeypatch.setattr("os._exit", status.append)
    dog.error, dog._failed = RankError(text) if text else None, failed
    dog.leave()
    dog.leave()
    assert status == [1 if failed else watchdog.ENDED] * 2
    assert capsys.readouterr().err == (f"rank 0: RankError: {text}\n" if text else "")
    dog.error = None
    dog.close()


def test_a_verdict_is_the_error_of_who_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one counts; it says where this rank was, unless it is the one to blame."""
    monitor = RankMonitor(1, Limits(30.0), holder=0)
    monitor.start()
    monkeypatch.setattr(watchdog, "_here", lambda: "in step 4")
    for failed, first, told in (
        (False, Blame(1, "is bad", 4, "barrier"), "rank 1 is bad; rank 0 was in step 4"),
        (False, Blame(0, "is bad", 4, "barrier"), "rank 0 is bad"),
        (True, Blame(1, "is bad", 4, "barrier"), ""),
    ):
        dog = Watchdog(monitor.address, 0, monitor)
        dog._failed = failed
        dog._blame(first)
        dog._blame(Blame(2, "is bad too"))
        assert dog._doomed
        assert str(dog.error or "") == told
        assert dog._known.is_set() == (not failed)
        if dog.error is not None:
            assert (dog.error.failed, dog.error.step, dog.error.op) == (first.rank, 4, "barrier")
            assert dog.explain(0.0) is dog.error
            with pytest.raises(RankError, match="is bad"):
                dog.get("nothing", 10.0)
        dog._line.connection.close()
        dog._wake.close()
        dog._woken.close()
    monitor.close()
