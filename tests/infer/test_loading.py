"""What a process imports to answer from a saved plan, and when."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.c import cudnn
from lamina.replay.addresses import ARENA, INPUTS, virtual
from lamina.replay.file import Parts, write
from lamina.replay.specs import encode_spec
from lamina.spec import Spec, float32
from tests.helpers import ROOT
from tests.helpers.cudnn.installed import needs_cudnn
from tests.helpers.stubs import FAKE, build_libcuda_stub


def test_a_file_is_opened_before_what_answers_is_imported(tmp_path: Path) -> None:
    """A GPU opens meanwhile, and the file is read."""
    code = (
        "import sys, lamina as lm\n"
        "load = lm.infer.load\n"
        "heavy = ('lamina.infer.saved', 'lamina.runtime.memory', 'lamina.runtime.platforms', 'lamina.spec')\n"
        "try:\n    load('none')\n"
        "except FileNotFoundError:\n    print([m for m in heavy if m in sys.modules])\n"
    )
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.stdout == "[]\n"


# ---- a GPU's plan, on a driver in software
GPU_PROBE = """
import contextlib, sys
import lamina as lm, numpy as np
from lamina.c.errors import CudnnError
from lamina.cudnn.handle import handle_of
x = np.arange(8, dtype=np.float32)
with lm.infer.load(sys.argv[1], trusted=True) as plan:
    print(plan.planned_anew, plan.device, [plan(x).tolist() for _ in range(3)] == [[7.0, 1, 2, 3, 0, 0, 6, 7]] * 3)
    with contextlib.suppress(CudnnError):  # it refuses such a device
        handle_of(plan.device)
planning = ("lamina.ops", "lamina.graph", "lamina.nn", "lamina.backends", "lamina.tensors", "asyncio", "cuda.core")
print([m for m in sys.modules if m.startswith(planning)])
print(sorted(m for m in sys.modules if m.startswith("lamina.cudnn.")))
"""


def gpu_plan(path: Path) -> None:
    """y: x with a 7 of a kernel before, and zeros of a fill within, for the device in software and this cuDNN."""
    spec, parts = Spec((8,), float32), Parts()
    code = [parts.add(b"machine code"), 12]
    steps: list[Any] = [
        ["copy", virtual(ARENA), virtual(INPUTS), 32],
        ["fill", virtual(ARENA, 16), 0, 8],
        ["launch", code, "store", [1, 1, 1], [1, 1, 1], 0, False, [
            ["at", virtual(ARENA)], ["bytes", np.float32(7).tobytes().hex()],
        ]],
    ]  # fmt: skip
    plays = {
        "arena": 32, "counters": 0, "inputs": [["x", encode_spec(spec)]],
        "outputs": [[virtual(ARENA), encode_spec(spec)]], "steps": steps,
    }  # fmt: skip
    program = {
        "inputs": "*",
        "specs": [encode_spec(spec)],
        "outputs": "*",
        "gathered": None,
        "plays": plays,
    }
    gpu = {"device": "cuda", "gpu": "Software device", "target": "sm_90a", "multiprocessors": 1024}
    serving = {"batch_axis": 0, "max_batch": 1, "max_wait_ms": 0.0, "queue_limit": 1, "when_full": "wait"}
    header = {
        "lamina": lm.__version__,
        "network": "Small",
        "machine": {**gpu, "cuDNN": ".".join(map(str, cudnn.library.version))},
        "kept": 0,
        "programs": [program],
        "sources": None,
        "serving": serving,
    }
    write(path, header, parts)


@pytest.mark.feature("B036")
@needs_cudnn
def test_a_gpu_answers_without_what_plans_or_compiles(tmp_path: Path) -> None:
    """Neither cuda-core nor what makes plans of cuDNN is imported; a handle of cuDNN needs them neither."""
    pytest.importorskip("cuda.bindings")
    build_libcuda_stub(tmp_path, FAKE)
    gpu_plan(tmp_path / "p")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", GPU_PROBE, str(tmp_path / "p")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    answered, planning, of_cudnn = done.stdout.splitlines()
    assert answered == "False cuda:0 True"
    assert planning == "[]"
    assert of_cudnn == str([f"lamina.cudnn.{name}" for name in ("descriptor", "device", "handle", "plan")])
