"""Show devices, libraries with their versions and paths, caches and environment variables; or what a file holds.

lamina info
lamina info model.safetensors      names, shapes, dtypes and sizes, and whether checksums hold; .pt files too
lamina info model.onnx             what goes in and out, tensors, operators and those without a handler
"""

from __future__ import annotations

import argparse
import os
import platform
from importlib import metadata
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from lamina._version import __version__
from lamina.cli.model_table import show_model
from lamina.cli.plan_table import is_plan, show_plan
from lamina.cli.weights_table import show_weights
from lamina.runtime import cache_directory, devices, distrust, human_bytes, libraries

VARIABLES = {
    "LAMINA_CACHE": "folder for compiled kernels and chosen plans",
    "LAMINA_CUDNN": "path of the cuDNN library to use",
    "LAMINA_DNNL": "path of the oneDNN library to use",
    "LAMINA_MEMORY_CAP": "most device memory to hold, such as 8GiB",
    "LAMINA_TUNING": "0 lets training steps on a GPU keep their first plans",
    "CUDA_VISIBLE_DEVICES": "which GPUs the driver shows",
    "CUDA_LAUNCH_BLOCKING": "1 makes every kernel launch wait",
    "CUDNN_LOGLEVEL_DBG": "how much cuDNN logs (0 to 3)",
    "CUDNN_LOGDEST_DBG": "where cuDNN logs to",
    "NVIDIA_TF32_OVERRIDE": "0 forbids TF32 everywhere",
    "OMP_NUM_THREADS": "threads that oneDNN computes with",
    "ONEDNN_VERBOSE": "1 makes oneDNN print every primitive",
}
PACKAGES = (
    "numpy",
    "ml_dtypes",
    "rich",
    "cuda-core",
    "cuda-pathfinder",
    "scikit-learn",
    "torch",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file",
        nargs="?",
        type=Path,
        help="a file of weights, an ONNX model or a saved plan: show what it holds",
    )
    parser.add_argument(
        "--key", help="with a file: where its weights are in a checkpoint, such as state_dict"
    )
    parser.add_argument(
        "--open", action="store_true", help="open the libraries to ask them for their version"
    )


def run(options: argparse.Namespace) -> None:
    """Print the tables. Raises WeightsError and PlanFileError for a file that is damaged."""
    terminal = Console(highlight=False)
    console = terminal if terminal.is_terminal else Console(highlight=False, width=160)
    if options.file is not None and options.file.suffix == ".onnx":
        show_model(console, options.file)
        return
    if options.file is not None and is_plan(options.file):
        show_plan(console, options.file)
        return
    if options.file is not None:
        show_weights(console, options.file, options.key)
        return
    console.print(f"lamina {__version__}, Python {platform.python_version()}, {platform.platform()}")
    for table in (_devices(), _libraries(options.open), _packages(), _caches(), _variables()):
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _devices() -> Table:
    table = _table("Devices", "device", "name", "architecture", "memory free", "memory")
    for place in devices():
        free, total = place.memory_info()
        architecture = str(place.properties["arch"])
        table.add_row(str(place), place.name, architecture, human_bytes(free), human_bytes(total))
    return table


def _libraries(open_them: bool) -> Table:
    table = _table("Libraries", "library", "version", "found", "path")
    for library in libraries(open_them=open_them):
        table.add_row(library.name, library.version or "-", library.found or "not found", library.path or "-")
    return table


def _packages() -> Table:
    table = _table("Packages", "package", "version")
    for package in PACKAGES:
        try:
            table.add_row(package, metadata.version(package))
        except metadata.PackageNotFoundError:
            table.add_row(package, "not installed")
    return table


def _caches() -> Table:
    """Each folder of the cache: its contents, and whether it is used."""
    table = _table("Caches", "folder", "files", "size", "used")
    root = cache_directory()
    folders = [root, *sorted(f for f in root.rglob("*") if f.is_dir())] if root.is_dir() else [root]
    for folder in folders:
        files = [f for f in folder.glob("*") if f.is_file()]
        why = distrust(folder) or next(filter(None, map(distrust, files)), "")
        size = human_bytes(sum(f.stat().st_size for f in files))
        table.add_row(str(folder), str(len(files)), size, f"no: it {why}" if why else "yes")
    return table


def _variables() -> Table:
    table = _table("Environment", "variable", "value", "meaning")
    for name, meaning in VARIABLES.items():
        table.add_row(name, os.environ.get(name, "-"), meaning)
    return table
