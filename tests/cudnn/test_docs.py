"""The programs on the page about graphs run as they stand: planned without a GPU, executed with one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import H200_PROPERTIES, ROOT
from tests.helpers.cudnn.installed import needs_cudnn_919, planning_environment

PAGE = ROOT / "docs" / "graph-api.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)


@pytest.mark.feature("B006", "B007")
@needs_cudnn_919
def test_programs_plan_without_a_gpu(tmp_path: Path) -> None:
    shutil.copy(H200_PROPERTIES, tmp_path / "h200.json")
    programs = [block for block in BLOCKS if not block.startswith("# on a GPU")]
    assert len(programs) == len(BLOCKS) - 2 == 8
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(programs)],
        cwd=tmp_path,
        env=planning_environment(tmp_path),
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
