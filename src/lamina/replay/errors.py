"""What is wrong with the file of a saved plan."""

from __future__ import annotations


class PlanFileError(ValueError):
    """A file that is no saved plan, is damaged, or was changed; the message names the file and what is wrong."""


class OtherMachineError(PlanFileError):
    """A sound file, made for another machine, another version of a library or another Lamina."""
