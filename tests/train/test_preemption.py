"""Signals that announce a job's end: all ranks stop after one step, with a checkpoint and a status of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, distributed, nn, ops, optim
from lamina.train import Preempted, Preemption, load_checkpoint
from lamina.train.callbacks import Callback
from tests.helpers import ROOT
from tests.helpers.ranks import run_ranks

pytestmark = pytest.mark.feature("B034", "B056")

X = np.random.default_rng(0).standard_normal((24, 6)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 24)


def make(seed: int = 1) -> lm.train.Step:
    nn.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))
    return lm.train_step(net, ops.cross_entropy, optim.SGD(0.1, momentum=0.9), device="cpu", parallel="data")


class Signalling(Callback):
    """Sends this process a signal behind a step."""

    def __init__(self, after: int, number: int) -> None:
        self.after, self.number = after, number

    def step(self, number: int, loss: float) -> None:
        if number == self.after:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("after", [0, 3, 11])
def test_a_run_ends_with_a_checkpoint_and_goes_on_to_the_bit(tmp_path: Path, number: int, after: int) -> None:
    batches, held_out = (
        data.arrays(X, Y, batch_size=4, seed=2),
        data.arrays(X, Y, batch_size=8, shuffle=False),
    )
    options: Any = {"validation": held_out, "progress": False}
    whole = lm.fit(make(), batches, 2, **options)
    file, begun = tmp_path / "c", make()
    with pytest.raises(
        Preempted, match=f"ended by {signal.Signals(number).name} after .* goes on from there"
    ) as caught:
        lm.fit(begun, batches, 2, checkpoint=file, callbacks=[Signalling(after, number)], **options)
    assert caught.value.code == 85
    assert signal.getsignal(number) is signal.SIG_DFL
    step = make(9)
    start = load_checkpoint(file, step)
    assert after < start.epoch * 6 + start.batch <= after + 3
    rest = lm.fit(step, batches, 2, start=start, **options)
    assert rest.losses == whole.losses[step.number - len(rest.losses) :]
    assert step.number == 12


def test_without_a_checkpoint_signals_are_not_touched() -> None:
    seen = []
    batches = data.arrays(X, Y, batch_size=12)
    lm.fit(
        make(),
        batches,
        1,
        progress=False,
        callbacks=[lambda _: seen.append(signal.getsignal(signal.SIGTERM))],
    )
    assert seen == [signal.SIG_DFL]


def test_somebody_elses_handler_is_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with Preemption() as preemption:
            signal.raise_signal(signal.SIGTERM)
            assert preemption.asked == ""
            signal.raise_signal(signal.SIGUSR1)
            assert preemption.asked == "SIGUSR1"
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [signal.SIGTERM]


def own_loop(watched: bool) -> list[Any]:
    """The first rank alone gets a signal, in its third round; steps of one's own, and of train_step."""
    if not watched:
        distributed.init(fault_timeout=None)
    found = []
    step = make()
    with Preemption() as preemption:
        for number in range(50):
            step(X[:4], Y[:4])
            if number == 2 and distributed.rank() == 0:
                os.kill(os.getpid(), signal.SIGUSR1)
            if preemption.asked:
                found = [number, preemption.asked]
                break
    return found


@pytest.mark.parametrize("watched", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_all_ranks_stop_after_the_same_step(watched: bool) -> None:
    first, second = run_ranks(own_loop, 2, args=(watched,), init=watched)
    assert first == second
    assert first[0] >= 2
    assert first[1] == "SIGUSR1"


def interrupted(folder: str) -> dict[str, Any]:
    """Ctrl-C of one rank alone ends `fit` on all after one step; a later run on the same ranks goes on."""
    step, me = make(), distributed.rank()
    batches = data.Batches(lambda rows, rng: (X[rows], Y[rows]), 24, 4, seed=2, parallel="data")
    checkpoints = lm.train.CheckpointFolder(folder, step)
    stop = [Signalling(7, signal.SIGINT)] if me == 1 else []
    options: Any = {"checkpoint": checkpoints, "progress": False}
    try:
        lm.fit(step, batches, 8, callbacks=stop, **options)
    except KeyboardInterrupt as error:
        number, text = step.number, str(error)
        rest = lm.fit(step, batches, 8, start=checkpoints.load(), **options)
        return {"number": number, "text": text, "rest": len(rest.losses), "end": step.number}
    return {}


def test_an_interrupt_of_one_rank_is_one_of_all(tmp_path: Path) -> None:
    first, second = run_ranks(interrupted, 2, args=(str(tmp_path / "c"),))
    assert first == second
    assert 8 <= first["number"] < 40
    assert first["text"].startswith("interrupted after ")
    assert (first["rest"], first["end"]) == (48 - first["number"], 48)


PROGRAM = """
import sys, time
import lamina as lm
from lamina import data
from tests.train.test_preemption import X, Y, make
lm.distributed.init()
me, n = lm.distributed.rank(), lm.distributed.world_size()
step = make(me + 1)
folder = lm.train.CheckpointFolder(sys.argv[1], step)
start = folder.load() or lm.train.Position()

class Log(lm.train.callbacks.Callback):
    def step(self, number, loss):
        if me == 0:
            print(number, loss.hex(), flush=True)
        time.sleep(float(sys.argv[2]))

batches = data.Batches(lambda rows, rng: (X[rows], Y[rows]), 24, 4, seed=2, rank=me, world_size=n)
lm.fit(step, batches, 8, start=start, checkpoint=folder, callbacks=[Log()], progress=False)
"""


def start(tmp_path: Path, folder: str, pause: float) -> "subprocess.Popen[str]":
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "lamina",
        "run",
        "--ranks",
        "2",
        "--restarts",
        "1",
        "program.py",
        folder,
        str(pause),
    ]
    env = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    return subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def losses(out: str) -> dict[int, str]:
    words = [line.split() for line in out.splitlines()]
    return {int(w[0]): w[1] for w in words if len(w) == 2 and w[0].isdigit()}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_ranks_of_lamina_run_write_a_checkpoint_and_go_on(tmp_path: Path, number: int) -> None:
    whole = start(tmp_path, "whole", 0.0)
    out, err = whole.communicate(timeout=120)
    assert whole.returncode == 0, err
    expected = losses(out)
    assert sorted(expected) == list(range(48))
    with start(tmp_path, "run", 0.05) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        seen = [run.stdout.readline() for _ in range(9)]
        run.send_signal(number)
        out, err = run.stdout.read(), run.stderr.read()  # `communicate` loses lines that were read ahead
    assert run.returncode == 85, err
    assert "starting all again" not in err
    begun = losses("".join(seen) + out)
    assert 5 < len(begun) < 48
    assert f"ended by {signal.Signals(number).name}" in out
    again = start(tmp_path, "run", 0.0)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    rest = losses(out)
    assert sorted(rest) == list(range(len(begun), 48))
    assert begun | rest == expected
