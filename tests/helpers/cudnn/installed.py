"""The installed cuDNN, marks for tests that need one, and processes that plan for an absent GPU."""

import importlib
import os
from pathlib import Path

import pytest

from lamina.c import cudnn as c
from tests.helpers import ROOT
from tests.helpers.stubs import COMPILING, build_libcuda_stub

#: The installed version, () without one.
CUDNN: tuple[int, ...] = c.library.version if c.library.available() else ()
needs_cudnn = pytest.mark.skipif(not CUDNN, reason="libcudnn is not installed")
needs_cudnn_919 = pytest.mark.skipif(
    CUDNN[:2] != (9, 19), reason="the device properties were read with cuDNN 9.19"
)


def planning_environment(folder: Path) -> dict[str, str]:
    """The variables of a process that finds a libcuda without devices (built in `folder`) and NVRTC."""
    build_libcuda_stub(folder, COMPILING)
    pathfinder = importlib.import_module("cuda.pathfinder")
    nvrtc = Path(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path).parent
    paths = [str(folder), str(nvrtc), os.environ.get("LD_LIBRARY_PATH", "")]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": ":".join(p for p in paths if p),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
    }
