"""Base classes of the status exceptions; the class for each status is generated into `lamina.c.errors`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

__all__ = ["CudnnError", "DnnlError", "StatusError"]


class StatusError(RuntimeError):
    """A C call returned a status other than success.

    Attributes:
        status: the code (int).
        code: its name in C, such as "CUDNN_STATUS_BAD_PARAM".
        function: the C function.
        message: the library's own reason, "" if it gives none.
        arguments: the call's arguments in one line.
    """

    names: ClassVar[Mapping[int, str]] = {}

    def __init__(self, status: int, function: str, message: str = "", arguments: str = "") -> None:
        self.status, self.function, self.message, self.arguments = status, function, message, arguments
        self.code = self.names.get(status, f"status {status}")
        super().__init__(status, function, message, arguments)

    def __str__(self) -> str:
        reason = f": {self.message}" if self.message else ""
        return f"{self.function}({self.arguments}) returned {self.code} ({self.status}){reason}"


class CudnnError(StatusError):
    """A cuDNN call failed; the subclasses are the status families and, below them, the statuses."""


class DnnlError(StatusError):
    """A oneDNN call failed; the subclasses are the statuses."""
