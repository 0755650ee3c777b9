"""Finds the installed vendor libraries without loading any."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lamina._lazy import lazy
from lamina.runtime import _cuda

_library = lazy("importlib", {"metadata": "importlib.metadata"})  # it imports many others


class Library(NamedTuple):
    """A vendor library: its name, version ("" if unknown), path ("" if absent) and how it was found."""

    name: str
    version: str
    path: str
    found: str  # "loaded", "package <name>", "system", "" (absent)


class _Known(NamedTuple):
    stem: str  # file name without ".so..."
    packages: tuple[str, ...]  # pip packages that contain it
    version_call: str = ""  # a C function () -> int or size_t that returns the version


_KNOWN = {
    "driver": _Known("libcuda", ()),
    "cudnn": _Known("libcudnn", ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"), "cudnnGetVersion"),
    "cublas": _Known("libcublas", ("nvidia-cublas", "nvidia-cublas-cu12")),
    "cublasLt": _Known("libcublasLt", ("nvidia-cublas", "nvidia-cublas-cu12"), "cublasLtGetVersion"),
    "nvrtc": _Known("libnvrtc", ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")),
    "nccl": _Known("libnccl", ("nvidia-nccl-cu13", "nvidia-nccl-cu12")),
    "onednn": _Known("libdnnl", ("onednn-cpu-gomp",)),
}
_SYSTEM_FOLDERS = (
    "/usr/local/cuda/lib64",
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
)


def libraries(*, open_them: bool = False) -> list[Library]:
    """The vendor libraries of this machine, absent ones with an empty path.

    Args:
        open_them: also load those found, to query their version; by default nothing is
            loaded, and a version is that of the Python package or the file name.
    """
    return [_find(name, known, open_them) for name, known in _KNOWN.items()]


def _find(name: str, known: _Known, open_it: bool) -> Library:
    found = next(_candidates(name, known), Library(name, "", "", ""))
    if open_it and found.path and known.version_call:
        return found._replace(version=_asked(found.path, known.version_call) or found.version)
    return found


def _candidates(name: str, known: _Known) -> Iterator[Library]:
    """Locations of the library, in the order in which a loader would try them."""
    if path := _cuda.loaded_path(f"{known.stem}.so"):
        yield Library(name, _version(name, path, known), path, "loaded")
    for package in known.packages:
        if path := _packaged(package, known.stem):
            yield Library(name, _package_version(package), path, f"package {package}")
    for folder in _folders():
        if path := _in_folder(folder, known.stem):
            yield Library(name, _version(name, path, known), path, "system")


@lru_cache(maxsize=32)
def _packaged(package: str, stem: str) -> str:
    metadata = _library("metadata")
    try:
        files = metadata.files(package) or ()
    except metadata.PackageNotFoundError:
        return ""
    places = (Path(str(file.locate())).resolve() for file in files if _matches(file.name, stem))
    return next((str(place) for place in places if place.exists()), "")


def _matches(file: str, stem: str) -> bool:
    return re.fullmatch(rf"{re.escape(stem)}\.so(\.\d+)*", file) is not None


def _folders() -> list[Path]:
    listed = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    homes = [os.environ.get(variable, "") for variable in ("CUDA_PATH", "CUDA_HOME")]
    toolkits = [f"{home}/lib64" for home in homes if home]
    return [Path(folder) for folder in (*listed, *toolkits, *_SYSTEM_FOLDERS) if folder]


def _in_folder(folder: Path, stem: str) -> str:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if _matches(entry.name, stem))
    except OSError:
        return ""
    return str((folder / names[-1]).resolve()) if names else ""


def _version(name: str, path: str, known: _Known) -> str:
    if name == "driver":
        return _driver_version()
    for package in known.packages:
        if _packaged(package, known.stem) == path:
            return _package_version(package)
    match = re.search(r"\.so\.([\d.]+)$", os.path.realpath(path))
    return match[1] if match else ""


def _package_version(package: str) -> str:
    return str(_library("metadata").version(package))


def _driver_version() -> str:
    """The kernel module's version, e.g. "580.159.03"."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else ""


def _asked(path: str, function: str) -> str:
    try:
        call = getattr(ctypes.CDLL(path), function)
    except (OSError, AttributeError):
        return ""
    call.restype = ctypes.c_size_t
    number = int(call())
    step = 10000 if number >= 90000 else 1000  # cuDNN 9 and cuBLAS 11+ count 10000, older ones 1000
    return f"{number // step}.{number % step // 100}.{number % 100}"
