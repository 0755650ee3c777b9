"""Factors of matrices, systems and determinants beside PyTorch's (cuSOLVER and MAGMA on a GPU), in float32.

    python -m benchmarks.factors [--device cuda:0] [--shapes 1024x1024 100x32x32] [--out FOLDER]

Each op is compiled by `lamina.jit`; a time is the median of five rounds. Matrices are symmetric and well conditioned.
PyTorch's QR of many small matrices takes seconds, and is left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from benchmarks.common import processor, versions, write
from lamina.ops import linalg

#: Ops, and how many operands they take.
OPS = {"cholesky": 1, "solve": 2, "slogdet": 1, "inv": 1, "qr": 1}
SHAPES = ("1000x8x8", "100x32x32", "64x64", "1000x64x64", "16x128x128", "256x256", "512x512", "1024x1024")
SHAPES += ("2048x2048", "4x1024x1024")
_ROUNDS, _WARM = 5, 3


def operands(shape: Sequence[int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A symmetric matrix [..., N, N], and right-hand sides [..., N, 4]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    a = x @ x.swapaxes(-1, -2) / shape[-1] + np.eye(shape[-1], dtype=np.float32)
    return a, rng.standard_normal((*shape[:-1], 4)).astype(np.float32)


def milliseconds(call: Callable[[], Any], wait: Callable[[], None], calls: int) -> float:
    """Of a call, when the device is done with several."""
    for _ in range(_WARM):
        call()
    taken = []
    for _ in range(_ROUNDS):
        wait()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        wait()
        taken.append((time.perf_counter() - began) / calls * 1e3)
    return statistics.median(taken)


def measured(shape: Sequence[int], device: str) -> dict[str, dict[str, float]]:
    """Op -> library -> milliseconds."""
    import torch

    where, on_gpu = lm.device(device), device.startswith("cuda")
    given = operands(shape)
    ours, theirs = (
        [lm.tensor(x, device=device) for x in given],
        [torch.tensor(x, device=device) for x in given],
    )
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    calls = 5 if shape[-1] < 1000 else 2
    found: dict[str, dict[str, float]] = {}
    for name, count in OPS.items():
        compiled, other = lm.jit(getattr(linalg, name)), getattr(torch.linalg, name)
        row = {"lamina": milliseconds(partial(compiled, *ours[:count]), where.synchronize, calls)}
        if name != "qr" or np.prod(shape[:-2], dtype=int) <= 16:
            row["torch"] = milliseconds(partial(other, *theirs[:count]), wait, calls)
        found[name] = row
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="BxNxN")
    parser.add_argument("--out", type=Path, help="folder for a result file")
    options = parser.parse_args(arguments)
    rows = {}
    for name in options.shapes:
        rows[name] = measured([int(n) for n in name.split("x")], options.device)
        cells = [f"{op} " + " ".join(f"{v:.3f}" for v in row.values()) for op, row in rows[name].items()]
        print(f"{name:14}", "; ".join(cells), flush=True)
    if options.out:
        about = {"machine": processor(), "device": lm.device(options.device).name}
        record = {**about, "versions": versions(["lamina", "numpy", "torch"]), "ms": rows}
        write(f"factors_{options.device.partition(':')[0]}", record, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
