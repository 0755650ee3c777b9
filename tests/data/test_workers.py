"""Processes that make batches: what they give and raise, how they die, and that nothing of them stays."""

import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lamina import data
from lamina.data.workers import Workers
from tests.helpers import ROOT

pytestmark = pytest.mark.feature("B030")


class Odd(Exception):
    """Pickles, but cannot be read again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two} do not fit")


def make(indices: Any, rng: np.random.Generator) -> Any:
    """By the first index: a batch, or something that goes wrong."""
    first = int(indices[0])
    if first == -1:
        raise KeyError("no such sample")
    if first == -2:
        raise Odd(1, 2)
    if first == -3:
        return lambda: 0
    if first == -4:
        os.kill(os.getpid(), signal.SIGKILL)
    if first == -5:
        os._exit(3)
    images = rng.random((len(indices), 3, 50)).astype(np.float32)
    return {
        "x": images,
        "f": np.asfortranarray(images[0]),
        "name": ["a"] * first,
        "none": images[:0],
        "pid": os.getpid(),
    }


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    found = Workers(2, make)
    yield found
    found.close()


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def owner(array: Any) -> Any:
    """What the memory of an array belongs to."""
    while isinstance(array, np.ndarray | memoryview):
        array = array.base if isinstance(array, np.ndarray) else array.obj
    return array


def test_batches_come_in_shared_memory_and_are_the_readers(workers: Workers) -> None:
    tickets = [workers.submit(np.arange(n, 4 + n), rng()) for n in range(4)]
    found = [t.result() for t in tickets]
    assert {b["pid"] for b in found} == {found[0]["pid"], found[1]["pid"]}
    assert len({b["pid"] for b in found} - {os.getpid()}) == 2
    for n, batch in enumerate(found):
        expected = make(np.arange(n, 4 + n), rng())
        for name in ("x", "f", "none"):
            np.testing.assert_array_equal(batch[name], expected[name])
            assert batch[name].dtype == np.float32
        assert batch["name"] == ["a"] * n
        assert isinstance(owner(batch["x"]), mmap.mmap)
        batch["x"][:] = 0  # nobody else has it
        assert batch["f"].any()


def test_what_is_not_wanted_any_more_is_passed_over(workers: Workers) -> None:
    first, second, third = (workers.submit(np.array([n]), rng()) for n in range(3))
    third.result()
    second.cancel()
    first.cancel()  # has come by now, and waits
    for n in range(4):
        assert workers.submit(np.array([n]), rng()).result()["name"] == ["a"] * n


@pytest.mark.parametrize(
    ("index", "kind", "message"),
    [
        (-1, KeyError, "no such sample"),
        (-2, RuntimeError, "1 and 2 do not fit"),
        (-3, Exception, "pickle"),
    ],
)
def test_what_is_raised_comes_out_with_its_traceback(
    workers: Workers, index: int, kind: type[Exception], message: str
) -> None:
    ticket = workers.submit(np.array([index]), rng())
    with pytest.raises(kind, match=message) as found:
        ticket.result()
    if index == -1:
        (note,) = found.value.__notes__
        assert "test_workers.py" in note
        assert 'raise KeyError("no such sample")' in note
    assert workers.submit(np.array([1]), rng()).result()["name"] == ["a"]  # it goes on


class Deadly:
    """Kills the process that asks for sample 5, for as long as the file is not there."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5 and not os.path.exists(self.file):
            with open(self.file, "w"):
                os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_killed_worker_is_an_error_and_the_next_epoch_begins_anew(tmp_path: Any) -> None:
    loader = data.DataLoader(Deadly(str(tmp_path / "once")), 4, num_workers=1, processes=True)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    with pytest.raises(
        data.WorkerError, match=r"process 1 of 1 \(id \d+\) was killed by SIGKILL; is there enough"
    ):
        next(batches)
    assert np.concatenate(list(loader.epoch(0))).tolist() == list(range(8))
    loader.close()
    loader.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_what_asks_the_reader_to_end_is_left_to_it(workers: Workers, number: signal.Signals) -> None:
    """Terminals and schedulers send these to all processes of a group."""
    process = workers.submit(np.array([0]), rng()).result()["pid"]
    os.kill(process, number)
    for _ in workers._workers:
        assert workers.submit(np.array([1]), rng()).result()["name"] == ["a"]
    os.kill(process, 0)  # it is there


def test_a_worker_that_ends_is_an_error() -> None:
    one = Workers(1, make)
    ticket = one.submit(np.array([-5]), rng())
    with pytest.raises(
        data.WorkerError, match="ended with status 3; what it wrote to standard error says why"
    ):
        ticket.result()
    with pytest.raises(data.WorkerError, match="status 3"):
        one.submit(np.array([1]), rng())
    one.close()


def test_what_cannot_be_pickled_is_named_at_the_start() -> None:
    with pytest.raises(Exception, match="pickle"):
        Workers(2, lambda indices, rng: None)


PROGRAM = """
import signal
import time
import numpy as np
from lamina.data.workers import Workers
from tests.data.test_workers import make

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background ignore it
    workers = Workers(1, make)
    print(workers.submit(np.array([0]), np.random.default_rng(0)).result()["pid"], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize(
    "number",
    [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGINT],
    ids=["killed", "ctrl-c"],
)
def test_no_process_stays_when_the_reader_is_gone(tmp_path: Any, number: signal.Signals) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        start_new_session=True,
    )
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.kill()
    _, told = process.communicate(timeout=60)
    until = time.monotonic() + 60
    while os.path.exists(f"/proc/{worker}") and not _is_dead(worker):
        assert time.monotonic() < until, "the worker is still there"
        time.sleep(0.01)
    assert told.count("Traceback") == (number == signal.SIGINT)
    assert "lamina data" not in told


def _is_dead(process: int) -> bool:
    """Whether it waits for nothing but to be buried by a process that is not ours."""
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_program_that_leaves_its_workers_open_ends(tmp_path: Any) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM.replace("time.sleep(600)", "pass"))
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    found = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stderr) == (0, "")
    assert not os.path.exists(f"/proc/{found.stdout.strip()}")
