"""mypy and pyright, both strict, agree with what the programs of this folder say about types."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

HERE = Path(__file__).parent
PROGRAMS = sorted(f for f in HERE.glob("*.py") if f.name not in ("__init__.py", "test_typing.py"))


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT, timeout=500
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_mypy_strict() -> None:
    pytest.importorskip("mypy")
    assert run("mypy", "--strict", "--config-file", "pyproject.toml", *map(str, PROGRAMS)) == ""


def test_pyright_strict(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    config = tmp_path / "pyrightconfig.json"
    files = [os.path.relpath(f, tmp_path) for f in PROGRAMS]
    options = {"include": files, "extraPaths": [str(ROOT / "src")], "typeCheckingMode": "strict"}
    config.write_text(json.dumps(options))
    assert run("pyright", "--project", str(config), "--pythonpath", sys.executable) == ""
