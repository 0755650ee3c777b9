"""`python -m codegen parse | emit | check`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from codegen import check, report


def main(arguments: list[str] | None = None) -> int:
    """Run one step; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m codegen", description="Generate lamina.c from headers.")
    steps = parser.add_subparsers(dest="step", required=True)
    parse = steps.add_parser("parse", help="headers -> codegen/api/*.json (needs libclang)")
    parse.add_argument("--cudnn", type=Path, default=Path("build/cudnn-9.28/nvidia/cudnn/include"))
    parse.add_argument("--dnnl", type=Path, help="default: the installed onednn-devel-cpu-gomp")
    parse.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda/include"))
    parse.add_argument("--older", type=Path, nargs="*", default=[], help="include folders of older releases")
    steps.add_parser("emit", help="JSON + overrides.toml -> src/lamina/c and report.md")
    steps.add_parser("check", help="what is committed equals what emit would write")
    options = parser.parse_args(arguments)
    if options.step == "parse":
        return _parse(options)
    if options.step == "emit":
        check.write(check.generated())
        report.write()
        return 0
    problems = [*check.problems(), *report.problems()]
    print("\n".join(problems) or "codegen: up to date")
    return 1 if problems else 0


def _parse(options: argparse.Namespace) -> int:
    from codegen import parse  # only this step needs libclang

    dnnl = options.dnnl or parse.wheel_folder("onednn-devel-cpu-gomp", "include/dnnl.h")
    print("\n".join(parse.run(options.cudnn, dnnl, options.cuda, options.older)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
