"""External tensor data in files beside a model: memory-mapped, and only from the model's own folder."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import onnx

from lamina.convert.onnx.node import OnnxError

#: The allowed keys of a tensor's external data (onnx.proto, TensorProto.external_data).
_KEYS = {"location", "offset", "length", "checksum", "basepath"}


class ExternalData:
    """The files of a folder that tensors refer to: `data(tensor, nbytes)` returns their bytes.

    A location is a relative path without ".." whose file, links resolved, lies in the folder. Offset and length must
    lie within the file, and the length be the tensor's; a SHA-1 of the file is checked if given.
    Raises OnnxError for anything else, with the path.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()
        self._maps: dict[Path, Any] = {}

    def __call__(self, proto: onnx.TensorProto, nbytes: int) -> memoryview:
        """The bytes of a tensor that needs `nbytes` of them, not copied."""
        told = {entry.key: entry.value for entry in proto.external_data}
        if unknown := sorted(set(told) - _KEYS):
            raise self._error(proto, f"unknown entries {unknown}")
        file = self._file(proto, told.get("location", ""))
        held = self._mapped(proto, file)
        start = self._number(proto, told, "offset", 0)
        length = self._number(proto, told, "length", nbytes)
        if length != nbytes:
            raise self._error(proto, f"{list(proto.dims)} needs {nbytes} bytes, it names {length}")
        if start + length > len(held):
            raise self._error(proto, f"bytes {start} to {start + length} of {file}, which has {len(held)}")
        if "checksum" in told and hashlib.sha1(held, usedforsecurity=False).hexdigest() != told["checksum"]:
            raise self._error(proto, f"{file} was changed: its SHA-1 is not {told['checksum']!r}")
        return held[start : start + length]

    def _file(self, proto: onnx.TensorProto, location: str) -> Path:
        posix, windows = PurePosixPath(location), PureWindowsPath(location)
        named = not location or "\0" in location or posix.is_absolute() or windows.drive or windows.root
        if named or ".." in posix.parts or ".." in windows.parts:
            raise self._error(proto, f"location {location!r} must be a path within the model's folder")
        try:
            file = (self.folder / location).resolve(strict=True)
        except (OSError, RuntimeError, ValueError) as error:
            raise self._error(proto, f"{self.folder / location} cannot be read: {error}") from error
        if not file.is_relative_to(self.folder):
            raise self._error(proto, f"location {location!r} leads out of {self.folder}")
        return file

    def _mapped(self, proto: onnx.TensorProto, file: Path) -> memoryview:
        if file not in self._maps:
            try:
                handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            except OSError as error:
                raise self._error(proto, f"{file} cannot be read: {error}") from error
            try:
                facts = os.fstat(handle)
                if not stat.S_ISREG(facts.st_mode):
                    raise self._error(proto, f"{file} is no regular file")
                empty = facts.st_size == 0
                self._maps[file] = b"" if empty else mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
            finally:
                os.close(handle)
        return memoryview(self._maps[file])

    def _number(self, proto: onnx.TensorProto, told: dict[str, str], key: str, default: int) -> int:
        text = told.get(key)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise self._error(proto, f"{key} must be a number of bytes, got {text!r}")
        return int(text)

    def _error(self, proto: onnx.TensorProto, text: str) -> OnnxError:
        return OnnxError(f"external data of tensor {proto.name!r}: {text}")
