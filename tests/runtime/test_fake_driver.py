"""The CUDA side of the runtime on a driver in software: two files of tests, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.helpers.stubs import FAKE, build_libcuda_stub

pytest.importorskip("cuda.core")


#: What of test_gpu_interop.py needs neither another library nor a kernel.
INTEROP = "memset_of or protocol or printed or priorities or tensors_move"


@pytest.mark.feature("F039", "F108")
@pytest.mark.parametrize(
    ("file", "chosen", "passed", "skipped"),
    [
        ("runtime/test_gpu.py", "", 31, "1 skipped"),
        ("runtime/test_gpu_interop.py", INTEROP, 10, ""),
        ("nn/test_gpu_module.py", "moves", 1, ""),
        ("replay/test_gpu_player.py", "", 2, ""),
        ("graph/run/test_gpu_captured.py", "not layouts and not updates", 21, ""),
    ],
)
def test_the_way_through_the_bindings(
    tmp_path: Path, file: str, chosen: str, passed: int, skipped: str
) -> None:
    build_libcuda_stub(tmp_path, FAKE)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": str(ROOT / "src"),
        "LAMINA_TEST_SOFTWARE_DRIVER": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        f"tests/{file}",
        "-k",
        chosen,
        "tests/runtime/test_gpu_current.py",
    ]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert skipped in result.stdout  # two GPUs
    assert int(result.stdout.rsplit(" passed", 1)[0].split()[-1]) >= passed


def test_a_thread_opens_the_device_for_who_imports_meanwhile(tmp_path: Path) -> None:
    """The device works as if nobody had, and NVIDIA's modules are there; without a driver nothing happens."""
    build_libcuda_stub(tmp_path, FAKE)
    code = (
        "import sys, lamina.runtime as r; r.open_beside(); r.import_beside(); "
        "assert 'cuda.bindings.driver' in sys.modules and 'cuda.core' not in sys.modules; "
        "d = r.device('auto'); "
        "print(d.kind, d.allocate(64).nbytes if d.kind == 'cuda' else '')"
    )
    for folder, wanted in ((str(tmp_path), ["cuda 64"]), ("", ["cpu", "cuda 64"])):
        environment = {**os.environ, "LD_LIBRARY_PATH": folder, "PYTHONPATH": str(ROOT / "src")}
        result = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert result.stdout.strip() in wanted
        assert not result.stderr


SLOW = """
import time, lamina.runtime as r
seen, longest = time.perf_counter(), 0.0
under_way = r.open_beside()
while not under_way.is_set():
    time.sleep(0.001)
    seen, before = time.perf_counter(), seen
    longest = max(longest, seen - before)
print(r.device("auto"), longest < 0.5)
"""


def test_a_driver_that_takes_long_to_load_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A library is loaded under Python's lock, but not this one."""
    slow = tmp_path / "slow.c"
    slow.write_text(
        f'#include "{FAKE}"\n#include <unistd.h>\n'
        "__attribute__((constructor)) static void slow(void) { usleep(999999); }\n"
    )
    build_libcuda_stub(tmp_path, slow)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(
        [sys.executable, "-c", SLOW], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "cuda:0 True\n"
