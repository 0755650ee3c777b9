"""Runs every benchmark that this machine can run, and writes their results: `python -m benchmarks`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import lamina as lm


def _modules() -> list[str]:
    chosen = ["call_cost"]
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: the comparisons with it are left out", file=sys.stderr)
        return chosen
    chosen.append("alexnet_cpu")
    return [*chosen, "alexnet_gpu", "host_cost", "autotune"] if len(lm.devices()) > 1 else chosen


def _main() -> int:
    failed = 0
    for name in _modules():
        print(f"== {name}", flush=True)
        failed |= subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", "--json"], check=False
        ).returncode
    return failed


if __name__ == "__main__":
    sys.exit(_main())
