"""With `use_deterministic_algorithms` runs from one seed are equal in every bit, in one process and in several."""

import os
import subprocess
import sys

import pytest

import lamina as lm
from lamina.runtime import device
from tests.helpers import ROOT
from tests.helpers.repeated_runs import digest


def digests(threads: int, runs: int) -> list[str]:
    """Of runs in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.repeated_runs", "cpu", str(runs)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": str(threads)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.feature("F091", "B041")
@pytest.mark.parametrize(
    ("threads", "processes", "runs"),
    [(1, 1, 2), (2, 1, 2), *(pytest.param(n, 5, 2, marks=pytest.mark.slow) for n in (1, 2))],
)
def test_runs_on_the_cpu_are_equal_in_every_bit(threads: int, processes: int, runs: int) -> None:
    found = [line for _ in range(processes) for line in digests(threads, runs)]
    assert len(found) == processes * runs
    assert len(set(found)) == 1


@pytest.mark.gpu
@pytest.mark.feature("F091", "B041")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("algorithm", ["heuristic", "fastest"])
def test_runs_on_a_gpu_are_equal_in_every_bit(precision: str, algorithm: str) -> None:
    where = str(device("cuda"))
    with lm.policy(deterministic=True, algorithm=algorithm):
        assert len({digest(where, precision) for _ in range(10)}) == 1


def test_another_seed_of_the_data_is_another_run() -> None:
    """The digest sees what differs."""
    first = digest("cpu", "fp32")
    with lm.policy(algorithm="fallback"):  # other kernels
        assert digest("cpu", "bf16") != first
