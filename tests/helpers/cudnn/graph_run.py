"""Plans every case of graph_cases.py for an H200 in a process without a GPU; prints one JSON object.

case -> ["engine", workspace in bytes] if it is planned, ["refused", the library's message] if not.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from lamina import cudnn
from lamina.c.errors import CudnnError
from lamina.cudnn import DeviceProperties
from tests.helpers import H200_PROPERTIES, ROOT
from tests.helpers.cudnn.graph_cases import CASES, Case
from tests.helpers.cudnn.installed import planning_environment


def in_process(module: str, folder: Path, *arguments: str) -> Any:
    """A module's output, as JSON, run without a GPU."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=planning_environment(folder), capture_output=True, text=True, timeout=400
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def in_process_of_its_own(module: str, name: str) -> None:
    """Run a module on one case with the GPU, for at most a minute: a hang or a lost context ends with the process."""
    command = [sys.executable, "-m", module, name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def properties() -> DeviceProperties:
    return DeviceProperties(json=H200_PROPERTIES.read_text())


def outcome(case: Case, target: DeviceProperties) -> tuple[str, str | int]:
    try:
        plan = case.graph().plan(target)
    except (cudnn.NoPlanError, CudnnError, NotImplementedError) as error:
        return "refused", str(error)
    assert plan.config is not None
    return f"eng{plan.config.key[0]}", plan.workspace


def run(only: str = "") -> dict[str, tuple[str, str | int]]:
    target = properties()
    return {case.title: outcome(case, target) for case in CASES if only in case.title}


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
