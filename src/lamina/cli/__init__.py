"""Floor 6: the program `lamina`. Commands: train, info, plan."""

from lamina.cli.commands import main

__all__ = ["main"]
