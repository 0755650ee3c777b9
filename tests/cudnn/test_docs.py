"""The programs on the page about graphs run as they stand: planned without a GPU, executed with one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lamina.c import cudnn as c
from tests.cudnn.test_deviceless import environment  # noqa: F401
from tests.helpers import H200_PROPERTIES, ROOT

PAGE = ROOT / "docs" / "graph-api.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.mark.feature("B006", "B007")
@pytest.mark.skipif(
    not c.library.available() or c.library.version[:2] != (9, 19),
    reason="the device properties were read with cuDNN 9.19",
)
def test_programs_plan_without_a_gpu(environment: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    shutil.copy(H200_PROPERTIES, tmp_path / "h200.json")
    programs = [block for block in BLOCKS if not block.startswith("# on a GPU")]
    assert len(programs) == len(BLOCKS) - 2 == 8
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(programs)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ExecutionPlan(EngineConfig(eng" in done.stdout
    assert "cuDNN has no plan for matmul on int32[1, 8, 8]" in done.stdout


@pytest.mark.gpu
@pytest.mark.feature("B006")
def test_programs_run_on_a_gpu() -> None:
    programs = [block for block in BLOCKS if block.startswith("# on a GPU")]
    space: dict[str, object] = {}
    for block in (BLOCKS[0], *programs):
        exec(compile(block, str(PAGE), "exec"), space)
