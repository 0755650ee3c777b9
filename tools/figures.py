"""Puts measured figures into the documentation: every table between figure marks comes from a result file.

    python -m tools.figures [--check]

A text holds `<!-- figures: NAME -->` and `<!-- /figures -->`; between them goes the table of the newest
file benchmarks/results/NAME-<date>.json. `--check` only says whether something would change.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = ("README.md", "docs/*.md")
_BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- /figures -->)", re.DOTALL)


def newest(name: str) -> dict[str, Any]:
    """The newest result of a benchmark. Raises FileNotFoundError when there is none."""
    found = sorted(p for p in RESULTS.glob(f"{name}-*.json") if re.fullmatch(rf"{name}-[\d-]+", p.stem))
    if not found:
        raise FileNotFoundError(f"no result of {name} in {RESULTS.relative_to(ROOT)}")
    record: dict[str, Any] = json.loads(found[-1].read_text())
    return record


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def alexnet_cpu(record: dict[str, Any]) -> str:
    """Training step and inference on a CPU."""
    rows = [[n, f"{t['train']:.0f} ms", f"{t['infer']:.0f} ms"] for n, t in record["median_ms"].items()]
    ratio = record["ratio_to_better_torch"]
    rows.append(["Lamina / better PyTorch", f"{ratio['train']:.2f}", f"{ratio['infer']:.2f}"])
    made = table(
        [f"batch {record['batch']}, {record['threads']} threads", "training step", "inference"], rows
    )
    return made + _source(record, record["processor"])


def alexnet_gpu(record: dict[str, Any]) -> str:
    """Training step on a GPU."""
    names = list(record["cases"][0]["median_ms"])
    rows = [
        [str(c["batch"]), *(f"{c['median_ms'][n]:.2f} ms" for n in names), f"{c['ratio_to_torch_eager']:.2f}"]
        for c in record["cases"]
    ]
    made = table(["batch", *names, "Lamina / better eager"], rows)
    return made + _source(record, f"{record['device']}, cuDNN {record['cudnn']}")


def call_cost(record: dict[str, Any]) -> str:
    """What a bound C call costs over bare ctypes."""
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


FIGURES: dict[str, Callable[[dict[str, Any]], str]] = {
    "alexnet_cpu": alexnet_cpu,
    "alexnet_gpu": alexnet_gpu,
    "call_cost": call_cost,
}


def _source(record: dict[str, Any], machine: str) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in record.get("versions", {}).items())
    return f"\nMeasured {record['date']}; {'; '.join(x for x in (machine, versions) if x)}.\n"


def filled(text: str) -> str:
    """The text with every block of figures made anew. Raises KeyError for a name without a table."""
    return _BLOCK.sub(lambda m: m[1] + FIGURES[m[2]](newest(m[2])) + m[3], text)


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
