"""One op of each family beside PyTorch: forward alone, and forward with the gradient of a sum of squares.

    python -m benchmarks.op_families [--device cpu|cuda] [--only NAME …] [--without-compile]
                                      [--ahead N] [--threads N] [--out FOLDER]

Each case runs as a user calls it: op by op ("eager"), and as one compiled function (`lm.jit` beside `torch.compile`).
The ratio of a case is PyTorch's faster time over Lamina's faster one; below `LEAST_RATIO` its reason is added
(`REASONS`). Medians of many runs on random data; on a GPU
of trains of calls, on a CPU of single ones, both libraries with the same number of threads. With one thread
processor time is measured, independent of other programs. With `--ahead N` this many processes first run each mode
once, a case at a time each, so that compiled code is in both libraries' caches.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

import lamina as lm
from benchmarks.common import processor, versions, write
from lamina import ops

#: The fewest repetitions of one mode of one case.
LEAST = 7
#: Calls between two events on a GPU.
TRAIN = 20
#: Cases below this ratio give a reason, on each kind of device.
LEAST_RATIO = 0.9


@dataclass(frozen=True)
class Case:
    """An op of a family: its inputs, and its call, which takes a library first. The gradient is input 0's."""

    name: str
    make: Callable[[np.random.Generator, int], Sequence[np.ndarray[Any, Any]]]
    call: Callable[..., Any]


class TorchNames:
    """torch.nn.functional's and torch's functions in one namespace, as in `lamina.ops`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.nn.functional, name, None) or getattr(torch, name)


def _f(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


def _i(rng: np.random.Generator, top: int, *shape: int) -> np.ndarray[Any, Any]:
    return rng.integers(0, top, shape)


def _images(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 4 * k, 32, 56, 56)]


def _rows(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 512 * k, 1024)]


def _rows_index(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 512 * k, 1024), _i(rng, 512 * k, 256 * k)]


def _places(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 512 * k, 1024), _i(rng, 1024, 512 * k, 256)]


def _added(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 512 * k, 1024), _i(rng, 1024, 512 * k, 256), _f(rng, 512 * k, 256)]


def _grid(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 4 * k, 32, 56, 56), rng.uniform(-1, 1, (4 * k, 56, 56, 2)).astype(np.float32)]


def _heads(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    mask = np.zeros((256, 256), np.float32)
    mask[rng.random(mask.shape) < 0.2] = -np.inf
    mask[:, 0] = 0
    return [*(_f(rng, 2 * k, 8, 256, 64) for _ in range(3)), mask]


def _shared_heads(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 2 * k, 8, 256, 64), _f(rng, 2 * k, 2, 256, 64), _f(rng, 2 * k, 2, 256, 64)]


def _ctc(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    n = 8 * k
    return [_f(rng, 100, n, 32), rng.integers(1, 32, (n, 20)), np.full(n, 100), rng.integers(5, 21, n)]


def _bags(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 20000, 64), _i(rng, 20000, 1024 * k, 16)]


def _matrices(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 8 * k, 128, 64), _f(rng, 8 * k, 64, 96)]


def _sound(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 4 * k, 16000), np.hanning(400).astype(np.float32)]


def _classes(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 512 * k, 1000), _i(rng, 1000, 512 * k), rng.uniform(0.5, 2, 1000).astype(np.float32)]


def _spectra(o: Any, x: Any, window: Any) -> Any:
    if o is ops:
        return ops.stft(x, 400, 160, window=window, return_complex=False)
    return torch.view_as_real(torch.stft(x, 400, 160, window=window, return_complex=True))


def _ctc_of_scores(o: Any, x: Any, *rest: Any) -> Any:
    return o.ctc_loss(o.log_softmax(x, -1), *rest)


def _signals(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 8 * k, 64, 2000)]


def _statistics(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return [_f(rng, 8 * k, 64, 28, 28), _f(rng, 64), rng.uniform(0.5, 2, 64).astype(np.float32)]


def _labelled(rng: np.random.Generator, k: int) -> Sequence[np.ndarray[Any, Any]]:
    return _classes(rng, k)[:2]


CASES = (
    Case("interpolate-nearest", _images, lambda o, x: o.interpolate(x, scale_factor=2)),
    Case("interpolate-bilinear", _images, lambda o, x: o.interpolate(x, scale_factor=2, mode="bilinear")),
    Case("interpolate-bicubic", _images, lambda o, x: o.interpolate(x, size=(84, 84), mode="bicubic")),
    Case("interpolate-antialias", _images,
         lambda o, x: o.interpolate(x, size=(24, 24), mode="bilinear", antialias=True)),
    Case("grid_sample", _grid, lambda o, x, g: o.grid_sample(x, g, align_corners=False)),
    Case("pad-reflect", _images, lambda o, x: o.pad(x, (3, 3, 3, 3), "reflect")),
    Case("adaptive_avg_pool", _images, lambda o, x: o.adaptive_avg_pool2d(x, 7)),
    Case("adaptive_max_pool", _images, lambda o, x: o.adaptive_max_pool2d(x, 7)),
    Case("lp_pool", _images, lambda o, x: o.lp_pool2d(x, 2.0, 2)),
    Case("unfold", _images, lambda o, x: o.unfold(x, 3, padding=1)),
    Case("pixel_shuffle", _images, lambda o, x: o.pixel_shuffle(x, 2)),
    Case("group_norm", _images, lambda o, x: o.group_norm(x, 8)),
    Case("roll", _images, lambda o, x: o.roll(x, (3, 5), (2, 3))),
    Case("index_select", _rows_index, lambda o, x, i: o.index_select(x, 0, i)),
    Case("getitem", _rows_index, lambda o, x, i: x[i]),
    Case("gather", _places, lambda o, x, i: o.gather(x, 1, i)),
    Case("scatter_add", _added, lambda o, x, i, s: o.scatter_add(x, 1, i, s)),
    Case("topk", _rows, lambda o, x: o.topk(x, 16)[0]),
    Case("sort", _rows, lambda o, x: o.sort(x)[0]),
    Case("cumsum", _rows, lambda o, x: o.cumsum(x, 1)),
    Case("cumprod", _rows, lambda o, x: o.cumprod(x, 1)),
    Case("einsum", _matrices, lambda o, a, b: o.einsum("bij,bjk->bik", a, b)),
    Case("tril", _rows, lambda o, x: o.tril(x)),
    Case("repeat_interleave", _rows, lambda o, x: o.repeat_interleave(x, 4, 0)),
    Case("masked_fill", _rows, lambda o, x: o.masked_fill(x, x > 0, 1.0)),
    Case("glu", _rows, lambda o, x: o.glu(x)),
    Case("stft", _sound, _spectra),
    Case("ctc_loss", _ctc, _ctc_of_scores),
    Case("attention-mask", _heads, lambda o, q, k, v, m: o.scaled_dot_product_attention(q, k, v, m)),
    Case("attention-grouped", _shared_heads,
         lambda o, q, k, v: o.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)),
    Case("embedding_bag", _bags, lambda o, w, i: o.embedding_bag(i, w, mode="mean")),
    Case("cross_entropy-weighted", _classes, lambda o, x, t, w: o.cross_entropy(x, t, w, label_smoothing=0.1)),
    Case("softmax-outer", _images, lambda o, x: o.softmax(x, 1)),
    Case("amax", _rows, lambda o, x: o.amax(x, 1)),
    Case("max_pool1d", _signals, lambda o, x: o.max_pool1d(x, 3, 2)),
    Case("batch_norm-known", _statistics, lambda o, x, m, v: o.batch_norm(x, m, v)),
    Case("nll_loss", _labelled, lambda o, x, t: o.nll_loss(x, t)),
    Case("to-float16", _rows, lambda o, x: x.to((lm if o is ops else torch).float16)),
    Case("prelu", _rows, lambda o, x: o.prelu(x, x[0, :1])),
    Case("split-product", _rows, lambda o, x: o.split(x, 512, 1)[1] * 2),
)  # fmt: skip

#: Reasons for slower cases, by kind of device and name.
REASONS = {
    "cpu": {
        "adaptive_avg_pool": "oneDNN's pooling is three quarters of it; torch.compile unrolls the cell",
        "adaptive_max_pool": "oneDNN's pooling is half of it; torch.compile unrolls the cell",
        "amax": "one pass over memory, and the call's own time",
        "batch_norm-known": "the call's own time is half of it; the gradient by the statistics is ten small ops",
        "cross_entropy-weighted": "log probabilities are written, and read again by two sums",
        "cumprod": "its gradient is scans and quotients in passes of their own, bound by memory",
        "gather": "an element at a time, each index looked at",
        "getitem": "the copy takes 20 microseconds, the call's own time as many",
        "glu": "the exponential is to the last digits; of the gradient each half is copied into its place",
        "index_select": "the copy takes 20 microseconds, the call's own time as many",
        "interpolate-nearest": "a write of 6 MB at the memory's speed: 0.85 to 1.3 from run to run",
        "lp_pool": "three kernels: the power, the pool, the root",
        "masked_fill": "the call's own time beside one pass over memory",
        "max_pool1d": "the signal is copied channels last first, which is half of it",
        "nll_loss": "the call's own time: PyTorch takes 5 microseconds for 512 labels",
        "pad-reflect": "a copy at the memory's speed, and the call's own time",
        "prelu": "one pass over memory, and the call's own time",
        "repeat_interleave": "8 MB are written, at the memory's speed",
        "roll": "a copy at the memory's speed, and the call's own time",
        "scatter_add": "an element at a time, each index looked at",
        "softmax-outer": "exponentials are computed twice, for the sum and for the result",
        "split-product": "one pass over memory, and the call's own time",
        "stft": "one product with the whole basis, whose arithmetic grows with the square of the frame",
        "to-float16": "one pass over memory, and the call's own time",
        "tril": "a copy at the memory's speed, and the call's own time",
    },
    "cuda": {
        "attention-grouped": "keys and values are copied for the queries of a group",
        "attention-mask": "scores are written and read between products: float32 has no other way here",
        "cumprod": "its gradient is scans and quotients in passes of their own, bound by memory",
        "gather": "the call's own time: PyTorch's op takes 20 microseconds, a compiled call 30",
        "getitem": "the call's own time: PyTorch's op takes 13 microseconds, a compiled call 19",
        "index_select": "the call's own time: PyTorch's op takes 15 microseconds, a compiled call 20",
        "interpolate-bicubic": "row-major images are written an element at a time",
        "interpolate-bilinear": "adjacent results of row-major images read elements that they share once each",
        "nll_loss": "the call's own time: PyTorch takes 13 microseconds for so few labels",
        "pixel_shuffle": "a copy, and the call's own time: PyTorch's op takes 27 microseconds",
        "repeat_interleave": "134 MB are written, at 40 % of the memory's speed",
        "sort": "sorted by merges, where PyTorch sorts by digits",
        "split-product": "the call's own time",
        "topk": "tiles are sorted, where PyTorch selects by digits",
    },
}


def modes_of(
    library: str, case: Case, arrays: Sequence[Any], device: str, compiled: bool
) -> dict[str, Callable[[], Any]]:
    """The timed functions of a library, by mode. compiled: `torch.compile` too."""
    if library == "torch":
        return torch_modes(case, arrays, device, compiled)
    return lamina_modes(case, arrays, device)


def lamina_modes(case: Case, arrays: Sequence[Any], device: str) -> dict[str, Callable[[], Any]]:
    """The timed functions of Lamina, by mode."""
    given = [lm.tensor(a, device=device) for a in arrays]

    def loss(x: Any, *rest: Any) -> Any:
        return ops.sum(ops.square(case.call(ops, x, *rest)))

    forward, step = partial(case.call, ops), lm.value_and_grad(loss)
    fast, whole = lm.jit(lambda *given: case.call(ops, *given)), lm.jit(step)
    return {
        "forward": lambda: forward(*given),
        "gradient": lambda: step(*given),
        "forward-compiled": lambda: fast(*given),
        "gradient-compiled": lambda: whole(*given),
    }


def torch_modes(
    case: Case, arrays: Sequence[Any], device: str, compiled: bool
) -> dict[str, Callable[[], Any]]:
    """The timed functions of PyTorch, by mode."""
    given = [torch.from_numpy(a).to(device) for a in arrays]
    wrt, names = given[0].requires_grad_(), TorchNames()

    def plain(*tensors: torch.Tensor) -> Any:
        return case.call(names, *tensors)

    def step(f: Callable[..., Any]) -> Any:
        return torch.autograd.grad(f(*given).square().sum(), wrt)

    def forward(f: Callable[..., Any]) -> Any:
        with torch.no_grad():
            return f(*given)

    found: dict[str, Callable[[], Any]] = {"forward": lambda: forward(plain), "gradient": lambda: step(plain)}
    if compiled:
        torch.compiler.reset()
        fast = torch.compile(plain)
        found["forward-compiled"] = lambda: forward(fast)
        found["gradient-compiled"] = lambda: step(fast)
    return found


def timed(run: Callable[[], Any], device: str, seconds: float) -> float:
    """Median seconds of one call, of as many as fit in this many seconds."""
    for _ in range(3):
        run()
    if device == "cpu":
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        return _by_clock(run, clock, seconds)
    torch.cuda.synchronize()
    lm.device("cuda:0").synchronize()
    return _by_train(run, seconds)


def _by_clock(run: Callable[[], Any], clock: Callable[[], float], seconds: float) -> float:
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < LEAST or time.perf_counter() < until:
        start = clock()
        run()
        taken.append(clock() - start)
    return median(taken)


def _by_train(run: Callable[[], Any], seconds: float) -> float:
    """Time by trains of calls, each synchronized: host and device overlap as in a program."""
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < LEAST or time.perf_counter() < until:
        start = time.perf_counter()
        for _ in range(TRAIN):
            run()
        torch.cuda.synchronize()
        lm.device("cuda:0").synchronize()
        taken.append((time.perf_counter() - start) / TRAIN)
    return median(taken)


def measure(case: Case, device: str, compiled: bool, seconds: float) -> dict[str, Any]:
    """Milliseconds by library and mode; an error's text if a mode does not run."""
    arrays = case.make(np.random.default_rng(0), 16 if device == "cuda" else 1)
    record: dict[str, Any] = {"name": case.name}
    for library in ("lamina", "torch"):
        times: dict[str, Any] = {}
        try:
            for mode, run in modes_of(library, case, arrays, device, compiled).items():
                times[mode] = round(timed(run, device, seconds) * 1e3, 5)
        except Exception as error:
            times["error"] = f"{type(error).__name__}: {error}"[:300]
        record[library] = times
    for kind in ("forward", "gradient"):
        ours, theirs = (
            [t for m, t in record[lib].items() if m.startswith(kind)] for lib in ("lamina", "torch")
        )
        if ours and theirs:
            record[f"{kind}-ratio"] = round(min(theirs) / min(ours), 3)
    slow = min((v for k, v in record.items() if k.endswith("-ratio")), default=1.0) < LEAST_RATIO
    if slow:
        record["reason"] = REASONS[device].get(case.name, "not known")
    return record


def prepare(cases: Sequence[str], device: str, compiled: bool, jobs: int) -> None:
    """Run every mode of these cases once, in this many processes."""
    context = get_context("spawn")
    with ProcessPoolExecutor(jobs, context) as pool:
        list(pool.map(_prepared, cases, [device] * len(cases), [compiled] * len(cases)))


def _prepared(name: str, device: str, compiled: bool) -> None:
    case = next(c for c in CASES if c.name == name)
    arrays = case.make(np.random.default_rng(0), 16 if device == "cuda" else 1)
    for library in ("lamina", "torch"):
        with suppress(Exception):  # a mode that does not run is reported when it is timed
            for run in modes_of(library, case, arrays, device, compiled).values():
                run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--without-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--seconds", type=float, default=0.25, help="for one mode of one case")
    parser.add_argument(
        "--ahead", type=int, default=0, help="processes that compile before anything is timed"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both, on a CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    torch.backends.cuda.matmul.allow_tf32 = True
    rows = []
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    if options.ahead:
        prepare([case.name for case in chosen], options.device, not options.without_compile, options.ahead)
    for case in chosen:
        rows.append(measure(case, options.device, not options.without_compile, options.seconds))
        print(rows[-1], flush=True)
        machine = torch.cuda.get_device_name() if options.device == "cuda" else processor()
        ratios = [r[k] for r in rows for k in ("forward-ratio", "gradient-ratio") if k in r]
        mean = round(exp(sum(map(log, ratios)) / len(ratios)), 3) if ratios else None
        beside = "PyTorch op by op" + ("" if options.without_compile else " and torch.compile")
        record = {
            "beside": beside,
            "machine": machine,
            "versions": versions(["torch", "numpy"]),
            "mean": mean,
            "rows": rows,
        }
        if options.out or not options.only:
            write(f"op_families_{options.device}", record, options.out)
    print(f"geometric mean {mean} of {len(ratios)}, least {min(ratios, default=None)}")


if __name__ == "__main__":
    main()
