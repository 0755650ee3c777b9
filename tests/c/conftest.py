"""Fixtures of the C layer's tests: fresh processes, and the two installed versions of cuDNN."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers import ROOT

NEWER = (ROOT / "build" / "cudnn-9.28" / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9").resolve()

Run = Callable[..., Any]


@pytest.fixture
def fresh() -> Run:
    """`fresh(code, **environment)` runs code in a new process and returns the JSON value that it prints last."""

    def run(code: str, *arguments: str, **environment: str) -> Any:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("LAMINA_")}
        paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**clean, "PYTHONPATH": paths, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def cudnn_928() -> str:
    """Path of cuDNN 9.28; absent: fail (or skip where LAMINA_TEST_NO_928 says that it is meant)."""
    if not NEWER.exists():
        if os.environ.get("LAMINA_TEST_NO_928"):
            pytest.skip("LAMINA_TEST_NO_928 is set and build/cudnn-9.28 is absent")
        pytest.fail("build/cudnn-9.28 is absent: run `make test`, which installs it", pytrace=False)
    return str(NEWER)


@pytest.fixture(scope="session")
def cudnn_installed() -> str:
    """Path of the cuDNN that this environment has installed."""
    from lamina.c import cudnn

    return cudnn.library.path
