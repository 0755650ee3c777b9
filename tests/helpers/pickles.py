"""Pickles written opcode by opcode, and files of torch.save around them: untrusted input."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any


class Call:
    """Pickles as a call of a function with arguments."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def archive(content: bytes, more: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive as written by torch.save, around a pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as found:
        for name, data in {"data.pkl": content, "version": b"3\n", **(more or {})}.items():
            found.writestr(f"archive/{name}", data)
    return file.getvalue()


def running(command: Any) -> dict[str, bytes]:
    """Pickles whose loading would run something: `command` is (function, arguments)."""
    function, arguments = command
    named = f"{function.__module__}\n{function.__name__}\n".encode()
    text = pickle.dumps(arguments[0], 2)[2:-1] if arguments else b""
    return {
        "reduce": pickle.dumps({"w": Call(function, *arguments)}, 2),
        "reduce, protocol 5": pickle.dumps({"w": Call(function, *arguments)}, 5),
        "newobj": b"\x80\x02c" + named + text + b"\x85\x81.",
        "inst": b"(" + text + b"i" + named + b".",
        "obj": b"(c" + named + text + b"o.",
        "build": b"\x80\x02}" + b"c" + named + b"b.",
        "ext": b"\x80\x02\x82\x01.",
        "newobj_ex": b"\x80\x04c" + named + text + b"\x85}\x92.",
        "stack_global": b"\x80\x04" + _texts(function.__module__, function.__name__) + b"\x93" + text + b"\x85R.",
        "rebuild": b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(c" + named
        + b"ctorch\nTensor\n" + text + b"\x85NtR.",
        "dict": b"\x80\x02ccollections\nOrderedDict\n(c" + named + text + b"\x85RtR.",
        "persistent id": b"\x80\x02(X\x07\x00\x00\x00storagec" + named
        + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ.",
        "whole file": b"\x80\x02c" + named + text + b"\x85R.",
    }  # fmt: skip


def _texts(*words: str) -> bytes:
    return b"".join(b"\x8c" + bytes([len(w)]) + w.encode() for w in words)


def write_all(folder: Path, command: Any) -> list[Path]:
    """Write a zip archive and a bare pickle of each kind to a folder."""
    found = []
    for number, content in enumerate(running(command).values()):
        for suffix, data in ((".pt", archive(content)), (".bin", content)):
            found.append(folder / f"hostile{number}{suffix}")
            found[-1].write_bytes(data)
    return found
