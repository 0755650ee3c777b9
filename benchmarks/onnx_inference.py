"""Inference of ONNX models beside ONNX Runtime, on the CPU, in one run.

    python -m benchmarks.onnx_inference [--network unet ...] [--threads 1 2] [--rounds 7] [--json]

Seven known networks (the files without weights that come with the package onnx) and five that are made here: a
network of depthwise convolutions, a U-Net, a bidirectional LSTM and GRU, a transformer encoder decomposed
as by exporters. Each is run in a process of its own, by both alternately, round after round. The median of the
rounds counts; that of the processor time is more reliable on a shared machine (with one thread: waiting
threads count). Outputs are compared. With `--json` the record goes to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.backend.test.loader import DATA_DIR

import lamina as lm
from benchmarks.common import processor, versions, write
from lamina.convert import from_onnx
from lamina.infer import Predictor

#: Minimum seconds of one side's round.
_ROUND = 0.3
_LIGHT = ("densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "zfnet512")


class Draft:
    """A model under construction: nodes and random weights."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def __call__(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"v{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def weight(self, *shape: int) -> str:
        """Random numbers of variance 1 / inputs."""
        scale = (2 / max(1, np.prod(shape[1:]))) ** 0.5
        return self.constant((self.rng.normal(size=shape) * scale).astype(np.float32))

    def constant(self, value: Any) -> str:
        """An initializer."""
        self.weights.append(numpy_helper.from_array(np.asarray(value), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def conv(self, x: str, c: int, out: int, k: int = 3, stride: int = 1, group: int = 1) -> str:
        """Convolution and batch norm."""
        y = self(
            "Conv",
            x,
            self.weight(out, c // group, k, k),
            strides=[stride] * 2,
            pads=[k // 2] * 4,
            group=group,
        )
        one, zero = (self.constant(np.full(out, v, np.float32)) for v in (1, 0))
        return str(self("BatchNormalization", y, one, zero, zero, one))

    def model(self, shape: tuple[int, ...], output: str) -> onnx.ModelProto:
        """The finished model."""
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes, "net", [info("x", 1, list(shape))], [info(output, 1, None)], self.weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def mobile() -> onnx.ModelProto:
    """Inverted residuals: 1x1, depthwise 3x3, 1x1, with hard swishes."""
    d, c = Draft(), 16
    x = d("HardSwish", d.conv("x", 3, c, 3, 2))
    for out, stride, repeats in ((24, 2, 2), (40, 2, 3), (80, 2, 3), (160, 2, 2)):
        for i in range(repeats):
            wide = d("HardSwish", d.conv(x, c, 4 * c, 1))
            deep = d("HardSwish", d.conv(wide, 4 * c, 4 * c, 3, stride if i == 0 else 1, 4 * c))
            y = d.conv(deep, 4 * c, out, 1)
            x, c = (d("Add", x, y) if i else y), out
    flat = d("Flatten", d("GlobalAveragePool", x))
    return d.model((1, 3, 224, 224), d("Gemm", flat, d.weight(c, 1000)))


def unet() -> onnx.ModelProto:
    """Three levels down by pooling, up by transposed convolutions, with skip connections."""
    d, c, skipped = Draft(), 3, []
    x = "x"
    for out in (16, 32, 64):
        x = d("Relu", d.conv(d("Relu", d.conv(x, c, out)), out, out))
        skipped.append((x, out))
        x, c = d("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), out
    x = d("Relu", d.conv(x, 64, 128))
    c = 128
    for held, out in skipped[::-1]:
        up = d("ConvTranspose", x, d.weight(c, out, 2, 2), strides=[2, 2])
        x, c = d("Relu", d.conv(d("Concat", held, up, axis=1), 2 * out, out)), out
    return d.model((1, 3, 128, 128), d("Conv", x, d.weight(2, 16, 1, 1)))


def recurrent(operator: str, gates: int) -> onnx.ModelProto:
    """Two bidirectional layers of 128 cells over 50 steps of 8 sequences."""
    d, x, width = Draft(), "x", 64
    extra = {"linear_before_reset": 1} if operator == "GRU" else {}
    for _ in range(2):
        w, r = d.weight(2, gates * 128, width), d.weight(2, gates * 128, 128)
        bias = d.constant(np.zeros((2, gates * 256), np.float32))
        y = d(operator, x, w, r, bias, hidden_size=128, direction="bidirectional", **extra)
        order = d("Transpose", y, perm=[0, 2, 1, 3])
        x, width = d("Reshape", order, d.constant(np.array([0, 0, 256]))), 256
    return d.model((50, 8, 64), x)


def encoder() -> onnx.ModelProto:
    """Four layers of width 256 with 4 heads over 128 tokens, attention decomposed into products."""
    d, x, e, heads = Draft(), "x", 256, 4
    split, join = d.constant(np.array([0, 0, heads, e // heads])), d.constant(np.array([0, 0, e]))
    root, half, one = (d.constant(np.float32(v)) for v in ((e // heads) ** 0.5, 0.5, 1.0))
    two = d.constant(np.float32(2**0.5))

    def linear(x: str, a: int, b: int) -> Any:
        return d("Add", d("MatMul", x, d.weight(a, b)), d.constant(np.zeros(b, np.float32)))

    def norm(x: str) -> Any:
        ones, zeros = (d.constant(np.full(e, v, np.float32)) for v in (1, 0))
        return d("LayerNormalization", x, ones, zeros, axis=-1)

    for _ in range(4):
        h = norm(x)
        q, v = (d("Transpose", d("Reshape", linear(h, e, e), split), perm=[0, 2, 1, 3]) for _ in range(2))
        k = d("Transpose", d("Reshape", linear(h, e, e), split), perm=[0, 2, 3, 1])
        scores = d("Softmax", d("Div", d("MatMul", q, k), root), axis=-1)
        found = d("Reshape", d("Transpose", d("MatMul", scores, v), perm=[0, 2, 1, 3]), join)
        x = d("Add", x, linear(found, e, e))
        wide = linear(norm(x), e, 4 * e)
        gelu = d("Mul", d("Mul", wide, half), d("Add", d("Erf", d("Div", wide, two)), one))
        x = d("Add", x, linear(gelu, 4 * e, e))
    return d.model((2, 128, e), x)


def _light(name: str) -> onnx.ModelProto:
    return onnx.load(Path(DATA_DIR) / "light" / f"light_{name}.onnx")


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    **{name: (lambda name=name: _light(name)) for name in _LIGHT},
    "mobile": mobile,
    "unet": unet,
    "lstm": lambda: recurrent("LSTM", 4),
    "gru": lambda: recurrent("GRU", 3),
    "encoder": encoder,
}


def measure(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """Both sides' medians in seconds, and the difference of the outputs."""
    import onnxruntime

    model = NETWORKS[name]()
    held = {t.name for t in model.graph.initializer}
    (info,) = (v for v in model.graph.input if v.name not in held)
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    start = time.perf_counter()
    predictor = Predictor(from_onnx(model).eval(), device="cpu")
    mine = predictor(x).numpy()
    first = time.perf_counter() - start
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    (theirs,) = session.run(None, {info.name: x})
    first_theirs = time.perf_counter() - start
    sides = {"lamina": lambda: predictor(x), "onnxruntime": lambda: session.run(None, {info.name: x})}
    times: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, run in sides.items():
            times[side].append(_seconds(run))
    found = {side: median([wall for wall, _ in each]) for side, each in times.items()}
    busy = {side: median([own for _, own in each]) for side, each in times.items()}
    return {
        "network": name, "threads": threads, **found, "ratio": found["onnxruntime"] / found["lamina"],
        "processor": busy, "processor_ratio": busy["onnxruntime"] / busy["lamina"],
        "apart": float(np.abs(mine - theirs).max() / max(np.abs(theirs).max(), 1e-30)),
        "first": first, "first_onnxruntime": first_theirs,
    }  # fmt: skip


def _seconds(run: Callable[[], Any]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one call: medians over a round."""
    walls, busy, until = [], [], time.perf_counter() + _ROUND
    while not walls or time.perf_counter() < until:
        start, own = time.perf_counter(), time.process_time()
        run()
        busy.append(time.process_time() - own)
        walls.append(time.perf_counter() - start)
    return median(walls), median(busy)


def _in_process(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """`measure` in a process of its own, whose libraries have this number of threads."""
    command = [sys.executable, "-m", "benchmarks.onnx_inference", "--one", name, str(threads), str(rounds)]
    made = subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return found


def _means(rows: list[dict[str, Any]], threads: list[int], kind: str) -> dict[int, float]:
    """The geometric mean of a ratio over the networks, for each number of threads."""
    own = {t: [log(r[kind]) for r in rows if r["threads"] == t] for t in threads}
    return {t: exp(sum(each) / len(each)) for t, each in own.items()}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--json", action="store_true", help="write benchmarks/results/onnx_inference-<date>.json"
    )
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, threads, rounds = options.one
        print(json.dumps(measure(name, int(threads), int(rounds))))
        return
    rows = []
    for threads in options.threads:
        for name in options.network:
            rows.append(row := _in_process(name, threads, options.rounds))
            mine, theirs = 1e3 * row["lamina"], 1e3 * row["onnxruntime"]
            told = f"{mine:8.2f} ms, ONNX Runtime {theirs:8.2f} ms: {row['ratio']:.2f}x"
            more = f"by processor time {row['processor_ratio']:.2f}x, apart {row['apart']:.1e}"
            print(f"{name:14} {threads} threads {told}, {more}, first {row['first']:.2f} s", flush=True)
    means, busy = (_means(rows, options.threads, kind) for kind in ("ratio", "processor_ratio"))
    for what, found in (("ratios", means), ("ratios of processor time", busy)):
        each = ", ".join(f"{t} threads {m:.3f}x" for t, m in found.items())
        print(f"geometric mean of the {what}: {each}")
    if options.json:
        about = {"machine": processor(), "versions": versions(["lamina", "numpy", "onnx", "onnxruntime"])}
        print(write("onnx_inference", {**about, "lamina": lm.__version__, "means": means,
                                       "processor_means": busy, "rows": rows}))  # fmt: skip


if __name__ == "__main__":
    main()
