"""Runs a function on several ranks, each a process of its own, and returns the result of each.

    run_ranks(function, 4, args=(1, 2))              started by variables, as torchrun does; ranks meet over TCP
    run_ranks(function, 2, launcher="mpirun")        started by MPICH's mpirun, over MPI

function: of an importable module, not of a class; its arguments and results must be picklable. Each rank calls
`lamina.distributed.init()` before and `shutdown()` after it.
"""

import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import lamina as lm
from tests.helpers import ROOT

#: Seconds in which ranks must meet and end; programs that train longer set the variable.
LIMIT = float(os.environ.get("LAMINA_RANKS_LIMIT", "120"))


class RanksFailed(AssertionError):
    """A rank failed; the message contains the output of all."""


def run_ranks(
    function: Callable[..., Any],
    ranks: int,
    *,
    launcher: Literal["variables", "mpirun"] = "variables",
    args: Sequence[Any] = (),
    env: Mapping[str, str] | None = None,
    init: bool = True,
) -> list[Any]:
    """The function's result on each rank; without `init` it meets the others itself. Raises RanksFailed
    if one failed, or took too long."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "arguments").write_bytes(pickle.dumps(tuple(args)))
        name = f"{_module(function)}:{function.__qualname__}"
        program = [sys.executable, "-m", "tests.helpers.ranks", name, folder, "init" if init else ""]
        base = (
            dict(os.environ)
            | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
            | dict(env or {})
        )
        if launcher == "mpirun":
            started = [([mpirun(), "-n", str(ranks), *program], base)]
        else:
            started = [
                (program, base | variables(rank, ranks, port) | dict(env or {}))
                for port in [free_port()]
                for rank in range(ranks)
            ]
        good = _run(started, Path(folder))
        results = [Path(folder) / str(rank) for rank in range(ranks)]
        if not good or not all(file.exists() for file in results):
            raise RanksFailed("\n".join(log.read_text() for log in sorted(Path(folder).glob("*.log"))))
        return [pickle.loads(file.read_bytes()) for file in results]


def _module(function: Callable[..., Any]) -> str:
    """The module name by which ranks import it, also for the main program."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return str(spec.name) if function.__module__ == "__main__" and spec else function.__module__


def variables(rank: int, ranks: int, port: int) -> dict[str, str]:
    """The variables set by torchrun."""
    return {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


def mpirun() -> str:
    """The mpirun beside the interpreter, or the machine's."""
    found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert found, "the test extra has mpich"
    return found


def free_port() -> int:
    """A currently free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(started: Sequence[tuple[list[str], dict[str, str]]], folder: Path) -> bool:
    """Whether all ended successfully; their output goes to files. No process is left."""
    processes = []
    for index, (command, env) in enumerate(started):
        with (folder / f"{index}.log").open("wb") as log:
            process = subprocess.Popen(
                command, env=env, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        processes.append(process)
    end = time.monotonic() + LIMIT
    try:
        codes = [process.wait(max(0.0, end - time.monotonic())) for process in processes]
        return not any(codes)
    except subprocess.TimeoutExpired:
        return False
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def main(name: str, folder: str, init: str) -> None:
    """One rank."""
    module, _, function = name.partition(":")
    if init:
        lm.distributed.init(timeout=LIMIT)
    arguments = pickle.loads((Path(folder) / "arguments").read_bytes())
    result = getattr(import_module(module), function)(*arguments)
    (Path(folder) / str(lm.distributed.rank())).write_bytes(pickle.dumps(result))
    lm.distributed.shutdown()


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # without waiting for the other ranks, which wait for this one
