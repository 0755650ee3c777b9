"""Runs every benchmark supported by this machine, and writes their results: `python -m benchmarks`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import lamina as lm


def _programs() -> list[list[str]]:
    """Modules with their arguments."""
    chosen = [["call_cost", "--json"], ["suite", "--set", "cpu", "--policy", "heuristic", "--rounds", "3"]]
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed: what needs it is left out", file=sys.stderr)
        return chosen
    if len(lm.devices()) > 1:
        chosen += [["suite", "--set", "gpu"], ["host_cost", "--json"], ["autotune", "--json"]]
    return [*chosen, ["curves", "--json"]]


def _main() -> int:
    failed = 0
    for name, *arguments in _programs():
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
        failed |= subprocess.run(command, check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(_main())
