"""The CUDA backend as a whole, planned for machines that are not there: training steps, and their own kernels."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lamina.backends.cuda.launch.program import Program
from lamina.c import cudnn as c
from tests.helpers import ROOT, slow_from
from tests.helpers.planned import KINDS
from tests.helpers.stubs import COMPILING, build_libcuda_stub

pathfinder = pytest.importorskip("cuda.pathfinder")
pytestmark = pytest.mark.skipif(
    not c.library.available() or c.library.version[:2] != (9, 19),
    reason="the device properties are written as cuDNN 9.19 writes them",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A process that finds a libcuda without devices, and NVRTC."""
    folder = tmp_path_factory.mktemp("libcuda")
    build_libcuda_stub(folder, COMPILING)
    nvrtc = Path(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path).parent
    paths = [str(folder), str(nvrtc), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(p for p in paths if p),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }


def planned(machine: str, networks: Iterable[str], environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.helpers.cudnn.training", machine, *networks]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compile_programs(found: dict[str, Any], machine: str) -> int:
    """Compile the own kernels of what was planned, one of each name; how many."""
    programs = [Program(*one) for network in found.values() for one in network["programs"]]
    chosen = {p.name: p for p in programs}
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda p: p.cubin(KINDS[machine].machine.target), chosen.values()))
    assert all(code[:4] == b"\x7fELF" for code in made)
    return len(made)


@pytest.mark.feature("F040")
@pytest.mark.parametrize("machine", slow_from(2, [name for name in KINDS if name != "rtxpro6000"]))
def test_training_steps_are_planned_for_every_machine(machine: str, environment: dict[str, str]) -> None:
    """An LSTM and an encoder layer in bf16: cuDNN plans products and attention, own kernels the rest."""
    found = planned(machine, ("lstm", "encoder"), environment)
    assert any("rnn resident" in label for label in found["lstm"]["labels"])
    assert any(label.startswith("cudnn") for label in found["encoder"]["labels"])
    assert compile_programs(found, machine) > 10


@pytest.mark.feature("F040")
def test_resnet_is_planned_for_the_smallest_machine(environment: dict[str, str]) -> None:
    """99 KiB of shared memory for a block, and an architecture without Hopper's products."""
    found = planned("rtx5090", ["residual"], environment)
    labels = found["residual"]["labels"]
    assert sum(label.startswith("cudnn conv") for label in labels) > 20
    assert compile_programs(found, "rtx5090") > 10
