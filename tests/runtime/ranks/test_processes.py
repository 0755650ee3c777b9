"""Ranks as processes: their variables, how they end together, what is told, and that nothing is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import ROOT

ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src")}
LAUNCH = """
import sys
from lamina.runtime.ranks.processes import Job, RankStarter
code, ranks, restarts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
job = Job([sys.executable, "-c", code], ranks, hides_gpus=True, patience=20.0, prefix=True)
sys.exit(RankStarter(job, say=lambda text: print("REPORT", text, flush=True)).run(restarts))
"""


def start(code: str, ranks: int = 2, restarts: int = 0) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, code, str(ranks), str(restarts)],
        env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def run(code: str, ranks: int = 2, restarts: int = 0) -> tuple[int, str]:
    process = start(code, ranks, restarts)
    out = process.communicate(timeout=60)[0]
    return process.returncode, out


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_lines_of_any_length_arrive() -> None:
    status, out = run(
        "print('x' * 300_000); print('bar', end='\\r'); print('y' * (3 << 20)); print('end', end='')"
    )
    assert status == 0
    lines = [line.removeprefix("[0] ") for line in out.splitlines() if line.startswith("[0] ")]
    assert lines[:2] == ["x" * 300_000, "bar"]
    assert "".join(lines[2:]) == "y" * (3 << 20) + "end"


def test_the_variables_are_those_of_torchrun() -> None:
    code = """
import os
names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR CUDA_VISIBLE_DEVICES LAMINA_RESTART"
print(*[os.environ[n] for n in names.split()], int(os.environ["MASTER_PORT"]) > 0, sep="|")
print(os.environ["LAMINA_MONITOR"].count(":"), sep="|")
"""
    status, out = run(code)
    assert status == 0
    expected = [f"[{r}] {line}" for r in range(2) for line in (f"{r}|{r}|2|2|127.0.0.1||0|True", "2")]
    assert sorted(out.splitlines()) == sorted(expected)


@pytest.mark.feature("B034")
def test_all_end_when_one_fails_and_its_last_lines_are_told() -> None:
    code = """
import os, sys, time
if os.environ["RANK"] == "1":
    print("about to fail", file=sys.stderr)
    sys.exit(7)
time.sleep(100)
"""
    began = time.monotonic()
    status, out = run(code)
    assert status == 7
    assert (
        "REPORT rank 1 ended with exit status 7. All 2 ranks have ended\nthe last lines of rank 1:\n  | about to"
        in out
    )
    assert time.monotonic() - began < 60


@pytest.mark.feature("B034")
def test_a_signal_is_named_and_ranks_start_again(tmp_path: Path) -> None:
    code = f"""
import os, signal, time
open({str(tmp_path)!r} + "/" + os.environ["RANK"] + os.environ["LAMINA_RESTART"], "w").close()
if os.environ["LAMINA_RESTART"] == "0":
    if os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(100)
"""
    status, out = run(code, restarts=1)
    assert status == 0
    assert "REPORT rank 0 was killed by SIGKILL. All 2 ranks have ended; starting all again (1 of 1)" in out
    assert {f.name for f in tmp_path.iterdir()} >= {"00", "01", "11"}
    status, out = run(code.replace('== "0":\n    if', 'in "01":\n    if'), restarts=1)
    assert status == 137


@pytest.mark.parametrize("codes", [(85, 85), (85, 0)])
def test_ranks_that_are_preempted_have_not_failed(codes: tuple[int, int]) -> None:
    status, out = run(f"import os, sys; sys.exit({codes}[int(os.environ['RANK'])])", restarts=1)
    assert (status, out) == (85, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on(number: signal.Signals) -> None:
    code = f"""
import signal, sys, time
def end(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal({int(number)}, end)
print("ready", flush=True)
time.sleep(100)
"""
    process = start(code)
    assert process.stdout is not None
    ready = [process.stdout.readline() for _ in range(2)]
    assert all("ready" in line for line in ready)
    process.send_signal(number)
    out = process.communicate(timeout=60)[0]
    assert sorted(out.split()) == ["[0]", "[1]", "saved", "saved"]
    assert process.returncode == 0


def test_nothing_is_left_when_the_launcher_is_killed() -> None:
    process = start("import os, time; print(os.getpid(), flush=True); time.sleep(100)")
    assert process.stdout is not None
    ranks = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    assert all(map(is_alive, ranks))
    process.kill()
    process.wait()
    process.stdout.close()
    end = time.monotonic() + 60
    while any(map(is_alive, ranks)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not any(map(is_alive, ranks))


def test_what_a_rank_started_ends_with_it() -> None:
    code = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(child.pid, flush=True)
"""
    status, out = run(code, ranks=1)
    assert status == 0
    assert not is_alive(int(out.split()[1]))
