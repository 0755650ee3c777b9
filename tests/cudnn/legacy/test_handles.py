"""The handle's life on a driver in software: all of test_gpu_handles.py, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lamina.c.errors import CudnnError
from lamina.cudnn import legacy
from lamina.runtime import NoGpuError, devices
from tests.helpers import ROOT
from tests.helpers.cudnn.installed import needs_cudnn
from tests.helpers.stubs import FAKE, build_libcuda_stub


@pytest.mark.feature("F013", "F014", "F015", "F016", "F029", "F035")
@needs_cudnn
def test_handles_on_a_driver_in_software(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    build_libcuda_stub(tmp_path, FAKE)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "PYTHONPATH": str(ROOT / "src"),
        "LAMINA_TEST_SOFTWARE_HANDLES": "1",
    }
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider"]
    file = "tests/cudnn/legacy/test_gpu_handles.py"
    done = subprocess.run(
        [*command, file], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.rsplit(" passed", 1)[0].split()[-1]) >= 10


@pytest.mark.feature("F013")
@pytest.mark.skipif(len(devices()) > 1, reason="this machine has a GPU")
def test_without_a_gpu_a_handle_says_so() -> None:
    with pytest.raises(NoGpuError, match="cannot be used"):
        legacy.Handle()
    assert issubclass(CudnnError, RuntimeError)
