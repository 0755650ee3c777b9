"""Errors of saved plan files."""

from __future__ import annotations


class PlanFileError(ValueError):
    """A file that is no saved plan, is damaged, or was modified; the message names the file and the problem."""


class OtherMachineError(PlanFileError):
    """An intact file, made for another machine, another version of a library or another Lamina."""
