"""Inserts measured figures into the documentation: every table between figure marks comes from a result file.

    python -m tools.figures [--check]

A document contains `<!-- figures: NAME -->` and `<!-- /figures -->`; between them goes the table of the newest
file benchmarks/results/NAME-<date>.json, or a line that says that there is none. `--check` only reports whether
anything would change.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.common import RESULTS, files_of

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "docs/*.md")
_BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- /figures -->)", re.DOTALL)


def newest(name: str) -> dict[str, Any]:
    """The newest result of a benchmark. Raises FileNotFoundError if there is none."""
    found = files_of(name, RESULTS)
    if not found:
        raise FileNotFoundError(f"no result of {name} in {RESULTS.relative_to(ROOT)}")
    record: dict[str, Any] = json.loads(found[-1].read_text())
    return record


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


#: Columns of peers: the best of the modes with this prefix.
_PEERS = {
    "PyTorch eager": "torch eager",
    "compile": "torch compile",
    "reduce-overhead": "torch reduce-overhead",
    "CUDA graph": "torch captured",
    "JAX": "jax",
}
_KINDS = {"train": "training step", "both": "forward + backward", "infer": "inference"}


def suite(record: dict[str, Any]) -> str:
    """Every workload, every peer: milliseconds, against the best peer, and the fraction of the roofline."""
    columns = {
        name: start
        for name, start in _PEERS.items()
        if any(peer.startswith(start) for c in record["cases"] for peer in c["results"])
    }
    tuned = any("regret" in case for case in record["cases"])
    settled = any("speedup_settled" in case for case in record["cases"])
    rows = [_suite_row(case, list(columns.values()), tuned, settled) for case in record["cases"]]
    beside = (["tuned", "regret"] if tuned else []) + (["tuned between steps"] if settled else [])
    gains = ["faster than the best peer", *(["tuned between steps"] if settled else [])]
    head = ["", "batch", "type", "Lamina ms", *beside, *columns, *gains, "% of roofline"]
    made = table(head, rows)
    gain = record["geometric_mean"]
    if gain is not None:
        made += f"\nGeometric mean over the best peers: {gain:.2f} times"
        if tuned:
            made += f"; tuned {record['geometric_mean_tuned']:.2f}, regret {record['regret']:.2f}"
        if settled:
            made += f"; of those that are tuned between steps {record['geometric_mean_settled']:.2f}"
        made += ".\n"
    machine = f"{record['device']}, cuDNN {record['cudnn']}" if record["cudnn"] else record["processor"]
    threads = f"{machine}, {record['threads']} threads" if record["threads"] else machine
    return made + _source(record, threads)


def _suite_row(case: dict[str, Any], peers: list[str], tuned: bool, settled: bool) -> list[str]:
    """One workload. tuned: with Lamina's time after all candidates are timed. settled: also with that
    after some seconds of steps between which plans compete.
    """
    batch = case["shape"][1 if case["network"] in ("lstm", "gru", "conformer") else 0]
    results = case["results"]
    ours = [_milliseconds(results.get("lamina", {}).get("median_ms"))]
    if tuned:
        ours.append(_milliseconds(results.get("lamina fastest", {}).get("median_ms")))
        ours.append(f"{case['regret']:.2f}" if "regret" in case else "-")
    gains = [f"{case['speedup']:.2f}×" if "speedup" in case else "-"]
    if settled:
        ours.append(_milliseconds(results.get("lamina tuned", {}).get("median_ms")))
        gains.append(f"{case['speedup_settled']:.2f}×" if "speedup_settled" in case else "-")
    return [
        f"{_title(case)}, {_KINDS[case['kind']]}",
        str(batch),
        case["dtype"],
        *ours,
        *(_milliseconds(_best(case, start)) for start in peers),
        *gains,
        f"{case['fraction_of_limit']:.0%}" if "fraction_of_limit" in case else "-",
    ]


def _title(case: dict[str, Any]) -> str:
    """The network and its sizes."""
    shape, size = case["shape"], case["size"]
    if case["network"] in ("lstm", "gru"):
        return f"{case['network'].upper()} of {size[1]} layer{'s' * (size[1] > 1)}, {size[0]} units, {shape[0]} steps"
    if case["network"] == "encoder":
        return f"transformer encoder of {size[1]} layers, {shape[1]}×{shape[2]}, {size[0]} heads"
    if case["network"] == "conv":
        return f"convolution {'×'.join(map(str, shape))}, {size[0]} filters of {size[1]}×{size[1]}"
    names = {"alexnet": "AlexNet", "alexnet_owt": "AlexNet (one weird trick)", "overfeat": "OverFeat"}
    names |= {"vgg11": "VGG-A", "googlenet": "GoogLeNet", "mobilenet_v2": "MobileNetV2"}
    names |= {"efficientnet_b0": "EfficientNet-B0", "vit_s_16": "ViT-S/16", "convnext_tiny": "ConvNeXt-T"}
    names |= {"regnet_y_3_2gf": "RegNetY-3.2GF", "swin_t": "Swin-T", "densenet121": "DenseNet-121"}
    names |= {"unet": "U-Net", "dilated": "dilated 1-d convolutions", "conformer": "Conformer block"}
    names |= {"gpt2": f"GPT-2 small, {shape[1]} tokens"}
    network: str = case["network"]
    return names.get(network, network.replace("resnet", "ResNet-"))


def _best(case: dict[str, Any], start: str) -> float | None:
    """The best time of the peers with this prefix."""
    times = [r["median_ms"] for p, r in case["results"].items() if p.startswith(start) and "median_ms" in r]
    return min(times, default=None)


def _milliseconds(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.3f}"


def suite_start(record: dict[str, Any]) -> str:
    """First steps and memory measured by the suite, if requested."""
    rows = []
    for case in record["cases"]:
        for peer, r in case["results"].items():
            if "median_ms" in r:
                cold = f"{r['cold_first_step_s']:.1f} s" if "cold_first_step_s" in r else "-"
                peak = f"{r['peak_bytes'] / 2**20:.0f} MiB" if r.get("peak_bytes") else "-"
                rows.append([case["name"], peer, cold, f"{r['first_step_s']:.1f} s", peak])
    head = ["", "", "first step, empty caches", "first step, caches as found", "peak memory"]
    return table(head, rows) + _source(record, record["device"] or record["processor"])


def cold_start(record: dict[str, Any]) -> str:
    """Processor time for planning a workload, with empty and with warm caches, and its kernels."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for result in record["results"]:
        found.setdefault(result["workload"], {})[result["caches"]] = result
    rows = []
    for name, by in found.items():
        cold, warm = by["empty"], by["as found"]
        kernels = cold["processor_s"] - cold["planning_processor_s"]
        rows.append(
            [
                name,
                *(f"{r['planning_processor_s']:.2f} s" for r in (cold, warm)),
                str(cold["sources"]),
                f"{kernels:.1f} s",
            ]
        )
    head = ["", "planned, empty caches", "planned, caches as found", "own kernels", "compiled in"]
    return table(head, rows) + _source(record, record["processor"])


def curves(record: dict[str, Any]) -> str:
    """Accuracy of the same training run in two libraries."""
    rows = [
        [
            m["network"].replace("alexnet", "AlexNet").replace("resnet", "ResNet-"),
            m["precision"],
            str(m["seeds"]),
            *(f"{m['accuracy'][who]:.2f} %" for who in ("lamina", "torch")),
            f"{m['difference']:+.2f} points",
        ]
        for m in record["means"]
    ]
    head = [
        f"{record['steps']} steps of {record['batch']}",
        "precision",
        "seeds",
        "Lamina",
        "PyTorch",
        "difference",
    ]
    return table(head, rows) + _source(record, record["device"])


def call_cost(record: dict[str, Any]) -> str:
    """The overhead of a bound C call over bare ctypes."""
    rows = [
        [
            r["call"],
            *(f"{r[k]} ns" for k in ("ctypes_ns", "lamina_ns")),
            f"{r['lamina_ns'] - r['ctypes_ns']} ns",
        ]
        for r in record["rows"]
    ]
    return table(["call", "bare ctypes", "`lamina.c`", "difference"], rows) + _source(
        record, record["processor"]
    )


def slowest_tests(record: dict[str, Any]) -> str:
    """The slowest tests (`tools.slowest`), and their share of the total."""
    rows = [
        [f"`{r['test']}`", str(r["cases"]), str(r["seconds"]), str(r["longest"]), _share(r, record)]
        for r in record["rows"]
    ]
    made = table(["test", "cases", "seconds", "longest case", "of all"], rows)
    note = f" {record['note']}." if record["note"] else ""
    return (
        f"{made}\n{record['tests']:,} tests, {record['seconds']:,.0f} s of all processes, "
        f"{record['run_seconds']:,.0f} s for the run.{note} Measured {record['date']}; {record['processor']}.\n"
    )


def _share(row: dict[str, Any], record: dict[str, Any]) -> str:
    return f"{100 * row['seconds'] / record['seconds']:.0f} %"


def simulated(record: dict[str, Any]) -> str:
    """The simulator's predictions for ResNet-50, and for published runs (`benchmarks.simulated`)."""
    head = ["GPUs", "step ms", "communication", "exposed", "stragglers (1 %)", "images/s", "speedup"]
    even = [p["speedup"] for p in record["h200"]]
    rows = [
        [
            f"{p['gpus']:,}",
            f"{p['step_ms']:.2f}",
            f"{p['communication_ms']:.3f}",
            f"{p['exposed_ms']:.3f}",
            f"{p['stragglers_ms']:.2f}",
            f"{p['samples_per_second']:,.0f}",
            f"{p['speedup']:,.2f}",
            f"{alike:,.2f}",
        ]
        for p, alike in zip(record["h200_spread_1_percent"], even, strict=True)
    ]
    return "\n".join(
        (
            table([*head, "without spread"], rows),
            f"256 images a GPU, bf16, gradients of {record['gradient_bytes'] / 1e6:.1f} MB. The step of one GPU was",
            "measured; NVLink 4 and InfiniBand NDR are taken at 0.8 of the data sheets.\n",
            _mlperf(record["mlperf_8_h200"]),
            _mxnet(record["mxnet_8_a100"]),
            "",
        )
    )


def weak_scaling(record: dict[str, Any]) -> str:
    """Steps on several GPUs compared with one, with as many samples per GPU (`benchmarks.weak_scaling`)."""
    rows = []
    for name, found in record["networks"].items():
        first, *more = sorted(found["ranks"], key=int)
        ways = {way: row for ranks in more for way, row in found["ranks"][ranks].items() if "ms" in row}
        for way in ways:
            alone = found["ranks"][first].get(way.partition("-")[0], {})
            times = [alone, *(found["ranks"][ranks].get(way, {}) for ranks in more)]
            shares = [found["efficiency"].get(way, {}).get(ranks) for ranks in more]
            rows.append(
                [name, str(ways[way]["batch"]), way]
                + [f"{row['ms']:.2f}" if "ms" in row else "–" for row in times]
                + [
                    "–" if x is None else f"{x * int(n) / int(first):.2f}"
                    for n, x in zip(more, shares, strict=True)
                ]
            )
    counts = [first, *more]
    head = ["network", "samples a GPU", "way", *(f"{n} GPU{'s' * (n != '1')}, ms" for n in counts)]
    return table([*head, *(f"times one GPU, {n}" for n in more)], rows) + _source(record, record["machine"])


def _mlperf(found: dict[str, Any]) -> str:
    return (
        f"- 8 H200, MLPerf Training 4.0 (NVIDIA): {found['published_samples_per_second']:,} images/s, "
        f"{found['published_step_ms']:.1f} ms for as many images. The model names {found['compute_ms']:.1f} ms of "
        f"computing, {found['exposed_ms']:.2f} of communication and {found['stragglers_ms']:.2f} of stragglers; "
        f"{found['not_explained_ms']:.1f} ms ({100 * found['not_explained']:.0f} %) are not in it: JPEG decoding, "
        "LARS, other kernels."
    )


def _mxnet(found: dict[str, Any]) -> str:
    return (
        f"- 8 A100, MXNet: {found['published_speedup']:.2f} of 8. The model says {found['speedup']:.2f} by "
        f"communication alone ({found['communication_ms']:.2f} ms, {found['exposed_ms']:.3f} exposed); the other "
        f"{found['not_explained_ms']:.1f} ms of a step would be stragglers with a spread of "
        f"{100 * found['spread_that_explains_it']:.1f} %."
    )


def torch_backend(record: dict[str, Any]) -> str:
    """Training steps, or inference, by PyTorch's backends and by this package's, in milliseconds
    (`benchmarks.torch_backend`)."""
    ways = ("eager", "compile", "reduce-overhead", "lamina", "converted")
    used = [way for way in ways if any(way in found["ms"] for found in record["networks"].values())]
    rows = []
    for name, found in record["networks"].items():
        times = found["ms"]
        best = min((t for way, t in times.items() if way not in ways[3:]), default=None)
        gains = [f"{best / times[way]:.2f}×" if best and way in times else "-" for way in ways[3:]]
        rows.append(
            [f"`{name}`", str(found["batch"]), *(_milliseconds(times.get(way)) for way in used), *gains]
        )
    head = ["network", "batch", *used, "lamina over the best", "converted over the best"]
    return table(head, rows) + _source(record, record["machine"])


def first_steps(record: dict[str, Any]) -> str:
    """The first training step without a plan database, and the time of later steps."""
    rows = [
        [f"`{n['network']}`", str(n["batch_size"]), f"{n['first_step_s']:.1f} s", _milliseconds(n["step_ms"])]
        for n in record["networks"]
    ]
    return table(["network", "batch", "first step", "a step, ms"], rows) + _source(record, record["device"])


def factors(record: dict[str, Any]) -> str:
    """Factors of matrices, and PyTorch's times in brackets, in milliseconds (`benchmarks.factors`)."""
    ops = list(next(iter(record["ms"].values())))
    rows = [
        [name, *(f"{row[op]['lamina']:.3g} ({_milliseconds(row[op].get('torch'))})" for op in ops)]
        for name, row in record["ms"].items()
    ]
    return table(["Matrices", *ops], rows) + _source(record, record["device"])


def swap_curves(record: dict[str, Any]) -> str:
    """Losses of training runs with swaps and without (`benchmarks.swap_curves`)."""
    rows = [
        [
            c["network"],
            str(len(c["swaps"])),
            f"{min(c['swaps'])} to {max(c['swaps'])}",
            f"{max(c['differences_in_spreads'], key=abs):+.2f}",
            f"{c['differences_in_spreads'][-1]:+.2f}",
            *(f"{100 * mean(c['accuracy'][mode]):.2f} %" for mode in ("swaps", "none")),
        ]
        for c in record["compared"]
    ]
    apart = ["loss apart, most of ten parts", "in the last"]
    head = ["network", "seeds", "changes of plans", *apart, "accuracy", "without changes"]
    return table(head, rows) + _source(record, record["device"])


FIGURES: dict[str, Callable[[dict[str, Any]], str]] = {
    "call_cost": call_cost,
    "cold_start": cold_start,
    "curves": curves,
    "factors_cuda": factors,
    "first_steps_without_database": first_steps,
    "simulated": simulated,
    "slowest_tests": slowest_tests,
    "suite_cpu": suite,
    "swap_curves": swap_curves,
    "torch_backend_cuda": torch_backend,
    "torch_inference_cuda": torch_backend,
    "suite_gpu": suite,
    "suite_modern": suite,
    "suite_modern_fastest": suite,
    "suite_recurrent": suite,
    "suite_modern_start": suite_start,
    "suite_gpu_start": suite_start,
    "weak_scaling_cuda": weak_scaling,
}


def _source(record: dict[str, Any], machine: str) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in record.get("versions", {}).items())
    return f"\nMeasured {record['date']}; {'; '.join(x for x in (machine, versions) if x)}.\n"


def filled(text: str) -> str:
    """The text with every figure block regenerated. Raises KeyError for a name without a table."""
    return _BLOCK.sub(lambda m: m[1] + _made(m[2]) + m[3], text)


def _made(name: str) -> str:
    """The table of this name, or a line that says that nothing was measured."""
    make = FIGURES[name]
    try:
        return make(newest(name))
    except FileNotFoundError:
        return "Not measured yet.\n"


def main(arguments: list[str] | None = None) -> int:
    """Fill all documents, or check them; the exit status says whether they were up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(arguments)
    stale = 0
    for path in sorted(p for pattern in DOCUMENTS for p in ROOT.glob(pattern)):
        old = path.read_text()
        new = filled(old)
        if new != old:
            stale += 1
            print(f"{path.relative_to(ROOT)} {'is out of date' if options.check else 'written'}")
            if not options.check:
                path.write_text(new)
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
