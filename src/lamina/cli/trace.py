"""Join the timelines of several ranks (the callback Trace writes them) into one file for chrome://tracing.

lamina trace run.json run.rank*.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lamina.graph import merge_timelines
from lamina.runtime import check_writable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    parser.add_argument("files", type=Path, metavar="FILE", nargs="+", help="the timeline of a rank")


def run(options: argparse.Namespace) -> None:
    """Join them and report which."""
    check_writable(options.out)
    ranks = merge_timelines(options.files, options.out)
    print(f"{options.out}: {ranks} rank{'s' * (ranks > 1)}")
